"""Quotients by ``1 + exp(x)``: the logistic function, and products with it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sardonyx.compiler.analysis.primitive_traits import dtype_of, is_splat
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value


@dataclass(frozen=True)
class Exponent:
    """The exponent of a divisor ``1 + exp(x)`` or ``1 + exp(-x)``.

    Attributes:
        x: The exponent, without its sign.
        negated: True for ``-x``.
        parts: The values between the quotient and ``x``.
    """

    x: Value
    negated: bool
    parts: tuple[Value, ...]


def exponent_of_logistic(value: Value) -> Exponent | None:
    """Return the exponent in the divisor of a float32 quotient ``y / (1 + exp(x))``; None for other values."""
    if value.op != "div" or dtype_of(value) != t.FLOAT or value.operands[1].op != "add":
        return None
    divisor = value.operands[1]
    for power, other in (divisor.operands, divisor.operands[::-1]):
        if power.op == "exp" and _is_one(other):
            inner = power.operands[0]
            if inner.op == "neg":
                return Exponent(inner.operands[0], True, (divisor, power, inner))
            return Exponent(inner, False, (divisor, power))
    return None


_LARGEST_SLOPE_OF_PRODUCT = 0.2239
"""Largest magnitude of ``x * s(x) * (1 - s(x))`` for the logistic function ``s``."""

_MOST_FACTORS = 4


@dataclass(frozen=True)
class Gate:
    """``numerator / (1 + exp(-slope * x))`` times constants: ``Sigmoid``, ``x * sigmoid(x)``.

    Attributes:
        x: The argument.
        slope: Factor of the argument.
        numerator: The numerator; None for ``x``.
        factors: The constants of which the result is a product.
        parts: The values between the result and ``x``, with the result.
    """

    x: Value
    slope: float
    numerator: float | None
    factors: tuple[Value, ...]
    parts: tuple[Value, ...]

    @property
    def sensitivity(self) -> float:
        """Largest change of the result, without its factors, for a change of the power by its own magnitude."""
        if self.numerator is None:
            return _LARGEST_SLOPE_OF_PRODUCT / abs(self.slope)
        return abs(self.numerator) / 4


def gate_of(value: Value) -> Gate | None:
    """Return the gate that computes a float32 value; None for other values."""
    factors, parts = list[Value](), list[Value]()
    while value.op == "mul" and len(factors) < _MOST_FACTORS:
        constants = [number for number in range(2) if _repeated(value.operands[number]).is_constant]
        if len(constants) != 1:
            break
        parts.append(value)
        factors.append(value.operands[constants[0]])
        value = value.operands[1 - constants[0]]
    quotient, weight = value, None
    if value.op == "mul":
        parts.append(value)
        pairs = (value.operands, value.operands[::-1])
        quotient, weight = next((pair for pair in pairs if exponent_of_logistic(pair[0]) is not None), (value, None))
    exponent = exponent_of_logistic(quotient)
    if exponent is None:
        return None
    parts += [quotient, *exponent.parts]
    numerator, sign = quotient.operands[0], -1.0 if not exponent.negated else 1.0
    number = _number(numerator)
    if weight is None and number is None:
        weight = numerator
    elif weight is not None and number != 1:
        return None
    if weight is None:
        return Gate(exponent.x, sign, number, tuple(factors), tuple(parts))
    if weight is exponent.x:
        return Gate(weight, sign, None, tuple(factors), tuple(parts))
    slope = _slope(exponent.x, weight)
    if not slope:
        return None
    return Gate(weight, sign * slope, None, tuple(factors), (*parts, exponent.x))


def _slope(value: Value, x: Value) -> float | None:
    """Return the number by which ``x`` is multiplied; None for other functions of ``x``."""
    if value.op != "mul" or x not in value.operands:
        return None
    number = _number(value.operands[1] if value.operands[0] is x else value.operands[0])
    return number if number is not None and math.isfinite(number) else None


def _is_one(value: Value) -> bool:
    return _number(value) == 1


def _number(value: Value) -> float | None:
    """Return the number in all elements of a constant; None for other values."""
    known = _repeated(value)
    return float(np.ravel(known.known)[0]) if is_splat(known) else None


def _repeated(value: Value) -> Value:
    return value.operands[0] if value.op == "broadcast" else value
