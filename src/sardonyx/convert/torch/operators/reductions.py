"""Reductions and cumulative functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from sardonyx.convert.torch.operators.comparisons import truth
from sardonyx.convert.torch.operators.elementwise import (
    add_,
    div_,
    equal_,
    like,
    mul_,
    nan_,
    pointwise,
    sub_,
    where_,
)
from sardonyx.convert.torch.operators.promotion import cast, core_dtype, floating
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.convert.torch.operators.sizes import reshaped
from sardonyx.core import language as L
from sardonyx.core.dim import product
from sardonyx.core.eval.tensor import Tensor, constant
from sardonyx.core.ir import types as t
from sardonyx.ops.nodes import node, onnx

Reduce = Callable[..., Tensor]


def axes_of(x: Tensor, dims: Any) -> tuple[int, ...]:
    """Return the reduced axes: all for None and for an empty list."""
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return tuple(range(x.rank))
    return L.normalized_axes([dims] if isinstance(dims, int) else dims, max(x.rank, 1)) if x.rank else ()


def reduced(name: str, core: Reduce, x: Tensor, dims: Any, keepdim: bool) -> Tensor:
    """Call a reduction of ONNX."""
    axes = axes_of(x, dims)
    if not axes:
        return x
    if t.kind(x.dtype) not in ("float", "int") or x.dtype.bitwidth < 16 or x.dtype == t.INT16:
        return core(x, axes, keepdim)
    at = None if len(axes) == x.rank else constant(list(axes))
    return node(name, x, at, keepdims=int(keepdim), body=lambda y, *_: [core(y, axes, keepdim)])  # type: ignore[no-any-return]


def sum_(x: Tensor, dims: Any = None, keepdim: bool = False) -> Tensor:
    """Return the sum over axes."""
    return reduced("ReduceSum", L.reduce_sum, x, dims, keepdim)


def mean_(x: Tensor, dims: Any = None, keepdim: bool = False) -> Tensor:
    """Return the mean over axes."""
    return reduced("ReduceMean", L.reduce_mean, x, dims, keepdim)


def max_(x: Tensor, dims: Any = None, keepdim: bool = False) -> Tensor:
    """Return the maximum over axes."""
    if x.dtype == t.BOOL:
        return any_(x, dims, keepdim)
    return reduced("ReduceMax", L.reduce_max, x, dims, keepdim)


def min_(x: Tensor, dims: Any = None, keepdim: bool = False) -> Tensor:
    """Return the minimum over axes."""
    if x.dtype == t.BOOL:
        return all_(x, dims, keepdim)
    return reduced("ReduceMin", L.reduce_min, x, dims, keepdim)


def any_(x: Tensor, dims: Any = None, keepdim: bool = False) -> Tensor:
    """Return True if any element is true, over axes."""
    if not axes_of(x, dims):
        return truth(x)
    return cast(max_(cast(truth(x), t.INT32), dims, keepdim), t.BOOL)


def all_(x: Tensor, dims: Any = None, keepdim: bool = False) -> Tensor:
    """Return True if all elements are true, over axes."""
    if not axes_of(x, dims):
        return truth(x)
    return cast(min_(cast(truth(x), t.INT32), dims, keepdim), t.BOOL)


def _summed(x: Tensor, dtype: Any) -> Tensor:
    """Convert as torch does before sums: integers become int64."""
    if dtype is not None:
        return cast(x, core_dtype(dtype))
    return x if t.kind(x.dtype) in ("float", "complex") else cast(x, t.INT64)


@aten("sum.default", "sum.dim_IntList")
def _sum(x: Tensor, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return sum_(_summed(x, dtype), dims, keepdim)


@aten("mean.default", "mean.dim")
def _mean(x: Tensor, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return mean_(x if dtype is None else cast(x, core_dtype(dtype)), dims, keepdim)


@aten("nansum.default")
def _nansum(x: Tensor, dims: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    x = _summed(x, dtype)
    return sum_(where_(nan_(x), like(x, 0), x), dims, keepdim)


@aten("prod.default")
def _prod(x: Tensor, *, dtype: Any = None) -> Tensor:
    return reduced("ReduceProd", L.reduce_product, _summed(x, dtype), None, False)


@aten("prod.dim_int", "prims.prod.default")
def _prod_dim(x: Tensor, dim: Any, keepdim: bool = False, *, dtype: Any = None, **_: Any) -> Tensor:
    return reduced("ReduceProd", L.reduce_product, _summed(x, dtype), dim, keepdim)


@aten("amax.default")
def _amax(x: Tensor, dims: Any = (), keepdim: bool = False) -> Tensor:
    return max_(x, dims, keepdim)


@aten("amin.default")
def _amin(x: Tensor, dims: Any = (), keepdim: bool = False) -> Tensor:
    return min_(x, dims, keepdim)


@aten("aminmax.default")
def _aminmax(x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return min_(x, dim, keepdim), max_(x, dim, keepdim)


@aten("max.default")
def _max(x: Tensor) -> Tensor:
    return max_(x)


@aten("min.default")
def _min(x: Tensor) -> Tensor:
    return min_(x)


def _best(name: str, core: Reduce, x: Tensor, dim: int, keepdim: bool) -> Tensor:
    if x.rank == 0:
        return constant(0, t.INT64)
    dim = L.normalized_axis(dim, x.rank)
    x = cast(x, t.INT32) if x.dtype == t.BOOL else x
    return node(name, x, axis=dim, keepdims=int(keepdim), body=lambda y: [core(y, dim, keepdim)])  # type: ignore[no-any-return]


@aten("max.dim")
def _max_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return max_(x, dim, keepdim), _best("ArgMax", L.argmax, x, dim, keepdim)


@aten("min.dim")
def _min_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return min_(x, dim, keepdim), _best("ArgMin", L.argmin, x, dim, keepdim)


def _argument(name: str, core: Reduce) -> Callable[..., Tensor]:
    def function(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        if dim is not None:
            return _best(name, core, x, dim, keepdim)
        index = _best(name, core, reshaped(x, [product(x.shape)]), 0, False)
        return reshaped(index, [1] * x.rank) if keepdim else index

    return function


aten("argmax.default")(_argument("ArgMax", L.argmax))
aten("argmin.default")(_argument("ArgMin", L.argmin))


@aten("any.default", "any.dim", "any.dims", "_is_any_true.default")
def _any(x: Tensor, dims: Any = None, keepdim: bool = False) -> Tensor:
    return _as_torch(x, any_(x, dims, keepdim))


@aten("all.default", "all.dim", "all.dims", "_is_all_true.default")
def _all(x: Tensor, dims: Any = None, keepdim: bool = False) -> Tensor:
    return _as_torch(x, all_(x, dims, keepdim))


def _as_torch(x: Tensor, answer: Tensor) -> Tensor:
    """Return an answer as booleans; for bytes, torch answers with bytes."""
    return cast(answer, t.UINT8) if x.dtype == t.UINT8 else answer


@aten("count_nonzero.default", "count_nonzero.dim_IntList")
def _count_nonzero(x: Tensor, dims: Any = None) -> Tensor:
    return sum_(cast(truth(x), t.INT64), dims)


@aten("logsumexp.default", "special_logsumexp.default")
def _logsumexp(x: Tensor, dims: Any, keepdim: bool = False) -> Tensor:
    x = floating(x)
    return reduced("ReduceLogSumExp", _log_sum_exp, x, dims, keepdim)


def _log_sum_exp(x: Tensor, axes: Sequence[int], keepdim: bool) -> Tensor:
    most = L.reduce_max(x, axes, True)
    most = L.where(L.is_infinite(most), 0, most)
    total = L.log(L.reduce_sum(L.exp(x - most), axes, True)) + most
    return total if keepdim else L.squeeze(total, axes)


def variance(x: Tensor, dims: Any, correction: float, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Return variance and mean over axes."""
    axes = axes_of(x, dims)
    mean = mean_(x, axes, True)
    centred = sub_(x, mean)
    count = L.size_tensor([product([x.shape[a] for a in axes])], ())
    if correction == 0:
        result = mean_(mul_(centred, centred), axes, keepdim)
    else:
        divisor = L.maximum(cast(count, x.dtype) - like(x, correction), 0)
        result = div_(sum_(mul_(centred, centred), axes, keepdim), divisor)
    return result, mean if keepdim else _dropped(mean, axes)


