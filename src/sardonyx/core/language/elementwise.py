"""Elementwise functions and conversions."""

from __future__ import annotations

import math

from sardonyx.core.eval.tensor import Operand, Tensor, apply, constant, elementwise
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType


def abs_(x: Tensor) -> Tensor:
    """Return the absolute value."""
    return apply("abs", x)


def sign(x: Tensor) -> Tensor:
    """Return -1, 0 or 1."""
    return apply("sign", x)


def floor(x: Tensor) -> Tensor:
    """Round down."""
    return apply("floor", x)


def ceil(x: Tensor) -> Tensor:
    """Round up."""
    return apply("ceil", x)


def round_(x: Tensor) -> Tensor:
    """Round to the nearest integer, halves to even."""
    return apply("round", x)


def exp(x: Tensor) -> Tensor:
    """Return the exponential."""
    return apply("exp", x)


def log(x: Tensor) -> Tensor:
    """Return the natural logarithm."""
    return apply("log", x)


def sqrt(x: Tensor) -> Tensor:
    """Return the square root."""
    return apply("sqrt", x)


def sin(x: Tensor) -> Tensor:
    """Return the sine."""
    return apply("sin", x)


def cos(x: Tensor) -> Tensor:
    """Return the cosine."""
    return apply("cos", x)


def tan(x: Tensor) -> Tensor:
    """Return the tangent."""
    return apply("tan", x)


def asin(x: Tensor) -> Tensor:
    """Return the arc sine."""
    return apply("asin", x)


def acos(x: Tensor) -> Tensor:
    """Return the arc cosine."""
    return apply("acos", x)


def atan(x: Tensor) -> Tensor:
    """Return the arc tangent."""
    return apply("atan", x)


def sinh(x: Tensor) -> Tensor:
    """Return the hyperbolic sine."""
    return apply("sinh", x)


def cosh(x: Tensor) -> Tensor:
    """Return the hyperbolic cosine."""
    return apply("cosh", x)


def tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent."""
    return apply("tanh", x)


def asinh(x: Tensor) -> Tensor:
    """Return the inverse hyperbolic sine."""
    return apply("asinh", x)


def acosh(x: Tensor) -> Tensor:
    """Return the inverse hyperbolic cosine."""
    return apply("acosh", x)


def atanh(x: Tensor) -> Tensor:
    """Return the inverse hyperbolic tangent."""
    return apply("atanh", x)


def erf(x: Tensor) -> Tensor:
    """Return the error function."""
    return apply("erf", x)


def logical_not(x: Tensor) -> Tensor:
    """Return the negation of booleans; for integers, of every bit."""
    return apply("not", x)


def reciprocal(x: Tensor) -> Tensor:
    """Return ``1 / x``."""
    return 1 / x


def sigmoid(x: Tensor) -> Tensor:
    """Return ``1 / (1 + exp(-x))``."""
    return 1 / (1 + exp(-x))


def softplus(x: Tensor) -> Tensor:
    """Return ``log(1 + exp(x))`` without overflow; the gradient at 0 is 1/2."""
    is_negative = x < 0
    return where(is_negative, 0, x) + log(exp(where(is_negative, x, -x)) + 1)


def equal(x: Operand, y: Operand) -> Tensor:
    """Return True for equal elements."""
    return elementwise("equal", x, y)


def not_equal(x: Operand, y: Operand) -> Tensor:
    """Return True for different elements."""
    return logical_not(equal(x, y))


def maximum(*xs: Operand) -> Tensor:
    """Return the elementwise maximum; NaN if any operand is NaN."""
    result = xs[0]
    for x in xs[1:]:
        result = elementwise("max", result, x)
    return result  # type: ignore[return-value]


def minimum(*xs: Operand) -> Tensor:
    """Return the elementwise minimum; NaN if any operand is NaN."""
    result = xs[0]
    for x in xs[1:]:
        result = elementwise("min", result, x)
    return result  # type: ignore[return-value]


def clip(x: Tensor, low: Operand | None, high: Operand | None) -> Tensor:
    """Clamp to at least ``low``, then to at most ``high``."""
    if low is not None:
        x = maximum(x, low)
    return x if high is None else minimum(x, high)


def remainder(x: Operand, y: Operand) -> Tensor:
    """Return the remainder of division with the sign of the dividend, as C's ``fmod``."""
    return elementwise("rem", x, y)


def floor_mod(x: Tensor, y: Tensor) -> Tensor:
    """Return the remainder of division with the sign of the divisor, as Python's ``%``."""
    left = remainder(x, y)
    return where(not_equal(left, 0) & ((left < 0) ^ (y < 0)), left + y, left)


def shift_left(x: Tensor, by: Tensor) -> Tensor:
    """Shift bits to the left."""
    return elementwise("shift_left", x, by)


def shift_right(x: Tensor, by: Tensor) -> Tensor:
    """Shift bits to the right."""
    return elementwise("shift_right", x, by)


def is_nan(x: Tensor) -> Tensor:
    """Return True for NaN elements."""
    return not_equal(x, x)


def is_infinite(x: Tensor) -> Tensor:
    """Return True for infinite elements."""
    return equal(abs_(x), math.inf)


def where(condition: Tensor, x: Operand, y: Operand) -> Tensor:
    """Return ``x`` for a true condition, else ``y``; all three broadcast."""
    dtype = next(v.dtype for v in (x, y) if isinstance(v, Tensor))
    return elementwise("select", condition, *(v if isinstance(v, Tensor) else constant(v, dtype) for v in (x, y)))


def norm_of(powers: Tensor, p: float = 2) -> Tensor:
    """Return p-norms, the p-th roots of sums of powers of magnitudes; the gradient of a norm that is 0 is 0."""
    is_zero = equal(powers, 0)
    sums = where(is_zero, 1, powers)  # The slope of the root at 0 is infinite; products with it would be NaN.
    return where(is_zero, 0, sqrt(sums) if p == 2 else sums ** (1 / p))


def stop_gradient(x: Tensor) -> Tensor:
    """Return the same value without gradient flow."""
    return apply("stop_gradient", x)


def cast(x: Tensor, dtype: DType, *, saturate: bool = True, rounding: str = "up") -> Tensor:
    """Convert to another element type, as ONNX Cast does."""
    return x if x.dtype == dtype else apply("convert", x, dtype=dtype, saturate=saturate, rounding=rounding)


def widened(x: Tensor) -> Tensor:
    """Return floats of 16 bits and fewer as float32, for long sums; all others unchanged."""
    return cast(x, t.FLOAT) if t.is_float(x.dtype) and x.dtype.bitwidth < 32 else x


def bitcast(x: Tensor, dtype: DType) -> Tensor:
    """Reinterpret the bits as another element type."""
    return x if x.dtype == dtype else apply("bitcast", x, dtype=dtype)
