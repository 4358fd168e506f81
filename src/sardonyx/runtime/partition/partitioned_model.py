"""A model that several providers run, each the parts that fall to it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.core.eval.interpreter import match_type
from sardonyx.core.eval.run_context import RunContext
from sardonyx.core.ir.types import STRING, TensorType, Type, numpy_dtype
from sardonyx.errors import OptionError, ResourceError, SizeLimitError
from sardonyx.model.copying import copy_model
from sardonyx.ops.feeds import as_value
from sardonyx.ops.graph import declared_type
from sardonyx.rewrite.inference import infer_shapes
from sardonyx.runtime.compiled.memory_usage import Memory, memory
from sardonyx.runtime.compiled.native_provider import NativeRunner
from sardonyx.runtime.options import SessionOptions
from sardonyx.runtime.partition import measured_costs
from sardonyx.runtime.partition.partition import Expected, Part
from sardonyx.runtime.partition.partitioner import Cut
from sardonyx.runtime.providers import Provider, Settings, Shrinking, installed, make

_FALLBACK = "reference"

_REMEMBERED = 1000
"""Sets of sizes of inputs that were found right."""


class PartitionedModel:
    """A model cut into parts, each compiled by its provider.

    Args:
        model: The model; it is left as it is.
        options: Who may run it, and what is pinned.
        name: What names the model's contents and this machine, to remember measured times by; None for nothing.

    Attributes:
        parts: In the order in which they run.
        placement: Where each node of the main graph runs, in the order of the graph.

    Raises:
        OptionError: There is no such provider, or one cannot take what is pinned to it.
        UnsupportedError: Nobody takes a node, or nobody but numpy does and the session is strict.
        MissingDependencyError: The package of a provider is not installed.
    """

    def __init__(self, model: ir.Model, options: SessionOptions, name: str | None = None) -> None:
        self._model = copy_model(model)
        _forget_symbols(self._model)
        try:
            infer_shapes(self._model, strict=False)
        except SizeLimitError as error:
            options.log(logging.INFO, "sizes inside of the model are not known: %s", error)
        graph = self._model.graph
        self._outputs = [str(value.name) for value in graph.outputs]
        self._fed = [value for value in graph.inputs if not value.is_initializer()]
        self._types: dict[str, Type | None] = {str(value.name): declared_type(value) for value in self._fed}
        self._dtypes = {
            name: numpy_dtype(t.dtype)
            for name, t in self._types.items()
            if isinstance(t, TensorType) and t.dtype != STRING  # Of texts each is looked at.
        }
        self._expected: dict[tuple[Any, ...], list[list[Expected | None]]] = {}
        cut = Cut(self._model, _providers(options), options)
        cut.decide(measured_costs.choose(self._model, cut, name) if options.is_auto else {})
        self.parts, self.placement = cut.parts, cut.placement
        self._known = {
            str(value.name): value.const_value.numpy()
            for value in graph.outputs
            if value.is_initializer() and value.const_value is not None
        }
        self._note_last_reads()

    def _note_last_reads(self) -> None:
        needed = set(self._outputs)
        for part in reversed(self.parts):
            here = {*part.inputs, *part.outputs}
            part.last = sorted(here - needed)
            needed |= here

    def accepts(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> bool:
        """Return True if a call feeds all inputs, and requests outputs of the model alone."""
        if output_names is not None and not set(output_names) <= set(self._outputs):
            return False
        return feeds.keys() == self._types.keys()

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], context: RunContext) -> list[Any]:
        """Run once.

        Args:
            output_names: What is asked for; None for all outputs.
            feeds: All inputs, see :meth:`accepts`.
            context: The limits of this run.

        Raises:
            FeedError: An input is of another type or rank.
            ShapeError: A size does not fit what is declared, or two inputs contradict each other.
            ExecutionError: A provider fails, or gives something else than it must; names it and its nodes.
            ResourceError: A limit is passed.
        """
        values, expected = self._checked(feeds)
        bytes = 0
        for part, wanted in zip(self.parts, expected, strict=True):
            if context.limited:
                context.check_time()
            if bytes > part.around:
                part.around = bytes
            context.count_from(bytes)
            if context.recorder is None:
                results = part.run(values, context, wanted)
            else:
                with context.recorder.span(part):
                    results = part.run(values, context, wanted)
            for name, found in zip(part.outputs, results, strict=True):
                values[name] = found
                bytes += _bytes(found)
            if bytes > context.peak:
                context.peak = bytes
            if bytes > context.max_memory:
                raise _too_much(part, bytes, context)
            for name in part.last:
                gone = values.pop(name)
                if name not in feeds:
                    bytes -= _bytes(gone)
        return [self._result(name, values, feeds) for name in (self._outputs if output_names is None else output_names)]

    def memory(self, peak: int) -> Memory:
        """What the parts hold that are compiled here; other providers have memory of their own.

        Args:
            peak: Most bytes that the values of one call took, as far as runs counted.
        """
        compiled = [
            (f"part {number}: {part.label}", part.runner.native.program, part.around)
            for number, part in enumerate(self.parts) if isinstance(part.runner, NativeRunner)
        ]  # fmt: skip
        unknown = (part.provider for part in self.parts if not isinstance(part.runner, NativeRunner))
        return memory(compiled, peak, unknown)

    def shrink(self) -> None:
        """Let go of memory that no call uses."""
        for part in self.parts:
            if isinstance(part.runner, Shrinking):
                part.runner.shrink()

    def _result(self, name: str, values: Mapping[str, Any], feeds: Mapping[str, Any]) -> Any:
        if name in self._known:
            return self._known[name].copy()
        found = values[name]
        # What is passed through is the caller's to keep all the same.
        return found.copy() if name in feeds and isinstance(found, np.ndarray) else found

    def _checked(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Any], list[list[Expected | None]]]:
        """The feeds, as arrays in one piece of the declared types; what each part must give for their sizes."""
        values = {}
        for name in self._types:
            fed = feeds[name]
            dtype = self._dtypes.get(name)
            if dtype is None or not isinstance(fed, np.ndarray) or fed.dtype != dtype or not fed.flags.c_contiguous:
                value = as_value(fed, self._types[name], name)
                fed = value.known
            values[name] = fed
        sizes = tuple([each.shape if isinstance(each, np.ndarray) else None for each in values.values()])
        expected = self._expected.get(sizes)
        if expected is None:
            numbers = self._numbers(values)
            if len(self._expected) > _REMEMBERED:
                self._expected.clear()
            expected = self._expected[sizes] = [part.expected(numbers) for part in self.parts]
        return values, expected

    def _numbers(self, values: Mapping[str, Any]) -> dict[str, int]:
        """What the symbols of the inputs are."""
        sizes: dict[str, int] = {}
        for name, declared in self._types.items():
            if declared is not None:
                match_type(declared, as_value(values[name], declared, name).type, sizes, name)
        return sizes


def _forget_symbols(model: ir.Model) -> None:
    """Leave sizes open that the file names where values are computed: what inference does not tell may be another."""
    for value in (output for node in model.graph for output in node.outputs):
        if value.shape is not None:
            value.shape = ir.Shape([size if isinstance(size, int) else None for size in value.shape])


def _bytes(value: Any) -> int:
    """How many bytes a value takes; what is no tensor is not counted."""
    return getattr(value, "nbytes", 0)


def _too_much(part: Part, bytes: int, context: RunContext) -> ResourceError:
    """The error where a part brings the call above its limit: other providers do not tell before what they give."""
    return ResourceError(
        f"with what it gave, {bytes:,} bytes are in use, and {context.max_memory:,} are allowed.",
        where=f"{part.provider}: {part.label}",
        remedy="Give smaller inputs, or raise `max_memory`.",
    )


def _providers(options: SessionOptions) -> list[Provider]:
    """The providers in order of preference; numpy behind them, unless that is to fail."""
    made: list[Provider] = []
    named: Sequence[Any] = [n for n in installed() if n != _FALLBACK] if options.is_auto else options.providers
    for each in named:
        if isinstance(each, (str, tuple)):
            name, own = (each, {}) if isinstance(each, str) else each
            settings = Settings(
                "", own, options.threads, options.optimization, options.deterministic, options.denormals
            )  # fmt: skip
            each = make(name, settings)
        made.append(each)
    names = [each.name for each in made]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise OptionError(f"{twice!r} is named twice.", where="providers")
    if _FALLBACK not in names and not options.strict:
        made.append(make(_FALLBACK, Settings()))
    return made
