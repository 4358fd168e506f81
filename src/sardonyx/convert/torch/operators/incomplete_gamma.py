"""Incomplete gamma functions and Hurwitz's zeta function, computed as float64."""

from __future__ import annotations

import math
from typing import Any

from sardonyx.convert.torch.operators.elementwise import where_
from sardonyx.convert.torch.operators.promotion import cast, floating, promoted
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.convert.torch.operators.sizes import aligned, common_shape
from sardonyx.convert.torch.operators.special import BERNOULLI, digamma, log_gamma
from sardonyx.core import language as L
from sardonyx.core.eval.tensor import Tensor, constant
from sardonyx.core.ir import types as t

_MOST_TERMS = 2000
"""Maximum number of terms of the series and of the continued fraction, as in torch."""

_PRECISION = 1e-15
_SMALLEST = 1e-300


def _operands(x: Any, y: Any) -> tuple[Tensor, Tensor, t.DType]:
    """Return operands as float64 of one shape, and the type of the result."""
    x, y = promoted(*(floating(v) if isinstance(v, Tensor) else v for v in (x, y)))
    shape = common_shape(x, y)
    return cast(aligned(x, shape), t.DOUBLE), cast(aligned(y, shape), t.DOUBLE), x.dtype


def _series(a: Tensor, x: Tensor) -> Tensor:
    """Return the sum of x^n / (a (a + 1) … (a + n)), which converges fast for x below a + 1."""

    def step(i: Tensor, term: Tensor, total: Tensor) -> Any:
        term = term * x / (a + cast(i + 1, t.DOUBLE))
        total = total + term
        return L.any_of(L.abs_(term) > L.abs_(total) * _PRECISION), [term, total], []

    first = 1 / a
    (_, total), _ = L.loop(constant(_MOST_TERMS), None, [first, first], step)
    return total  # type: ignore[no-any-return]


def _fraction(a: Tensor, x: Tensor) -> Tensor:
    """Return the continued fraction 1 / (x + 1 - a - …), which converges fast for x above a + 1, by Lentz's method."""

    def step(i: Tensor, b: Tensor, c: Tensor, d: Tensor, h: Tensor) -> Any:
        n = cast(i + 1, t.DOUBLE)
        factor, b = n * (a - n), b + 2
        d = 1 / _away(factor * d + b)
        c = _away(b + factor / c)
        change = d * c
        return L.any_of(L.abs_(change - 1) > _PRECISION), [b, c, d, h * change], []

    b = x + 1 - a
    d = 1 / _away(b)
    start = [b, L.full_like(x, 1 / _SMALLEST), d, d]
    results, _ = L.loop(constant(_MOST_TERMS), None, start, step)
    return results[3]  # type: ignore[no-any-return]


def _away(x: Tensor) -> Tensor:
    """Replace zero."""
    return where_(L.equal(x, 0), L.full_like(x, _SMALLEST), x)


def _incomplete(a: Any, x: Any, upper: bool) -> Tensor:
    a, x, dtype = _operands(a, x)
    proper = (a > 0) & (x > 0) & (x < math.inf) & (a < math.inf)
    one = L.ones_like(a)
    inner_a, inner_x = where_(proper, a, one), where_(proper, x, one)
    factor = L.exp(inner_a * L.log(inner_x) - inner_x - log_gamma(inner_a))
    border = inner_a + 1
    below = factor * _series(inner_a, L.minimum(inner_x, border))
    above = factor * _fraction(inner_a, L.maximum(inner_x, border))
    is_low = inner_x < border
    value = where_(is_low, 1 - below, above) if upper else where_(is_low, below, 1 - above)
    # The edges: all of the mass is above x = 0 and below an infinite x, and at 0 for a = 0.
    none_below = (L.equal(x, 0) & (a > 0)) | (L.equal(a, math.inf) & (x < math.inf))
    all_below = (L.equal(a, 0) & (x > 0)) | (L.equal(x, math.inf) & (a < math.inf))
    edge = where_(none_below, L.full_like(a, float(upper)), L.full_like(a, math.nan))
    edge = where_(all_below & (a >= 0), L.full_like(a, float(not upper)), edge)
    edge = where_((a < 0) | (x < 0), L.full_like(a, math.nan), edge)
    return cast(where_(proper, value, edge), dtype)


@aten("igamma.default", "special_gammainc.default")
def _lower(a: Any, x: Any) -> Tensor:
    return _incomplete(a, x, upper=False)


@aten("igammac.default", "special_gammaincc.default")
def _upper(a: Any, x: Any) -> Tensor:
    return _incomplete(a, x, upper=True)


_ZETA_TERMS = 10
"""Minimum number of terms that are added before the tail of Euler and Maclaurin, which begins above it."""


@aten("special_zeta.default", "special_zeta.other_scalar", "special_zeta.self_scalar")
def _zeta(x: Any, q: Any) -> Tensor:
    x, q, dtype = _operands(x, q)
    return cast(_zeta_of(x, q), dtype)


def _zeta_of(x: Tensor, q: Tensor) -> Tensor:
    terms = L.maximum(L.ceil(_ZETA_TERMS - q), float(_ZETA_TERMS))
    # A negative base has a power for integers alone.
    odd = L.equal(L.floor_mod(x, L.full_like(x, 2.0)), 1)

    def step(i: Tensor, total: Tensor) -> Any:
        number = cast(i, t.DOUBLE)
        base = q + number
        power = L.abs_(base) ** -x
        power = where_((base < 0) & odd, -power, power)
        return None, [where_(number < terms, total + power, total)], []

    finite = where_(terms < _MOST_TERMS, terms, L.full_like(terms, float(_MOST_TERMS)))
    most = L.reduce_max(L.concat([L.reshape(finite, [L.product(finite.shape)]), constant([0.0], t.DOUBLE)], 0), [0])
    (total,), _ = L.loop(cast(most, t.INT64), None, [L.zeros_like(x)], step)
    z = q + terms
    tail = z ** (1 - x) / (x - 1) + 0.5 * z**-x
    rising, power = x, z ** (-x - 1)
    factorial = 1.0
    for j, number in enumerate(BERNOULLI, 1):
        factorial *= (2 * j) * (2 * j - 1)
        tail = tail + (number / factorial) * rising * power
        rising = rising * (x + (2 * j - 1)) * (x + 2 * j)
        power = power / (z * z)
    value = total + tail
    pole = (q <= 0) & L.equal(q, L.floor(q))
    value = where_(pole, L.full_like(x, math.inf), value)
    undefined = (x < 1) | ((q < 0) & L.not_equal(q, L.floor(q)) & L.not_equal(x, L.floor(x)))
    value = where_(undefined, L.full_like(x, math.nan), value)
    return where_(L.equal(x, 1), L.full_like(x, math.inf), value)


@aten("polygamma.default", "special_polygamma.default")
def _polygamma(n: int, x: Tensor) -> Tensor:
    x = floating(x)
    if n == 0:
        return digamma(x)
    value = cast(x, t.DOUBLE)
    sign = 1 if n % 2 else -1
    return cast(_zeta_of(L.full_like(value, n + 1.0), value) * (sign * math.factorial(n)), x.dtype)
