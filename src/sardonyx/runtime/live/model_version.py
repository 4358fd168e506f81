"""Model versions: an immutable state of a session's model, and the compiled code for this state.

A session computes each call with one version, from the beginning of the call to its end. The results of a version never
change; only the engine that computes them changes, once compiled code is ready.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sardonyx.base import background_threads
from sardonyx.base.artifact_store import Store, store, using
from sardonyx.base.gc_pause import collector_paused
from sardonyx.base.hooks import hook
from sardonyx.base.thread_priority import FirstCall, lower_priority
from sardonyx.core.eval.run_context import RunContext
from sardonyx.errors import (
    EncryptionError,
    OptionError,
    ResourceError,
    SardonyxError,
    TypeMismatchError,
    UnsupportedError,
)
from sardonyx.runtime.compiled.compiled_file import SUFFIX, is_compiled_file, read_compiled, write_compiled
from sardonyx.runtime.compiled.compiled_model import NativeModel
from sardonyx.runtime.compiled.input_variants import InputVariants, default_values, without_defaults
from sardonyx.runtime.compiled.output_variants import OutputVariants, with_outputs
from sardonyx.runtime.compiled.program_cache import ModelSource, host_function, keep, restored
from sardonyx.runtime.live.answerers import Interpreter, answer, describe, ordered
from sardonyx.runtime.model_info import ValueInfo, output_infos
from sardonyx.runtime.options import SessionOptions

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

    from sardonyx.compiler.call.native_entry import Entry
    from sardonyx.compiler.program import Program
    from sardonyx.model import Loadable
    from sardonyx.runtime.compiled.memory_usage import Memory
    from sardonyx.runtime.compiled.value_specialization import SpecializedModel
    from sardonyx.runtime.editing.fingerprint import Structure
    from sardonyx.runtime.editing.weighted_model import WeightedModel
    from sardonyx.runtime.live.answerers import AnswererNote
    from sardonyx.runtime.partition.partitioned_model import PartitionedModel
    from sardonyx.runtime.placement import Placement


class ModelVersion:
    """An immutable model that can be run.

    Args:
        loadable: The model, or the path of a compiled file.
        options: The options of the session.

    Attributes:
        options: The options of the session.
        revision: The number of versions of the live model before this one; no two versions share a number.
        commit: The number of the latest edit that the version contains; 0 without an edit.
        inputs: The inputs that a call must feed.
        outputs: The outputs of the model.
        native: The compiled model; None while there is none.
        not_compiled: The reason why there is no compiled model; empty if there is one, or while compiling.
        partitioned: The model shared by several providers; None if the session is not partitioned.

    Raises:
        UnsupportedError: An operator has no definition.
        InvalidModelError: The model violates the standard.
        OptionError: The options exclude native code for a compiled file, or a provider is not available.
    """

    def __init__(self, loadable: Loadable, options: SessionOptions) -> None:
        if (options.free_dimensions or options.free_denotations) and not is_compiled_file(loadable):
            from sardonyx.model import load
            from sardonyx.runtime.free_dimensions import with_sizes

            loadable = with_sizes(load(loadable), options.free_dimensions, options.free_denotations)
        self._begin(loadable, options)
        if self._is_compiled_file:
            if not options.compiles:
                raise OptionError("a compiled file runs on compiled code only.", where=str(loadable))
            self._open(loadable)  # type: ignore[arg-type]
            return
        waits = options.compile == "wait" or options.strict
        if self._uses_store and (waits or self._source.is_named_soon) and self._restore():
            self._end_compiling()
            return
        with collector_paused():
            self._declare()
            if self.partitioned is None:
                self._interpreter.prepare()
        if not options.compiles:
            return
        if waits:
            self._compile_at_once()
            self.require_strict_placement()
        else:
            background_threads.start("sardonyx-compile", self._compile_in_background)

    @classmethod
    def edited(cls, model: ir.Model, options: SessionOptions) -> ModelVersion:
        """Return a version of a checked model, not compiled yet: the caller calls :meth:`compile`.

        Args:
            model: The model; from now on it must not change.
            options: The options of the session.
        """
        version = cls.__new__(cls)
        version._begin(model, options)
        version._declare()
        return version

    def reweighted(self, weighted: WeightedModel) -> ModelVersion | None:
        """Return the version of other weights, whose code is that of this one; None if the code may differ.

        Args:
            weighted: This model with other weights.
        """
        if self.native is None or self.partitioned is not None:
            return None
        native = self.native.swapped(weighted.structure, self.options.optimization)
        if native is None:
            return None
        version = ModelVersion.__new__(ModelVersion)
        version._begin(None, self.options, weighted)
        version.inputs, version.outputs, version._restored_defaults = self.inputs, self.outputs, self._defaults
        version.structure = weighted.structure
        version.adopt(native)
        return version

    def _begin(self, loadable: Loadable | None, options: SessionOptions, weighted: WeightedModel | None = None) -> None:
        self.options = options
        self.revision = self.commit = 0
        self.native: NativeModel | None = None
        self.not_compiled = ""
        self.inputs: list[ValueInfo]
        self._restored_defaults: list[ValueInfo] | None = None
        self.outputs: list[ValueInfo]
        self.partitioned: PartitionedModel | None = None
        self._source = ModelSource(loadable, weighted)
        self._is_compiled_file = is_compiled_file(loadable)
        self._interpreter = Interpreter(self._source)
        self._specialized: SpecializedModel | None = None
        self._input_variants: InputVariants | None = None
        self._variants: OutputVariants | None = None
        self._answerers = ordered(interpreter=self._interpreter)
        self._calls: Counter[str] = Counter()
        self._compiled = threading.Event()
        self._first_call = FirstCall()
        self._peak = 0

    def _declare(self) -> None:
        graph = self.model.graph
        self.inputs = [ValueInfo.of(value) for value in graph.inputs if not value.is_initializer()]
        self.outputs = output_infos(self.model)
        if not self.options.is_plain:
            from sardonyx.runtime.partition.partitioned_model import PartitionedModel

            self.partitioned = PartitionedModel(self.model, self.options, self._source.name(self.options.threads))
            self._answerers = ordered(partitioned=self.partitioned, interpreter=self._interpreter)
        if not self.options.compiles:
            self.not_compiled = "compiling is off" if self.options.is_plain else "several providers share the model"
            self._end_compiling()

    @property
    def model(self) -> ir.Model:
        """The model; callers must not change it.

        Raises:
            UnsupportedError: A compiled file holds no model.
        """
        return self._source.model

    def artifacts(self) -> tuple[Store, str] | None:
        """Return the store of this version's artifacts and the name of the compiled model; None if it has no name.

        A version that an edit made has no name.
        """
        if not self._uses_store or (name := self._source.name(self.options.threads)) is None:
            return None
        with using(self._source.artifacts()):
            return store(), name

    @property
    def weighted(self) -> WeightedModel | None:
        """The model as graph and weights, if a publication of weights made the version."""
        return self._source.weighted

    @property
    def stored_model(self) -> ir.Model | WeightedModel:
        """The model in the form that the version holds; see :attr:`model`."""
        return self._source.weighted or self._source.model

    @property
    def has_model(self) -> bool:
        """True if the model is available: a compiled file holds none."""
        return not self._is_compiled_file

    @functools.cached_property
    def structure(self) -> Structure | None:
        """The part of the model that determines its compiled code; None without a model or a comparable structure."""
        from sardonyx.runtime.editing.fingerprint import structure

        return None if self._is_compiled_file else structure(self.model)

    @property
    def program(self) -> Program | None:
        """The compiled program with its Core graph; None while there is none.

        A program from the store lacks the graph: the model is compiled again for it.
        """
        if self.native is None:
            return None
        if not self.native.program.has_graph:
            threads = self.native.program.pool.threads
            self._set_native(
                NativeModel.compiled(self.model, threads, self.options.denormals, self.options.optimization)
            )
        return self.native.program

    @property
    def placement(self) -> list[Placement]:
        """The current provider of each node of the main graph, with the reason."""
        from sardonyx.runtime.placement import place_nodes

        if self.partitioned is not None:
            return self.partitioned.placement
        native = self.native
        program = native.program if native is not None else None
        if self._specialized is not None:
            program = self._specialized.latest
        return place_nodes(self.model, program, self.not_compiled or "compiling is under way")

    @property
    def answerers(self) -> tuple[AnswererNote, ...]:
        """The ways to compute a call, in the order in which a call tries them."""
        return describe(self._answerers, [info.name for info in self.inputs], self._calls, self.not_compiled)

    def require_strict_placement(self) -> None:
        """Refuse the interpreter as a silent fallback in a strict session.

        Raises:
            UnsupportedError: The session is strict, does not name `reference`, and the interpreter computes a node.
        """
        if not self.options.strict or "reference" in self.options.provider_names:
            return
        interpreted = [placement for placement in self.placement if placement.provider == "reference"]
        if interpreted:
            more = f" and {len(interpreted) - 1} more" if interpreted[1:] else ""
            raise UnsupportedError(
                f"native code does not support {interpreted[0].node}{more}: {interpreted[0].reason}.",
                remedy="Name `reference` among the providers, or leave out `strict`.",
            )

    # Running.

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], context: RunContext) -> list[Any]:
        """Compute one call; see :meth:`.Session.run` and :mod:`.answerers`."""
        try:
            with self._first_call:
                return answer(self._answerers, output_names, feeds, context, self._calls)
        except MemoryError as error:
            raise ResourceError("the machine has too little memory for the call.") from error
        finally:
            self._peak = max(self._peak, context.peak)

    def run_directly(self, output_names: Sequence[str], feeds: Mapping[str, Any]) -> list[Any] | None:
        """Compute some outputs by one generated function, without limits; None requests :meth:`run`."""
        native = self.native
        if native is None or native.call is None:
            return None
        if self._variants is not None:
            native = self._variants.subset(output_names) or native
        return native.run_directly(output_names, feeds)

    def bind(
        self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]
    ) -> tuple[Entry, dict[str, np.ndarray]] | None:
        """Return a native call over fixed arrays, and its results by name; None if there is none."""
        native = self.native
        if native is not None and native.accepts(None, inputs):
            with contextlib.suppress(UnsupportedError):
                return native.bind(inputs, outputs)
        return None

    @property
    def compiled(self) -> bool:
        """True once compiling is over, with or without compiled code."""
        return self._compiled.is_set()

    def memory(self) -> Memory:
        """Return the memory that the version holds."""
        from sardonyx.runtime.compiled.memory_usage import memory

        if self.partitioned is not None:
            return self.partitioned.memory(self._peak)
        programs = [] if self.native is None else [("", self.native.program, 0)]
        specializations = [] if self._specialized is None else self._specialized.programs()
        variants = [] if self._variants is None else self._variants.programs()
        if self._input_variants is not None:
            variants += self._input_variants.programs()
        return memory([*programs, *specializations, *variants], self._peak)

    def shrink(self) -> None:
        """Free memory that no call uses, and everything that later calls can make again."""
        if self._variants is not None:
            self._variants.release()
        if self._input_variants is not None:
            self._input_variants.release()
        if self.native is not None:
            self._interpreter.release()
            self.native.shrink()
        if self._specialized is not None:
            self._specialized.shrink()
        if self.partitioned is not None:
            self.partitioned.shrink()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until compiling is over; return True if compiled code answers from now on."""
        self._first_call.give_up()
        self._compiled.wait(timeout)
        return self.native is not None or self._specialized is not None

    # Compiled code.

    @property
    def compiled_model(self) -> NativeModel | SpecializedModel | None:
        """The compiled model, as one program or as programs for particular values; None while there is none."""
        return self.native or self._specialized

    def _set_native(self, native: NativeModel) -> None:
        """Let compiled code answer from now on."""
        interpreter = None
        if not self._is_compiled_file:
            interpreter = self._interpreter
            if self._variants is None:
                compile = functools.partial(_compile_variant, self._source, self.options)
                self._variants = OutputVariants(native.output_bytes, compile, wait=self.options.compile == "wait")
        self.native = native
        self._answerers = ordered(
            native=native,
            input_variants=self._prepare_input_variants(),
            variants=self._variants,
            interpreter=interpreter,
            defaults=[info.name for info in self._defaults],
        )

    def _prepare_input_variants(self) -> InputVariants | None:
        """Return the variants for calls that feed inputs with a default value; None without such inputs."""
        if self._input_variants is None and self.defaults:
            required, defaults, outputs = (
                [info.name for info in part] for part in (self.inputs, self.defaults, self.outputs)
            )
            self._input_variants = InputVariants(
                required,
                defaults,
                outputs,
                functools.partial(_compile_without_defaults, self._source, self.options),
                functools.partial(_default_values, self._source),
                wait=self.options.compile == "wait",
            )
        return self._input_variants

    @property
    def defaults(self) -> list[ValueInfo]:
        """The inputs with a default value, which a call may feed; none for a compiled file.

        The program of a compiled file holds the defaults as constants.
        """
        return [] if self._is_compiled_file else self._defaults

    @functools.cached_property
    def _defaults(self) -> list[ValueInfo]:
        """The declared inputs with a default value, which may be hundreds of weights; no first answer needs them."""
        if self._restored_defaults is not None:
            return self._restored_defaults
        return [ValueInfo.of(value) for value in self.model.graph.inputs if value.is_initializer()]

    def save_compiled(self, path: str | os.PathLike[str]) -> None:
        """Write the compiled model to a file; see :meth:`.Session.save_compiled`."""
        from sardonyx.compiler.program_image.image import UnserializableError

        if not is_compiled_file(path):
            raise OptionError(f"a compiled file's name ends in {SUFFIX}.", where=str(path))
        native = self._require_native()
        try:
            image = native.program.image()
        except UnserializableError as error:
            raise UnsupportedError(f"the model is not compiled as a whole: {str(error).removesuffix('.')}.") from error
        image.head["noted"] = self._signature(native)
        encrypt = None
        if self.has_model and self._source.is_encrypted:
            encrypt = functools.partial(hook("encrypt_compiled"), self.model)
        write_compiled(path, image, native.program.target, encrypt)

    def save_library(self, path: Path, header: Path | None, prefix: str | None) -> None:
        """Write the compiled model as a library for C; see :meth:`.Session.save_library`."""
        from sardonyx.compiler.aot.writer import write_library

        if self._source.is_encrypted:
            raise EncryptionError("the model is encrypted, and a library would hold its weights.", where=str(path))
        native, program = self._require_native(), self.program
        assert program is not None
        write_library(program, native.input_names, native.output_names, path, header, prefix)

    def _require_native(self) -> NativeModel:
        """Return the compiled model once compiling is over."""
        self.wait()
        if self.native is None:
            raise UnsupportedError(f"the model is not compiled: {self.not_compiled.removesuffix('.')}.")
        return self.native

    @property
    def _uses_store(self) -> bool:
        """True if the compiled model is looked up in the store, and written to it."""
        return self.options.compiles and self.options.optimization == "all"

    def _restore(self) -> bool:
        """Read the compiled model from the store; return False if the store lacks it."""
        with using(self._source.artifacts()):
            entry = restored(self._source, self.options.threads, self.options.denormals)
        if entry is None:
            return False
        self._set_restored(*entry)
        return True

    def _open(self, path: str | os.PathLike[str]) -> None:
        """Read the compiled model from a compiled file."""
        from sardonyx.compiler.program import Program

        image = read_compiled(path)
        program = Program.from_image(
            image, threads=self.options.threads, denormals=self.options.denormals, hosts=host_function
        )
        self._set_restored(program, image.head["noted"])
        self._end_compiling()

    def _set_restored(self, program: Program, signature: Mapping[str, Any]) -> None:
        self.inputs, self._restored_defaults, self.outputs = (
            [ValueInfo(*info) for info in signature[part]] for part in ("inputs", "defaults", "outputs")
        )
        self._set_native(NativeModel(program, signature["fed"], [info.name for info in self.outputs]))

    def _signature(self, native: NativeModel) -> dict[str, Any]:
        """Return the declared inputs and outputs, as stored beside a program for :meth:`_set_restored`."""
        inputs, defaults, outputs = (
            [(info.name, info.type, info.shape) for info in part]
            for part in (self.inputs, self._defaults, self.outputs)
        )
        return {"inputs": inputs, "defaults": defaults, "outputs": outputs, "fed": native.input_names}

    def adopt(self, native: NativeModel) -> None:
        """Use the compiled model of an equal version."""
        self._set_native(native)
        self._end_compiling()

    def _end_compiling(self) -> None:
        self._compiled.set()

    def compile(self, like: NativeModel | None = None) -> None:
        """Compile the model, or record why it cannot be compiled.

        Args:
            like: The compiled model of the same graph with other weights; its code is reused if possible.

        Raises:
            ResourceError: The machine has too little memory.
            Exception: An unexpected failure of the compiler.
        """
        try:
            _ = self.model  # An encrypted model is recognized when it is loaded.
            with using(self._source.artifacts()):
                self._compile(like)
        finally:
            self._end_compiling()

    def _compile(self, like: NativeModel | None) -> None:
        from sardonyx.runtime.compiled.frontend import Undecided
        from sardonyx.runtime.compiled.value_specialization import SpecializedModel

        options = self.options
        try:
            reweighted = None if like is None else like.reweighted(self.model, options.optimization)
            native = reweighted or NativeModel.compiled(
                self.model, options.threads, options.denormals, options.optimization
            )
            self._set_native(native)
            if self._uses_store:
                keep(native.program, self._source, options.threads, self._signature(native))
        except Undecided as error:
            self.not_compiled = f"compiling needs a value that only a call provides: {error}"
            self._specialized = SpecializedModel(error, [info.name for info in self.outputs], options)
            self._answerers = ordered(
                specialized=self._specialized,
                input_variants=self._prepare_input_variants(),
                interpreter=self._interpreter,
            )
        except UnsupportedError as error:
            self.not_compiled = str(error)
            options.log(logging.WARNING, "the model is not compiled, numpy computes it: %s", error)
        except MemoryError as error:
            raise ResourceError("the machine has too little memory to compile the model.") from error

    def _compile_in_background(self) -> None:
        """Restore the model from the store or compile it, at a lower priority and after the first call."""
        lower_priority()
        self._first_call.wait()
        try:
            is_restored = self._uses_store and not self._source.is_named_soon and self._restore()
        except Exception as error:  # The last handler of the thread; compiling makes the program anew.
            self.options.log(logging.WARNING, "the compiled model in the store is not used: %s", error)
            is_restored = False
        if is_restored:
            self._end_compiling()
        else:
            self.compile_quietly()

    def compile_quietly(self) -> None:
        """Compile the model; a failure is logged, and the interpreter continues to compute the model."""
        try:
            self.compile()
        except Exception as error:
            self._report_failure(error)

    def _compile_at_once(self) -> None:
        """Compile the model before the first call; a failure that calls survive is logged.

        Raises:
            ContractError: A pass violates its contract, at a debug level that verifies.
            OptionError: A schedule or a debug level of the user is invalid.
            ResourceError: The machine has too little memory.
            TypeMismatchError: A node that every call executes does not accept its inputs.
        """
        from sardonyx.compiler.pass_runner import ContractError
        from sardonyx.ops.graph import node_label

        try:
            self.compile()
        except (ContractError, OptionError, ResourceError):
            raise
        except TypeMismatchError as error:
            # A body may have no iteration.
            executed = [node for node in self.model.graph if node.op_type not in ("If", "Loop", "Scan")]
            if any(error.where.startswith(node_label(node)) for node in executed):
                raise
            self._report_failure(error)
        except Exception as error:
            self._report_failure(error)

    def _report_failure(self, error: Exception) -> None:
        is_defect = not isinstance(error, SardonyxError)
        self.not_compiled = f"internal error: {type(error).__name__}: {error}" if is_defect else str(error)
        message = "the model is not compiled, numpy computes it: %s"
        self.options.log(logging.WARNING, message, self.not_compiled, exc_info=error if is_defect else None)


def _compile_variant(source: ModelSource, options: SessionOptions, output_names: Sequence[str]) -> NativeModel | None:
    """Compile a model with other outputs; not a method, so that a version and its variants form no reference cycle."""
    model = with_outputs(source.model, output_names)
    if model is None:
        return None
    variant = ModelVersion.edited(model, options)
    variant.compile_quietly()
    return variant.native


def _compile_without_defaults(
    source: ModelSource, options: SessionOptions, names: Sequence[str]
) -> NativeModel | SpecializedModel | None:
    """Compile a model without the defaults of some inputs; not a method, for the reason of :func:`_compile_variant`."""
    variant = ModelVersion.edited(without_defaults(source.model, names), options)
    variant.compile_quietly()
    return variant.compiled_model


def _default_values(source: ModelSource) -> dict[str, Any]:
    return default_values(source.model)
