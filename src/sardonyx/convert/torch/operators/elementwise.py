"""Arithmetic, comparisons, logic and functions of single elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from sardonyx.convert.torch.operators.promotion import (
    cast,
    core_dtype,
    floating,
    is_number,
    promoted,
    result_type,
    tensor_of,
    torch_dtype,
)
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.convert.torch.operators.sizes import aligned, common_shape
from sardonyx.convert.torch.operators.spectral import is_complex, magnitude
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.tensor import Tensor, constant
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType
from sardonyx.ops.nodes import node

Core = Callable[..., Tensor]

_NODE_KINDS = ("float", "int", "uint", "bool")


def pointwise(name: str, core: Core, *xs: Tensor) -> Tensor:
    """Call an ONNX operator of operands that broadcast.

    Args:
        name: The operator; empty for values of Core alone.
        core: The same over Core.
        *xs: The operands.
    """
    plain = all(t.kind(x.dtype) in _NODE_KINDS for x in xs)
    known = all(x.op in ("constant", "dims") for x in xs)
    if not name or not plain or known:
        if known:
            return core(*xs)
        shape = common_shape(*xs)
        return core(*[aligned(x, shape) for x in xs])
    shape = common_shape(*xs)
    return node(name, *xs, body=lambda *ys: [core(*[aligned(y, shape) for y in ys])])  # type: ignore[no-any-return]


def add_(x: Tensor, y: Tensor) -> Tensor:
    """Return the sum; of booleans, the disjunction."""
    if x.dtype == t.BOOL:
        return pointwise("Or", lambda a, b: a | b, x, y)
    return pointwise("Add", lambda a, b: a + b, x, y)


def sub_(x: Tensor, y: Tensor) -> Tensor:
    """Return the difference."""
    return pointwise("Sub", lambda a, b: a - b, x, y)


def mul_(x: Tensor, y: Tensor) -> Tensor:
    """Return the product; of booleans, the conjunction."""
    if x.dtype == t.BOOL:
        return pointwise("And", lambda a, b: a & b, x, y)
    return pointwise("Mul", lambda a, b: a * b, x, y)


def div_(x: Tensor, y: Tensor) -> Tensor:
    """Return the quotient; of integers, rounded toward zero."""
    return pointwise("Div", lambda a, b: a / b, x, y)


def less_(x: Tensor, y: Tensor) -> Tensor:
    """Return x < y."""
    if x.dtype == t.BOOL:
        return ~x & y
    return pointwise("Less", lambda a, b: a < b, x, y)


def equal_(x: Tensor, y: Tensor) -> Tensor:
    """Return x = y."""
    return pointwise("Equal", L.equal, x, y)


def not_(x: Tensor) -> Tensor:
    """Return the negation of booleans."""
    return pointwise("Not", lambda a: ~a, x)


def where_(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return x where the condition is true, else y."""
    return pointwise("Where", L.where, condition, x, y)


def like(x: Tensor, value: Any) -> Tensor:
    """Return a number with the element type of a tensor."""
    return tensor_of(value, x.dtype)


@aten("add.Tensor", "add.Scalar")
def _add(x: Any, y: Any, *, alpha: Any = 1) -> Tensor:
    x, y = promoted(x, y)
    if not (is_number(alpha) and alpha == 1):
        y = mul_(y, like(y, alpha))
    return add_(x, y)


@aten("sub.Tensor", "sub.Scalar", "subtract.Tensor", "subtract.Scalar")
def _sub(x: Any, y: Any, *, alpha: Any = 1) -> Tensor:
    x, y = promoted(x, y)
    if not (is_number(alpha) and alpha == 1):
        y = mul_(y, like(y, alpha))
    return sub_(x, y)


@aten("rsub.Tensor", "rsub.Scalar")
def _rsub(x: Any, y: Any, alpha: Any = 1) -> Tensor:
    return _sub(y, x, alpha=alpha)


@aten("mul.Tensor", "mul.Scalar", "multiply.Tensor", "multiply.Scalar")
def _mul(x: Any, y: Any) -> Tensor:
    return mul_(*promoted(x, y))


def _true_quotient(x: Any, y: Any) -> Tensor:
    dtype = result_type(x, y)
    if t.kind(dtype) not in ("float", "complex"):
        dtype = t.FLOAT
    return div_(tensor_of(x, dtype), tensor_of(y, dtype))


@aten("div.Tensor", "div.Scalar", "true_divide.Tensor", "true_divide.Scalar", "divide.Tensor", "divide.Scalar")
def _div(x: Any, y: Any) -> Tensor:
    return _true_quotient(x, y)


