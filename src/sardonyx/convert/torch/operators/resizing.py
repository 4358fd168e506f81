"""Resizing, sampling at grids, and windows as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sardonyx.convert.torch.operators.pooling import spread
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.convert.torch.operators.sizes import reshaped, size_of
from sardonyx.core import language as L
from sardonyx.core.dim import Size, floor_div
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t
from sardonyx.ops.nodes import onnx

_CUBIC, _CUBIC_ANTIALIASED = -0.75, -0.5
"""torch's coefficients of cubic interpolation; that with antialiasing is that of PIL."""


def _resize(x: Tensor, sizes: Any, scales: Any, **options: Any) -> Tensor:
    """Resize the axes after batch and channels, to sizes or by factors."""
    spatial = x.rank - 2
    factors = [factor for factor in scales or [] if factor is not None]
    if len(factors) == spatial:
        amounts = L.constant([1.0, 1.0, *map(float, factors)], t.FLOAT)
        return onnx.Resize(x, None, amounts, None, **options)  # type: ignore[no-any-return]
    output = [size_of(size) for size in sizes]
    return onnx.Resize(x, None, None, L.size_tensor([*x.shape[:2], *output]), **options)  # type: ignore[no-any-return]


_NEAREST = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
_EXACT = {"mode": "nearest", "coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"}


def _coordinates(align_corners: bool) -> str:
    return "align_corners" if align_corners else "half_pixel"


def _linear(align_corners: bool) -> dict[str, Any]:
    return {"mode": "linear", "coordinate_transformation_mode": _coordinates(align_corners)}


def _cubic(align_corners: bool) -> dict[str, Any]:
    options = {"mode": "cubic", "coordinate_transformation_mode": _coordinates(align_corners)}
    return {**options, "cubic_coeff_a": _CUBIC}


@aten("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec")
def _nearest_vec(x: Tensor, sizes: Any, factors: Any = None) -> Tensor:
    return _resize(x, sizes, factors, **_NEAREST)


@aten("_upsample_nearest_exact1d.vec", "_upsample_nearest_exact2d.vec", "_upsample_nearest_exact3d.vec")
def _exact_vec(x: Tensor, sizes: Any, factors: Any = None) -> Tensor:
    return _resize(x, sizes, factors, **_EXACT)


@aten("upsample_nearest1d.default", "upsample_nearest2d.default", "upsample_nearest3d.default")
def _nearest(x: Tensor, sizes: Any, *factors: Any) -> Tensor:
    return _resize(x, sizes, factors, **_NEAREST)


@aten("_upsample_nearest_exact1d.default", "_upsample_nearest_exact2d.default", "_upsample_nearest_exact3d.default")
def _exact(x: Tensor, sizes: Any, *factors: Any) -> Tensor:
    return _resize(x, sizes, factors, **_EXACT)


@aten("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec")
def _linear_vec(x: Tensor, sizes: Any, align_corners: bool, factors: Any = None) -> Tensor:
    return _resize(x, sizes, factors, **_linear(align_corners))


@aten("upsample_linear1d.default", "upsample_bilinear2d.default", "upsample_trilinear3d.default")
def _linear_default(x: Tensor, sizes: Any, align_corners: bool, *factors: Any) -> Tensor:
    return _resize(x, sizes, factors, **_linear(align_corners))


@aten("upsample_bicubic2d.vec")
def _cubic_vec(x: Tensor, sizes: Any, align_corners: bool, factors: Any = None) -> Tensor:
    return _resize(x, sizes, factors, **_cubic(align_corners))


@aten("upsample_bicubic2d.default")
def _cubic_default(x: Tensor, sizes: Any, align_corners: bool, *factors: Any) -> Tensor:
    return _resize(x, sizes, factors, **_cubic(align_corners))


