"""Algebraic simplifications of primitives: small rules, each from a primitive to what it equals.

A rule gets the primitive, the type of the result, the operands and the parameters, and gives a value of the same type,
or None where it has nothing to say. Unless it is marked as inexact, what it gives has the same bits for all operands:
0 is not added away (-0 + 0 is 0), and nothing is reassociated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size
from sardonyx.core.eval.tensor import apply, constant
from sardonyx.core.ir import types as t
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.ir.types import DType, Shape, TensorType, numpy_dtype
from sardonyx.core.language import Tensor

_BLOCK = 1 << 12
"""Elements that are compared at a time."""

SimplificationRule = Callable[..., "Tensor | None"]


class Simplification(NamedTuple):
    """A rule, and whether it keeps every bit."""

    name: str
    rule: SimplificationRule
    exact: bool


SIMPLIFICATIONS: dict[str, list[Simplification]] = {name: [] for name in PRIMITIVES}


def simplification(*names: str, exact: bool = True) -> Callable[[SimplificationRule], SimplificationRule]:
    """Register a rule for primitives."""

    def register(rule: SimplificationRule) -> SimplificationRule:
        for name in names:
            SIMPLIFICATIONS[name].append(Simplification(rule.__name__.strip("_"), rule, exact))
        return rule

    return register


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
    found = uniform(x)
    if found is None or found != number:
        return False
    return number != 0 or t.is_integer(x.dtype) or bool(np.signbit(found.astype(np.float64))) == negative_zero


# Elementwise.


@simplification(*_ELEMENTWISE)
def _of_uniform_operands(op: str, type: TensorType, *operands: Tensor) -> Tensor | None:
    """``sin(broadcast(2))`` is ``broadcast(sin(2))``."""
    numbers = [uniform(x) for x in operands]
    if not type.shape or any(number is None for number in numbers):
        return None
    scalars = [constant(number, x.dtype) for number, x in zip(numbers, operands, strict=True)]
    return L.full(type.shape, apply(op, *scalars), type.dtype)


@simplification("add", "mul", "and", "or")
def _neutral_operand(op: str, type: TensorType, a: Tensor, b: Tensor) -> Tensor | None:
    for x, y in ((a, b), (b, a)):
        if _is_neutral(op, y):
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


@simplification("sub", "div", "pow")
def _neutral_second_operand(op: str, type: TensorType, a: Tensor, b: Tensor) -> Tensor | None:
    if t.kind(b.dtype) == "complex":
        return None
    return a if _is(b, 0 if op == "sub" else 1) else None


@simplification("mul")
def _integer_times_zero(op: str, type: TensorType, a: Tensor, b: Tensor) -> Tensor | None:
    zero = t.is_integer(type.dtype) and (_is(a, 0) or _is(b, 0))
    return L.full(type.shape or (), 0, type.dtype) if zero else None


@simplification("max", "min", "and", "or")
def _operands_that_are_one(op: str, type: TensorType, a: Tensor, b: Tensor) -> Tensor | None:
    return a if a is b else None


@simplification("sub", "xor")
def _integer_less_itself(op: str, type: TensorType, a: Tensor, b: Tensor) -> Tensor | None:
    whole = not _may_be_nan(type.dtype)
    return L.full(type.shape or (), 0, type.dtype) if a is b and whole else None


@simplification("less")
def _less_than_itself(op: str, type: TensorType, a: Tensor, b: Tensor) -> Tensor | None:
    return L.full(type.shape or (), False, t.BOOL) if a is b else None


@simplification("equal")
def _integer_equal_to_itself(op: str, type: TensorType, a: Tensor, b: Tensor) -> Tensor | None:
    return L.full(type.shape or (), True, t.BOOL) if a is b and not _may_be_nan(a.dtype) else None


def _may_be_nan(dtype: DType) -> bool:
    return t.kind(dtype) in ("float", "complex")


@simplification("neg", "not")
def _sign_of_sign(op: str, type: TensorType, x: Tensor) -> Tensor | None:
    return x.operands[0] if x.op == op else None  # type: ignore[return-value]


@simplification("abs", "floor", "ceil", "round")
def _again(op: str, type: TensorType, x: Tensor) -> Tensor | None:
    if x.op == op:
        return x
    return apply("abs", x.operands[0]) if op == "abs" and x.op == "neg" else None


@simplification("select")
def _known_choice(op: str, type: TensorType, condition: Tensor, a: Tensor, b: Tensor) -> Tensor | None:
    if a is b:
        return a
    if condition.op == "not":
        return apply("select", condition.operands[0], b, a)
    chosen = uniform(condition)
    return None if chosen is None else a if chosen else b


@simplification("add", exact=False)
def _plus_zero(op: str, type: TensorType, a: Tensor, b: Tensor) -> Tensor | None:
    for x, y in ((a, b), (b, a)):
        if _is(y, 0):
            return x
    return None


@simplification("add", "mul", exact=False)
def _numbers_together(op: str, type: TensorType, a: Tensor, b: Tensor) -> Tensor | None:
    """``(x * 2) * 3`` is ``x * 6``."""
    for x, number in ((a, b), (b, a)):
        if x.op != op or uniform(number) is None:
            continue
        first, second = x.operands
        for inner, other in ((first, second), (second, first)):
            if uniform(other) is not None:  # type: ignore[arg-type]
                return apply(op, inner, apply(op, other, number))
    return None


@simplification("pow", exact=False)
def _small_power(op: str, type: TensorType, x: Tensor, y: Tensor) -> Tensor | None:
    if _is(y, 2):
        return x * x
    return L.sqrt(x) if _is(y, 0.5) and t.is_float(type.dtype) else None


# Conversions.


@simplification("convert")
def _there_and_back(op: str, type: TensorType, x: Tensor, *, dtype: DType, **params: Any) -> Tensor | None:
    if x.dtype == dtype:
        return x
    if x.op == "convert" and x.operands[0].type.dtype == dtype and _holds(x.dtype, dtype):  # type: ignore[union-attr]
        return x.operands[0]  # type: ignore[return-value]
    number = uniform(x)
    if number is None or not type.shape:
        return None
    return L.full(type.shape, apply("convert", constant(number, x.dtype), dtype=dtype, **params), dtype)


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether every number of one element type is one of another."""
    if t.kind(wide) == t.kind(narrow) and t.kind(wide) in ("int", "uint"):
        return wide.bitwidth >= narrow.bitwidth
    return (narrow, wide) in _WIDENINGS or (narrow == t.BOOL and t.kind(wide) in ("int", "uint"))


