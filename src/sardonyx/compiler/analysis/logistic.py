"""Quotients by ``1 + exp(x)``: the logistic function, and products with it."""

from __future__ import annotations

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


def _is_one(value: Value) -> bool:
    known = value.operands[0] if value.op == "broadcast" else value
    return is_splat(known) and bool(np.ravel(known.known)[0] == 1)
