"""Functions of single elements, and operators that broadcast."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from sardonyx.export.tflite.emission import EMITTERS, Call, Emitter, Scope, emits
from sardonyx.export.tflite.file_builder import Tensor

UNARY = {
    "Ceil": "CEIL",
    "Cos": "COS",
    "Exp": "EXP",
    "Floor": "FLOOR",
    "Log": "LOG",
    "Round": "ROUND",
    "Sin": "SIN",
    "Sqrt": "SQRT",
    "Sigmoid": "LOGISTIC",
    "Tanh": "TANH",
    "Relu": "RELU",
    "HardSwish": "HARD_SWISH",
    "Neg": "NEG",
}
"""Operators of one input that the format has under another name."""

BINARY = {"Add": "ADD", "Sub": "SUB", "Mul": "MUL"}
"""Arithmetic of two inputs."""

VARIADIC = {"Max": "MAXIMUM", "Min": "MINIMUM", "Sum": "ADD"}
"""Operators of any number of inputs, as chains."""

COMPARISONS = {
    "Equal": "EQUAL",
    "Less": "LESS",
    "Greater": "GREATER",
    "LessOrEqual": "LESS_EQUAL",
    "GreaterOrEqual": "GREATER_EQUAL",
    "And": "LOGICAL_AND",
    "Or": "LOGICAL_OR",
    "Xor": "NOT_EQUAL",
}
"""Operators whose result is a truth value."""

LOGICAL = frozenset(("LOGICAL_AND", "LOGICAL_OR", "LOGICAL_NOT"))


def _unary(name: str) -> Emitter:
    return lambda c: c.scope.unary(name, c.input())


def _binary(name: str) -> Emitter:
    return lambda c: c.scope.binary(name, c.input(0), c.input(1))


def _chain(name: str) -> Emitter:
    def emit(c: Call) -> Tensor:
        result, *others = c.inputs()
        for other in others:
            result = c.scope.binary(name, result, other)
        return result

    return emit


def _comparison(name: str) -> Emitter:
    def emit(c: Call) -> Tensor:
        a, b = c.inputs()
        if name in LOGICAL:
            return c.scope.broadcast(name, [a, b], "BOOL")
        return c.scope.binary(name, a, b, type="BOOL")

    return emit


EMITTERS.update({name: _unary(operator) for name, operator in UNARY.items()})
EMITTERS.update({name: _binary(operator) for name, operator in BINARY.items()})
EMITTERS.update({name: _chain(operator) for name, operator in VARIADIC.items()})
EMITTERS.update({name: _comparison(operator) for name, operator in COMPARISONS.items()})


@emits("Identity", "Dropout")
def identity(c: Call) -> Tensor:
    """Return the input; Dropout outside of training."""
    if c.node.op_type == "Dropout" and any(output.uses() for output in c.node.outputs[1:]):
        raise c.refuse("Dropout with a mask output")
    return c.input()


@emits("Not")
def not_(c: Call) -> Tensor:
    """Write logical negation."""
    return c.scope.op("LOGICAL_NOT", [c.input()], c.input().shape)


@emits("Cast", "CastLike")
def cast(c: Call) -> Tensor:
    """Write a conversion; conversions to truth values compare with zero."""
    x, s, to = c.input(), c.scope, c.type()
    if to == "BOOL" and x.type != "BOOL":
        return s.binary("NOT_EQUAL", x, s.like(0, x), type="BOOL")
    return s.cast(x, to)


@emits("Abs")
def abs_(c: Call) -> Tensor:
    """Write the absolute value; of int64 by selection."""
    x, s = c.input(), c.scope
    if x.type == "INT64":
        negative = s.binary("LESS", x, s.like(0, x), type="BOOL")
        return select(s, negative, s.unary("NEG", x), x)
    return s.unary("ABS", x)


@emits("Sign")
def sign(c: Call) -> Tensor:
    """Write the sign as difference of comparisons."""
    x, s = c.input(), c.scope
    if x.type in ("FLOAT32", "INT32"):
        return s.unary("SIGN", x)
    zero = s.like(0, x)
    above = s.cast(s.binary("GREATER", x, zero, type="BOOL"), "INT32")
    below = s.cast(s.binary("LESS", x, zero, type="BOOL"), "INT32")
    return s.cast(s.binary("SUB", above, below), x.type)


@emits("Reciprocal")
def reciprocal(c: Call) -> Tensor:
    """Write 1 / x."""
    return c.scope.binary("DIV", c.scope.like(1, c.input()), c.input())


@emits("Div")
def div(c: Call) -> Tensor:
    """Write division; integers round toward zero, and int64 must be sizes, which fit in int32."""
    a, b = c.inputs()
    if a.type != "INT64":
        return c.scope.binary("DIV", a, b)
    require_sizes(c)
    return c.scope.cast(c.scope.binary("DIV", c.scope.cast(a, "INT32"), c.scope.cast(b, "INT32")), "INT64")


def require_sizes(c: Call) -> None:
    """Refuse int64 operands that may exceed int32.

    Raises:
        UnsupportedError: An operand is neither a size nor a small constant.
    """
    for value in c.call.inputs:
        if value is not None and not is_size(value):
            raise c.refuse("int64 operands, of which the operator has int32 alone")


_SIZE_ARITHMETIC = frozenset(
    {"Add", "Sub", "Mul", "Div", "Mod", "Min", "Max", "Neg", "Cast", "Concat", "Gather", "Slice", "Squeeze", "Where"}
    | {"Unsqueeze", "Reshape", "Identity", "ReduceProd", "ReduceSum", "Range", "Floor", "Ceil", "Expand", "Split"}
    | {"ReduceMax", "ReduceMin", "NonZero", "ArgMax", "ArgMin", "Tile", "Transpose", "CumSum", "GatherND"}
)


def is_size(value: object, depth: int = 0) -> bool:
    """Return True if an integer is computed from sizes and small constants."""
    import onnx_ir as ir

    from sardonyx.rewrite.analysis import facts

    assert isinstance(value, ir.Value)
    array = facts.small_constant(value)
    if array is not None:
        return array.dtype.kind in "iu" and bool((np.abs(array.astype(np.float64)) < 2**31).all())
    node = value.producer()
    if node is None or depth > 64:
        return False
    if node.op_type in ("Shape", "Size", "NonZero", "ArgMax", "ArgMin"):
        return True
    kind = facts.dtype(value)
    if node.op_type not in _SIZE_ARITHMETIC or kind is None or not kind.is_integer():
        return False
    operands = node.inputs[1:] if node.op_type == "Where" else node.inputs
    return all(v is None or is_size(v, depth + 1) or facts.dtype(v) != ir.DataType.INT64 for v in operands)


@emits("Pow")
def pow_(c: Call) -> Tensor:
    """Write a power; small constant exponents are products and roots."""
    a, b = c.inputs()
    s = c.scope
    exponent = None if b.array is None or b.array.size != 1 or b.rank > a.rank else float(b.array.reshape(()))
    if exponent == 2.0:
        return s.binary("MUL", a, a)
    if exponent == 0.5 and a.type == "FLOAT32":
        return s.unary("SQRT", a)
    if exponent == 3.0:
        return s.binary("MUL", s.binary("MUL", a, a), a)
    if exponent == -1.0 and a.type == "FLOAT32":
        return s.binary("DIV", s.like(1, a), a)
    if exponent == 1.0:
        return a
    return s.binary("POW", a, s.cast(b, a.type))


@emits("Mean")
def mean(c: Call) -> Tensor:
    """Write the mean of inputs."""
    total = _chain("ADD")(c)
    assert isinstance(total, Tensor)
    return c.scope.binary("DIV", total, c.scope.like(len(c.call.inputs), total))


@emits("Mod")
def mod(c: Call) -> Tensor:
    """Write the remainder with the sign of the divisor, or of the dividend with ``fmod``."""
    a, b = c.inputs()
    s = c.scope
    if not c.attribute("fmod", 0):
        return s.binary("FLOOR_MOD", a, b)
    if a.type != "FLOAT32":
        raise c.refuse("fmod of integers")
    remainder = s.binary("FLOOR_MOD", s.unary("ABS", a), s.unary("ABS", b))
    return s.binary("MUL", s.unary("SIGN", a), remainder)


@emits("Where")
def where(c: Call) -> Tensor:
    """Write a selection."""
    return select(c.scope, *c.inputs())


def select(s: Scope, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return `a` where the condition holds, else `b`."""
    left, right = s.checked("SELECT_V2", a), s.checked("SELECT_V2", b)
    result = s.broadcast("SELECT_V2", [condition, left, right], left.type)
    return s.cast(result, a.type)


