"""Elements moved: reshaped, cut, joined, gathered and scattered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sardonyx.core.dim import Size, product
from sardonyx.core.dim import equal as same
from sardonyx.core.eval.tensor import Operand, Tensor, apply, broadcast_to, constant, size_tensor
from sardonyx.core.ir import types as t
from sardonyx.core.language.elementwise import where
from sardonyx.core.language.sources import iota
from sardonyx.core.language.static_values import normalized_axes, normalized_axis, of_rank, static_size
from sardonyx.errors import ShapeError


def reshape(x: Tensor, shape: Sequence[Size]) -> Tensor:
    """The same elements in order, in other sizes."""
    shape = tuple(shape)
    return x if x.shape == shape else apply("reshape", x, shape=shape)


def of_shape(x: Tensor, shape: Sequence[Size], what: str) -> Tensor:
    """The tensor itself, which must have these sizes; a single one that is open is compared at run time.

    Raises:
        ShapeError: It has another rank, or a size that is proven different.
    """
    alike = [same(a, b) for a, b in zip(x.shape, shape, strict=False)]
    if x.rank != len(shape) or False in alike:
        needed = ", ".join(map(str, shape))
        raise ShapeError(f"{what} has shape [{', '.join(map(str, x.shape))}], and [{needed}] is needed.")
    return reshape(x, shape) if alike.count(None) == 1 else x


def permute(x: Tensor, axes: Sequence[int]) -> Tensor:
    """The axes in another order."""
    axes = normalized_axes(axes, x.rank)
    return x if axes == tuple(range(x.rank)) and len(axes) == x.rank else apply("permute", x, axes=axes)


def swap_axes(x: Tensor, a: int, b: int) -> Tensor:
    """Two axes exchanged."""
    order = list(range(x.rank))
    order[a], order[b] = order[b], order[a]
    return permute(x, order)


def unsqueeze(x: Tensor, axes: Sequence[int]) -> Tensor:
    """New axes of size 1, at positions in the result."""
    at = normalized_axes(axes, x.rank + len(axes))
    old = iter(x.shape)
    return reshape(x, [1 if axis in at else next(old) for axis in range(x.rank + len(at))])


def squeeze(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Without axes of size 1.

    Raises:
        ShapeError: One has another size.
    """
    at = normalized_axes(axes, x.rank)
    for axis in at:
        if isinstance(x.shape[axis], int) and x.shape[axis] != 1:
            raise ShapeError(f"axis {axis} has size {x.shape[axis]} and cannot be squeezed.")
    return reshape(x, [size for axis, size in enumerate(x.shape) if axis not in at])


def flatten_to(x: Tensor, axis: int) -> Tensor:
    """Two axes: those before ``axis``, and the others."""
    return reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))


def repeat(x: Tensor, axis: int, times: int) -> Tensor:
    """Every entry of an axis as often, one after the other."""
    at = normalized_axis(axis, x.rank) + 1
    spread = broadcast_to(unsqueeze(x, [at]), (*x.shape[:at], times, *x.shape[at:]))
    return reshape(spread, (*x.shape[: at - 1], x.shape[at - 1] * times, *x.shape[at:]))


def slice_(x: Tensor, axis: int, start: Size, limit: Size, stride: int = 1) -> Tensor:
    """A range along one axis, by a positive stride."""
    axis = normalized_axis(axis, x.rank)
    starts: list[Size] = [0] * x.rank
    limits, strides = list(x.shape), [1] * x.rank
    starts[axis], limits[axis], strides[axis] = start, limit, stride
    return apply("slice", x, starts=tuple(starts), limits=tuple(limits), strides=tuple(strides))


def entry(x: Tensor, index: int, axis: int = 0) -> Tensor:
    """One entry of an axis, which goes away."""
    return squeeze(slice_(x, axis, index, index + 1), [axis])


