"""A session: a model made ready, and run on feeds any number of times, from any thread."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import onnx_ir as ir

from sardonyx.compiler.image import NoImage
from sardonyx.compiler.program import Fault, Program
from sardonyx.core.run_context import RunContext
from sardonyx.errors import FeedError, OptionError, UnsupportedError
from sardonyx.ops.graph import declared_type
from sardonyx.ops.reference import ReferenceModel
from sardonyx.ops.signatures import type_text
from sardonyx.runtime.binding import Binding
from sardonyx.runtime.compiled_file import SUFFIX, is_compiled_file, read_compiled, write_compiled
from sardonyx.runtime.kept import Given, ModelSource, keep, restored
from sardonyx.runtime.native import NativeModel

PROVIDERS = ("native", "reference")
"""What can run a model: code compiled for this machine, and the numpy interpreter of Core."""

Compile = Literal["wait", "background", "off"]
"""When a session compiles: before it is there, while it already answers, or never."""

_log = logging.getLogger("sardonyx")


class ValueInfo:
    """An input or output of a session.

    Attributes:
        name: Its name.
        type: Its type as the standard writes it: ``tensor(float)``, ``seq(tensor(int64))``.
        shape: Its sizes: a number, a text (symbol or expression), None where nothing is declared; None without a rank.
    """

    __slots__ = ("name", "shape", "type")

    def __init__(self, name: str, type: str, shape: list[int | str | None] | None) -> None:
        self.name = name
        self.type = type
        self.shape = shape

    @classmethod
    def of(cls, value: ir.Value) -> ValueInfo:
        """What is declared of a value."""
        declared = declared_type(value)
        shape = None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
        return cls(value.name or "", "" if declared is None else type_text(declared), shape)

    def __repr__(self) -> str:
        return f"ValueInfo(name={self.name!r}, type={self.type!r}, shape={self.shape})"


class Session:
    """A loaded model that can be run.

    Args:
        model: A path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``; or the path of a compiled file (``.sdx``, see
            :meth:`save_compiled`), which holds machine code: load none that you would not run.
        providers: What runs it: ``"native"``, compiled code, and ``"reference"``, numpy. Compiled code leaves to numpy
            what it has no kernel for, and calls that ask for more than the outputs.
        compile: ``"background"`` answers at once from numpy, and from compiled code when that is ready; ``"wait"``
            compiles first; ``"off"`` never does. By default what ``SARDONYX_COMPILE`` says, else ``"background"``.
        threads: How many threads compute; by default what the process may use.
        max_memory: Most bytes of values alive at a time in a run; the machine's memory by default.
        max_loop_iterations: Most iterations of any one loop; no limit by default.
        timeout: Most seconds of a run; no limit by default.

    Raises:
        UnsupportedError: An operator has no definition: the message names all of them, and where.
        InvalidModelError: The model breaks the standard.
        OptionError: There is no such provider, or no such time to compile.

    Example:
        >>> session = Session("model.onnx")
        >>> (scores,) = session.run(None, {"image": image})
    """

    def __init__(
        self,
        model: Given,
        *,
        providers: Sequence[str] = PROVIDERS,
        compile: Compile | None = None,
        threads: int | None = None,
        max_memory: int | None = None,
        max_loop_iterations: int | None = None,
        timeout: float | None = None,
    ) -> None:
        for provider in providers:
            if provider not in PROVIDERS:
                raise OptionError(
                    f"there is no provider {provider!r}.",
                    where="providers",
                    remedy=f"There are: {', '.join(PROVIDERS)}.",
                )
        when = compile or os.environ.get("SARDONYX_COMPILE", "background")
        if when not in get_args(Compile):
            raise OptionError(
                f"there is no {when!r}.", where="compile", remedy=f"There are: {', '.join(get_args(Compile))}."
            )
        self.providers = tuple(providers)
        self._limits = {"max_memory": max_memory, "max_loop_iterations": max_loop_iterations, "timeout": timeout}
        self._unlimited = all(limit is None for limit in self._limits.values())
        self._runs = itertools.count()
        self._native: NativeModel | None = None
        self._reference: ReferenceModel | None = None
        self._loading = threading.Lock()
        self._compiled = threading.Event()
        self._source = ModelSource(model)
        self.not_compiled = ""
        compiles = "native" in self.providers and when != "off"
        self._is_compiled_file = is_compiled_file(model)
        if self._is_compiled_file:
            if not compiles:
                raise OptionError("a compiled file runs on compiled code only.", where=str(model))
            self._open(model, threads)  # type: ignore[arg-type]
            return
        if compiles and self._restore(threads):
            self._compiled.set()
            return
        interpreter = self._interpreter()
        self._inputs = [
            ValueInfo.of(value) for value in self.model.graph.inputs if value.name not in interpreter.optional
        ]
        self._outputs = [ValueInfo.of(value) for value in self.model.graph.outputs]
        if not compiles:
            self.not_compiled = "not asked for"
            self._compiled.set()
        elif when == "wait":
            self._compile(threads)
        else:
            threading.Thread(
                target=self._compile_quietly, args=(threads,), name="sardonyx-compile", daemon=True
            ).start()

    @property
    def model(self) -> ir.Model:
        """The model as it was given."""
        return self._source.model

    def _interpreter(self) -> ReferenceModel:
        """The model on numpy; made when it is first needed."""
        with self._loading:
            if self._reference is None:
                self._reference = ReferenceModel(self._source.model)
            return self._reference

    def _restore(self, threads: int | None) -> bool:
        """Take the compiled model from the store, if it is there."""
        found = restored(self._source, threads)
        if found is None:
            return False
        self._take(*found)
        return True

    def _open(self, path: str | os.PathLike[str], threads: int | None) -> None:
        """Take the compiled model from a compiled file."""
        image = read_compiled(path)
        self._take(Program.restored(image, threads=threads), image.head["noted"])
        self._compiled.set()

    def _take(self, program: Program, noted: Mapping[str, Any]) -> None:
        self._inputs, self._outputs = ([ValueInfo(*each) for each in noted[part]] for part in ("inputs", "outputs"))
        self._native = NativeModel(program, noted["fed"], [info.name for info in self._outputs])

    def _noted(self, native: NativeModel) -> dict[str, Any]:
        """What a session tells of a model, for the next one that takes the program as it is."""
        inputs, outputs = (
            [(info.name, info.type, info.shape) for info in part] for part in (self._inputs, self._outputs)
        )
        return {"inputs": inputs, "outputs": outputs, "fed": native.input_names}

    def save_compiled(self, path: str | os.PathLike[str]) -> None:
        """Write what the model is compiled to, and its weights, as one file that ``Session(path)`` maps.

        It runs on processors that have all that this one has, with the same version of Sardonyx.

        Args:
            path: Where to; the name must end in ``.sdx``.

        Raises:
            UnsupportedError: The model is not compiled as a whole.
            OptionError: The name ends in something else.
            ModelFileError: It cannot be written.
        """
        if not is_compiled_file(path):
            raise OptionError(f"a compiled file's name ends in {SUFFIX}.", where=str(path))
        self._compiled.wait()
        native = self._native
        if native is None:
            raise UnsupportedError(f"the model is not compiled: {self.not_compiled}.")
        try:
            image = native.program.image()
        except NoImage as error:
            raise UnsupportedError(f"the model is not compiled as a whole: {error}.") from error
        image.head["noted"] = self._noted(native)
        write_compiled(path, image, native.program.target)

    def _compile(self, threads: int | None) -> None:
        try:
            native = NativeModel.compiled(self.model, threads)
            self._native = native
            keep(native.program, self._source, threads, self._noted(native))
        except UnsupportedError as error:
            self.not_compiled = str(error)
            _log.warning("the model is not compiled, numpy computes it: %s", error)
        finally:
            self._compiled.set()

    def _compile_quietly(self, threads: int | None) -> None:
        try:
            self._compile(threads)
        except Exception as error:
            self.not_compiled = f"{type(error).__name__}: {error}"
            _log.warning("the model is not compiled, numpy computes it: %s", self.not_compiled)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until compiling is over; whether compiled code answers from now on.

        Args:
            timeout: Most seconds to wait.
        """
        self._compiled.wait(timeout)
        return self._native is not None

    @property
    def native(self) -> NativeModel | None:
        """The compiled model; None while there is none (``not_compiled`` says why)."""
        return self._native

    @property
    def program(self) -> Program | None:
        """The compiled program; None while there is none (``not_compiled`` says why).

        It knows what it was made of: where compiled code came from the store, the model is compiled once more for it.
        """
        native = self._native
        if native is None:
            return None
        if not native.program.has_graph:
            native = self._native = NativeModel.compiled(self.model, native.program.pool.threads)
        return native.program

    def get_inputs(self) -> list[ValueInfo]:
        """The inputs that must be fed."""
        return list(self._inputs)

    def get_outputs(self) -> list[ValueInfo]:
        """The outputs."""
        return list(self._outputs)

    def __call__(self, **feeds: Any) -> Any:
        """Run on feeds by keyword; one output comes alone, several as a tuple."""
        found = self.run(None, feeds)
        return found[0] if len(found) == 1 else tuple(found)

    def bind(self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray] | None = None) -> Binding:
        """Prepare calls over arrays that stay where they are: the fastest way to call small models.

        Args:
            inputs: All inputs by name, contiguous and of the declared types; each call reads what they hold then.
            outputs: Where outputs go, by name; arrays are made for the others.

        Returns:
            The calls; ``binding()`` computes, ``binding.outputs`` holds the results.

        Raises:
            FeedError: An array is of another type or not contiguous.

        Example:
            >>> binding = session.bind({"x": x})
            >>> x[...] = 1
            >>> binding()
            >>> binding.outputs["y"]
        """
        for name, array in (*inputs.items(), *(outputs or {}).items()):
            if not isinstance(array, np.ndarray) or not array.flags.c_contiguous or not array.flags.aligned:
                raise FeedError("an array in one piece is needed to bind it.", where=name)
        results = dict(zip((str(info.name) for info in self._outputs), self.run(None, inputs), strict=True))
        for name, array in (outputs or {}).items():
            if name not in results or (array.shape, array.dtype) != (results[name].shape, results[name].dtype):
                raise FeedError("the model gives no such array.", where=name)
        kept = {name: (outputs or {}).get(name, array) for name, array in results.items()}
        native = self._native
        if native is not None and native.takes(None, inputs):
            with contextlib.suppress(UnsupportedError):
                entry, kept = native.bind(inputs, kept)
                return Binding(entry, inputs, kept, lambda feeds: self.run(None, feeds))
        return Binding(None, inputs, kept, lambda feeds: self.run(None, feeds))

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """Run the model once.

        Args:
            output_names: What is asked for, any value of the main graph by name; None for all outputs.
            feeds: Arrays (lists for sequences, None for an empty optional) by input name.

        Returns:
            An array (list, dict, None) for each name.

        Raises:
            FeedError: An input is missing, unknown, or of another type or rank; an output is unknown.
            ShapeError: A size does not fit what is declared, or two inputs contradict each other.
            ExecutionError: A node has no result for these values.
            ResourceError: A limit is passed.
        """
        native = self._native
        if native is not None and output_names is None and self._unlimited and (call := native.call) is not None:
            found = call(feeds)
            if found is not None:
                return found
        context = RunContext(**self._limits, number=next(self._runs))  # type: ignore[arg-type]
        if native is not None and native.takes(output_names, feeds):
            # Of a fault the interpreter says what it is.
            with contextlib.suppress(Fault):
                return native.run(output_names, feeds, context)
        if native is not None and self._is_compiled_file:
            raise native.refused(output_names, feeds)
        return self._interpreter().run(output_names, feeds, context)
