"""Reductions over axes, and cumulative ones along an axis.

Source: ONNX Operators, *ReduceSum* to *ReduceLogSumExp*, *ArgMax*, *ArgMin*, *CumSum*, *CumProd*. The axes came as an
attribute before version 18 (13 for *ReduceSum*), and come as an input since. What is more than sum, product, maximum
or minimum is computed in float32 for 16-bit floats, so that squares and sums keep their range, and what has fractions
in float64 for integers; the result is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sardonyx.core import language as L
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType
from sardonyx.core.language import Tensor
from sardonyx.errors import ShapeError
from sardonyx.ops.registry import operator

Axes = Sequence[int] | None
Reduction = Callable[[Tensor, Axes, bool], Tensor]

_OF_HALF = {t.FLOAT16: t.FLOAT, t.BFLOAT16: t.FLOAT}
_OF_INTEGERS = {**_OF_HALF, **dict.fromkeys((*t.INTS, *t.UINTS), t.DOUBLE)}


def _reduction(name: str, compute: Reduction, *, by_input: int = 18, wider: dict[DType, DType] | None = None) -> None:
    """Register a reduction over ``axes``: an attribute at first, an input from version ``by_input`` on."""

    def reduced(x: Tensor, axes: Axes, keepdims: int) -> Tensor:
        wide = L.cast(x, (wider or {}).get(x.dtype, x.dtype))
        return L.cast(compute(wide, axes, bool(keepdims)), x.dtype)

    @operator(name, since=by_input)
    def definition(
        x: Tensor, axes: Tensor | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Tensor:
        over = [] if axes is None else L.static(axes, f"the axes of {name}")
        return reduced(x, over if over or noop_with_empty_axes else None, keepdims)

    @operator(name, since=1)
    def by_attribute(x: Tensor, *, axes: Axes = None, keepdims: int = 1) -> Tensor:
        return reduced(x, axes or None, keepdims)


def _log_sum_exp(x: Tensor, axes: Axes, keepdims: bool) -> Tensor:
    """The maximum is taken out first, for range, where it is finite."""
    greatest = L.stop_gradient(L.reduce_max(x, axes, keepdims=True))
    greatest = L.where(L.is_infinite(greatest), 0, greatest)
    found = L.log(L.reduce_sum(L.exp(x - greatest), axes, keepdims=True)) + greatest
    return found if keepdims else L.reshape(found, L.reduce_sum(x, axes).shape)


_reduction("ReduceSum", L.reduce_sum, by_input=13)
_reduction("ReduceProd", L.reduce_product)
_reduction("ReduceMax", L.reduce_max)
_reduction("ReduceMin", L.reduce_min)
_reduction("ReduceMean", L.reduce_mean, wider=_OF_HALF)
_reduction("ReduceL1", lambda x, axes, keep: L.reduce_sum(L.abs_(x), axes, keep), wider=_OF_HALF)
_reduction("ReduceSumSquare", lambda x, axes, keep: L.reduce_sum(x * x, axes, keep), wider=_OF_HALF)
_reduction("ReduceL2", lambda x, axes, keep: L.sqrt(L.reduce_sum(x * x, axes, keep)), wider=_OF_INTEGERS)
_reduction("ReduceLogSum", lambda x, axes, keep: L.log(L.reduce_sum(x, axes, keep)), wider=_OF_INTEGERS)
_reduction("ReduceLogSumExp", _log_sum_exp, wider=_OF_INTEGERS)


def _position(name: str, compute: Callable[[Tensor, int, bool], Tensor]) -> None:
    @operator(name, since=1)
    def definition(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
        if not select_last_index:
            return compute(x, axis, bool(keepdims))
        last = L.number(x.shape[L.normalized_axis(axis, x.rank)] - 1)
        return last - compute(L.reverse(x, [axis]), axis, bool(keepdims))


_position("ArgMax", L.argmax)
_position("ArgMin", L.argmin)


# Cumulative.


def _cumulative(name: str, kind: str, neutral: int, since: int) -> None:
    @operator(name, since=since)
    def definition(x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
        axes = L.normalized_axes(L.static(axis, f"the axis of {name}"), x.rank)
        if len(axes) != 1:
            raise ShapeError(f"{name} is along one axis, and {len(axes)} are given.")
        found = L.cumulative(kind, L.reverse(x, axes) if reverse else x, axes[0])
        if exclusive:
            shift = [int(i in axes) for i in range(x.rank)]
            found = L.pad(found, shift, [-by for by in shift], neutral)
        return L.reverse(found, axes) if reverse else found


_cumulative("CumSum", "add", 0, since=11)
_cumulative("CumProd", "mul", 1, since=26)
