"""Sizes of torch as sizes of Core: symbolic expressions, and the results that torch predicts for the current call."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from fractions import Fraction
from typing import Any

import torch

from sardonyx.convert.torch.operators.registry import site
from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size, at_least, broadcast, dim_max, dim_min, equal, floor_div
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t
from sardonyx.errors import ShapeError, UnsupportedError
from sardonyx.ops.nodes import onnx

symbols: ContextVar[dict[str, Size]] = ContextVar("sardonyx_torch_symbols")
"""The known symbols of torch, by name."""

END = (1 << 63) - 1
"""The limit of a slice that ends with the axis."""


def size_of(value: Any, name: str = "a size") -> Size:
    """Return a size among the arguments of a call: a number, a symbolic size, or a scalar that is read at run time."""
    if isinstance(value, Tensor):
        return L.one_size(value, name)
    if isinstance(value, (int, Dim)):
        return value
    raise UnsupportedError(f"expected an integer for {name}, got {type(value).__name__}.")


def predicted(value: Any) -> Size | None:
    """Return a size that torch computed; None if a symbol is unknown, or the expression has no form as a size."""
    if isinstance(value, int):
        return value
    table = symbols.get({})
    try:
        return of_expression(value.node.expr, table) if isinstance(value, torch.SymInt) else None
    except ShapeError:
        return None


def predicted_shape(value: Any = None) -> tuple[Size | None, ...] | None:
    """Return the shape that torch computed for a tensor, by default the first result of the current call."""
    if value is None:
        current = site.get(None)
        value = current.result if current is not None else None
    if isinstance(value, (tuple, list)) and value:
        value = value[0]
    return tuple(predicted(size) for size in value.shape) if isinstance(value, torch.Tensor) else None


def learn(own: Any, other: Any) -> None:
    """Remember the symbols that a result of torch introduces, as the sizes of our result."""
    table = symbols.get()
    if isinstance(other, torch.SymInt) and isinstance(own, (int, Dim)):
        expression = other.node.expr
        if expression.is_Symbol and str(expression) not in table:
            table[str(expression)] = own
    elif isinstance(other, torch.Tensor) and isinstance(own, Tensor):
        for mine, theirs in zip(own.shape, other.shape, strict=False):
            learn(mine, theirs)
    elif isinstance(other, (tuple, list)) and isinstance(own, (tuple, list)):
        for mine, theirs in zip(own, other, strict=False):
            learn(mine, theirs)


def of_expression(expression: Any, table: dict[str, Size]) -> Size | None:
    """Return an expression of torch over known symbols as a size; None if it has no such form."""
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return table.get(str(expression))
    kind = type(expression).__name__
    if kind in _TO_INTEGER:
        return _whole(_fraction(expression.args[0], table), kind)
    parts = [of_expression(part, table) for part in expression.args]
    if any(part is None for part in parts):
        return None
    sizes: list[Size] = parts  # type: ignore[assignment]
    match kind:
        case "Add":
            return sum(sizes)
        case "Mul":
            return L.product(sizes)
        case "Pow" if isinstance(sizes[1], int) and sizes[1] >= 0:
            return L.product([sizes[0]] * sizes[1])
        case "FloorDiv" | "CleanDiv":
            return floor_div(sizes[0], sizes[1])
        case "CeilDiv":
            return -floor_div(-sizes[0], sizes[1])
        case "Mod" | "PythonMod":
            return sizes[0] - sizes[1] * floor_div(sizes[0], sizes[1])
        case "Max":
            return dim_max(*sizes)
        case "Min":
            return dim_min(*sizes)
    return None


_TO_INTEGER = ("CeilToInt", "FloorToInt", "TruncToInt")
"""Functions of torch that round a fraction to an integer."""

_LARGEST_DENOMINATOR = 1 << 20
"""Largest denominator of a fraction: products of sizes with it remain far below 2^63."""


def _fraction(expression: Any, table: dict[str, Size]) -> tuple[Size, int] | None:
    """Return an expression in floating point as numerator and denominator; None if it has no such form.

    A quotient by a divisor that is no power of two is rounded, so a product of it, or a sum of two, may differ from
    the fraction by an integer (``n / 49 * 49``): they have no such form.
    """
    kind = type(expression).__name__
    if expression.is_Float or expression.is_Rational:
        number = Fraction(float(expression))
        return (number.numerator, number.denominator) if number.denominator <= _LARGEST_DENOMINATOR else None
    if kind == "ToFloat":
        return _fraction(expression.args[0], table)
    if kind not in ("Add", "Mul", "IntTrueDiv", "FloatTrueDiv"):
        size = of_expression(expression, table)
        return None if size is None else (size, 1)
    terms = []
    for argument in expression.args:
        term = _fraction(argument, table)
        if term is None:
            return None
        terms.append(term)
    numerator, denominator = terms[0]
    for p, q in terms[1:]:
        is_exact, is_other_exact = _is_power_of_two(denominator), _is_power_of_two(q)
        match kind:
            case "Add" if is_exact or is_other_exact:
                numerator, denominator = numerator * q + p * denominator, denominator * q
            case "Mul" if is_other_exact and (is_exact or _is_power_of_two(p)):
                numerator, denominator = L.product([numerator, p]), denominator * q
            case "IntTrueDiv" | "FloatTrueDiv" if is_other_exact and isinstance(p, int) and p > 0:
                numerator, denominator = numerator * q, denominator * p
            case _:
                return None
    return (numerator, denominator) if denominator <= _LARGEST_DENOMINATOR else None


def _is_power_of_two(size: Size) -> bool:
    return isinstance(size, int) and size > 0 and size & (size - 1) == 0


def _whole(fraction: tuple[Size, int] | None, kind: str) -> Size | None:
    """Return a fraction rounded to an integer; None if the fraction is unknown."""
    if fraction is None or (kind == "TruncToInt" and at_least(fraction[0], 0) is not True):
        return None
    numerator, denominator = fraction
    return -floor_div(-numerator, denominator) if kind == "CeilToInt" else floor_div(numerator, denominator)


def common_shape(*xs: Tensor) -> tuple[Size, ...]:
    """Return the shape to which operands broadcast; sizes that torch proved equal are equal."""
    rank = max(x.rank for x in xs)
    known = predicted_shape()
    shape: list[Size] = []
    for i in range(-rank, 0):
        sizes = list(dict.fromkeys(x.shape[i] for x in xs if -i <= x.rank))
        wide = [size for size in sizes if size != 1]
        if len(wide) <= 1:
            shape.append(wide[0] if wide else 1)
            continue
        fixed = next((size for size in wide if isinstance(size, int)), None)
        if fixed is not None:
            shape.append(fixed)
        elif known is not None and len(known) == rank and (one := known[i]) is not None:
            shape.append(wide[0] if all(equal(size, one) is not False for size in wide) else broadcast(*wide))
        else:
            shape.append(broadcast(*wide))
    return tuple(shape)


def aligned(x: Tensor, shape: Sequence[Size]) -> Tensor:
    """Repeat an operand to a shape of :func:`common_shape`."""
    own = (1,) * (len(shape) - x.rank) + tuple(x.shape)
    same = tuple(1 if size == 1 else target for size, target in zip(own, shape, strict=True))
    return L.broadcast_to(L.reshape(x, same), tuple(shape))


def reshaped(x: Tensor, shape: Sequence[Size]) -> Tensor:
    """Return a tensor in a shape as one node: an open size is the remainder, or that of the same axis before."""
    shape = tuple(shape)
    if x.shape == shape:
        return x
    numbers: list[int] = []
    for i, size in enumerate(shape):
        if isinstance(size, int):
            numbers.append(size)
        elif i < x.rank and x.shape[i] == size and i == len(numbers):
            numbers.append(-2)
        else:
            numbers.append(-1)
    open_ones = [i for i, number in enumerate(numbers) if number < 0]
    if numbers.count(-1) == 0 and open_ones:
        numbers[open_ones[0]] = -1
    if numbers.count(-1) > 1 or 0 in numbers:
        return x if x.shape == shape else L.reshape(x, shape)
    target = L.constant([0 if number == -2 else number for number in numbers], t.INT64)
    return onnx.Reshape(x, target, body=lambda x, _: [L.reshape(x, shape)])  # type: ignore[no-any-return]


def expanded(x: Tensor, shape: Sequence[Size]) -> Tensor:
    """Repeat along axes of size 1."""
    shape = tuple(shape)
    if x.shape == shape:
        return x
    return onnx.Expand(x, L.size_tensor(shape), body=lambda x, _: [aligned(x, shape)])  # type: ignore[no-any-return]


def clamped(index: Size, size: Size) -> Size:
    """Return an index of a slice, from the front and within an axis."""
    if isinstance(index, int) and index >= END:
        return size
    if at_least(index, 0) is not True and at_least(0, index) is True:
        index = index + size
        return dim_max(index, 0) if at_least(index, 0) is not True else index
    return index if at_least(size, index) is True else dim_min(index, size)
