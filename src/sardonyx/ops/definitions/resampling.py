"""Resampling: each value is a weighted sum of nearby input values, computed one axis at a time.

Source: ONNX Operators, *Resize*, *Upsample*. Coordinates are computed in float32 (float64 for float64), the type of
the scales. With scales, ``align_corners`` uses the unrounded length (size times scale), as in ONNX's own test cases;
and a region does not change the sizes of the result, as in ONNX's shape inference.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size, at_least, floor_div
from sardonyx.core.ir import types as t
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError, ShapeError
from sardonyx.ops.definitions.sampling import coordinate_dtype, cubic, to_interpolable
from sardonyx.ops.registry import operator


class _Line(NamedTuple):
    """An axis to be resampled.

    Attributes:
        axis: The index of the axis.
        before: The input size.
        after: The output size.
        scale: Output size over input size, as given or as derived from the sizes.
        length: Input size times scale, before rounding.
        region: First and last position of the region to read, as fractions from 0 to 1.
    """

    axis: int
    before: Size
    after: Size
    scale: Tensor
    length: Tensor
    region: tuple[Tensor, Tensor] | None = None


class _Method(NamedTuple):
    """Attributes of *Resize* that define the values."""

    mode: str
    nearest: str = "round_prefer_floor"
    coordinates: str = "half_pixel"
    cubic_a: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False
    extrapolation: float = 0.0


@operator("Resize", since=11)
def resize(
    x: Tensor,
    roi: Tensor | None = None,
    scales: Tensor | None = None,
    sizes: Tensor | None = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    at = L.normalized_axes(range(x.rank) if axes is None else axes, x.rank)
    if not at:
        raise InvalidModelError(
            "expected at least one axis to resize, got none: scales and sizes without elements are absent."
        )
    method = _Method(
        mode,
        nearest_mode,
        coordinate_transformation_mode,
        cubic_coeff_a,
        bool(antialias),
        bool(exclude_outside),
        extrapolation_value,
    )
    regions: Sequence[tuple[Tensor, Tensor] | None] = [None] * len(at)
    if coordinate_transformation_mode == "tf_crop_and_resize":
        regions = _regions(x, roi, len(at))
    scales, sizes = (None if x is None or x.shape == (0,) else x for x in (scales, sizes))
    if scales is not None and sizes is not None:
        # A size is open: one of both inputs is empty.
        is_empty = L.static_size(scales, 0, "the number of scales") == 0
        scales, sizes = (None, sizes) if is_empty else (scales, None if sizes.shape == (0,) else sizes)
        if sizes is not None and L.static_size(sizes, 0, "the number of sizes") == 0:
            sizes = None
    if (scales is None) == (sizes is None):
        raise InvalidModelError("Resize needs exactly one of `scales` and `sizes`.")
    if sizes is None:
        lines = _by_scales(x, at, scales, regions)  # type: ignore[arg-type]
    else:
        lines = _by_sizes(x, at, sizes, regions, keep_aspect_ratio_policy)
    return _resample(x, lines, method)


@operator("Resize", since=10)
def resize_by_scales(x: Tensor, scales: Tensor, *, mode: str = "nearest") -> Tensor:
    """Resize by scales (the first version); nearest coordinates are rounded up in a shrinking axis."""
    return _resample(x, _by_scales(x, range(x.rank), scales), _Method(mode, "by_scale", "asymmetric"))


@operator("Upsample", since=9)
def upsample(x: Tensor, scales: Tensor, *, mode: str = "nearest") -> Tensor:
    return _resample(x, _by_scales(x, range(x.rank), scales), _Method(mode, "floor", "asymmetric"))


@operator("Upsample", since=7)
def upsample_by_attribute(x: Tensor, *, mode: str = "nearest", scales: Sequence[float]) -> Tensor:
    return upsample(x, L.constant(list(scales), t.FLOAT), mode=mode)


@operator("Upsample", since=1)
def upsample_images(x: Tensor, *, height_scale: float, mode: str = "nearest", width_scale: float) -> Tensor:
    return upsample_by_attribute(x, mode=mode, scales=(1.0, 1.0, height_scale, width_scale))


# Sizes.


def _element(x: Tensor, i: int) -> Tensor:
    return L.take(x, L.constant(i, t.INT64), 0)


def _per_axis(parameter: Tensor, count: int, what: str) -> list[Tensor]:
    parameter = L.of_shape(parameter, (count,), what)
    return [_element(parameter, i) for i in range(count)]


def _regions(x: Tensor, roi: Tensor | None, count: int) -> list[tuple[Tensor, Tensor]]:
    if roi is None:
        raise InvalidModelError("tf_crop_and_resize needs a region.", remedy="Add the input `roi`.")
    ends = _per_axis(L.cast(roi, coordinate_dtype(x)), 2 * count, "the ends of a region")
    return list(zip(ends[:count], ends[count:], strict=True))


def _by_scales(
    x: Tensor, at: Sequence[int], scales: Tensor, regions: Sequence[tuple[Tensor, Tensor] | None] = ()
) -> list[_Line]:
    lines = []
    for i, (axis, scale) in enumerate(zip(at, _per_axis(scales, len(at), "scales"), strict=True)):
        before, region = x.shape[axis], regions[i] if regions else None
        if scale.is_constant and not 0 < float(L.static_scalar(scale)) < math.inf:
            raise ShapeError(f"expected a positive scale for axis {axis}, got {L.static_scalar(scale)}.")
        length = L.number(before, t.FLOAT) * scale
        if isinstance(before, Dim) and scale.is_constant:
            after = _scale_size(before, float(L.static_scalar(scale)))
        else:
            after = _rounded_down(L.where(scale > 0, length, -1))
        lines.append(_Line(axis, before, after, scale, length, region))
    return lines


def _rounded_down(length: Tensor) -> Size:
    return L.sizes(L.cast(L.floor(length), t.INT64), "a resized axis")[0]


def _scale_size(size: Size, scale: float) -> Size:
    """Return the size times a float32 scale, rounded down.

    The scale is replaced by the simplest fraction that rounds to the same float32.
    """
    exact = Fraction(scale)
    simple = exact.limit_denominator(1 << 10)
    factor = simple if abs(simple - exact) <= exact / (1 << 24) else exact
    return floor_div(size * factor.numerator, factor.denominator)


def _by_sizes(
    x: Tensor,
    at: Sequence[int],
    sizes: Tensor,
    regions: Sequence[tuple[Tensor, Tensor] | None],
    policy: str,
) -> list[_Line]:
    targets, lines = L.sizes(L.of_shape(sizes, (len(at),), "sizes"), "sizes"), []
    if policy == "stretch":
        for axis, after, region in zip(at, targets, regions, strict=True):
            length, before = L.number(after, coordinate_dtype(x)), L.number(x.shape[axis], coordinate_dtype(x))
            lines.append(_Line(axis, x.shape[axis], after, length / before, length, region))
        return lines
    ratios = [
        L.number(after, t.DOUBLE) / L.number(x.shape[axis], t.DOUBLE) for axis, after in zip(at, targets, strict=True)
    ]
    if policy not in ("not_larger", "not_smaller"):
        raise InvalidModelError(
            f"unknown keep_aspect_ratio_policy {policy!r}.", remedy="Use 'stretch', 'not_larger' or 'not_smaller'."
        )
    scale = L.minimum(*ratios) if policy == "not_larger" else L.maximum(*ratios)
    for axis, region in zip(at, regions, strict=True):
        length = L.number(x.shape[axis], t.DOUBLE) * scale
        lines.append(_Line(axis, x.shape[axis], _rounded_down(length + 0.5), scale, length, region))
    return lines


# Values.


def _resample(x: Tensor, lines: Sequence[_Line], method: _Method) -> Tensor:
    if method.mode == "nearest" and method.antialias:
        raise InvalidModelError("`antialias` needs the mode linear or cubic, got nearest.")
    y = x if method.mode == "nearest" else to_interpolable(x)
    for line in lines if method.mode == "nearest" else _in_order(lines, x.rank):
        if line.before == line.after and line.region is None and _is_one(line):
            continue
        repeats = _repeats(line, method) if method.mode == "nearest" else None
        if repeats is not None:
            y = L.repeat(y, line.axis, repeats)
            continue
        if method.mode == "nearest" and (step := _stride(line, method)) is not None:
            y = L.slice_(y, line.axis, 0, line.after * step, step)
            continue
        positions = _input_positions(line, method.coordinates, coordinate_dtype(x))
        y = (
            _take_nearest(y, line, positions, method)
            if method.mode == "nearest"
            else _interpolate(y, line, positions, method)
        )
        if line.region is not None:
            outside = (positions < 0) | (positions > L.number(line.before, positions.dtype) - 1)
            y = L.where(_align(outside, y, line.axis), method.extrapolation, y)
    return L.cast(y, x.dtype)


def _in_order(lines: Sequence[_Line], rank: int) -> list[_Line]:
    """Return the axes in the order of resampling: the last axis, a gather, where there are the fewest rows."""
    others = [line for line in lines if line.axis != rank - 1]
    last = [line for line in lines if line.axis == rank - 1]
    return [*last, *others] if all(at_least(line.after, line.before) for line in others) else [*others, *last]


def _is_one(line: _Line) -> bool:
    """Return True if the scale is 1, as a constant or because it is derived from equal sizes."""
    return not line.scale.is_constant or L.static_scalar(line.scale) == 1


_UNIFORM_ROUNDING = {
    ("asymmetric", "floor"), ("asymmetric", "by_scale"), ("tf_half_pixel_for_nn", "floor"),
    *((mode, f"round_prefer_{side}") for mode in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel")
      for side in ("floor", "ceil")),
}  # fmt: skip
"""Coordinates and roundings for which an integer scale repeats every value equally often.

