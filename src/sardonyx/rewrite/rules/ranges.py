"""Interval analysis: bounds on the elements of a value, NaN apart.

This module has no rule; rules on limits and roots use it.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.site import Site

Interval = tuple[float | None, float | None]
"""Least and greatest value; None if not known."""

INF = math.inf

_BY_OPERATOR: dict[str, Interval] = {
    "Abs": (0.0, INF),
    "Exp": (0.0, INF),
    "HardSigmoid": (0.0, 1.0),
    "ReduceL1": (0.0, INF),
    "ReduceL2": (0.0, INF),
    "ReduceSumSquare": (0.0, INF),
    "Sigmoid": (0.0, 1.0),
    "Softmax": (0.0, None),
    "Softplus": (0.0, INF),
    "Sqrt": (0.0, INF),
}

_SELECTING = frozenset(
    {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Gather", "Expand", "Tile", "Identity"}
    | {"Split", "DepthToSpace", "SpaceToDepth"}
)
"""Operators that only select elements of their first input."""

_KEEPS_NONNEGATIVE = frozenset({"ReduceSum", "ReduceMean", "GlobalAveragePool", "AveragePool"})
"""Operators with nonnegative results for nonnegative inputs."""

_DEEPEST = 8


def value_range(s: Site, value: ir.Value | None, depth: int = 0) -> Interval:
    """Return bounds on all elements of ``value`` except NaN."""
    number = facts.scalar(value)
    if isinstance(number, (int, float)) and not math.isnan(number):
        return number, number
    node = None if value is None else value.producer()
    if node is None or depth > _DEEPEST or not facts.is_op(node, node.op_type):
        return None, None
    if node.op_type in _SELECTING:
        return value_range(s, node.inputs[0], depth + 1)
    if node.op_type == "Clip" and s.opset >= 11:
        return _clip_interval(node)
    if node.op_type == "Concat":
        parts = [value_range(s, v, depth + 1) for v in node.inputs]
        lows, highs = [low for low, _ in parts], [high for _, high in parts]
        return (
            None if None in lows else min(low for low in lows if low is not None),
            None if None in highs else max(high for high in highs if high is not None),
        )
    if node.op_type == "Relu":
        return 0.0, INF
    if node.op_type == "Range":
        start, delta = facts.scalar(node.inputs[0]), facts.scalar(node.inputs[2])
        if start is None or delta is None or delta == 0 or math.isnan(start):
            return None, None
        return (start, None) if delta > 0 else (None, start)
    kind = facts.dtype(value)
    if kind is None or not kind.is_floating_point():
        # Sums, products and even the absolute value of integers wrap around.
        return None, None
    return (0.0, None) if _is_nonnegative(s, node, depth) else _BY_OPERATOR.get(node.op_type, (None, None))


def _clip_interval(node: ir.Node) -> Interval:
    low, high = (facts.scalar(v) for v in (*node.inputs[1:], None, None)[:2])
    bounds = [v for v in node.inputs[1:] if v is not None]
    if len(bounds) != (low is not None) + (high is not None):
        # The upper bound wins if it is below the lower one, so that an unknown bound may override the other.
        return None, None
    return (None, None) if low is not None and high is not None and low > high else (low, high)


def _is_nonnegative(s: Site, node: ir.Node, depth: int) -> bool:
    if node.op_type == "Mul" and node.inputs[0] is node.inputs[1]:
        return True
    if node.op_type in _KEEPS_NONNEGATIVE:
        inputs = node.inputs[:1]
    elif node.op_type in ("Add", "Mul", "Div", "Max", "Min", "Sum", "Mean"):
        inputs = node.inputs
    else:
        return False
    lows = [value_range(s, v, depth + 1)[0] for v in inputs]
    if not all(low is not None and low >= 0 for low in lows):
        return False
    # A divisor of −0.0 would flip the sign.
    return node.op_type != "Div" or (lows[1] is not None and lows[1] > 0)