def _dropped(x: Tensor, axes: Sequence[int]) -> Tensor:
    shape = [size for i, size in enumerate(x.shape) if i not in axes]
    return onnx.Squeeze(x, constant(list(axes)), body=lambda y, _: [L.reshape(y, shape)]) if axes else x


def _deviation(name: str, root: bool, pair: bool) -> None:
    def function(x: Tensor, *args: Any, unbiased: Any = None, correction: Any = None, keepdim: bool = False) -> Any:
        dims, amount = None, 1.0 if unbiased is None else float(unbiased)
        rest = list(args)
        if rest and isinstance(rest[0], bool):
            amount = float(rest.pop(0))
        elif rest:
            dims = rest.pop(0)
            if rest and isinstance(rest[0], bool):
                amount = float(rest.pop(0))
            if rest and isinstance(rest[0], bool):
                keepdim = rest.pop(0)
        if correction is not None:
            amount = float(correction)
        result, mean = variance(x, dims, amount, keepdim)
        if root:
            result = pointwise("Sqrt", L.sqrt, result)
        return (result, mean) if pair else result

    aten(*(f"{name}.{overload}" for overload in ("default", "dim", "correction")))(function)


_deviation("var", root=False, pair=False)
_deviation("std", root=True, pair=False)
_deviation("var_mean", root=False, pair=True)
_deviation("std_mean", root=True, pair=True)


