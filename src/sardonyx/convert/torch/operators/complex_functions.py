"""Functions of single complex numbers, over their real and imaginary parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from sardonyx.convert.torch.operators.promotion import promoted
from sardonyx.convert.torch.operators.reductions import vector_norm
from sardonyx.convert.torch.operators.registry import of_complex
from sardonyx.convert.torch.operators.sizes import aligned, common_shape
from sardonyx.convert.torch.operators.spectral import arc, joined, magnitude, part
from sardonyx.core import language as L
from sardonyx.core.eval.tensor import Tensor
from sardonyx.errors import UnsupportedError

_MOST_FACTORS = 8
"""Maximum power that is a product."""

_LARGE = 20.0
"""Above it the hyperbolic tangent is 1 to the last bit of float64."""


def _parts(z: Tensor) -> tuple[Tensor, Tensor]:
    return part(z, 0), part(z, 1)


def _times_i(z: Tensor, sign: int = 1) -> Tensor:
    a, b = _parts(z)
    return joined(-b, a) if sign > 0 else joined(b, -a)


def _real(z: Tensor, value: float) -> Tensor:
    """Return a real number like a complex tensor."""
    zero = L.zeros_like(part(z, 0))
    return joined(zero + value, zero)


def _scaled(z: Tensor, factor: float) -> Tensor:
    a, b = _parts(z)
    return joined(a * factor, b * factor)


def _sinh(x: Tensor) -> Tensor:
    return (L.exp(x) - L.exp(-x)) * 0.5


def _cosh(x: Tensor) -> Tensor:
    return (L.exp(x) + L.exp(-x)) * 0.5


def _log(z: Tensor) -> Tensor:
    """Return the principal logarithm."""
    a, b = _parts(z)
    return joined(L.log(magnitude(z)), arc(b, a))


def _sqrt(z: Tensor) -> Tensor:
    """Return the principal square root, without cancellation."""
    a, b = _parts(z)
    root = L.sqrt((magnitude(z) + L.abs_(a)) * 0.5)
    other = L.abs_(b) / (2 * L.where(L.equal(root, 0), L.ones_like(root), root))
    real, imaginary = L.where(a >= 0, root, other), L.where(a >= 0, other, root)
    return joined(real, L.where(b < 0, -imaginary, imaginary))


def _reciprocal(z: Tensor) -> Tensor:
    """Return 1 / z."""
    return _real(z, 1.0) / z


def _sine(z: Tensor) -> Tensor:
    a, b = _parts(z)
    return joined(L.sin(a) * _cosh(b), L.cos(a) * _sinh(b))


def _cosine(z: Tensor) -> Tensor:
    a, b = _parts(z)
    return joined(L.cos(a) * _cosh(b), -(L.sin(a) * _sinh(b)))


def _hyperbolic_sine(z: Tensor) -> Tensor:
    a, b = _parts(z)
    return joined(_sinh(a) * L.cos(b), _cosh(a) * L.sin(b))


def _hyperbolic_cosine(z: Tensor) -> Tensor:
    a, b = _parts(z)
    return joined(_cosh(a) * L.cos(b), _sinh(a) * L.sin(b))


def _hyperbolic_tangent(z: Tensor) -> Tensor:
    a, b = _parts(z)
    a = L.clip(a, -_LARGE, _LARGE)
    below = _cosh(2 * a) + L.cos(2 * b)
    return joined(_sinh(2 * a) / below, L.sin(2 * b) / below)


def _tangent(z: Tensor) -> Tensor:
    return _times_i(_hyperbolic_tangent(_times_i(z)), -1)


def _inverse_sinh(z: Tensor) -> Tensor:
    return _log(z + _sqrt(z * z + _real(z, 1.0)))


def _inverse_cosh(z: Tensor) -> Tensor:
    one = _real(z, 1.0)
    return _log(z + _sqrt(z + one) * _sqrt(z - one))


def _inverse_tanh(z: Tensor) -> Tensor:
    one = _real(z, 1.0)
    return _scaled(_log(one + z) - _log(one - z), 0.5)


def _inverse_sine(z: Tensor) -> Tensor:
    return _times_i(_inverse_sinh(_times_i(z)), -1)


def _inverse_cosine(z: Tensor) -> Tensor:
    return _real(z, math.pi / 2) - _inverse_sine(z)


def _inverse_tangent(z: Tensor) -> Tensor:
    return _times_i(_inverse_tanh(_times_i(z)), -1)


def _sign(z: Tensor) -> Tensor:
    """Return z / |z|, and 0 for 0."""
    a, b = _parts(z)
    size = magnitude(z)
    size = L.where(L.equal(size, 0), L.ones_like(size), size)
    return joined(a / size, b / size)


def _is_zero(z: Tensor) -> Tensor:
    """Return True for zeros."""
    a, b = _parts(z)
    return L.equal(a, 0) & L.equal(b, 0)


def _chosen(condition: Tensor, z: Tensor, w: Tensor) -> Tensor:
    """Return z where the condition is true, else w."""
    return joined(*[L.where(condition, x, y) for x, y in zip(_parts(z), _parts(w), strict=True)])


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": L.exp,
    "exp2": lambda z: L.exp(_scaled(z, math.log(2))),
    "expm1": lambda z: L.exp(z) - _real(z, 1.0),
    "log": _log,
    "log2": lambda z: _scaled(_log(z), 1 / math.log(2)),
    "log10": lambda z: _scaled(_log(z), 1 / math.log(10)),
    "log1p": lambda z: _log(z + _real(z, 1.0)),
    "sqrt": _sqrt,
    "rsqrt": lambda z: _reciprocal(_sqrt(z)),
    "reciprocal": _reciprocal,
    "sigmoid": lambda z: _reciprocal(_real(z, 1.0) + L.exp(-z)),
    "sgn": _sign,
    "sin": _sine,
    "cos": _cosine,
    "tan": _tangent,
    "sinh": _hyperbolic_sine,
    "cosh": _hyperbolic_cosine,
    "tanh": _hyperbolic_tangent,
    "asin": _inverse_sine,
    "acos": _inverse_cosine,
    "atan": _inverse_tangent,
    "asinh": _inverse_sinh,
    "acosh": _inverse_cosh,
    "atanh": _inverse_tanh,
}
"""Functions by the names of torch."""

for _name, _function in FUNCTIONS.items():
    of_complex(f"{_name}.default")(_function)


def _operands(x: Any, y: Any) -> list[Tensor]:
    x, y = promoted(x, y)
    shape = common_shape(x, y)
    return [aligned(x, shape), aligned(y, shape)]


@of_complex("eq.Tensor", "eq.Scalar")
def _equal(x: Any, y: Any) -> Tensor:
    (a, b), (c, d) = map(_parts, _operands(x, y))
    return L.equal(a, c) & L.equal(b, d)


@of_complex("ne.Tensor", "ne.Scalar")
def _not_equal(x: Any, y: Any) -> Tensor:
    return ~_equal(x, y)


@of_complex("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def _power(x: Any, y: Any) -> Tensor:
    if isinstance(y, int) and 0 < y <= _MOST_FACTORS:
        result = x
        for _ in range(y - 1):
            result = result * x
        return result  # type: ignore[no-any-return]
    z, w = _operands(x, y)
    value = L.exp(w * _log(z))
    one = _real(value, 1.0)
    return _chosen(_is_zero(z), _chosen(_is_zero(w), one, _real(value, 0.0)), value)


@of_complex("where.self", "where.ScalarOther", "where.ScalarSelf")
def _where(condition: Tensor, x: Any, y: Any) -> Tensor:
    x, y = promoted(x, y)
    shape = common_shape(condition, x, y)
    return _chosen(aligned(condition, shape), aligned(x, shape), aligned(y, shape))


@of_complex("isnan.default")
def _is_nan(z: Tensor) -> Tensor:
    a, b = _parts(z)
    return L.is_nan(a) | L.is_nan(b)


@of_complex("isinf.default")
def _is_infinite(z: Tensor) -> Tensor:
    a, b = _parts(z)
    return L.is_infinite(a) | L.is_infinite(b)


@of_complex("isfinite.default")
def _is_finite(z: Tensor) -> Tensor:
    return ~(_is_nan(z) | _is_infinite(z))


@of_complex("square.default")
def _square(z: Tensor) -> Tensor:
    return z * z


@of_complex("isreal.default")
def _is_real(z: Tensor) -> Tensor:
    return L.equal(part(z, 1), 0)


def _product(z: Tensor, axis: int, keep: bool) -> Tensor:
    """Return the product along an axis: pairs are multiplied until one is left."""
    axis = L.normalized_axis(axis, z.rank)
    size = z.shape[axis]
    if not isinstance(size, int):
        raise UnsupportedError("products of complex numbers need a fixed number of them.")
    entries = [L.slice_(z, axis, i, i + 1) for i in range(size)]
    result = _real(entries[0], 1.0) if entries else L.full_like(z, 1)
    for entry in entries:
        result = result * entry
    return result if keep else L.squeeze(result, [axis])


@of_complex("prod.dim_int", "prims.prod.default")
def _prod_dim(z: Tensor, dim: Any, keepdim: bool = False, **_: Any) -> Tensor:
    return _product(z, dim if isinstance(dim, int) else dim[0], keepdim)


@of_complex("prod.default")
def _prod(z: Tensor, **_: Any) -> Tensor:
    return _product(L.reshape(z, [L.product(z.shape)]), 0, False)


@of_complex("cumsum.default")
def _cumsum(z: Tensor, dim: int, **_: Any) -> Tensor:
    axis = L.normalized_axis(dim, z.rank) if z.rank else 0
    return joined(*[L.cumulative("add", x, axis) for x in _parts(z)]) if z.rank else z


@of_complex("cumprod.default")
def _cumprod(z: Tensor, dim: int, **_: Any) -> Tensor:
    """Return the cumulative products, one after another: ONNX has no scan of complex numbers."""
    if not z.rank:
        return z
    axis = L.normalized_axis(dim, z.rank)
    first = [axis, *(i for i in range(z.rank) if i != axis)]
    re, im = (L.permute(x, first) for x in _parts(z))

    def step(i: Tensor, a: Any, b: Any) -> Any:
        x, y = (L.squeeze(L.take(factor, L.reshape(i, [1]), 0), [0]) for factor in (re, im))
        product = a * x - b * y, a * y + b * x
        return None, product, product

    start = [L.broadcast_to(L.constant(number, re.dtype), re.shape[1:]) for number in (1, 0)]
    products = L.loop(L.number(re.shape[0]), None, start, step)[1]
    return joined(*(L.permute(x, [first.index(i) for i in range(z.rank)]) for x in products))


@of_complex("linalg_vector_norm.default", "norm.Scalar", "norm.ScalarOpt_dim")
def _norm(z: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    return vector_norm(magnitude(z), ord, dim, keepdim)