def pad(
    x: Tensor, low: Sequence[Size], high: Sequence[Size], value: Operand = 0, interior: Sequence[int] | None = None
) -> Tensor:
    """A value around, and between, the elements; negative amounts crop."""
    filler = value if isinstance(value, Tensor) else constant(value, x.dtype)
    between = tuple(interior) if interior is not None else (0,) * x.rank
    return apply("pad", x, filler, low=tuple(low), high=tuple(high), interior=between)


def concat(xs: Sequence[Tensor], axis: int) -> Tensor:
    """End to end along an axis."""
    axis = normalized_axis(axis, xs[0].rank)
    return xs[0] if len(xs) == 1 else apply("concat", *xs, axis=axis)


def reverse(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Back to front along axes."""
    return apply("reverse", x, axes=normalized_axes(axes, x.rank)) if len(axes) else x


def gather_nd(x: Tensor, indices: Tensor, batch: int = 0, *, from_end: bool = True) -> Tensor:
    """Elements, or rows, at index vectors: the last axis of ``indices``. Negative ones count from the end, or fail."""
    depth = static_size(indices, -1, "the length of index vectors")
    indices = reshape(indices, [*indices.shape[:-1], depth])
    at = _from_front(indices, x.shape[batch : batch + depth]) if from_end else indices
    return apply("gather", x, at, batch=batch)


def _from_front(indices: Tensor, limits: Sequence[Size]) -> Tensor:
    """Index vectors with negative ones counted from the front."""
    if indices.is_constant and (indices.known.size == 0 or indices.known.min() >= 0):
        return indices
    if not t.is_integer(indices.dtype) or t.kind(indices.dtype) == "uint":
        return indices
    return where(indices < 0, indices + size_tensor(limits, dtype=indices.dtype), indices)


def take(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Entries of one axis, in the shape of the indices; negative ones count from the end."""
    axis = normalized_axis(axis, x.rank)
    first = permute(x, [axis, *(a for a in range(x.rank) if a != axis)])
    found = gather_nd(first, unsqueeze(indices, [-1]))
    order = [*range(indices.rank, indices.rank + axis), *range(indices.rank), *range(indices.rank + axis, found.rank)]
    return permute(found, order)


def _along(indices: Tensor, axis: int, limit: Size, batch: int = 0) -> Tensor:
    """Index vectors, from an axis on, of the elements that indices along one axis name."""
    chosen = _from_front(unsqueeze(indices, [-1]), [limit])
    parts = [
        chosen if a == axis else unsqueeze(iota(indices.shape, a, indices.dtype), [-1])
        for a in range(batch, indices.rank)
    ]
    return concat(parts, -1)


def gather_elements(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """At every place of ``indices``, the element of ``x`` there but for ``axis``, where the index says."""
    axis, indices = normalized_axis(axis, x.rank), of_rank(indices, x.rank, "the tensor of indices")
    # Axes in front that both have in common are walked side by side: no index has to name them.
    differ = (a for a in range(axis) if not same(x.shape[a], indices.shape[a]))
    batch = next(differ, axis)
    return apply("gather", x, _along(indices, axis, x.shape[axis], batch), batch=batch)


ScatterKind = Literal["set", "add", "mul", "min", "max"]


def scatter_elements(x: Tensor, indices: Tensor, updates: Tensor, axis: int, kind: ScatterKind = "set") -> Tensor:
    """``x`` with updates at the places that ``gather_elements`` would read."""
    axis, indices = normalized_axis(axis, x.rank), of_rank(indices, x.rank, "the tensor of indices")
    return apply("scatter", x, _along(indices, axis, x.shape[axis]), updates, kind=kind, batch=0)


def scatter_nd(
    x: Tensor,
    indices: Tensor,
    updates: Tensor,
    kind: ScatterKind = "set",
    batch: int = 0,
    *,
    from_end: bool = True,
) -> Tensor:
    """``x`` with updates at index vectors; negative ones count from the end, or fail."""
    depth = static_size(indices, -1, "the length of index vectors")
    indices = reshape(indices, [*indices.shape[:-1], depth])
    at = _from_front(indices, x.shape[batch : batch + depth]) if from_end else indices
    return apply("scatter", x, at, updates, kind=kind, batch=batch)
