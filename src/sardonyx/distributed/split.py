"""Models split into pipeline parts, by number or by memory, each part a model; the chain is proved against the whole.

Nodes stay in their order. Parts are chosen by dynamic programming: for a number of parts, the largest part (shares of
weights and of nodes) is smallest; for a limit of memory, parts are few. Ties have the fewest bytes between parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.errors import OptionError, VerificationError
from sardonyx.model.load import Loadable
from sardonyx.model.node_order import load_sorted
from sardonyx.rewrite.analysis.inference import infer_shapes
from sardonyx.rewrite.surgery import extract
from sardonyx.runtime.profiling.profile import drawn_feeds
from sardonyx.runtime.session import Session

_MOST_PARTS = 64
_REFERENCE_BYTES = 8
"""Bytes that count for a string, and for a value of unknown type or shape."""

TOLERANCE = 1e-5
"""Largest difference of an output of the chain, relative to the output's largest magnitude."""


@dataclass(frozen=True)
class Pipeline:
    """Parts of a model, in order.

    Attributes:
        parts: The models; an input of a part is an input of the whole, or an output of an earlier part.
        outputs: Names of the outputs of the whole.
        weight_bytes: Bytes of weights of each part.
        transferred_bytes: Bytes between adjacent parts, with 1 for open sizes.
        error: Largest difference from the whole that the proof measured, relative to an output's largest magnitude.
    """

    parts: tuple[ir.Model, ...]
    outputs: tuple[str, ...]
    weight_bytes: tuple[int, ...]
    transferred_bytes: tuple[int, ...]
    error: float

    def sessions(self, **options: Any) -> list[Session]:
        """Return a session for each part; see :class:`.Session` for the options."""
        return [Session(part, **options) for part in self.parts]


def run_chain(sessions: Sequence[Session], outputs: Sequence[str], feeds: Mapping[str, Any]) -> list[Any]:
    """Run the sessions of a pipeline one after another, and return the outputs of the whole."""
    values = dict(feeds)
    for session in sessions:
        names = [info.name for info in session.get_outputs()]
        results = session.run(names, {info.name: values[info.name] for info in session.get_inputs()})
        values.update(zip(names, results, strict=True))
    return [values[name] for name in outputs]


def split(model: Loadable, parts: int | None = None, *, by_memory: int | None = None) -> Pipeline:
    """Split a model into parts that run one after another, e.g. on several machines.

    Args:
        model: The model.
        parts: The number of parts; the model may have fewer places to cut.
        by_memory: Most bytes of weights of a part, instead of a number.

    Returns:
        The parts. Equal inputs give outputs within 1e-5 of those of the whole on seeded random inputs.

    Raises:
        OptionError: Neither or both of the arguments, or a node has more weights than `by_memory`.
        VerificationError: The chain computes other outputs.
    """
    if (parts is None) == (by_memory is None):
        raise OptionError("expected a number of parts, or a limit of memory.", where="split")
    if parts is not None and not (isinstance(parts, int) and 1 <= parts <= _MOST_PARTS):
        raise OptionError(f"expected 1 to {_MOST_PARTS} parts, got {parts!r}.", where="parts")
    if by_memory is not None and not (isinstance(by_memory, int) and by_memory > 0):
        raise OptionError(f"expected a number of bytes, got {by_memory!r}.", where="by_memory")
    whole = load_sorted(model)
    infer_shapes(whole, strict=False)
    nodes = list(whole.graph)
    if not nodes:
        raise OptionError("the model has no nodes.", where="split")
    weights, crossing = _weights(whole, nodes), _crossing(whole, nodes)
    if parts is not None:
        ends = _balanced(weights, crossing, min(parts, len(nodes)))
    else:
        assert by_memory is not None
        ends = _bounded(weights, crossing, by_memory, nodes)
    models = _parts(whole, nodes, ends)
    starts = [0, *ends[:-1]]
    outputs = tuple(str(value.name) for value in whole.graph.outputs)
    pipeline = Pipeline(
        tuple(models),
        outputs,
        tuple(sum(weights[start:end]) for start, end in zip(starts, ends, strict=True)),
        tuple(crossing[end] for end in ends[:-1]),
        0.0,
    )
    return Pipeline(models, outputs, pipeline.weight_bytes, pipeline.transferred_bytes, _proof(whole, pipeline))


