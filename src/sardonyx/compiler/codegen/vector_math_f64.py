"""Elementary functions of ``double`` vectors, within 2 units in the last place.

Coefficients are Chebyshev expansions, in 200-bit arithmetic, of the function named at each table, truncated where the
remainder is below 2**-56 of the result, and rounded. Splits and reductions are the classical ones (W. J. Cody and
W. Waite, *Software Manual for the Elementary Functions*, 1980; the logarithm's as in Sun Microsystems' ``fdlibm``).
"""

from __future__ import annotations

import math

from sardonyx.compiler.llvm.vector_value import Vector, polynomial

LOG2E = 1 / math.log(2)
_LN2_HIGH, _LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
"""``log(2)`` in two parts, the first of 32 bits, so that its products with exponents are exact."""
_SHIFTER = 1.5 * 2.0**52
"""Constant that rounds: the sum with a number has the nearest integer in its lowest bits."""

_EXP = (1.0, 1.0, 0.5000000000000001, 0.16666666666666669, 0.04166666666662399, 0.008333333333330051,
        0.0013888888917281794, 0.00019841269863105968, 2.480152119021773e-05, 2.7557268378684192e-06,
        2.7620138719733994e-07, 2.5100424157005067e-08)  # fmt: skip
"""``exp(r)`` for ``|r| <= log(2)/2``."""


def exp(x: Vector) -> Vector:
    """Return ``e`` to the power of ``x``; denormal results are rounded once, overflow gives infinity."""
    rest, biased = _reduce(x.above(-746.0).below(710.0), 2046)
    half = biased.lshr(1)
    return polynomial(rest, _EXP) * (half << 52).number() * ((biased - half) << 52).number()


def _reduce(x: Vector, bias: int) -> tuple[Vector, Vector]:
    """Return ``x - n * log(2)`` with ``n`` the nearest integer, and ``n + bias`` in an integer's low bits."""
    shifter = _SHIFTER + bias
    shifted = x.fma(LOG2E, shifter)
    whole = shifted - shifter
    return whole.fma(-_LN2_LOW, whole.fma(-_LN2_HIGH, x)), shifted.bits()


def _exp_of_some(x: Vector) -> Vector:
    """Return the exponential for ``|x| < 708``; neither result nor power of two is denormal or infinite."""
    rest, biased = _reduce(x, 1023)
    return polynomial(rest, _EXP) * (biased << 52).number()


_LOG = (0.666666666666667, 0.3999999999989889, 0.28571428626253836, 0.22222211089379496, 0.1818289243253687,
        0.15331611722055008, 0.14617807153417325)  # fmt: skip
"""``(log((1+s)/(1-s)) / s - 2) / s**2`` in ``s**2``, for ``(1+s)/(1-s)`` in [sqrt(1/2), sqrt(2)]."""


def log(x: Vector) -> Vector:
    """Return the natural logarithm; minus infinity of 0, NaN of negative numbers."""
    tiny = x < 2.0**-1022
    bits = tiny.where(x * 2.0**54, x).bits()
    # This exponent leaves a fraction around 1. Inserted below the leading bit of 2^52, the exponent becomes a double.
    biased = (bits - x.like(math.sqrt(0.5)).bits() + (1023 << 52)).lshr(52)
    exponent = (biased | x.like(2.0**52).bits()).number() - tiny.where(x.like(2.0**52 + 1077), 2.0**52 + 1023)
    f = (bits - (biased << 52) + (1023 << 52)).number() - 1.0
    s = f / (f + 2.0)
    square = s * s
    half = f * f * 0.5
    small = s.fma(half + square * polynomial(square, _LOG), exponent * _LN2_LOW)
    result = exponent.fma(_LN2_HIGH, f - (half - small))
    result = (x < math.inf).where(result, x)
    result = (x < 0.0).where(x.like(math.nan), result)
    return x.equals(0.0).where(x.like(-math.inf), result)


_SIN = (-0.16666666666666666, 0.008333333333330925, -0.00019841269836722418, 2.755731608381636e-06,
        -2.5051127944014188e-08, 1.5917848524808262e-10)  # fmt: skip
