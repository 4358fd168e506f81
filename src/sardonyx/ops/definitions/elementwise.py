"""Elementwise mathematics: unary, variadic and bitwise.

Source: ONNX Operators, *Abs* to *Xor*; binary arithmetic and comparison with broadcasting are in ``arithmetic``.
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


def _register_unary(name: str, since: int, compute: Callable[[Tensor], Tensor]) -> None:
    @operator(name, since=since)
    def definition(x: Tensor) -> Tensor:
        return compute(x)


_register_unary("Abs", 1, L.abs_)
_register_unary("Neg", 1, lambda x: -x)
_register_unary("Sign", 9, L.sign)
_register_unary("Floor", 1, L.floor)
_register_unary("Ceil", 1, L.ceil)
_register_unary("Round", 11, L.round_)
_register_unary("Reciprocal", 1, L.reciprocal)
_register_unary("Sqrt", 1, L.sqrt)
_register_unary("Exp", 1, L.exp)
_register_unary("Log", 1, L.log)
_register_unary("Erf", 9, L.erf)
_register_unary("Sin", 7, L.sin)
_register_unary("Cos", 7, L.cos)
_register_unary("Tan", 7, L.tan)
_register_unary("Asin", 7, L.asin)
_register_unary("Acos", 7, L.acos)
_register_unary("Atan", 7, L.atan)
_register_unary("Sinh", 9, L.sinh)
_register_unary("Cosh", 9, L.cosh)
_register_unary("Tanh", 1, L.tanh)
_register_unary("Asinh", 9, L.asinh)
_register_unary("Acosh", 9, L.acosh)
_register_unary("Atanh", 9, L.atanh)
_register_unary("IsNaN", 9, L.is_nan)
_register_unary("BitwiseNot", 18, L.logical_not)


@operator("IsInf", since=10)
def is_inf(x: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    infinite = L.full(x.shape, False, t.BOOL)
    if detect_positive:
        infinite = infinite | L.equal(x, math.inf)
    return infinite | L.equal(x, -math.inf) if detect_negative else infinite


@operator("Clip", since=11)
def clip(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    return L.clip(x, *(None if bound is None else L.reshape(bound, ()) for bound in (low, high)))


@operator("Clip", since=1)
def clip_by_attributes(x: Tensor, *, min: float = -_FLOAT_MAX, max: float = _FLOAT_MAX) -> Tensor:
    return L.clip(x, min, max)


# Variadic.


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


# Remainder and bits.


@operator("Mod", since=10)
def mod(a: Tensor, b: Tensor, *, fmod: int = 0) -> Tensor:
    """Return the remainder; floats without ``fmod`` (specified since 28) get the sign of the divisor."""
    if fmod:
        return L.remainder(a, b)
    remainder = L.floor_mod(a, b)
    if not t.is_float(a.dtype):
        return remainder
    return L.where(L.equal(remainder, 0), L.where(b < 0, -0.0, L.zero(b.dtype)), remainder)


@operator("BitShift", since=11)
def bit_shift(x: Tensor, by: Tensor, *, direction: str) -> Tensor:
    if direction not in ("LEFT", "RIGHT"):
        raise InvalidModelError(f"unknown direction {direction!r}.", remedy="Use 'LEFT' or 'RIGHT'.")
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
