"""Sampling grids: images sampled at the points of a grid, and grids of affine maps.

Source: ONNX Operators, *GridSample*, *AffineGrid*; Jaderberg et al., Spatial Transformer Networks, 2015
(arXiv:1506.02025).
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core import language as L
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError, ShapeError
from sardonyx.ops.definitions.sampling import (
    Pixels,
    coordinate_dtype,
    cubic_weights,
    interpolate,
    linear_weights,
    mirrors,
    pixels_or_border,
    pixels_or_zero,
    pixels_reflected,
    reflect,
    to_interpolable,
)
from sardonyx.ops.registry import operator

_WEIGHTS = {
    "linear": linear_weights, "bilinear": linear_weights, "cubic": cubic_weights, "bicubic": cubic_weights,
}  # fmt: skip


@operator("GridSample", since=16)
def grid_sample(
    x: Tensor, grid: Tensor, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Tensor:
    """Sample ``x`` at grid points; the last grid axis lists the spatial axes from the last to the first."""
    if mode != "nearest" and mode not in _WEIGHTS:
        raise InvalidModelError(f"unknown mode {mode!r}.", remedy=f"Use one of: nearest, {', '.join(_WEIGHTS)}.")
    if x.rank < 3:
        raise ShapeError(f"expected at least 3 axes for the images, got {x.type}.")
    n = x.rank - 2
    grid = L.of_shape(grid, (x.shape[0], *L.of_rank(grid, x.rank, "a grid").shape[1:-1], n), "a grid")
    at = L.cast(grid, coordinate_dtype(x))
    coordinates = [
        _in_pixels(L.take(at, L.constant(n - 1 - axis, t.INT64), -1), size, mode, padding_mode, bool(align_corners))
        for axis, size in enumerate(x.shape[2:])
    ]
    if mode == "nearest":
        y = _pixels(x, padding_mode, bool(align_corners))([L.cast(coordinate, t.INT64) for coordinate in coordinates])
    else:
        pixels = _pixels(to_interpolable(x), padding_mode, bool(align_corners))
        y = L.cast(interpolate(pixels, coordinates, _WEIGHTS[mode]), x.dtype)
    return L.permute(y, [0, y.rank - 1, *range(1, y.rank - 1)])


def _pixels(x: Tensor, padding_mode: str, align_corners: bool) -> Pixels:
    if padding_mode == "reflection":
        return pixels_reflected(x, align_corners)
    kinds = {"zeros": pixels_or_zero, "border": pixels_or_border}
    if padding_mode not in kinds:
        raise InvalidModelError(
            f"unknown padding_mode {padding_mode!r}.", remedy=f"Use one of: reflection, {', '.join(kinds)}."
        )
    return kinds[padding_mode](x)


def _in_pixels(x: Tensor, size: Size, mode: str, padding_mode: str, align_corners: bool) -> Tensor:
    """Convert coordinates from [-1, 1] to pixels; outside of the image the padding mode applies.

    In ``cubic`` mode with border padding the coordinates stay, and each pixel read outside is the nearest inside.
    """
    count = L.number(size, x.dtype)
    position = (x + 1) / 2 * (count - 1) if align_corners else ((x + 1) * count - 1) / 2
    position = L.round_(position) if mode == "nearest" else position
    low, high = mirrors(size, align_corners, x.dtype)
    outside = (position < low) | (position > high)
    if padding_mode == "border" and "cubic" not in mode:
        return L.where(outside, L.clip(position, 0, count - 1), position)
    return L.where(outside, reflect(position, low, high), position) if padding_mode == "reflection" else position


@operator("AffineGrid", since=20)
def affine_grid(theta: Tensor, size: Tensor, *, align_corners: int = 0) -> Tensor:
    if L.elements(size) is None:
        # Binding tests the sizes that the result depends on: not the number of channels.
        size = L.where(L.any_of(size < 0), -1, size)
    shape = L.sizes(size, "a size of the images")
    image, n = shape[2:], len(shape) - 2
    if n < 1:
        raise ShapeError(f"expected an image of rank 3 or more, got rank {len(shape)}.")
    wide = L.widened(L.of_shape(theta, (shape[0], n, n + 1), "affine maps"))
    along = [_axis_coordinates(image, axis, bool(align_corners), wide.dtype) for axis in reversed(range(len(image)))]
    points = L.concat([L.unsqueeze(part, [-1]) for part in (*along, L.ones_like(along[0]))], -1)
    positions = L.reshape(points, (L.product(image), len(image) + 1))
    return L.cast(
        L.reshape(L.einsum("nij,pj->npi", wide, positions), (theta.shape[0], *image, len(image))), theta.dtype
    )


def _axis_coordinates(image: Sequence[Size], axis: int, align_corners: bool, dtype: t.DType) -> Tensor:
    """Return pixel coordinates in [-1, 1]; the ends are the outer pixels' centres, or their edges."""
    index, count = L.iota(image, axis, dtype), L.number(image[axis], dtype)
    return (
        2 * index / L.maximum(count - 1, 1) - L.minimum(count - 1, 1) if align_corners else (2 * index + 1) / count - 1
    )
