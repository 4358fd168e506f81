"""Data movement: reshape, slice, concatenate, gather and scatter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sardonyx.core.dim import Size, at_least, dim_min, product
from sardonyx.core.dim import equal as same
from sardonyx.core.eval.tensor import Operand, Tensor, apply, broadcast_to, constant, size_tensor
from sardonyx.core.ir import types as t
from sardonyx.core.language.elementwise import where
from sardonyx.core.language.sources import iota
from sardonyx.core.language.static_values import normalized_axes, normalized_axis, of_rank, static_size
from sardonyx.errors import ShapeError


def reshape(x: Tensor, shape: Sequence[Size]) -> Tensor:
    """Return the same elements in order, with other sizes."""
    shape = tuple(shape)
    return x if x.shape == shape else apply("reshape", x, shape=shape)


def of_shape(x: Tensor, shape: Sequence[Size], name: str) -> Tensor:
    """Return the tensor after checking its sizes; undecided sizes are checked at run time.

    Raises:
        ShapeError: The rank differs, or a size is proven different.
    """
    alike = [same(a, b) for a, b in zip(x.shape, shape, strict=False)]
    if x.rank != len(shape) or False in alike:
        expected = ", ".join(map(str, shape))
        raise ShapeError(f"expected the shape [{expected}] for {name}, got [{', '.join(map(str, x.shape))}].")
    undecided = alike.count(None)
    if undecided < 2:
        return reshape(x, shape) if undecided else x
    # The first slice tests that no size is too small, the second that none is too large.
    origin, steps = (0,) * x.rank, (1,) * x.rank
    most = apply("slice", x, starts=origin, limits=tuple(shape), strides=steps)
    return reshape(apply("slice", most, starts=origin, limits=x.shape, strides=steps), shape)


def of_size(x: Tensor, axis: int, size: Size, name: str) -> Tensor:
    """Return the tensor after checking the size of one axis; see :func:`of_shape`."""
    at = normalized_axis(axis, x.rank)
    return of_shape(x, [size if i == at else old for i, old in enumerate(x.shape)], name)


def at_most(x: Tensor, a: Size, b: Size, problem: str) -> Tensor:
    """Return the tensor after checking a ≤ b; an undecided order is checked at run time.

    Args:
        x: A tensor of rank 1 or more. If the order is undecided, its first size is written in another form.
        a: The lesser size.
        b: The greater size.
        problem: The problem if the order is proven wrong.

    Raises:
        ShapeError: a is proven greater than b.
    """
    answer = at_least(b, a)
    if answer is False:
        raise ShapeError(problem)
    return x if answer else reshape(x, (x.shape[0] + dim_min(a, b) - a, *x.shape[1:]))


def permute(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Reorder the axes."""
    axes = normalized_axes(axes, x.rank)
    return x if axes == tuple(range(x.rank)) and len(axes) == x.rank else apply("permute", x, axes=axes)


def swap_axes(x: Tensor, a: int, b: int) -> Tensor:
    """Exchange two axes."""
    order = list(range(x.rank))
    a, b = (normalized_axis(axis, x.rank) for axis in (a, b))
    order[a], order[b] = order[b], order[a]
    return permute(x, order)


def unsqueeze(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Insert axes of size 1, at positions in the result."""
    at = normalized_axes(axes, x.rank + len(axes))
    old = iter(x.shape)
    return reshape(x, [1 if axis in at else next(old) for axis in range(x.rank + len(at))])


def squeeze(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Remove axes of size 1.

    Raises:
        ShapeError: An axis has another size.
    """
    at = normalized_axes(axes, x.rank)
    for axis in at:
        if isinstance(x.shape[axis], int) and x.shape[axis] != 1:
            raise ShapeError(f"axis {axis} has size {x.shape[axis]} and cannot be squeezed.")
    return reshape(x, [size for axis, size in enumerate(x.shape) if axis not in at])


def flatten_to(x: Tensor, axis: int) -> Tensor:
    """Flatten to two axes: the axes before ``axis``, and the others."""
    return reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))


def repeat(x: Tensor, axis: int, times: int) -> Tensor:
    """Repeat each entry of an axis, copies adjacent."""
    at = normalized_axis(axis, x.rank) + 1
    spread = broadcast_to(unsqueeze(x, [at]), (*x.shape[:at], times, *x.shape[at:]))
    return reshape(spread, (*x.shape[: at - 1], x.shape[at - 1] * times, *x.shape[at:]))


def slice_(x: Tensor, axis: int, start: Size, limit: Size, stride: int = 1) -> Tensor:
    """Return a range along one axis, with a positive stride."""
    axis = normalized_axis(axis, x.rank)
    starts: list[Size] = [0] * x.rank
    limits, strides = list(x.shape), [1] * x.rank
    starts[axis], limits[axis], strides[axis] = start, limit, stride
    return apply("slice", x, starts=tuple(starts), limits=tuple(limits), strides=tuple(strides))


def entry(x: Tensor, index: int, axis: int = 0) -> Tensor:
    """Return one entry of an axis, without this axis."""
    return squeeze(slice_(x, axis, index, index + 1), [axis])


