"""Parts of torchvision's detectors as equal programs without branches and loops on the number of detections.

torchvision resizes the mask and the heat map of a detection to the size of its box, one detection after another. The
same values are products with interpolation weights, whose sizes are those of the image or of the largest box.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch._higher_order_ops.scan import scan

CUBIC = -0.75
"""The coefficient of torch's cubic interpolation."""


def batched_suppression(boxes: Any, scores: Any, idxs: Any, iou_threshold: float) -> Any:
    """Return the boxes that remain if each class is suppressed by itself, without a branch for no boxes."""
    offset = torch.cat([boxes.reshape(-1), boxes.new_zeros(1)]).max() + 1
    shifted = boxes + (idxs.to(boxes) * offset)[:, None]
    return torch.ops.torchvision.nms(shifted, scores, iou_threshold)


def resized_image(
    image: Any, self_min_size: int, self_max_size: int, target: Any = None, fixed_size: Any = None
) -> tuple[Any, Any]:
    """Return an image, and the masks of its target, resized to limits of its sides, without branches on these."""
    height, width = image.shape[-2:]
    size = scale = None
    if fixed_size is not None:
        size = [fixed_size[1], fixed_size[0]]
    else:
        shorter, longer = torch.sym_min(height, width), torch.sym_max(height, width)
        scale = torch.sym_min(self_min_size / shorter, self_max_size / longer)
    resize = functools.partial(
        torch.nn.functional.interpolate, size=size, scale_factor=scale, recompute_scale_factor=size is None or None
    )
    if target is not None and "masks" in target:
        target["masks"] = resize(target["masks"][:, None].float())[:, 0].byte()
    return resize(image[None], mode="bilinear", align_corners=False)[0], target


def batched_images(self: Any, images: Any, size_divisible: int = 32) -> Any:
    """Return images with zeros below and to the right as one batch, with sizes that are multiples of a number."""
    stride = int(size_divisible)
    height, width = (
        (_largest([image.shape[axis] for image in images]) + stride - 1) // stride * stride for axis in (1, 2)
    )
    padded = [
        torch.nn.functional.pad(image, (0, width - image.shape[2], 0, height - image.shape[1])) for image in images
    ]
    return torch.stack(padded)


def _largest(sizes: Any) -> Any:
    """Return the largest size, without a branch."""
    return functools.reduce(torch.sym_max, sizes)


def least_count(input: Any, orig_kval: int, axis: int) -> Any:
    """Return the smaller one of a number and the size of an axis, without a branch."""
    return torch.sym_min(orig_kval, input.shape[axis])


