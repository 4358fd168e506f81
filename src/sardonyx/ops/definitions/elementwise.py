"""Elementwise mathematics: of one tensor, of any number, and of bits.

Source: ONNX Operators, *Abs* to *Xor*; what broadcasts two tensors by arithmetic or comparison is in ``arithmetic``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from sardonyx.core import language as L
from sardonyx.core.ir import types as t
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError
from sardonyx.ops.registry import operator

_FLOAT_MAX = 3.4028234663852886e38


def _unary(name: str, since: int, compute: Callable[[Tensor], Tensor]) -> None:
    @operator(name, since=since)
    def definition(x: Tensor) -> Tensor:
        return compute(x)


_unary("Abs", 1, L.abs_)
_unary("Neg", 1, lambda x: -x)
_unary("Sign", 9, L.sign)
_unary("Floor", 1, L.floor)
_unary("Ceil", 1, L.ceil)
_unary("Round", 11, L.round_)
_unary("Reciprocal", 1, L.reciprocal)
_unary("Sqrt", 1, L.sqrt)
_unary("Exp", 1, L.exp)
_unary("Log", 1, L.log)
_unary("Erf", 9, L.erf)
_unary("Sin", 7, L.sin)
_unary("Cos", 7, L.cos)
_unary("Tan", 7, L.tan)
_unary("Asin", 7, L.asin)
_unary("Acos", 7, L.acos)
_unary("Atan", 7, L.atan)
_unary("Sinh", 9, L.sinh)
_unary("Cosh", 9, L.cosh)
_unary("Tanh", 1, L.tanh)
_unary("Asinh", 9, L.asinh)
_unary("Acosh", 9, L.acosh)
_unary("Atanh", 9, L.atanh)
_unary("IsNaN", 9, L.is_nan)
_unary("BitwiseNot", 18, L.logical_not)


@operator("IsInf", since=10)
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    found = L.full(x.shape, False, t.BOOL)
    if detect_positive:
        found = found | L.equal(x, math.inf)
    return found | L.equal(x, -math.inf) if detect_negative else found


@operator("Clip", since=11)
def clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    return L.clip(x, *(None if bound is None else L.reshape(bound, ()) for bound in (low, high)))


@operator("Clip", since=1)
def clip_by_attributes(x: Tensor, *, min: float = -_FLOAT_MAX, max: float = _FLOAT_MAX) -> Tensor:
    return L.clip(x, min, max)


# Any number of tensors.


@operator("Max", since=1)
def maximum(*xs: Tensor) -> Tensor:
    return L.maximum(*xs)


@operator("Min", since=1)
def minimum(*xs: Tensor) -> Tensor:
    return L.minimum(*xs)


@operator("Sum", since=1)
def sum_(*xs: Tensor) -> Tensor:
    return functools.reduce(lambda a, b: a + b, xs)


@operator("Mean", since=1)
def mean(*xs: Tensor) -> Tensor:
    return sum_(*xs) / len(xs)


@operator("Where", since=9)
def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return L.where(condition, x, y)


# Division with a rest, and bits.


@operator("Mod", since=10)
def mod(a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    """Floats without ``fmod`` are described since version 28 alone, and computed so before: as the first data were."""
    if fmod:
        return L.remainder(a, b)
    left = L.floor_mod(a, b)
    if not t.is_float(a.dtype):
        return left
    return L.where(L.equal(left, 0), L.where(b < 0, -0.0, L.zero(b.dtype)), left)


@operator("BitShift", since=11)
def bit_shift(x: Tensor, by: Tensor, *, direction: str) -> Tensor:
    if direction not in ("LEFT", "RIGHT"):
        raise InvalidModelError(f"there is no direction {direction!r}.", remedy="There are LEFT and RIGHT.")
    return L.shift_left(x, by) if direction == "LEFT" else L.shift_right(x, by)


@operator("BitwiseAnd", since=18)
def bitwise_and(a: Tensor, b: Tensor) -> Tensor:
    return a & b


@operator("BitwiseOr", since=18)
def bitwise_or(a: Tensor, b: Tensor) -> Tensor:
    return a | b


@operator("BitwiseXor", since=18)
def bitwise_xor(a: Tensor, b: Tensor) -> Tensor:
    return a ^ b