_WIDENINGS = {
    *((narrow, wide) for narrow in (t.FLOAT16, t.BFLOAT16) for wide in (t.FLOAT, t.DOUBLE)),
    (t.FLOAT, t.DOUBLE),
}


@simplification("bitcast")
def _bits_back(op: str, type: TensorType, x: Tensor, *, dtype: DType) -> Tensor | None:
    return x.operands[0] if x.op == "bitcast" and x.operands[0].type == type else None  # type: ignore[return-value]


# Contractions.


@simplification("reduce")
def _reduced_over_ones(op: str, type: TensorType, x: Tensor, *, kind: str, axes: tuple[int, ...]) -> Tensor | None:
    """A sum is no such: 0 + -0 is 0."""
    if kind in ("mul", "max", "min", "and", "or") and all(x.shape[axis] == 1 for axis in axes):
        return L.reshape(x, type.shape or ())
    return x if not axes else None


# Movement.


@simplification("reshape")
def _reshaped_again(op: str, type: TensorType, x: Tensor, *, shape: Shape) -> Tensor | None:
    if x.shape == shape:
        return x
    return apply("reshape", x.operands[0], shape=shape) if x.op == "reshape" else None


@simplification("reshape", "permute")
def _moved_number(op: str, type: TensorType, x: Tensor, **params: Any) -> Tensor | None:
    number = uniform(x)
    return None if number is None or x.is_constant else L.full(type.shape or (), constant(number, x.dtype), x.dtype)