@aten("_upsample_bilinear2d_aa.vec")
def _linear_antialiased(x: Tensor, sizes: Any, align_corners: bool, factors: Any = None) -> Tensor:
    return _resize(x, sizes, factors, antialias=1, exclude_outside=1, **_linear(align_corners))


@aten("_upsample_bilinear2d_aa.default")
def _linear_antialiased_default(x: Tensor, sizes: Any, align_corners: bool, *factors: Any) -> Tensor:
    return _resize(x, sizes, factors, antialias=1, exclude_outside=1, **_linear(align_corners))


@aten("_upsample_bicubic2d_aa.vec")
def _cubic_antialiased(x: Tensor, sizes: Any, align_corners: bool, factors: Any = None) -> Tensor:
    options = {**_cubic(align_corners), "cubic_coeff_a": _CUBIC_ANTIALIASED}
    return _resize(x, sizes, factors, antialias=1, exclude_outside=1, **options)


@aten("_upsample_bicubic2d_aa.default")
def _cubic_antialiased_default(x: Tensor, sizes: Any, align_corners: bool, *factors: Any) -> Tensor:
    return _cubic_antialiased(x, sizes, align_corners, factors)


# Sampling at coordinates.

_GRID_MODES = ("linear", "nearest", "cubic")
_GRID_PADDING = ("zeros", "border", "reflection")


@aten("grid_sampler.default", "grid_sampler_2d.default", "grid_sampler_3d.default")
def _grid_sampler(x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Tensor:
    return onnx.GridSample(  # type: ignore[no-any-return]
        x, grid, mode=_GRID_MODES[interpolation_mode], padding_mode=_GRID_PADDING[padding_mode],
        align_corners=int(align_corners),
    )  # fmt: skip


@aten("affine_grid_generator.default")
def _affine_grid(theta: Tensor, size: Sequence[Any], align_corners: bool) -> Tensor:
    sizes = L.size_tensor([size_of(one) for one in size])
    return onnx.AffineGrid(theta, sizes, align_corners=int(align_corners))  # type: ignore[no-any-return]


# Channels as pixels, and windows as columns.


def _windows(size: Size, kernel: int, dilation: int, padding: int, stride: int) -> tuple[Tensor, Size]:
    """Return the indices [kernel, count] of an axis in each window, and the number of windows."""
    count = floor_div(size + 2 * padding - dilation * (kernel - 1) - 1, stride) + 1
    within = L.unsqueeze(L.arange(kernel) * dilation, [1])
    return within + L.unsqueeze(L.arange(count) * stride, [0]), count


@aten("im2col.default")
def _im2col(x: Tensor, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    whole = x if x.rank == 4 else L.unsqueeze(x, [0])
    kernel, steps, pads, strides = (spread(v, 2) for v in (kernel_size, dilation, padding, stride))
    batch, channels, height, width = whole.shape
    padded = L.pad(whole, [0, 0, *pads], [0, 0, *pads])
    rows, down = _windows(height, kernel[0], steps[0], pads[0], strides[0])
    columns, across = _windows(width, kernel[1], steps[1], pads[1], strides[1])
    windows = onnx.Gather(onnx.Gather(padded, rows, axis=2), columns, axis=4)
    ordered = L.permute(windows, [0, 1, 2, 4, 3, 5])
    result = reshaped(ordered, [batch, channels * kernel[0] * kernel[1], down * across])
    return result if x.rank == 4 else L.squeeze(result, [0])


@aten("col2im.default")
def _col2im(x: Tensor, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    whole = x if x.rank == 3 else L.unsqueeze(x, [0])
    pads = spread(padding, 2)
    image = L.size_tensor([size_of(size) for size in output_size])
    result = onnx.Col2Im(
        whole, image, L.constant(spread(kernel_size, 2)), dilations=spread(dilation, 2), pads=[*pads, *pads],
        strides=spread(stride, 2),
    )  # fmt: skip
    return result if x.rank == 3 else L.squeeze(result, [0])
