"""Sorting, selection by rank, counting, and search in sorted values."""

from __future__ import annotations

import math
from typing import Any

from sardonyx.convert.torch.operators.elementwise import where_
from sardonyx.convert.torch.operators.indexing import as_long, axis_of, scalar_as_vector
from sardonyx.convert.torch.operators.promotion import cast, tensor_of
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.convert.torch.operators.sizes import reshaped, size_of
from sardonyx.core import language as L
from sardonyx.core.dim import Size, dim_max, floor_div
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t
from sardonyx.ops.nodes import onnx

_SORTED_TYPES = (t.FLOAT, t.DOUBLE, t.INT32, t.INT64)
"""Element types that engines sort."""


def _sortable(x: Tensor) -> Tensor:
    if x.dtype in _SORTED_TYPES:
        return x
    return cast(x, t.FLOAT if t.is_float(x.dtype) else t.INT32 if x.dtype.bitwidth < 32 else t.INT64)


def ordered(x: Tensor, axis: int, count: Size, largest: bool) -> tuple[Tensor, Tensor]:
    """Return the first entries of an axis in order, and their indices; equal ones in order of their indices."""
    if not x.rank:
        return x, L.full((), 0, t.INT64)
    keys = _sortable(x)
    values, indices = onnx.TopK(
        keys, L.size_tensor([count]), axis=axis_of(axis, x), largest=int(largest), sorted=1, outputs=2
    )
    return cast(values, x.dtype), indices


@aten("sort.default")
def _sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return ordered(x, dim, x.shape[axis_of(dim, x)] if x.rank else 1, descending)


