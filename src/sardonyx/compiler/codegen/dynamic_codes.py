"""Codes of a dynamic quantization: of floats by the scale of their own range, which the call computes.

A code is that of a true division, which is slow. A product by the reciprocal ``r`` of the scale, corrected once by its
exact rest, has the same bits (Markstein): with ``q = x * r`` rounded, ``q + (x - q * s) * r`` rounds to the
quotient ``x / s`` if ``r`` is the reciprocal rounded to nearest and no step overflows or loses bits of small numbers.
Scales of extreme size are moved by a power of 2, and so are their floats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sardonyx.compiler.analysis.dynamic_scales import number, quantized_image, single
from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.llvm.vector_value import Vector
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

_MODERATE, _POWER = 2.0**60, 2.0**90
"""Scales between the reciprocal and this number are not moved; others are, by this power of 2."""


@dataclass(frozen=True)
class DynamicCodes:
    """Codes of uint8 with a computed zero point.

    Attributes:
        limited: The codes as floats, within the limits.
        moved: The floats before the limits.
        quotient: The floats in units of the scale.
        offset: The zero point as floats.
    """

    limited: Value
    moved: Value
    quotient: Value
    offset: Value

    @property
    def steps(self) -> tuple[Value, ...]:
        """The values between the quotient and the codes."""
        inner = self.limited.operands[0]
        return self.limited, inner, self.moved, self.moved.operands[0]

    @staticmethod
    def numbers(units: Vector, offset: Vector) -> Vector:
        """Return the codes as floats, from quotients and the zero point; NaN becomes 0."""
        whole = units.call("roundeven") + offset
        return (whole > 0.0).where(whole, 0.0).below(255.0)


def dynamic_codes(value: Value) -> DynamicCodes | None:
    """Return how a conversion to uint8 computes codes with a computed zero point; None for other values."""
    if value.op != "convert" or dtype_of(value) != t.UINT8 or dtype_of(value.operands[0]) != t.FLOAT:
        return None
    limited = value.operands[0]
    moved = limited
    for op, limit in (("min", 255), ("max", 0)):
        if moved.op != op or number(moved.operands[1]) != limit:
            return None
        moved = moved.operands[0]
    if moved.op != "add" or moved.operands[0].op != "round":
        return None
    quotient, offset = moved.operands[0].operands[0], moved.operands[1]
    of_code = single(offset)
    if of_code.is_constant or of_code.op != "convert" or dtype_of(single(of_code.operands[0])) != t.UINT8:
        return None
    return DynamicCodes(limited, moved, quotient, offset) if quotient.op == "div" else None


def scale_of(quotient: Value) -> Value | None:
    """Return the computed scale of floats that are divided by the scale of their own range; None for other values."""
    scale = single(quotient.operands[1])
    return scale if quantized_image(scale) is quotient.operands[0] else None


@dataclass(frozen=True)
class Divisor:
    """A scale, prepared for quotients.

    Attributes:
        power: The power of 2 by which numbers are multiplied before; 0 for an infinite scale.
        scale: The scale times the power, 1 if that is infinite.
        reciprocal: The reciprocal of that.
    """

    power: Vector
    scale: Vector
    reciprocal: Vector

    @classmethod
    def of(cls, scale: Vector) -> Divisor:
        """Prepare a scale, a positive number or NaN."""
        one = scale.like(1.0)
        infinite = scale.equals(math.inf)
        small = (scale < 1 / _MODERATE).where(scale.like(_POWER), one)
        power = (scale > _MODERATE).where(scale.like(1 / _POWER), small)
        moved = infinite.where(one, scale * power)
        return cls(infinite.where(scale.like(0.0), power), moved, 1.0 / moved)

    def __call__(self, x: Vector) -> Vector:
        """Return the quotients of floats within the range of the scale, for rounding to integers.

        A quotient of 0 may have the other sign, and one far below 1 other bits.
        """
        x, scale, reciprocal = x * self._wide(self.power, x), self._wide(self.scale, x), self._wide(self.reciprocal, x)
        first = x * reciprocal
        return (-first).fma(scale, x).fma(reciprocal, first)

    @staticmethod
    def _wide(number: Vector, x: Vector) -> Vector:
        e = x.emitter
        return Vector(e, e.spread(number.name, x.lanes, number.element), x.element, x.lanes)
