"""Which neighbouring axes of a value everything that computes it walks alike, so that one loop can run over both.

Such a loop leaves the outer axis at 0 and lets the inner one run past its end: in row-major memory that is the same
place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterator

from sardonyx.compiler.analysis.primitive_traits import is_elementwise
from sardonyx.compiler.analysis.strided_views import (
    Memory,
    common_factors,
    factor_groups,
    may_repeat,
    repeats_one,
    shape_of,
)
from sardonyx.core.dim import Size
from sardonyx.core.ir.graph import Value


def fused(value: Value, memory: Callable[[Value], Memory | None]) -> Iterator[tuple[Value, Memory | None]]:
    """What a value is computed of where it is read, and what is read for it, with where that is in memory."""
    waiting, seen = [value], {value}
    while waiting:
        each = waiting.pop()
        found = memory(each)
        yield each, found
        new = [operand for operand in each.operands if found is None and operand not in seen]
        seen.update(new)
        waiting += new


def walked_alike(
    value: Value,
    axis: int,
    memory: Callable[[Value], Memory | None],
    bound: Container[Value],
    shape: tuple[Size, ...] | None = None,
) -> bool:
    """Whether ``axis`` and the next one of a value can be one loop.

    Args:
        value: What is read.
        axis: The outer axis.
        memory: Where a value is, for those in memory.
        bound: Values that the kernel computes in its own way, walking the two axes alike.
        shape: The sizes that it is reshaped to, of which ``axis`` is one; its own, if None.
    """

    def walk(operand: Value, at: int) -> bool:
        return walked_alike(operand, at, memory, bound)

    if value not in bound:
        found = memory(value)
        if found is not None and (shape is None or not found.block):
            return not found.block or axis >= 2
        if found is None and is_elementwise(value):
            return all(walked_alike(operand, axis, memory, bound, shape) for operand in value.operands)
        if found is None and value.op == "reshape":
            return walked_alike(value.operands[0], axis, memory, bound, shape_of(value) if shape is None else shape)
    if shape is not None:
        return repeats_one(value) or _reshaped(value, shape, axis, walk)
    if value in bound:
        return True
    rule = _RULES.get(value.op)
    return rule is not None and rule(value, axis, walk)


_Walk = Callable[[Value, int], bool]


def _broadcast(value: Value, axis: int, walk: _Walk) -> bool:
    source = value.operands[0]
    sizes = list(zip(shape_of(source)[axis : axis + 2], shape_of(value)[axis : axis + 2], strict=True))
    if any(may_repeat(size, wide) for size, wide in sizes):
        return False
    repeated = [size == 1 and wide != 1 for size, wide in sizes]
    return all(repeated) or (not any(repeated) and walk(source, axis))


def _permute(value: Value, axis: int, walk: _Walk) -> bool:
    first, second = value.params["axes"][axis : axis + 2]
    return bool(second == first + 1) and walk(value.operands[0], first)


def _reshaped(value: Value, shape: tuple[Size, ...], axis: int, walk: _Walk) -> bool:
    """Whether two axes of a shape that a value is reshaped to are walked alike along its own axes."""
    pairs = _paired(shape, shape_of(value))
    first, second = ({own for at, own in pairs if at == each} for each in (axis, axis + 1))
    if len(first) != 1 or len(second) != 1:
        return False
    if first == second:
        # Two axes that become one: its place is counted from both.
        return True
    (outer,), (inner,) = first, second
    alone = all(own not in (outer, inner) or at in (axis, axis + 1) for at, own in pairs)
    return inner == outer + 1 and alone and walk(value, outer)


def _paired(shape: tuple[Size, ...], source: tuple[Size, ...]) -> list[tuple[int, int]]:
    """The axes of a shape, each with every axis of another shape of the same elements that its place tells of."""
    found: list[tuple[int, int]] = []
    for mine, theirs in factor_groups(shape, source):
        factors = common_factors([shape[axis] for axis in mine], [source[axis] for axis in theirs])
        if factors is None:
            found += itertools.product(mine, theirs)
        else:
            of_mine, of_theirs = (
                [(axis, size) for axis, sizes in zip(axes, each, strict=True) for size in sizes]
                for axes, each in zip((mine, theirs), factors, strict=True)
            )
            found += [(at, own) for (at, size), (own, _) in zip(of_mine, of_theirs, strict=True) if size != 1]
    return found


def joined_axes(shape: tuple[Size, ...], source: tuple[Size, ...]) -> list[int]:
    """The axes of a shape of the same elements that the last axis of a shape consists of, wholly or in part."""
    return sorted({own for at, own in _paired(shape, source) if at == len(shape) - 1 and source[own] != 1})


def _slice(value: Value, axis: int, walk: _Walk) -> bool:
    source = value.operands[0]
    starts, steps = value.params["starts"], value.params["strides"]
    full = all(
        starts[at] == 0 and steps[at] == 1 and shape_of(value)[at] == shape_of(source)[at] for at in (axis, axis + 1)
    )
    return full and walk(source, axis)


def _reverse(value: Value, axis: int, walk: _Walk) -> bool:
    turned = value.params["axes"]
    return axis not in turned and axis + 1 not in turned and walk(value.operands[0], axis)


def _gather(value: Value, axis: int, walk: _Walk) -> bool:
    source, indices = value.operands
    batch, kept = value.params["batch"], len(shape_of(indices)) - 1
    if axis >= kept:
        depth = shape_of(indices)[-1]
        assert isinstance(depth, int)
        return walk(source, axis - kept + batch + depth)
    return False


_RULES: dict[str, Callable[[Value, int, _Walk], bool]] = {
    "constant": lambda value, axis, walk: True,
    "dims": lambda value, axis, walk: True,
    "stop_gradient": lambda value, axis, walk: walk(value.operands[0], axis),
    "iota": lambda value, axis, walk: value.params["axis"] not in (axis, axis + 1),
    "broadcast": _broadcast,
    "permute": _permute,
    "slice": _slice,
    "reverse": _reverse,
    "gather": _gather,
}
