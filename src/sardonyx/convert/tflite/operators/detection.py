"""Suppression of overlapping boxes, and the last stage of single-shot detectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.convert.tflite.flexbuffer import flexbuffer
from sardonyx.convert.tflite.operators.movement import axes_constant
from sardonyx.convert.tflite.translation import Call, tflite


def _padded(c: Call, value: ir.Value, length: ir.Value, rank: int) -> ir.Value:
    """Return a value with zeros appended to axis 0 up to `length` (int64 [1])."""
    more = c.node("Sub", length, c.node("Shape", value, end=1))
    begins = axes_constant(c, [0] * rank)
    pads = c.node("Concat", begins, more, axis=0)
    if rank > 1:
        pads = c.node("Concat", pads, axes_constant(c, [0] * (rank - 1)), axis=0)
    return c.node("Pad", value, pads)


def _scalar(c: Call, value: ir.Value) -> ir.Value:
    return c.node("Reshape", value, axes_constant(c, [1]))


@tflite("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5")
def non_max_suppression(c: Call) -> list[ir.Value]:
    """Translate suppression over boxes [n, 4]: positions (and scores) of the rest, number."""
    soft = c.name.endswith("5")
    if soft and any(c.array(5) is None or float(value) for value in np.asarray(c.array(5)).reshape(-1)):
        raise c.unsupported("suppression that lowers scores (soft_nms_sigma other than 0)")
    boxes = c.node("Unsqueeze", c.input(0), axes_constant(c, [0]))
    scores = c.node("Unsqueeze", c.input(1), axes_constant(c, [0, 1]))
    length = _scalar(c, c.int64(2))
    chosen = c.node("NonMaxSuppression", boxes, scores, length, _scalar(c, c.input(3)), _scalar(c, c.input(4)))
    positions = c.node("Gather", chosen, c.constant(2, np.int64), axis=1)
    results = [c.cast(_padded(c, positions, length, 1), ir.DataType.INT32)]
    if soft:
        results.append(_padded(c, c.node("Gather", c.input(1), positions), length, 1))
    count = c.node("Squeeze", c.node("Shape", positions), axes_constant(c, [0]))
    return [*results, c.cast(count, ir.DataType.INT32)]


@tflite("TFLite_Detection_PostProcess")
def detection_postprocess(c: Call) -> list[ir.Value]:
    """Translate decoding of boxes: offsets [1, n, 4], scores [1, n, classes], anchors [n, 4].

    Outputs are boxes [1, m, 4] as (top, left, bottom, right), classes, scores and the number of detections. Without
    ``use_regular_nms``, the best class of each anchor takes part; else each class is suppressed for itself.
    """
    options = flexbuffer(c.record.custom_options, c.where)
    if not isinstance(options, dict):
        raise c.invalid("options: expected a map")

    def number(name: str, default: float | None = None) -> Any:
        value = options.get(name, default)
        if not isinstance(value, (int, float)):
            raise c.invalid(f"option {name}: expected a number, got {value!r}")
        return value

    most, classes = int(number("max_detections")), int(number("num_classes"))
    if int(number("max_classes_per_detection", 1)) != 1 and not number("use_regular_nms", 0):
        raise c.unsupported("several classes per detection")
    columns = c.sizes(1)[-1]
    if not 0 < classes <= columns or not 0 < most <= 1 << 16:
        raise c.invalid(f"expected 1 to {columns} classes and 1 to 65536 detections, got {classes} and {most}")
    boxes = _decoded(c, [float(number(name)) for name in ("y_scale", "x_scale", "h_scale", "w_scale")])
    scores = c.node(
        "Slice", c.input(1), axes_constant(c, [columns - classes]), axes_constant(c, [columns]), axes_constant(c, [2])
    )
    by_class = c.node("Transpose", scores, perm=[0, 2, 1])
    regular = bool(number("use_regular_nms", 0))
    rated = by_class if regular else c.node("ReduceMax", by_class, axes_constant(c, [1]), keepdims=1)
    limit = int(number("detections_per_class", 100)) if regular else most
    chosen = c.node(
        "NonMaxSuppression",
        boxes,
        rated,
        axes_constant(c, [limit]),
        c.constant([number("nms_iou_threshold")], np.float32),
        c.constant([number("nms_score_threshold")], np.float32),
    )
    anchors = c.node("Gather", chosen, c.constant(2, np.int64), axis=1)
    flat = c.node("Squeeze", rated, axes_constant(c, [0]))
    pairs = c.node("Slice", chosen, axes_constant(c, [1]), axes_constant(c, [3]), axes_constant(c, [1]))
    best = c.node("GatherND", flat, pairs)
    count = c.node("Min", c.node("Shape", best), axes_constant(c, [most]))
    values, order = c.nodes("TopK", 2, best, count, axis=0)
    anchors = c.node("Gather", anchors, order)
    if regular:
        labels = c.node("Gather", c.node("Gather", chosen, c.constant(1, np.int64), axis=1), order)
    else:
        best_class = c.node("ArgMax", c.node("Squeeze", by_class, axes_constant(c, [0])), axis=0, keepdims=0)
        labels = c.node("Gather", best_class, anchors)
    rows = c.node("Gather", c.node("Squeeze", boxes, axes_constant(c, [0])), anchors)
    length = axes_constant(c, [most])
    results = [
        _padded(c, rows, length, 2),
        _padded(c, c.cast(labels, ir.DataType.FLOAT), length, 1),
        _padded(c, values, length, 1),
    ]
    batched = [c.node("Unsqueeze", value, axes_constant(c, [0])) for value in results]
    return [*batched, c.cast(count, ir.DataType.FLOAT)]


def _decoded(c: Call, scales: list[float]) -> ir.Value:
    """Return boxes [1, n, 4] from offsets to anchors (centre y, centre x, height, width)."""
    if min(scales) <= 0:
        raise c.invalid(f"expected positive scales, got {scales}")
    offsets = c.node("Div", c.input(0), c.constant(scales, np.float32))
    anchors = c.input(2)

    def part(value: ir.Value, start: int) -> ir.Value:
        ends = (axes_constant(c, [start]), axes_constant(c, [start + 2]), axes_constant(c, [-1]))
        return c.node("Slice", value, *ends)

    sizes = part(anchors, 2)
    centres = c.node("Add", c.node("Mul", part(offsets, 0), sizes), part(anchors, 0))
    half = c.node("Mul", c.node("Mul", c.node("Exp", part(offsets, 2)), sizes), c.constant(0.5, np.float32))
    return c.node("Concat", c.node("Sub", centres, half), c.node("Add", centres, half), axis=-1)
