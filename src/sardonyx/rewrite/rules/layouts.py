"""Operators under axis permutations: each operator on operands whose axes are permuted.

This module has no rule; :mod:`sardonyx.rewrite.rules.transpose_moves` moves Transposes through these operators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite import targets
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import EXACT, REASSOCIATES, Expr
from sardonyx.rewrite.rules.axis_permutations import (
    Operand,
    Order,
    Reordered,
    has_rank,
    invert_order,
    rebuild_reordered,
)
from sardonyx.rewrite.rules.broadcasting import BROADCASTING, CHOOSING
from sardonyx.rewrite.rules.permuted_operators import matmul, pooling, resize
from sardonyx.rewrite.rules.signatures import axes_of, normalize_axes
from sardonyx.rewrite.site import Site

ROUNDED_ELEMENTWISE = frozenset(
    {"Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp", "Gelu", "HardSwish"}
    | {"Log", "Mish", "Pow", "Reciprocal", "Selu", "Sigmoid", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish"}
    | {"Tan", "Tanh", "ThresholdedRelu", "HardSigmoid"}
)
"""Functions that kernels may round differently at the end of a row (scalar tail)."""

EXACT_ELEMENTWISE = frozenset(
    {"Abs", "BitwiseNot", "Cast", "CastLike", "Ceil", "Clip", "Floor", "Identity", "IsInf", "IsNaN", "LeakyRelu"}
    | {"Neg", "Not", "Relu", "Round", "Sign"}
)
"""Elementwise operators of the first operand with equal bits in any order."""

BROADCAST_OPERATORS = BROADCASTING | CHOOSING | {"PRelu"}
"""Elementwise operators of several operands, which broadcast."""

_CHOICES = frozenset({"ReduceMax", "ReduceMin", "ArgMax", "ArgMin"})
"""Reductions that select an element; kernels propagate a float NaN along some axes only."""

REDUCTIONS = _CHOICES | frozenset(
    {"ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd", "ReduceSum"}
    | {"ReduceSumSquare"}
)


def adapt_to_order(s: Site, order: Order) -> Reordered | None:
    """Return the node at the site for operands in this axis order; None if the operator does not allow it."""
    node = s.node
    if node.domain not in facts.STANDARD:
        return None
    if node.op_type in EXACT_ELEMENTWISE or (
        node.op_type in ROUNDED_ELEMENTWISE and node.op_type not in BROADCAST_OPERATORS
    ):
        return _elementwise(s, order)
    if node.op_type in BROADCAST_OPERATORS:
        return _broadcast(s, order)
    if node.op_type in REDUCTIONS:
        return _reduction(s, order)
    if node.op_type in _OTHERS:
        return _OTHERS[node.op_type](s, order)
    return None


def _axis(axis: int, order: Order) -> int:
    return order[axis % len(order)]


def _elementwise(s: Site, order: Order) -> Reordered | None:
    exactness = REASSOCIATES if s.node.op_type in ROUNDED_ELEMENTWISE else EXACT
    return Reordered((0,), order, rebuild_reordered(s), exactness) if has_rank(s, order) else None


def _broadcast(s: Site, order: Order) -> Reordered | None:
    """All operands of the output's rank are data; the others must have one element or be constant."""
    if s.opset < 7 or facts.rank(s.output) != len(order):
        return None
    data = []
    for i, value in enumerate(s.node.inputs):
        if value is None:
            return None
        if _one_number(value):
            continue
        if facts.rank(value) != len(order) and not facts.is_constant(value):
            return None
        data.append(i)
    exactness = REASSOCIATES if s.node.op_type in ROUNDED_ELEMENTWISE or s.node.op_type in CHOOSING else EXACT
    return Reordered(tuple(data), order, rebuild_reordered(s), exactness)


def _one_number(value: ir.Value) -> bool:
    shape = facts.static_shape(value)
    return shape is not None and all(size == 1 for size in shape)


def _drop_axes(dropped: Sequence[int], order: Order) -> Order:
    """Return the order that remains when the axes ``gone`` of the value are dropped."""
    remaining = sorted(set(order) - {order[axis] for axis in dropped})
    return tuple(remaining.index(stored) for axis, stored in enumerate(order) if axis not in dropped)


def _reduction(s: Site, order: Order) -> Reordered | None:
    if not has_rank(s, order) or any(not facts.unused(v) for v in s.node.outputs[1:]):
        return None
    kind = facts.dtype(s.input(0))
    if s.node.op_type in _CHOICES and (kind is None or not kind.is_integer()):
        return None
    exactness = EXACT if s.node.op_type in _CHOICES else REASSOCIATES
    keeps = bool(s.attr("keepdims", 1))
    if s.node.op_type in ("ArgMax", "ArgMin"):
        along: Order = (int(s.attr("axis", 0)) % len(order),)
        build = rebuild_reordered(s, axis=order[along[0]])
    else:
        written = axes_of(s, s.node)
        reduced = None if written is None else normalize_axes(written, len(order))
        if reduced is None:
            return None
        if not reduced:
            if s.attr("noop_with_empty_axes", 0):
                return None
            along, build = tuple(range(len(order))), rebuild_reordered(s)
        else:
            along, build = reduced, _with_sorted_axes(s, [order[axis] for axis in reduced])
    return Reordered((0,), order if keeps else _drop_axes(along, order), build, exactness)


def _with_sorted_axes(s: Site, on: Sequence[int]) -> Callable[[Sequence[Operand]], Expr]:
    if s.input(1) is not None:
        return rebuild_reordered(s, {1: np.array(sorted(on), np.int64)})
    return rebuild_reordered(s, axes=sorted(on))


