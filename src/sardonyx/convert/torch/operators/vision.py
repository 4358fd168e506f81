"""Operators of torchvision: boxes, regions of interest and deformable convolution."""

from __future__ import annotations

from sardonyx.convert.torch.operators.promotion import cast
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.core import language as L
from sardonyx.core.dim import Size, floor_div
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t
from sardonyx.errors import UnsupportedError
from sardonyx.ops.nodes import onnx

_ALL_BOXES = (1 << 31) - 1


@aten("torchvision.nms.default")
def _nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    chosen = onnx.NonMaxSuppression(
        L.unsqueeze(cast(boxes, t.FLOAT), [0]), L.unsqueeze(cast(scores, t.FLOAT), [0, 1]),
        L.constant([_ALL_BOXES], t.INT64), L.constant([float(iou_threshold)], t.FLOAT),
    )  # fmt: skip
    return L.entry(chosen, 2, 1)


def _split_rois(rois: Tensor) -> tuple[Tensor, Tensor]:
    """Return the boxes, and the batch index of each."""
    return L.slice_(rois, 1, 1, 5), cast(L.entry(rois, 0, 1), t.INT64)


@aten("torchvision.roi_align.default")
def _roi_align(
    x: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int,
    aligned: bool,
) -> Tensor:  # fmt: skip
    boxes, batch = _split_rois(rois)
    return onnx.RoiAlign(  # type: ignore[no-any-return]
        x, boxes, batch, output_height=pooled_height, output_width=pooled_width,
        sampling_ratio=max(sampling_ratio, 0), spatial_scale=float(spatial_scale), mode="avg",
        coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
    )  # fmt: skip


@aten("torchvision.roi_pool.default")
def _roi_pool(
    x: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int
) -> tuple[Tensor, Tensor | None]:
    pooled = onnx.MaxRoiPool(x, rois, pooled_shape=[pooled_height, pooled_width], spatial_scale=float(spatial_scale))
    return pooled, None


def _of_position(x: Tensor, height: int, width: int) -> Tensor:
    """Return regions [n, c, height, width] of [n, c * height * width, height, width], a channel a position."""
    count = height * width
    channels = floor_div(x.shape[1], count)
    pairs = L.reshape(x, (x.shape[0], channels, count * count))
    own = L.take(pairs, L.constant([i * (count + 1) for i in range(count)], t.INT64), 2)
    return L.reshape(own, (x.shape[0], channels, height, width))


@aten("torchvision.ps_roi_align.default")
def _ps_roi_align(
    x: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, sampling_ratio: int
) -> tuple[Tensor, Tensor | None]:
    aligned = _roi_align(x, rois, spatial_scale, pooled_height, pooled_width, sampling_ratio, True)
    return _of_position(aligned, pooled_height, pooled_width), None


@aten("torchvision.ps_roi_pool.default")
def _ps_roi_pool(
    x: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int
) -> tuple[Tensor, Tensor | None]:
    boxes, batch = _split_rois(rois)
    # Halves are rounded away from zero, unlike ONNX's Round.
    edges = L.sign(boxes) * L.floor(L.abs_(boxes * float(spatial_scale)) + 0.5)
    rows = _bins(L.entry(edges, 1, 1), L.entry(edges, 3, 1), pooled_height, x.shape[2])
    columns = _bins(L.entry(edges, 0, 1), L.entry(edges, 2, 1), pooled_width, x.shape[3])
    regions = L.take(x, batch, 0)
    sums = L.einsum("ncyx,npy,nqx->ncpq", regions, rows, columns)
    counts = L.einsum("npy,nqx->npq", rows, columns)
    means = sums / L.unsqueeze(L.maximum(counts, L.ones_like(counts)), [1])
    return _of_position(means, pooled_height, pooled_width), None


def _bins(start: Tensor, end: Tensor, count: int, size: Size) -> Tensor:
    """Return 1 for the cells [n, count, size] of each bin between edges [n], else 0."""
    width = L.maximum(end - start, L.ones_like(start)) / count
    numbers = L.cast(L.arange(count), start.dtype)
    start, width = L.unsqueeze(start, [1]), L.unsqueeze(width, [1])
    last = L.cast(L.number(size) - 1, start.dtype)
    # torchvision never reads the last cell of an axis.
    low, high = (
        L.minimum(L.maximum(edge + start, L.zero(start.dtype)), last)
        for edge in (L.floor(numbers * width), L.ceil((numbers + 1) * width))
    )
    cells = L.cast(L.arange(size), start.dtype)
    inside = (cells >= L.unsqueeze(low, [2])) & (cells < L.unsqueeze(high, [2]))
    return L.cast(inside, start.dtype)


@aten("torchvision.deform_conv2d.default")
def _deform_conv2d(
    x: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, stride_h: int, stride_w: int, pad_h: int,
    pad_w: int, dil_h: int, dil_w: int, n_weight_grps: int, n_offset_grps: int, use_mask: bool,
) -> Tensor:  # fmt: skip
    if not isinstance(weight.shape[2], int) or not isinstance(weight.shape[3], int):
        raise UnsupportedError("a deformable convolution with a kernel of open size has no translation.")
    return onnx.DeformConv(  # type: ignore[no-any-return]
        x, weight, offset, bias, mask if use_mask else None, strides=[stride_h, stride_w],
        pads=[pad_h, pad_w, pad_h, pad_w], dilations=[dil_h, dil_w], group=n_weight_grps, offset_group=n_offset_grps,
        kernel_shape=[weight.shape[2], weight.shape[3]],
    )  # fmt: skip