@aten("div.Tensor_mode", "div.Scalar_mode")
def _div_mode(x: Any, y: Any, *, rounding_mode: str | None = None) -> Tensor:
    if rounding_mode is None:
        return _true_quotient(x, y)
    if rounding_mode == "floor":
        return _floor_divide(x, y)
    x, y = promoted(x, y)
    return truncated(div_(x, y)) if t.is_float(x.dtype) else div_(x, y)


@aten("floor_divide.default", "floor_divide.Scalar", "floor_divide.Scalar_2")
def _floor_divide(x: Any, y: Any) -> Tensor:
    x, y = promoted(x, y)
    if t.is_float(x.dtype):
        return pointwise("Floor", L.floor, div_(x, y))
    quotient = div_(x, y)
    if t.kind(x.dtype) == "uint":
        return quotient
    left = sub_(x, mul_(quotient, y))
    lower = less_(left, like(x, 0))
    other = pointwise("Xor", lambda a, b: a ^ b, lower, less_(y, like(y, 0)))
    inexact = not_(equal_(left, like(x, 0)))
    return sub_(quotient, cast(mul_(inexact, other), x.dtype))


def truncated(x: Tensor) -> Tensor:
    """Round toward zero."""
    zero = like(x, 0)
    return where_(less_(x, zero), pointwise("Ceil", L.ceil, x), pointwise("Floor", L.floor, x))


