"""What is computed place by place, and conversions."""

from __future__ import annotations

import math

from sardonyx.core.eval.tensor import Operand, Tensor, apply, constant, elementwise
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType


def abs_(x: Tensor) -> Tensor:
    """The absolute value."""
    return apply("abs", x)


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1."""
    return apply("sign", x)


def floor(x: Tensor) -> Tensor:
    """Rounded down."""
    return apply("floor", x)


def ceil(x: Tensor) -> Tensor:
    """Rounded up."""
    return apply("ceil", x)


def round_(x: Tensor) -> Tensor:
    """Rounded to the nearest integer, halves to even."""
    return apply("round", x)


def exp(x: Tensor) -> Tensor:
    """The exponential."""
    return apply("exp", x)


def log(x: Tensor) -> Tensor:
    """The natural logarithm."""
    return apply("log", x)


def sqrt(x: Tensor) -> Tensor:
    """The square root."""
    return apply("sqrt", x)


def sin(x: Tensor) -> Tensor:
    """The sine."""
    return apply("sin", x)


def cos(x: Tensor) -> Tensor:
    """The cosine."""
    return apply("cos", x)


def tan(x: Tensor) -> Tensor:
    """The tangent."""
    return apply("tan", x)


def asin(x: Tensor) -> Tensor:
    """The arc sine."""
    return apply("asin", x)


def acos(x: Tensor) -> Tensor:
    """The arc cosine."""
    return apply("acos", x)


def atan(x: Tensor) -> Tensor:
    """The arc tangent."""
    return apply("atan", x)


def sinh(x: Tensor) -> Tensor:
    """The hyperbolic sine."""
    return apply("sinh", x)


def cosh(x: Tensor) -> Tensor:
    """The hyperbolic cosine."""
    return apply("cosh", x)


def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return apply("tanh", x)


def asinh(x: Tensor) -> Tensor:
    """The inverse hyperbolic sine."""
    return apply("asinh", x)


def acosh(x: Tensor) -> Tensor:
    """The inverse hyperbolic cosine."""
    return apply("acosh", x)


def atanh(x: Tensor) -> Tensor:
    """The inverse hyperbolic tangent."""
    return apply("atanh", x)


def erf(x: Tensor) -> Tensor:
    """The error function."""
    return apply("erf", x)


def logical_not(x: Tensor) -> Tensor:
    """Not, of booleans; of integers, every bit."""
    return apply("not", x)


def reciprocal(x: Tensor) -> Tensor:
    """One over."""
    return 1 / x


def sigmoid(x: Tensor) -> Tensor:
    """``1 / (1 + exp(-x))``."""
    return 1 / (1 + exp(-x))


def equal(x: Operand, y: Operand) -> Tensor:
    """Whether elements are equal."""
    return elementwise("equal", x, y)


def not_equal(x: Operand, y: Operand) -> Tensor:
    """Whether elements differ."""
    return logical_not(equal(x, y))


def maximum(*xs: Operand) -> Tensor:
    """The greatest, elementwise; NaN if any is."""
    found = xs[0]
    for x in xs[1:]:
        found = elementwise("max", found, x)
    return found  # type: ignore[return-value]


def minimum(*xs: Operand) -> Tensor:
    """The least, elementwise; NaN if any is."""
    found = xs[0]
    for x in xs[1:]:
        found = elementwise("min", found, x)
    return found  # type: ignore[return-value]


def clip(x: Tensor, low: Operand | None, high: Operand | None) -> Tensor:
    """At least ``low``, then at most ``high``."""
    if low is not None:
        x = maximum(x, low)
    return x if high is None else minimum(x, high)


def remainder(x: Operand, y: Operand) -> Tensor:
    """What division leaves; it has the sign of the dividend, as C's ``fmod``."""
    return elementwise("rem", x, y)


def floor_mod(x: Tensor, y: Tensor) -> Tensor:
    """What division leaves; it has the sign of the divisor, as Python's ``%``."""
    left = remainder(x, y)
    return where(not_equal(left, 0) & ((left < 0) ^ (y < 0)), left + y, left)


def shift_left(x: Tensor, by: Tensor) -> Tensor:
    """Bits moved up."""
    return elementwise("shift_left", x, by)


def shift_right(x: Tensor, by: Tensor) -> Tensor:
    """Bits moved down."""
    return elementwise("shift_right", x, by)


def is_nan(x: Tensor) -> Tensor:
    """Whether elements are not a number."""
    return not_equal(x, x)


def is_infinite(x: Tensor) -> Tensor:
    """Whether elements are infinite."""
    return equal(abs_(x), math.inf)


def where(condition: Tensor, x: Operand, y: Operand) -> Tensor:
    """``x`` where the condition holds, else ``y``; all broadcast together."""
    dtype = next(v.dtype for v in (x, y) if isinstance(v, Tensor))
    return elementwise("select", condition, *(v if isinstance(v, Tensor) else constant(v, dtype) for v in (x, y)))


def stop_gradient(x: Tensor) -> Tensor:
    """The same; no gradient flows through."""
    return apply("stop_gradient", x)


def cast(x: Tensor, dtype: DType, *, saturate: bool = True, rounding: str = "up") -> Tensor:
    """To another element type, as ONNX Cast does."""
    return x if x.dtype == dtype else apply("convert", x, dtype=dtype, saturate=saturate, rounding=rounding)


def widened(x: Tensor) -> Tensor:
    """Floats of 16 bits and less as float32, for sums of many; all others as they are."""
    return cast(x, t.FLOAT) if t.is_float(x.dtype) and x.dtype.bitwidth < 32 else x


def bitcast(x: Tensor, dtype: DType) -> Tensor:
    """The same bits as another element type."""
    return x if x.dtype == dtype else apply("bitcast", x, dtype=dtype)