The distance to the next value is at least half a position of the result, more than the float32 error for a million
positions.
"""


def _repeats(line: _Line, method: _Method) -> int | None:
    """Return the number of repetitions of every value of an axis; None if not uniform."""
    if (
        line.region is not None
        or (method.coordinates, method.nearest) not in _UNIFORM_ROUNDING
        or not line.scale.is_constant
    ):
        return None
    scale = float(L.static_scalar(line.scale))
    repeats = round(scale)
    return repeats if repeats == scale > 0 and line.after == line.before * repeats else None


def _stride(line: _Line, method: _Method) -> int | None:
    """Return the stride of the values read from an axis, starting at the first; None if not uniform.

    Scales that divide positions without rounding are powers of two.
    """
    if line.region is not None or method.coordinates != "asymmetric" or not line.scale.is_constant:
        return None
    scale = float(L.static_scalar(line.scale))
    if not scale > 0:
        return None
    step = round(1 / scale)
    return step if step * scale == 1 and at_least(line.before, line.after * step) else None


def _align(x: Tensor, y: Tensor, axis: int) -> Tensor:
    """Reshape a vector over an axis to broadcast over ``y``."""
    return L.unsqueeze(x, [a for a in range(y.rank) if a != axis])


def _input_positions(line: _Line, mode: str, dtype: t.DType) -> Tensor:
    """Return the input coordinate of each position of the resampled axis."""
    x = L.arange(line.after, dtype)
    before, after = L.number(line.before, dtype), L.number(line.after, dtype)
    scale, length = L.cast(line.scale, dtype), L.cast(line.length, dtype)
    match mode:
        case "half_pixel":
            return (x + 0.5) / scale - 0.5
        case "half_pixel_symmetric":
            return before / 2 * (1 - after / length) + (x + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return L.where(after > 1, (x + 0.5) / scale - 0.5, 0)
        case "align_corners":
            return L.where(L.equal(length, 1), 0, x * (before - 1) / (length - 1))
        case "asymmetric":
            return x / scale
        case "tf_half_pixel_for_nn":
            return (x + 0.5) / scale
        case "tf_crop_and_resize":
            assert line.region is not None
            start, end = line.region
            inner = start * (before - 1) + x * (end - start) * (before - 1) / (after - 1)
            return L.where(after > 1, inner, (start + end) * (before - 1) / 2)
    raise InvalidModelError(f"unknown coordinate_transformation_mode {mode!r}.")


def _take_nearest(y: Tensor, line: _Line, positions: Tensor, method: _Method) -> Tensor:
    match method.nearest:
        case "round_prefer_floor":
            index = L.ceil(positions - 0.5)
        case "round_prefer_ceil":
            index = L.floor(positions + 0.5)
        case "floor":
            index = L.floor(positions)
        case "ceil":
            index = L.ceil(positions)
        case "by_scale":
            index = L.where(line.scale < 1, L.ceil(positions), L.floor(positions))
        case _:
            raise InvalidModelError(f"unknown nearest_mode {method.nearest!r}.")
    return L.take(y, L.clip(L.cast(index, t.INT64), 0, L.number(line.before) - 1), line.axis)


_MOST_SEPARATE_REACH = 2
"""Largest reach of a kernel whose terms are added one by one: a sum over a short last axis is slower."""

_REACH = {"linear": 1, "bilinear": 1, "trilinear": 1, "cubic": 2}
"""Kernel radius in pixels, by mode."""


def _interpolate(y: Tensor, line: _Line, positions: Tensor, method: _Method) -> Tensor:
    """Interpolate along an axis by a kernel, which antialiasing widens; the outer values repeat."""
    if method.mode not in _REACH:
        raise InvalidModelError(f"unknown mode {method.mode!r}.", remedy=f"Use one of: nearest, {', '.join(_REACH)}.")
    kernel, shrink = _REACH[method.mode], L.constant(1, positions.dtype)
    reach: Size = kernel
    if method.antialias:
        shrink = L.minimum(L.cast(line.scale, positions.dtype), 1)
        reach = L.sizes(L.cast(L.ceil(kernel / shrink), t.INT64), "the reach of a kernel")[0]
    first = L.floor(positions) + 1 - L.number(reach, positions.dtype)
    last = L.number(line.before, positions.dtype) - 1

    def weigh(taps: Tensor, positions: Tensor) -> Tensor:
        distance = L.abs_(taps - positions) * shrink
        weights = cubic(distance, method.cubic_a) if method.mode == "cubic" else L.maximum(1 - distance, 0)
        return L.where((taps < 0) | (taps > last), 0, weights) if method.exclude_outside else weights

    def read(taps: Tensor) -> Tensor:
        return L.take(y, L.cast(L.clip(taps, 0, last), t.INT64), line.axis)

    is_normalized = method.exclude_outside or method.antialias
    if isinstance(reach, int) and reach <= _MOST_SEPARATE_REACH:
        offsets = [first + k for k in range(2 * reach)]
        parts = [weigh(taps, positions) for taps in offsets]
        if is_normalized:
            total = _sum(parts)
            parts = [part / total for part in parts]
        aligned = [L.cast(_align(part, y, line.axis), y.dtype) for part in parts]
        return _sum([read(taps) * part for taps, part in zip(offsets, aligned, strict=True)])
    taps = L.unsqueeze(first, [1]) + L.iota((1, 2 * reach), 1, positions.dtype)
    weights = weigh(taps, L.unsqueeze(positions, [1]))
    if is_normalized:
        weights = weights / L.reduce_sum(weights, [1], keepdims=True)
    pixels = read(taps)
    weights = L.unsqueeze(weights, [a for a in range(pixels.rank) if a not in (line.axis, line.axis + 1)])
    return L.reduce_sum(pixels * L.cast(weights, pixels.dtype), [line.axis + 1])


def _sum(terms: Sequence[Tensor]) -> Tensor:
    return functools.reduce(lambda total, term: total + term, terms)