@emits("LeakyRelu")
def leaky_relu(c: Call) -> Tensor:
    """Write x, or alpha * x where negative."""
    return c.scope.unary("LEAKY_RELU", c.input(), ("LeakyReluOptions", {"alpha": c.attribute("alpha", 0.01)}))


@emits("PRelu")
def prelu(c: Call) -> Tensor:
    """Write x, or a slope times x where negative."""
    x, slope = c.inputs()
    s, zero = c.scope, c.scope.like(0, c.input())
    below = s.binary("MUL", slope, s.binary("MINIMUM", x, zero))
    return s.binary("ADD", s.binary("MAXIMUM", x, zero), below)


@emits("ThresholdedRelu")
def thresholded_relu(c: Call) -> Tensor:
    """Write x above alpha, else 0."""
    x, s = c.input(), c.scope
    above = s.binary("GREATER", x, s.like(c.attribute("alpha", 1.0), x), type="BOOL")
    return select(s, above, x, s.like(0, x))


@emits("Clip")
def clip(c: Call) -> Tensor:
    """Write bounds; 0 to 6 is RELU6."""
    x, s = c.input(), c.scope
    low, high = c.optional(1), c.optional(2)
    bounds = [None if bound is None or bound.array is None else float(bound.array.reshape(())) for bound in (low, high)]
    if x.type == "FLOAT32" and bounds[0] == 0 and bounds[1] == 6:
        return s.unary("RELU6", x)
    if x.type == "FLOAT32" and bounds[0] == 0 and high is None:
        return s.unary("RELU", x)
    if low is not None:
        x = s.binary("MAXIMUM", x, low)
    return x if high is None else s.binary("MINIMUM", x, high)