"""``(sin(x)/x - 1) / x**2`` in ``x**2``, for ``|x| <= pi/4``."""
_COS = (-0.5, 0.04166666666666664, -0.0013888888888880693, 2.4801587293630193e-05, -2.7557315544387844e-07,
        2.087588326175103e-09, -1.1367793938832811e-11)  # fmt: skip
"""``(cos(x) - 1) / x**2`` in ``x**2``, for ``|x| <= pi/4``."""
_QUARTER = (1.5707963267948966, 6.123233995736765e-17, 1.0828566739219139e-32)
"""``pi/2`` cut into parts of 53 bits."""
TURNS_LIMIT = 2.0**30
"""Largest argument for which the reduction to ``|x| <= pi/4`` is exact to the last place."""


def _quarter_turns(x: Vector, ahead: int) -> tuple[Vector, Vector, Vector]:
    """Return sine and cosine of ``x`` modulo ``pi/2``, and the number of quarter turns plus ``ahead``."""
    shifter = _SHIFTER + ahead
    shifted = x.fma(2 / math.pi, shifter)
    turns = shifted - shifter
    rest = x
    for part in _QUARTER:
        rest = turns.fma(-part, rest)
    square = rest * rest
    sine = polynomial(square, _SIN).fma(square * rest, rest)
    return sine, polynomial(square, _COS).fma(square, 1.0), shifted.bits()


def _sine_of_turns(x: Vector, ahead: int) -> Vector:
    sine, cosine, turns = _quarter_turns(x, ahead)
    value = (turns & 1).equals(0).where(sine, cosine)
    return (value.bits() ^ ((turns & 2) << 62)).number()


def sin(x: Vector) -> Vector:
    """Return the sine, for ``|x|`` up to :data:`TURNS_LIMIT`."""
    return x.equals(0.0).where(x, _sine_of_turns(x, 0))


def cos(x: Vector) -> Vector:
    """Return the cosine, for ``|x|`` up to :data:`TURNS_LIMIT`."""
    return _sine_of_turns(x, 1)


def tan(x: Vector) -> Vector:
    """Return the tangent, for ``|x|`` up to :data:`TURNS_LIMIT`."""
    sine, cosine, turns = _quarter_turns(x, 0)
    even = (turns & 1).equals(0)
    return x.equals(0.0).where(x, even.where(sine, -cosine) / even.where(cosine, sine))


_ATAN = (-0.3333333333333333, 0.19999999999995513, -0.1428571428466482, 0.11111111015117626, -0.09090904572487347,
         0.07692183059894114, -0.06664509603255386, 0.05858132894427922, -0.05085365922344248, 0.03922923713835943,
         -0.01917392228554793)  # fmt: skip
"""``(atan(x)/x - 1) / x**2`` in ``x**2``, for ``|x| <= tan(pi/8)``."""


def atan(x: Vector) -> Vector:
    """Return the arc tangent, in [-pi/2, pi/2].

    Uses ``atan(x) = a + atan((x - tan(a)) / (1 + x * tan(a)))`` with ``a`` 0, pi/4 or pi/2.
    """
    size = x.abs()
    middle, large = size > math.tan(math.pi / 8), size > math.tan(3 * math.pi / 8)
    above = large.where(x.like(-1.0), middle.where(size - 1.0, size))
    below = large.where(size, middle.where(size + 1.0, 1.0))
    rest = above / below
    high, low = (large.where(x.like(part), middle.where(x.like(part / 2), 0.0)) for part in (_QUARTER[0], _QUARTER[1]))
    square = rest * rest
    value = high + (rest + polynomial(square, _ATAN).fma(square * rest, low))
    return value.with_sign_of(x)


_ASIN = (0.16666666666666669, 0.07499999999998425, 0.04464285714637338, 0.030381944137085216, 0.022372173002005596,
         0.017352391265909227, 0.013971235301124539, 0.011478952690257387, 0.010324318288744113, 0.00545087818772055,
         0.017419357964884856, -0.014881409392818066, 0.02877844261259304)  # fmt: skip
