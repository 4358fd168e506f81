"""Activation functions written out by exporters, with products and sums in any order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import (
    APPROXIMATES,
    EXACT,
    REASSOCIATES,
    AnyOf,
    C,
    Guard,
    Refusal,
    Result,
    Rewrite,
    V,
    guard,
    number,
    rule,
    unshared,
    where,
)
from sardonyx.rewrite.notation import (
    Abs,
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
    PRelu,
    Relu,
    Softplus,
    Softsign,
    Swish,
    Tanh,
    ThresholdedRelu,
    Where,
)
from sardonyx.rewrite.rules.broadcasting import broadcasts_into
from sardonyx.rewrite.rules.clips import limit_of
from sardonyx.rewrite.rules.polynomials import (
    ARITHMETIC,
    Expansion,
    expand,
    find_shared_value,
    is_close,
    iterate_arguments,
    iterate_inner_nodes,
    number_of,
)
from sardonyx.rewrite.site import Site

BESIDE_ONNXRUNTIME = ("native", "openvino", "tensorrt")
"""Targets of operators whose ONNX Runtime kernels are slower than the separate operators."""

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
"""Element types of the engines' kernels for these operators: few have one for 64 bits."""


@dataclass(frozen=True)
class Gated:
    """The root as a polynomial in x and the gate, and the gate's argument as a polynomial in x."""

    x: ir.Value
    gate: ir.Node
    root: Expansion
    argument: Expansion

    def objection(self, s: Site) -> Refusal | None:
        """Return the reason why the root must not become an operator of x alone, or None."""
        outside = find_shared_value({**self.root.nodes, **self.argument.nodes, self.gate: None}, s.node)
        if outside is not None:
            return Refusal(f"'{outside}' in between has other readers")
        return type_objection(self.x, s.output)


def type_objection(x: ir.Value, y: ir.Value, types: tuple[ir.DataType, ...] = FLOATS) -> Refusal | None:
    """Return the reason why an operator of these types cannot make ``y`` of ``x``, or None."""
    if facts.dtype(x) not in types:
        return Refusal("engines have no kernel for this type")
    if facts.rank(x) is None or facts.rank(x) != facts.rank(y):
        return Refusal("a constant may broadcast the result to another rank")
    return None


def iterate_gated(s: Site, *gates: str) -> Iterator[Gated]:
    """Yield each reading of the root as arithmetic on some x and a gate of a polynomial in x."""
    for gate in iterate_inner_nodes(s, gates):
        for x in iterate_arguments(s, gate.inputs[0]):
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
    """Fuse 0.5 * x * (1 + erf(x / √2)), and the approximation by tanh, in any order, into Gelu(x)."""
    for match in iterate_gated(s, *GELU_ARGUMENTS):
        argument, approximate = GELU_ARGUMENTS[match.gate.op_type]
        if match.argument.is_close_to(argument) and match.root.is_close_to({(1, 1): 0.5, (1, 0): 0.5}):
            return match.objection(s) or Gelu(match.x, approximate=approximate)
    return None


@rule("fuse_swish", on="Mul", after=(*ARITHMETIC, "Sigmoid"), exactness=REASSOCIATES, opset=24, targets=("native",))
def swish(s: Site) -> Result:
    """Fuse x * sigmoid(α * x) into Swish(x, α): SiLU for α = 1, Gelu's quick approximation for 1.702."""
    for match in iterate_gated(s, "Sigmoid"):
        alpha = match.argument.terms.get((1,), 0.0)
        if match.argument.is_close_to({(1,): alpha}) and match.root.is_close_to({(1, 1): 1.0}):
            return match.objection(s) or Swish(match.x, alpha=alpha)
    return None


def _line(s: Site, gate: ir.Node, argument: Expansion) -> tuple[float, float, float] | None:
    """Return slope, offset and height of a gate equal to height * clip(slope * x + offset, 0, 1)."""
    if not argument.terms.keys() <= {(0,), (1,)}:
        return None
    slope, offset = argument.terms.get((1,), 0.0), argument.terms.get((0,), 0.0)
    if gate.op_type == "HardSigmoid":
        steep = s.attr("alpha", node=gate)
        return slope * steep, offset * steep + s.attr("beta", node=gate), 1.0
    bounds = limit_of(s, gate)
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
    """Fuse x * clip(x + 3, 0, 6) / 6, and x * HardSigmoid(x, 1/6, 1/2), into HardSwish(x)."""
    for match in iterate_gated(s, "Clip", "HardSigmoid"):
        line = _line(s, match.gate, match.argument)
        if line is None or not match.root.is_close_to({(1, 1): 1 / line[2]}):
            continue
        if is_close(line[0], 1 / 6) and is_close(line[1], 0.5):
            return match.objection(s) or HardSwish(match.x)
    return None


