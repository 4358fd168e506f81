"""Slices and splits of axes, moved from products into their weights, so that weights can be divided by heads.

``reshape(x @ w + b, [..., heads, size])`` is ``x @ reshape(w) + reshape(b)``, and a slice of the columns of a product
is the product with these columns, also after its rows were reshaped. A product with other readers, or whose slices
overlap, is left as it is: each reader would have weights of its own.

A product with a vocabulary, whose size no number of ways divides, gets columns of zeros that a slice removes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from sardonyx.compiler.analysis.constant_values import evaluate_closed, is_closed
from sardonyx.core.dim import Size, product
from sardonyx.core.eval.tensor import apply, constant
from sardonyx.core.ir.graph import CLOSED, Function, Value
from sardonyx.core.ir.types import TensorType
from sardonyx.core.transform.rewriting import Match, RuleSet
from sardonyx.core.transform.simplify import simplify
from sardonyx.distributed.axis_rules import ELEMENTWISE, is_divisible, own_axes, shape_of

_ROUNDS = 8
_FOLDED = (*ELEMENTWISE, "convert", "permute", "reshape", "broadcast", "slice", "concat", "pad", "reverse")

WEIGHTWARD = RuleSet("move changes of shape into weights")

SHARES = RuleSet("widen weights to a multiple of the ways")

_WIDENED = 8192
"""Columns from which a product is widened: vocabularies, to which at most 63 columns add less than a hundredth."""


class _Facts(NamedTuple):
    """The context of a pass.

    Attributes:
        readers: The readers of each value.
        constants: The changed weights, by primitive, operands and parameters: products of equal weights share them.
    """

    readers: Mapping[Value, Sequence[Value | None]]
    constants: dict[Any, Value]


def _readers(function: Function) -> dict[Value, list[Value | None]]:
    """Return the readers of each value, once for each operand; the function is a reader (None) of its results."""
    readers: dict[Value, list[Value | None]] = {value: [] for value in function.values}
    for value in function.values:
        for operand in value.operands:
            readers[operand].append(value)
    for value in function.results:
        readers[value].append(None)
    return readers


def with_free_weights(function: Function) -> Function:
    """Return a function whose weights are constants, with slices and splits of axes in the weights."""
    constants: dict[Any, Value] = {}
    for _ in range(_ROUNDS):
        rewritten = simplify(WEIGHTWARD.apply(function, _Facts(_readers(function), constants)))
        if rewritten.results == function.results and rewritten.inputs == function.inputs:
            break
        function = rewritten
    return function


def with_shares(function: Function, ways: int) -> Function:
    """Return a function whose wide weights have equal shares for all ways."""
    return simplify(SHARES.apply(function, ways))


@SHARES.rule("contract")
def _widened(m: Match, first: Value, second: Value, **params: Any) -> Value | None:
    """Add columns of zeros, and remove the columns of the result."""
    side = 1 if second.is_constant else 0
    x, weights = (first, second) if side else (second, first)
    if not weights.is_constant or x.level == CLOSED:
        return None
    own = own_axes(m.value, side)
    wide = [axis for axis in own if weights.known.shape[axis] >= _WIDENED]
    if not wide or any(is_divisible(weights, axis, m.context) for axis in own):
        return None
    array = np.asarray(weights.known)
    zeros = list(array.shape)
    zeros[wide[0]] = -array.shape[wide[0]] % m.context
    extended = constant(np.concatenate([array, np.zeros(zeros, array.dtype)], wide[0]), weights.type.dtype)  # type: ignore[union-attr]
    result = shape_of(m.value)
    ends = [(0, size, 1) for size in result]
    low, high, steps = zip(*ends, strict=True)
    wider = apply("contract", *((x, extended) if side else (extended, x)), **params)
    return apply("slice", wider, starts=low, limits=high, strides=steps)


@WEIGHTWARD.rule(*_FOLDED)
def _known(m: Match, *operands: Value, **params: Any) -> Value | None:
    """Compute what depends on constants alone."""
    if not operands or not all(one.is_constant for one in operands):
        return None
    if not isinstance(m.type, TensorType) or m.op == "broadcast":
        return None
    value = apply(m.op, *operands, **params)
    if not is_closed(value):
        return None
    constants: dict[Any, Value] = m.context.constants
    key = m.op, operands, m.type, tuple(params.items())
    if key not in constants:
        constants[key] = constant(evaluate_closed(value), m.type.dtype)
    return constants[key]


@WEIGHTWARD.rule("slice")
def _sliced(m: Match, x: Value, *, starts: Any, limits: Any, strides: Any) -> Value | None:
    cut = _range(m.value)
    if cut is None or not _is_free(m):
        return None
    axis, start, limit = cut

    def change(value: Value, axis: int) -> Value:
        shape = shape_of(value)
        low, high, steps = [0] * len(shape), list(shape), (1,) * len(shape)
        low[axis], high[axis] = start, limit
        return apply("slice", value, starts=tuple(low), limits=tuple(high), strides=steps)

    return _moved(x, axis, change, (limit - start,))


@WEIGHTWARD.rule("slice")
def _sliced_rows(m: Match, x: Value, *, starts: Any, limits: Any, strides: Any) -> Value | None:
    """Slice the columns of a product before its rows are reshaped."""
    cut, before = _range(m.value), m.value.operands[0]
    if cut is None or x.op != "reshape" or before.op != "reshape":
        return None
    axis, start, limit = cut
    source = x.operands[0]
    old, new = shape_of(source), shape_of(x)
    if axis != len(new) - 1 or not old or old[-1] != new[-1] or len(m.context.readers[before.operands[0]]) != 1:
        return None
    if not _is_free(m) or not _reaches_weights(source, len(old) - 1):
        return None
    ends = [(0, size, 1) for size in old[:-1]] + [(start, limit, 1)]
    low, high, steps = zip(*ends, strict=True)
    columns = apply("slice", source, starts=low, limits=high, strides=steps)
    return apply("reshape", columns, shape=(*new[:-1], limit - start))


@WEIGHTWARD.rule("reshape")
def _split_axis(m: Match, x: Value, *, shape: Any) -> Value | None:
    """Split the last axis, then join or split the axes ahead."""
    old = shape_of(x)
    if not old or not isinstance(old[-1], int) or not _is_free(m):
        return None
    for first in range(len(shape) - 1):
        parts = tuple(shape[first:])
        if all(isinstance(size, int) for size in parts) and product(shape[:first]) == product(old[:-1]):
            break
    else:
        return None
    if parts.count(1) or len(parts) < 2:
        return None

    def change(value: Value, axis: int) -> Value:
        sizes = shape_of(value)
        return apply("reshape", value, shape=(*sizes[:axis], *parts, *sizes[axis + 1 :]))

    moved = _moved(x, len(old) - 1, change, parts)
    return None if moved is None else apply("reshape", moved, shape=shape)


def _range(value: Value) -> tuple[int, int, int] | None:
    """Return the axis, the first element and the limit of a slice along one axis; None for others."""
    if value.op != "slice":
        return None
    starts, limits, strides = (value.params[name] for name in ("starts", "limits", "strides"))
    sizes = shape_of(value.operands[0])
    cut = [axis for axis, size in enumerate(sizes) if (starts[axis], limits[axis], strides[axis]) != (0, size, 1)]
    if len(cut) != 1 or strides[cut[0]] != 1 or not all(isinstance(n, int) for n in (starts[cut[0]], limits[cut[0]])):
        return None
    return cut[0], starts[cut[0]], limits[cut[0]]


def _is_free(m: Match) -> bool:
    """Return True if a change of the source copies no weights: it has one reader, or disjoint slices along one axis."""
    source, readers = m.value.operands[0], m.context.readers
    if len(readers[source]) != 1:
        ranges = [None if reader is None else _range(reader) for reader in readers[source]]
        known = sorted(one for one in ranges if one is not None)
        if len(known) < len(ranges) or any(a[0] != b[0] or a[2] > b[1] for a, b in pairwise(known)):
            return False
    while source.op in ELEMENTWISE:
        open_ = [one for one in source.operands if one.level != CLOSED]
        if len(open_) != 1 or len(readers[open_[0]]) != 1:
            return False
        source = open_[0]
    return True


Change = Callable[[Value, int], Value]


def _moved(x: Value, axis: int, change: Change, parts: tuple[int, ...]) -> Value | None:
    """Return a value whose axis is changed to ``parts``, computed from changed operands; None if there is no way."""
    if not _reaches_weights(x, axis):
        return None
    if x.op == "contract":
        return _moved_into_product(x, axis, change, len(parts))
    return apply(x.op, *(_changed(one, axis, change, parts) for one in x.operands), **x.params)


def _reaches_weights(x: Value, axis: int) -> bool:
    """Return True if the axis is one of weights, through functions of each element by itself."""
    while x.op in ELEMENTWISE:
        open_ = [one for one in x.operands if one.level != CLOSED]
        if len(open_) != 1:
            return False
        x = open_[0]
    if x.op != "contract" or not x.operands[1].is_constant or x.operands[0].level == CLOSED:
        return False
    return axis >= len(shape_of(x)) - len(own_axes(x, 1))


def _changed(value: Value, axis: int, change: Change, parts: tuple[int, ...]) -> Value:
    """Return an operand of an elementwise function, changed."""
    if value.op == "broadcast":
        source, shape = value.operands[0], shape_of(value)
        wide: tuple[Size, ...] = (*shape[:axis], *parts, *shape[axis + 1 :])
        if shape_of(source)[axis] == 1:
            sizes = shape_of(source)
            source = apply("reshape", source, shape=(*sizes[:axis], *(1,) * len(parts), *sizes[axis + 1 :]))
        else:
            source = change(source, axis)
        return apply("broadcast", source, shape=wide)
    return change(value, axis)


def _moved_into_product(x: Value, axis: int, change: Change, count: int) -> Value:
    left, weights = x.operands
    own = own_axes(x, 1)
    own_axis = own[axis - (len(shape_of(x)) - len(own))]

    def at(one: int) -> int:
        return one + count - 1 if one > own_axis else one

    params: Mapping[str, Any] = {
        **x.params,
        "batch": tuple((one, at(other)) for one, other in x.params["batch"]),
        "right": tuple(at(one) for one in x.params["right"]),
    }
    return apply("contract", left, change(weights, own_axis), **params)
