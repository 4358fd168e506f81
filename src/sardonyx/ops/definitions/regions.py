"""Regions: slices of a tensor, and padding around a tensor.

Source: ONNX Operators, *Slice*, *Pad*, *CenterCropPad*. Positions and pads may be sizes that are unknown before the
run.
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
"""Positions from here on denote the end of an axis of open size, as the standard recommends."""


@operator("Slice", since=10)
def slice_(x: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None, steps: Tensor | None = None) -> Tensor:
    count = L.static_size(L.of_rank(starts, 1, "the input `starts` of Slice"), 0, "the number of axes to slice")
    along = L.normalized_axes(range(count) if axes is None else L.static(axes, "the axes of Slice"), x.rank)
    limits = [x.shape[axis] for axis in along]
    first, last = _positions(starts, limits), _positions(ends, limits)
    if steps is not None and not steps.is_constant:
        return _slice_dynamic_steps(x, first, last, along, steps)
    return _slice(x, first, last, along, [1] * count if steps is None else L.static(steps))


@operator("Slice", since=1)
def slice_by_attributes(
    x: Tensor, *, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None = None
) -> Tensor:
    along = L.normalized_axes(range(len(starts)) if axes is None else axes, x.rank)
    if not len(starts) == len(ends) == len(along):
        raise ShapeError(f"expected as many starts as ends and axes, got {len(starts)}, {len(ends)} and {len(along)}.")
    first, last = ([_from_front(i, x.shape[axis]) for i, axis in zip(v, along, strict=True)] for v in (starts, ends))
    return _slice(x, first, last, along, [1] * len(along))


def _positions(positions: Tensor, limits: Sequence[Size]) -> list[Size]:
    """Return non-negative positions on axes; positions computed from data are clamped to [-1, size]."""
    positions = L.of_shape(positions, (len(limits),), "a position input of Slice")
    known = L.elements(positions)
    if known is not None:
        return [_from_front(position, limit) for position, limit in zip(known, limits, strict=True)]
    positions, ends = L.cast(positions, t.INT64), L.size_tensor(limits)
    inside = L.clip(L.where(positions < 0, positions + ends, positions), -1, ends)
    return [size - 1 for size in L.sizes(inside + 1)]


def _from_front(position: Size, limit: Size) -> Size:
    if isinstance(limit, Dim) and isinstance(position, int) and abs(position) >= _END:
        return limit if position > 0 else -1
    if _is_from_front(position, limit):
        return position
    # The factor is 1 for a negative position and 0 otherwise.
    return position + limit * dim_max(0, dim_min(1, -position))


def _is_from_front(position: Size, limit: Size) -> bool:
    """Return True if the position is never negative; axes without elements are disregarded."""
    names = symbols(limit)
    if any(substitute(limit, {name: 0}) != 0 for name in names):
        names = frozenset()
    return at_least(position, 0, Bounds(dict.fromkeys(names, (1, None)))) is True


def _slice(
    x: Tensor, starts: Sequence[Size], ends: Sequence[Size], axes: Sequence[int], steps: Sequence[int]
) -> Tensor:
    if len(steps) != len(axes) or 0 in steps:
        raise ShapeError(
            f"steps {list(steps)} do not fit axes {list(axes)}.", remedy="Use one nonzero step for each axis."
        )
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step < 0:
            x = L.reverse(x, [axis])
            start, end = (x.shape[axis] - 1 - position for position in (dim_max(start, 0), end))
        last = dim_max(dim_min(end, x.shape[axis]), 0)
        length = dim_max(dim_min(last - start, last), 0)
        x = L.slice_(x, axis, last - length, last, abs(step))
    return x


def _slice_dynamic_steps(
    x: Tensor, starts: Sequence[Size], ends: Sequence[Size], axes: Sequence[int], steps: Tensor
) -> Tensor:
    """Slice by steps that are computed from data: the elements are gathered."""
    steps = L.of_shape(steps, (len(axes),), "the input `steps` of Slice")
    for i, (start, end, axis) in enumerate(zip(starts, ends, axes, strict=True)):
        step, size = L.cast(L.entry(steps, i), t.INT64), x.shape[axis]
        low, high, limit = (L.size_tensor([position], ()) for position in (start, end, size))
        low = L.where(step < 0, L.minimum(L.maximum(low, 0), limit - 1), L.maximum(low, 0))
        high = L.where(step < 0, L.maximum(high, -1), L.clip(high, 0, limit))
        distance, by = L.where(step < 0, low - high, high - low), L.abs_(L.maximum(step, -(2**63 - 1)))
        length = L.where(distance > 0, (distance - 1) / L.maximum(by, 1) + 1, 0)
        count = L.one_size(L.where(L.equal(by, 0), -1, length), "the length of a slice")
        x = L.take(x, low + L.arange(count) * step, axis)
    return x


# Padding.


@operator("Pad", since=11)
def pad(
    x: Tensor,
    pads: Tensor,
    constant_value: Tensor | None = None,
    axes: Tensor | None = None,
    *,
    mode: str = "constant",
) -> Tensor:
    _require_mode(mode)
    along = L.normalized_axes(range(x.rank) if axes is None else L.static(axes, "the axes of Pad"), x.rank)
    value = L.zero(x.dtype) if constant_value is None else L.reshape(constant_value, ())
    return _pad(x, _pad_sizes(pads, [x.shape[axis] for axis in along]), along, mode, value)


@operator("Pad", since=2)
def pad_by_attribute(x: Tensor, *, pads: Sequence[int], mode: str = "constant", value: float = 0.0) -> Tensor:
    return _pad(x, pads, range(x.rank), mode, L.constant(value, x.dtype))


@operator("Pad", since=1)
def pad_by_first_attribute(x: Tensor, *, paddings: Sequence[int], mode: str = "constant", value: float = 0.0) -> Tensor:
    return _pad(x, paddings, range(x.rank), mode, L.constant(value, x.dtype))


def _pad_sizes(pads: Tensor, limits: Sequence[Size]) -> Sequence[Size]:
    """Return the pads before and after axes of these sizes; negative pads crop."""
    known = L.elements(pads)
    if known is not None:
        return known
    if not limits:  # No result would depend on the pads, whose number is tested here.
        return [0] * L.static_size(pads, 0, "the number of pads")
    pads, twice = L.of_shape(pads, (2 * len(limits),), "the pads"), [*limits, *limits]
    return [size - n for size, n in zip(L.sizes(pads + L.size_tensor(twice, dtype=pads.dtype)), twice, strict=True)]


def _require_mode(mode: str) -> None:
    """Refuse an unknown mode, before pads or axes that are not known."""
    if mode not in ("constant", "reflect", "edge", "wrap"):
        raise InvalidModelError(f"unknown mode {mode!r}.", remedy="Use 'constant', 'reflect', 'edge' or 'wrap'.")


def _pad(x: Tensor, pads: Sequence[Size], axes: Sequence[int], mode: str, value: Tensor) -> Tensor:
    if len(pads) != 2 * len(axes):
        raise ShapeError(
            f"expected {2 * len(axes)} pads for {len(axes)} axes, got {len(pads)}.",
            remedy="Use two pads for each axis.",
        )
    _require_mode(mode)
    low: list[Size] = [0] * x.rank
    high = list(low)
    for i, axis in enumerate(axes):
        low[axis], high[axis] = pads[i], pads[len(axes) + i]
    crop_low, crop_high = ([dim_min(size, 0) for size in ends] for ends in (low, high))
    if any(size != 0 for size in (*crop_low, *crop_high)):
        x = L.pad(x, crop_low, crop_high, value)
        low, high = ([dim_max(size, 0) for size in ends] for ends in (low, high))
    if mode == "constant":
        return L.pad(x, low, high, value)
    for axis in range(x.rank):
        x = _pad_axis(x, axis, low[axis], high[axis], mode)
    return x


def _pad_axis(x: Tensor, axis: int, low: Size, high: Size, mode: str) -> Tensor:
    """Pad an axis with its own elements."""
    if low == 0 and high == 0:
        return x
    size = x.shape[axis]
    needed = [1] if mode == "edge" else [margin + (mode == "reflect") for margin in (low, high)]
    if axis == x.rank - 1 and all(at_least(size, least) for least in needed):
        # Copying contiguous runs is faster than a gather by index; on other axes an index moves a run anyway.
        return _pad_by_runs(x, axis, low, high, mode)
    whole = low + size + high
    if (
        isinstance(size, int)
        and isinstance(low, int)
        and isinstance(whole, int)
        and size > 0
        and whole <= _MAX_CONSTANT_INDICES
    ):
        return L.take(x, L.constant([_source_index(at - low, size, mode) for at in range(whole)], t.INT64), axis)
    n = L.number(size)
    position = L.arange(low + x.shape[axis] + high) - L.number(low)
    if mode == "edge":
        position = L.clip(position, 0, n - 1)
    elif mode == "wrap":
        position = L.floor_mod(position, L.maximum(n, 1))
    else:  # Reflection has a period of 2*(n - 1).
        position = n - 1 - L.abs_(n - 1 - L.floor_mod(position, L.maximum(2 * (n - 1), 1)))
    return L.take(x, position, axis)


_MAX_CONSTANT_INDICES = 1 << 16
"""Most elements along a padded axis for which the source indices are a constant."""


def _source_index(at: int, size: int, mode: str) -> int:
    """Return the index of the element that a position on or beside an axis of ``size`` elements copies."""
    if mode == "edge":
        return min(max(at, 0), size - 1)
    if mode == "wrap":
        return at % size
    return size - 1 - abs(size - 1 - at % max(2 * (size - 1), 1))


def _pad_by_runs(x: Tensor, axis: int, low: Size, high: Size, mode: str) -> Tensor:
    """Pad an axis by pads that are no longer than the axis."""
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
        raise ShapeError(f"expected {len(along)} sizes, one for each axis, got {len(sizes)}.")
    low: list[Size] = [0] * x.rank
    high = list(low)
    for axis, size in zip(along, sizes, strict=True):
        missing = size - x.shape[axis]
        low[axis] = floor_div(dim_max(missing, 0), 2) - floor_div(dim_max(-missing, 0), 2)
        high[axis] = missing - low[axis]
    return L.pad(x, low, high, L.zero(x.dtype))
