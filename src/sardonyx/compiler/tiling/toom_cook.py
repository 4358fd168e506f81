"""Short convolutions with few products (Toom 1963, Cook 1966; Winograd 1980), and their code.

``F(m, r)`` gives ``m`` results of a correlation with ``r`` weights from ``m + r - 1`` inputs in as many products:
``y = A^T ((G g) * (B^T d))``, with exact matrices. Both polynomials are evaluated at ``m + r - 1`` points: 0, pairs
``+p, -p``, and infinity if the number is even. The rows of a pair have equal even and opposite odd parts, so that the
second one costs little once the first is known.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from sardonyx.compiler.llvm.ir_builder import Emitter, float_literal, splat

Matrix = tuple[tuple[Fraction, ...], ...]

TAPS = 3

LARGEST = 6
"""The largest ``m``."""

_POINTS = {
    2: (Fraction(1),),
    3: (Fraction(3, 4), Fraction(5, 2)),
    4: (Fraction(5, 8), Fraction(3, 2)),
    5: (Fraction(5, 8), Fraction(5, 4), Fraction(3)),
    6: (Fraction(1, 2), Fraction(1), Fraction(2)),
}
"""The pairs of points by ``m``.

Of pairs of small fractions these have the least error in float32; F(4,3) with 1 and 2, as in Lavin and Gray 2015, has
2.2 times the error.
"""

INTEGER_RESULTS = (2, 4)
"""The ``m`` of integers: all points are integers."""

_INTEGER_POINTS = {2: (Fraction(1),), 4: (Fraction(1), Fraction(2))}


@dataclass(frozen=True)
class ShortConvolution:
    """``F(m, taps)``: the three matrices.

    Attributes:
        m: Results at a time.
        output: ``A^T``, [m, n] with ``n = m + taps - 1``.
        weight: ``G``, [n, taps].
        input: ``B^T``, [n, n].
    """

    m: int
    output: Matrix
    weight: Matrix
    input: Matrix

    @property
    def n(self) -> int:
        """Inputs, and products, at a time."""
        return len(self.weight)

    @property
    def taps(self) -> int:
        """Weights."""
        return len(self.weight[0])

    @functools.cached_property
    def amplification(self) -> float:
        """The ratio of a result's relative error to that of the products; over two axes, multiply.

        Inputs and weights are assumed independent, of variance 1. A result is a sum of products whose errors are
        relative to the products' own sizes: the ratio of the root of the sum of their squares to the root of the
        result's variance, for the worst result.
        """
        output, weight, input_ = (as_floats(matrix) ** 2 for matrix in (self.output, self.weight, self.input))
        along = output @ (weight.sum(axis=1) * input_.sum(axis=1))
        return math.sqrt(float(along.max()) / self.taps)


@dataclass(frozen=True)
class IntegerConvolution(ShortConvolution):
    """``F(m, taps)`` of integers: matrices of integers, and results that are multiples of the true ones.

    Attributes:
        factor: The odd factor of all results.
        shifts: For each result, the power of 2 that is its other factor.
    """

    factor: int
    shifts: tuple[int, ...]

    @property
    def input_growth(self) -> int:
        """Largest transformed input for inputs up to 1."""
        return _largest_sum(self.input)

    @property
    def weight_growth(self) -> int:
        """Largest transformed weight for weights up to 1."""
        return _largest_sum(self.weight)


def _largest_sum(matrix: Matrix) -> int:
    return int(max(sum(map(abs, row)) for row in matrix))


@functools.cache
def short_convolution(m: int) -> ShortConvolution:
    """Return ``F(m, 3)`` for m from 2 to 6, or for 1 the identity ``F(1, 1)`` of an axis without a window."""
    if m == 1:
        one = ((Fraction(1),),)
        return ShortConvolution(1, one, one, one)
    # Scaled so that the row of A^T for the first power holds ones; G, which is applied once, takes the factor.
    return _of_points(m, _POINTS[m], scaled=True)


@functools.cache
def integer_convolution(m: int) -> IntegerConvolution:
    """Return ``F(m, 3)`` of integers for m of :data:`INTEGER_RESULTS`, or for 1 the identity ``F(1, 1)``.

    Rows of G take the least common denominator, but for powers of 2 that would make a row the largest one.
    """
    if m == 1:
        one = ((Fraction(1),),)
        return IntegerConvolution(1, one, one, one, 1, (0,))
    exact = _of_points(m, _INTEGER_POINTS[m], scaled=False)
    denominator = math.lcm(*(c.denominator for row in exact.weight for c in row))
    rows = [[c * denominator for c in row] for row in exact.weight]
    least = max(sum(map(abs, _halved(row, 0))) for row in rows)
    weight = tuple(tuple(_halved(row, least)) for row in rows)
    column_scales = [
        next(new / old for new, old in zip(a, b, strict=True) if old) for a, b in zip(weight, exact.weight, strict=True)
    ]
    output = [[c / scale for c, scale in zip(row, column_scales, strict=True)] for row in exact.output]
    multiples = [math.lcm(*(c.denominator for c in row)) for row in output]
    factor = math.lcm(*(_odd(multiple) for multiple in multiples))
    multiples = [multiple // _odd(multiple) * factor for multiple in multiples]
    return IntegerConvolution(
        m, tuple(tuple(c * multiple for c in row) for row, multiple in zip(output, multiples, strict=True)), weight,
        exact.input, factor, tuple((multiple // factor).bit_length() - 1 for multiple in multiples),
    )  # fmt: skip


def _odd(number: int) -> int:
    return number // (number & -number)


def _halved(row: Sequence[Fraction], most: Fraction | int) -> list[Fraction]:
    """Divide integers by 2 while all are even and the sum of their magnitudes exceeds a number."""
    halved = list(row)
    while sum(map(abs, halved)) > most and all(c % 2 == 0 for c in halved):
        halved = [c / 2 for c in halved]
    return halved


def _of_points(m: int, pairs: Sequence[Fraction], *, scaled: bool) -> ShortConvolution:
    """Return ``F(m, 3)`` at 0, pairs of points, and infinity if their number is odd."""
    n = m + TAPS - 1
    points = [Fraction(0), *(sign * p for p in pairs for sign in (1, -1))]
    scales = [Fraction(1), *(abs(p) if scaled else Fraction(1) for p in points[1:])]
    input_rows, weight_rows = [], []
    for i, (point, scale) in enumerate(zip(points, scales, strict=True)):
        others = points[:i] + points[i + 1 :]
        input_rows.append(_padded(_monic(others), n))
        divisor = math.prod((point - other for other in others), start=Fraction(1))
        weight_rows.append(tuple(scale * point**k / divisor for k in range(TAPS)))
    output_rows = [[point**k / scale for point, scale in zip(points, scales, strict=True)] for k in range(m)]
    if len(points) < n:  # At infinity a polynomial is its leading coefficient.
        input_rows.append(_monic(points))
        weight_rows.append((Fraction(0), Fraction(0), Fraction(1)))
        output_rows = [[*row, Fraction(k == m - 1)] for k, row in enumerate(output_rows)]
    return ShortConvolution(m, tuple(map(tuple, output_rows)), tuple(weight_rows), tuple(input_rows))


def _padded(coefficients: tuple[Fraction, ...], count: int) -> tuple[Fraction, ...]:
    return coefficients + (Fraction(0),) * (count - len(coefficients))


def _monic(roots: list[Fraction]) -> tuple[Fraction, ...]:
    """Return the coefficients of the polynomial with these roots, the constant first."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *coefficients], [*(root * c for c in coefficients), Fraction(0)]
        coefficients = [a - b for a, b in zip(shifted, scaled, strict=True)]
    return tuple(coefficients)


