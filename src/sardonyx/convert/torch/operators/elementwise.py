"""Arithmetic of tensors that broadcast, and the nodes that every family calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sardonyx.convert.torch.operators.promotion import (
    cast,
    core_dtype,
    is_number,
    promoted,
    result_type,
    tensor_of,
)
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.convert.torch.operators.sizes import aligned, common_shape
from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.tensor import Tensor, constant
from sardonyx.core.ir import types as t
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


@aten("prims.div.default")
def _primitive_quotient(x: Any, y: Any) -> Tensor:
    return div_(*promoted(x, y))


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


def reciprocal_root(x: Tensor) -> Tensor:
    """Return 1 / sqrt(x)."""
    return pointwise("Reciprocal", L.reciprocal, pointwise("Sqrt", L.sqrt, x))


_POWERS: dict[float, Callable[[Tensor], Tensor]] = {
    0.5: lambda x: pointwise("Sqrt", L.sqrt, x),
    1.0: lambda x: x,
    2.0: lambda x: mul_(x, x),
    3.0: lambda x: mul_(mul_(x, x), x),
    -1.0: lambda x: pointwise("Reciprocal", L.reciprocal, x),
    -0.5: reciprocal_root,
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
def maximum(x: Tensor, y: Tensor) -> Tensor:
    """Return the greater of each pair; NaN where one is."""
    x, y = promoted(x, y)
    return pointwise("Or", lambda a, b: a | b, x, y) if x.dtype == t.BOOL else pointwise("Max", L.maximum, x, y)


@aten("minimum.default", "min.other")
def minimum(x: Tensor, y: Tensor) -> Tensor:
    """Return the lesser of each pair; NaN where one is."""
    x, y = promoted(x, y)
    return pointwise("And", lambda a, b: a & b, x, y) if x.dtype == t.BOOL else pointwise("Min", L.minimum, x, y)


def _ignoring_nan(combine: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x, y = promoted(x, y)
        if not t.is_float(x.dtype):
            return combine(x, y)
        return where_(nan_(x), y, where_(nan_(y), x, combine(x, y)))

    return function


aten("fmax.default")(_ignoring_nan(maximum))
aten("fmin.default")(_ignoring_nan(minimum))


def nan_(x: Tensor) -> Tensor:
    """Return True for NaN elements."""
    if not t.is_float(x.dtype):
        return L.full(x.shape, False, t.BOOL)
    return pointwise("IsNaN", L.is_nan, x)


@aten("clamp.default", "clip.default")
def clamp(x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    """Return a tensor with its elements limited to a range of numbers."""
    dtype = result_type(x, *(bound for bound in (low, high) if bound is not None))
    x = cast(x, dtype)
    bounds = [None if bound is None else tensor_of(bound, dtype) for bound in (low, high)]
    known = [None if b is None or not b.is_constant else b.known.item() for b in bounds]
    if known[0] is not None and known[1] is not None and known[0] > known[1]:
        # torch then answers the greater bound, and ONNX leaves the result undefined.
        return minimum(maximum(x, bounds[0]), bounds[1])  # type: ignore[arg-type]
    return node("Clip", x, *bounds, body=lambda y, *_: [L.clip(y, *bounds)])  # type: ignore[no-any-return]


@aten("clamp.Tensor", "clip.Tensor")
def _clamp_tensor(x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    dtype = result_type(x, *(bound for bound in (low, high) if bound is not None))
    x = cast(x, dtype)
    if low is not None:
        x = maximum(x, tensor_of(low, dtype))
    return x if high is None else minimum(x, tensor_of(high, dtype))


@aten("clamp_min.default", "clamp_min.Tensor")
def _clamp_min(x: Tensor, low: Any) -> Tensor:
    return _clamp_tensor(x, low) if isinstance(low, Tensor) else clamp(x, low)


@aten("clamp_max.default", "clamp_max.Tensor")
def _clamp_max(x: Tensor, high: Any) -> Tensor:
    return _clamp_tensor(x, None, high) if isinstance(high, Tensor) else clamp(x, None, high)


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


@aten("square.default")
def _square(x: Tensor) -> Tensor:
    return mul_(x, x)


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
def _to_copy(x: Any, *, dtype: Any = None) -> Tensor:
    return tensor_of(x, None if dtype is None else core_dtype(dtype))