# Norms.


@aten("norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim_dtype")
@aten("linalg_vector_norm.default")
def vector_norm(x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """Return the norm of order ``ord`` over axes."""
    x = floating(x) if dtype is None else cast(x, core_dtype(dtype))
    ord = 2.0 if ord is None else float(ord)
    if ord == 2:
        return reduced("ReduceL2", _l2, x, dim, keepdim) if axes_of(x, dim) else pointwise("Abs", L.abs_, x)
    size = pointwise("Abs", L.abs_, x)
    if ord == 1:
        return reduced("ReduceL1", lambda y, axes, keep: L.reduce_sum(L.abs_(y), axes, keep), x, dim, keepdim)
    if ord == math.inf:
        return max_(size, dim, keepdim)
    if ord == -math.inf:
        return min_(size, dim, keepdim)
    if ord == 0:
        return sum_(cast(truth(x), x.dtype), dim, keepdim)
    powers = sum_(pointwise("Pow", lambda a, b: a**b, size, like(x, ord)), dim, keepdim)
    return L.norm_of(powers, ord)


def _l2(x: Tensor, axes: Sequence[int], keepdim: bool) -> Tensor:
    return L.norm_of(L.reduce_sum(x * x, axes, keepdim))


# Cumulative functions.


@aten("cumsum.default")
def cumsum(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """Return the cumulative sums along an axis."""
    x = _summed(x, dtype)
    if x.rank == 0:
        return x
    if x.dtype not in (t.FLOAT, t.DOUBLE, t.INT32, t.INT64):
        return L.cumulative("add", x, dim)
    axis = L.normalized_axis(dim, x.rank)
    return onnx.CumSum(x, constant(axis), body=lambda y, _: [L.cumulative("add", y, axis)])  # type: ignore[no-any-return]


@aten("cumprod.default")
def _cumprod(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    x = _summed(x, dtype)
    return L.cumulative("mul", x, dim) if x.rank else x


@aten("logcumsumexp.default")
def _logcumsumexp(x: Tensor, dim: int) -> Tensor:
    most = max_(x, dim, True)
    shifted = pointwise("Exp", L.exp, sub_(x, most))
    return add_(pointwise("Log", L.log, cumsum(shifted, dim)), most)


@aten("diff.default")
def _diff(x: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None) -> Tensor:
    parts = [part for part in (prepend, x, append) if part is not None]
    x = L.concat(parts, dim) if len(parts) > 1 else x
    for _ in range(n):
        size = x.shape[dim]
        after, before = L.slice_(x, dim, 1, size), L.slice_(x, dim, 0, size - 1)
        x = after ^ before if x.dtype == t.BOOL else after - before
    return x


@aten("trace.default")
def _trace(x: Tensor) -> Tensor:
    rows, columns = L.unsqueeze(L.arange(x.shape[0]), [1]), L.unsqueeze(L.arange(x.shape[1]), [0])
    return L.reduce_sum(L.where(L.equal(rows, columns), _summed(x, None), 0))


@aten("equal.default")
def _all_equal(x: Tensor, y: Tensor) -> Tensor:
    return all_(equal_(x, y))


@aten("isclose.default")
def _isclose(x: Tensor, y: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    x, y = floating(x), floating(y)
    bound = add_(mul_(pointwise("Abs", L.abs_, y), like(y, rtol)), like(y, atol))
    near = pointwise("LessOrEqual", lambda a, b: a <= b, pointwise("Abs", L.abs_, sub_(x, y)), bound)
    close = pointwise("Or", lambda a, b: a | b, near, equal_(x, y))
    return pointwise("Or", lambda a, b: a | b, close, mul_(nan_(x), nan_(y))) if equal_nan else close


@aten("allclose.default")
def _allclose(x: Tensor, y: Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    return all_(_isclose(x, y, rtol, atol, equal_nan))
