"""The type of every primitive's result, from the types of its operands.

A rule raises for mismatched operands. Sizes that are only known at run time are assumed equal, and in the order that
the primitive needs. The interpreter applies the rules again to the actual sizes
(:mod:`sardonyx.core.eval.interpreter`); compiled code tests the assumptions (:func:`sizes_assumed_equal`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sardonyx.core.dim import Size, broadcast, dim_max, dim_min, equal, floor_div, product
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.ir.types import DType, Shape, TensorType, TupleType, Type
from sardonyx.core.rules.assumed_sizes import (
    assumed_pairs,
    exceeds,
    recorded_assumptions,
    require_same_shapes,
    require_sizes,
    same_size,
    same_type,
    shape_text,
)
from sardonyx.errors import NeedsValueError, ResourceError, ShapeError, TypeMismatchError

TypeRule = Callable[..., Type]

TYPE_RULES: dict[str, TypeRule] = {}

_ANY = frozenset(t.ALL_DTYPES)
_NUMBERS = _ANY - {t.STRING, t.BOOL}
_REAL = frozenset((*t.FLOATS, *t.INTS, *t.UINTS))
_INEXACT = frozenset((*t.FLOATS, t.COMPLEX64, t.COMPLEX128))
_BITS = frozenset((*t.INTS, *t.UINTS, t.BOOL))
_UINTS = frozenset((*t.UINTS, *t.INTS))

_OPERAND_TYPES: dict[str, frozenset[DType]] = {
    **dict.fromkeys(("neg", "abs", "add", "sub", "mul", "div", "pow"), _NUMBERS),
    **dict.fromkeys(("sign", "floor", "ceil", "round", "rem"), _REAL),
    "erf": frozenset(t.FLOATS),
    **dict.fromkeys(("max", "min", "less"), _REAL | {t.BOOL}),
    **dict.fromkeys(("and", "or", "xor", "not"), _BITS),
    **dict.fromkeys(("shift_left", "shift_right"), _UINTS),
    "equal": _ANY,
}


def type_rule(name: str) -> Callable[[TypeRule], TypeRule]:
    """Register the type rule of a primitive."""

    def register(rule: TypeRule) -> TypeRule:
        TYPE_RULES[name] = rule
        return rule

    return register


def _shape(operand: Type) -> Shape:
    if not isinstance(operand, TensorType):
        raise TypeMismatchError(f"expected a tensor, got {operand}.")
    if operand.shape is None:
        raise NeedsValueError("a rank is only known at run time.")
    return operand.shape


def _tensor(operand: Type) -> tuple[DType, Shape]:
    shape = _shape(operand)
    return operand.dtype, shape  # type: ignore[union-attr]


def sizes_assumed_equal(op: str, operands: Sequence[Type], params: Mapping[str, Any]) -> list[tuple[Size, Size]]:
    """Return the pairs of sizes that a primitive assumes equal, undecided until run time.

    An assumed order a ≤ b is the pair min(a, b) and a. No primitive reads or writes outside of its buffers if all of
    its pairs are equal, and the indices of ``gather`` and ``scatter`` are within their axes.
    """
    pairs: dict[tuple[Size, Size], None] = {}
    with recorded_assumptions(pairs):
        TYPE_RULES[op](*operands, **params)
    return list(pairs)


def _accept(op: str, dtype: DType, allowed: frozenset[DType]) -> None:
    if dtype not in allowed:
        raise TypeMismatchError(f"{op} does not accept {dtype.name.lower()}.")


def _axis(axis: int, rank: int) -> None:
    if not 0 <= axis < rank:
        raise ShapeError(f"axis {axis} is out of range for rank {rank}.")


# Elementwise.


def _unary(op: str) -> TypeRule:
    allowed = _OPERAND_TYPES.get(op, _INEXACT)

    def rule(x: Type) -> Type:
        _accept(op, _tensor(x)[0], allowed)
        return x

    return rule


def _binary(op: str) -> TypeRule:
    allowed = _OPERAND_TYPES[op]
    compares = op in ("equal", "less")

    def rule(x: Type, y: Type) -> Type:
        dtype, shape = _tensor(x)
        if x is not y:
            other, sizes = _tensor(y)
            if dtype != other:
                raise TypeMismatchError(f"{op} needs equal element types, got {dtype.name} and {other.name}.")
            require_same_shapes(op, shape, sizes)
        _accept(op, dtype, allowed)
        return TensorType(t.BOOL, shape) if compares else x

    return rule


for _primitive in PRIMITIVES.values():
    if _primitive.kind == "unary":
        TYPE_RULES[_primitive.name] = _unary(_primitive.name)
    elif _primitive.kind == "binary":
        TYPE_RULES[_primitive.name] = _binary(_primitive.name)


@type_rule("select")
def _select(condition: Type, x: Type, y: Type) -> Type:
    dtype, shape = _tensor(x)
    _accept("the condition of select", _tensor(condition)[0], frozenset({t.BOOL}))
    if _tensor(y)[0] != dtype:
        raise TypeMismatchError(f"select needs equal element types, got {x} and {y}.")
    require_same_shapes("select", shape, _shape(y))
    require_same_shapes("select", shape, _shape(condition))
    return x


@type_rule("convert")
def _convert(x: Type, *, dtype: DType, saturate: bool, rounding: str) -> Type:
    return TensorType(dtype, _shape(x))


@type_rule("bitcast")
def _bitcast(x: Type, *, dtype: DType) -> Type:
    source, shape = _tensor(x)
    if t.STRING in (source, dtype):
        raise TypeMismatchError("bitcast does not accept strings.")
    old, new = source.bitwidth, dtype.bitwidth
    if old == new:
        return TensorType(dtype, shape)
    if old > new:
        return TensorType(dtype, (*shape, old // new))
    if not shape or not same_size(shape[-1], new // old):
        raise ShapeError(f"a bitcast of {x} to {dtype.name.lower()} needs a last axis of {new // old}.")
    return TensorType(dtype, shape[:-1])


# Contractions.


@type_rule("reduce")
def _reduce(x: Type, *, kind: str, axes: tuple[int, ...]) -> Type:
    dtype, shape = _tensor(x)
    for axis in axes:
        _axis(axis, len(shape))
    remaining = tuple(size for axis, size in enumerate(shape) if axis not in axes)
    if kind in ("argmax", "argmin"):
        _accept(kind, dtype, _REAL)
        if len(axes) != 1:
            raise ShapeError(f"expected one axis for {kind}, got {len(axes)}.")
        if exceeds(1, shape[axes[0]]):
            raise ShapeError(f"{kind} over an axis of size 0 is undefined.")
        return TensorType(t.INT64, remaining)
    allowed = {"add": _NUMBERS, "mul": _NUMBERS, "and": _BITS, "or": _BITS}.get(kind, _REAL | {t.BOOL})
    _accept(f"reduce {kind}", dtype, allowed)
    return TensorType(dtype, remaining)


@type_rule("contract")
def _contract(
    x: Type,
    y: Type,
    *,
    batch: tuple[tuple[int, int], ...],
    left: tuple[int, ...],
    right: tuple[int, ...],
    dtype: DType,
) -> Type:
    (xd, xs), (yd, ys) = _tensor(x), _tensor(y)
    _accept("contract", xd, _NUMBERS)
    _accept("contract", yd, _NUMBERS)
    for a, b in (*batch, *zip(left, right, strict=True)):
        if not same_size(xs[a], ys[b]):
            raise ShapeError(f"expected equal sizes of axis {a} of {x} and axis {b} of {y}.")
    shared = [a for a, _ in batch]
    free = [size for axis, size in enumerate(xs) if axis not in shared and axis not in left]
    other = [size for axis, size in enumerate(ys) if axis not in [b for _, b in batch] and axis not in right]
    return TensorType(dtype, (*(xs[a] for a in shared), *free, *other))


def window_count(size: Size, window: Size, stride: int, dilation: int, low: Size, high: Size) -> Size:
    """Return the number of windows along an axis; a window spans ``dilation*(window-1)+1`` elements."""
    if assumed_pairs.get() is not None:
        exceeds(1, window)
    room = size + low + high - (dilation * (window - 1) + 1)
    count = floor_div(room, stride) + 1
    if exceeds(0, count):
        raise ShapeError(
            f"a window of {window} (dilation {dilation}) is wider than the padded axis, {size} + {low} + {high}."
        )
    return count


MOST_TAPS = 1 << 24
"""Most elements of a window; a window in the padding of a small image would take any time without any memory."""

MOST_DILATION = 1 << 16
"""Greatest dilation of an input, which is the stride of a transposed convolution."""


def _require_window(window: Sequence[Size], base_dilation: Sequence[int] = ()) -> None:
    taps = math.prod(size for size in window if isinstance(size, int))
    if taps > MOST_TAPS:
        raise ResourceError(f"a window has {taps} elements, expected at most {MOST_TAPS}.", remedy="Give fewer.")
    if max(base_dilation, default=1) > MOST_DILATION:
        raise ResourceError(
            f"an image is dilated by {max(base_dilation)}, expected at most {MOST_DILATION}.",
            remedy="Give smaller strides.",
        )


@type_rule("convolve")
def _convolve(
    x: Type,
    w: Type,
    *,
    strides: tuple[int, ...],
    padding: tuple[tuple[Size, Size], ...],
    base_dilation: tuple[int, ...],
    kernel_dilation: tuple[int, ...],
    dtype: DType,
) -> Type:
    (xd, xs), (wd, ws) = _tensor(x), _tensor(w)
    _accept("convolve", xd, _NUMBERS)
    _accept("convolve", wd, _NUMBERS)
    _require_window(ws[3:], base_dilation)
    if len(xs) != len(ws) or len(xs) != 3 + len(strides):
        raise ShapeError(f"convolve of {x} with {w} needs {3 + len(strides)} axes of both.")
    for axis, name in ((0, "groups"), (2, "channels")):
        if not same_size(xs[axis], ws[axis]):
            raise ShapeError(f"convolve of {x} with {w}: their {name} differ, {xs[axis]} and {ws[axis]}.")
    spatial = []
    for axis, stride in enumerate(strides):
        size = xs[3 + axis]
        # The standard's size of a transposed convolution is linear in the input's size, 0 included.
        dilated = size if base_dilation[axis] == 1 else (size - 1) * base_dilation[axis] + 1
        low, high = padding[axis]
        spatial.append(window_count(dilated, ws[3 + axis], stride, kernel_dilation[axis], low, high))
    return TensorType(dtype, (xs[0], xs[1], ws[1], *spatial))


@type_rule("reduce_window")
def _reduce_window(
    x: Type,
    *,
    kind: str,
    window: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[tuple[Size, Size], ...],
    dilation: tuple[int, ...],
) -> Type:
    dtype, shape = _tensor(x)
    _accept("reduce_window", dtype, _REAL)
    _require_window(window)
    if len(shape) < len(window):
        raise ShapeError(f"windows of {len(window)} axes exceed the rank of {x}.")
    leading = len(shape) - len(window)
    spatial = [
        window_count(shape[leading + axis], size, strides[axis], dilation[axis], *padding[axis])
        for axis, size in enumerate(window)
    ]
    return TensorType(t.INT64 if kind.startswith("arg") else dtype, (*shape[:leading], *spatial))


# Movement.


@type_rule("reshape")
def _reshape(x: Type, *, shape: Shape) -> Type:
    dtype, old = _tensor(x)
    require_sizes(shape)
    before, after = product(old), product(shape)
    same = equal(before, after)
    if same is False:
        raise ShapeError(f"{shape_text(old)} cannot be reshaped to {shape_text(shape)}: the element counts differ.")
    if same is None and (pairs := assumed_pairs.get()) is not None:
        pairs[_changed_counts(old, shape)] = None
    return TensorType(dtype, shape)


def _changed_counts(old: Shape, new: Shape) -> tuple[Size, Size]:
    """Return the element counts of a reshape over the axes that change.

    Stricter than equal counts of tensors without elements: [0, 3] to [0, 2] is left to the interpreter, because
    definitions of operators reshape to test sizes, and refuse sizes that do not fit in an empty tensor too.
    """
    remaining, added = list(old), []
    for size in new:
        if size in remaining:
            remaining.remove(size)
        else:
            added.append(size)
    changed = product(remaining), product(added)
    return (product(old), product(new)) if equal(*changed) is False else changed


@type_rule("permute")
def _permute(x: Type, *, axes: tuple[int, ...]) -> Type:
    dtype, shape = _tensor(x)
    if sorted(axes) != list(range(len(shape))):
        raise ShapeError(f"expected a permutation of the {len(shape)} axes of {x}, got {list(axes)}.")
    return TensorType(dtype, tuple([shape[axis] for axis in axes]))


@type_rule("broadcast")
def _broadcast(x: Type, *, shape: Shape) -> Type:
    dtype, old = _tensor(x)
    require_sizes(shape)
    if len(old) != len(shape):
        raise ShapeError(f"{shape_text(old)} has another rank than {shape_text(shape)}.")
    for size, target in zip(old, shape, strict=True):
        if size == 1 or size == target:
            continue
        if broadcast(size, target) != target and equal(size, target) is False:
            raise ShapeError(f"{shape_text(old)} does not broadcast to {shape_text(shape)}.")
        if (pairs := assumed_pairs.get()) is not None:
            pairs[(size - 1) * (size - target), 0] = None  # The size is 1 or the target.
    return TensorType(dtype, shape)


@type_rule("slice")
def _slice(x: Type, *, starts: Shape, limits: Shape, strides: tuple[int, ...]) -> Type:
    dtype, shape = _tensor(x)
    out: list[Size] = []
    for size, start, limit, stride in zip(shape, starts, limits, strides, strict=True):
        if exceeds(0, start) or exceeds(start, limit) or exceeds(limit, size):
            raise ShapeError(f"the slice {start}:{limit} is out of range for an axis of {size}.")
        out.append(limit - start if stride == 1 else -floor_div(start - limit, stride))
    return TensorType(dtype, tuple(out))


@type_rule("pad")
def _pad(x: Type, value: Type, *, low: Shape, high: Shape, interior: tuple[int, ...]) -> Type:
    dtype, shape = _tensor(x)
    if _tensor(value) != (dtype, ()):
        raise TypeMismatchError(f"expected a scalar of the element type of {x} for padding, got {value}.")
    out: list[Size] = []
    for size, before, after, between in zip(shape, low, high, interior, strict=True):
        padded = size + before + after
        if between:
            padded = padded + dim_max(size - 1, 0) * between
        if exceeds(0, padded):
            raise ShapeError(f"padding of {before} and {after} removes more than all {size} elements.")
        out.append(padded)
    return TensorType(dtype, tuple(out))


@type_rule("concat")
def _concat(*xs: Type, axis: int) -> Type:
    dtype, first = _tensor(xs[0])
    _axis(axis, len(first))
    total: Size = 0
    for x in xs:
        other, shape = _tensor(x)
        if other != dtype:
            raise TypeMismatchError(f"concat needs equal element types, got {xs[0]} and {x}.")
        if len(shape) != len(first) or not all(
            same_size(a, b) for i, (a, b) in enumerate(zip(first, shape, strict=True)) if i != axis
        ):
            raise ShapeError(f"{xs[0]} and {x} differ outside of axis {axis} and cannot be concatenated.")
        total = total + shape[axis]
    return TensorType(dtype, (*first[:axis], total, *first[axis + 1 :]))


def _index_vectors(x: Shape, indices: Type, batch: int) -> tuple[Shape, int]:
    dtype, shape = _tensor(indices)
    if not t.is_integer(dtype):
        raise TypeMismatchError(f"expected integer indices, got {dtype.name.lower()}.")
    if len(shape) <= batch or not isinstance(shape[-1], int):
        raise ShapeError(f"expected index vectors of known length after {batch} batch axes, got {indices}.")
    if shape[-1] > len(x) - batch:
        raise ShapeError(f"index vectors of {shape[-1]} exceed the rank {len(x)} with {batch} batch axes.")
    if not all(same_size(a, b) for a, b in zip(x[:batch], shape[:batch], strict=True)):
        raise ShapeError(f"the first {batch} axes of {shape_text(x)} and of {indices} differ.")
    return shape, shape[-1]


@type_rule("gather")
def _gather(x: Type, indices: Type, *, batch: int) -> Type:
    dtype, shape = _tensor(x)
    at, depth = _index_vectors(shape, indices, batch)
    if (pairs := assumed_pairs.get()) is not None:
        # Compiled code reads position 0 in place of an index out of range: an axis that is read has a position 0.
        least = dim_min(1, product(at[:-1]))
        for size in shape[batch : batch + depth]:
            if exceeds(least, size):
                pairs[size, least] = None  # Sizes that are proven to differ: no run is valid.
    return TensorType(dtype, (*at[:-1], *shape[batch + depth :]))


@type_rule("scatter")
def _scatter(x: Type, indices: Type, updates: Type, *, kind: str, batch: int) -> Type:
    dtype, shape = _tensor(x)
    at, depth = _index_vectors(shape, indices, batch)
    if kind != "set":
        _accept(f"scatter {kind}", dtype, _NUMBERS if kind in ("add", "mul") else _REAL | {t.BOOL})
    if _tensor(updates)[0] != dtype:
        raise TypeMismatchError(f"expected updates of the element type of {x}, got {updates}.")
    require_same_shapes("updates and the updated elements", (*at[:-1], *shape[batch + depth :]), _shape(updates))
    return x


@type_rule("reverse")
def _reverse(x: Type, *, axes: tuple[int, ...]) -> Type:
    for axis in axes:
        _axis(axis, len(_shape(x)))
    return x


# Sources.


@type_rule("iota")
def _iota(*, shape: Shape, axis: int, dtype: DType) -> Type:
    _axis(axis, len(shape))
    require_sizes(shape)
    return TensorType(dtype, shape)


@type_rule("dims")
def _dims(*, sizes: Shape, shape: tuple[int, ...], dtype: DType) -> Type:
    return TensorType(dtype, shape)


@type_rule("bind")
def _bind(x: Type, *, element: tuple[int, ...], symbol: str) -> Type:
    if not t.is_integer(_tensor(x)[0]):
        raise TypeMismatchError(f"expected an integer for a size, got {x}.")
    return TensorType(t.INT64, ())


@type_rule("constant")
def _constant(*, value: Any) -> Type:
    raise AssertionError("constants are made by `constant`, which knows their type")


@type_rule("input")
def _input(*, level: int, position: int, type: Type) -> Type:
    return type


# Order.


@type_rule("sort")
def _sort(x: Type, *, axis: int, descending: bool) -> Type:
    dtype, shape = _tensor(x)
    _accept("sort", dtype, _REAL | {t.BOOL, t.STRING})
    _axis(axis, len(shape))
    return TensorType(t.INT64, shape)


@type_rule("top_k")
def _top_k(x: Type, *, axis: int, k: Size, largest: bool) -> Type:
    dtype, shape = _tensor(x)
    _accept("top_k", dtype, _REAL)
    _axis(axis, len(shape))
    if exceeds(0, k) or exceeds(k, shape[axis]):
        raise ShapeError(f"expected 0 ≤ k ≤ {shape[axis]}, got {k}.")
    return TensorType(t.INT64, (*shape[:axis], k, *shape[axis + 1 :]))


@type_rule("scan")
def _scan(x: Type, *, kind: str, axis: int) -> Type:
    dtype, shape = _tensor(x)
    _accept("scan", dtype, _NUMBERS)
    _axis(axis, len(shape))
    return x


# Special.


@type_rule("fft")
def _fft(x: Type, *, inverse: bool) -> Type:
    _accept("fft", _tensor(x)[0], frozenset({t.COMPLEX64, t.COMPLEX128}))
    _axis(0, len(_shape(x)))
    return x


@type_rule("determinant")
def _determinant(x: Type) -> Type:
    dtype, shape = _tensor(x)
    _accept("determinant", dtype, _INEXACT)
    if len(shape) < 2 or not same_size(shape[-1], shape[-2]):
        raise ShapeError(f"expected square matrices for a determinant, got {x}.")
    return TensorType(dtype, shape[:-2])


@type_rule("random")
def _random(*, kind: str, shape: Shape, dtype: DType, seed: float | None, identity: str) -> Type:
    require_sizes(shape)
    if seed is not None and not math.isfinite(seed):
        raise ShapeError(f"expected a finite seed, got {seed}.", remedy="Give a finite number.")
    return TensorType(dtype, shape)


@type_rule("stop_gradient")
def _stop_gradient(x: Type) -> Type:
    return x


# Control.


def _check_arguments(function: Function, operands: Sequence[Type]) -> None:
    if len(function.inputs) != len(operands):
        raise ShapeError(f"expected {len(function.inputs)} values for {function.name}, got {len(operands)}.")
    for declared, operand in zip(function.inputs, operands, strict=True):
        if not same_type(declared.type, operand):
            raise TypeMismatchError(f"expected {declared.type} for {function.name}, got {operand}.")


def _check_results(name: str, results: Sequence[Type], actual: Sequence[Type]) -> None:
    if len(results) != len(actual) or not all(map(same_type, results, actual)):
        raise TypeMismatchError(f"expected {TupleType(tuple(results))} from {name}, got {TupleType(tuple(actual))}.")


@type_rule("cond")
def _cond(
    condition: Type,
    *operands: Type,
    then: Function,
    otherwise: Function,
    results: tuple[Type, ...],
    symbols: tuple[str, ...],
) -> Type:
    if _tensor(condition) != (t.BOOL, ()):
        raise TypeMismatchError(f"expected a boolean scalar for the condition, got {condition}.")
    for branch in (then, otherwise):
        _check_arguments(branch, operands)
        _check_results(f"the branch {branch.name}", results, [value.type for value in branch.results])
    return TupleType(results)


def _again(before: Type, during: Type, after: Type) -> Type:
    """Return the operand type of the next iteration: a size that is the body's own symbol may change."""
    if not all(isinstance(type, TensorType) for type in (before, during, after)):
        return before
    (dtype, first), (_, own), (_, final) = map(_tensor, (before, during, after))
    if not len(first) == len(own) == len(final):
        return before
    return TensorType(dtype, tuple(b if b == d else a for b, d, a in zip(first, own, final, strict=True)))


