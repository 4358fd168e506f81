"""The rules of tensor-parallel parts: an axis of a result whose equal blocks follow from blocks of operands.

A value is *divided* along an axis of ``ways * n`` elements if way ``i`` has the elements from ``i * n`` on, ``n`` of
them. A rule states for a primitive of divided operands which axis of the result is divided, and along which axes all
operands are divided then; or that the results of all ways, added, are the result. Each follows from the definition of
the primitive alone, for all sizes. A primitive without a rule needs whole operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sardonyx.core.dim import Size, product
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.ir.types import TensorType, is_float

ELEMENTWISE = frozenset(name for name, row in PRIMITIVES.items() if row.kind in ("unary", "binary", "ternary"))
"""Functions of each element by itself."""

Axes = tuple[int | None, ...]
"""The divided axis of each operand; None for a whole one."""


class Division(NamedTuple):
    """The consequence of a rule.

    Attributes:
        operands: The axes along which the operands are divided.
        axis: The divided axis of the result; None if the results of all ways are added.
    """

    operands: Axes
    axis: int | None


Rule = Callable[[Value, Axes, int], "Division | None"]


def shape_of(value: Value) -> tuple[Size, ...]:
    """Return the sizes of a tensor; none for other values."""
    return tuple(value.type.shape or ()) if isinstance(value.type, TensorType) else ()


def is_divisible(value: Value, axis: int, ways: int) -> bool:
    """Return True if an axis has a known size that is a multiple of the ways."""
    return _has_shares(shape_of(value)[axis], ways)


def _has_shares(size: Size, ways: int) -> bool:
    return isinstance(size, int) and size >= ways and size % ways == 0


def own_axes(product: Value, side: int) -> list[int]:
    """Return the axes of one operand of a ``contract`` that the other operand lacks."""
    used = {*(pair[side] for pair in product.params["batch"]), *product.params["right" if side else "left"]}
    return [axis for axis in range(len(shape_of(product.operands[side]))) if axis not in used]


def moved_axis(old: Sequence[Size], axis: int, new: Sequence[Size], ways: int) -> int | None:
    """Return the axis of a reshaped tensor whose blocks are those of an axis before; None without one.

    Both have equally many rows ahead of the axis, and in each row as many elements after it, in equal order: the first
    n-th of the row is the first n-th of either axis.
    """
    ahead = product(old[:axis])
    for other, size in enumerate(new):
        if product(new[:other]) == ahead and _has_shares(size, ways):
            return other
    return None


def divide(value: Value, axes: Axes, ways: int) -> Division | None:
    """Return the division of a primitive some of whose operands are divided; None without a rule."""
    rule = RULES.get(value.op)
    division = None if rule is None else rule(value, axes, ways)
    if division is None:
        return None
    for operand, axis in zip(value.operands, division.operands, strict=True):
        if axis is not None and not is_divisible(operand, axis, ways):
            return None
    return division


def _elementwise(value: Value, axes: Axes, ways: int) -> Division | None:
    divided = {axis for axis in axes if axis is not None}
    axis = divided.pop()
    return Division((axis,) * len(axes), axis) if not divided else None


def _permute(value: Value, axes: Axes, ways: int) -> Division | None:
    return Division(axes, value.params["axes"].index(axes[0]))


def _reshape(value: Value, axes: Axes, ways: int) -> Division | None:
    assert axes[0] is not None
    axis = moved_axis(shape_of(value.operands[0]), axes[0], shape_of(value), ways)
    return None if axis is None else Division(axes, axis)


def _same_axis(value: Value, axes: Axes, ways: int) -> Division | None:
    """An axis that the primitive does not move, change or read along."""
    return Division(axes, axes[0])


def _reduce(value: Value, axes: Axes, ways: int) -> Division | None:
    axis, gone = axes[0], value.params["axes"]
    assert axis is not None
    # A sum over a divided axis would be exchanged alone, and again for each mean and variance: the whole is cheaper.
    return None if axis in gone else Division(axes, axis - sum(one < axis for one in gone))


def _contract(value: Value, axes: Axes, ways: int) -> Division | None:
    params = value.params
    pairs = {0: dict(params["batch"]), 1: {right: left for left, right in params["batch"]}}
    summed = {0: dict(zip(params["left"], params["right"], strict=True)),
              1: dict(zip(params["right"], params["left"], strict=True))}  # fmt: skip
    side = 0 if axes[0] is not None else 1
    axis, other = axes[side], axes[1 - side]
    assert axis is not None
    if axis in pairs[side] or axis in summed[side]:
        partner = pairs[side].get(axis, summed[side].get(axis))
        if other not in (None, partner):
            return None
        operands = (axis, partner) if side == 0 else (partner, axis)
        if axis in summed[side]:
            return Division(operands, None) if _is_sum(value) else None
        return Division(operands, [pair[side] for pair in params["batch"]].index(axis))
    if other is not None:
        return None
    ahead = len(own_axes(value, 0)) if side else 0
    return Division(axes, len(params["batch"]) + ahead + own_axes(value, side).index(axis))


def _convolve(value: Value, axes: Axes, ways: int) -> Division | None:
    """[G, N, C, *spatial] with [G, M, C, *kernel] to [G, N, M, *spatial]."""
    image, weights = axes
    if (image, weights) in ((0, None), (None, 0), (0, 0)):
        return Division((0, 0), 0)
    if (image, weights) in ((1, None), (None, 1)):
        return Division(axes, 1 if image is not None else 2)
    if (image, weights) in ((2, None), (None, 2), (2, 2)) and _is_sum(value):
        return Division((2, 2), None)
    return None


def _is_sum(value: Value) -> bool:
    """Return True if the results of ways may be added: floats of 32 bits and more.

    Integers would have to wrap alike in every engine, and parts in 16 bits are rounded before they are added.
    """
    return isinstance(value.type, TensorType) and is_float(value.type.dtype) and not is_narrow(value)


def is_narrow(value: Value) -> bool:
    """Return True for floats of fewer than 32 bits, of which two right results differ by more than the proof allows."""
    return isinstance(value.type, TensorType) and is_float(value.type.dtype) and value.type.dtype.bitwidth < 32


def _reduce_window(value: Value, axes: Axes, ways: int) -> Division | None:
    assert axes[0] is not None
    is_outside = axes[0] < len(shape_of(value)) - len(value.params["window"])
    return Division(axes, axes[0]) if is_outside else None


def _broadcast(value: Value, axes: Axes, ways: int) -> Division | None:
    return Division(axes, axes[0])


def _slice(value: Value, axes: Axes, ways: int) -> Division | None:
    axis, params = axes[0], value.params
    assert axis is not None
    size = shape_of(value.operands[0])[axis]
    is_whole = (params["starts"][axis], params["limits"][axis], params["strides"][axis]) == (0, size, 1)
    return Division(axes, axis) if is_whole else None


def _pad(value: Value, axes: Axes, ways: int) -> Division | None:
    axis, params = axes[0], value.params
    if axis is None or axes[1] is not None:
        return None
    is_whole = all(params[name][axis] == 0 for name in ("low", "high", "interior"))
    return Division(axes, axis) if is_whole else None


def _gather(value: Value, axes: Axes, ways: int) -> Division | None:
    """Rows at index vectors: an axis after the indexed ones stays after those of the indices."""
    axis, (source, indices), batch = axes[0], value.operands, value.params["batch"]
    indexed = shape_of(indices)[-1]
    if axis is None or axes[1] is not None or not isinstance(indexed, int) or axis < batch + indexed:
        return None
    return Division(axes, axis - len(shape_of(source)) + len(shape_of(value)))


def _concat(value: Value, axes: Axes, ways: int) -> Division | None:
    division = _elementwise(value, axes, ways)
    return None if division is None or division.axis == value.params["axis"] else division


def _along_another(name: str) -> Rule:
    def rule(value: Value, axes: Axes, ways: int) -> Division | None:
        read = value.params[name]
        return None if axes[0] in (read if isinstance(read, tuple) else (read,)) else _same_axis(value, axes, ways)

    return rule


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    "convert": _same_axis, "stop_gradient": _same_axis,
    "permute": _permute, "reshape": _reshape, "broadcast": _broadcast, "slice": _slice, "pad": _pad, "concat": _concat,
    "reduce": _reduce, "contract": _contract, "convolve": _convolve, "reduce_window": _reduce_window,
    "gather": _gather, "reverse": _along_another("axes"), "scan": _along_another("axis"),
    "sort": _along_another("axis"),
}  # fmt: skip
"""The rule of each primitive that has one."""


def local_params(value: Value, axis: int | None, ways: int) -> dict[str, Any]:
    """Return the parameters of a primitive on the blocks of one way."""
    params = dict(value.params)
    if value.op in ("reshape", "broadcast") and axis is not None:
        params["shape"] = shared(params["shape"], axis, ways)
    if value.op == "slice" and axis is not None:
        params["limits"] = shared(params["limits"], axis, ways)
    return params


def shared(shape: Sequence[Size], axis: int, ways: int) -> tuple[Size, ...]:
    """Return a shape whose axis has the elements of one way."""
    size = shape[axis]
    assert isinstance(size, int)
    return (*shape[:axis], size // ways, *shape[axis + 1 :])
