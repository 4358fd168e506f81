"""Detection: ``NonMaxSuppression``.

Source: ONNX Operators, *NonMaxSuppression*. As in ONNX's own evaluator and in ONNX Runtime, a score has to be above the
threshold, and of equal scores the first box goes first.
"""

from __future__ import annotations

import math

import numpy as np

from sardonyx.core.eval.host_function import unknown_size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType, Type
from sardonyx.core.rules.type_rules import same_size
from sardonyx.errors import ExecutionError, ShapeError
from sardonyx.ops.registry import host_operator

Array = np.ndarray

_BLOCK = 256
"""Boxes that are compared with those chosen before at once."""


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
            f"boxes [batch, boxes, 4] and scores [batch, classes, boxes] are needed, not {boxes}, {scores}."
        )
    for one in (most, iou_threshold, score_threshold):
        if isinstance(one, TensorType) and not same_size(math.prod(one.shape or ()), 1):
            raise ShapeError(f"the limit on boxes and the thresholds are one number each, and {one} was given.")
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
        raise ExecutionError(f"the threshold on overlaps is {overlap}.", remedy="Give one from 0 to 1.")
    low, high = _corners(boxes, center_point_box)
    found = []
    for image, category in np.ndindex(*scores.shape[:2]):
        of = scores[image, category]
        order = np.arange(len(of))
        if score_threshold is not None:
            order = np.flatnonzero(of > score_threshold.reshape(()))
        order = order[np.argsort(-of[order], kind="stable")]
        chosen = _suppressed(low[image], high[image], order, limit, overlap)
        found += [(image, category, box) for box in chosen]
    return (np.array(found, np.int64).reshape(-1, 3),)


def _corners(boxes: Array, centered: int) -> tuple[Array, Array]:
    """The lower and the upper corner of every box."""
    a, b = boxes[..., :2], boxes[..., 2:]
    return (a - b / 2, a + b / 2) if centered else (np.minimum(a, b), np.maximum(a, b))


def _suppressed(low: Array, high: Array, order: Array, limit: int, overlap: float) -> list[int]:
    """The boxes that stay, in order, each taking away those after it that it overlaps."""
    area = (high - low).prod(-1)

    def overlap_each_other(one: Array, other: Array) -> Array:
        tall, wide = np.moveaxis(np.minimum(high[one], high[other]) - np.maximum(low[one], low[other]), -1, 0)
        common = np.maximum(tall, 0) * np.maximum(wide, 0)
        union = area[one] + area[other] - common
        solid = (common > 0) & (area[one] > 0) & (area[other] > 0) & (union > 0)
        return np.asarray(np.divide(common, union, out=np.zeros_like(common), where=solid) > overlap)

    chosen: list[int] = []
    # Most of the boxes are never looked at where few are asked for.
    for start in range(0, len(order), _BLOCK):
        if len(chosen) >= limit:
            break
        left_over = order[start : start + _BLOCK]
        taken = overlap_each_other(np.array(chosen, np.intp)[:, None], left_over)
        left_over = left_over[~taken.any(0)]
        while len(left_over) and len(chosen) < limit:
            first, rest = left_over[0], left_over[1:]
            chosen.append(int(first))
            left_over = rest[~overlap_each_other(first, rest)]
    return chosen