@type_rule("loop")
def _loop(
    count: Type,
    go: Type,
    *operands: Type,
    body: Function,
    carried: int,
    results: tuple[Type, ...],
    symbols: tuple[str, ...],
) -> Type:
    if _tensor(count) != (t.INT64, ()) or _tensor(go) != (t.BOOL, ()):
        raise TypeMismatchError(f"expected an int64 count and a boolean condition, got {count} and {go}.")
    _check_arguments(body, (count, go, *operands))
    again, *after = [value.type for value in body.results]
    during = [value.type for value in body.inputs[2 : 2 + carried]]
    expected = [_again(*types) for types in zip(operands[:carried], during, after[:carried], strict=True)]
    _check_results("the body of a loop", [go, *expected], [again, *after[:carried]])
    _check_results("a loop", results[:carried], after[:carried])
    for stacked, row in zip(results[carried:], after[carried:], strict=True):
        if _tensor(stacked)[0] != _tensor(row)[0] or len(_shape(stacked)) != len(_shape(row)) + 1:
            raise TypeMismatchError(f"expected a stack of {row} from a loop, got {stacked}.")
    return TupleType(results)


@type_rule("call")
def _call(*operands: Type, function: Function) -> Type:
    _check_arguments(function, operands)
    return TupleType(tuple(value.type for value in function.results))


@type_rule("host")
def _host(
    *operands: Type, function: Any, attributes: tuple[tuple[str, Any], ...], symbols: tuple[str, ...] = ()
) -> Type:
    types: tuple[Type, ...] = function.type_rule(*operands, **dict(attributes))
    return TupleType(types)


@type_rule("get")
def _get(x: Type, *, index: int) -> Type:
    if not isinstance(x, TupleType):
        raise TypeMismatchError(f"expected a tuple, got {x}.")
    return x.results[index]
