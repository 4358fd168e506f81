"""Algebraic simplifications of primitives, as rules on Core graphs.

A rule returns an equal value of the same type, or None if it does not apply. Unless a rule is registered with
``exact=False``, the result has the same bits for all operands: 0 is not eliminated from sums (-0 + 0 is 0), and nothing
is reassociated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size, at_least
from sardonyx.core.eval.tensor import apply, constant
from sardonyx.core.ir import types as t
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.ir.types import DType, Shape, numpy_dtype
from sardonyx.core.language import Tensor
from sardonyx.core.rules.type_rules import sizes_assumed_equal
from sardonyx.core.transform.rewriting import Match, RuleSet

_BLOCK = 1 << 12
"""Elements that are compared at a time."""

SIMPLIFICATIONS = RuleSet("simplify")

_ELEMENTWISE = [p.name for p in PRIMITIVES.values() if p.kind in ("unary", "binary", "ternary")]
_REPEATS = ("broadcast", "reshape", "permute", "stop_gradient")


def uniform(x: Tensor) -> np.ndarray | None:
    """The one number that all elements of a tensor are known to be, without axes."""
    while x.op in _REPEATS:
        x = x.operands[0]  # type: ignore[assignment]
    if not x.is_constant or x.known.size == 0 or x.known.dtype == object:
        return None
    flat = np.ascontiguousarray(x.known).reshape(-1)
    # In blocks, and the bits: of most tensors the first says that it is not so.
    bits = flat.view(np.uint8).reshape(flat.size, -1)
    same = all((bits[at : at + _BLOCK] == bits[0]).all() for at in range(0, flat.size, _BLOCK))
    return flat[0, ...] if same else None


def _is(x: Tensor, number: float, *, negative_zero: bool = False) -> bool:
    repeated = uniform(x)
    if repeated is None or repeated != number:
        return False
    return number != 0 or t.is_integer(x.dtype) or bool(np.signbit(repeated.astype(np.float64))) == negative_zero


# Elementwise.


@SIMPLIFICATIONS.rule(*_ELEMENTWISE)
def _of_uniform_operands(m: Match, *operands: Tensor) -> Tensor | None:
    """``sin(broadcast(2))`` is ``broadcast(sin(2))``."""
    numbers = [uniform(x) for x in operands]
    if not m.type.shape or any(number is None for number in numbers):
        return None
    scalars = [constant(number, x.dtype) for number, x in zip(numbers, operands, strict=True)]
    return L.full(m.type.shape, apply(m.op, *scalars), m.type.dtype)


@SIMPLIFICATIONS.rule("add", "mul", "and", "or")
def _neutral_operand(m: Match, a: Tensor, b: Tensor) -> Tensor | None:
    for x, y in ((a, b), (b, a)):
        if _is_neutral(m.op, y):
            return x
    return None


def _is_neutral(op: str, y: Tensor) -> bool:
    if op == "add":
        return _is(y, 0, negative_zero=not t.is_integer(y.dtype))
    if op == "mul":
        return t.kind(y.dtype) != "complex" and _is(y, 1)
    if op in ("and", "or"):
        return y.dtype == t.BOOL and _is(y, op == "and")
    return False


@SIMPLIFICATIONS.rule("sub", "div", "pow")
def _neutral_second_operand(m: Match, a: Tensor, b: Tensor) -> Tensor | None:
    if t.kind(b.dtype) == "complex":
        return None
    return a if _is(b, 0 if m.op == "sub" else 1) else None


@SIMPLIFICATIONS.rule("mul")
def _integer_times_zero(m: Match, a: Tensor, b: Tensor) -> Tensor | None:
    zero = t.is_integer(m.type.dtype) and (_is(a, 0) or _is(b, 0))
    return L.full(m.type.shape or (), 0, m.type.dtype) if zero else None


@SIMPLIFICATIONS.rule("max", "min", "and", "or")
def _operands_that_are_one(m: Match, a: Tensor, b: Tensor) -> Tensor | None:
    return a if a is b else None


@SIMPLIFICATIONS.rule("sub", "xor")
def _integer_less_itself(m: Match, a: Tensor, b: Tensor) -> Tensor | None:
    whole = not _may_be_nan(m.type.dtype)
    return L.full(m.type.shape or (), 0, m.type.dtype) if a is b and whole else None


@SIMPLIFICATIONS.rule("less")
def _less_than_itself(m: Match, a: Tensor, b: Tensor) -> Tensor | None:
    return L.full(m.type.shape or (), False, t.BOOL) if a is b else None


@SIMPLIFICATIONS.rule("equal")
def _integer_equal_to_itself(m: Match, a: Tensor, b: Tensor) -> Tensor | None:
    return L.full(m.type.shape or (), True, t.BOOL) if a is b and not _may_be_nan(a.dtype) else None


def _may_be_nan(dtype: DType) -> bool:
    return t.kind(dtype) in ("float", "complex")


@SIMPLIFICATIONS.rule("neg", "not")
def _sign_of_sign(m: Match, x: Tensor) -> Tensor | None:
    return x.operands[0] if x.op == m.op else None  # type: ignore[return-value]


@SIMPLIFICATIONS.rule("abs", "floor", "ceil", "round")
def _again(m: Match, x: Tensor) -> Tensor | None:
    if x.op == m.op:
        return x
    return apply("abs", x.operands[0]) if m.op == "abs" and x.op == "neg" else None


@SIMPLIFICATIONS.rule("select")
def _known_choice(m: Match, condition: Tensor, a: Tensor, b: Tensor) -> Tensor | None:
    if a is b:
        return a
    if condition.op == "not":
        return apply("select", condition.operands[0], b, a)
    chosen = uniform(condition)
    return None if chosen is None else a if chosen else b


@SIMPLIFICATIONS.rule("add", exact=False)
def _plus_zero(m: Match, a: Tensor, b: Tensor) -> Tensor | None:
    for x, y in ((a, b), (b, a)):
        if _is(y, 0):
            return x
    return None


@SIMPLIFICATIONS.rule("add", "mul", exact=False)
def _numbers_together(m: Match, a: Tensor, b: Tensor) -> Tensor | None:
    """``(x * 2) * 3`` is ``x * 6``."""
    for x, number in ((a, b), (b, a)):
        if x.op != m.op or uniform(number) is None:
            continue
        first, second = x.operands
        for inner, other in ((first, second), (second, first)):
            if uniform(other) is not None:  # type: ignore[arg-type]
                return apply(m.op, inner, apply(m.op, other, number))
    return None


@SIMPLIFICATIONS.rule("pow", exact=False)
def _small_power(m: Match, x: Tensor, y: Tensor) -> Tensor | None:
    if _is(y, 2):
        return x * x
    return L.sqrt(x) if _is(y, 0.5) and t.is_float(m.type.dtype) else None


# Conversions.


@SIMPLIFICATIONS.rule("convert")
def _there_and_back(m: Match, x: Tensor, *, dtype: DType, **params: Any) -> Tensor | None:
    if x.dtype == dtype:
        return x
    if x.op == "convert" and x.operands[0].type.dtype == dtype and _holds(x.dtype, dtype):  # type: ignore[union-attr]
        return x.operands[0]  # type: ignore[return-value]
    number = uniform(x)
    if number is None or not m.type.shape:
        return None
    return L.full(m.type.shape, apply("convert", constant(number, x.dtype), dtype=dtype, **params), dtype)


def _holds(wide: DType, narrow: DType) -> bool:
    """Return True if the wide element type represents every number of the narrow one."""
    if t.kind(wide) == t.kind(narrow) and t.kind(wide) in ("int", "uint"):
        return wide.bitwidth >= narrow.bitwidth
    return (narrow, wide) in _WIDENINGS or (narrow == t.BOOL and t.kind(wide) in ("int", "uint"))


_WIDENINGS = {
    *((narrow, wide) for narrow in (t.FLOAT16, t.BFLOAT16) for wide in (t.FLOAT, t.DOUBLE)),
    (t.FLOAT, t.DOUBLE),
}


@SIMPLIFICATIONS.rule("bitcast")
def _bits_back(m: Match, x: Tensor, *, dtype: DType) -> Tensor | None:
    return x.operands[0] if x.op == "bitcast" and x.operands[0].type == m.type else None  # type: ignore[return-value]


# Contractions.


@SIMPLIFICATIONS.rule("reduce")
def _reduced_over_ones(m: Match, x: Tensor, *, kind: str, axes: tuple[int, ...]) -> Tensor | None:
    """A sum is no such: 0 + -0 is 0."""
    if kind in ("mul", "max", "min", "and", "or") and all(x.shape[axis] == 1 for axis in axes):
        return L.reshape(x, m.type.shape or ())
    return x if not axes else None


# Movement.


@SIMPLIFICATIONS.rule("reshape")
def _reshaped_again(m: Match, x: Tensor, *, shape: Shape) -> Tensor | None:
    if x.shape == shape:
        return x
    return apply("reshape", x.operands[0], shape=shape) if x.op == "reshape" else None


@SIMPLIFICATIONS.rule("reshape", "permute")
def _moved_number(m: Match, x: Tensor, **params: Any) -> Tensor | None:
    number = uniform(x)
    if number is None or x.is_constant or sizes_assumed_equal(m.value.op, [x.type], params):
        return None
    return L.full(m.type.shape or (), constant(number, x.dtype), x.dtype)


@SIMPLIFICATIONS.rule("permute")
def _permuted_again(m: Match, x: Tensor, *, axes: tuple[int, ...]) -> Tensor | None:
    if axes == tuple(range(x.rank)):
        return x
    if x.op != "permute":
        return None
    first = x.params["axes"]
    return L.permute(x.operands[0], [first[axis] for axis in axes])  # type: ignore[arg-type]


@SIMPLIFICATIONS.rule("broadcast")
def _broadcast_again(m: Match, x: Tensor, *, shape: Shape) -> Tensor | None:
    if x.shape == shape:
        return x
    inner = x.operands[0] if x.op == "broadcast" else None
    if inner is None or not all(old == 1 or old == new for old, new in zip(inner.type.shape, shape, strict=True)):  # type: ignore[union-attr,arg-type]
        return None
    return apply("broadcast", inner, shape=shape)


@SIMPLIFICATIONS.rule("slice")
def _whole_or_again(m: Match, x: Tensor, *, starts: Shape, limits: Shape, strides: tuple[int, ...]) -> Tensor | None:
    plain = all(stride == 1 for stride in strides)
    if plain and all(start == 0 for start in starts) and limits == x.shape:
        return x
    if x.op != "slice" or not plain or any(stride != 1 for stride in x.params["strides"]):
        return None
    if not all(at_least(size, limit) for size, limit in zip(x.shape, limits, strict=True)):
        return None  # The run tests the range.
    before = x.params["starts"]
    first, last = (tuple(a + b for a, b in zip(before, bounds, strict=True)) for bounds in (starts, limits))
    return apply("slice", x.operands[0], starts=first, limits=last, strides=strides)


@SIMPLIFICATIONS.rule("pad")
def _nothing_padded(m: Match, x: Tensor, value: Tensor, **params: Any) -> Tensor | None:
    return x if all(amount == 0 for amounts in params.values() for amount in amounts) else None


@SIMPLIFICATIONS.rule("concat")
def _joined(m: Match, *xs: Tensor, axis: int) -> Tensor | None:
    """Joined pieces are pieces; empty ones are none."""
    pieces = [piece for x in xs for piece in _pieces(x, axis)]
    full = [piece for piece in pieces if piece.shape[axis] != 0] or pieces[:1]
    return L.concat(full, axis) if tuple(full) != xs else None


def _pieces(x: Tensor, axis: int) -> Iterator[Tensor]:
    if x.op == "concat" and x.params["axis"] == axis:
        yield from x.operands  # type: ignore[misc]
    else:
        yield x


@SIMPLIFICATIONS.rule("reverse")
def _reversed_again(m: Match, x: Tensor, *, axes: tuple[int, ...]) -> Tensor | None:
    remaining = tuple(axis for axis in axes if x.shape[axis] != 1)
    if x.op == "reverse":
        remaining = tuple(sorted(set(remaining) ^ set(x.params["axes"])))
        return L.reverse(x.operands[0], remaining)  # type: ignore[arg-type]
    return L.reverse(x, remaining) if remaining != axes else None


@SIMPLIFICATIONS.rule("stop_gradient")
def _stopped_already(m: Match, x: Tensor) -> Tensor | None:
    return x if x.is_constant or x.op == "stop_gradient" else None


@SIMPLIFICATIONS.rule("dims")
def _known_sizes(m: Match, *, sizes: tuple[Size, ...], shape: tuple[int, ...], dtype: DType) -> Tensor | None:
    if any(isinstance(size, Dim) for size in sizes):
        return None
    return constant(np.array(sizes, numpy_dtype(dtype)).reshape(shape), dtype)