@aten("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def _remainder(x: Any, y: Any) -> Tensor:
    x, y = promoted(x, y)
    if t.is_float(x.dtype):
        return pointwise("", L.floor_mod, x, y)
    return pointwise("Mod", L.floor_mod, x, y)


@aten("fmod.Tensor", "fmod.Scalar")
def _fmod(x: Any, y: Any) -> Tensor:
    return pointwise("", L.remainder, *promoted(x, y))


_POWERS: dict[float, Callable[[Tensor], Tensor]] = {
    0.5: lambda x: pointwise("Sqrt", L.sqrt, x),
    1.0: lambda x: x,
    2.0: lambda x: mul_(x, x),
    3.0: lambda x: mul_(mul_(x, x), x),
    -1.0: lambda x: pointwise("Reciprocal", L.reciprocal, x),
    -0.5: lambda x: pointwise("Reciprocal", L.reciprocal, pointwise("Sqrt", L.sqrt, x)),
}


@aten("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar")
def _pow(x: Any, y: Any) -> Tensor:
    number = y
    x, y = promoted(x, y)
    if is_number(number) and not isinstance(number, (Dim, complex)):
        simple = _POWERS.get(float(number))
        if simple is not None and (t.is_float(x.dtype) or float(number) in (1.0, 2.0, 3.0)):
            return simple(x)
    return pointwise("Pow" if t.is_float(x.dtype) or x.dtype in (t.INT32, t.INT64) else "", lambda a, b: a**b, x, y)


@aten("maximum.default", "max.other")
def _maximum(x: Tensor, y: Tensor) -> Tensor:
    x, y = promoted(x, y)
    return pointwise("Or", lambda a, b: a | b, x, y) if x.dtype == t.BOOL else pointwise("Max", L.maximum, x, y)


@aten("minimum.default", "min.other")
def _minimum(x: Tensor, y: Tensor) -> Tensor:
    x, y = promoted(x, y)
    return pointwise("And", lambda a, b: a & b, x, y) if x.dtype == t.BOOL else pointwise("Min", L.minimum, x, y)


def _ignoring_nan(combine: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x, y = promoted(x, y)
        if not t.is_float(x.dtype):
            return combine(x, y)
        return where_(nan_(x), y, where_(nan_(y), x, combine(x, y)))

    return function


aten("fmax.default")(_ignoring_nan(_maximum))
aten("fmin.default")(_ignoring_nan(_minimum))


def nan_(x: Tensor) -> Tensor:
    """Return True for NaN elements."""
    if not t.is_float(x.dtype):
        return L.full(x.shape, False, t.BOOL)
    return pointwise("IsNaN", L.is_nan, x)


@aten("clamp.default", "clip.default")
def _clamp(x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    dtype = result_type(x, *(bound for bound in (low, high) if bound is not None))
    x = cast(x, dtype)
    bounds = [None if bound is None else tensor_of(bound, dtype) for bound in (low, high)]
    known = [None if b is None or not b.is_constant else b.known.item() for b in bounds]
    if known[0] is not None and known[1] is not None and known[0] > known[1]:
        # torch then answers the greater bound, and ONNX leaves the result undefined.
        return _minimum(_maximum(x, bounds[0]), bounds[1])  # type: ignore[arg-type]
    return node("Clip", x, *bounds, body=lambda y, *_: [L.clip(y, *bounds)])  # type: ignore[no-any-return]


@aten("clamp.Tensor", "clip.Tensor")
def _clamp_tensor(x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    dtype = result_type(x, *(bound for bound in (low, high) if bound is not None))
    x = cast(x, dtype)
    if low is not None:
        x = _maximum(x, tensor_of(low, dtype))
    return x if high is None else _minimum(x, tensor_of(high, dtype))


@aten("clamp_min.default", "clamp_min.Tensor")
def _clamp_min(x: Tensor, low: Any) -> Tensor:
    return _clamp_tensor(x, low) if isinstance(low, Tensor) else _clamp(x, low)


@aten("clamp_max.default", "clamp_max.Tensor")
def _clamp_max(x: Tensor, high: Any) -> Tensor:
    return _clamp_tensor(x, None, high) if isinstance(high, Tensor) else _clamp(x, None, high)


# Comparisons and logic.


def _comparison(name: str, compare: Callable[[Tensor, Tensor], Tensor]) -> None:
    def function(x: Any, y: Any) -> Tensor:
        return compare(*promoted(x, y))

    aten(f"{name}.Tensor", f"{name}.Scalar")(function)


def _ordered(name: str, core: Core) -> Callable[[Tensor, Tensor], Tensor]:
    def function(x: Tensor, y: Tensor) -> Tensor:
        if x.dtype == t.BOOL:
            x, y = cast(x, t.INT32), cast(y, t.INT32)
        return pointwise(name, core, x, y)

    return function


_comparison("eq", equal_)
_comparison("ne", lambda x, y: not_(equal_(x, y)))
_comparison("lt", _ordered("Less", lambda a, b: a < b))
_comparison("gt", _ordered("Greater", lambda a, b: a > b))
_comparison("le", _ordered("LessOrEqual", lambda a, b: a <= b))
_comparison("ge", _ordered("GreaterOrEqual", lambda a, b: a >= b))


def truth(x: Any) -> Tensor:
    """Return True for elements that are not zero."""
    value = tensor_of(x)
    if value.dtype == t.BOOL:
        return value
    return not_(equal_(value, like(value, 0))) if t.kind(value.dtype) == "complex" else cast(value, t.BOOL)


def _logical(name: str, node_name: str, core: Core) -> None:
    def function(x: Any, y: Any) -> Tensor:
        return pointwise(node_name, core, truth(x), truth(y))

    aten(f"logical_{name}.default")(function)

    def bitwise(x: Any, y: Any) -> Tensor:
        x, y = promoted(x, y)
        return pointwise(node_name if x.dtype == t.BOOL else f"Bitwise{node_name}", core, x, y)

    aten(*(f"bitwise_{name}.{kind}" for kind in ("Tensor", "Scalar", "Scalar_Tensor")))(bitwise)
    aten(f"__{name}__.Tensor", f"__{name}__.Scalar")(bitwise)


_logical("and", "And", lambda a, b: a & b)
_logical("or", "Or", lambda a, b: a | b)
_logical("xor", "Xor", lambda a, b: a ^ b)


@aten("logical_not.default")
def _logical_not(x: Tensor) -> Tensor:
    return not_(truth(x))


@aten("bitwise_not.default")
def _bitwise_not(x: Tensor) -> Tensor:
    return pointwise("Not" if x.dtype == t.BOOL else "BitwiseNot", lambda a: ~a, x)


def _shift(core: Core) -> Callable[[Any, Any], Tensor]:
    def function(x: Any, y: Any) -> Tensor:
        return pointwise("", core, *promoted(x, y))

    return function


aten("bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar", "__lshift__.Tensor", "__lshift__.Scalar")(
    _shift(L.shift_left)
)
aten("bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar", "__rshift__.Tensor", "__rshift__.Scalar")(
    _shift(L.shift_right)
)


@aten("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(condition: Tensor, x: Any, y: Any) -> Tensor:
    return where_(truth(condition), *promoted(x, y))


# Functions of one element.


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


@aten("square.default")
def _square(x: Tensor) -> Tensor:
    return mul_(x, x)


@aten("rsqrt.default")
def _rsqrt(x: Tensor) -> Tensor:
    return _POWERS[-0.5](floating(x))


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


@aten("isnan.default")
def _isnan(x: Tensor) -> Tensor:
    return nan_(x)


@aten("isinf.default")
def infinite_(x: Tensor) -> Tensor:
    """Return True for infinite elements."""
    return pointwise("IsInf", L.is_infinite, x) if t.is_float(x.dtype) else L.full(x.shape, False, t.BOOL)


@aten("isfinite.default")
def _isfinite(x: Tensor) -> Tensor:
    if not t.is_float(x.dtype):
        return L.full(x.shape, True, t.BOOL)
    return not_(pointwise("Or", lambda a, b: a | b, nan_(x), infinite_(x)))


@aten("isposinf.default")
def _isposinf(x: Tensor) -> Tensor:
    return equal_(x, like(x, math.inf)) if t.is_float(x.dtype) else L.full(x.shape, False, t.BOOL)


@aten("isneginf.default")
def _isneginf(x: Tensor) -> Tensor:
    return equal_(x, like(x, -math.inf)) if t.is_float(x.dtype) else L.full(x.shape, False, t.BOOL)


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
    most, least = _maximum(x, y), _minimum(x, y)
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
        x = _clamp(x, eps, 1 - eps)
    return pointwise("Log", L.log, div_(x, sub_(like(x, 1), x)))


@aten("lerp.Scalar", "lerp.Tensor")
def _lerp(x: Tensor, y: Tensor, weight: Any) -> Tensor:
    return add_(x, mul_(tensor_of(weight, x.dtype), sub_(y, x)))


@aten("addcmul.default")
def _addcmul(x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
    product = mul_(*promoted(a, b))
    if value != 1:
        product = mul_(product, like(product, value))
    return add_(*promoted(x, product))


@aten("addcdiv.default")
def _addcdiv(x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Tensor:
    quotient = _true_quotient(a, b)
    if value != 1:
        quotient = mul_(quotient, like(quotient, value))
    return add_(*promoted(x, quotient))


@aten("deg2rad.default")
def _deg2rad(x: Tensor) -> Tensor:
    x = floating(x)
    return mul_(x, like(x, math.pi / 180))


@aten("rad2deg.default")
def _rad2deg(x: Tensor) -> Tensor:
    x = floating(x)
    return mul_(x, like(x, 180 / math.pi))


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
def _lgamma(x: Tensor) -> Tensor:
    """Return log |Γ(x)|, below 1/2 by reflection; computed as float64, because terms cancel near 1 and 2."""
    x = floating(x)
    dtype, x = x.dtype, cast(x, t.DOUBLE)
    low = less_(x, like(x, 0.5))
    value = _log_gamma_of_positive(where_(low, sub_(like(x, 1), x), x))
    sine = pointwise("Abs", L.abs_, pointwise("Sin", L.sin, mul_(x, like(x, math.pi))))
    reflected = sub_(sub_(like(x, math.log(math.pi)), pointwise("Log", L.log, sine)), value)
    return cast(where_(low, reflected, value), dtype)


@aten(
    "alias.default",
    "lift_fresh_copy.default",
    "detach.default",
    "detach_.default",
    "clone.default",
    "contiguous.default",
)
def _alias(x: Tensor) -> Tensor:
    return x


@aten("gcd.default")
def _gcd(x: Tensor, y: Tensor) -> Tensor:
    x, y = (pointwise("Abs", L.abs_, v) for v in promoted(x, y))
    shape = common_shape(x, y)
    x, y = aligned(x, shape), aligned(y, shape)
    zero = constant(0, x.dtype)

    def step(i: Tensor, a: Tensor, b: Tensor) -> Any:
        safe = L.where(L.equal(b, zero), 1, b)
        a, b = L.where(L.equal(b, zero), a, b), L.where(L.equal(b, zero), b, L.remainder(a, safe))
        return L.any_of(L.not_equal(b, zero)), [a, b], []

    (result, _), _ = L.loop(None, L.any_of(L.not_equal(y, zero)), [x, y], step)
    return result  # type: ignore[no-any-return]


@aten("lcm.default")
def _lcm(x: Tensor, y: Tensor) -> Tensor:
    x, y = promoted(x, y)
    divisor = _gcd(x, y)
    return L.abs_(x / L.where(L.equal(divisor, 0), 1, divisor) * y)


@aten("_to_copy.default")
def _to_copy(x: Tensor, *, dtype: Any = None) -> Tensor:
    return x if dtype is None else cast(x, core_dtype(dtype))
