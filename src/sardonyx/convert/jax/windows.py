"""Convolutions and reductions of windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.convert.jax.primitives import extremes, like, spread
from sardonyx.convert.jax.translation import Context, dtype_of, rule
from sardonyx.errors import UnsupportedError

_LARGEST_WINDOW = 1024


@rule("conv_general_dilated")
def _convolution(c: Context, e: Any, x: ir.Value, w: ir.Value) -> ir.Value:
    p = e.params
    lhs, rhs, out = p["dimension_numbers"]
    x = c.node("Transpose", x, perm=list(lhs))
    w = c.node("Transpose", w, perm=list(rhs))
    shape = [e.invars[0].aval.shape[i] for i in lhs]
    for axis, factor in enumerate(p["lhs_dilation"]):
        if factor > 1:
            x = spread(c, x, shape, axis + 2, int(factor) - 1, like(c, e, 0))
            shape[axis + 2] = (shape[axis + 2] - 1) * factor + 1
    batches = int(p["batch_group_count"])
    if batches > 1:
        # Groups of the batch are groups of channels of a smaller batch.
        apart = c.reshaped(x, [batches, shape[0] // batches, *shape[1:]])
        apart = c.node("Transpose", apart, perm=[1, 0, *range(2, len(shape) + 1)])
        x = c.reshaped(apart, [shape[0] // batches, shape[1] * batches, *shape[2:]])
    pads = [pair[0] for pair in p["padding"]], [pair[1] for pair in p["padding"]]
    is_known = all(isinstance(n, (int, np.integer)) and n >= 0 for side in pads for n in side)
    if not is_known:
        x = c.node("Pad", x, c.sizes([0, 0, *pads[0], 0, 0, *pads[1]]))
    result = c.node(
        "Conv",
        x,
        w,
        strides=[int(n) for n in p["window_strides"]],
        dilations=[int(n) for n in p["rhs_dilation"]],
        group=int(p["feature_group_count"]) * batches,
        pads=[int(n) for side in pads for n in side] if is_known else None,
    )
    order = [list(out).index(axis) for axis in range(len(out))]
    return c.node("Transpose", result, perm=order)


@rule("select_and_scatter_add")
def _scattered(c: Context, e: Any, source: ir.Value, x: ir.Value) -> ir.Value:
    """The gradient of a maximum over windows: every number goes to the place of its window's extreme."""
    p, shape, windows = e.params, e.invars[1].aval.shape, e.invars[0].aval.shape
    kernel, strides, pads = p["window_dimensions"], p["window_strides"], p["padding"]
    if any(not isinstance(n, int) for n in (*shape, *windows)):
        raise UnsupportedError("indices of extremes over open sizes", where=e.primitive.name)
    spatial = [
        i for i, (k, s) in enumerate(zip(kernel, strides, strict=True)) if k != 1 or s != 1 or tuple(pads[i]) != (0, 0)
    ]
    if not spatial:
        return c.node("Identity", source)
    order = [*(i for i in range(len(shape)) if i not in spatial), *spatial]
    flat = c.node("Transpose", x if p["select_prim"].name == "ge" else c.node("Neg", x), perm=order)
    flat = c.node("Reshape", flat, c.ints([-1, 1, *(shape[i] for i in spatial)]))
    _, indices = c.nodes_of(
        "MaxPool",
        2,
        flat,
        kernel_shape=[int(kernel[i]) for i in spatial],
        strides=[int(strides[i]) for i in spatial],
        pads=[int(pads[i][side]) for side in range(2) for i in spatial],
    )
    zeros = c.constant(np.zeros(int(np.prod(shape))), dtype_of(e.invars[0]))
    updates = c.node("Reshape", c.node("Transpose", source, perm=order), c.ints([-1]))
    total = c.node("ScatterElements", zeros, c.node("Reshape", indices, c.ints([-1])), updates, axis=0, reduction="add")
    total = c.node("Reshape", total, c.ints([shape[i] for i in order]))
    return c.node("Transpose", total, perm=[order.index(i) for i in range(len(order))])


