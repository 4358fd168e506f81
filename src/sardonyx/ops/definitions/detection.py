"""Detection: ``NonMaxSuppression``.

Source: ONNX Operators, *NonMaxSuppression*. As in ONNX's own evaluator and in ONNX Runtime, a score must be above the
threshold, and among equal scores the box with the lower index comes first.
"""

from __future__ import annotations

import math

import numpy as np

from sardonyx.core.eval.host_function import unknown_size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType, Type
from sardonyx.core.rules.assumed_sizes import same_size
from sardonyx.errors import ExecutionError, ShapeError
from sardonyx.ops.registry import host_operator

Array = np.ndarray

_BLOCK = 64
"""Number of boxes that are compared with the chosen boxes at a time."""


def _types(
    boxes: TensorType,
    scores: TensorType,
    most: Type | None = None,
    iou_threshold: Type | None = None,
    score_threshold: Type | None = None,
    *,
    center_point_box: int = 0,
) -> tuple[Type]:
    a, b = boxes.shape or (), scores.shape or ()
    if len(a) != 3 or len(b) != 3 or not all(map(same_size, (a[0], a[1], a[2]), (b[0], b[2], 4))):
        raise ShapeError(
            f"expected boxes [batch, boxes, 4] and scores [batch, classes, boxes], got {boxes} and {scores}."
        )
    for one in (most, iou_threshold, score_threshold):
        if isinstance(one, TensorType) and not same_size(math.prod(one.shape or ()), 1):
            raise ShapeError(f"expected one number for the limit on boxes and for each threshold, got {one}.")
    return (TensorType(t.INT64, (unknown_size(), 3)),)


@host_operator("NonMaxSuppression", since=10, types=_types, reason="the number of boxes is counted from data")
def non_max_suppression(
    boxes: Array,
    scores: Array,
    most: Array | None = None,
    iou_threshold: Array | None = None,
    score_threshold: Array | None = None,
    *,
    center_point_box: int = 0,
) -> tuple[Array]:
    limit = 0 if most is None else int(most.reshape(()))
    overlap = 0.0 if iou_threshold is None else float(iou_threshold.reshape(()))
    if not 0 <= overlap <= 1:
        raise ExecutionError(f"the overlap threshold is {overlap}.", remedy="Use a threshold from 0 to 1.")
    low, high = _corners(boxes, center_point_box)
    selected = []
    for image, category in np.ndindex(*scores.shape[:2]):
        of = scores[image, category]
        order = np.arange(len(of))
        if score_threshold is not None:
            order = np.flatnonzero(of > score_threshold.reshape(()))
        order = order[np.argsort(-of[order], kind="stable")]
        chosen = _suppress(low[image], high[image], order, limit, overlap)
        selected += [(image, category, box) for box in chosen]
    return (np.array(selected, np.int64).reshape(-1, 3),)


def _corners(boxes: Array, centered: int) -> tuple[Array, Array]:
    """Return the lower and the upper corner of every box."""
    a, b = boxes[..., :2], boxes[..., 2:]
    return (a - b / 2, a + b / 2) if centered else (np.minimum(a, b), np.maximum(a, b))


def _suppress(low: Array, high: Array, order: Array, limit: int, overlap: float) -> list[int]:
    """Return the remaining boxes in order; each chosen box suppresses later boxes that overlap."""
    area = (high - low).prod(-1)

    def overlap_each_other(one: Array, other: Array) -> Array:
        tall, wide = np.moveaxis(np.minimum(high[one], high[other]) - np.maximum(low[one], low[other]), -1, 0)
        common = np.maximum(tall, 0) * np.maximum(wide, 0)
        union = area[one] + area[other] - common
        solid = (common > 0) & (area[one] > 0) & (area[other] > 0) & (union > 0)
        return np.asarray(np.divide(common, union, out=np.zeros_like(common), where=solid) > overlap)

    chosen: list[int] = []
    # Blocks: with a low limit most boxes are never compared.
    for start in range(0, len(order), _BLOCK):
        if len(chosen) >= limit:
            break
        remaining = order[start : start + _BLOCK]
        overlapping = overlap_each_other(np.array(chosen, np.intp)[:, None], remaining)
        remaining = remaining[~overlapping.any(0)]
        suppressed = np.zeros(len(remaining), np.bool_)
        for i, suppresses in enumerate(overlap_each_other(remaining[:, None], remaining)):
            if not suppressed[i] and len(chosen) < limit:
                chosen.append(int(remaining[i]))
                suppressed |= suppresses
    return chosen