def inverse(matrix: Matrix) -> Matrix:
    """Return the inverse of an invertible matrix, by Gauss and Jordan's elimination."""
    size = len(matrix)
    rows = [[*row, *(Fraction(i == j) for j in range(size))] for i, row in enumerate(matrix)]
    for k in range(size):
        pivot = next(i for i in range(k, size) if rows[i][k])
        rows[k], rows[pivot] = rows[pivot], rows[k]
        rows[k] = [value / rows[k][k] for value in rows[k]]
        for i in range(size):
            if i != k:
                rows[i] = [a - rows[i][k] * b for a, b in zip(rows[i], rows[k], strict=True)]
    return tuple(tuple(row[size:]) for row in rows)


def as_floats(matrix: Matrix) -> npt.NDArray[np.float64]:
    """Return a matrix in float64."""
    return np.array([[float(entry) for entry in row] for row in matrix])


def transform_input(e: Emitter, type: str, algorithm: ShortConvolution, values: Sequence[str]) -> list[str]:
    """Emit ``B^T`` times a vector of inputs."""
    return _emit_product(e, type, algorithm.input, values)


def transform_weight(e: Emitter, type: str, algorithm: ShortConvolution, values: Sequence[str]) -> list[str]:
    """Emit ``G`` times a vector of weights."""
    return _emit_product(e, type, algorithm.weight, values)


