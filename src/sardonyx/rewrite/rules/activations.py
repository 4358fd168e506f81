"""Activation functions that exporters write out: found in whatever order their products and sums stand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import (
    APPROXIMATES,
    EXACT,
    REASSOCIATES,
    AnyOf,
    Const,
    Match,
    Refusal,
    Result,
    Rewrite,
    Scalar,
    V,
    rule,
)
from sardonyx.rewrite.notation import (
    Abs,
    Add,
    Div,
    Elu,
    Exp,
    Gelu,
    Greater,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    Log,
    Max,
    Mish,
    Mul,
    Neg,
    PRelu,
    Relu,
    Softplus,
    Softsign,
    Sub,
    Swish,
    Tanh,
    ThresholdedRelu,
    Where,
)
from sardonyx.rewrite.rules.broadcasting import keeps_shape
from sardonyx.rewrite.rules.clips import limit
from sardonyx.rewrite.rules.polynomials import (
    ARITHMETIC,
    Expansion,
    arguments,
    close,
    expand,
    inner,
    number_of,
    read_outside,
)
from sardonyx.rewrite.site import Site

BESIDE_ONNXRUNTIME = ("native", "openvino", "tensorrt")
"""Targets for operators whose kernels in ONNX Runtime take longer than the operators that they stand for."""

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
"""Types that engines have kernels of these operators for: few have one for 64 bits."""

NUMBER, CONSTANT = Scalar(), Const()


@dataclass(frozen=True)
class Gated:
    """The root as a polynomial in x and the gate, and the gate's argument as a polynomial in x."""

    x: ir.Value
    gate: ir.Node
    root: Expansion
    argument: Expansion

    def objection(self, s: Site) -> Refusal | None:
        """Why the root must not become an operator of x alone, if there is a reason."""
        outside = read_outside({**self.root.nodes, **self.argument.nodes, self.gate: None}, s.node)
        if outside is not None:
            return Refusal(f"'{outside}' in between has other readers")
        return type_objection(self.x, s.output)


def type_objection(x: ir.Value, y: ir.Value, types: tuple[ir.DataType, ...] = FLOATS) -> Refusal | None:
    """Why an operator of these types cannot make ``y`` of ``x``, if there is a reason."""
    if facts.dtype(x) not in types:
        return Refusal("engines have no kernel for this type")
    if facts.rank(x) is None or facts.rank(x) != facts.rank(y):
        return Refusal("a constant may broadcast the result to another rank")
    return None


def gated(s: Site, *gates: str) -> Iterator[Gated]:
    """Every way to read the root as arithmetic on some x and one of these operators of a polynomial in x."""
    for gate in inner(s, gates):
        for x in arguments(s, gate.inputs[0]):
            argument = expand(s, gate.inputs[0], [x])
            root = None if argument is None else expand(s, s.output, [x, gate.outputs[0]])
            if argument is not None and root is not None:
                yield Gated(x, gate, root, argument)


ROOTS = ("Mul", "Div", "Add")

_TANH_SLOPE = math.sqrt(2 / math.pi)
GELU_ARGUMENTS: dict[str, tuple[dict[tuple[int, ...], float], str | None]] = {
    "Erf": ({(1,): math.sqrt(0.5)}, None),
    "Tanh": ({(1,): _TANH_SLOPE, (3,): _TANH_SLOPE * 0.044715}, "tanh"),
}


@rule(
    "fuse_gelu", on=ROOTS, among=("Erf", "Tanh"), after=(*ARITHMETIC, *GELU_ARGUMENTS), exactness=REASSOCIATES, opset=20
)
def gelu(s: Site) -> Result:
    """Half of x · (1 + erf(x/√2)), and its approximation by tanh, in any order of products and sums, are Gelu."""
    for found in gated(s, *GELU_ARGUMENTS):
        argument, approximate = GELU_ARGUMENTS[found.gate.op_type]
        if found.argument.is_close_to(argument) and found.root.is_close_to({(1, 1): 0.5, (1, 0): 0.5}):
            return found.objection(s) or Gelu(found.x, approximate=approximate)
    return None


@rule("fuse_swish", on="Mul", after=(*ARITHMETIC, "Sigmoid"), exactness=REASSOCIATES, opset=24, targets=("native",))
def swish(s: Site) -> Result:
    """The product x · sigmoid(αx) is Swish: SiLU with α = 1, and Gelu's quick approximation with 1.702."""
    for found in gated(s, "Sigmoid"):
        alpha = found.argument.terms.get((1,), 0.0)
        if found.argument.is_close_to({(1,): alpha}) and found.root.is_close_to({(1, 1): 1.0}):
            return found.objection(s) or Swish(found.x, alpha=alpha)
    return None


