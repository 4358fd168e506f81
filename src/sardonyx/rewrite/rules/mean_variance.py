"""MeanVarianceNormalization written in primitives, with 10⁻⁹ added to the deviation, not the variance."""

from __future__ import annotations

import math

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import APPROXIMATES, Refusal, Result, rule
from sardonyx.rewrite.notation import MeanVarianceNormalization
from sardonyx.rewrite.rules.activations import BESIDE_ONNXRUNTIME
from sardonyx.rewrite.rules.normalization import (
    Centered,
    count_trailing,
    match_centered,
    match_mean,
    match_rms,
    producer_of,
)
from sardonyx.rewrite.rules.polynomials import find_shared_value, number_of
from sardonyx.rewrite.site import Site

EPSILON = 1e-9
"""Number that the operator adds to the standard deviation."""


@rule("fuse_mean_variance_normalization", on="Div", after="Add", exactness=APPROXIMATES, opset=9)
def mean_variance_normalization(s: Site) -> Result:
    """Fuse (x − mean) / (√variance + 10⁻⁹) into MeanVarianceNormalization.

    The results agree for inputs that vary by more than rounding. If all elements are nearly equal, the quotient is one
    of two rounding errors, which differ between kernels: a difference of two squares may even be negative, and its root
    NaN.
    """
    raised, deviation = s.producer(1, "Add"), s.input(0)
    middle = None if deviation is None else match_centered(s, deviation)
    if raised is None or middle is None:
        return None
    at = next((i for i in (0, 1) if _is_epsilon(raised.inputs[i])), None)
    nodes = None if at is None else _deviation(s, raised.inputs[1 - at], middle)
    if nodes is None:
        return None
    if facts.dtype(middle.x) != ir.DataType.FLOAT:
        return Refusal("engines have a kernel for float32 only")
    if count_trailing(middle.axes, facts.rank(middle.x)) is None and s.target not in BESIDE_ONNXRUNTIME:
        return Refusal("ONNX Runtime transposes its input unless the normalized axes are last, which is slower")
    outside = find_shared_value({raised: None, **nodes, **middle.nodes}, s.node)
    if outside is not None:
        return Refusal(f"intermediate value '{outside}' has other readers")
    return MeanVarianceNormalization(middle.x, axes=list(middle.axes))


def _is_epsilon(value: ir.Value | None) -> bool:
    number = number_of(value)
    return number is not None and math.isclose(number, EPSILON, rel_tol=1e-6)


def _deviation(s: Site, value: ir.Value | None, middle: Centered) -> dict[ir.Node, None] | None:
    """Return the nodes that compute ``value`` as the standard deviation along the same axes, or None."""
    rms = match_rms(s, value)
    if rms is not None:
        is_same_variance = rms.epsilon == 0 and rms.axes == middle.axes
        centering = match_centered(s, rms.deviation) if is_same_variance else None
        if centering is None or centering.x is not middle.x:
            return None
        return {**rms.nodes, **centering.nodes}
    root = producer_of(s, value, "Sqrt", "Pow")
    if root is None or (root.op_type == "Pow" and number_of(root.inputs[1]) != 0.5):
        return None
    difference = producer_of(s, root.inputs[0], "Sub")
    if difference is None:
        return None
    of_squares, squared_mean = match_mean(s, difference.inputs[0]), _square(s, difference.inputs[1])
    mean = None if squared_mean is None else match_mean(s, squared_mean.inputs[0])
    squares = None if of_squares is None else _square(s, of_squares[0].inputs[0])
    if of_squares is None or mean is None or squares is None or squared_mean is None:
        return None
    same = squares.inputs[0] is middle.x is mean[0].inputs[0] and of_squares[1] == mean[1] == middle.axes
    return dict.fromkeys([root, difference, of_squares[0], squared_mean, mean[0], squares]) if same else None


def _square(s: Site, value: ir.Value | None) -> ir.Node | None:
    """Return the node that squares a tensor to ``value``, as Mul or Pow."""
    node = producer_of(s, value, "Mul", "Pow")
    if node is None:
        return None
    is_square = node.inputs[0] is node.inputs[1] if node.op_type == "Mul" else number_of(node.inputs[1]) == 2
    return node if is_square else None