def _emit_product(e: Emitter, type: str, rows: Matrix, values: Sequence[str]) -> list[str]:
    """Emit a matrix times a vector of values: a pair of points shares the even and the odd part."""
    if len(rows) == 1:
        return list(values)
    results = [emit_combination(e, type, rows[0], values)]
    for k in _pairs(len(rows)):
        even, odd = ([c if i % 2 == parity else Fraction(0) for i, c in enumerate(rows[k])] for parity in (0, 1))
        factor = next(c for c in reversed(odd) if c)
        shared = emit_combination(e, type, even, values), emit_combination(e, type, [c / factor for c in odd], values)
        results += [emit_combination(e, type, (1, sign * factor), shared) for sign in (1, -1)]
    return [*results, *(emit_combination(e, type, row, values) for row in rows[len(results) :])]


def transform_output(e: Emitter, type: str, algorithm: ShortConvolution, values: Sequence[str]) -> list[str]:
    """Emit ``A^T`` times a vector of values: each pair of points is first added and subtracted."""
    if len(values) == 1:
        return list(values)
    pairs = _pairs(algorithm.n)
    kind = "" if _is_integer(type) else "f"
    added = [e.let(f"{kind}add {type} {values[k]}, {values[k + 1]}") for k in pairs]
    subtracted = [e.let(f"{kind}sub {type} {values[k]}, {values[k + 1]}") for k in pairs]
    last = 2 * len(pairs) + 1
    results = []
    for power, row in enumerate(algorithm.output):
        # The coefficients of a pair are equal, but for the sign where the power is odd.
        terms = [values[0], *(subtracted if power % 2 else added), *values[last:]]
        results.append(emit_combination(e, type, [row[0], *row[1:last:2], *row[last:]], terms))
    return results


def _pairs(n: int) -> range:
    """Return the first index of each pair of points."""
    return range(1, n - 1, 2)


def _is_integer(type: str) -> bool:
    """Return True for a vector of integers, whose constants are integers."""
    return " i" in type


def emit_combination(e: Emitter, type: str, coefficients: Sequence[Fraction | int], values: Sequence[str]) -> str:
    """Emit a sum of products with constants, in as few instructions as the constants allow."""
    if _is_integer(type):
        return _emit_integer_combination(e, type, coefficients, values)
    terms = [(c, value) for c, value in zip(coefficients, values, strict=True) if c]
    terms.sort(key=lambda term: (term[0] != 1, abs(term[0]) != 1))
    lanes = int(type[1:].split(" ")[0])

    def constant(c: Fraction | int) -> str:
        return splat(float_literal(float(c), "float"), lanes, "float")

    (first, total), *rest = terms
    if first != 1:
        total = e.let(f"fmul {type} {total}, {constant(first)}")
    for c, value in rest:
        if abs(c) == 1:
            total = e.let(f"f{'add' if c > 0 else 'sub'} {type} {total}, {value}")
        else:
            total = e.multiply_add(type, value, constant(c), total)
    return total


def _emit_integer_combination(
    e: Emitter, type: str, coefficients: Sequence[Fraction | int], values: Sequence[str]
) -> str:
    """Emit a sum of multiples, modulo a power of 2; powers of 2 are shifts."""
    lanes, element = type[1:-1].split(" x ")
    terms = [(int(c), value) for c, value in zip(coefficients, values, strict=True) if c]
    terms.sort(key=lambda term: (term[0] <= 0, abs(term[0])))
    total = ""
    for c, value in terms:
        size = abs(c)
        if size & (size - 1):
            value = e.let(f"mul {type} {value}, {splat(str(size), int(lanes), element)}")
        elif size > 1:
            value = e.let(f"shl {type} {value}, {splat(str(size.bit_length() - 1), int(lanes), element)}")
        if total:
            total = e.let(f"{'add' if c > 0 else 'sub'} {type} {total}, {value}")
        else:
            total = value if c > 0 else e.let(f"sub {type} zeroinitializer, {value}")
    return total
