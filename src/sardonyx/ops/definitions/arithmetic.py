"""Arithmetic, comparison and logic: elementwise, with broadcasting.

Source: ONNX Operators, *Add* to *Xor*. Before version 7 only the second operand was broadcast, only if the attribute
``broadcast`` was set, and from ``axis`` on.
"""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.core import language as L
from sardonyx.core.dim import equal
from sardonyx.core.ir import types as t
from sardonyx.core.language import Tensor
from sardonyx.errors import ShapeError
from sardonyx.ops.registry import operator


def _align(a: Tensor, b: Tensor, broadcast: int, axis: int | None) -> Tensor:
    """Return ``b`` in the shape of ``a``, with the axes of ``b`` aligned at ``axis`` (before version 7)."""
    if not broadcast:
        if a.rank != b.rank or any(equal(m, n) is False for m, n in zip(a.shape, b.shape, strict=True)):
            raise ShapeError(f"{a.type} and {b.type} differ in shape.", remedy="Set the attribute `broadcast`.")
        return L.of_shape(b, a.shape, "an operand that does not broadcast")
    if axis is not None and b.rank:
        b = L.reshape(b, (*b.shape, *(1,) * (a.rank - L.normalized_axis(axis, a.rank) - b.rank)))
    return L.broadcast_to(b, a.shape)


def _register_binary(name: str, compute: Callable[[Tensor, Tensor], Tensor], first: int = 1) -> None:
    """Register an operator of two tensors that broadcast."""

    @operator(name, since=7)
    def broadcasting(a: Tensor, b: Tensor) -> Tensor:
        return compute(a, b)

    @operator(name, since=first)
    def limited(a: Tensor, b: Tensor, *, broadcast: int = 0, axis: int | None = None) -> Tensor:
        return compute(a, _align(a, b, broadcast, axis))


_register_binary("Add", lambda a, b: a + b)
_register_binary("Sub", lambda a, b: a - b)
_register_binary("Mul", lambda a, b: a * b)
_register_binary("Div", lambda a, b: a / b)
_register_binary("And", lambda a, b: a & b)
_register_binary("Or", lambda a, b: a | b)
_register_binary("Xor", lambda a, b: a ^ b)
_register_binary("Equal", L.equal)
_register_binary("Less", lambda a, b: a < b)
_register_binary("Greater", lambda a, b: a > b)


@operator("LessOrEqual", since=12)
def less_or_equal(a: Tensor, b: Tensor) -> Tensor:
    return a <= b


@operator("GreaterOrEqual", since=12)
def greater_or_equal(a: Tensor, b: Tensor) -> Tensor:
    return a >= b


def _power(x: Tensor, y: Tensor) -> Tensor:
    """Return the power in the element type of the base, computed with the full precision of the exponent."""
    if x.dtype == y.dtype:
        return x**y
    if t.is_float(y.dtype):
        return L.cast(L.cast(x, t.DOUBLE) ** L.cast(y, t.DOUBLE), x.dtype)
    return x ** L.cast(y, x.dtype)


_register_binary("Pow", _power)


@operator("Not", since=1)
def logical_not(x: Tensor) -> Tensor:
    return L.logical_not(x)
