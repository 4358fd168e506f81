"""Arithmetic, comparison and logic: elementwise, with broadcasting.

Source: ONNX Operators, *Add* to *Xor*. Before version 7 an operand was broadcast only where ``broadcast`` said so,
and from ``axis`` on.
"""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.core import language as L
from sardonyx.core import types as t
from sardonyx.core.language import Tensor
from sardonyx.ops.registry import operator


def _aligned(a: Tensor, b: Tensor, axis: int | None) -> Tensor:
    """``b`` with axes of size 1 after its own, so that those lie at ``axis`` of ``a`` (before version 7)."""
    if axis is None or not b.rank:
        return b
    after = a.rank - L.normalized_axis(axis, a.rank) - b.rank
    return L.reshape(b, (*b.shape, *(1,) * after))


def _binary(name: str, compute: Callable[[Tensor, Tensor], Tensor], first: int = 1) -> None:
    """Register an operator of two tensors that broadcast."""

    @operator(name, since=7)
    def broadcasting(a: Tensor, b: Tensor) -> Tensor:
        return compute(a, b)

    @operator(name, since=first)
    def limited(a: Tensor, b: Tensor, *, broadcast: int = 0, axis: int | None = None) -> Tensor:
        return compute(a, _aligned(a, b, axis))


_binary("Add", lambda a, b: a + b)
_binary("Sub", lambda a, b: a - b)
_binary("Mul", lambda a, b: a * b)
_binary("Div", lambda a, b: a / b)
_binary("And", lambda a, b: a & b)
_binary("Or", lambda a, b: a | b)
_binary("Xor", lambda a, b: a ^ b)
_binary("Equal", L.equal)
_binary("Less", lambda a, b: a < b)
_binary("Greater", lambda a, b: a > b)


@operator("LessOrEqual", since=12)
def less_or_equal(a: Tensor, b: Tensor) -> Tensor:
    return a <= b


@operator("GreaterOrEqual", since=12)
def greater_or_equal(a: Tensor, b: Tensor) -> Tensor:
    return a >= b


@operator("Pow", since=7)
def power(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype == y.dtype:
        return x**y
    if t.is_float(y.dtype) and not t.is_float(x.dtype):
        return L.cast(L.cast(x, t.DOUBLE) ** L.cast(y, t.DOUBLE), x.dtype)
    return x ** L.cast(y, x.dtype)


@operator("Not", since=1)
def logical_not(x: Tensor) -> Tensor:
    return L.logical_not(x)
