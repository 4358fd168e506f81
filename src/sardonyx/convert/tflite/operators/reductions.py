"""Reductions along axes, positions of extremes, sorting, cumulative sums and segments."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.convert.tflite.operators.movement import axes_constant, axis_of
from sardonyx.convert.tflite.translation import OPERATORS, Call, Translator, tflite

REDUCTIONS = {
    "MEAN": "ReduceMean",
    "SUM": "ReduceSum",
    "REDUCE_PROD": "ReduceProd",
    "REDUCE_MAX": "ReduceMax",
    "REDUCE_MIN": "ReduceMin",
}
"""Reductions that ONNX has under another name."""


def _reduction(operator: str) -> Translator:
    def reduction(c: Call) -> ir.Value:
        axes = c.node("Reshape", c.int64(1), axes_constant(c, [-1])) if c.array(1) is None else None
        if axes is None:
            values = c.integers(1, "the axes")
            if not values:
                return c.node("Identity", c.input(0))
            axes = axes_constant(c, values)
        value = c.input(0)
        is_integer = c.tensor(0).type.startswith(("INT", "UINT")) and not c.scope.is_quantized(c.index(0))
        whole = operator == "ReduceMean" and is_integer
        if whole:
            value = c.cast(value, ir.DataType.DOUBLE)
        result = c.node(operator, value, axes, keepdims=int(bool(c.option("keep_dims"))))
        return c.cast(result, c.output_type()) if whole else result

    return reduction


OPERATORS.update({name: _reduction(operator) for name, operator in REDUCTIONS.items()})


@tflite("REDUCE_ANY", "REDUCE_ALL")
def reduce_any(c: Call) -> ir.Value:
    """Translate a reduction of truth values."""
    operator = "ReduceMax" if c.name == "REDUCE_ANY" else "ReduceMin"
    axes = axes_constant(c, c.integers(1, "the axes"))
    numbers = c.cast(c.input(0), ir.DataType.INT32)
    return c.cast(c.node(operator, numbers, axes, keepdims=int(bool(c.option("keep_dims")))), ir.DataType.BOOL)


@tflite("ARG_MAX", "ARG_MIN")
def arg_max(c: Call) -> ir.Value:
    """Translate the first position of an extreme."""
    axis = axis_of(c, c.integers(1, "the axis")[0], c.rank(0))
    operator = "ArgMax" if c.name == "ARG_MAX" else "ArgMin"
    value = c.input(0)
    if c.tensor(0).type == "BOOL":
        value = c.cast(value, ir.DataType.INT32)
    return c.cast(c.node(operator, value, axis=axis, keepdims=0), c.output_type())


@tflite("TOPK_V2")
def topk(c: Call) -> list[ir.Value]:
    """Translate the largest elements of the last axis and their positions."""
    count = c.node("Reshape", c.int64(1), axes_constant(c, [1]))
    values, indices = c.nodes("TopK", 2, c.input(0), count, axis=-1)
    return [values, c.cast(indices, c.output_type(1))]


@tflite("CUMSUM")
def cumsum(c: Call) -> ir.Value:
    """Translate the cumulative sum."""
    axis = c.node("Squeeze", c.int64(1)) if c.rank(1) else c.int64(1)
    exclusive, reverse = (int(bool(c.option(name))) for name in ("exclusive", "reverse"))
    return c.node("CumSum", c.input(0), axis, exclusive=exclusive, reverse=reverse)


@tflite("UNIQUE")
def unique(c: Call) -> list[ir.Value]:
    """Translate the distinct elements in order of appearance, and the position of each element among them."""
    x, narrow = c.input(0), c.output_type() in (ir.DataType.INT32, ir.DataType.INT16)
    if narrow:  # ONNX Runtime has no Unique of these types.
        x = c.cast(x, ir.DataType.INT64)
    values, _, inverse, _ = c.nodes("Unique", 4, x, sorted=0)
    return [c.cast(values, c.output_type()) if narrow else values, c.cast(inverse, c.output_type(1))]


SEGMENTS = {"SUM": ("add", 0.0), "PROD": ("mul", 1.0), "MAX": ("max", None), "MIN": ("min", None)}
"""The reduction of ScatterND and the value of an empty segment; None for the extreme of the type."""


@tflite(
    "SEGMENT_SUM",
    "UNSORTED_SEGMENT_SUM",
    "UNSORTED_SEGMENT_PROD",
    "UNSORTED_SEGMENT_MAX",
    "UNSORTED_SEGMENT_MIN",
)
def segments(c: Call) -> ir.Value:
    """Translate a reduction of rows by the number of their segment; negative numbers are left out."""
    reduction, empty = SEGMENTS[c.name.rsplit("_", 1)[-1]]
    dtype = c.output_type().numpy()
    if empty is None:
        limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        empty = float(limits.min if reduction == "max" else limits.max)
    ids, rows = c.int64(1), c.rank(1)
    if c.name == "SEGMENT_SUM":
        last = c.node("ReduceMax", ids, keepdims=0)
        count = c.node("Unsqueeze", c.node("Add", last, c.constant(1, np.int64)), axes_constant(c, [0]))
    else:
        count = c.node("Reshape", c.int64(2), axes_constant(c, [1]))
    # One row more takes the negative segments and is cut off.
    more = c.node("Add", count, c.constant([1], np.int64))
    shape = c.node("Concat", more, c.node("Shape", c.input(0), start=rows), axis=0)
    start = c.node("ConstantOfShape", shape, value=ir.tensor(np.array([empty], dtype)))
    is_negative = c.node("Less", ids, c.constant(0, np.int64))
    targets = c.node("Unsqueeze", c.node("Where", is_negative, count, ids), axes_constant(c, [-1]))
    result = c.node("ScatterND", start, targets, c.input(0), reduction=reduction)
    return c.node("Slice", result, axes_constant(c, [0]), count, axes_constant(c, [0]))


@tflite("BUCKETIZE")
def bucketize(c: Call) -> ir.Value:
    """Translate the number of boundaries that an element reaches."""
    boundaries = np.asarray(c.option("boundaries", ()), np.float32)
    x = c.node("Unsqueeze", c.cast(c.input(0), ir.DataType.FLOAT), axes_constant(c, [-1]))
    reached = c.cast(c.node("GreaterOrEqual", x, c.constant(boundaries)), ir.DataType.INT32)
    return c.cast(c.node("ReduceSum", reached, axes_constant(c, [-1]), keepdims=0), c.output_type())
