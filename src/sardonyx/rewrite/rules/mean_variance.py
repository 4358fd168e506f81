"""MeanVarianceNormalization written out: its 10⁻⁹ is added to the deviation, and not under the root."""

from __future__ import annotations

import math

import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import APPROXIMATES, Refusal, Result, rule
from sardonyx.rewrite.notation import MeanVarianceNormalization
from sardonyx.rewrite.rules.activations import BESIDE_ONNXRUNTIME
from sardonyx.rewrite.rules.normalization import Centered, centered, made_by, mean_of, spread, trailing
from sardonyx.rewrite.rules.polynomials import number_of, read_outside
from sardonyx.rewrite.site import Site

EPSILON = 1e-9
"""What the operator adds to the standard deviation."""


@rule("fuse_mean_variance_normalization", on="Div", after="Add", exactness=APPROXIMATES, opset=9)
def mean_variance_normalization(s: Site) -> Result:
    """(x − mean) / (√variance + 10⁻⁹) is MeanVarianceNormalization, for what varies by more than rounding.

    Where all elements are nearly equal, the quotient is of two rounding errors, which kernels make otherwise: the
    difference of two squares may even be below 0, and its root NaN.
    """
    raised, deviation = s.producer(1, "Add"), s.input(0)
    middle = None if deviation is None else centered(s, deviation)
    if raised is None or middle is None:
        return None
    at = next((i for i in (0, 1) if _is_epsilon(raised.inputs[i])), None)
    nodes = None if at is None else _deviation(s, raised.inputs[1 - at], middle)
    if nodes is None:
        return None
    if facts.dtype(middle.x) != ir.DataType.FLOAT:
        return Refusal("engines have a kernel for 32-bit floats only")
    if trailing(middle.axes, facts.rank(middle.x)) is None and s.target not in BESIDE_ONNXRUNTIME:
        return Refusal("ONNX Runtime turns what is not normalized over its last axes, which takes longer")
    outside = read_outside({raised: None, **nodes, **middle.nodes}, s.node)
    if outside is not None:
        return Refusal(f"'{outside}' in between has other readers")
    return MeanVarianceNormalization(middle.x, axes=list(middle.axes))


def _is_epsilon(value: ir.Value | None) -> bool:
    number = number_of(value)
    return number is not None and math.isclose(number, EPSILON, rel_tol=1e-6)


def _deviation(s: Site, value: ir.Value | None, middle: Centered) -> dict[ir.Node, None] | None:
    """The nodes by which ``value`` is the root of the variance along the same axes, or None where it is not."""
    found = spread(s, value)
    if found is not None:
        ours = found.epsilon == 0 and found.axes == middle.axes
        again = centered(s, found.deviation) if ours else None
        if again is None or again.x is not middle.x:
            return None
        return {**found.nodes, **again.nodes}
    root = made_by(s, value, "Sqrt", "Pow")
    if root is None or (root.op_type == "Pow" and number_of(root.inputs[1]) != 0.5):
        return None
    difference = made_by(s, root.inputs[0], "Sub")
    if difference is None:
        return None
    of_squares, squared_mean = mean_of(s, difference.inputs[0]), _square(s, difference.inputs[1])
    mean = None if squared_mean is None else mean_of(s, squared_mean.inputs[0])
    squares = None if of_squares is None else _square(s, of_squares[0].inputs[0])
    if of_squares is None or mean is None or squares is None or squared_mean is None:
        return None
    same = squares.inputs[0] is middle.x is mean[0].inputs[0] and of_squares[1] == mean[1] == middle.axes
    return dict.fromkeys([root, difference, of_squares[0], squared_mean, mean[0], squares]) if same else None


def _square(s: Site, value: ir.Value | None) -> ir.Node | None:
    """The product of a tensor with itself, or its second power, that makes ``value``."""
    node = made_by(s, value, "Mul", "Pow")
    if node is None:
        return None
    twice = node.inputs[0] is node.inputs[1] if node.op_type == "Mul" else number_of(node.inputs[1]) == 2
    return node if twice else None
