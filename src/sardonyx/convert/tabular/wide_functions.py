"""Functions of float64 that ONNX Runtime has for float32 alone, as compositions of those that it has for both.

Sources: the approximations of ``core/rules/erf.py``; the arc tangent of Cephes (S. Moshier), ``atan.c``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx.convert.tabular.arrays import Array, where
from sardonyx.core.rules.erf import ERX, FAR, MIDDLE, NEAR_ONE, NEAR_ZERO

_ABOVE = (-6.485021904942025371773e1, -1.228866684490136173410e2, -7.500855792314704667340e1,
          -1.615753718733365076637e1, -8.750608600031904122785e-1)  # fmt: skip
_BELOW = (1.945506571482613964425e2, 4.853903996359136964868e2, 4.328810604912902668951e2,
          1.650270098316988542046e2, 2.485846490142306297962e1, 1.0)  # fmt: skip
_THREE_EIGHTHS = 2.41421356237309504880
"""Tangent of 3/8 of a half turn: from here on the arc tangent is that of the negative reciprocal."""

_LOW_BITS = 6.123233995736765886130e-17
"""Difference of pi / 2 and its nearest number of float64."""


def horner(x: Any, coefficients: Sequence[Any]) -> Any:
    """Return a polynomial whose coefficients, numbers or arrays, are given from the highest power on."""
    total = coefficients[0]
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


def _ratio(x: Any, coefficients: tuple[tuple[float, ...], tuple[float, ...]]) -> Any:
    """Return a quotient of polynomials whose coefficients are given from the constant term on."""
    return horner(x, coefficients[0][::-1]) / horner(x, coefficients[1][::-1])


def erf(x: Array) -> Array:
    """Return the error function."""
    size = np.minimum(np.absolute(x), 6.0)  # The result is 1 from 6 on.
    square = size * size
    small = size + size * _ratio(square, NEAR_ZERO)
    near_one = _ratio(size - 1.0, NEAR_ONE) + ERX
    inverse = 1.0 / np.maximum(square, 1.0)
    tail = where(size < 1 / 0.35, _ratio(inverse, MIDDLE), _ratio(inverse, FAR))
    large = 1.0 - np.exp(tail - square - 0.5625) / np.maximum(size, 1.0)
    result: Array = np.sign(x) * where(size < 0.84375, small, where(size < 1.25, near_one, large))
    return result


def _arctan(x: Any) -> Any:
    size = np.absolute(x)
    is_steep, is_middle = size > _THREE_EIGHTHS, size > 0.66
    steep = -1.0 / where(is_steep, size, 1.0)
    slope = where(is_steep, steep, where(is_middle, (size - 1.0) / (size + 1.0), size))
    start = where(is_steep, np.pi / 2, where(is_middle, np.pi / 4, 0.0))
    rest = where(is_steep, _LOW_BITS, where(is_middle, _LOW_BITS / 2, 0.0))
    square = slope * slope
    angle = slope * square * _ratio(square, (_ABOVE, _BELOW)) + slope
    # An infinite x has the quotient of infinities above.
    angle = where(np.isinf(size), np.pi / 2, angle + rest + start)
    return where(np.equal(x, 0.0), x, np.sign(x) * angle)


def _arcsin(x: Any) -> Any:
    return np.arctan(x / np.sqrt((1.0 - x) * (1.0 + x)))


def _arcsinh(x: Any) -> Any:
    size = np.absolute(x)
    # log(size + sqrt(size² + 1)), by log1p for small numbers and without a square for large ones.
    plain = np.minimum(size, 1e100)
    near = np.log1p(plain + plain * plain / (1.0 + np.sqrt(plain * plain + 1.0)))
    return np.sign(x) * where(size > 1e100, np.log(size) + np.log(2.0), near)


def _arccosh(x: Any) -> Any:
    plain = np.minimum(x, 1e100) - 1.0
    near = np.log1p(plain + np.sqrt(plain * (plain + 2.0)))
    return where(x > 1e100, np.log(x) + np.log(2.0), near)


def _sinh(x: Any) -> Any:
    half = x * 0.5
    # The square of exp(x / 2) is finite where exp(x) would not be.
    power = np.exp(np.absolute(half))
    large = np.sign(x) * (0.5 * power) * power
    difference = np.expm1(np.minimum(np.absolute(x), 20.0))
    small = np.sign(x) * 0.5 * (difference + difference / (difference + 1.0))
    return where(np.absolute(x) > 20.0, large, small)


def _cosh(x: Any) -> Any:
    power = np.exp(np.absolute(x) * 0.5)
    return (0.5 * power) * power + (0.5 / power) / power


WIDE: dict[np.ufunc, Callable[..., Any]] = {
    np.tan: lambda x: np.sin(x) / np.cos(x),
    np.arctan: _arctan,
    np.arcsin: _arcsin,
    np.arccos: lambda x: np.pi / 2 - np.arcsin(x),
    np.sinh: _sinh,
    np.cosh: _cosh,
    np.arcsinh: _arcsinh,
    np.arccosh: _arccosh,
    np.arctanh: lambda x: 0.5 * np.log1p(2.0 * x / (1.0 - x)),
}
"""Universal functions as compositions."""