@emits("Gelu")
def gelu(c: Call) -> Tensor:
    """Write the Gaussian error linear unit."""
    return c.scope.unary("GELU", c.input(), ("GeluOptions", {"approximate": c.attribute("approximate") == "tanh"}))


@emits("Elu")
def elu(c: Call) -> Tensor:
    """Write x, or alpha * (exp(x) - 1) where negative."""
    x, s, alpha = c.input(), c.scope, float(c.attribute("alpha", 1.0))
    if alpha == 1.0:
        return s.unary("ELU", x)
    return _scaled_elu(s, x, alpha, 1.0)


def _scaled_elu(s: Scope, x: Tensor, alpha: float, gamma: float) -> Tensor:
    zero = s.like(0, x)
    below = s.binary("MUL", s.unary("ELU", s.binary("MINIMUM", x, zero)), s.like(alpha * gamma, x))
    above = s.unary("RELU", x)
    return s.binary("ADD", above if gamma == 1.0 else s.binary("MUL", above, s.like(gamma, x)), below)


@emits("Selu")
def selu(c: Call) -> Tensor:
    """Write the scaled exponential linear unit."""
    alpha = float(c.attribute("alpha", 1.67326319217681884765625))
    return _scaled_elu(c.scope, c.input(), alpha, float(c.attribute("gamma", 1.05070102214813232421875)))


