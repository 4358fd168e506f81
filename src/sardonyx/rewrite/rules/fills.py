"""Tensors filled with one number: slices, splits and elementwise functions of a fill become a fill."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import EXACT, AnyOf, Expr, Match, Op, Refusal, Result, Rewrite, rule
from sardonyx.rewrite.notation import Concat, ConstantOfShape, Expand, Slice, Split
from sardonyx.rewrite.rules.broadcasting import BROADCASTING
from sardonyx.rewrite.rules.layouts import EXACT_ELEMENTWISE
from sardonyx.rewrite.rules.signatures import axis_of, is_read_only_by, split_sizes
from sardonyx.rewrite.rules.slices import contiguous_range
from sardonyx.rewrite.site import Site

FILL = AnyOf("ConstantOfShape", "Expand")
"""Operators that repeat one number."""


def _with_size(shape: ir.Value | None, axis: int, size: int, s: Site) -> Expr | np.ndarray | None:
    """Return the shape operand with ``size`` at ``axis``, or None if the old entry is not constant."""
    target = s.sizes.constant(shape)
    if target is not None:
        return np.array([size if i == axis else old for i, old in enumerate(target)], np.int64)
    node = None if shape is None else shape.producer()
    if node is None or node.graph is not s.node.graph or not facts.is_op(node, "Concat"):
        return None
    parts: list[ir.Value | np.ndarray | None] = list(node.inputs)
    start = 0
    for i, part in enumerate(node.inputs):
        length = facts.dim_at(part, 0)  # entries of the target in this part
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
    """Return the fill that ``source`` makes with another size along one axis."""
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


@rule("fuse_slice_into_fill", exactness=EXACT, opset=8)
def slice_of_fill() -> Rewrite:
    """Replace a Slice of a fill by a fill of the smaller shape."""

    def smaller(m: Match) -> Result:
        s, fill = m.site, m.nodes[1]
        if not is_read_only_by(fill.outputs[0], "Slice"):
            return None
        span = contiguous_range(s, s.node)
        if span is None:
            return Refusal("the range of the Slice is not constant")
        return _fill(s, fill, span[0], span[2] - span[1])

    return Slice(FILL(...), ...) >> smaller


@rule("fuse_slice_into_fill", exactness=EXACT, opset=8)
def split_of_fill() -> Rewrite:
    """Replace the equal parts of a split fill by one smaller fill."""

    def smaller(m: Match) -> Result:
        s, fill = m.site, m.nodes[1]
        if not is_read_only_by(fill.outputs[0], "Split"):
            return None
        axis, sizes = axis_of(s, s.node), split_sizes(s, s.node)
        if axis is None or axis < 0 or sizes is None or len(set(sizes)) != 1:
            return Refusal("the parts have different sizes")
        if sum(value.is_graph_output() for value in s.node.outputs) > 1:
            return Refusal("several parts are graph outputs, and one tensor cannot be several outputs")
        part = _fill(s, fill, axis, sizes[0])
        return None if part is None else (part,) * len(sizes)

    return Split(FILL(...), ...) >> smaller


_MAPPING = EXACT_ELEMENTWISE - {"CastLike", "Clip", "Identity"}

_MIXING = BROADCASTING - {"Pow", "Sum"}


@rule("fuse_elementwise_into_fill", on=_MAPPING | _MIXING, after="ConstantOfShape", exactness=EXACT, opset=9)
def function_of_fill(s: Site) -> Result:
    """Apply an elementwise function of a fill to the number, and fill with the result."""
    filled = [v for i, v in enumerate(s.node.inputs) if s.producer(i, "ConstantOfShape") is not None and v is not None]
    others = {v: facts.small_constant(v) for v in s.node.inputs if v not in filled}
    if len(filled) != 1 or not all(array is not None and array.size == 1 for array in others.values()):
        return None
    rank = facts.rank(filled[0])
    if rank is None or rank != facts.rank(s.output):
        return Refusal("the other operand may change the rank of the result")
    if not facts.used_once(filled[0]):
        return Refusal("the fill has other readers")
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
