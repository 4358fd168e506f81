"""The cost of every primitive: operations, bytes read and written, as expressions of the sizes.

A rule returns the operations of one primitive from the types of its result and operands: one for each arithmetic
operation on an element, for any function. The logarithm of a symbolic size is taken as 32: axes are shorter than
2**32. The cost of a call is the cost of the functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from sardonyx.core.dim import Dim, Size, ceil_div, dim_max, product
from sardonyx.core.eval.tensor import sizes_of
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value, fresh_symbol
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.ir.types import Shape, TensorType, TupleType, Type

CostRule = Callable[..., Size]

COSTS: dict[str, CostRule] = {}
"""Operations, by primitive."""

VIEWS = frozenset(("reshape", "get", "bind", "constant", "input", "stop_gradient"))
"""Primitives that move no bytes: their results name existing data."""


class Cost(NamedTuple):
    """The cost of a computation.

    Attributes:
        operations: Arithmetic operations on elements.
        read: Bytes of the operands.
        written: Bytes of the results.
    """

    operations: Size
    read: Size
    written: Size

    def __add__(self, other: tuple[Any, ...]) -> Cost:
        operations, read, written = other
        return Cost(self.operations + operations, self.read + read, self.written + written)

    def times(self, count: Size) -> Cost:
        """Return the cost of ``count`` repetitions."""
        return Cost(self.operations * count, self.read * count, self.written * count)


NOTHING = Cost(0, 0, 0)


def cost_rule(*names: str) -> Callable[[CostRule], CostRule]:
    """Register the rule of primitives."""

    def register(rule: CostRule) -> CostRule:
        COSTS.update(dict.fromkeys(names, rule))
        return rule

    return register


def cost(value: Value) -> Cost:
    """Return the cost of one value, with the functions called."""
    inner = _CALLS.get(value.op)
    if inner is not None:
        return inner(value)
    if value.op in VIEWS:
        return NOTHING
    types = [operand.type for operand in value.operands]
    operations = COSTS[value.op](value.type, *types, **value.params)
    return Cost(operations, _total(nbytes(type) for type in types), nbytes(value.type))


def cost_of(function: Function) -> Cost:
    """Return the cost of a function."""
    total = NOTHING
    for value in function.values:
        total = total + cost(value)
    return total


def computed_in_runs(values: Iterable[Value]) -> list[Value]:
    """Return the values that a run computes: those of constants alone are computed once, when a model is loaded."""
    known: dict[Value, bool] = {}
    return [value for value in values if not _is_stored(value, known)]


def _is_stored(value: Value, known: dict[Value, bool]) -> bool:
    """Return True if a value depends on constants alone; `known` has the answers so far."""
    pending = [value]
    while pending:
        current = pending[-1]
        missing = [operand for operand in current.operands if operand not in known]
        if current in known or not missing:
            pending.pop()
            is_plain = bool(current.operands) and current.op not in (*_CALLS, "random")
            known[current] = current.is_constant or (is_plain and all(known[operand] for operand in current.operands))
        else:
            pending += missing
    return known[value]


def nbytes(type: Type) -> Size:
    """Return the bytes of a value, packed; texts count 8 each, values without sizes 0."""
    if isinstance(type, TupleType):
        return _total(nbytes(result) for result in type.results)
    if not isinstance(type, TensorType) or type.shape is None:
        return 0
    bits = 64 if type.dtype == t.STRING else type.dtype.bitwidth
    return ceil_div(product(type.shape) * bits, 8) if bits < 8 else product(type.shape) * (bits // 8)


def _total(sizes: Iterable[Size]) -> Size:
    total: Size = 0
    for size in sizes:
        total = total + size
    return total


def _shape(type: Type) -> Shape:
    return type.shape or ()  # type: ignore[union-attr]


def elements(type: Type) -> Size:
    """Return the number of elements of a tensor."""
    return product(_shape(type))


def _logarithm(size: Size) -> int:
    """Return the logarithm to base 2, rounded up; 32 for a symbolic size."""
    return max((size - 1).bit_length(), 1) if isinstance(size, int) else 32


def _elements_of_result(type: Type, *operands: Type, **params: Any) -> Size:
    return elements(type)


def _none(type: Type, *operands: Type, **params: Any) -> Size:
    return 0


for _primitive in PRIMITIVES.values():
    if _primitive.kind in ("unary", "binary", "ternary"):
        COSTS[_primitive.name] = _elements_of_result
    elif _primitive.kind in ("movement", "source"):
        COSTS[_primitive.name] = _none
COSTS |= {
    "convert": _elements_of_result,
    "bitcast": _none,
    "random": _elements_of_result,
    "stop_gradient": _none,
    "get": _none,
    "host": _none,
}


@cost_rule("reduce", "scan")
def _reduce(type: Type, x: Type, **params: Any) -> Size:
    return elements(x)


@cost_rule("contract")
def _contract(type: Type, x: Type, y: Type, *, left: tuple[int, ...], **params: Any) -> Size:
    return 2 * elements(type) * product([_shape(x)[axis] for axis in left])


@cost_rule("convolve")
def _convolve(type: Type, x: Type, w: Type, **params: Any) -> Size:
    return 2 * elements(type) * product(_shape(w)[2:])


@cost_rule("reduce_window")
def _reduce_window(type: Type, x: Type, *, window: tuple[int, ...], **params: Any) -> Size:
    return elements(type) * math.prod(window)


@cost_rule("scatter")
def _scatter(type: Type, x: Type, indices: Type, updates: Type, *, kind: str, batch: int) -> Size:
    return 0 if kind == "set" else elements(updates)


@cost_rule("sort")
def _sort(type: Type, x: Type, *, axis: int, descending: bool) -> Size:
    return elements(x) * _logarithm(_shape(x)[axis])


@cost_rule("top_k")
def _top_k(type: Type, x: Type, *, axis: int, k: Size, largest: bool) -> Size:
    return elements(x) * _logarithm(k)


@cost_rule("fft")
def _fft(type: Type, x: Type, *, inverse: bool) -> Size:
    return 5 * elements(x) * _logarithm(_shape(x)[-1])


@cost_rule("determinant")
def _determinant(type: Type, x: Type) -> Size:
    n = _shape(x)[-1]
    return elements(type) * ((2 * n * n * n) // 3)


# Primitives that call functions.


def _cond(value: Value) -> Cost:
    """Return the cost of the more expensive branch."""
    branches = [cost_of(value.params[name]) for name in ("then", "otherwise")]
    return Cost(*(dim_max(a, b) for a, b in zip(*branches, strict=True)))


def _loop(value: Value) -> Cost:
    total = NOTHING
    for inner in computed_in_runs(value.params["body"].values):
        total = total + cost(inner)
    return total.times(trips(value))


def trips(value: Value) -> Size:
    """Return the maximum number of iterations: from collected rows, or the count; else a fresh symbol."""
    stacked = value.params["results"][value.params["carried"] :]
    if stacked:
        return _shape(stacked[0])[0]
    known = sizes_of(value.operands[0])
    if known is not None and (isinstance(known[0], Dim) or known[0] < 1 << 62):
        return dim_max(known[0], 0)
    return Dim.symbol(fresh_symbol())


def _call(value: Value) -> Cost:
    return cost_of(value.params["function"])


_CALLS: dict[str, Callable[[Value], Cost]] = {"cond": _cond, "loop": _loop, "call": _call}
COSTS |= dict.fromkeys(_CALLS, _none)
