"""Reductions over axes, and cumulative ones along an axis.

Source: ONNX Operators, *ReduceSum* to *ReduceLogSumExp*, *ArgMax*, *ArgMin*, *CumSum*, *CumProd*. The axes are an
attribute before version 18 (13 for *ReduceSum*), and an input since. Reductions other than sum, product, maximum and
minimum compute 16-bit floats in float32, so that squares and sums keep their range, and integers in float64 if the
result has fractions; the result is rounded once.
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

_WIDER_HALF = {t.FLOAT16: t.FLOAT, t.BFLOAT16: t.FLOAT}
_WIDER_INTEGERS = {**_WIDER_HALF, **dict.fromkeys((*t.INTS, *t.UINTS), t.DOUBLE)}


def _register_reduction(
    name: str, compute: Reduction, *, by_input: int = 18, wider: dict[DType, DType] | None = None
) -> None:
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
    """Subtract a finite maximum before the exponentials, which prevents overflow."""
    greatest = L.stop_gradient(L.reduce_max(x, axes, keepdims=True))
    greatest = L.where(L.is_infinite(greatest), 0, greatest)
    total = L.log(L.reduce_sum(L.exp(x - greatest), axes, keepdims=True)) + greatest
    return total if keepdims else L.reshape(total, L.reduce_sum(x, axes).shape)


_register_reduction("ReduceSum", L.reduce_sum, by_input=13)
_register_reduction("ReduceProd", L.reduce_product)
_register_reduction("ReduceMax", L.reduce_max)
_register_reduction("ReduceMin", L.reduce_min)
_register_reduction("ReduceMean", L.reduce_mean, wider=_WIDER_HALF)
_register_reduction("ReduceL1", lambda x, axes, keep: L.reduce_sum(L.abs_(x), axes, keep), wider=_WIDER_HALF)
_register_reduction("ReduceSumSquare", lambda x, axes, keep: L.reduce_sum(x * x, axes, keep), wider=_WIDER_HALF)
_register_reduction("ReduceL2", lambda x, axes, keep: L.norm_of(L.reduce_sum(x * x, axes, keep)), wider=_WIDER_INTEGERS)
_register_reduction("ReduceLogSum", lambda x, axes, keep: L.log(L.reduce_sum(x, axes, keep)), wider=_WIDER_INTEGERS)
_register_reduction("ReduceLogSumExp", _log_sum_exp, wider=_WIDER_INTEGERS)


def _register_position(name: str, compute: Callable[[Tensor, int, bool], Tensor]) -> None:
    @operator(name, since=1)
    def definition(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Tensor:
        if not select_last_index:
            return compute(x, axis, bool(keepdims))
        last = L.number(x.shape[L.normalized_axis(axis, x.rank)] - 1)
        return last - compute(L.reverse(x, [axis]), axis, bool(keepdims))


_register_position("ArgMax", L.argmax)
_register_position("ArgMin", L.argmin)


# Cumulative.


def _register_cumulative(name: str, kind: str, neutral: int, since: int) -> None:
    @operator(name, since=since)
    def definition(x: Tensor, axis: Tensor, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
        axes = L.normalized_axes(L.static(axis, f"the axis of {name}"), x.rank)
        if len(axes) != 1:
            raise ShapeError(f"expected one axis for {name}, got {len(axes)}.")
        total = L.cumulative(kind, L.reverse(x, axes) if reverse else x, axes[0])
        if exclusive:
            shift = [int(i in axes) for i in range(x.rank)]
            total = L.pad(total, shift, [-by for by in shift], neutral)
        return L.reverse(total, axes) if reverse else total


_register_cumulative("CumSum", "add", 0, since=11)
_register_cumulative("CumProd", "mul", 1, since=26)