def pad(
    x: Tensor, low: Sequence[Size], high: Sequence[Size], value: Operand = 0, interior: Sequence[int] | None = None
) -> Tensor:
    """Insert a value around, and between, the elements; negative amounts crop."""
    filler = value if isinstance(value, Tensor) else constant(value, x.dtype)
    between = tuple(interior) if interior is not None else (0,) * x.rank
    return apply("pad", x, filler, low=tuple(low), high=tuple(high), interior=between)


def concat(xs: Sequence[Tensor], axis: int) -> Tensor:
    """Concatenate along an axis."""
    axis = normalized_axis(axis, xs[0].rank)
    return xs[0] if len(xs) == 1 else apply("concat", *xs, axis=axis)


def reverse(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Reverse along axes."""
    return apply("reverse", x, axes=normalized_axes(axes, x.rank)) if len(axes) else x


def gather_nd(x: Tensor, indices: Tensor, batch: int = 0, *, from_end: bool = True) -> Tensor:
    """Return elements, or rows, at index vectors: the last axis of ``indices``.

    Negative indices count from the end if ``from_end``, else are errors.
    """
    depth = static_size(indices, -1, "the length of index vectors")
    indices = reshape(indices, [*indices.shape[:-1], depth])
    at = _from_front(indices, x.shape[batch : batch + depth]) if from_end else indices
    return apply("gather", x, at, batch=batch)


def _from_front(indices: Tensor, limits: Sequence[Size]) -> Tensor:
    """Return index vectors with negative indices counted from the front."""
    if indices.is_constant and (indices.known.size == 0 or indices.known.min() >= 0):
        return indices
    if not t.is_integer(indices.dtype) or t.kind(indices.dtype) == "uint":
        return indices
    return where(indices < 0, indices + size_tensor(limits, dtype=indices.dtype), indices)


def take(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Return entries of one axis, in the shape of the indices; negative indices count from the end."""
    axis = normalized_axis(axis, x.rank)
    first = permute(x, [axis, *(a for a in range(x.rank) if a != axis)])
    gathered = gather_nd(first, unsqueeze(indices, [-1]))
    order = [
        *range(indices.rank, indices.rank + axis),
        *range(indices.rank),
        *range(indices.rank + axis, gathered.rank),
    ]
    return permute(gathered, order)


def _along(indices: Tensor, axis: int, limit: Size, batch: int = 0) -> Tensor:
    """Return index vectors, from axis ``batch`` on, for indices along one axis."""
    chosen = _from_front(unsqueeze(indices, [-1]), [limit])
    parts = [
        chosen if a == axis else unsqueeze(iota(indices.shape, a, indices.dtype), [-1])
        for a in range(batch, indices.rank)
    ]
    return concat(parts, -1)


def gather_elements(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Return for each position of ``indices`` the element of ``x`` there, with the index along ``axis``."""
    axis, indices = normalized_axis(axis, x.rank), of_rank(indices, x.rank, "the tensor of indices")
    if (rows := _of_rows(x, indices, axis)) is not None:
        return apply("gather", x, rows, batch=0)
    # Equal leading axes become batch axes, which index vectors do not contain.
    differ = (a for a in range(axis) if not same(x.shape[a], indices.shape[a]))
    batch = next(differ, axis)
    return apply("gather", x, _along(indices, axis, x.shape[axis], batch), batch=batch)


def _of_rows(x: Tensor, indices: Tensor, axis: int) -> Tensor | None:
    """Return index vectors [count, 1] if indices of elements are equal in whole rows of ``x``; None if not known."""
    if axis != 0 or x.rank < 2 or indices.op != "broadcast":
        return None
    (source,) = indices.operands
    shape = source.type.shape  # type: ignore[union-attr]
    if shape is None or any(size != 1 for size in shape[1:]) or not same(shape[0], indices.shape[0]):
        return None
    if not all(same(own, size) for own, size in zip(x.shape[1:], indices.shape[1:], strict=True)):
        return None
    return _from_front(reshape(source, (indices.shape[0], 1)), x.shape[:1])  # type: ignore[arg-type]


ScatterKind = Literal["set", "add", "mul", "min", "max"]


def scatter_elements(x: Tensor, indices: Tensor, updates: Tensor, axis: int, kind: ScatterKind = "set") -> Tensor:
    """Return ``x`` with updates at the positions that ``gather_elements`` reads."""
    axis, indices = normalized_axis(axis, x.rank), of_rank(indices, x.rank, "the tensor of indices")
    if (rows := _of_rows(x, indices, axis)) is not None:
        return apply("scatter", x, rows, updates, kind=kind, batch=0)
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
    """Return ``x`` with updates at index vectors; negative indices count from the end if ``from_end``."""
    depth = static_size(indices, -1, "the length of index vectors")
    indices = reshape(indices, [*indices.shape[:-1], depth])
    at = _from_front(indices, x.shape[batch : batch + depth]) if from_end else indices
    return apply("scatter", x, at, updates, kind=kind, batch=batch)