"""``(asin(x)/x - 1) / x**2`` in ``x**2``, for ``|x| <= 1/2``."""


def _asin_parts(x: Vector) -> tuple[Vector, Vector, Vector]:
    """Return the lanes with ``|x| > 1/2``; ``y``; and ``asin(y) - y`` plus the rounding error of the root.

    ``y`` is ``sqrt((1-|x|)/2)`` in lanes with ``|x| > 1/2``, and ``|x|`` in others.
    """
    size = x.abs()
    large = size > 0.5
    square = large.where((1.0 - size) * 0.5, size * size)
    root = square.call("sqrt")
    base = large.where(root, size)
    cubic = polynomial(square, _ASIN) * square * base
    # The rounding error of the root; 0 in lanes whose root is 0 or unused.
    correction = (large & (root > 0.0)).where((-root).fma(root, square) / (root + root), 0.0)
    return large, base, cubic + correction


def asin(x: Vector) -> Vector:
    """Return the arc sine, in [-pi/2, pi/2]; NaN outside [-1, 1]."""
    large, base, more = _asin_parts(x)
    twice = base + base
    high = _QUARTER[0] - twice
    # The rounding error of `high` is added back.
    far = high + (((_QUARTER[0] - high) - twice) + (_QUARTER[1] - (more + more)))
    return large.where(far, base + more).with_sign_of(x)


def acos(x: Vector) -> Vector:
    """Return the arc cosine, in [0, pi]; NaN outside [-1, 1]."""
    large, base, more = _asin_parts(x)
    negative = x < 0.0
    signed, rest = negative.where(-base, base), negative.where(-more, more)
    high = _QUARTER[0] - signed
    near = high + (((_QUARTER[0] - high) - signed) + (_QUARTER[1] - rest))
    twice = (base + more) * 2.0
    opposite = 2 * _QUARTER[0] - (twice - 2 * _QUARTER[1])
    return large.where(negative.where(opposite, twice), near)


_SINH = (0.16666666666666666, 0.008333333333333299, 0.00019841269841324198, 2.7557319191381816e-06,
         2.5052117695907823e-08, 1.6057679623801638e-10, 7.746178593018827e-13)  # fmt: skip
"""``(sinh(x)/x - 1) / x**2`` in ``x**2``, for ``|x| <= 1``."""


def _half_exp(size: Vector) -> Vector:
    """Return ``exp(x) / 2`` of positive numbers, which is finite for slightly larger ``x`` than ``exp``."""
    rest, biased = _reduce(size.below(712.0), 2045)
    half = biased.lshr(1)
    return polynomial(rest, _EXP) * (half << 52).number() * ((biased - half) << 52).number()


def sinh(x: Vector) -> Vector:
    """Return the hyperbolic sine."""
    size = x.abs()
    square = size * size
    grown = _half_exp(size)
    near = polynomial(square, _SINH).fma(square * size, size)
    return (size < 1.0).where(near, grown - 0.25 / grown).with_sign_of(x)


def cosh(x: Vector) -> Vector:
    """Return the hyperbolic cosine."""
    grown = _half_exp(x.abs())
    return grown + 0.25 / grown


_TANH = (-0.3333333333333333, 0.13333333333332714, -0.05396825396743174, 0.021869488493563037, -0.008863234395418095,
         0.003592110347096177, -0.0014556615775702365, 0.0005889348072447028, -0.00023463104528300406,
         8.510707927354112e-05, -2.0598556673275166e-05)  # fmt: skip
"""``(tanh(x)/x - 1) / x**2`` in ``x**2``, for ``|x| <= 0.55``."""


def tanh(x: Vector) -> Vector:
    """Return the hyperbolic tangent, in [-1, 1]."""
    size = x.abs().below(20.0)
    square = size * size
    near = polynomial(square, _TANH).fma(square * size, size)
    far = 1.0 - 2.0 / (_exp_of_some(size + size) + 1.0)
    return (size < 0.55).where(near, far).with_sign_of(x)