@rule("reduce_window_max", "reduce_window_sum", "reduce_window_min")
def _window(c: Context, e: Any, x: ir.Value) -> ir.Value:
    p, shape, result = e.params, e.invars[0].aval.shape, e.outvars[0].aval.shape
    if any(n != 1 for n in p["base_dilation"]):
        raise UnsupportedError("base_dilation other than 1", where=e.primitive.name)
    kernel, strides, pads = p["window_dimensions"], p["window_strides"], p["padding"]
    spatial = [
        i for i, (k, s) in enumerate(zip(kernel, strides, strict=True)) if k != 1 or s != 1 or tuple(pads[i]) != (0, 0)
    ]
    if not spatial:
        return c.node("Identity", x)
    others = [i for i in range(len(shape)) if i not in spatial]
    least, most = extremes(dtype_of(e.invars[0]))
    neutral = {"reduce_window_max": least, "reduce_window_min": most, "reduce_window_sum": 0}[e.primitive.name]
    if not all(isinstance(n, (int, np.integer)) for pair in pads for n in pair):
        ends = c.sizes([pair[side] for side in range(2) for pair in pads])
        x = c.node("Pad", x, ends, like(c, e, neutral))
        shape = [n + low + high for n, (low, high) in zip(shape, pads, strict=True)]
        pads = [(0, 0)] * len(shape)
    order = [*others, *spatial]
    flat = c.node("Transpose", x, perm=order)
    flat = c.node("Reshape", flat, c.node("Concat", c.ints([-1, 1]), c.sizes([shape[i] for i in spatial]), axis=0))
    attributes: dict[str, Any] = {
        "kernel_shape": [int(kernel[i]) for i in spatial],
        "strides": [int(strides[i]) for i in spatial],
        "pads": [int(pads[i][side]) for side in range(2) for i in spatial],
        "dilations": [int(p["window_dilation"][i]) for i in spatial],
    }
    name = e.primitive.name
    if name == "reduce_window_sum":
        pooled = c.node("AveragePool", flat, count_include_pad=1, **attributes)
        pooled = c.node("Mul", pooled, like(c, e, float(np.prod(attributes["kernel_shape"]))))
    elif name == "reduce_window_min":
        pooled = c.node("Neg", c.node("MaxPool", c.node("Neg", flat), **attributes))
    else:
        pooled = c.node("MaxPool", flat, **attributes)
    pooled = c.reshaped(pooled, [result[i] for i in order])
    return c.node("Transpose", pooled, perm=[order.index(i) for i in range(len(order))])


@rule("reduce_window")
def _window_of_function(c: Context, e: Any, *inputs: ir.Value) -> list[ir.Value]:
    """Translate windows that any function reduces: one strided slice for each element of a window, in order."""
    p, count = e.params, len(e.outvars)
    if any(n != 1 for n in p["base_dilation"]):
        raise UnsupportedError("base_dilation other than 1", where=e.primitive.name)
    kernel, strides, dilations = p["window_dimensions"], p["window_strides"], p["window_dilation"]
    if int(np.prod(kernel)) > _LARGEST_WINDOW:
        raise UnsupportedError(f"windows of more than {_LARGEST_WINDOW} elements", where=e.primitive.name)
    operands, starts = inputs[:count], inputs[count:]
    ends = c.sizes([pair[side] for side in range(2) for pair in p["padding"]])
    padded = [c.node("Pad", x, ends, start) for x, start in zip(operands, starts, strict=True)]
    axes = list(range(len(kernel)))
    spans = c.sizes([(n - 1) * stride + 1 for n, stride in zip(e.outvars[0].aval.shape, strides, strict=True)])
    values = list(starts)
    for offset in np.ndindex(*kernel):
        begins = c.ints([int(i * d) for i, d in zip(offset, dilations, strict=True)])
        stops = c.node("Add", begins, spans)
        parts = [c.node("Slice", x, begins, stops, c.ints(axes), c.ints([int(n) for n in strides])) for x in padded]
        values = c.call(p["jaxpr"], p["consts"], [*values, *parts])
    return [c.node("Expand", value, c.sizes(e.outvars[0].aval.shape)) for value in values]
