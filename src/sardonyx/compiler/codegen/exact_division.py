"""Quotients by a constant that round to the integers of a true division, without the division.

A quantization needs ``round(x / s)``, in which ``x / s`` is rounded to a float first; ``x * (1 / s)`` differs where
``x / s`` is about halfway between two integers. Only these few floats decide: both functions increase with ``x``, so
they agree everywhere if they agree on both sides of each step between two integers of the range, which
:func:`quotient` tests.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from sardonyx.compiler.llvm.vector_value import Vector

_LARGEST_FACTOR = np.float32(1 << 20)
"""Largest reciprocal: the product of a finite float and the reciprocal's rest is then finite."""


@dataclass(frozen=True)
class Quotient:
    """A function of ``x`` with the rounded values of ``x / divisor``.

    Attributes:
        divisor: The divisor.
        factor: The reciprocal, or the next smaller float; 0 for a division.
        rest: The difference to the reciprocal, which is not negative; 0 if the product by ``factor`` is exact enough.
    """

    divisor: float
    factor: float = 0.0
    rest: float = 0.0

    def __call__(self, x: Vector) -> Vector:
        """Return the quotient of floats, on processors with FMA instructions."""
        if not self.factor:
            return x / self.divisor
        if not self.rest:
            return x * self.factor
        e = x.emitter
        # The rest is positive, so that an infinity meets no infinity of the other sign.
        small, factor = x * self.rest, x.like(self.factor)
        return Vector(e, e.multiply_add(x.type, x.name, factor.name, small.name), x.element, x.lanes)


@functools.lru_cache(maxsize=4096)
def quotient(divisor: float, low: int, high: int) -> Quotient:
    """Return the fastest function that gives the integers of ``round(x / divisor)`` from ``low`` to ``high``.

    Results beyond the limits are beyond them in both.

    Args:
        divisor: A positive float32.
        low: The least integer.
        high: The greatest integer.
    """
    s = np.float32(divisor)
    with np.errstate(all="ignore"):
        nearest = np.float32(1) / s
        below = nearest if np.float64(nearest) * np.float64(s) <= 1 else np.nextafter(nearest, np.float32(0))
        rest = np.float32(1 / np.float64(s) - np.float64(below))
        if not (np.finfo(np.float32).tiny <= below <= nearest <= _LARGEST_FACTOR):
            return Quotient(float(s))
        firsts, units = _first_floats(s, low, high)
        previous = np.nextafter(firsts, np.float32(-np.inf))
        if np.all(firsts * nearest >= units) and np.all(previous * nearest < units):
            return Quotient(float(s), float(nearest))
        if rest > 0 and _reaches(firsts, below, rest, units).all() and not _reaches(previous, below, rest, units).any():
            return Quotient(float(s), float(below), float(rest))
    return Quotient(float(s))


def _first_floats(s: np.float32, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the least floats with the integers after ``low``, and the least quotients that round to these."""
    integers = np.arange(low + 1, high + 1)
    halves = (integers - 0.5).astype(np.float32)
    units = np.where(integers % 2 == 0, halves, np.nextafter(halves, np.float32(np.inf)))
    firsts = (units.astype(np.float64) * np.float64(s)).astype(np.float32)
    for _ in range(3):
        firsts = np.where(firsts / s >= units, np.nextafter(firsts, np.float32(-np.inf)), firsts)
    for _ in range(6):
        firsts = np.where(firsts / s < units, np.nextafter(firsts, np.float32(np.inf)), firsts)
    return firsts, units


def _reaches(x: np.ndarray, factor: np.float32, rest: np.float32, units: np.ndarray) -> np.ndarray:
    """Return True where ``fma(x, factor, x * rest)`` is at least ``units``.

    The sum rounds to ``units`` or more from halfway between ``units`` and the float before. Differences to this number
    are exact in float64.
    """
    previous = np.nextafter(units, np.float32(-np.inf))
    halfway = (units.astype(np.float64) + previous.astype(np.float64)) / 2
    difference = (x.astype(np.float64) * np.float64(factor) - halfway) + (x * rest).astype(np.float64)
    is_even = (units.view(np.uint32) & 1) == 0
    reached: np.ndarray = (difference > 0) | ((difference == 0) & is_even)
    return reached
