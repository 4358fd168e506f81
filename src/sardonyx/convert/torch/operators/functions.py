"""Functions of single elements, most of them of floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from sardonyx.convert.torch.operators.elementwise import (
    Core,
    add_,
    clamp,
    div_,
    equal_,
    less_,
    like,
    maximum,
    minimum,
    mul_,
    nan_,
    pointwise,
    reciprocal_root,
    sub_,
    truncated,
    where_,
)
from sardonyx.convert.torch.operators.promotion import (
    cast,
    floating,
    promoted,
    torch_dtype,
)
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.convert.torch.operators.sizes import aligned, common_shape
from sardonyx.convert.torch.operators.spectral import is_complex, magnitude
from sardonyx.core import language as L
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType


def _unary(name: str, node_name: str, core: Core) -> None:
    """Register a function of floats; integers become floats."""
    aten(f"{name}.default")(lambda x: pointwise(node_name, core, floating(x)))


for _name, _node, _core in (
    ("exp", "Exp", L.exp),
    ("log", "Log", L.log),
    ("sqrt", "Sqrt", L.sqrt),
    ("sin", "Sin", L.sin),
    ("cos", "Cos", L.cos),
    ("tan", "Tan", L.tan),
    ("asin", "Asin", L.asin),
    ("acos", "Acos", L.acos),
    ("atan", "Atan", L.atan),
    ("sinh", "Sinh", L.sinh),
    ("cosh", "Cosh", L.cosh),
    ("tanh", "Tanh", L.tanh),
    ("asinh", "Asinh", L.asinh),
    ("acosh", "Acosh", L.acosh),
    ("atanh", "Atanh", L.atanh),
    ("erf", "Erf", L.erf),
    ("special_erf", "Erf", L.erf),
    ("sigmoid", "Sigmoid", L.sigmoid),
    ("special_expit", "Sigmoid", L.sigmoid),
    ("reciprocal", "Reciprocal", L.reciprocal),
):
    _unary(_name, _node, _core)


def _same(name: str, node_name: str, core: Core, *, integers: bool) -> None:
    """Register a function whose result has the type of its operand; the identity of integers if not ``integers``."""
    aten(f"{name}.default")(
        lambda x: pointwise(node_name, core, x) if integers or t.kind(x.dtype) in ("float", "complex") else x
    )


_same("neg", "Neg", lambda a: -a, integers=True)
_same("floor", "Floor", L.floor, integers=False)
_same("ceil", "Ceil", L.ceil, integers=False)
_same("round", "Round", L.round_, integers=False)


@aten("abs.default")
def _abs(x: Tensor) -> Tensor:
    return magnitude(x) if is_complex(x) else pointwise("Abs", L.abs_, x)


@aten("sign.default", "sgn.default")
def _sign(x: Tensor) -> Tensor:
    return x if x.dtype == t.BOOL else pointwise("Sign", L.sign, x)


@aten("trunc.default", "fix.default")
def _trunc(x: Tensor) -> Tensor:
    return truncated(x) if t.is_float(x.dtype) else x


@aten("frac.default")
def _frac(x: Tensor) -> Tensor:
    return sub_(x, truncated(x))


@aten("round.decimals")
def _round_decimals(x: Tensor, *, decimals: int) -> Tensor:
    scale = like(x, 10.0 ** abs(decimals))
    grown = mul_(x, scale) if decimals >= 0 else div_(x, scale)
    rounded = pointwise("Round", L.round_, grown)
    return div_(rounded, scale) if decimals >= 0 else mul_(rounded, scale)


@aten("rsqrt.default")
def _rsqrt(x: Tensor) -> Tensor:
    return reciprocal_root(floating(x))


def _scaled_log(base: float) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        x = floating(x)
        return mul_(pointwise("Log", L.log, x), like(x, 1 / math.log(base)))

    return function


aten("log2.default")(_scaled_log(2.0))
aten("log10.default")(_scaled_log(10.0))


@aten("exp2.default", "special_exp2.default")
def _exp2(x: Tensor) -> Tensor:
    x = floating(x)
    return pointwise("Exp", L.exp, mul_(x, like(x, math.log(2.0))))


@aten("log1p.default", "special_log1p.default")
def log1p(x: Tensor) -> Tensor:
    """Return log(1 + x), exact for small x: the rounding of 1 + x is divided out."""
    x = floating(x)
    one = like(x, 1)
    grown = add_(x, one)
    error = sub_(grown, one)
    logarithm = pointwise("Log", L.log, grown)
    plain = pointwise("Or", lambda a, b: a | b, equal_(error, like(x, 0)), equal_(error, x))
    ratio = div_(x, where_(equal_(error, like(x, 0)), one, error))
    return where_(plain, where_(equal_(error, like(x, 0)), x, logarithm), mul_(logarithm, ratio))


@aten("expm1.default", "special_expm1.default")
def expm1(x: Tensor) -> Tensor:
    """Return exp(x) - 1, exact for small x: 2 t / (1 - t) of t = tanh(x / 2)."""
    x = floating(x)
    half = pointwise("Tanh", L.tanh, mul_(x, like(x, 0.5)))
    small = div_(mul_(half, like(x, 2)), sub_(like(x, 1), half))
    large = sub_(pointwise("Exp", L.exp, x), like(x, 1))
    return where_(less_(pointwise("Abs", L.abs_, x), like(x, 1)), small, large)


@aten("erfc.default", "special_erfc.default")
def _erfc(x: Tensor) -> Tensor:
    x = floating(x)
    return sub_(like(x, 1), pointwise("Erf", L.erf, x))


@aten("nan_to_num.default")
def _nan_to_num(
    x: Tensor, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    if not t.is_float(x.dtype):
        return x
    most = float(_greatest(x.dtype))
    x = where_(nan_(x), like(x, 0.0 if nan is None else nan), x)
    x = where_(equal_(x, like(x, math.inf)), like(x, most if posinf is None else posinf), x)
    return where_(equal_(x, like(x, -math.inf)), like(x, -most if neginf is None else neginf), x)


def _greatest(dtype: DType) -> Any:
    return torch.finfo(torch_dtype(dtype)).max


@aten("signbit.default")
def _signbit(x: Tensor) -> Tensor:
    if not t.is_float(x.dtype):
        return less_(x, like(x, 0)) if t.kind(x.dtype) == "int" else L.full(x.shape, False, t.BOOL)
    # The reciprocal of a negative zero is negative.
    negative_zero = mul_(equal_(x, like(x, 0)), less_(pointwise("Reciprocal", L.reciprocal, x), like(x, 0)))
    return add_(less_(x, like(x, 0)), negative_zero)


@aten("copysign.Tensor", "copysign.Scalar")
def _copysign(x: Any, y: Any) -> Tensor:
    x, y = promoted(floating(x) if isinstance(x, Tensor) else x, y)
    size = pointwise("Abs", L.abs_, x)
    return where_(_signbit(y), pointwise("Neg", lambda a: -a, size), size)


_BITS = {t.FLOAT: t.INT32, t.DOUBLE: t.INT64, t.FLOAT16: t.INT16, t.BFLOAT16: t.INT16}
"""Integers of the width of floats."""


@aten("nextafter.default")
def _nextafter(x: Tensor, y: Tensor) -> Tensor:
    """Return the next number after x towards y: its bits, as an integer, changed by one."""
    x, y = promoted(x, y)
    shape = common_shape(x, y)
    x, y = aligned(x, shape), aligned(y, shape)
    bits = L.bitcast(x, _BITS[x.dtype])
    moved = L.bitcast(L.where(L.equal(x < y, x > 0), bits + 1, bits - 1), x.dtype)
    smallest = float(torch.finfo(torch_dtype(x.dtype)).smallest_normal * torch.finfo(torch_dtype(x.dtype)).eps)
    moved = L.where(L.equal(x, 0), L.where(y > 0, L.full_like(x, smallest), L.full_like(x, -smallest)), moved)
    return L.where(L.is_nan(x) | L.is_nan(y), L.full_like(x, math.nan), L.where(L.equal(x, y), y, moved))


_MANTISSA_BITS = {t.FLOAT: 23, t.DOUBLE: 52}


@aten("frexp.Tensor", "prims.frexp.default")
def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mantissas of 0.5 to 1 and exponents: the bits of the numbers, apart."""
    wide = x if x.dtype in _MANTISSA_BITS else cast(x, t.FLOAT)
    width = _MANTISSA_BITS[wide.dtype]
    smallest = L.constant(float(torch.finfo(torch_dtype(wide.dtype)).smallest_normal), wide.dtype)
    size = L.abs_(wide)
    is_small = size < smallest
    bits = L.bitcast(L.where(is_small, size * 2.0**width, size), _BITS[wide.dtype])
    bias = 126 if width == 23 else 1022
    exponent = bits / 2**width - bias
    mantissa = L.bitcast(bits - exponent * 2**width, wide.dtype)
    exponent = cast(exponent, t.INT32) - L.where(is_small, L.constant(width, t.INT32), L.constant(0, t.INT32))
    has_parts = (size > 0) & (size < math.inf)
    mantissa = L.where(has_parts, L.where(wide < 0, -mantissa, mantissa), wide)
    return cast(mantissa, x.dtype), L.where(has_parts, exponent, L.constant(0, t.INT32))


