"""Slices and splits of axes, moved from products into their weights, so that weights can be divided by heads.

``reshape(x @ w + b, [..., heads, size])`` is ``x @ reshape(w) + reshape(b)``, and a slice of the columns of a product
is the product with these columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sardonyx.core.dim import Size, product
from sardonyx.core.eval.tensor import apply, constant
from sardonyx.core.ir.graph import CLOSED, Function, Value, symbols_in
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.ir.types import TensorType
from sardonyx.core.rules.numpy_rules import NUMPY_RULES
from sardonyx.core.transform.rewriting import Match, RuleSet
from sardonyx.core.transform.simplify import simplify
from sardonyx.distributed.axis_rules import shape_of

_ROUNDS = 8
_ELEMENTWISE = frozenset(name for name, row in PRIMITIVES.items() if row.kind in ("unary", "binary", "ternary"))
_FOLDED = (*_ELEMENTWISE, "convert", "permute", "reshape", "broadcast", "slice", "concat", "pad", "reverse")

WEIGHTWARD = RuleSet("move changes of shape into weights")


def with_free_weights(function: Function) -> Function:
    """Return a function whose weights are constants, with slices and splits of axes in the weights."""
    for _ in range(_ROUNDS):
        rewritten = simplify(WEIGHTWARD.apply(function))
        if rewritten.results == function.results and rewritten.inputs == function.inputs:
            break
        function = rewritten
    return function


@WEIGHTWARD.rule(*_FOLDED)
def _known(m: Match, *operands: Value, **params: Any) -> Value | None:
    """Compute what depends on constants alone."""
    if not operands or not all(one.is_constant for one in operands) or symbols_in((params, m.type)):
        return None
    if not isinstance(m.type, TensorType) or m.value.op == "broadcast":
        return None
    with np.errstate(all="ignore"):
        result = NUMPY_RULES[m.value.op](m.type, *[one.known for one in operands], **params)
    return constant(np.asarray(result), m.type.dtype)


@WEIGHTWARD.rule("slice")
def _sliced(m: Match, x: Value, *, starts: Any, limits: Any, strides: Any) -> Value | None:
    old = shape_of(x)
    cut = [axis for axis, size in enumerate(old) if (starts[axis], limits[axis], strides[axis]) != (0, size, 1)]
    if len(cut) != 1 or strides[cut[0]] != 1 or not all(isinstance(n, int) for n in (starts[cut[0]], limits[cut[0]])):
        return None
    start, limit = starts[cut[0]], limits[cut[0]]

    def change(value: Value, axis: int) -> Value:
        shape = shape_of(value)
        low, high, steps = [0] * len(shape), list(shape), (1,) * len(shape)
        low[axis], high[axis] = start, limit
        return apply("slice", value, starts=tuple(low), limits=tuple(high), strides=steps)

    return _moved(x, cut[0], change, (limit - start,))


@WEIGHTWARD.rule("reshape")
def _split_axis(m: Match, x: Value, *, shape: Any) -> Value | None:
    """Split the last axis, then join or split the axes ahead."""
    old = shape_of(x)
    if not old or not isinstance(old[-1], int):
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
    while x.op in _ELEMENTWISE:
        open_ = [one for one in x.operands if one.level != CLOSED]
        if len(open_) != 1:
            return False
        x = open_[0]
    if x.op != "contract" or not x.operands[1].is_constant or x.operands[0].level == CLOSED:
        return False
    return axis >= len(shape_of(x)) - len(_own_axes(x))


def _own_axes(x: Value) -> list[int]:
    used = {*(right for _, right in x.params["batch"]), *x.params["right"]}
    return [axis for axis in range(len(shape_of(x.operands[1]))) if axis not in used]


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
    own = _own_axes(x)
    own_axis = own[axis - (len(shape_of(x)) - len(own))]

    def at(one: int) -> int:
        return one + count - 1 if one > own_axis else one

    params: Mapping[str, Any] = {
        **x.params,
        "batch": tuple((one, at(other)) for one, other in x.params["batch"]),
        "right": tuple(at(one) for one in x.params["right"]),
    }
    return apply("contract", left, change(weights, own_axis), **params)
