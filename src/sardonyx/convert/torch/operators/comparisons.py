"""Comparisons, logic, and tests of single elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from sardonyx.convert.torch.operators.elementwise import (
    Core,
    equal_,
    like,
    nan_,
    not_,
    pointwise,
    where_,
)
from sardonyx.convert.torch.operators.promotion import (
    cast,
    promoted,
    tensor_of,
)
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.core import language as L
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t


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