def _line(s: Site, gate: ir.Node, argument: Expansion) -> tuple[float, float, float] | None:
    """Slope, offset and height of a gate that is height · min(max(slope · x + offset, 0), 1)."""
    if not argument.terms.keys() <= {(0,), (1,)}:
        return None
    slope, offset = argument.terms.get((1,), 0.0), argument.terms.get((0,), 0.0)
    if gate.op_type == "HardSigmoid":
        steep = s.attr("alpha", node=gate)
        return slope * steep, offset * steep + s.attr("beta", node=gate), 1.0
    bounds = limit(s, gate)
    if bounds is None or bounds.low != 0 or bounds.high is None or not 0 < bounds.high < math.inf:
        return None
    return slope / bounds.high, offset / bounds.high, bounds.high


@rule(
    "fuse_hard_swish",
    on=("Mul", "Div"),
    after=(*ARITHMETIC, "Clip", "HardSigmoid"),
    among=("Clip", "HardSigmoid"),
    exactness=REASSOCIATES,
    opset=14,
)
def hard_swish(s: Site) -> Result:
    """The products x · clip(x + 3, 0, 6) / 6 and x · hard sigmoid of x/6 + ½ are HardSwish."""
    for found in gated(s, "Clip", "HardSigmoid"):
        line = _line(s, found.gate, found.argument)
        if line is None or not found.root.is_close_to({(1, 1): 1 / line[2]}):
            continue
        if close(line[0], 1 / 6) and close(line[1], 0.5):
            return found.objection(s) or HardSwish(found.x)
    return None


@rule(
    "fuse_hard_sigmoid", on=("Mul", "Div"), after=(*ARITHMETIC, "Clip"), among="Clip", exactness=REASSOCIATES, opset=6
)
def hard_sigmoid(s: Site) -> Result:
    """clip(x + b, 0, c) / c is HardSigmoid."""
    widest: Result = None
    for found in gated(s, "Clip"):
        line = _line(s, found.gate, found.argument)
        if line is None or line[0] == 0 or not found.root.is_close_to({(0, 1): 1 / line[2]}):
            continue
        objection = found.objection(s)
        if objection is None:
            widest = HardSigmoid(found.x, alpha=line[0], beta=line[1])  # the farthest x takes in most of the line
        else:
            widest = widest or objection
    return widest


@rule("fuse_hard_sigmoid", on="Clip", after=(*ROOTS, "Sub"), exactness=REASSOCIATES, opset=6)
def clipped_line(s: Site) -> Result:
    """clip(a·x + b, 0, 1) is HardSigmoid."""
    if s.producer(0, *ROOTS, "Sub") is None:
        return None
    for x in list(arguments(s, s.input(0)))[1:]:
        argument = expand(s, s.input(0), [x])
        line = None if argument is None else _line(s, s.node, argument)
        if argument is None or line is None or line[0] == 0 or line[2] != 1:
            continue
        outside = read_outside(argument.nodes, s.node)
        if outside is not None:
            return Refusal(f"'{outside}' in between has other readers")
        return type_objection(x, s.output) or HardSigmoid(x, alpha=line[0], beta=line[1])
    return None


@rule("fuse_mish", exactness=REASSOCIATES, opset=18)
def mish(x: V) -> Rewrite:
    """The product x · tanh(softplus(x)) is Mish."""
    return Mul(x, Tanh(Softplus(x).once).once) >> (lambda m: type_objection(m.x, m.root.outputs[0]) or Mish(m.x))


@rule("fuse_mish", exactness=APPROXIMATES, opset=18)
def mish_by_logarithm(x: V) -> Rewrite:
    """The product x · tanh(log(1 + exp(x))) is Mish, which for large x stays finite."""

    def fused(m: Match) -> Result:
        return type_objection(m.x, m.root.outputs[0]) or Mish(m.x)

    return Mul(x, Tanh(Log(Add(Exp(x).once, 1).once).once).once) >> fused


@rule("fuse_softplus", exactness=APPROXIMATES, targets=BESIDE_ONNXRUNTIME)
def softplus(x: V) -> Rewrite:
    """log(1 + exp(x)) is Softplus, which for large x stays finite."""
    return Log(Add(Exp(x).once, 1).once) >> (lambda m: type_objection(m.x, m.root.outputs[0]) or Softplus(m.x))


@rule("fuse_softsign", exactness=REASSOCIATES)
def softsign(x: V) -> Rewrite:
    """The quotient x / (1 + |x|) is Softsign."""
    return Div(x, Add(Abs(x).once, 1).once) >> (lambda m: type_objection(m.x, m.root.outputs[0]) or Softsign(m.x))


def _leaky(m: Match) -> Result:
    alpha = number_of(m.alpha)
    if alpha is None:
        return Refusal("the slope is not one number")
    if "Max" in (node.op_type for node in m.nodes) and not 0 < alpha <= 1:
        return Refusal("the larger of x and α·x is LeakyRelu for α in (0, 1] only")
    return type_objection(m.x, m.root.outputs[0]) or LeakyRelu(m.x, alpha=alpha)