def _squeeze(s: Site, order: Order) -> Reordered | None:
    along = normalize_axes(axes_of(s, s.node) or (), len(order))
    if not along or not has_rank(s, order):
        return None
    return Reordered((0,), _drop_axes(along, order), _with_sorted_axes(s, [order[axis] for axis in along]))


def _unsqueeze(s: Site, order: Order) -> Reordered | None:
    written = axes_of(s, s.node)
    if not written or not has_rank(s, order):
        return None
    rank = len(order) + len(written)
    new = normalize_axes(written, rank)
    if new is None or len(new) != len(written):
        return None
    rest = [axis for axis in range(rank) if axis not in new]
    wide = tuple(axis if axis in new else rest[order[rest.index(axis)]] for axis in range(rank))
    return Reordered((0,), wide, rebuild_reordered(s))


def _along_axis(s: Site, order: Order) -> Reordered | None:
    if not has_rank(s, order) or (s.node.op_type == "Split" and s.opset < 2):
        return None
    data = tuple(range(len(s.node.inputs))) if s.node.op_type == "Concat" else (0,)
    if s.node.op_type == "Concat" and any(facts.rank(v) != len(order) for v in s.node.inputs):
        return None
    axis = s.attr("axis", 0 if s.node.op_type == "Split" else None)
    return None if axis is None else Reordered(data, order, rebuild_reordered(s, axis=_axis(int(axis), order)))


def _softmax(s: Site, order: Order) -> Reordered | None:
    if s.opset < 13 or not has_rank(s, order):
        return None
    axis = _axis(int(s.attr("axis", -1)), order)
    # Along any other axis, kernels transpose the operand internally.
    return Reordered((0,), order, rebuild_reordered(s, axis=axis), REASSOCIATES) if axis == len(order) - 1 else None


def _gather(s: Site, order: Order) -> Reordered | None:
    if not has_rank(s, order) or facts.rank(s.input(1)) not in (0, 1):
        return None
    axis = int(s.attr("axis", 0)) % len(order)
    dropped = facts.rank(s.input(1)) == 0
    return Reordered((0,), _drop_axes((axis,), order) if dropped else order, rebuild_reordered(s, axis=order[axis]))


def _pad(s: Site, order: Order) -> Reordered | None:
    if not has_rank(s, order):
        return None
    rank = len(order)
    if s.opset < 11:
        written = s.attr("pads")
        if written is None or len(written) != 2 * rank:
            return None
        return Reordered((0,), order, rebuild_reordered(s, pads=_pads(written, order)))
    if s.input(3) is not None:
        on = facts.constant_ints(s.input(3))
        moved = None if on is None else np.array([_axis(axis, order) for axis in on], np.int64)
        return None if moved is None else Reordered((0,), order, rebuild_reordered(s, {3: moved}))
    pads = s.sizes.constant(s.input(1))
    if pads is None or len(pads) != 2 * rank:
        return None
    return Reordered((0,), order, rebuild_reordered(s, {1: np.array(_pads(pads, order), np.int64)}))


def _pads(pads: Sequence[int], order: Order) -> list[int]:
    source_axes, rank = invert_order(order), len(order)
    return [pads[axis] for axis in source_axes] + [pads[rank + axis] for axis in source_axes]


def _slice(s: Site, order: Order) -> Reordered | None:
    if not has_rank(s, order):
        return None
    if s.opset < 10:
        on = s.attr("axes")
        on = tuple(range(len(s.attr("starts") or ()))) if on is None else on
        return Reordered((0,), order, rebuild_reordered(s, axes=[_axis(axis, order) for axis in on]))
    count = facts.dim_at(s.input(1), 0)
    on = facts.constant_ints(s.input(3)) if s.input(3) is not None else None if count is None else range(count)
    if on is None:
        return None
    return Reordered((0,), order, rebuild_reordered(s, {3: np.array([_axis(axis, order) for axis in on], np.int64)}))


def _repeat(s: Site, order: Order) -> Reordered | None:
    """Tile, and Expand to a shape of equal rank: one entry per axis."""
    if not has_rank(s, order) or s.opset < 8:
        return None
    repeats = s.sizes.constant(s.input(1))
    if repeats is None or len(repeats) > len(order):
        return None
    repeats = (1,) * (len(order) - len(repeats)) + tuple(repeats)
    return Reordered(
        (0,), order, rebuild_reordered(s, {1: np.array([repeats[axis] for axis in invert_order(order)], np.int64)})
    )


def _quantize(s: Site, order: Order) -> Reordered | None:
    scale = s.input(1)
    if not has_rank(s, order) or scale is None or s.attr("block_size", 0):
        return None
    if "fuse_quantized_movement" in targets.profile(s.target).without:
        # The target's engine moves quantization nodes itself.
        return None
    if _one_number(scale):
        return Reordered((0,), order, rebuild_reordered(s))
    if facts.rank(scale) != 1 or s.opset < 13:
        return None
    return Reordered((0,), order, rebuild_reordered(s, axis=_axis(int(s.attr("axis", 1)), order)))


_OTHERS: Mapping[str, Callable[[Site, Order], Reordered | None]] = {
    "AveragePool": pooling,
    "Concat": _along_axis,
    "DequantizeLinear": _quantize,
    "Expand": _repeat,
    "Gather": _gather,
    "Hardmax": _softmax,
    "GlobalAveragePool": pooling,
    "GlobalMaxPool": pooling,
    "LogSoftmax": _softmax,
    "LpPool": pooling,
    "MatMul": matmul,
    "MaxPool": pooling,
    "Pad": _pad,
    "QuantizeLinear": _quantize,
    "Resize": resize,
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _along_axis,
    "Squeeze": _squeeze,
    "Tile": _repeat,
    "Unsqueeze": _unsqueeze,
}