@aten("heaviside.default")
def _heaviside(x: Tensor, values: Tensor) -> Tensor:
    zero = like(x, 0)
    return where_(equal_(x, zero), values, cast(less_(zero, x), x.dtype))


@aten("atan2.default", "arctan2.default")
def _atan2(y: Tensor, x: Tensor) -> Tensor:
    y, x = promoted(floating(y), floating(x))
    zero = like(x, 0)
    angle = pointwise("Atan", L.atan, div_(y, x))
    half = where_(_signbit(y), like(x, -math.pi), like(x, math.pi))
    straight = where_(_signbit(x), half, mul_(zero, half))
    moved = where_(less_(x, zero), add_(angle, half), angle)
    return where_(equal_(y, zero), straight, moved)


@aten("hypot.default")
def _hypot(x: Tensor, y: Tensor) -> Tensor:
    x, y = promoted(x, y)
    return pointwise("Sqrt", L.sqrt, add_(mul_(x, x), mul_(y, y)))


@aten("logaddexp.default")
def _logaddexp(x: Tensor, y: Tensor) -> Tensor:
    x, y = promoted(x, y)
    most, least = maximum(x, y), minimum(x, y)
    gap = where_(equal_(most, least), like(x, 0), sub_(least, most))
    return add_(most, log1p(pointwise("Exp", L.exp, gap)))