@emits("Celu")
def celu(c: Call) -> Tensor:
    """Write max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""
    x, s, alpha = c.input(), c.scope, float(c.attribute("alpha", 1.0))
    inner = s.unary("ELU", s.binary("MINIMUM", s.binary("DIV", x, s.like(alpha, x)), s.like(0, x)))
    return s.binary("ADD", s.unary("RELU", x), s.binary("MUL", inner, s.like(alpha, x)))


def softplus_of(s: Scope, x: Tensor) -> Tensor:
    """Return log(1 + exp(x)) without overflow."""
    tail = s.unary("EXP", s.unary("NEG", s.unary("ABS", x)))
    return s.binary("ADD", s.unary("RELU", x), s.unary("LOG", s.binary("ADD", tail, s.like(1, x))))


@emits("Softplus")
def softplus(c: Call) -> Tensor:
    """Write log(1 + exp(x))."""
    return softplus_of(c.scope, c.input())


@emits("Softsign")
def softsign(c: Call) -> Tensor:
    """Write x / (1 + |x|)."""
    x, s = c.input(), c.scope
    return s.binary("DIV", x, s.binary("ADD", s.unary("ABS", x), s.like(1, x)))


@emits("Mish")
def mish(c: Call) -> Tensor:
    """Write x * tanh(softplus(x))."""
    return c.scope.binary("MUL", c.input(), c.scope.unary("TANH", softplus_of(c.scope, c.input())))


@emits("HardSigmoid")
def hard_sigmoid(c: Call) -> Tensor:
    """Write max(0, min(1, alpha * x + beta))."""
    x, s = c.input(), c.scope
    scaled = s.binary("MUL", x, s.like(c.attribute("alpha", 0.2), x))
    shifted = s.binary("ADD", scaled, s.like(c.attribute("beta", 0.5), x))
    return s.binary("MAXIMUM", s.binary("MINIMUM", shifted, s.like(1, x)), s.like(0, x))


@emits("IsNaN")
def is_nan(c: Call) -> Tensor:
    """Write x != x."""
    return c.scope.binary("NOT_EQUAL", c.input(), c.input(), type="BOOL")


@emits("IsInf")
def is_inf(c: Call) -> Tensor:
    """Write a comparison with infinity."""
    x, s = c.input(), c.scope
    positive, negative = c.attribute("detect_positive", 1), c.attribute("detect_negative", 1)
    if positive and negative:
        x = s.unary("ABS", x)
    return s.binary("EQUAL", x, s.like(math.inf if positive else -math.inf, x), type="BOOL")


@emits("Erf")
def erf(c: Call) -> Tensor:
    """Write the error function by a rational approximation of exp, within 1.5e-7.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26.
    """
    x, s = c.input(), c.scope
    size = s.unary("ABS", x)
    t = s.binary("DIV", s.like(1, x), s.binary("ADD", s.binary("MUL", size, s.like(0.3275911, x)), s.like(1, x)))
    terms = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
    total = s.like(terms[0], x)
    for term in terms[1:]:
        total = s.binary("ADD", s.binary("MUL", total, t), s.like(term, x))
    decay = s.unary("EXP", s.unary("NEG", s.binary("MUL", x, x)))
    rest = s.binary("MUL", s.binary("MUL", total, t), decay)
    return s.binary("MUL", s.unary("SIGN", x), s.binary("SUB", s.like(1, x), rest))


def _exponentials(s: Scope, x: Tensor) -> tuple[Tensor, Tensor]:
    return s.unary("EXP", x), s.unary("EXP", s.unary("NEG", x))


def _half(s: Scope, x: Tensor) -> Tensor:
    return s.binary("MUL", x, s.like(0.5, x))


def _sinh(s: Scope, x: Tensor) -> Tensor:
    """Return sinh by expm1 (ELU of negative numbers), which is exact near zero."""
    size = s.unary("ABS", x)
    below = s.unary("ELU", s.unary("NEG", size))  # exp(-|x|) - 1
    large = s.binary("DIV", below, s.binary("ADD", below, s.like(1, x)))
    value = s.binary("MUL", s.binary("ADD", below, large), s.like(-0.5, x))
    return s.binary("MUL", s.unary("SIGN", x), value)


def _atan2(s: Scope, y: Tensor, x: Tensor) -> Tensor:
    y, x = (t if t.shape == y.shape else s.broadcast_to(t, y.shape) for t in (y, x))
    return s.op("ATAN2", [y, x], y.shape)


def _root_of_complement(s: Scope, x: Tensor) -> Tensor:
    one = s.like(1, x)
    return s.unary("SQRT", s.binary("MUL", s.binary("SUB", one, x), s.binary("ADD", one, x)))


def _log1p(s: Scope, x: Tensor) -> Tensor:
    """Return log(1 + x) for x >= 0, exact near zero: log(u) * x / (u - 1) for u = 1 + x."""
    one = s.like(1, x)
    u = s.binary("ADD", x, one)
    difference = s.binary("SUB", u, one)
    is_zero = s.binary("EQUAL", difference, s.like(0, x), type="BOOL")
    safe = select(s, is_zero, one, difference)
    large = s.binary("GREATER", x, s.like(1e30, x), type="BOOL")
    ratio = select(s, large, one, s.binary("DIV", x, safe))
    return select(s, is_zero, x, s.binary("MUL", s.unary("LOG", u), ratio))


def _asinh(s: Scope, x: Tensor) -> Tensor:
    size = s.unary("ABS", x)
    root = s.unary("SQRT", s.binary("ADD", s.binary("MUL", x, x), s.like(1, x)))
    square = s.binary("DIV", s.binary("MUL", size, size), s.binary("ADD", root, s.like(1, x)))
    return s.binary("MUL", s.unary("SIGN", x), _log1p(s, s.binary("ADD", size, square)))


def _acosh(s: Scope, x: Tensor) -> Tensor:
    one = s.like(1, x)
    above = s.binary("SUB", x, one)
    root = s.unary("SQRT", s.binary("MUL", above, s.binary("ADD", x, one)))
    return _log1p(s, s.binary("ADD", above, root))


def _atanh(s: Scope, x: Tensor) -> Tensor:
    size = s.unary("ABS", x)
    ratio = s.binary("DIV", s.binary("ADD", size, size), s.binary("SUB", s.like(1, x), size))
    return s.binary("MUL", s.unary("SIGN", x), _half(s, _log1p(s, ratio)))


FORMULAS: dict[str, Callable[[Scope, Tensor], Tensor]] = {
    "Tan": lambda s, x: s.binary("DIV", s.unary("SIN", x), s.unary("COS", x)),
    "Atan": lambda s, x: _atan2(s, x, s.like(1, x)),
    "Asin": lambda s, x: _atan2(s, x, _root_of_complement(s, x)),
    "Acos": lambda s, x: _atan2(s, _root_of_complement(s, x), x),
    "Cosh": lambda s, x: _half(s, s.binary("ADD", *_exponentials(s, x))),
    "Sinh": _sinh,
    "Asinh": _asinh,
    "Acosh": _acosh,
    "Atanh": _atanh,
}
"""Functions that builtin operators compose."""


def _formula(name: str) -> Emitter:
    return lambda c: FORMULAS[name](c.scope, c.scope.checked("EXP", c.input()))


EMITTERS.update({name: _formula(name) for name in FORMULAS})


@emits("BitwiseXor")
def bitwise_xor(c: Call) -> Tensor:
    """Write exclusive or of bits."""
    return c.scope.binary("BITWISE_XOR", *c.inputs())


@emits("BitwiseNot")
def bitwise_not(c: Call) -> Tensor:
    """Write -1 - x of signed integers."""
    x, s = c.input(), c.scope
    if x.type not in ("INT32", "INT64", "INT8", "INT16"):
        raise c.refuse(f"complement of {x.type}")
    return s.binary("SUB", s.like(-1, x), x)


@emits("BitShift")
def bit_shift(c: Call) -> Tensor:
    """Write a shift to the right; to the left is a product."""
    x, by = c.inputs()
    if c.attribute("direction") != "RIGHT" or x.type not in ("UINT8", "UINT32", "UINT16"):
        raise c.refuse(f"a shift to the left, or of {x.type}")
    return c.scope.binary("RIGHT_SHIFT", x, by)