def _weights(model: ir.Model, nodes: Sequence[ir.Node]) -> list[int]:
    """Return the bytes of weights of each node; a weight of several nodes counts at the first."""
    counted: set[ir.Value] = set()
    rows = []
    for node in nodes:
        total = 0
        for value in _reads(node):
            if value is not None and value.is_initializer() and value not in counted and value.const_value is not None:
                counted.add(value)
                total += value.const_value.nbytes
        rows.append(total)
    return rows


def _reads(node: ir.Node) -> list[ir.Value]:
    """Return the values that a node and its bodies read."""
    values = [value for value in node.inputs if value is not None]
    for attribute in node.attributes.values():
        graphs = (
            [attribute.as_graph()]
            if attribute.type == ir.AttributeType.GRAPH
            else list(attribute.as_graphs())
            if attribute.type == ir.AttributeType.GRAPHS
            else []
        )
        for graph in graphs:
            for inner in graph:
                values += _reads(inner)
            values += [value for value in graph.outputs if value is not None]
    return values


def _crossing(model: ir.Model, nodes: Sequence[ir.Node]) -> list[int]:
    """Return, for each place, the bytes of values that are produced before it and read after it."""
    position = {value: index for index, node in enumerate(nodes) for value in node.outputs}
    last = dict(position)
    for index, node in enumerate(nodes):
        for value in _reads(node):
            if value in last:
                last[value] = max(last[value], index)
    change = [0] * (len(nodes) + 2)
    for value, index in position.items():
        if last[value] > index:
            change[index + 1] += _bytes(value)
            change[last[value] + 1] -= _bytes(value)
    return [int(total) for total in np.cumsum(change)]


