"""Dynamic quantization of activations, as operators with float inputs and 8-bit weights compute them.

The interpreter rounds the activations of such an operator to 8 bits at run time, with scales from their range. The same
rounding, as float operations, keeps the model equal to its source.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.convert.graph_builder import GraphBuilder


def rounded(c: GraphBuilder, x: ir.Value, axes: Sequence[int], *, asymmetric: bool) -> ir.Value:
    """Return `x` rounded to 8 bits, with a scale for all elements along `axes`."""
    over = c.constant(list(axes), np.int64)
    return _asymmetric(c, x, over) if asymmetric else _symmetric(c, x, over)


def _half_away(c: GraphBuilder, x: ir.Value) -> ir.Value:
    """Return `x` rounded to integers, halves away from zero."""
    whole = c.node("Floor", c.node("Add", c.node("Abs", x), c.constant(0.5, np.float32)))
    return c.node("Mul", c.node("Sign", x), whole)


def _symmetric(c: GraphBuilder, x: ir.Value, over: ir.Value) -> ir.Value:
    """Scale the largest absolute value to 127."""
    limit = c.node("ReduceMax", c.node("Abs", x), over, keepdims=1)
    scale = c.node("Div", limit, c.constant(127, np.float32))
    scale = c.node("Where", c.node("Equal", limit, c.constant(0, np.float32)), c.constant(1, np.float32), scale)
    steps = _half_away(c, c.node("Div", x, scale))
    steps = c.node("Clip", steps, c.constant(-127, np.float32), c.constant(127, np.float32))
    return c.node("Mul", steps, scale)


def _asymmetric(c: GraphBuilder, x: ir.Value, over: ir.Value) -> ir.Value:
    """Scale the range, extended to 0, to -128 … 127, with 0 on an integer."""
    zero, low_end, high_end = (c.constant(n, np.float32) for n in (0, -128, 127))
    low = c.node("Min", c.node("ReduceMin", x, over, keepdims=1), zero)
    high = c.node("Max", c.node("ReduceMax", x, over, keepdims=1), zero)
    scale = c.node("Div", c.node("Sub", high, low), c.constant(255, np.float32))
    scale = c.node("Where", c.node("Equal", scale, zero), c.constant(1, np.float32), scale)
    from_low = c.node("Sub", low_end, c.node("Div", low, scale))
    from_high = c.node("Sub", high_end, c.node("Div", high, scale))
    low_error = c.node("Add", c.constant(128, np.float32), c.node("Abs", c.node("Div", low, scale)))
    high_error = c.node("Add", c.constant(127, np.float32), c.node("Abs", c.node("Div", high, scale)))
    point = c.node("Where", c.node("Less", low_error, high_error), from_low, from_high)
    point = _half_away(c, c.node("Clip", point, low_end, high_end))
    steps = c.node("Add", _half_away(c, c.node("Div", x, scale)), point)
    steps = c.node("Clip", steps, low_end, high_end)
    return c.node("Mul", c.node("Sub", steps, point), scale)