def decoded_boxes(self: Any, rel_codes: Any, boxes: Any) -> Any:
    """Return boxes ``[count, classes, 4]`` for codes ``[count, classes * 4]``, without a branch for no boxes."""
    anchors = torch.cat(boxes, 0)
    count = anchors.shape[0]
    codes = rel_codes if rel_codes.dim() == 2 else rel_codes.reshape(count, -1)
    result = self.decode_single(codes, anchors)
    return result.reshape(count, result.shape[-1] // 4, 4)


def power_of_two(feature: Any, original_size: Any) -> float:
    """Return the power of two next to the ratio of two heights, in logarithms, by comparisons of integers.

    Each comparison is a branch on sizes, and a ratio of symbolic sizes has no logarithm.
    """
    height, original = feature.shape[-2], original_size[0]
    scale = 1.0
    while 2 * height * height < original * original:
        scale, height = scale / 2, height * 2
    while height * height > 2 * original * original:
        scale, original = scale * 2, original * 2
    return scale


def pasted_masks(masks: Any, boxes: Any, img_shape: Any, padding: int = 1) -> Any:
    """Return masks ``[count, 1, size, size]`` resized to their boxes, in images of zeros.

    Args:
        masks: The masks.
        boxes: Their boxes ``[count, 4]``.
        img_shape: Height and width of the image.
        padding: Number of zeros around a mask.
    """
    heads = sys.modules["torchvision.models.detection.roi_heads"]
    masks, scale = heads.expand_masks(masks, padding=padding)
    corners = heads.expand_boxes(boxes, scale).to(torch.int64)
    rows = _linear_weights(corners[:, 1], corners[:, 3], masks.shape[-2], img_shape[0], masks.dtype)
    columns = _linear_weights(corners[:, 0], corners[:, 2], masks.shape[-1], img_shape[1], masks.dtype)
    return rows.unsqueeze(1) @ masks @ columns.mT.unsqueeze(1)


def _linear_weights(first: Any, last: Any, count: int, size: Any, dtype: Any) -> Any:
    """Return weights ``[boxes, size, count]`` that interpolate `count` values linearly from `first` to `last`."""
    position = torch.arange(size) - first[:, None]
    length = (last - first + 1).clamp(min=1).to(dtype)
    source = ((position.to(dtype) + 0.5) * (count / length)[:, None] - 0.5).clamp(0, count - 1)
    inside = (position >= 0) & (position <= (last - first)[:, None])
    distance = (source[..., None] - torch.arange(count, dtype=dtype)).abs()
    return (1 - distance).clamp(min=0) * inside[..., None].to(dtype)


def keypoints(maps: Any, rois: Any) -> tuple[Any, Any]:
    """Return the points ``[count, points, 3]`` of the largest heat, and the heats.

    Args:
        maps: Heat maps ``[count, points, size, size]``, resized to the boxes by cubic interpolation.
        rois: The boxes ``[count, 4]``.
    """
    maps, rois = maps.detach(), rois.detach()  # A scan of which only a part has gradients is refused by torch.
    sizes = (rois[:, 2:] - rois[:, :2]).clamp(min=1)
    whole = sizes.ceil()
    limits = torch.cat([whole, whole.new_ones(1, 2)]).amax(0).to(torch.int64)
    width, height = limits[0].item(), limits[1].item()
    for size in (width, height):
        torch._check(size >= 1)
    columns, rows = torch.arange(width, dtype=maps.dtype), torch.arange(height, dtype=maps.dtype)

    def step(state: Any, item: Any) -> tuple[Any, Any]:
        heat, size = item
        vertical, is_row = _cubic_weights(rows, size[1], heat.shape[-2])
        horizontal, is_column = _cubic_weights(columns, size[0], heat.shape[-1])
        resized = vertical @ heat @ horizontal.mT
        inside = is_row[:, None] & is_column
        flat = torch.where(inside, resized, -torch.inf).flatten(1)
        position = flat.argmax(1)
        return state.clone(), (position, flat.gather(1, position[:, None])[:, 0])

    _, (position, heats) = scan(step, maps.new_zeros(1), (maps, whole))
    corrected = sizes / whole
    x = ((position % width).to(maps.dtype) + 0.5) * corrected[:, :1] + rois[:, :1]
    y = (torch.div(position, width, rounding_mode="floor").to(maps.dtype) + 0.5) * corrected[:, 1:] + rois[:, 1:2]
    return torch.stack([x, y, torch.ones_like(x)], -1), heats


def _cubic_weights(positions: Any, size: Any, count: int) -> tuple[Any, Any]:
    """Return weights ``[positions, count]`` that resize `count` values to `size`, and the positions within it."""
    source = (positions + 0.5) * (count / size) - 0.5
    low = source.floor()
    t = source - low
    numbers = torch.arange(count, dtype=positions.dtype)
    weights = 0
    for offset, distance in ((-1, t + 1), (0, t), (1, 1 - t), (2, 2 - t)):
        if offset in (0, 1):
            weight = ((CUBIC + 2) * distance - (CUBIC + 3)) * distance * distance + 1
        else:
            weight = ((CUBIC * distance - 5 * CUBIC) * distance + 8 * CUBIC) * distance - 4 * CUBIC
        index = (low + offset).clamp(0, count - 1)
        weights = weights + weight[:, None] * (index[:, None] == numbers)
    return weights, positions < size