def _bytes(value: ir.Value) -> int:
    if value.shape is None or value.dtype in (None, ir.DataType.UNDEFINED):
        return _REFERENCE_BYTES
    count = math.prod(size if isinstance(size, int) else 1 for size in value.shape)
    if value.dtype == ir.DataType.STRING:
        return max(1, count) * _REFERENCE_BYTES
    return max(1, count * value.dtype.bitwidth // 8)


def _balanced(weights: Sequence[int], crossing: Sequence[int], parts: int) -> list[int]:
    """Return the ends of parts whose largest cost is smallest; ties have the fewest bytes between parts."""
    count = len(weights)
    share = np.array(weights, float) / max(1, sum(weights)) + 1 / count
    prefix = np.concatenate([[0], np.cumsum(share)])
    best = np.full((parts + 1, count + 1), np.inf)
    moved = np.full((parts + 1, count + 1), np.inf)
    origin = np.zeros((parts + 1, count + 1), int)
    best[0, 0] = moved[0, 0] = 0
    for number in range(1, parts + 1):
        for end in range(number, count + 1):
            starts = np.arange(number - 1, end)
            cost = np.maximum(best[number - 1, starts], prefix[end] - prefix[starts])
            bytes = moved[number - 1, starts] + (crossing[end] if end < count else 0)
            # Costs within 5 % are equal: fewer bytes between parts matter more.
            close = np.flatnonzero(cost <= cost.min() * 1.05)
            start = starts[close[np.argmin(bytes[close])]]
            row = start - (number - 1)
            best[number, end], moved[number, end], origin[number, end] = cost[row], bytes[row], start
    return _ends(origin, parts, count)


def _bounded(weights: Sequence[int], crossing: Sequence[int], limit: int, nodes: Sequence[ir.Node]) -> list[int]:
    """Return the ends of the fewest parts within a limit of weights; ties have the fewest bytes between parts."""
    largest = int(np.argmax(weights))
    if weights[largest] > limit:
        raise OptionError(
            f"the weights of node '{nodes[largest].name}' have {weights[largest]:,} bytes, the limit is {limit:,}.",
            where="by_memory",
        )
    count = len(weights)
    prefix = [0, *np.cumsum(weights).tolist()]
    best: list[tuple[float, float]] = [(0.0, 0.0)] + [(math.inf, math.inf)] * count
    origin = [0] * (count + 1)
    for end in range(1, count + 1):
        for start in range(end - 1, -1, -1):
            if prefix[end] - prefix[start] > limit:
                break
            candidate = best[start][0] + 1, best[start][1] + (crossing[end] if end < count else 0)
            if candidate < best[end]:
                best[end], origin[end] = candidate, start
    ends = [count]
    while origin[ends[0]] > 0:
        ends.insert(0, origin[ends[0]])
    return ends


def _ends(origin: np.ndarray, parts: int, count: int) -> list[int]:
    ends = [count]
    for number in range(parts, 1, -1):
        ends.insert(0, int(origin[number, ends[0]]))
    return ends


def _parts(whole: ir.Model, nodes: Sequence[ir.Node], ends: Sequence[int]) -> tuple[ir.Model, ...]:
    results = list(whole.graph.outputs)
    position: dict[ir.Node | None, int] = {node: index for index, node in enumerate(nodes)}
    models = []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        own = set(nodes[start:end])
        later = [value for node in nodes[end:] for value in _reads(node)]
        outputs = _names(value for value in (*later, *results) if value.producer() in own)
        inputs = _names(
            value
            for node in nodes[start:end]
            for value in _reads(node)
            if position.get(value.producer(), start) < start
            or (value.is_graph_input() and value.graph is whole.graph and not value.is_initializer())
        )
        models.append(extract(whole, outputs, inputs))
        _forget_sizes(models[-1], {str(value.name) for value in whole.graph.inputs})
    return tuple(models)


def _forget_sizes(part: ir.Model, declared: set[str]) -> None:
    """Leave open sizes of inner tensors unnamed: they are expressions of sizes that the part's inputs may not have."""
    for value in [*part.graph.inputs, *part.graph.outputs, *(v for node in part.graph for v in node.outputs)]:
        if value.shape is not None and str(value.name) not in declared:
            value.shape = ir.Shape([size if isinstance(size, int) else None for size in value.shape])


def _names(values: Any) -> list[str]:
    return list(dict.fromkeys(str(value.name) for value in values))


def _proof(whole: ir.Model, pipeline: Pipeline) -> float:
    """Return the largest relative difference of the chain from the whole on seeded random inputs."""
    session = Session(whole, compile="wait")
    feeds, _ = drawn_feeds(whole, session)
    expected = session.run(list(pipeline.outputs), feeds)
    actual = run_chain(pipeline.sessions(compile="wait"), pipeline.outputs, feeds)
    return require_equal(pipeline.outputs, expected, actual)


def require_equal(names: Sequence[str], expected: Sequence[Any], actual: Sequence[Any]) -> float:
    """Return the largest difference of outputs of parts, relative to an output's largest magnitude.

    Raises:
        VerificationError: The difference exceeds :data:`TOLERANCE`, or values that are not floats differ.
    """
    worst = 0.0
    for name, left, right in zip(names, expected, actual, strict=True):
        if not (isinstance(left, np.ndarray) and left.dtype.kind in "fc"):
            equal = np.array_equal(np.asarray(left), np.asarray(right))
            error = 0.0 if equal else math.inf
        elif np.shape(left) != np.shape(right) or not np.array_equal(np.isfinite(left), np.isfinite(right)):
            error = math.inf
        else:
            finite = np.isfinite(left)
            scale = float(np.max(np.abs(left[finite]), initial=0.0)) or 1.0
            error = float(np.max(np.abs(left[finite] - right[finite]), initial=0.0)) / scale
        if error > TOLERANCE:
            raise VerificationError(f"the parts compute another output '{name}': error {error:.3g}.", where="split")
        worst = max(worst, error)
    return worst
