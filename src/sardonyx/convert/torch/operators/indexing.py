"""Elements at indices and masks: reads, writes and counted positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.convert.torch.operators.elementwise import where_
from sardonyx.convert.torch.operators.promotion import cast, tensor_of
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.convert.torch.operators.sizes import clamped, common_shape, expanded, reshaped, size_of
from sardonyx.core import language as L
from sardonyx.core.dim import Size, dim_max, dim_min
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t
from sardonyx.ops.nodes import onnx

_REDUCTIONS = {
    "sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min", "mean": "add",
}  # fmt: skip
"""ONNX reductions of scatters by torch's names."""


def axis_of(axis: int, x: Tensor) -> int:
    """Return an axis counted from the front; a scalar has one axis."""
    return L.normalized_axis(int(axis), max(x.rank, 1))


def as_long(index: Tensor) -> Tensor:
    """Return indices as int64."""
    return cast(index, t.INT64)


def scalar_as_vector(x: Tensor) -> Tensor:
    """Return a scalar with one axis; other tensors unchanged."""
    return x if x.rank else reshaped(x, [1])


def is_mask(index: Tensor) -> bool:
    """Return True for an index of booleans, or of bytes, which torch treats as booleans."""
    return index.dtype in (t.BOOL, t.UINT8)


def positions(mask: Tensor) -> Tensor:
    """Return the index vectors of elements other than zero, one a row."""
    return onnx.Transpose(onnx.NonZero(mask), perm=[1, 0])  # type: ignore[no-any-return]


# Reads.


@aten("index_select.default")
def _index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    if not x.rank:
        return x
    return onnx.Gather(x, scalar_as_vector(index), axis=axis_of(dim, x))  # type: ignore[no-any-return]


@aten("gather.default")
def _gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    if not x.rank or not index.rank:
        return onnx.Gather(scalar_as_vector(x), as_long(index), axis=0)  # type: ignore[no-any-return]
    return onnx.GatherElements(x, as_long(index), axis=axis_of(dim, x))  # type: ignore[no-any-return]


@aten("take.default")
def _take(x: Tensor, index: Tensor) -> Tensor:
    return onnx.Gather(reshaped(x, [L.product(x.shape)]), as_long(index), axis=0)  # type: ignore[no-any-return]


@aten("put.default")
def _put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    flat = reshaped(x, [L.product(x.shape)])
    at, values = (reshaped(v, [L.product(v.shape)]) for v in (index, source))
    return reshaped(_scattered(flat, 0, at, values, "add" if accumulate else "none"), x.shape)


