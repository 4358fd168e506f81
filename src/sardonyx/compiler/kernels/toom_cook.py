"""The matrices of short convolutions with few products (Toom 1963, Cook 1966; Winograd 1980), exactly.

``F(m, r)`` gives ``m`` results of a correlation with ``r`` weights from ``m + r - 1`` inputs in as many products:
``y = A^T ((G g) * (B^T d))``. Both polynomials are taken at ``m + r - 1`` points, of which the first is 0, the last is
infinity, and the others are pairs ``+p, -p``: the rows of a pair have equal even and opposite odd parts, so that one
costs little where the other is known.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

Matrix = tuple[tuple[Fraction, ...], ...]

TAPS = 3

_POINTS = {
    2: (Fraction(1),),
    4: (Fraction(5, 8), Fraction(3, 2)),
    6: (Fraction(1, 2), Fraction(1), Fraction(2)),
}
"""The pairs of points by ``m``: of pairs of small fractions those with the least error in float32 (F(4,3) with 1 and 2,
as in Lavin and Gray 2015, has 2.2 times the error)."""


@dataclass(frozen=True)
class ShortConvolution:
    """``F(m, 3)``: the three matrices.

    Attributes:
        m: Results at a time.
        output: ``A^T``, [m, n] with ``n = m + 2``.
        weight: ``G``, [n, 3].
        input: ``B^T``, [n, n]; the leading coefficient of every row's even and odd part but for a pair's factor is 1.
    """

    m: int
    output: Matrix
    weight: Matrix
    input: Matrix

    @property
    def n(self) -> int:
        """Inputs, and products, at a time."""
        return self.m + TAPS - 1

    @functools.cached_property
    def amplification(self) -> float:
        """How much larger the error of a result in two dimensions is than that of its products.

        Inputs and weights are taken as independent of variance 1. A result is a sum of ``n * n`` products whose errors
        are relative to the products' own sizes: the ratio of the root of the sum of their squares to the root of
        the 9 that the result's variance is, for the worst result.
        """
        output, weight, input_ = (as_floats(each) ** 2 for each in (self.output, self.weight, self.input))
        along = output @ (weight.sum(axis=1) * input_.sum(axis=1))
        return float(along.max()) / TAPS


@functools.cache
def short_convolution(m: int) -> ShortConvolution:
    """``F(m, 3)`` for m = 2, 4 or 6."""
    pairs = _POINTS[m]
    points = [Fraction(0), *(sign * p for p in pairs for sign in (1, -1))]
    input_rows, weight_rows = [], []
    # Scaled so that the row of A^T for the first power holds ones; G, which is applied once, takes the factor.
    scales = [Fraction(1), *(abs(p) for p in points[1:])]
    for i, (point, scale) in enumerate(zip(points, scales, strict=True)):
        others = points[:i] + points[i + 1 :]
        input_rows.append((*_monic(others), Fraction(0)))
        divisor = math.prod((point - other for other in others), start=Fraction(1))
        weight_rows.append(tuple(scale * point**k / divisor for k in range(TAPS)))
    input_rows.append(_monic(points))
    weight_rows.append((Fraction(0),) * (TAPS - 1) + (Fraction(1),))
    output_rows = tuple(
        (*(point**k / scale for point, scale in zip(points, scales, strict=True)), Fraction(k == m - 1))
        for k in range(m)
    )
    return ShortConvolution(m, output_rows, tuple(weight_rows), tuple(input_rows))


def _monic(roots: list[Fraction]) -> tuple[Fraction, ...]:
    """The coefficients of the polynomial with these roots, the constant first."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *coefficients], [*(root * c for c in coefficients), Fraction(0)]
        coefficients = [a - b for a, b in zip(shifted, scaled, strict=True)]
    return tuple(coefficients)


def as_floats(matrix: Matrix) -> npt.NDArray[np.float64]:
    """A matrix in float64."""
    return np.array([[float(each) for each in row] for row in matrix])
