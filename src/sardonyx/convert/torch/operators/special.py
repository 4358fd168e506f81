"""Special functions by series and rational approximations, to the precision of float32."""

from __future__ import annotations

import math

from sardonyx.convert.torch.operators.bessel import polynomial
from sardonyx.convert.torch.operators.elementwise import add_, div_, equal_, less_, like, mul_, pointwise, sub_, where_
from sardonyx.convert.torch.operators.promotion import cast, floating
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.core import language as L
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t

BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
"""The Bernoulli numbers of even index, from B2 on."""

_SHIFT = 8
"""Arguments are raised above this number, where the asymptotic series converge."""


@aten("digamma.default", "special_digamma.default", "special_psi.default")
def digamma(x: Tensor) -> Tensor:
    """Return the derivative of the logarithm of the gamma function."""
    x = floating(x)
    low = x < 0.5
    y = where_(low, 1 - x, x)
    total = L.zeros_like(y)
    for k in range(_SHIFT):
        total = total - 1 / (y + k)
    z = y + _SHIFT
    square = 1 / (z * z)
    series, power = L.zeros_like(z), square
    for n, number in enumerate(BERNOULLI, 1):
        series = series + power * (number / (2 * n))
        power = power * square
    value = total + L.log(z) - 0.5 / z - series
    reflected = value - math.pi / L.tan(math.pi * (x - L.floor(x)))
    return where_(low, reflected, value)


@aten("special_ndtri.default")
def _ndtri(p: Tensor) -> Tensor:
    """Return the quantile of the normal distribution: Acklam's approximation, and a step of Halley's method."""
    p = floating(p)
    a = (
        -3.969683028665376e01,
        2.209460984245205e02,
        -2.759285104469687e02,
        1.383577518672690e02,
        -3.066479806614716e01,
        2.506628277459239e00,
    )
    b = (
        -5.447609879822406e01,
        1.615858368580409e02,
        -1.556989798598866e02,
        6.680131188771972e01,
        -1.328068155288572e01,
        1.0,
    )
    c = (
        -7.784894002430293e-03,
        -3.223964580411365e-01,
        -2.400758277161838e00,
        -2.549732539343734e00,
        4.374664141464968e00,
        2.938163982698783e00,
    )
    d = (7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e00, 3.754408661907416e00, 1.0)
    tail = L.minimum(p, 1 - p)
    q = L.sqrt(-2 * L.log(L.minimum(tail, 0.02425)))
    outer = polynomial(q, c) / polynomial(q, d) * where_(p < 0.5, L.ones_like(p), -L.ones_like(p))
    r = p - 0.5
    inner = polynomial(r * r, a) * r / polynomial(r * r, b)
    x = where_(tail < 0.02425, outer, inner)
    error = 0.5 * (1 + L.erf(x * math.sqrt(0.5))) - p
    u = error * math.sqrt(2 * math.pi) * L.exp(L.minimum(x * x * 0.5, 80))
    refined = x - u / (1 + x * u * 0.5)
    return where_((tail > 0) & (tail > 1e-6), refined, x)


@aten("sinc.default", "special_sinc.default")
def _sinc(x: Tensor) -> Tensor:
    x = floating(x) * math.pi
    zero = L.equal(x, 0)
    return where_(zero, L.ones_like(x), L.sin(x) / where_(zero, L.ones_like(x), x))


@aten("special_entr.default")
def _entr(x: Tensor) -> Tensor:
    x = floating(x)
    positive = x > 0
    inner = -x * L.log(where_(positive, x, L.ones_like(x)))
    return where_(
        positive, inner, where_(x < 0, L.full_like(x, float("-inf")), where_(L.is_nan(x), x, L.zeros_like(x)))
    )


@aten("erfinv.default", "special_erfinv.default")
def erfinv(x: Tensor) -> Tensor:
    """Return the inverse of erf: an approximation, then two steps of Newton's method.

    Source: S. Winitzki, "A handy approximation for the error function and its inverse" (2008).
    """
    x = floating(x)
    a = 0.147
    logarithm = pointwise("Log", L.log, sub_(like(x, 1), mul_(x, x)))
    first = add_(mul_(logarithm, like(x, 0.5)), like(x, 2 / (math.pi * a)))
    root = pointwise("Sqrt", L.sqrt, sub_(mul_(first, first), div_(logarithm, like(x, a))))
    start = pointwise("Sqrt", L.sqrt, sub_(root, first))
    y = where_(less_(x, like(x, 0)), pointwise("Neg", lambda v: -v, start), start)
    for _ in range(2):
        slope = mul_(pointwise("Exp", L.exp, mul_(y, y)), like(x, math.sqrt(math.pi) / 2))
        y = sub_(y, mul_(sub_(pointwise("Erf", L.erf, y), x), slope))
    edge = equal_(pointwise("Abs", L.abs_, x), like(x, 1))
    return where_(edge, mul_(x, like(x, math.inf)), y)


_LANCZOS = (
    0.99999999999980993,
    676.5203681218851,
    -1259.1392167224028,
    771.32342877765313,
    -176.61502916214059,
    12.507343278686905,
    -0.13857109526572012,
    9.9843695780195716e-6,
    1.5056327351493116e-7,
)
"""Coefficients for g = 7. Source: C. Lanczos, "A precision approximation of the gamma function" (1964)."""


def _log_gamma_of_positive(x: Tensor) -> Tensor:
    z = sub_(x, like(x, 1))
    total = like(x, _LANCZOS[0])
    for i, factor in enumerate(_LANCZOS[1:]):
        total = add_(div_(like(x, factor), add_(z, like(x, i + 1))), total)
    shifted = add_(z, like(x, 7.5))
    powers = sub_(mul_(add_(z, like(x, 0.5)), pointwise("Log", L.log, shifted)), shifted)
    return add_(add_(powers, like(x, 0.5 * math.log(2 * math.pi))), pointwise("Log", L.log, total))


@aten("lgamma.default", "special_gammaln.default")
def log_gamma(x: Tensor) -> Tensor:
    """Return log |Γ(x)|, below 1/2 by reflection; computed as float64, because terms cancel near 1 and 2."""
    x = floating(x)
    dtype, x = x.dtype, cast(x, t.DOUBLE)
    low = less_(x, like(x, 0.5))
    value = _log_gamma_of_positive(where_(low, sub_(like(x, 1), x), x))
    sine = pointwise("Abs", L.abs_, pointwise("Sin", L.sin, mul_(x, like(x, math.pi))))
    reflected = sub_(sub_(like(x, math.log(math.pi)), pointwise("Log", L.log, sine)), value)
    return cast(where_(low, reflected, value), dtype)
