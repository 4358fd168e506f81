"""Which neighbouring axes of a value everything that computes it walks alike, so that one loop can run over both.

Such a loop leaves the outer axis at 0 and lets the inner one run past its end: in row-major memory that is the same
place.
"""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.compiler.reader import Memory, is_elementwise
from sardonyx.compiler.views import factor_groups, may_repeat, shape_of
from sardonyx.core.graph import Value


def walked_alike(
    value: Value, axis: int, memory: Callable[[Value], Memory | None], bound: Callable[[Value, int], bool]
) -> bool:
    """Whether ``axis`` and the next one of a value can be one loop.

    Args:
        value: What is read.
        axis: The outer axis.
        memory: Where a value is, for those in memory.
        bound: Of values that the kernel computes in its own way: whether it walks the two axes alike there; raises
            ``KeyError`` for other values.
    """
    try:
        return bound(value, axis)
    except KeyError:
        pass
    found = memory(value)
    if found is not None:
        return not found.block or axis >= 2
    if is_elementwise(value):
        return all(walked_alike(operand, axis, memory, bound) for operand in value.operands)
    rule = _RULES.get(value.op)
    return rule is not None and rule(value, axis, lambda operand, at: walked_alike(operand, at, memory, bound))


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


def _reshape(value: Value, axis: int, walk: _Walk) -> bool:
    source = value.operands[0]
    groups = factor_groups(shape_of(value), shape_of(source))
    first = next((theirs for mine, theirs in groups if axis in mine), [])
    second = next((theirs for mine, theirs in groups if axis + 1 in mine), [])
    together = next((mine for mine, _ in groups if axis in mine and axis + 1 in mine), None)
    if together is not None:
        # Two axes that become one: its place is counted from both.
        return len(first) == 1 and together == [axis, axis + 1]
    if len(first) == len(second) == 1 and second[0] == first[0] + 1:
        alone = all(len(mine) == 1 for mine, _ in groups if axis in mine or axis + 1 in mine)
        return alone and walk(source, first[0])
    return False


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
    "reshape": _reshape,
    "slice": _slice,
    "reverse": _reverse,
    "gather": _gather,
}
