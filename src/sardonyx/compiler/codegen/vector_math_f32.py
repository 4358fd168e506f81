"""Elementary functions of ``float`` vectors, within 2 units in the last place.

Coefficients are minimax fits: linear programs over 800 Chebyshev points that minimize the largest relative error of the
function, with function values from 100-bit arithmetic. Coefficients are rounded to ``float`` one by one from the
constant term on, and the others are fitted again after each rounding; the remaining error is noted at each table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sardonyx.compiler.llvm.vector_value import Vector, polynomial

_EXP = (1.0, 1.0, 0.4999999403953552, 0.1666652113199234, 0.04166826233267784, 0.00836867094039917,
        0.001382089452818036)  # fmt: skip
"""``exp(r)`` for ``|r| <= log(2)/2``: 3.1e-9."""
_LOG2E = 1 / math.log(2)
_SHIFTER = 1.5 * 2.0**23
"""Constant that rounds: the sum with a number has the nearest integer in its lowest bits."""
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.42860682030941723212e-6
"""``log(2)`` in two parts, the first of 15 bits, so that its products with exponents are exact."""


def exp(x: Vector) -> Vector:
    """Return ``e`` to the power of ``x``; denormal results are rounded once, overflow gives infinity.

    Results that are 0, as of minus infinity in the mask of an attention, are selected: a product that is smaller than
    all numbers would take a hundred cycles.
    """
    vanishes = x < -104.0
    x = vanishes.where(x.like(0.0), x).below(89.0)
    # The power of two is the product of two factors, because the exponent of a single float does not cover the range.
    shifter = _SHIFTER + 254
    shifted = x.fma(_LOG2E, shifter)
    whole = shifted - shifter
    rest = whole.fma(-_LN2_LOW, whole.fma(-_LN2_HIGH, x))
    biased = shifted.bits()
    half = biased.lshr(1)
    result = polynomial(rest, _EXP) * (half << 23).number() * ((biased - half) << 23).number()
    return vanishes.where(x.like(0.0), result)


_TWICE_EXP = tuple(2 * coefficient for coefficient in _EXP)


def logistic(numerator: Vector, x: Vector) -> Vector:
    """Return ``numerator / (1 + exp(-x))``; the divisor is infinite if ``exp(-x)`` is.

    A network computes many of these at once, and the processor waits for chains of dependent instructions: one power of
    two, half of a factor whose other half is in the coefficients, and a polynomial of which parts are independent.
    """
    x = x.above(-89.0).below(86.0)
    shifter = _SHIFTER + 126
    shifted = x.fma(-_LOG2E, shifter)
    whole = shifted - shifter
    rest = whole.fma(-_LN2_LOW, whole.fma(-_LN2_HIGH, -x))
    power = (shifted.bits() << 23).number()
    square = rest * rest
    first, second, third = (rest.fma(_TWICE_EXP[i + 1], _TWICE_EXP[i]) for i in (0, 2, 4))
    even = square.fma(square.fma(square.fma(_TWICE_EXP[6], third), second), first)
    return numerator / even.fma(power, 1.0)


_POWERS_OF_TWO = {
    4: (0.9999992847442627, 0.6931217312812805, 0.2402467131614685, 0.05591825023293495, 0.009572961367666721),
    5: (1.0, 0.6931467056274414, 0.2402217984199524, 0.055509377270936966, 0.009676279500126839,
        0.0013237780658528209),
}  # fmt: skip
"""``2**f`` for ``|f| <= 1/2``, by degree."""

POWER_ERRORS = {4: 2.7e-6, 5: 2.6e-7}
"""Relative errors of the powers in :func:`rough_logistic`, by degree, with those of roundings."""


def rough_logistics(
    numerators: Sequence[Vector], arguments: Sequence[Vector], slope: float, degree: int
) -> list[Vector]:
    """Return ``numerator / (1 + exp(-slope * x))`` with a small error of the power, for finite arguments ``x``.

    The exponent is rounded to a ``float``, so that the error of the power grows with its size. The power itself is then
    so large or so small that the quotient hardly depends on it: :attr:`.Gate.sensitivity` bounds the error.
    Instructions alternate between the vectors, so that the processor finds independent ones among the next few dozen.

    Args:
        numerators: The numerators.
        arguments: The arguments: whole vectors of the target, x86 with AVX2 or AVX-512.
        slope: Factor of the arguments.
        degree: A degree of :data:`POWER_ERRORS`.
    """
    exponents = [x * (-slope * _LOG2E) for x in arguments]
    if exponents[0].lanes == 16:
        coefficients = _above_half(_POWERS_OF_TWO[degree])
        below = [exponent.call("floor") for exponent in exponents]
        powers = _polynomials(_differences(exponents, below), coefficients)
        scaled = [_times_power_of_two(power, exponent) for power, exponent in zip(powers, exponents, strict=True)]
    else:
        # Powers beyond the limits leave no difference to 0 and 1, as codes.
        exponents = [exponent.above(-125.0).below(125.0) for exponent in exponents]
        shifted = [exponent + _SHIFTER for exponent in exponents]
        whole = [number - _SHIFTER for number in shifted]
        powers = _polynomials(_differences(exponents, whole), _POWERS_OF_TWO[degree])
        scales = [number.bits() << 23 for number in shifted]
        scaled = [(power.bits() + scale).number() for power, scale in zip(powers, scales, strict=True)]
    divisors = [power + 1.0 for power in scaled]
    return [numerator / divisor for numerator, divisor in zip(numerators, divisors, strict=True)]


def _above_half(coefficients: Sequence[float]) -> tuple[float, ...]:
    """Return the coefficients of ``sqrt(2) * p(f - 1/2)`` for a polynomial ``p``."""
    result = [0.0]
    for coefficient in reversed(coefficients):
        # Horner's rule for polynomials: times f - 1/2, plus a coefficient.
        result = [low - high / 2 for low, high in zip([0.0, *result], [*result, 0.0], strict=True)]
        result[0] += coefficient
    return tuple(math.sqrt(2) * coefficient for coefficient in result[: len(coefficients)])


def _differences(minuends: Sequence[Vector], subtrahends: Sequence[Vector]) -> list[Vector]:
    return [x - y for x, y in zip(minuends, subtrahends, strict=True)]


def _polynomials(arguments: Sequence[Vector], coefficients: Sequence[float]) -> list[Vector]:
    """Evaluate a polynomial at several arguments, whose instructions alternate."""
    results: list[Vector] = [x.like(coefficients[-1]) for x in arguments]
    for coefficient in reversed(coefficients[:-1]):
        results = [result.fma(x, coefficient) for result, x in zip(results, arguments, strict=True)]
    return results


def _times_power_of_two(x: Vector, exponent: Vector) -> Vector:
    """Return ``x`` times 2 to the power of the next smaller integer of an exponent: one instruction of AVX-512."""
    operands = [(x.type, x.name), (x.type, exponent.name), (x.type, "zeroinitializer"), ("i16", "-1"), ("i32", "4")]
    name = x.emitter.call(x.type, "llvm.x86.avx512.mask.scalef.ps.512", operands)
    return Vector(x.emitter, name, x.element, x.lanes)


_LOG = (-0.5, 0.3333321511745453, -0.2499980628490448, 0.2001042664051056, -0.16680195927619934, 0.14005734026432037,
        -0.12187479436397552, 0.13984593749046326, -0.1288004070520401)  # fmt: skip
"""``(log(1+f) - f) / f**2`` for ``|f| <= 1/3``: 4.7e-9 of the logarithm."""


def log(x: Vector) -> Vector:
    """Return the natural logarithm; minus infinity of 0, NaN of negative numbers."""
    tiny = x < 2.0**-126
    bits = tiny.where(x * 2.0**23, x).bits()
    # This exponent leaves a fraction in [2/3, 4/3).
    raised = (bits - x.like(2 / 3).bits()) & ~0x7FFFFF
    fraction = (bits - raised).number() - 1.0
    exponent = tiny.where(x.like(-23.0), 0.0) + (raised >> 23).to("sitofp", "float")
    square = fraction * fraction
    near_one = polynomial(fraction, _LOG).fma(square, fraction)
    result = exponent.fma(math.log(2), near_one)
    result = (x < math.inf).where(result, x)
    result = (x < 0.0).where(x.like(math.nan), result)
    return x.equals(0.0).where(x.like(-math.inf), result)


_TANH = (-0.3333294689655304, 0.1332072913646698, -0.05267200991511345, 0.01643787883222103)
"""``(tanh(x)/x - 1) / x**2`` for ``|x| <= 0.55``, in ``x**2``: 3.7e-8 of the function."""
_EXP_TWICE = tuple(coefficient * 2**power for power, coefficient in enumerate(_EXP))
"""``exp(2*r)`` for ``|r| <= log(2)/4``."""


def tanh(x: Vector) -> Vector:
    """Return the hyperbolic tangent, in [-1, 1]: ``1 - 2 / (exp(2*x) + 1)`` except near zero."""
    size = x.abs().below(9.1)
    square = size * size
    near = polynomial(square, _TANH).fma(square * size, size)
    shifter = _SHIFTER + 127
    shifted = size.fma(2 * _LOG2E, shifter)
    rest = (shifted - shifter).fma(-math.log(2) / 2, size)
    far = 1.0 - 2.0 / polynomial(rest, _EXP_TWICE).fma((shifted.bits() << 23).number(), 1.0)
    return (size < 0.55).where(near, far).with_sign_of(x)


_ERF = (0.12837915122509003, -0.3761250376701355, 0.11281921714544296, -0.026770493015646935, 0.004998959135264158,
        -0.0006020799628458917)  # fmt: skip
"""``erf(x) / x - 1`` for ``|x| <= 0.9``, in ``x**2``: 1.4e-8 of the function."""
_LOG2_ERFC = (-0.002628996269777417, -1.6163922548294067, -0.9384066462516785, -0.13175073266029358,
              0.02258177660405636, -0.0018197731114923954)  # fmt: skip
"""``log2(1 - erf(x))`` for 0.9 to 3.94: 2.7e-8 of ``erf``."""
_EXP2 = (1.0, 0.6931470036506653, 0.24022246897220612, 0.0555071085691452, 0.009671291336417198,
         0.0013269521296024323)  # fmt: skip
"""``2**f`` for ``|f| <= 1/2``: 9.3e-8."""


def erf(x: Vector) -> Vector:
    """Return the error function, in [-1, 1]."""
    size = x.abs().below(3.94)
    near = polynomial(size * size, _ERF).fma(size, size)
    exponent = polynomial(size, _LOG2_ERFC)
    shifter = _SHIFTER + 127
    shifted = exponent + shifter
    fraction = exponent - (shifted - shifter)
    far = (-polynomial(fraction, _EXP2)).fma((shifted.bits() << 23).number(), 1.0)
    return (size < 0.9).where(near, far).with_sign_of(x)


_SIN = (-0.16666653752326965, 0.008332106284797192, -0.00019507882825564593)
"""``(sin(x)/x - 1) / x**2`` for ``|x| <= 1.01*pi/4``, in ``x**2``: 4.2e-9 of the sine."""
_COS = (-0.5, 0.04166664555668831, -0.0013887297827750444, 2.4430084522464313e-05)
"""``(cos(x) - 1) / x**2`` for ``|x| <= 1.01*pi/4``, in ``x**2``: 1.4e-10 of the cosine."""
_QUARTER = (1.570796251296997, 7.549789415861596e-08, 5.390302529957765e-15)
"""``pi/2`` cut into parts of 24 bits."""
TURNS_LIMIT = 2.0**17
"""Largest argument for which the reduction to ``|x| <= pi/4`` is exact to the last place."""


def sin(x: Vector) -> Vector:
    """Return the sine, for ``|x|`` up to :data:`TURNS_LIMIT`."""
    return x.equals(0.0).where(x, _sine_of_turns(x, 0))


def cos(x: Vector) -> Vector:
    """Return the cosine, for ``|x|`` up to :data:`TURNS_LIMIT`."""
    return _sine_of_turns(x, 1)


def _sine_of_turns(x: Vector, ahead: int) -> Vector:
    shifter = _SHIFTER + ahead
    shifted = x.fma(2 / math.pi, shifter)
    turns, rest = shifted - shifter, x
    for part in _QUARTER:
        rest = turns.fma(-part, rest)
    square = rest * rest
    sine, cosine = polynomial(square, _SIN).fma(square * rest, rest), polynomial(square, _COS).fma(square, 1.0)
    count = shifted.bits()
    value = (count & 1).equals(0).where(sine, cosine)
    return (value.bits() ^ ((count & 2) << 30)).number()


_ASIN = (0.16666752099990845, 0.074953094124794, 0.04546915367245674, 0.02418474107980728, 0.042158398777246475)
"""``(asin(x)/x - 1) / x**2`` for ``|x| <= 1/2``, in ``x**2``: 4.9e-9 of the arc sine."""
_RIGHT_ANGLE = (1.5707963705062866, -4.371139000186241e-08)
"""``pi/2`` as a rounded value and a correction."""


def _asin_parts(x: Vector) -> tuple[Vector, Vector, Vector]:
    """Return the lanes with ``|x| > 1/2``; ``y``; and ``asin(y) - y``.

    ``y`` is ``sqrt((1-|x|)/2)`` in lanes with ``|x| > 1/2``, and ``|x|`` in others.
    """
    size = x.abs()
    large = size > 0.5
    square = large.where(size.fma(-0.5, 0.5), size * size)
    base = large.where(square.call("sqrt"), size)
    return large, base, polynomial(square, _ASIN) * square * base


def asin(x: Vector) -> Vector:
    """Return the arc sine, in [-pi/2, pi/2]; NaN outside [-1, 1]."""
    large, base, more = _asin_parts(x)
    far = (base + (more - _RIGHT_ANGLE[1] / 2)).fma(-2.0, _RIGHT_ANGLE[0])
    return large.where(far, base + more).with_sign_of(x)


def acos(x: Vector) -> Vector:
    """Return the arc cosine, in [0, pi]; NaN outside [-1, 1]."""
    large, base, more = _asin_parts(x)
    negative = x < 0.0
    signed, rest = negative.where(-base, base), negative.where(-more, more)
    near = (_RIGHT_ANGLE[0] - signed) + (_RIGHT_ANGLE[1] - rest)
    twice = (signed + rest) * 2.0
    return large.where(twice + negative.where(x.like(2 * _RIGHT_ANGLE[0]), 0.0), near)


_ATAN = (-0.33333152532577515, 0.19993767142295837, -0.14211001992225647, 0.10665769129991531, -0.07551659643650055,
         0.04320470243692398, -0.016363153234124184, 0.0029194059316068888)  # fmt: skip
"""``(atan(x)/x - 1) / x**2`` for ``|x| <= 1``, in ``x**2``: 1.7e-8 of the arc tangent."""


def atan(x: Vector) -> Vector:
    """Return the arc tangent, in [-pi/2, pi/2]."""
    size = x.abs()
    large = size > 1.0
    base = large.where(-1.0 / size, size)
    square = base * base
    value = polynomial(square, _ATAN).fma(square * base, base)
    return large.where(value + _RIGHT_ANGLE[0], value).with_sign_of(x)
