"""Bessel, Airy and scaled error functions, computed as float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from sardonyx.convert.torch.operators import bessel_tables as tables
from sardonyx.convert.torch.operators.elementwise import where_
from sardonyx.convert.torch.operators.functions import log1p
from sardonyx.convert.torch.operators.promotion import cast, floating
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.core import language as L
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t

_BORDER = 5.0
"""Arguments of J and Y above it are large."""

_SMALLEST = 1e-300
"""Replaces zero where the result at zero is chosen otherwise."""


def polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Return the polynomial, coefficients from the highest power."""
    result = L.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        result = result * x + coefficient
    return result


def _chebyshev(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Return half the Chebyshev series at x / 2, coefficients from the highest order."""
    before = L.zeros_like(x)
    last, result = before, L.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        before, last, result = last, result, x * result - last + coefficient
    return (result - before) * 0.5


def _register(*names: str) -> Callable[[Callable[[Tensor], Tensor]], Callable[[Tensor], Tensor]]:
    """Register a function of float64 for every type of operand."""

    def register(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def translation(x: Tensor) -> Tensor:
            x = floating(x)
            return cast(function(cast(x, t.DOUBLE)), x.dtype)

        aten(*names)(translation)
        return function

    return register


def _table(order: int, name: str) -> Sequence[float]:
    return getattr(tables, f"J{order}_{name}")  # type: ignore[no-any-return]


def _waves(x: Tensor, order: int) -> tuple[Tensor, Tensor]:
    """Return J and Y of arguments of at least 5."""
    ratio = _BORDER / x
    square = ratio * ratio
    even = polynomial(square, _table(order, "PP")) / polynomial(square, _table(order, "PQ"))
    odd = ratio * (polynomial(square, _table(order, "QP")) / polynomial(square, _table(order, "QQ")))
    phase = x - (0.25 + 0.5 * order) * math.pi
    size = math.sqrt(2 / math.pi) / L.sqrt(x)
    sine, cosine = L.sin(phase), L.cos(phase)
    return (even * cosine - odd * sine) * size, (even * sine + odd * cosine) * size


_ROOTS = ((5.78318596294678452118, 30.4712623436620863991), (14.6819706421238932572, 49.2184563216946036703))
"""Squares of the first two zeros of J0 and J1."""


def _regular(x: Tensor, order: int) -> Tensor:
    """Return J of arguments from 0 to 5."""
    square = x * x
    first, second = _ROOTS[order]
    value = polynomial(square, _table(order, "RP")) / polynomial(square, _table(order, "RQ"))
    value = value * (square - first) * (square - second)
    return value * x if order else value


def _bessel_j(x: Tensor, order: int) -> Tensor:
    size = L.abs_(x)
    value = where_(
        size <= _BORDER,
        _regular(L.minimum(size, _BORDER), order),
        _waves(L.maximum(size, _BORDER), order)[0],
    )
    return where_(x < 0, -value, value) if order else value


def _bessel_y(x: Tensor, order: int) -> Tensor:
    near = L.maximum(L.minimum(x, _BORDER), _SMALLEST)
    square = near * near
    regular = polynomial(square, getattr(tables, f"Y{order}_YP")) / polynomial(square, getattr(tables, f"Y{order}_YQ"))
    logarithmic = _regular(near, order) * L.log(near)
    small = near * regular + 2 / math.pi * (logarithmic - 1 / near) if order else regular + 2 / math.pi * logarithmic
    value = where_(x <= _BORDER, small, _waves(L.maximum(x, _BORDER), order)[1])
    value = where_(L.equal(x, 0), L.full_like(x, -math.inf), value)
    return where_(x < 0, L.full_like(x, math.nan), value)


@_register("special_bessel_j0.default")
def _j0(x: Tensor) -> Tensor:
    return _bessel_j(x, 0)


@_register("special_bessel_j1.default")
def _j1(x: Tensor) -> Tensor:
    return _bessel_j(x, 1)


@_register("special_bessel_y0.default")
def _y0(x: Tensor) -> Tensor:
    return _bessel_y(x, 0)


@_register("special_bessel_y1.default")
def _y1(x: Tensor) -> Tensor:
    return _bessel_y(x, 1)


def _modified_i(x: Tensor, order: int, scaled: bool = False) -> Tensor:
    size = L.abs_(x)
    near, far = L.minimum(size, 8.0), L.maximum(size, 8.0)
    small = _chebyshev(near * 0.5 - 2.0, getattr(tables, f"I{order}_A"))
    large = _chebyshev(32.0 / far - 2.0, getattr(tables, f"I{order}_B")) / L.sqrt(far)
    value = where_(size <= 8.0, small * near if order else small, large)
    value = value if scaled else value * L.exp(size)
    return where_(x < 0, -value, value) if order else value


def _modified_k(x: Tensor, order: int, scaled: bool) -> Tensor:
    near, far = L.maximum(L.minimum(x, 2.0), _SMALLEST), L.maximum(x, 2.0)
    series = _chebyshev(near * near - 2.0, getattr(tables, f"K{order}_A"))
    logarithmic = L.log(near * 0.5) * _modified_i(near, order)
    small = logarithmic + series / near if order else series - logarithmic
    large = _chebyshev(8.0 / far - 2.0, getattr(tables, f"K{order}_B")) / L.sqrt(far)
    value = where_(x <= 2.0, small * L.exp(near) if scaled else small, large if scaled else large * L.exp(-far))
    value = where_(L.equal(x, 0), L.full_like(x, math.inf), value)
    return where_(x < 0, L.full_like(x, math.nan), value)


def _define_modified(order: int) -> None:
    for prefix, scaled in (("", False), ("scaled_", True)):

        def second_kind(x: Tensor, scaled: bool = scaled) -> Tensor:
            return _modified_k(x, order, scaled)

        _register(f"special_{prefix}modified_bessel_k{order}.default")(second_kind)
    _register(f"special_modified_bessel_i{order}.default", f"special_i{order}.default")(lambda x: _modified_i(x, order))
    _register(f"special_i{order}e.default")(lambda x: _modified_i(x, order, scaled=True))


for _order in (0, 1):
    _define_modified(_order)


@_register("i0.default")
def modified_i0(x: Tensor) -> Tensor:
    """Return the modified Bessel function of the first kind and order 0, of float64."""
    return _modified_i(x, 0)


@_register("special_spherical_bessel_j0.default")
def _spherical(x: Tensor) -> Tensor:
    zero = L.equal(x, 0)
    value = where_(zero, L.ones_like(x), L.sin(x) / where_(zero, L.ones_like(x), x))
    return where_(L.is_infinite(x), L.zeros_like(x), value)


_AIRY = 0.355028053887817239260, 0.258819403792806798405
"""Ai(0) and -Ai'(0)."""
_AIRY_BORDER = 2.09
_AIRY_TERMS = 14
"""Terms of the Taylor series up to the border, to the precision of float64."""


@_register("special_airy_ai.default")
def _airy(x: Tensor) -> Tensor:
    near = L.clip(x, -_AIRY_BORDER, _AIRY_BORDER)
    cube = near * near * near
    f, g = L.ones_like(x), near
    m, n = f, g
    for k in range(_AIRY_TERMS):
        m = m * cube * (1 / ((3 * k + 2) * (3 * k + 3)))
        n = n * cube * (1 / ((3 * k + 3) * (3 * k + 4)))
        f, g = f + m, g + n
    middle = _AIRY[0] * f - _AIRY[1] * g
    far = L.clip(L.abs_(x), _AIRY_BORDER, 104.0)
    root = L.sqrt(far)
    zeta = far * root * (2 / 3)
    z = 1 / zeta
    square = z * z
    even = 1 + square * polynomial(square, tables.AI_AFN) / polynomial(square, tables.AI_AFD)
    odd = z * polynomial(square, tables.AI_AGN) / polynomial(square, tables.AI_AGD)
    phase = zeta + math.pi / 4
    size = 1 / (math.sqrt(math.pi) * L.sqrt(root))
    wave = (L.sin(phase) * even - L.cos(phase) * odd) * size
    decay = polynomial(z, tables.AI_AN) / polynomial(z, tables.AI_AD) * size * 0.5 * L.exp(-zeta)
    value = where_(x < -_AIRY_BORDER, wave, where_(x >= _AIRY_BORDER, decay, middle))
    return where_(x > 103.892, L.zeros_like(x), where_(L.is_infinite(x), L.full_like(x, math.nan), value))


def _weideman(terms: int = 40) -> tuple[float, Sequence[float]]:
    """Return the scale and the coefficients of the expansion of the Faddeeva function.

    Source: J. Weideman, "Computation of the complex error function" (1994).
    """
    count = 4 * terms
    scale = math.sqrt(terms / math.sqrt(2))
    line = scale * np.tan(np.arange(-count // 2 + 1, count // 2) * math.pi / count)
    values = np.concatenate([[0.0], np.exp(-(line**2)) * (scale**2 + line**2)])
    coefficients = np.real(np.fft.fft(np.fft.fftshift(values))) / count
    return scale, [float(value) for value in coefficients[1 : terms + 1][::-1]]


_SCALE, _EXPANSION = _weideman()


@_register("special_erfcx.default")
def scaled_erfc(x: Tensor) -> Tensor:
    """Return exp(x²) (1 - erf(x)) of float64."""
    size = L.abs_(x)
    z = (_SCALE - size) / (_SCALE + size)
    z = where_(L.is_infinite(size), L.full_like(z, -1.0), z)
    below = 1 / (_SCALE + size)
    value = 2 * polynomial(z, _EXPANSION) * below * below + below / math.sqrt(math.pi)
    return where_(x < 0, 2 * L.exp(size * size) - value, value)


@_register("special_log_ndtr.default")
def _log_ndtr(x: Tensor) -> Tensor:
    scaled = x * math.sqrt(0.5)
    low = L.log(scaled_erfc(L.maximum(-scaled, 0.0)) * 0.5) - scaled * scaled
    high = log1p(-0.5 * (1 - L.erf(L.maximum(scaled, -1.0))))
    return where_(x < -1, low, high)
