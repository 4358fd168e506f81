"""Propagation of a required size from a value back to the constant origin, and repair of the origin."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from sardonyx.core.dim import Size
from sardonyx.errors import ShapeError
from sardonyx.rewrite.analysis import facts, inference

if TYPE_CHECKING:
    from sardonyx.rewrite.baked.walk import Walk

UNARY = frozenset(
    {
        "Identity", "Cast", "Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Exp", "Log", "Sqrt", "Erf", "Softmax", "Not",
        "Clip", "LeakyRelu", "Floor", "Ceil", "Reciprocal", "Sin", "Cos", "Dropout", "CumSum",
    }
)  # fmt: skip
"""Operators whose result has the shape of their first operand."""


def demand(walk: Walk, reader: ir.Node, value: ir.Value, axis: int, size: Size) -> None:
    """Make ``value`` have ``size`` along ``axis``, as required by ``reader``.

    Raises:
        ShapeError: the origin of the size cannot be changed; names the node.
    """
    rank = len(walk.current(value) or ())
    axis %= rank
    if facts.is_constant(value):
        _repeat(walk, reader, value, axis, size)
        return
    node = value.producer()
    if node is None:
        raise ShapeError(
            f"axis {axis} must change too: node '{reader.name}' ({reader.op_type}) combines it with a changed size",
            where=f"input '{value.name}'",
            remedy="Give it a new shape in the same call.",
        )
    match node.op_type if node.domain in ("", "ai.onnx") else "":
        case "Expand":
            _set(walk, node, 1, axis, size, rank)
        case "ConstantOfShape":
            _set(walk, node, 0, axis, size, rank)
        case "Tile":
            _tile(walk, node, axis, size)
        case "Slice":
            _slice(walk, node, axis, size)
        case "Range":
            _range(walk, node, size)
        case "Reshape":
            _reshape(walk, node, axis, size)
        case "Transpose":
            order = walk.sizes.attr(node, "perm") or list(reversed(range(rank)))
            _further(walk, node, node.inputs[0], order[axis], size)
        case "Unsqueeze":
            _unsqueeze(walk, node, axis, size)
        case "Concat" if walk.sizes.attr(node, "axis", 1) % rank != axis:
            for entry in list(node.inputs):
                _further(walk, node, entry, axis, size)
        case op if op in UNARY:
            _further(walk, node, node.inputs[0], axis, size)
        case op if op in inference.BROADCASTING:
            _broadcast(walk, node, axis - rank, size)
        case _:
            raise walk.refusal(node, f"fixes axis {axis} of '{value.name}' to the old size")


def _further(walk: Walk, node: ir.Node, value: ir.Value | None, axis: int, size: Size) -> None:
    assert value is not None
    demand(walk, node, value, axis, size)


def _set(walk: Walk, node: ir.Node, index: int, axis: int, size: Size, rank: int) -> None:
    elements = walk.sizes.elements(node.inputs[index])
    if elements is None or len(elements[1]) != rank:
        operand = node.inputs[index]
        source = (
            "an input that callers may override"
            if operand is not None and operand.is_graph_input()
            else "a value of unknown origin"
        )
        raise walk.refusal(node, f"reads its shape from {source}")
    target = list(elements[1])
    target[axis] = size
    walk.write(node, index, target)


def _tile(walk: Walk, node: ir.Node, axis: int, size: Size) -> None:
    dims, elements = walk.current(node.inputs[0]), walk.sizes.elements(node.inputs[1])
    if dims is None or elements is None or dims[axis] != 1:
        raise walk.refusal(node, "repeats an axis of another size than 1")
    repeats = list(elements[1])
    repeats[axis] = size
    walk.write(node, 1, repeats)


def _slice(walk: Walk, node: ir.Node, axis: int, size: Size) -> None:
    """Extend a Slice of the first elements of a longer axis."""
    starts, ends = walk.sizes.constant(node.inputs[1]), walk.sizes.elements(node.inputs[2])
    axes = walk.sizes.constant(node.inputs[3]) if len(node.inputs) > 3 else tuple(range(len(starts or ())))
    if axes is not None:
        axes = tuple(a % len(walk.current(node.inputs[0]) or (0,)) for a in axes)
        if axis not in axes:
            _further(walk, node, node.inputs[0], axis, size)
            return
    if starts is None or ends is None or axes is None or starts[axes.index(axis)] != 0:
        raise walk.refusal(node, "selects a fixed number of elements")
    target = list(ends[1])
    target[axes.index(axis)] = size
    walk.write(node, 2, target)


def _range(walk: Walk, node: ir.Node, size: Size) -> None:
    start, _, step = (walk.sizes.constant(v) for v in node.inputs)
    kind = facts.dtype(node.inputs[1])
    if start != (0,) or step != (1,) or kind != ir.DataType.INT64:
        raise walk.refusal(node, "counts up to a fixed number")
    vector = walk.arithmetic.scalar(size)
    none = walk.arithmetic.constant(np.zeros(0, np.int64))
    node.replace_input_with(1, walk.arithmetic.node("Reshape", [vector, none], shape=[]))


def _reshape(walk: Walk, node: ir.Node, axis: int, size: Size) -> None:
    """Propagate the demand through a Reshape that only adds or drops axes of size 1."""
    operand, result = walk.current(node.inputs[0]), walk.current(node.outputs[0])
    if operand is None or result is None or [d for d in operand if d != 1] != [d for d in result if d != 1]:
        raise walk.refusal(node, "splits or merges a size that must change")
    if result[axis] == 1:
        raise walk.refusal(node, "adds an axis of size 1 that must change")
    position = sum(1 for d in result[:axis] if d != 1)
    source = [i for i, d in enumerate(operand) if d != 1][position]
    target = list(result)
    target[axis] = -1
    walk.write(node, 1, target)
    _further(walk, node, node.inputs[0], source, size)


def _unsqueeze(walk: Walk, node: ir.Node, axis: int, size: Size) -> None:
    rank = len(walk.current(node.outputs[0]) or ())
    axes = walk.sizes.attr(node, "axes") or (walk.sizes.constant(node.inputs[1]) if len(node.inputs) > 1 else None)
    if axes is None or axis in {a % rank for a in axes}:
        raise walk.refusal(node, "adds an axis of size 1 that must change")
    _further(walk, node, node.inputs[0], axis - sum(1 for a in axes if a % rank < axis), size)


def _broadcast(walk: Walk, node: ir.Node, axis: int, size: Size) -> None:
    """Change all operands with the size; if the size is 1, one operand."""
    entries = [(v, walk.current(v)) for v in node.inputs if v is not None]
    old = (walk.current(node.outputs[0]) or ())[axis]
    holders = [v for v, dims in entries if dims is not None and -axis <= len(dims) and dims[axis] == old]
    if old == 1:
        holders = sorted(holders, key=facts.is_constant)[:1]
    if not holders:
        raise walk.refusal(node, "computes a size that must change from values of unknown origin")
    for value in holders:
        _further(walk, node, value, axis, size)


def _repeat(walk: Walk, reader: ir.Node, value: ir.Value, axis: int, size: Size) -> None:
    """Expand a constant with equal slices along the axis to the size."""
    tensor = facts.constant_tensor(value)
    assert tensor is not None
    array = tensor.numpy()
    single = array.take([0], axis=axis)
    if not np.array_equal(np.broadcast_to(single, array.shape), array, equal_nan=array.dtype.kind == "f"):
        raise walk.refusal(
            reader,
            f"reads the weight '{value.name}' with {array.shape[axis]} different entries along axis {axis}",
        )
    entry = value if array.shape[axis] == 1 else walk.arithmetic.constant(np.ascontiguousarray(single))
    shape: list[Size] = [1] * array.ndim
    shape[axis] = size
    kind = value.type or ir.TensorType(tensor.dtype)
    target = walk.arithmetic.vector(shape)
    expanded = walk.arithmetic.node("Expand", [entry, target], shape=None, kind=kind)
    producer = expanded.producer()
    assert producer is not None
    walk.operands.append((producer, 1))
    for index, read in enumerate(reader.inputs):
        if read is value:
            reader.replace_input_with(index, expanded)