@rule("fuse_leaky_relu", exactness=REASSOCIATES, opset=6)
def larger_of_slopes(x: V, alpha: V = NUMBER) -> Rewrite:
    """max(x, α·x) is LeakyRelu, for α in (0, 1]."""
    return Max(x, Mul(x, alpha).once) >> _leaky


@rule("fuse_leaky_relu", exactness=REASSOCIATES, opset=9)
def slope_where_negative(x: V, alpha: V = NUMBER) -> Rewrite:
    """Where(x > 0, x, α·x) is LeakyRelu."""
    return Where(AnyOf("Greater", "GreaterOrEqual")(x, 0).once, x, Mul(x, alpha).once) >> _leaky


@rule("fuse_leaky_relu", exactness=REASSOCIATES, opset=9)
def slope_unless_positive(x: V, alpha: V = NUMBER) -> Rewrite:
    """Where(x < 0, α·x, x) is LeakyRelu."""
    return Where(AnyOf("Less", "LessOrEqual")(x, 0).once, Mul(x, alpha).once, x) >> _leaky


@rule("fuse_leaky_relu", exactness=REASSOCIATES, opset=6)
def two_relus(x: V, alpha: V = NUMBER) -> Rewrite:
    """relu(x) − α · relu(−x) is LeakyRelu."""
    return Sub(Relu(x).once, Mul(Relu(Neg(x).once).once, alpha).once) >> _leaky


def _parametric(m: Match) -> Result:
    if number_of(m.slope) is not None:
        return None
    if not keeps_shape(m.site, m.x, [m.slope]):
        return Refusal("the slopes may broadcast x to another shape")
    return type_objection(m.x, m.root.outputs[0]) or PRelu(m.x, m.slope)


@rule("fuse_prelu", exactness=REASSOCIATES, opset=9, targets=BESIDE_ONNXRUNTIME)
def slopes_where_negative(x: V, slope: V = CONSTANT) -> Rewrite:
    """Where(x > 0, x, slope·x) is PRelu."""
    return Where(AnyOf("Greater", "GreaterOrEqual")(x, 0).once, x, Mul(x, slope).once) >> _parametric


@rule("fuse_prelu", exactness=REASSOCIATES, opset=7, targets=BESIDE_ONNXRUNTIME)
def two_relus_with_slopes(x: V, slope: V = CONSTANT) -> Rewrite:
    """relu(x) − slope · relu(−x) is PRelu."""
    return Sub(Relu(x).once, Mul(Relu(Neg(x).once).once, slope).once) >> _parametric


@rule("fuse_prelu", exactness=REASSOCIATES, opset=7, targets=BESIDE_ONNXRUNTIME)
def relu_and_half_the_difference(x: V, slope: V = CONSTANT) -> Rewrite:
    """relu(x) + slope · (x − |x|) · ½ is PRelu; where x is infinite, the sum is NaN."""
    return Add(Relu(x).once, Mul(Mul(Sub(x, Abs(x).once).once, slope).once, 0.5).once) >> _parametric


@rule("fuse_elu", exactness=REASSOCIATES, opset=9, targets=BESIDE_ONNXRUNTIME)
def elu(x: V) -> Rewrite:
    """Where(x > 0, x, exp(x) − 1) is Elu."""
    grown = Sub(Exp(x).once, 1).once
    positive = AnyOf("Greater", "GreaterOrEqual")(x, 0).once
    return Where(positive, x, grown) >> (lambda m: type_objection(m.x, m.root.outputs[0]) or Elu(m.x))


@rule("fuse_elu", exactness=REASSOCIATES, opset=9, targets=BESIDE_ONNXRUNTIME)
def scaled_elu(x: V, alpha: V = NUMBER) -> Rewrite:
    """Where(x > 0, x, α · (exp(x) − 1)) is Elu with that α."""

    def fused(m: Match) -> Result:
        number = number_of(m.alpha)
        if number is None:
            return Refusal("the factor is not one number")
        return type_objection(m.x, m.root.outputs[0]) or Elu(m.x, alpha=number)

    grown = Mul(Sub(Exp(x).once, 1).once, alpha).once
    return Where(AnyOf("Greater", "GreaterOrEqual")(x, 0).once, x, grown) >> fused


@rule("fuse_thresholded_relu", exactness=EXACT, opset=10)
def thresholded(x: V, alpha: V = NUMBER) -> Rewrite:
    """Where(x > α, x, 0) is ThresholdedRelu."""

    def fused(m: Match) -> Result:
        number = number_of(m.alpha)
        zero = m.root.inputs[2]
        if number is None or number < 0:
            return Refusal("the threshold is not one number from 0 on")
        if not keeps_shape(m.site, m.x, [zero]):
            return Refusal("the 0 may broadcast x to another shape")
        return type_objection(m.x, m.root.outputs[0], (ir.DataType.FLOAT,)) or ThresholdedRelu(m.x, alpha=number)

    return Where(Greater(x, alpha).once, x, 0) >> fused