@rule(
    "fuse_hard_sigmoid", on=("Mul", "Div"), after=(*ARITHMETIC, "Clip"), among="Clip", exactness=REASSOCIATES, opset=6
)
def hard_sigmoid(s: Site) -> Result:
    """Fuse clip(x + b, 0, c) / c into HardSigmoid(x, 1 / c, b / c)."""
    widest: Result = None
    for match in iterate_gated(s, "Clip"):
        line = _line(s, match.gate, match.argument)
        if line is None or line[0] == 0 or not match.root.is_close_to({(0, 1): 1 / line[2]}):
            continue
        objection = match.objection(s)
        if objection is None:
            widest = HardSigmoid(match.x, alpha=line[0], beta=line[1])  # the farthest x takes in most of the line
        else:
            widest = widest or objection
    return widest


@rule("fuse_hard_sigmoid", on="Clip", after=(*ROOTS, "Sub"), exactness=REASSOCIATES, opset=6)
def clipped_line(s: Site) -> Result:
    """Fuse clip(a * x + b, 0, 1) into HardSigmoid(x, a, b)."""
    if s.producer(0, *ROOTS, "Sub") is None:
        return None
    for x in list(iterate_arguments(s, s.input(0)))[1:]:
        argument = expand(s, s.input(0), [x])
        line = None if argument is None else _line(s, s.node, argument)
        if argument is None or line is None or line[0] == 0 or line[2] != 1:
            continue
        outside = find_shared_value(argument.nodes, s.node)
        if outside is not None:
            return Refusal(f"'{outside}' in between has other readers")
        return type_objection(x, s.output) or HardSigmoid(x, alpha=line[0], beta=line[1])
    return None


def suits(x: V, types: tuple[ir.DataType, ...] = FLOATS) -> Guard:
    """Guard: engines have kernels for an operator that makes the root's output of ``x`` alone."""
    return lambda m: type_objection(m.bound[x.name], m.root.outputs[0], types)


def one_number(alpha: V) -> Guard:
    """Guard: a constant is one number, of at most one axis, and finite."""
    return guard(lambda m: number_of(m.bound[alpha.name]) is not None, f"{alpha.name} is not one number")


@rule("fuse_mish", exactness=REASSOCIATES, opset=18)
def mish(x: V) -> Rewrite:
    """X * tanh(softplus(x)) is Mish(x)."""
    return x * Tanh(Softplus(x)) >> Mish(x) | where(unshared, suits(x))


@rule("fuse_mish", exactness=APPROXIMATES, opset=18)
def mish_by_logarithm(x: V) -> Rewrite:
    """X * tanh(log(exp(x) + 1)) is Mish(x), which stays finite for large x."""
    return x * Tanh(Log(Exp(x) + 1)) >> Mish(x) | where(unshared, suits(x))


@rule("fuse_softplus", exactness=APPROXIMATES, targets=BESIDE_ONNXRUNTIME)
def softplus(x: V) -> Rewrite:
    """log(exp(x) + 1) is Softplus(x), which stays finite for large x."""
    return Log(Exp(x) + 1) >> Softplus(x) | where(unshared, suits(x))


@rule("fuse_softsign", exactness=REASSOCIATES)
def softsign(x: V) -> Rewrite:
    """X / (1 + |x|) is Softsign(x)."""
    return x / (1 + Abs(x)) >> Softsign(x) | where(unshared, suits(x))


Positive, Negative = AnyOf("Greater", "GreaterOrEqual"), AnyOf("Less", "LessOrEqual")
"""Comparisons with 0: both choices of an exact 0 give 0."""


@rule("fuse_leaky_relu", exactness=REASSOCIATES, opset=6)
def larger_of_slopes(x: V, alpha: C) -> Rewrite:
    """max(x, alpha * x) is LeakyRelu(x, alpha) for alpha in (0, 1]."""
    return Max(x, x * alpha) >> LeakyRelu(x, alpha=number(alpha)) | where(
        one_number(alpha),
        number(alpha) > 0,
        number(alpha) <= 1,
        unshared,
        suits(x),
    )


