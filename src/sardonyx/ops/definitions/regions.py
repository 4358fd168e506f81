"""Regions: boxes cut out of a tensor, and margins put around it.

Source: ONNX Operators, *Slice*, *Pad*, *CenterCropPad*. Places and margins may be sizes that only the run tells.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core import language as L
from sardonyx.core.dim import Bounds, Dim, Size, at_least, dim_max, dim_min, floor_div, substitute, symbols
from sardonyx.core.ir import types as t
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError, ShapeError
from sardonyx.ops.registry import operator

_END = (1 << 31) - 1
"""A place as far out as this is the end of an axis whose size is open: what the standard recommends to write."""


@operator("Slice", since=10)
def slice_(x: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None, steps: Tensor | None = None) -> Tensor:
    count = L.static_size(L.of_rank(starts, 1, "what Slice starts at"), 0, "the number of axes to slice")
    along = L.normalized_axes(range(count) if axes is None else L.static(axes, "the axes of Slice"), x.rank)
    limits = [x.shape[axis] for axis in along]
    first, last = _positions(starts, limits), _positions(ends, limits)
    if steps is not None and not steps.is_constant:
        return _stepped(x, first, last, along, steps)
    return _sliced(x, first, last, along, [1] * count if steps is None else L.static(steps))


@operator("Slice", since=1)
def slice_by_attributes(
    x: Tensor, *, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None = None
) -> Tensor:
    along = L.normalized_axes(range(len(starts)) if axes is None else axes, x.rank)
    if not len(starts) == len(ends) == len(along):
        raise ShapeError(f"{len(starts)} starts, {len(ends)} ends and {len(along)} axes are given.")
    first, last = ([_from_front(i, x.shape[axis]) for i, axis in zip(v, along, strict=True)] for v in (starts, ends))
    return _sliced(x, first, last, along, [1] * len(along))


def _positions(places: Tensor, limits: Sequence[Size]) -> list[Size]:
    """Places on axes, counted from the front; those computed from data lie in -1 to the size of the axis."""
    places = L.of_shape(places, (len(limits),), "a place for each axis")
    known = L.elements(places)
    if known is not None:
        return [_from_front(place, limit) for place, limit in zip(known, limits, strict=True)]
    places, ends = L.cast(places, t.INT64), L.size_tensor(limits)
    inside = L.clip(L.where(places < 0, places + ends, places), -1, ends)
    return [size - 1 for size in L.sizes(inside + 1)]


def _from_front(place: Size, limit: Size) -> Size:
    if isinstance(limit, Dim) and isinstance(place, int) and abs(place) >= _END:
        return limit if place > 0 else -1
    if _is_from_front(place, limit):
        return place
    # The factor is 1 where the place is negative, and 0 elsewhere.
    return place + limit * dim_max(0, dim_min(1, -place))


def _is_from_front(place: Size, limit: Size) -> bool:
    """Whether the place is not negative; on an axis without elements that does not matter."""
    names = symbols(limit)
    if any(substitute(limit, {name: 0}) != 0 for name in names):
        names = frozenset()
    return at_least(place, 0, Bounds(dict.fromkeys(names, (1, None)))) is True


def _sliced(
    x: Tensor, starts: Sequence[Size], ends: Sequence[Size], axes: Sequence[int], steps: Sequence[int]
) -> Tensor:
    if len(steps) != len(axes) or 0 in steps:
        raise ShapeError(f"steps {list(steps)} are given for axes {list(axes)}.", remedy="A step is not 0.")
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step < 0:
            x = L.reverse(x, [axis])
            start, end = (x.shape[axis] - 1 - place for place in (dim_max(start, 0), end))
        last = dim_max(dim_min(end, x.shape[axis]), 0)
        length = dim_max(dim_min(last - start, last), 0)
        x = L.slice_(x, axis, last - length, last, abs(step))
    return x


def _stepped(x: Tensor, starts: Sequence[Size], ends: Sequence[Size], axes: Sequence[int], steps: Tensor) -> Tensor:
    """The same by steps that are computed from data: the places are gathered."""
    steps = L.of_shape(steps, (len(axes),), "a step for each axis")
    for i, (start, end, axis) in enumerate(zip(starts, ends, axes, strict=True)):
        step, size = L.cast(L.entry(steps, i), t.INT64), x.shape[axis]
        low, high, limit = (L.size_tensor([place], ()) for place in (start, end, size))
        low = L.where(step < 0, L.minimum(L.maximum(low, 0), limit - 1), L.maximum(low, 0))
        high = L.where(step < 0, L.maximum(high, -1), L.clip(high, 0, limit))
        distance, by = L.where(step < 0, low - high, high - low), L.abs_(step)
        count = L.one_size(L.maximum((distance + by - 1) / by, 0), "the length of a slice")
        x = L.take(x, low + L.arange(count) * step, axis)
    return x


# Margins.


@operator("Pad", since=11)
def pad(
    x: Tensor,
    pads: Tensor,
    constant_value: Tensor | None = None,
    axes: Tensor | None = None,
    *,
    mode: str = "constant",
) -> Tensor:
    along = L.normalized_axes(range(x.rank) if axes is None else L.static(axes, "the axes of Pad"), x.rank)
    value = L.zero(x.dtype) if constant_value is None else L.reshape(constant_value, ())
    return _padded(x, _margins(pads, [x.shape[axis] for axis in along]), along, mode, value)


@operator("Pad", since=2)
def pad_by_attribute(x: Tensor, *, pads: Sequence[int], mode: str = "constant", value: float = 0.0) -> Tensor:
    return _padded(x, pads, range(x.rank), mode, L.constant(value, x.dtype))


@operator("Pad", since=1)
def pad_by_first_attribute(x: Tensor, *, paddings: Sequence[int], mode: str = "constant", value: float = 0.0) -> Tensor:
    return _padded(x, paddings, range(x.rank), mode, L.constant(value, x.dtype))


def _margins(pads: Tensor, limits: Sequence[Size]) -> Sequence[Size]:
    """What is added before and after axes of these sizes; it is negative where elements are taken away."""
    known = L.elements(pads)
    if known is not None:
        return known
    twice = [*limits, *limits]
    return [size - n for size, n in zip(L.sizes(pads + L.size_tensor(twice, dtype=pads.dtype)), twice, strict=True)]


def _padded(x: Tensor, pads: Sequence[Size], axes: Sequence[int], mode: str, value: Tensor) -> Tensor:
    if len(pads) != 2 * len(axes):
        raise ShapeError(f"{len(pads)} margins are given for {len(axes)} axes.", remedy="Give two for each axis.")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise InvalidModelError(f"there is no mode {mode!r}.", remedy="The modes are constant, reflect, edge and wrap.")
    low: list[Size] = [0] * x.rank
    high = list(low)
    for i, axis in enumerate(axes):
        low[axis], high[axis] = pads[i], pads[len(axes) + i]
    if mode == "constant":
        return L.pad(x, low, high, value)
    x = L.pad(x, [dim_min(size, 0) for size in low], [dim_min(size, 0) for size in high], value)
    for axis in range(x.rank):
        x = _extended(x, axis, dim_max(low[axis], 0), dim_max(high[axis], 0), mode)
    return x


def _extended(x: Tensor, axis: int, low: Size, high: Size, mode: str) -> Tensor:
    """An axis continued by its own elements."""
    if low == 0 and high == 0:
        return x
    size = x.shape[axis]
    needed = [1] if mode == "edge" else [margin + (mode == "reflect") for margin in (low, high)]
    if axis == x.rank - 1 and all(at_least(size, each) for each in needed):
        # Runs of elements are moved sooner than elements by their indices; those of other axes are runs anyway.
        return _framed(x, axis, low, high, mode)
    whole = low + size + high
    if isinstance(size, int) and isinstance(low, int) and isinstance(whole, int) and size > 0 and whole <= _MOST_TOLD:
        return L.take(x, L.constant([_source(at - low, size, mode) for at in range(whole)], t.INT64), axis)
    n = L.number(size)
    place = L.arange(low + x.shape[axis] + high) - L.number(low)
    if mode == "edge":
        place = L.clip(place, 0, n - 1)
    elif mode == "wrap":
        place = L.floor_mod(place, L.maximum(n, 1))
    else:  # There and back again: a period of 2*(n - 1) places.
        place = n - 1 - L.abs_(n - 1 - L.floor_mod(place, L.maximum(2 * (n - 1), 1)))
    return L.take(x, place, axis)


_MOST_TOLD = 1 << 16
"""Places of a result for which it is told beforehand where each comes from."""


def _source(at: int, size: int, mode: str) -> int:
    """The place of an axis that a place beside it, or on it, is the same as."""
    if mode == "edge":
        return min(max(at, 0), size - 1)
    if mode == "wrap":
        return at % size
    return size - 1 - abs(size - 1 - at % max(2 * (size - 1), 1))


def _framed(x: Tensor, axis: int, low: Size, high: Size, mode: str) -> Tensor:
    """An axis between margins that are no longer than it."""
    size = x.shape[axis]

    def run(start: Size, limit: Size) -> Tensor:
        return L.slice_(x, axis, start, limit)

    def edge(at: Size, times: Size) -> Tensor:
        return L.broadcast_to(run(at, at + 1), (*x.shape[:axis], times, *x.shape[axis + 1 :]))

    match mode:
        case "edge":
            before, after = edge(0, low), edge(size - 1, high)
        case "wrap":
            before, after = run(size - low, size), run(0, high)
        case _:
            before = L.reverse(run(1, low + 1), [axis])
            after = L.reverse(run(size - 1 - high, size - 1), [axis])
    return L.concat([part for part, width in ((before, low), (x, size), (after, high)) if width != 0], axis)


@operator("CenterCropPad", since=18)
def center_crop_pad(x: Tensor, shape: Tensor, *, axes: Sequence[int] | None = None) -> Tensor:
    along = L.normalized_axes(range(x.rank) if axes is None else axes, x.rank)
    sizes = L.sizes(shape)
    if len(sizes) != len(along):
        raise ShapeError(f"{len(sizes)} sizes are given for {len(along)} axes.")
    low: list[Size] = [0] * x.rank
    high = list(low)
    for axis, size in zip(along, sizes, strict=True):
        missing = size - x.shape[axis]
        low[axis] = floor_div(dim_max(missing, 0), 2) - floor_div(dim_max(-missing, 0), 2)
        high[axis] = missing - low[axis]
    return L.pad(x, low, high, L.zero(x.dtype))
