"""A session: a model made ready, and run on feeds any number of times, from any thread."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.core.graph import Value
from sardonyx.core.interpreter import match_type
from sardonyx.core.run_context import RunContext, running
from sardonyx.core.tensor import constant, known
from sardonyx.core.types import STRING, MapType, OptionalType, SequenceType, TensorType, Type, dtype_of, numpy_dtype
from sardonyx.errors import FeedError, OptionError
from sardonyx.model import load
from sardonyx.ops.graph import PreparedGraph, declared_type, prepare
from sardonyx.ops.signatures import type_text

PROVIDERS = ("reference",)
"""What can run a model: the numpy interpreter of Core."""

Source = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model


class ValueInfo:
    """An input or output of a session.

    Attributes:
        name: Its name.
        type: Its type as the standard writes it: ``tensor(float)``, ``seq(tensor(int64))``.
        shape: Its sizes: a number, a text (symbol or expression), None where nothing is declared; None without a rank.
    """

    __slots__ = ("declared", "name", "shape", "type")

    def __init__(self, value: ir.Value) -> None:
        self.name = value.name or ""
        self.declared = declared_type(value)
        self.type = "" if self.declared is None else type_text(self.declared)
        self.shape: list[int | str | None] | None = (
            None if value.shape is None else [d if isinstance(d, int) else d.value for d in value.shape]
        )

    def __repr__(self) -> str:
        return f"ValueInfo(name={self.name!r}, type={self.type!r}, shape={self.shape})"


class Session:
    """A loaded model that can be run.

    Args:
        model: A path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        providers: What runs it, in order of preference. There is one: ``"reference"``, numpy.
        max_memory: Most bytes of values alive at a time in a run; the machine's memory by default.
        max_loop_iterations: Most iterations of any one loop; no limit by default.
        timeout: Most seconds of a run; no limit by default.

    Raises:
        UnsupportedError: An operator has no definition: the message names all of them, and where.
        InvalidModelError: The model breaks the standard.
        OptionError: There is no such provider.

    Example:
        >>> session = Session("model.onnx")
        >>> (scores,) = session.run(None, {"image": image})
    """

    def __init__(
        self,
        model: Source,
        *,
        providers: Sequence[str] = PROVIDERS,
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
        self.model = load(model)
        self.providers = tuple(providers)
        self._limits = {"max_memory": max_memory, "max_loop_iterations": max_loop_iterations, "timeout": timeout}
        self._graph: PreparedGraph = prepare(self.model)
        initializers = set(self.model.graph.initializers.values())
        self._inputs = {str(v.name): ValueInfo(v) for v in self.model.graph.inputs}
        self._optional = {str(v.name) for v in self.model.graph.inputs if v in initializers}
        self._outputs = {str(v.name): ValueInfo(v) for v in self.model.graph.outputs}
        self._runs = itertools.count()

    def get_inputs(self) -> list[ValueInfo]:
        """The inputs that must be fed."""
        return [info for name, info in self._inputs.items() if name not in self._optional]

    def get_outputs(self) -> list[ValueInfo]:
        """The outputs."""
        return list(self._outputs.values())

    def __call__(self, **feeds: Any) -> Any:
        """Run on feeds by keyword; one output comes alone, several as a tuple."""
        found = self.run(None, feeds)
        return found[0] if len(found) == 1 else tuple(found)

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
        wanted = self._wanted(output_names)
        arguments = self._arguments(feeds)
        with running(RunContext(**self._limits, number=next(self._runs))):  # type: ignore[arg-type]
            results = self._graph.call(arguments, kept=dict.fromkeys(wanted))
            found = results[len(self._graph.outputs) :]
            return [_returned(value) for value in found]

    def _wanted(self, names: Sequence[str] | None) -> list[ir.Value]:
        if names is None:
            return list(self.model.graph.outputs)
        by_name = {value.name: value for value in self.model.graph.initializers.values()}
        by_name |= {output.name: output for node in self.model.graph for output in node.outputs if output.name}
        by_name |= {value.name: value for value in (*self.model.graph.inputs, *self.model.graph.outputs)}
        for name in names:
            if name not in by_name:
                raise FeedError(
                    "the model computes no such value.",
                    where=name,
                    remedy=f"Its outputs are: {', '.join(self._outputs)}.",
                )
        return [by_name[name] for name in names]

    def _arguments(self, feeds: Mapping[str, Any]) -> list[Value]:
        for name in feeds:
            if name not in self._inputs:
                raise FeedError(
                    "the model has no such input.", where=name, remedy=f"It has: {', '.join(self._inputs)}."
                )
        sizes: dict[str, int] = {}
        arguments = []
        for value in self.model.graph.inputs:
            info = self._inputs[str(value.name)]
            if info.name in feeds:
                argument = as_value(feeds[info.name], info.declared, info.name)
            elif info.name in self._optional:
                argument = self._graph.constants[value]
            else:
                raise FeedError("the input is not fed.", where=info.name, remedy=f"It takes {info.declared}.")
            if info.declared is not None:
                match_type(info.declared, argument.type, sizes, info.name)
            arguments.append(argument)
        return arguments


def as_value(fed: Any, declared: Type | None, name: str) -> Value:
    """What was fed, as a known value of the type declared.

    Raises:
        FeedError: It is of another kind.
    """
    match declared:
        case SequenceType():
            if not isinstance(fed, (list, tuple)):
                raise FeedError(f"a list is needed for {declared}, not {type(fed).__name__}.", where=name)
            return known([as_value(item, declared.element, name).known for item in fed], declared)
        case OptionalType():
            return known(None if fed is None else as_value(fed, declared.element, name).known, declared)
        case MapType():
            if not isinstance(fed, Mapping):
                raise FeedError(f"a dict is needed for {declared}, not {type(fed).__name__}.", where=name)
            return known(_map_of(fed, declared), declared)
    if fed is None or isinstance(fed, (list, tuple, dict)):
        raise FeedError(f"an array is needed, not {type(fed).__name__}.", where=name, remedy="Use `numpy.asarray`.")
    array = np.asarray(fed)
    if array.dtype.kind in "SU":
        array = array.astype(object)
    dtype = dtype_of(array) if array.dtype != object else None
    if dtype is None:
        flat = [w.decode() if isinstance(w, bytes) else w for w in array.ravel().tolist()]
        words = np.empty(len(flat), object)
        words[:] = flat
        return constant(words.reshape(array.shape), STRING)
    if isinstance(declared, TensorType) and declared.dtype != dtype:
        raise FeedError(
            f"elements are {dtype.name.lower()}, and {declared.dtype.name.lower()} is needed.",
            where=name,
            remedy="Convert the array with `astype`.",
        )
    return constant(array.astype(array.dtype.newbyteorder("="), order="C", copy=False))


def _map_of(fed: Mapping[Any, Any], declared: MapType) -> dict[Any, Any]:
    """A map with numbers of the type declared."""
    if not isinstance(declared.value, TensorType) or declared.value.dtype == STRING:
        return dict(fed)
    number = numpy_dtype(declared.value.dtype).type
    return {key: number(value) for key, value in fed.items()}


def _returned(value: Value) -> Any:
    """A result for the caller to keep: an array of its own."""
    found = value.known
    if isinstance(found, np.ndarray):
        return found.copy()
    return found
