"""Cases of sequences and of control flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.ops.generators.draw import FLOATS, Case, Draw, ints, scalar
from tests.ops.generators.table import draws


def _sequence(draw: Draw, dtype: Any = np.float32, least: int = 1) -> list[Any]:
    return [draw.array(draw.shape(0, 3), dtype) for _ in range(draw.integer(least, 4))]


@draws("SequenceAt", "SequenceErase")
def at(draw: Draw, name: str) -> Case:
    items = _sequence(draw, draw.pick(*FLOATS))
    return Case(name, 11, [items, scalar(draw.integer(-len(items), len(items) - 1))])


@draws("SequenceInsert")
def insert(draw: Draw, name: str) -> Case:
    items = _sequence(draw)
    position = draw.maybe(lambda: scalar(draw.integer(-len(items), len(items))))
    return Case(name, 11, [items, draw.array(draw.shape(0, 3)), position])


@draws("SequenceLength")
def length(draw: Draw, name: str) -> Case:
    return Case(name, 11, [_sequence(draw)])


@draws("SequenceConstruct")
def construct(draw: Draw, name: str) -> Case:
    return Case(name, 11, _sequence(draw))


@draws("SequenceEmpty")
def empty(draw: Draw, name: str) -> Case:
    return Case(name, 11, [], draw.options(dtype=draw.pick(1, 7, 11)))


@draws("ConcatFromSequence")
def joined(draw: Draw, name: str) -> Case:
    shape, new = draw.shape(1, 3, zero=False), draw.integer(0, 1)
    items = [draw.array(shape, special=False) for _ in range(draw.integer(1, 3))]
    return Case(name, 11, [items], {"axis": draw.axis(len(shape) + new), "new_axis": new})


@draws("SplitToSequence")
def parted(draw: Draw, name: str) -> Case:
    shape = list(draw.shape(1, 3, zero=False))
    axis, parts = draw.axis(len(shape)), [draw.integer(1, 3) for _ in range(draw.integer(1, 3))]
    shape[axis] = sum(parts)
    sizes = draw.maybe(lambda: draw.pick(ints(*parts), scalar(draw.integer(1, 3))), 0.8)
    return Case(name, 11, [draw.array(shape), sizes], {"axis": axis} | draw.options(keepdims=draw.integer(0, 1)))


# Control flow: bodies of a few nodes.


def _body(
    nodes: list[onnx.NodeProto], inputs: Sequence[tuple[str, int]], outputs: Sequence[tuple[str, int]]
) -> onnx.GraphProto:
    def infos(named: Sequence[tuple[str, int]]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, type_, () if name in "ic" else None) for name, type_ in named]

    return helper.make_graph(nodes, "body", infos(inputs), infos(outputs))


@draws("If")
def if_(draw: Draw, name: str) -> Case:
    def branch(value: float) -> onnx.GraphProto:
        constant = helper.make_node("Constant", [], ["b"], value_floats=[value] * draw.integer(1, 3))
        return _body([constant], [], [("b", TensorProto.FLOAT)])

    return Case(name, 13, [np.array(draw.chance(0.5))], {"then_branch": branch(1.0), "else_branch": branch(2.0)})


@draws("Loop")
def loop(draw: Draw, name: str) -> Case:
    """Doubles what it carries, collects it, and goes on as long as its sum is below a limit."""
    nodes = [
        helper.make_node("Add", ["v", "v"], ["w"]),
        helper.make_node("ReduceSum", ["w"], ["s"], keepdims=0),
        helper.make_node("Constant", [], ["limit"], value_float=40.0),
        helper.make_node("Less", ["s", "limit"], ["d"]),
        helper.make_node("Identity", ["w"], ["row"]),
    ]
    inputs = [("i", TensorProto.INT64), ("c", TensorProto.BOOL), ("v", TensorProto.FLOAT)]
    outputs = [("d", TensorProto.BOOL), ("w", TensorProto.FLOAT), ("row", TensorProto.FLOAT)]
    count = scalar(draw.integer(1, 5))
    going = draw.maybe(lambda: np.array(True), 0.7)
    return Case(
        name,
        13,
        [count, going, draw.positive(draw.shape(1, 2, zero=False))],
        {"body": _body(nodes, inputs, outputs)},
        2,
    )


@draws("Scan")
def scan(draw: Draw, name: str) -> Case:
    """Cumulative sums along an axis of one of two inputs."""
    shape = draw.shape(2, 3, zero=False)
    axis = draw.integer(0, len(shape) - 1)
    row = tuple(size for i, size in enumerate(shape) if i != axis)
    nodes = [helper.make_node("Add", ["state", "x"], ["new"]), helper.make_node("Identity", ["new"], ["row"])]
    floats = TensorProto.FLOAT
    body = _body(nodes, [("state", floats), ("x", floats)], [("new", floats), ("row", floats)])
    options: dict[str, Any] = {"body": body, "num_scan_inputs": 1, "scan_input_axes": [axis]}
    options |= draw.options(
        scan_input_directions=[draw.integer(0, 1)], scan_output_directions=[draw.integer(0, 1)],
        scan_output_axes=[draw.integer(0, len(shape) - 1)],
    )  # fmt: skip
    return Case(name, 11, [draw.positive(row), draw.positive(shape)], options, 2)
