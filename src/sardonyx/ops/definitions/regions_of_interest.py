"""Regions of interest: each region of an image is pooled to a small grid.

Source: ONNX Operators, *MaxRoiPool* (Girshick, Fast R-CNN, 2015, arXiv:1504.08083) and *RoiAlign* (He et al., Mask
R-CNN, 2017, arXiv:1703.06870).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sardonyx.core import language as L
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError
from sardonyx.ops.definitions.sampling import interpolate, pixels_or_border, weighted_pixels
from sardonyx.ops.registry import operator


@operator("MaxRoiPool", since=1)
def max_roi_pool(
    x: Tensor, rois: Tensor, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0
) -> tuple[Value, ...]:
    """Pool the maximum of regions, rows (image, x1, y1, x2, y2); a bin outside of the image gives 0."""
    if len(pooled_shape) != 2:
        raise InvalidModelError(f"expected a height and a width as `pooled_shape`, got {list(pooled_shape)}.")
    x, rois = L.of_rank(x, 4, "the images"), L.widened(_rows(rois, 5))
    height, width = x.shape[2:]

    def pool_region(i: Tensor) -> tuple[None, list[Tensor], list[Tensor]]:
        image, x1, y1, x2, y2 = (L.take(L.take(rois, i, 0), L.constant(c, t.INT64), 0) for c in range(5))
        pixels = L.take(x, L.cast(image, t.INT64), 0)
        rows = _bins(y1 * spatial_scale, y2 * spatial_scale, pooled_shape[0], height)
        columns = _bins(x1 * spatial_scale, x2 * spatial_scale, pooled_shape[1], width)
        by_column = L.reduce_max(L.where(columns, L.unsqueeze(pixels, [2]), -math.inf), [3])
        greatest = L.reduce_max(L.where(L.unsqueeze(rows, [2]), L.unsqueeze(by_column, [1]), -math.inf), [2])
        nonempty = L.any_of(rows, [1], keepdims=True) & L.any_of(columns, [1])
        return None, [], [L.where(nonempty, greatest, 0)]

    return L.loop(L.number(rois.shape[0]), None, [], pool_region)[1]


def _rows(rois: Tensor, size: int) -> Tensor:
    return L.of_shape(rois, (L.of_rank(rois, 2, "regions").shape[0], size), "regions")


def _bins(start: Tensor, end: Tensor, count: int, size: Size) -> Tensor:
    """Return the membership of positions of an axis in the bins between two ends, [count, size]."""
    first, last = _round_half_away(start), _round_half_away(end)
    extent = L.maximum(last - first + 1, 1) / count
    bins, position = L.iota((count, 1), 0, start.dtype), L.arange(size, start.dtype)
    return (position >= L.floor(bins * extent) + first) & (position < L.ceil((bins + 1) * extent) + first)


def _round_half_away(x: Tensor) -> Tensor:
    """Round to the nearest integer, halves away from zero."""
    return L.sign(x) * L.floor(L.abs_(x) + 0.5)


@operator("RoiAlign", since=16)
def roi_align(
    x: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Tensor:
    """Sample regions; as in the first implementation, mode ``max`` is over weighted cell corners."""
    if mode.lower() not in ("avg", "max"):
        raise InvalidModelError(f"unknown mode {mode!r}.", remedy="Use 'avg' or 'max'.")
    x, rois = L.of_rank(x, 4, "the images"), _rows(rois, 4)
    half_pixel = coordinate_transformation_mode.lower() == "half_pixel"
    wide = L.widened(x)
    ends = L.cast(rois, wide.dtype) * spatial_scale - (0.5 if half_pixel else 0)
    x1, y1, x2, y2 = (L.take(ends, L.constant(c, t.INT64), 1) for c in range(4))
    rows = _samples(y1, y2, output_height, sampling_ratio, x.shape[2], half_pixel).unsqueezed([3, 4])
    columns = _samples(x1, x2, output_width, sampling_ratio, x.shape[3], half_pixel).unsqueezed([1, 2])
    image = L.reshape(L.cast(batch_indices, t.INT64), (rois.shape[0], *(1,) * 4))
    pixels, positions = pixels_or_border(wide, image), [rows.position, columns.position]
    value = interpolate(pixels, positions) if mode.lower() == "avg" else L.maximum(*weighted_pixels(pixels, positions))
    value = L.where(L.unsqueeze(rows.inside & columns.inside, [-1]), value, 0)
    counted = L.unsqueeze(rows.counted & columns.counted, [-1])
    count = L.cast(L.reshape(rows.number * columns.number, (rois.shape[0], 1, 1, 1)), wide.dtype)
    if mode.lower() == "avg":
        y = L.reduce_sum(L.where(counted, value, 0), [2, 4]) / L.maximum(count, 1)
    else:
        y = L.where(count > 0, L.reduce_max(L.where(counted, value, -math.inf), [2, 4]), 0)
    return L.cast(L.permute(y, [0, 3, 1, 2]), x.dtype)


class _Samples(NamedTuple):
    """Sample positions of the bins of every region along an axis, [regions, bins, samples].

    Attributes:
        position: Coordinates, clamped to the image.
        inside: True if the unclamped sample is in the image or at most one pixel outside.
        counted: True if the sample is below the region's number of samples per bin.
        number: Samples per bin, of each region.
    """

    position: Tensor
    inside: Tensor
    counted: Tensor
    number: Tensor

    def unsqueezed(self, axes: Sequence[int]) -> _Samples:
        """Return the samples with new axes of size 1."""
        position, inside, counted = (L.unsqueeze(part, axes) for part in self[:3])
        return _Samples(position, inside, counted, self.number)


def _samples(start: Tensor, end: Tensor, bins: int, ratio: int, size: Size, half_pixel: bool) -> _Samples:
    extent = end - start if half_pixel else L.maximum(end - start, 1)
    bin_size = L.unsqueeze(extent / bins, [1, 2])
    grid = L.full_like(bin_size, ratio) if ratio > 0 else L.maximum(L.ceil(bin_size), 0)
    longest = ratio if ratio > 0 else L.sizes(L.cast(L.maximum(L.reduce_max(grid), 0), t.INT64), "samples")[0]
    sample = L.iota((1, 1, longest), 2, start.dtype)
    position = (
        L.unsqueeze(start, [1, 2]) + bin_size * L.iota((1, bins, 1), 1, start.dtype) + (sample + 0.5) * bin_size / grid
    )
    limit = L.number(size, start.dtype)
    return _Samples(
        position=L.clip(position, 0, limit - 1),
        inside=(position >= -1) & (position <= limit),
        counted=sample < grid,
        number=L.reshape(grid, grid.shape[:1]),
    )


@operator("RoiAlign", since=10)
def roi_align_unaligned(
    x: Tensor,
    rois: Tensor,
    batch_indices: Tensor,
    *,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Tensor:
    """Sample regions without the shift by half a pixel (the first version)."""
    return roi_align(
        x,
        rois,
        batch_indices,
        coordinate_transformation_mode="output_half_pixel",
        mode=mode,
        output_height=output_height,
        output_width=output_width,
        sampling_ratio=sampling_ratio,
        spatial_scale=spatial_scale,
    )
