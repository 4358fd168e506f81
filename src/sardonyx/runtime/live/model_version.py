"""Versions: a model as it stands at one time, what is told of it, and what computes it.

A session answers each call from one version, from the beginning of the call to its end. A version computes the same at
all times; only what computes it becomes faster, when compiled code is ready.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.base import background_threads
from sardonyx.base.gc_pause import collector_paused
from sardonyx.base.thread_priority import FirstCall, let_others_first
from sardonyx.compiler.aot.writer import write_library
from sardonyx.compiler.call.call_context import Fault
from sardonyx.compiler.call.native_entry import Entry
from sardonyx.compiler.program import Program
from sardonyx.compiler.program_image import NoImage
from sardonyx.core.eval.run_context import RunContext
from sardonyx.errors import OptionError, UnsupportedError
from sardonyx.model import Loadable, load
from sardonyx.ops.reference import ReferenceModel
from sardonyx.ops.registry import host_function
from sardonyx.runtime.compiled.compiled_file import SUFFIX, is_compiled_file, read_compiled, write_compiled
from sardonyx.runtime.compiled.compiled_model import NativeModel
from sardonyx.runtime.compiled.frontend import Undecided
from sardonyx.runtime.compiled.memory_usage import Memory, memory
from sardonyx.runtime.compiled.output_variants import Variants, with_outputs
from sardonyx.runtime.compiled.program_cache import ModelSource, keep, restored
from sardonyx.runtime.compiled.value_specialization import Specialized
from sardonyx.runtime.editing.fingerprint import Structure, structure
from sardonyx.runtime.free_dimensions import with_sizes
from sardonyx.runtime.options import SessionOptions
from sardonyx.runtime.partition.partitioned_model import Partitioned
from sardonyx.runtime.placement import Placement, placed
from sardonyx.runtime.value_info import ValueInfo


class Version:
    """A model that can be run.

    Args:
        given: The model, or the path of a compiled file.
        options: What is asked of the session.

    Attributes:
        options: What is asked of the session.
        inputs: What must be fed.
        outputs: What comes out.
        native: What computes it in compiled code; None while there is none.
        not_compiled: Why there is none.
        partitioned: What computes it, where providers share it.

    Raises:
        UnsupportedError: An operator has no definition.
        InvalidModelError: The model breaks the standard.
        OptionError: A compiled file is not to run on compiled code, or a provider is not there.
    """

    _is_compiled_file: bool

    def __init__(self, given: Loadable, options: SessionOptions) -> None:
        if (options.free_dimensions or options.free_denotations) and not is_compiled_file(given):
            given = with_sizes(load(given), options.free_dimensions, options.free_denotations)
        self._begin(given, options)
        if self._is_compiled_file:
            if not options.compiles:
                raise OptionError("a compiled file runs on compiled code only.", where=str(given))
            self._open(given)  # type: ignore[arg-type]
            return
        waits = options.compile == "wait" or options.strict
        if self._is_kept and (waits or self._source.is_named_soon) and self._restore():
            self._end_compiling()
            return
        with collector_paused():
            self._declare()
            if self.partitioned is None:
                self._interpreter()
        if not options.compiles:
            return
        if waits:
            self.compile()
            self.require_what_is_strict()
        else:
            background_threads.start("sardonyx-compile", self._compile_behind)

    @classmethod
    def edited(cls, model: ir.Model, options: SessionOptions) -> Version:
        """A version of a model that was checked; it is compiled when somebody calls :meth:`compile`.

        Args:
            model: The model; from now on it is not to be changed.
            options: What is asked of the session.
        """
        made = cls.__new__(cls)
        made._begin(model, options)
        made._declare()
        return made

    def _begin(self, given: Loadable, options: SessionOptions) -> None:
        self.options = options
        self.native: NativeModel | None = None
        self.not_compiled = ""
        self.inputs: list[ValueInfo]
        self.outputs: list[ValueInfo]
        self.partitioned: Partitioned | None = None
        self._source = ModelSource(given)
        self._reference: ReferenceModel | None = None
        self._loading = threading.Lock()
        self._compiled = threading.Event()
        self._first_call = FirstCall()
        self._is_compiled_file = is_compiled_file(given)
        self._variants = self._no_variants()
        self._specialized: Specialized | None = None
        self._peak = 0

    def _declare(self) -> None:
        graph = self.model.graph
        self.inputs = [ValueInfo.of(value) for value in graph.inputs if not value.is_initializer()]
        self.outputs = [ValueInfo.of(value) for value in graph.outputs]
        if not self.options.is_plain:
            self.partitioned = Partitioned(self.model, self.options, self._source.name(self.options.threads))
        if not self.options.compiles:
            self.not_compiled = "not asked for" if self.options.is_plain else "providers share it"
            self._end_compiling()

    @property
    def model(self) -> ir.Model:
        """The model; it is not to be changed.

        Raises:
            UnsupportedError: There is no model in a compiled file.
        """
        return self._source.model

    @property
    def has_model(self) -> bool:
        """Whether the model is known: of a compiled file it is not."""
        return not self._is_compiled_file

    @functools.cached_property
    def structure(self) -> Structure | None:
        """What of the model decides what it is compiled to; None where that is not told, or there is no model."""
        return None if self._is_compiled_file else structure(self.model)

    @property
    def program(self) -> Program | None:
        """The compiled program, with what it was made of; None while there is none.

        Where compiled code came from the store, the model is compiled once more for it.
        """
        native = self.native
        if native is None:
            return None
        if not native.program.has_graph:
            threads = native.program.pool.threads
            native = self.native = NativeModel.compiled(
                self.model, threads, self.options.denormals, self.options.optimization
            )
        return native.program

    @property
    def placement(self) -> list[Placement]:
        """Where each node of the main graph runs, and why, as it is now."""
        if self.partitioned is not None:
            return self.partitioned.placement
        native = self.native
        program = native.program if native is not None else None
        if self._specialized is not None:
            program = self._specialized.latest
        return placed(self.model, program, self.not_compiled or "compiling is under way")

    def require_what_is_strict(self) -> None:
        """Refuse that numpy computes something, where nobody named it and that is asked for.

        Raises:
            UnsupportedError: It does.
        """
        if not self.options.strict or "reference" in self.options.provider_names:
            return
        left = [each for each in self.placement if each.provider == "reference"]
        if left:
            more = f" and {len(left) - 1} more" if left[1:] else ""
            raise UnsupportedError(
                f"native code does not take {left[0].node}{more}: {left[0].reason}.",
                remedy="Name `reference` among the providers, or leave out `strict`.",
            )

    # Running.

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], context: RunContext) -> list[Any]:
        """Run once; see :meth:`Session.run`."""
        try:
            with self._first_call:
                return self._run(output_names, feeds, context)
        finally:
            self._peak = max(self._peak, context.peak)

    def _run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], context: RunContext) -> list[Any]:
        if self.partitioned is not None and self.partitioned.takes(output_names, feeds):
            return self.partitioned.run(output_names, feeds, context)
        native = self.native
        if native is not None and native.takes(output_names, feeds):
            # Of a fault the interpreter says what it is.
            with contextlib.suppress(Fault):
                return native.run(output_names, feeds, context)
        if native is not None and self._is_compiled_file:
            raise native.refused(output_names, feeds)
        specialized = self._specialized
        if specialized is not None and specialized.takes(output_names, feeds):
            with contextlib.suppress(Fault):
                found = specialized.run(output_names, feeds, context)
                if found is not None:
                    return found
        if native is not None and output_names and not set(output_names) <= set(native.output_names):
            with contextlib.suppress(Fault):
                found = self._variants.run(output_names, feeds, context, self._variant)
                if found is not None:
                    return found
        return self._interpreter().run(output_names, feeds, context)

    def bind(
        self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]
    ) -> tuple[Entry, dict[str, np.ndarray]] | None:
        """A native call over arrays that stay, and its results by name; None where there is none."""
        native = self.native
        if native is not None and native.takes(None, inputs):
            with contextlib.suppress(UnsupportedError):
                return native.bind(inputs, outputs)
        return None

    @property
    def compiled(self) -> bool:
        """Whether compiling is over, with compiled code or without."""
        return self._compiled.is_set()

    def memory(self) -> Memory:
        """What is held of memory."""
        if self.partitioned is not None:
            return self.partitioned.memory(self._peak)
        programs = [] if self.native is None else [("", self.native.program, 0)]
        special = [] if self._specialized is None else self._specialized.programs()
        return memory([*programs, *special, *self._variants.programs()], self._peak)

    def shrink(self) -> None:
        """Let go of memory that no call uses, and of what can be made again."""
        self._variants = self._no_variants()
        if self.native is not None:
            self._reference = None
            self.native.shrink()
        if self._specialized is not None:
            self._specialized.shrink()
        if self.partitioned is not None:
            self.partitioned.shrink()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until compiling is over; whether compiled code answers from now on."""
        self._first_call.give_up()
        self._compiled.wait(timeout)
        return self.native is not None or self._specialized is not None

    def _no_variants(self) -> Variants:
        return Variants(at_once=self.options.compile == "wait")

    def _variant(self, output_names: Sequence[str]) -> NativeModel | None:
        """Compile the model with other outputs; None where it is not compiled."""
        model = with_outputs(self.model, output_names)
        if model is None:
            return None
        variant = Version.edited(model, self.options)
        variant.compile_quietly()
        return variant.native

    def _interpreter(self) -> ReferenceModel:
        """The model on numpy; made when it is first needed."""
        with self._loading:
            if self._reference is None:
                self._reference = ReferenceModel(self.model)
            return self._reference

    # Compiling, and compiled models that are kept.

    def save_compiled(self, path: str | os.PathLike[str]) -> None:
        """Write what the model is compiled to as one file; see :meth:`Session.save_compiled`."""
        if not is_compiled_file(path):
            raise OptionError(f"a compiled file's name ends in {SUFFIX}.", where=str(path))
        native = self._whole()
        try:
            image = native.program.image()
        except NoImage as error:
            raise UnsupportedError(f"the model is not compiled as a whole: {error}.") from error
        image.head["noted"] = self._noted(native)
        write_compiled(path, image, native.program.target)

    def save_library(self, path: Path, header: Path | None, prefix: str | None) -> None:
        """Write what the model is compiled to as a library for C; see :meth:`Session.save_library`."""
        native, program = self._whole(), self.program
        assert program is not None
        write_library(program, native.input_names, native.output_names, path, header, prefix)

    def _whole(self) -> NativeModel:
        """The compiled model, when it is there."""
        self.wait()
        if self.native is None:
            raise UnsupportedError(f"the model is not compiled: {self.not_compiled}.")
        return self.native

    @property
    def _is_kept(self) -> bool:
        """Whether what the model is compiled to is kept in the store."""
        return self.options.compiles and self.options.optimization == "all"

    def _restore(self) -> bool:
        """Take the compiled model from the store, if it is there."""
        found = restored(self._source, self.options.threads, self.options.denormals)
        if found is None:
            return False
        self._take(*found)
        return True

    def _open(self, path: str | os.PathLike[str]) -> None:
        """Take the compiled model from a compiled file."""
        image = read_compiled(path)
        program = Program.restored(
            image, threads=self.options.threads, denormals=self.options.denormals, hosts=host_function
        )
        self._take(program, image.head["noted"])
        self._end_compiling()

    def _take(self, program: Program, noted: Mapping[str, Any]) -> None:
        self.inputs, self.outputs = ([ValueInfo(*each) for each in noted[part]] for part in ("inputs", "outputs"))
        self.native = NativeModel(program, noted["fed"], [info.name for info in self.outputs])

    def _noted(self, native: NativeModel) -> dict[str, Any]:
        """What is told of the model, for the next version that takes the program as it is."""
        inputs, outputs = (
            [(info.name, info.type, info.shape) for info in part] for part in (self.inputs, self.outputs)
        )
        return {"inputs": inputs, "outputs": outputs, "fed": native.input_names}

    def take(self, native: NativeModel) -> None:
        """Be computed by the compiled model of an equal version."""
        self.native = native
        self._end_compiling()

    def _end_compiling(self) -> None:
        """Compiling is over."""
        self._compiled.set()

    def compile(self, like: NativeModel | None = None) -> None:
        """Compile the model, or note why it cannot be.

        Args:
            like: The same model with other weights, of whose code this one's is made if it can.

        Raises:
            Exception: What should not have happened.
        """
        threads = self.options.threads
        try:
            found = None if like is None else like.reweighted(self.model, self.options.optimization)
            native = found or NativeModel.compiled(
                self.model, threads, self.options.denormals, self.options.optimization
            )
            self.native = native
            if self._is_kept:
                keep(native.program, self._source, threads, self._noted(native))
        except Undecided as error:
            self.not_compiled = f"a call must tell first: {error}"
            self._specialized = Specialized(error, [info.name for info in self.outputs], self.options)
        except UnsupportedError as error:
            self.not_compiled = str(error)
            self.options.log(logging.WARNING, "the model is not compiled, numpy computes it: %s", error)
        finally:
            self._end_compiling()

    def _compile_behind(self) -> None:
        """Compile the model behind calls, unless it was, under another name or long ago."""
        let_others_first()
        self._first_call.wait()
        try:
            found = self._is_kept and not self._source.is_named_soon and self._restore()
        except Exception as error:  # The thread's last place to tell; compiling makes the program anew.
            self.options.log(logging.WARNING, "the compiled model in the store is not taken: %s", error)
            found = False
        if found:
            self._end_compiling()
        else:
            self.compile_quietly()

    def compile_quietly(self) -> None:
        """Compile the model; a failure is logged, and numpy goes on computing it."""
        try:
            self.compile()
        except Exception as error:
            self.not_compiled = f"{type(error).__name__}: {error}"
            self.options.log(logging.WARNING, "the model is not compiled, numpy computes it: %s", self.not_compiled)