@aten("sort.stable")
def _sort_stable(
    x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    return _sort(x, dim, descending)


@aten("argsort.default")
def _argsort(x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    return _sort(x, dim, descending)[1]


@aten("argsort.stable")
def _argsort_stable(x: Tensor, *, stable: bool = True, dim: int = -1, descending: bool = False) -> Tensor:
    return _sort(x, dim, descending)[1]


@aten("msort.default")
def _msort(x: Tensor) -> Tensor:
    return _sort(x, 0)[0]


@aten("topk.default")
def _topk(x: Tensor, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    return ordered(x, dim, size_of(k), largest)


def _ranked(x: Tensor, axis: int, rank: Size, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Return the entry of an axis with ``rank`` smaller ones in sorted order, and the index."""
    if not x.rank:
        return x, L.full((), 0, t.INT64)
    axis = axis_of(axis, x)
    values, indices = ordered(x, axis, rank + 1, largest=False)
    shape = [1 if a == axis else size for a, size in enumerate(x.shape)]
    final = [size for a, size in enumerate(shape) if keepdim or a != axis]
    return tuple(reshaped(L.slice_(y, axis, rank, rank + 1), final) for y in (values, indices))  # type: ignore[return-value]


@aten("kthvalue.default")
def _kthvalue(x: Tensor, k: Any, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _ranked(x, dim, size_of(k) - 1, keepdim)


def _lower_middle(size: Size) -> Size:
    return (size - 1) // 2 if isinstance(size, int) else floor_div(size - 1, 2)


@aten("median.dim")
def _median_along(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    value, index = _ranked(x, dim, _lower_middle(x.shape[axis_of(dim, x)]) if x.rank else 0, keepdim)
    if not x.rank or not t.is_float(x.dtype):
        return value, index
    missing = L.cast(L.is_nan(x), t.INT32)
    axis = axis_of(dim, x)
    has_missing = L.cast(L.reduce_max(missing, [axis], keepdims=keepdim), t.BOOL)
    first = L.argmax(missing, axis, keepdims=keepdim)
    return where_(has_missing, tensor_of(math.nan, x.dtype), value), where_(has_missing, first, index)


@aten("median.default")
def _median(x: Tensor) -> Tensor:
    return _median_along(reshaped(x, [L.product(x.shape)]), 0)[0]


@aten("nanmedian.dim")
def _known_median_along(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the medians of the numbers that are not NaN; NaN where there are none."""
    if not x.rank or not t.is_float(x.dtype):
        return _median_along(x, dim, keepdim)
    axis = axis_of(dim, x)
    missing = L.is_nan(x)
    _, order = ordered(where_(missing, tensor_of(math.inf, x.dtype), x), axis, x.shape[axis], largest=False)
    # Missing numbers last, behind infinities too.
    behind = L.gather_elements(cast(missing, t.INT64), order, axis)
    order = L.gather_elements(order, ordered(behind, axis, x.shape[axis], largest=False)[1], axis)
    known = L.reduce_sum(cast(~missing, t.INT64), [axis], keepdims=True)
    middle = L.maximum(known - 1, 0) / 2
    index = L.gather_elements(order, middle, axis)
    value = L.gather_elements(x, index, axis)
    return (value, index) if keepdim else (L.squeeze(value, [axis]), L.squeeze(index, [axis]))


@aten("nanmedian.default")
def _known_median(x: Tensor) -> Tensor:
    return _known_median_along(reshaped(x, [L.product(x.shape)]), 0)[0]


@aten("mode.default")
def _mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if not x.rank:
        return x, L.full((), 0, t.INT64)
    axis = axis_of(dim, x)
    last = L.permute(x, [*(a for a in range(x.rank) if a != axis), axis])
    same = L.equal(L.unsqueeze(last, [-1]), L.unsqueeze(last, [-2]))
    counts = L.reduce_sum(cast(same, t.INT64), [-1])
    common = L.equal(counts, L.reduce_max(counts, [-1], keepdims=True))
    largest = L.reduce_max(last, [-1], keepdims=True)
    value = L.reduce_min(where_(common, last, largest), [-1], keepdims=True)
    index = L.reduce_max(where_(L.equal(last, value), L.iota(last.shape, last.rank - 1), tensor_of(-1)), [-1])
    value = L.squeeze(value, [-1])
    return (L.unsqueeze(value, [axis]), L.unsqueeze(index, [axis])) if keepdim else (value, index)


# Running extremes.


def _running(x: Tensor, dim: int, kind: str) -> tuple[Tensor, Tensor]:
    scalar = not x.rank
    x = scalar_as_vector(x)
    axis = axis_of(dim, x)
    values = L.cumulative(kind, _sortable(x), axis)
    at = where_(L.equal(_sortable(x), values), L.iota(x.shape, axis), tensor_of(0))
    indices = L.cumulative("max", at, axis)
    values = cast(values, x.dtype)
    return (reshaped(values, []), reshaped(indices, [])) if scalar else (values, indices)


@aten("cummax.default")
def _cummax(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _running(x, dim, "max")


@aten("cummin.default")
def _cummin(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _running(x, dim, "min")


# Different values.


@aten("_unique2.default")
def _unique2(x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Any:
    flat = reshaped(x, [L.product(x.shape)])
    keys = _sortable(flat)
    values, _, inverse, counts = onnx.Unique(keys, sorted=1, outputs=4)
    # Results that the program does not request are empty.
    empty = L.full([0], 0, t.INT64)
    return (
        cast(values, x.dtype),
        reshaped(inverse, x.shape) if return_inverse else empty,
        counts if return_counts else empty,
    )


@aten("_unique.default")
def _unique(x: Tensor, sorted: bool = True, return_inverse: bool = False) -> Any:
    return _unique2(x, sorted, return_inverse)[:2]


@aten("unique_dim.default")
def _unique_dim(
    x: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    values, _, inverse, counts = onnx.Unique(_sortable(x), axis=axis_of(dim, x), sorted=1, outputs=4)
    return cast(values, x.dtype), inverse, counts


@aten("unique_consecutive.default")
def _unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> Any:
    axis = 0 if dim is None or not x.rank else L.normalized_axis(dim, x.rank)
    flat = reshaped(x, [L.product(x.shape)]) if dim is None or not x.rank else x
    count = flat.shape[axis]
    changes = L.not_equal(L.slice_(flat, axis, 1, count), L.slice_(flat, axis, 0, count - 1))
    if flat.rank > 1:
        changes = L.any_of(changes, [a for a in range(flat.rank) if a != axis])
    starts = L.concat([L.full([1], True, t.BOOL), changes], 0)
    group = L.cumulative("add", cast(starts, t.INT64), 0) - 1
    values = onnx.Compress(flat, starts, axis=axis)
    first = onnx.Compress(L.arange(count), starts, axis=0)
    ends = L.concat([L.slice_(first, 0, 1, first.shape[0]), L.reshape(L.number(count), [1])], 0)
    return values, group if dim is not None and x.rank else reshaped(group, x.shape), ends - first


@aten("unique_dim_consecutive.default")
def _unique_dim_consecutive(x: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False) -> Any:
    return _unique_consecutive(x, return_inverse, return_counts, dim)


# Search and counts.


def _insertion_points(sorted_values: Tensor, values: Tensor, right: bool, int32: bool) -> Tensor:
    """Return the number of sorted values below (or up to) each value; leading axes are batch axes."""
    leading = sorted_values.rank - 1
    if sorted_values.dtype != values.dtype:
        wide = t.DOUBLE if t.DOUBLE in (sorted_values.dtype, values.dtype) else t.FLOAT
        both_int = not t.is_float(sorted_values.dtype) and not t.is_float(values.dtype)
        wide = t.INT64 if both_int else wide
        sorted_values, values = cast(sorted_values, wide), cast(values, wide)
    inner = values.rank - leading
    bounds = L.unsqueeze(sorted_values, list(range(leading, leading + inner)))
    keys = L.unsqueeze(values, [-1])
    below = keys >= bounds if right else keys > bounds
    return cast(L.reduce_sum(cast(below, t.INT64), [-1]), t.INT32 if int32 else t.INT64)


@aten("searchsorted.Tensor", "searchsorted.Scalar")
def _searchsorted(
    sorted_sequence: Tensor, values: Any, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    if sorter is not None:
        sorted_sequence = onnx.GatherElements(sorted_sequence, as_long(sorter), axis=-1)
    keys = values if isinstance(values, Tensor) else tensor_of(values, sorted_sequence.dtype)
    if sorted_sequence.rank > 1 and keys.rank == sorted_sequence.rank:
        leading = sorted_sequence.rank - 1
        bounds = L.unsqueeze(sorted_sequence, [leading])
        below = L.unsqueeze(keys, [-1]) >= bounds if right or side == "right" else L.unsqueeze(keys, [-1]) > bounds
        return cast(L.reduce_sum(cast(below, t.INT64), [-1]), t.INT32 if out_int32 else t.INT64)
    return _insertion_points(sorted_sequence, keys, right or side == "right", out_int32)


@aten("bucketize.Tensor", "bucketize.Scalar")
def _bucketize(x: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    keys = x if isinstance(x, Tensor) else tensor_of(x, boundaries.dtype)
    return _insertion_points(boundaries, keys, right, out_int32)


@aten("bincount.default")
def _bincount(x: Tensor, weights: Tensor | None = None, minlength: Any = 0) -> Tensor:
    longest = L.one_size(L.maximum(L.reduce_max(L.concat([as_long(x), L.full([1], -1, t.INT64)], 0)) + 1, 0), "a count")
    length = dim_max(longest, size_of(minlength))
    values = L.full([x.shape[0]], 1, t.INT64)
    if weights is not None:
        values = weights if t.is_float(weights.dtype) else cast(weights, t.DOUBLE)
    zeros = L.full([length], L.zero(values.dtype), values.dtype)
    return onnx.ScatterElements(zeros, as_long(x), values, axis=0, reduction="add")  # type: ignore[no-any-return]


@aten("histc.default")
def _histc(x: Tensor, bins: int = 100, min: Any = 0, max: Any = 0) -> Tensor:
    flat = reshaped(x, [L.product(x.shape)])
    if float(min) == float(max):
        low, high = L.reduce_min(flat), L.reduce_max(flat)
        equal = L.equal(low, high)
        low, high = where_(equal, low - 1, low), where_(equal, high + 1, high)
    else:
        low, high = tensor_of(float(min), x.dtype), tensor_of(float(max), x.dtype)
    bin_of = cast(L.floor((flat - low) / (high - low) * bins), t.INT64)
    bin_of = where_(L.equal(flat, high), tensor_of(bins - 1), bin_of)
    valid = cast((flat >= low) & (flat <= high), x.dtype)
    counted = L.unsqueeze(valid, [1]) * cast(L.equal(L.unsqueeze(bin_of, [1]), L.arange(bins)), x.dtype)
    return L.reduce_sum(counted, [0])