@aten("take_along_dim.default")
def _take_along_dim(x: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    if dim is None:
        flat = reshaped(indices, [L.product(indices.shape)])
        return onnx.GatherElements(reshaped(x, [L.product(x.shape)]), as_long(flat), axis=0)  # type: ignore[no-any-return]
    axis = axis_of(dim, x)
    shared = [
        None if i == axis else b if a == 1 else a for i, (a, b) in enumerate(zip(x.shape, indices.shape, strict=True))
    ]
    wide = expanded(x, [x.shape[axis] if size is None else size for size in shared])
    at = expanded(indices, [indices.shape[axis] if size is None else size for size in shared])
    return onnx.GatherElements(wide, as_long(at), axis=axis)  # type: ignore[no-any-return]


@aten("nonzero.default", "argwhere.default")
def _nonzero(x: Tensor) -> Tensor:
    return positions(x)


@aten("nonzero_static.default")
def _nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    rows = L.concat([positions(x), L.full((size, x.rank), fill_value, t.INT64)], 0)
    return L.slice_(rows, 0, 0, size)


@aten("nonzero_numpy.default", "where.default")
def _nonzero_numpy(x: Tensor) -> list[Tensor]:
    x = scalar_as_vector(x)
    entries = onnx.NonZero(x)
    return [L.entry(entries, axis) for axis in range(x.rank)]


@aten("masked_select.default")
def _masked_select(x: Tensor, mask: Tensor) -> Tensor:
    shape = common_shape(x, mask)
    x, mask = expanded(x, shape), expanded(mask, shape)
    count = L.product(shape)
    return onnx.Compress(reshaped(x, [count]), reshaped(mask, [count]), axis=0)  # type: ignore[no-any-return]


class _Selection:
    """Indices of several axes, as index vectors of the first axes of a permuted tensor.

    Args:
        x: The indexed tensor.
        indices: Indices or masks by axis; None for a whole axis.
    """

    def __init__(self, x: Tensor, indices: Sequence[Tensor | None]) -> None:
        self.x = x
        at: dict[int, Tensor] = {}
        axis = 0
        for index in indices:
            if index is None:
                axis += 1
            elif is_mask(index):
                entries = onnx.NonZero(index)
                for i in range(index.rank):
                    at[axis + i] = L.entry(entries, i)
                axis += index.rank
            else:
                at[axis] = index
                axis += 1
        self.axes = sorted(at)
        rank = max((index.rank for index in at.values()), default=0)
        same = {tuple(index.shape) for index in at.values()}
        self.shape: tuple[Size, ...] = next(iter(same)) if len(same) == 1 else common_shape(*at.values())
        self.rank = rank
        self.indices = [expanded(as_long(at[axis]), self.shape) for axis in self.axes]
        others = [axis for axis in range(x.rank) if axis not in at]
        self.order = [*self.axes, *others]
        adjacent = bool(self.axes) and self.axes == list(range(self.axes[0], self.axes[0] + len(self.axes)))
        self.before = self.axes[0] if adjacent else 0

    def vectors(self) -> Tensor:
        """Return the index vectors on a last axis."""
        return onnx.Concat(*[onnx.Unsqueeze(i, L.constant([-1])) for i in self.indices], axis=-1)  # type: ignore[no-any-return]

    def first(self) -> Tensor:
        """Return the tensor with the indexed axes first."""
        return self._transposed(self.x, self.order)

    def result_order(self) -> list[int]:
        """Return the permutation from indexed axes first to torch's slot of them."""
        return [
            *range(self.rank, self.rank + self.before), *range(self.rank),
            *range(self.rank + self.before, self.rank + self.x.rank - len(self.axes)),
        ]  # fmt: skip

    def read(self) -> Tensor:
        """Return the selected elements."""
        if len(self.axes) == 1:
            return onnx.Gather(self.x, self.indices[0], axis=self.axes[0])  # type: ignore[no-any-return]
        return self._transposed(onnx.GatherND(self.first(), self.vectors()), self.result_order())

    def write(self, values: Tensor, reduction: str) -> Tensor:
        """Return the tensor with other values at the selected elements."""
        rest = [self.x.shape[axis] for axis in self.order[len(self.axes) :]]
        shape = [*rest[: self.before], *self.shape, *rest[self.before :]]
        order = self.result_order()
        inverse = [order.index(i) for i in range(len(order))]
        updates = self._transposed(expanded(values, shape), inverse)
        options = {} if reduction == "none" else {"reduction": reduction}
        written = onnx.ScatterND(self.first(), self.vectors(), updates, **options)
        return self._transposed(written, [self.order.index(i) for i in range(len(self.order))])

    @staticmethod
    def _transposed(x: Tensor, order: Sequence[int]) -> Tensor:
        if list(order) == list(range(len(order))):
            return x
        return onnx.Transpose(x, perm=list(order))  # type: ignore[no-any-return]


@aten("index.Tensor", "_unsafe_index.Tensor")
def _index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    if all(index is None for index in indices):
        return x
    only = indices[0] if len(indices) == 1 else None
    if only is not None and is_mask(only) and only.rank == 1 and x.rank:
        return onnx.Compress(x, cast(only, t.BOOL), axis=0)  # type: ignore[no-any-return]
    if only is not None and is_mask(only) and not only.rank:
        return onnx.Compress(onnx.Unsqueeze(x, L.constant([0])), reshaped(cast(only, t.BOOL), [1]), axis=0)  # type: ignore[no-any-return]
    return _Selection(x, indices).read()


# Writes.


@aten("index_put.default", "_unsafe_index_put.default", "index_put_.default", "_index_put_impl.default")
def _index_put(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, unsafe: bool = False
) -> Tensor:
    values = cast(values, x.dtype)
    only = indices[0] if len(indices) == 1 else None
    if only is not None and is_mask(only) and not values.rank and not accumulate:
        mask = cast(only, t.BOOL)
        return where_(reshaped(mask, [*mask.shape, *[1] * (x.rank - mask.rank)]), values, x)
    if x.dtype == t.BOOL:
        written = _Selection(cast(x, t.UINT8), indices).write(cast(values, t.UINT8), "max" if accumulate else "none")
        return cast(written, t.BOOL)
    return _Selection(x, indices).write(values, "add" if accumulate else "none")


def _scattered(x: Tensor, dim: int, index: Tensor, updates: Tensor, reduction: str = "none") -> Tensor:
    scalar = not x.rank
    x, index, updates = scalar_as_vector(x), scalar_as_vector(as_long(index)), scalar_as_vector(updates)
    if updates.shape != index.shape:
        for axis, size in enumerate(index.shape):
            updates = L.slice_(updates, axis, 0, size)
    options = {} if reduction == "none" else {"reduction": reduction}
    result = onnx.ScatterElements(x, index, cast(updates, x.dtype), axis=axis_of(dim, x), **options)
    return reshaped(result, []) if scalar else result


@aten("scatter.src")
def _scatter(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scattered(x, dim, index, src)


@aten("scatter.value")
def _scatter_value(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    return _scattered(x, dim, index, expanded(tensor_of(value, x.dtype), index.shape))


@aten("scatter.reduce")
def _scatter_reduce_named(x: Tensor, dim: int, index: Tensor, src: Tensor, *, reduce: str) -> Tensor:
    return _scattered(x, dim, index, src, _REDUCTIONS[reduce])


@aten("scatter.value_reduce")
def _scatter_value_reduce(x: Tensor, dim: int, index: Tensor, value: Any, *, reduce: str) -> Tensor:
    return _scattered(x, dim, index, expanded(tensor_of(value, x.dtype), index.shape), _REDUCTIONS[reduce])


@aten("scatter_add.default")
def _scatter_add(x: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scattered(x, dim, index, src, "add")


@aten("scatter_reduce.two")
def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Combine values per index; the mean of integers rounds down."""
    ones = L.ones_like(index)
    counts = _scattered(L.zeros_like(cast(x, t.INT64)), dim, index, ones, "add")
    touched = counts > 0
    base = x
    if not include_self:
        base = where_(touched, tensor_of(_identity(reduce, x.dtype), x.dtype), x)
    result = _scattered(base, dim, index, src, _REDUCTIONS[reduce])
    if reduce != "mean":
        return result
    total = counts + 1 if include_self else L.maximum(counts, 1)
    if t.is_float(x.dtype):
        return result / cast(total, x.dtype)
    wide = cast(result, t.INT64)
    return cast((wide - L.floor_mod(wide, total)) / total, x.dtype)


def _identity(reduce: str, dtype: t.DType) -> Any:
    if reduce in ("sum", "mean", "add"):
        return 0
    if reduce in ("prod", "multiply"):
        return 1
    if t.is_float(dtype):
        return float("-inf") if reduce == "amax" else float("inf")
    limits = np.iinfo(t.numpy_dtype(dtype))
    return limits.min if reduce == "amax" else limits.max


def _along_axis(x: Tensor, dim: int, index: Tensor, shape: Sequence[Size]) -> Tensor:
    """Return a vector of indices of one axis, repeated to the shape of updates."""
    axis = axis_of(dim, x)
    slot = [1] * max(x.rank, 1)
    index = scalar_as_vector(as_long(index))
    return expanded(reshaped(index, [*slot[:axis], index.shape[0], *slot[axis + 1 :]]), shape)


@aten("index_add.default")
def _index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    source = cast(source, x.dtype)
    if alpha != 1:
        source = source * tensor_of(alpha, x.dtype)
    source = scalar_as_vector(source)
    return _scattered(x, dim, _along_axis(x, dim, index, source.shape), source, "add")


@aten("index_copy.default")
def _index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    source = scalar_as_vector(source)
    return _scattered(x, dim, _along_axis(x, dim, index, source.shape), source)


@aten("index_fill.int_Scalar", "index_fill.int_Tensor")
def _index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    index = scalar_as_vector(index)
    axis = axis_of(dim, x)
    shape = [index.shape[0] if a == axis else size for a, size in enumerate(scalar_as_vector(x).shape)]
    return _scattered(x, dim, _along_axis(x, dim, index, shape), expanded(tensor_of(value, x.dtype), shape))


@aten("index_reduce.default")
def _index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    source = scalar_as_vector(source)
    at = _along_axis(x, dim, index, source.shape)
    return scatter_reduce(x, dim, at, source, reduce, include_self=include_self)


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor:
    return where_(cast(mask, t.BOOL), tensor_of(value, x.dtype), x)


@aten("masked_scatter.default")
def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    shape = common_shape(x, mask)
    x, mask = expanded(x, shape), expanded(cast(mask, t.BOOL), shape)
    count = L.product(shape)
    order = L.cumulative("add", cast(L.reshape(mask, [count]), t.INT64), 0) - 1
    at = L.maximum(L.reshape(order, shape), 0)
    limit = L.product(source.shape)
    at = L.minimum(at, L.cast(L.number(dim_max(limit - 1, 0)), t.INT64))
    return where_(mask, onnx.Gather(reshaped(source, [limit]), at, axis=0), x)


@aten("select_scatter.default")
def _select_scatter(x: Tensor, src: Tensor, dim: int, index: Any) -> Tensor:
    axis = axis_of(dim, x)
    start = clamped(size_of(index), x.shape[axis])
    return _replaced(x, L.unsqueeze(cast(src, x.dtype), [axis]), axis, start, start + 1)


@aten("slice_scatter.default")
def _slice_scatter(x: Tensor, src: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Tensor:
    axis = axis_of(dim, x)
    size = x.shape[axis]
    low = clamped(size_of(0 if start is None else start), size)
    high = dim_max(clamped(size_of(size if end is None else end), size), low)
    src = cast(src, x.dtype)
    if step == 1:
        return _replaced(x, src, axis, low, high)
    index = L.arange(src.shape[axis]) * int(step) + L.number(low)
    return _scattered(x, axis, _along_axis(x, axis, index, src.shape), src)


def _replaced(x: Tensor, part: Tensor, axis: int, start: Size, limit: Size) -> Tensor:
    """Return x with other entries from ``start`` to ``limit`` of an axis."""
    shape = [limit - start if a == axis else size for a, size in enumerate(x.shape)]
    parts = [expanded(part, shape)]
    if start != 0:
        parts.insert(0, L.slice_(x, axis, 0, start))
    if limit != x.shape[axis]:
        parts.append(L.slice_(x, axis, limit, x.shape[axis]))
    return L.concat(parts, axis)


# Diagonals.


def _diagonal_length(rows: Size, columns: Size, offset: int) -> Size:
    return dim_max(dim_min(rows + min(offset, 0), columns - max(offset, 0)), 0)


def _diagonal_indices(length: Size, offset: int) -> Tensor:
    """Return the index vectors [length, 2] of a diagonal."""
    steps = L.arange(length)
    return L.concat([L.unsqueeze(steps + max(-offset, 0), [1]), L.unsqueeze(steps + max(offset, 0), [1])], 1)


@aten("diagonal_scatter.default")
def _diagonal_scatter(x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    a, b = axis_of(dim1, x), axis_of(dim2, x)
    order = [a, b, *(axis for axis in range(x.rank) if axis not in (a, b))]
    length = _diagonal_length(x.shape[a], x.shape[b], offset)
    updates = L.permute(cast(src, x.dtype), [src.rank - 1, *range(src.rank - 1)])
    written = L.scatter_nd(L.permute(x, order), _diagonal_indices(length, offset), updates, from_end=False)
    return L.permute(written, [order.index(i) for i in range(x.rank)])


@aten("repeat_interleave.Tensor")
def repeat_interleave(repeats: Tensor, *, output_size: Any = None) -> Tensor:
    """Return each position as often as its count."""
    ends = L.cumulative("add", as_long(repeats), 0)
    total = size_of(output_size) if output_size is not None else L.one_size(L.reduce_sum(as_long(repeats)), "a count")
    return L.reduce_sum(cast(L.unsqueeze(L.arange(total), [1]) >= ends, t.INT64), [1])


@aten("repeat_interleave.self_Tensor")
def _repeat_interleave_tensor(x: Tensor, repeats: Tensor, dim: int | None = None, *, output_size: Any = None) -> Tensor:
    if dim is None:
        x, dim = reshaped(x, [L.product(x.shape)]), 0
    axis = axis_of(dim, x)
    counts = expanded(scalar_as_vector(repeats), [x.shape[axis]])
    return onnx.Gather(x, repeat_interleave(counts, output_size=output_size), axis=axis)  # type: ignore[no-any-return]


@aten("copy.default")
def _copy(x: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
    src = cast(src, x.dtype)
    # torch specializes sizes of 1: an open size is that of the destination.
    repeated = src.rank != x.rank or any(a == 1 and b != 1 for a, b in zip(src.shape, x.shape, strict=True))
    return expanded(src, x.shape) if repeated else src