@rule("fuse_leaky_relu", exactness=REASSOCIATES, opset=9)
def slope_where_negative(x: V, alpha: C) -> Rewrite:
    """Fuse Where(x > 0, x, alpha * x) into LeakyRelu(x, alpha)."""
    leaky = LeakyRelu(x, alpha=number(alpha))
    return Where(Positive(x, 0), x, x * alpha) >> leaky | where(one_number(alpha), unshared, suits(x))


@rule("fuse_leaky_relu", exactness=REASSOCIATES, opset=9)
def slope_unless_positive(x: V, alpha: C) -> Rewrite:
    """Fuse Where(x < 0, alpha * x, x) into LeakyRelu(x, alpha)."""
    leaky = LeakyRelu(x, alpha=number(alpha))
    return Where(Negative(x, 0), x * alpha, x) >> leaky | where(one_number(alpha), unshared, suits(x))


@rule("fuse_leaky_relu", exactness=REASSOCIATES, opset=6)
def two_relus(x: V, alpha: C) -> Rewrite:
    """relu(x) - relu(-x) * alpha is LeakyRelu(x, alpha)."""
    leaky = LeakyRelu(x, alpha=number(alpha))
    return Relu(x) - Relu(-x) * alpha >> leaky | where(one_number(alpha), unshared, suits(x))


def several_numbers(slope: V) -> Guard:
    """Guard: a constant is not one number, which LeakyRelu covers."""
    return guard(lambda m: number_of(m.bound[slope.name]) is None, "")


@rule("fuse_prelu", exactness=REASSOCIATES, opset=9, targets=BESIDE_ONNXRUNTIME)
def slopes_where_negative(x: V, slope: C) -> Rewrite:
    """Fuse Where(x > 0, x, slope * x) into PRelu(x, slope)."""
    return Where(Positive(x, 0), x, x * slope) >> PRelu(x, slope) | where(
        several_numbers(slope), unshared, broadcasts_into(x, slope), suits(x)
    )


@rule("fuse_prelu", exactness=REASSOCIATES, opset=7, targets=BESIDE_ONNXRUNTIME)
def two_relus_with_slopes(x: V, slope: C) -> Rewrite:
    """relu(x) - relu(-x) * slope is PRelu(x, slope)."""
    return Relu(x) - Relu(-x) * slope >> PRelu(x, slope) | where(
        several_numbers(slope), unshared, broadcasts_into(x, slope), suits(x)
    )


@rule("fuse_prelu", exactness=REASSOCIATES, opset=7, targets=BESIDE_ONNXRUNTIME)
def relu_and_half_the_difference(x: V, slope: C) -> Rewrite:
    """relu(x) + (x - |x|) * slope * 0.5 is PRelu(x, slope); for infinite x, the sum is NaN."""
    return Relu(x) + (x - Abs(x)) * slope * 0.5 >> PRelu(x, slope) | where(
        several_numbers(slope), unshared, broadcasts_into(x, slope), suits(x)
    )


@rule("fuse_elu", exactness=REASSOCIATES, opset=9, targets=BESIDE_ONNXRUNTIME)
def elu(x: V) -> Rewrite:
    """Fuse Where(x > 0, x, exp(x) - 1) into Elu(x)."""
    return Where(Positive(x, 0), x, Exp(x) - 1) >> Elu(x) | where(unshared, suits(x))


@rule("fuse_elu", exactness=REASSOCIATES, opset=9, targets=BESIDE_ONNXRUNTIME)
def scaled_elu(x: V, alpha: C) -> Rewrite:
    """Fuse Where(x > 0, x, alpha * (exp(x) - 1)) into Elu(x, alpha)."""
    return Where(Positive(x, 0), x, (Exp(x) - 1) * alpha) >> Elu(x, alpha=number(alpha)) | where(
        one_number(alpha), unshared, suits(x)
    )


@rule("fuse_thresholded_relu", exactness=EXACT, opset=10)
def thresholded(x: V, alpha: C, zero: C) -> Rewrite:
    """Fuse Where(x > alpha, x, 0) into ThresholdedRelu(x, alpha) for alpha >= 0."""
    return Where(Greater(x, alpha), x, zero) >> ThresholdedRelu(x, alpha=number(alpha)) | where(
        number(zero) == 0,
        one_number(alpha),
        number(alpha) >= 0,
        unshared,
        broadcasts_into(x, zero),
        suits(x, (ir.DataType.FLOAT,)),
    )