@aten("logaddexp2.default")
def _logaddexp2(x: Tensor, y: Tensor) -> Tensor:
    x, y = promoted(x, y)
    ln2 = like(x, math.log(2.0))
    return div_(_logaddexp(mul_(x, ln2), mul_(y, ln2)), ln2)


@aten("xlogy.Tensor", "xlogy.Scalar_Self", "xlogy.Scalar_Other", "special_xlogy.default")
def _xlogy(x: Any, y: Any) -> Tensor:
    x, y = promoted(x if not isinstance(x, Tensor) else floating(x), y if not isinstance(y, Tensor) else floating(y))
    product = where_(equal_(x, like(x, 0)), like(x, 0), mul_(x, pointwise("Log", L.log, y)))
    return where_(nan_(y), y, product)


@aten("special_xlog1py.default")
def _xlog1py(x: Any, y: Any) -> Tensor:
    x, y = promoted(x, y)
    return where_(equal_(x, like(x, 0)), where_(nan_(y), y, like(x, 0)), mul_(x, log1p(y)))


@aten("logit.default", "special_logit.default")
def _logit(x: Tensor, eps: float | None = None) -> Tensor:
    x = floating(x)
    if eps is not None:
        x = clamp(x, eps, 1 - eps)
    return pointwise("Log", L.log, div_(x, sub_(like(x, 1), x)))


@aten("deg2rad.default")
def _deg2rad(x: Tensor) -> Tensor:
    x = floating(x)
    return mul_(x, like(x, math.pi / 180))


@aten("rad2deg.default")
def _rad2deg(x: Tensor) -> Tensor:
    x = floating(x)
    return mul_(x, like(x, 180 / math.pi))
