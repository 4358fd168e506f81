"""Reductions, positions of extremes, cumulative sums."""

from __future__ import annotations

import numpy as np

from sardonyx.export.tflite.emission import EMITTERS, Call, Emitter, emits
from sardonyx.export.tflite.file_builder import Tensor

REDUCTIONS = {
    "ReduceSum": "SUM",
    "ReduceMean": "MEAN",
    "ReduceMax": "REDUCE_MAX",
    "ReduceMin": "REDUCE_MIN",
    "ReduceProd": "REDUCE_PROD",
}
"""Reductions that the format has under another name."""


def axes_of(c: Call) -> list[int] | None:
    """Return the axes of a reduction; None if nothing is reduced."""
    rank = c.input().rank
    axes = c.integers(1, "the axes") if c.has(1) else []
    if not axes:
        return None if c.attribute("noop_with_empty_axes", 0) else list(range(rank))
    return [axis % rank for axis in axes]


def reduced(c: Call, name: str, x: Tensor) -> Tensor:
    """Return `x` reduced along the axes of the node."""
    axes = axes_of(c)
    if axes is None:
        return x
    s, keepdims = c.scope, bool(c.attribute("keepdims", 1))
    if x.type == "BOOL":
        name = {"REDUCE_MAX": "REDUCE_ANY", "REDUCE_MIN": "REDUCE_ALL"}[name]
        shape = [1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes]
        options = ("ReducerOptions", {"keep_dims": keepdims})
        return s.op(name, [x, s.constant(axes, np.int32)], shape, options=options)
    return s.reduce(name, x, axes, keepdims=keepdims)


def _reduction(name: str) -> Emitter:
    return lambda c: reduced(c, name, c.input())


EMITTERS.update({name: _reduction(operator) for name, operator in REDUCTIONS.items()})


@emits("ReduceL1")
def reduce_l1(c: Call) -> Tensor:
    """Write the sum of absolute values."""
    return reduced(c, "SUM", c.scope.unary("ABS", c.input()))


@emits("ReduceL2")
def reduce_l2(c: Call) -> Tensor:
    """Write the root of the sum of squares."""
    x = c.input()
    return c.scope.unary("SQRT", reduced(c, "SUM", c.scope.binary("MUL", x, x)))


@emits("ReduceSumSquare")
def reduce_sum_square(c: Call) -> Tensor:
    """Write the sum of squares."""
    x = c.input()
    return reduced(c, "SUM", c.scope.binary("MUL", x, x))


@emits("ReduceLogSum")
def reduce_log_sum(c: Call) -> Tensor:
    """Write the logarithm of the sum."""
    return c.scope.unary("LOG", reduced(c, "SUM", c.input()))


@emits("ReduceLogSumExp")
def reduce_log_sum_exp(c: Call) -> Tensor:
    """Write the logarithm of the sum of exponentials, relative to the largest element."""
    x, s, axes = c.input(), c.scope, axes_of(c)
    if axes is None:
        return x
    top = s.reduce("REDUCE_MAX", x, axes)
    finite = s.binary("MAXIMUM", s.binary("MINIMUM", top, s.like(3e38, x)), s.like(-3e38, x))
    total = s.reduce("SUM", s.unary("EXP", s.binary("SUB", x, finite)), axes)
    result = s.binary("ADD", s.unary("LOG", total), finite)
    if c.attribute("keepdims", 1):
        return result
    return s.reshape(result, [n for i, n in enumerate(x.shape) if i not in axes])


@emits("ArgMax", "ArgMin")
def arg_max(c: Call) -> Tensor:
    """Write the first position of an extreme."""
    x, s, axis = c.input(), c.scope, c.axis()
    if c.attribute("select_last_index", 0):
        raise c.refuse("the last position of an extreme")
    name = "ARG_MAX" if c.node.op_type == "ArgMax" else "ARG_MIN"
    kind = ("ArgMaxOptions" if name == "ARG_MAX" else "ArgMinOptions", {"output_type": 4})
    shape = [n for i, n in enumerate(x.shape) if i != axis]
    result = s.op(name, [s.checked(name, x), s.constant(axis, np.int32)], shape, "INT64", kind)
    if not c.attribute("keepdims", 1):
        return result
    return s.reshape(result, [*shape[:axis], 1, *shape[axis:]])


@emits("CumSum")
def cumsum(c: Call) -> Tensor:
    """Write the cumulative sum."""
    x, s = c.input(), c.scope
    axis = c.integers(1, "the axis")[0] % x.rank
    options = {name: bool(c.attribute(name, 0)) for name in ("exclusive", "reverse")}
    y = s.checked("CUMSUM", x)
    return s.cast(s.op("CUMSUM", [y, s.constant(axis, np.int32)], x.shape, options=("CumsumOptions", options)), x.type)
