"""Parts of tensors that hold one number everywhere: made in the size that is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import EXACT, Expr, Op, Refusal, Result, rule
from sardonyx.rewrite.notation import Concat, ConstantOfShape, Expand
from sardonyx.rewrite.rules.broadcasting import BROADCASTING
from sardonyx.rewrite.rules.layouts import PLAIN
from sardonyx.rewrite.rules.signatures import axis_of, read_only_by, split_sizes
from sardonyx.rewrite.rules.slices import contiguous
from sardonyx.rewrite.site import Site


def _with_size(shape: ir.Value | None, axis: int, size: int, s: Site) -> Expr | np.ndarray | None:
    """The shape operand with another number at one axis, when the number that stands there is a constant of its own."""
    written = s.sizes.constant(shape)
    if written is not None:
        return np.array([size if i == axis else old for i, old in enumerate(written)], np.int64)
    node = None if shape is None else shape.producer()
    if node is None or node.graph is not s.node.graph or not facts.is_op(node, "Concat"):
        return None
    parts: list[ir.Value | np.ndarray | None] = list(node.inputs)
    start = 0
    for i, part in enumerate(node.inputs):
        length = facts.dim_at(part, 0)
        if length is None:
            return None
        if start <= axis < start + length:
            numbers = facts.constant_ints(part)
            if numbers is None:
                return None
            parts[i] = np.array([size if start + k == axis else old for k, old in enumerate(numbers)], np.int64)
            return Concat(*parts, axis=0)
        start += length
    return None


def _fill(s: Site, source: ir.Node, axis: int, size: int) -> Expr | None:
    """The fill of ``source`` with another size along one axis."""
    if source.op_type == "ConstantOfShape":
        shape = _with_size(source.inputs[0], axis, size, s)
        value = source.attributes.get("value")
        return None if shape is None else ConstantOfShape(shape, value=value)
    number = facts.constant_tensor(source.inputs[0])
    length = facts.dim_at(source.inputs[1], 0)
    if number is None or number.size != 1 or length is None or len(number.shape) > length:
        return None
    shape = _with_size(source.inputs[1], axis, size, s)
    return None if shape is None else Expand(source.inputs[0], shape)


@rule("fuse_slice_into_fill", on="Slice", after=("ConstantOfShape", "Expand"), exactness=EXACT, opset=8)
def slice_of_fill(s: Site) -> Result:
    """Slice of a tensor of one repeated number is that number in the smaller shape."""
    source, filled = s.producer(0, "ConstantOfShape", "Expand"), s.input(0)
    if source is None or filled is None or not read_only_by(filled, "Slice"):
        return None
    span = contiguous(s, s.node)
    if span is None:
        return Refusal("the range is not known in numbers")
    return _fill(s, source, span[0], span[2] - span[1])


@rule("fuse_slice_into_fill", on="Split", after=("ConstantOfShape", "Expand"), exactness=EXACT, opset=8)
def split_of_fill(s: Site) -> Result:
    """Equal parts of a tensor of one repeated number are one smaller tensor."""
    source, filled = s.producer(0, "ConstantOfShape", "Expand"), s.input(0)
    if source is None or filled is None or not read_only_by(filled, "Split"):
        return None
    axis, sizes = axis_of(s, s.node), split_sizes(s, s.node)
    if axis is None or axis < 0 or sizes is None or not _alike(sizes):
        return Refusal("the parts differ in size")
    if sum(value.is_graph_output() for value in s.node.outputs) > 1:
        return Refusal("one tensor cannot be several outputs of the graph")
    part = _fill(s, source, axis, sizes[0])
    return None if part is None else (part,) * len(sizes)


_MAPPING = PLAIN - {"CastLike", "Clip", "Identity"}

_MIXING = BROADCASTING - {"Pow", "Sum"}


@rule("fuse_elementwise_into_fill", on=_MAPPING | _MIXING, after="ConstantOfShape", exactness=EXACT, opset=9)
def function_of_fill(s: Site) -> Result:
    """A function of each element of a tensor of one repeated number is the function of the number, repeated."""
    filled = [v for i, v in enumerate(s.node.inputs) if s.producer(i, "ConstantOfShape") is not None and v is not None]
    others = {v: facts.small_constant(v) for v in s.node.inputs if v not in filled}
    if len(filled) != 1 or not all(array is not None and array.size == 1 for array in others.values()):
        return None
    rank = facts.rank(filled[0])
    if rank is None or rank != facts.rank(s.output):
        return Refusal("the number may give the result another rank")
    if not facts.used_once(filled[0]):
        return Refusal("the tensor has other readers")
    source = filled[0].producer()
    number = None if source is None else _number(source)
    if source is None or number is None:
        return None
    numbers = {filled[0]: number} | {v: array.reshape(()) for v, array in others.items() if array is not None}
    operands = [numbers[v] for v in s.node.inputs if v is not None]
    return Expand(Op((s.node.op_type,))(*operands, **dict[str, Any](s.node.attributes)), source.inputs[0])


def _number(fill: ir.Node) -> np.ndarray | None:
    value = fill.attributes.get("value")
    if value is None:
        return np.zeros((), np.float32)
    return None if value.is_ref() else value.as_tensor().numpy().reshape(())


def _alike(sizes: Sequence[int]) -> bool:
    return len(set(sizes)) == 1