@simplification("permute")
def _permuted_again(op: str, type: TensorType, x: Tensor, *, axes: tuple[int, ...]) -> Tensor | None:
    if axes == tuple(range(x.rank)):
        return x
    if x.op != "permute":
        return None
    first = x.params["axes"]
    return L.permute(x.operands[0], [first[axis] for axis in axes])  # type: ignore[arg-type]


@simplification("broadcast")
def _broadcast_again(op: str, type: TensorType, x: Tensor, *, shape: Shape) -> Tensor | None:
    if x.shape == shape:
        return x
    inner = x.operands[0] if x.op == "broadcast" else None
    if inner is None or not all(old == 1 or old == new for old, new in zip(inner.type.shape, shape, strict=True)):  # type: ignore[union-attr,arg-type]
        return None
    return apply("broadcast", inner, shape=shape)


@simplification("slice")
def _whole_or_again(
    op: str, type: TensorType, x: Tensor, *, starts: Shape, limits: Shape, strides: tuple[int, ...]
) -> Tensor | None:
    plain = all(stride == 1 for stride in strides)
    if plain and all(start == 0 for start in starts) and limits == x.shape:
        return x
    if x.op != "slice" or not plain or any(stride != 1 for stride in x.params["strides"]):
        return None
    before = x.params["starts"]
    first, last = (tuple(a + b for a, b in zip(before, each, strict=True)) for each in (starts, limits))
    return apply("slice", x.operands[0], starts=first, limits=last, strides=strides)


@simplification("pad")
def _nothing_padded(op: str, type: TensorType, x: Tensor, value: Tensor, **params: Any) -> Tensor | None:
    return x if all(amount == 0 for each in params.values() for amount in each) else None


@simplification("concat")
def _joined(op: str, type: TensorType, *xs: Tensor, axis: int) -> Tensor | None:
    """Joined pieces are pieces; empty ones are none."""
    pieces = [piece for x in xs for piece in _pieces(x, axis)]
    full = [piece for piece in pieces if piece.shape[axis] != 0] or pieces[:1]
    return L.concat(full, axis) if tuple(full) != xs else None


def _pieces(x: Tensor, axis: int) -> Iterator[Tensor]:
    if x.op == "concat" and x.params["axis"] == axis:
        yield from x.operands  # type: ignore[misc]
    else:
        yield x


@simplification("reverse")
def _reversed_again(op: str, type: TensorType, x: Tensor, *, axes: tuple[int, ...]) -> Tensor | None:
    kept = tuple(axis for axis in axes if x.shape[axis] != 1)
    if x.op == "reverse":
        kept = tuple(sorted(set(kept) ^ set(x.params["axes"])))
        return L.reverse(x.operands[0], kept)  # type: ignore[arg-type]
    return L.reverse(x, kept) if kept != axes else None


@simplification("stop_gradient")
def _stopped_already(op: str, type: TensorType, x: Tensor) -> Tensor | None:
    return x if x.is_constant or x.op == "stop_gradient" else None


@simplification("dims")
def _known_sizes(
    op: str, type: TensorType, *, sizes: tuple[Size, ...], shape: tuple[int, ...], dtype: DType
) -> Tensor | None:
    if any(isinstance(size, Dim) for size in sizes):
        return None
    return constant(np.array(sizes, numpy_dtype(dtype)).reshape(shape), dtype)


def simplified(op: str, type: TensorType, operands: tuple[Any, ...], params: dict[str, Any], exact: bool) -> Any:
    """What the first rule that applies gives; None where none does."""
    for each in SIMPLIFICATIONS[op]:
        if each.exact or not exact:
            found = each.rule(op, type, *operands, **params)
            if found is not None and found.type == type:
                return found
    return None
