"""Partitioned models: several providers run one part each."""

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
from sardonyx.ops.core_values import declared_type
from sardonyx.ops.feeds import as_value
from sardonyx.rewrite.analysis.inference import infer_shapes
from sardonyx.runtime.compiled.memory_usage import Memory, memory
from sardonyx.runtime.compiled.native_provider import NativeRunner
from sardonyx.runtime.options import SessionOptions
from sardonyx.runtime.partition import measured_costs
from sardonyx.runtime.partition.partition import Expected, Part
from sardonyx.runtime.partition.partitioner import Cut
from sardonyx.runtime.providers import Provider, Settings, Shrinking, installed, make

_FALLBACK = "reference"

_REMEMBERED = 1000
"""Limit of remembered combinations of input sizes."""


class PartitionedModel:
    """A model cut into parts, each compiled by its provider.

    Args:
        model: The model, which is not changed.
        options: Providers, pins and budgets.
        name: The digest of the model's contents and this machine, for stored measurements; None to store nothing.

    Attributes:
        parts: The parts in execution order.
        placement: The placement of each node of the main graph, in graph order.

    Raises:
        OptionError: Unknown provider, or a provider does not support a pinned node.
        UnsupportedError: No provider supports a node, or only the interpreter does and the session is strict.
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
            output_names: Names of the requested outputs; None for all.
            feeds: All inputs, see :meth:`accepts`.
            context: The limits of this run.

        Raises:
            FeedError: An input is of another type or rank.
            ShapeError: A size contradicts the declaration, or another input.
            ExecutionError: A provider fails, or returns unexpected results; the error names the provider and its nodes.
            ResourceError: A limit is exceeded.
        """
        values, expected = self._checked(feeds)
        bytes = 0
        for part, outputs in zip(self.parts, expected, strict=True):
            if context.limited:
                context.check_time()
            if bytes > part.around:
                part.around = bytes
            context.count_from(bytes)
            if context.recorder is None:
                results = part.run(values, context, outputs)
            else:
                with context.recorder.span(part):
                    results = part.run(values, context, outputs)
            for name, result in zip(part.outputs, results, strict=True):
                values[name] = result
                bytes += _bytes(result)
            if bytes > context.peak:
                context.peak = bytes
            if bytes > context.max_memory:
                raise _too_much(part, bytes, context)
            for name in part.last:
                released = values.pop(name)
                if name not in feeds:
                    bytes -= _bytes(released)
        return [self._result(name, values, feeds) for name in (self._outputs if output_names is None else output_names)]

    def memory(self, peak: int) -> Memory:
        """Return the memory of the compiled parts; other providers have memory of their own.

        Args:
            peak: Most bytes of live values in a call, as far as runs counted.
        """
        compiled = [
            (f"part {number}: {part.label}", part.runner.native.program, part.around)
            for number, part in enumerate(self.parts) if isinstance(part.runner, NativeRunner)
        ]  # fmt: skip
        unknown = (part.provider for part in self.parts if not isinstance(part.runner, NativeRunner))
        return memory(compiled, peak, unknown)

    def shrink(self) -> None:
        """Free memory that no call uses."""
        for part in self.parts:
            if isinstance(part.runner, Shrinking):
                part.runner.shrink()

    def _result(self, name: str, values: Mapping[str, Any], feeds: Mapping[str, Any]) -> Any:
        if name in self._known:
            return self._known[name].copy()
        result = values[name]
        # The caller owns every result, including inputs passed through.
        return result.copy() if name in feeds and isinstance(result, np.ndarray) else result

    def _checked(self, feeds: Mapping[str, Any]) -> tuple[dict[str, Any], list[list[Expected | None]]]:
        """Return the feeds as contiguous arrays of the declared types, and the expected outputs of each part."""
        values = {}
        for name in self._types:
            feed = feeds[name]
            dtype = self._dtypes.get(name)
            if dtype is None or not isinstance(feed, np.ndarray) or feed.dtype != dtype or not feed.flags.c_contiguous:
                value = as_value(feed, self._types[name], name)
                feed = value.known
            values[name] = feed
        sizes = tuple([array.shape if isinstance(array, np.ndarray) else None for array in values.values()])
        expected = self._expected.get(sizes)
        if expected is None:
            numbers = self._numbers(values)
            if len(self._expected) > _REMEMBERED:
                self._expected.clear()
            expected = self._expected[sizes] = [part.expected(numbers) for part in self.parts]
        return values, expected

    def _numbers(self, values: Mapping[str, Any]) -> dict[str, int]:
        """Return the values of the size symbols of the inputs."""
        sizes: dict[str, int] = {}
        for name, declared in self._types.items():
            if declared is not None:
                match_type(declared, as_value(values[name], declared, name).type, sizes, name)
        return sizes


def _forget_symbols(model: ir.Model) -> None:
    """Leave named sizes of computed values open: a file may name sizes that inference cannot confirm."""
    for value in (output for node in model.graph for output in node.outputs):
        if value.shape is not None:
            value.shape = ir.Shape([size if isinstance(size, int) else None for size in value.shape])


def _bytes(value: Any) -> int:
    """Return the bytes of a tensor; 0 for other values."""
    return getattr(value, "nbytes", 0)


def _too_much(part: Part, bytes: int, context: RunContext) -> ResourceError:
    """Return the error of a part whose results exceed the memory limit; sizes of results are known only then."""
    return ResourceError(
        f"with its results, {bytes:,} bytes are in use, {context.max_memory:,} are allowed.",
        where=f"{part.provider}: {part.label}",
        remedy="Give smaller inputs, or raise `max_memory`.",
    )


def _providers(options: SessionOptions) -> list[Provider]:
    """Return the providers in order of preference, with the interpreter last unless the session is strict."""
    providers: list[Provider] = []
    named: Sequence[Any] = [n for n in installed() if n != _FALLBACK] if options.is_auto else options.providers
    for provider in named:
        if isinstance(provider, (str, tuple)):
            name, own = (provider, {}) if isinstance(provider, str) else provider
            settings = Settings(
                "", own, options.threads, options.optimization, options.deterministic, options.denormals
            )  # fmt: skip
            provider = make(name, settings)
        providers.append(provider)
    names = [provider.name for provider in providers]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise OptionError(f"the provider {twice!r} is listed twice.", where="providers")
    if _FALLBACK not in names and not options.strict:
        providers.append(make(_FALLBACK, Settings()))
    return providers
