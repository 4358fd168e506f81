"""Axis collapsing: test if one loop can run over two neighbouring axes of a value and its operands.

The collapsed loop leaves the outer axis at 0 and lets the inner index exceed the inner size: in row-major memory that
index has the same offset.
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


def visit_inlined(value: Value, memory: Callable[[Value], Memory | None]) -> Iterator[tuple[Value, Memory | None]]:
    """Yield the values that a reader of ``value`` computes or loads, each with its location in memory.

    The location of a computed value is None; operands of a loaded value are not visited.
    """
    waiting, seen = [value], {value}
    while waiting:
        current = waiting.pop()
        location = memory(current)
        yield current, location
        new = [operand for operand in current.operands if location is None and operand not in seen]
        seen.update(new)
        waiting += new


def can_collapse(
    value: Value,
    axis: int,
    memory: Callable[[Value], Memory | None],
    bound: Container[Value],
    shape: tuple[Size, ...] | None = None,
) -> bool:
    """Return True if one loop can run over ``axis`` and the next axis of a value.

    Args:
        value: The value that a kernel reads.
        axis: The outer axis.
        memory: Returns the location of a value in memory, or None.
        bound: Values that the kernel computes in its own way, with collapsed axes.
        shape: A shape to which ``value`` is reshaped and which ``axis`` counts in; None for the shape of ``value``.
    """
    known: dict[tuple[Value, int, tuple[Size, ...] | None], bool] = {}

    def test(operand: Value, own_axis: int) -> bool:
        return collapses(operand, own_axis, None)

    def collapses(value: Value, axis: int, shape: tuple[Size, ...] | None) -> bool:
        # Operands with several readers are tested once: chains of ``x * x`` have exponentially many paths.
        key = value, axis, shape
        if key not in known:
            known[key] = decide(value, axis, shape)
        return known[key]

    def decide(value: Value, axis: int, shape: tuple[Size, ...] | None) -> bool:
        if value not in bound:
            location = memory(value)
            if location is not None and (shape is None or not location.block):
                return not location.block or axis >= 2
            if location is None and is_elementwise(value):
                return all(collapses(operand, axis, shape) for operand in value.operands)
            if location is None and value.op == "reshape":
                return collapses(value.operands[0], axis, shape_of(value) if shape is None else shape)
        if shape is not None:
            return repeats_one(value) or _can_collapse_reshaped(value, shape, axis, test)
        if value in bound:
            return True
        rule = _RULES.get(value.op)
        return rule is not None and rule(value, axis, test)

    return collapses(value, axis, shape)


_Test = Callable[[Value, int], bool]


def _broadcast(value: Value, axis: int, test: _Test) -> bool:
    source = value.operands[0]
    sizes = list(zip(shape_of(source)[axis : axis + 2], shape_of(value)[axis : axis + 2], strict=True))
    if any(may_repeat(size, wide) for size, wide in sizes):
        return False
    repeated = [size == 1 and wide != 1 for size, wide in sizes]
    return all(repeated) or (not any(repeated) and test(source, axis))


def _permute(value: Value, axis: int, test: _Test) -> bool:
    first, second = value.params["axes"][axis : axis + 2]
    return bool(second == first + 1) and test(value.operands[0], first)


def _can_collapse_reshaped(value: Value, shape: tuple[Size, ...], axis: int, test: _Test) -> bool:
    """Return True if two axes of ``shape`` can be one loop over a value that is reshaped to ``shape``."""
    pairs = _pair_axes(shape, shape_of(value))
    first, second = ({own for member, own in pairs if member == target} for target in (axis, axis + 1))
    if len(first) != 1 or len(second) != 1:
        return False
    if first == second:
        # Both axes are factors of one axis of the value: its index is computed from both.
        return True
    (outer,), (inner,) = first, second
    alone = all(own not in (outer, inner) or member in (axis, axis + 1) for member, own in pairs)
    return inner == outer + 1 and alone and test(value, outer)


def _pair_axes(shape: tuple[Size, ...], source: tuple[Size, ...]) -> list[tuple[int, int]]:
    """Return the pairs of axes of two shapes of equal element counts whose indices depend on each other."""
    pairs: list[tuple[int, int]] = []
    for mine, theirs in factor_groups(shape, source):
        factors = common_factors([shape[axis] for axis in mine], [source[axis] for axis in theirs])
        if factors is None:
            pairs += itertools.product(mine, theirs)
        else:
            of_mine, of_theirs = (
                [(axis, size) for axis, sizes in zip(axes, axis_factors, strict=True) for size in sizes]
                for axes, axis_factors in zip((mine, theirs), factors, strict=True)
            )
            pairs += [(axis, own) for (axis, size), (own, _) in zip(of_mine, of_theirs, strict=True) if size != 1]
    return pairs


def find_axes_in_last(shape: tuple[Size, ...], source: tuple[Size, ...]) -> list[int]:
    """Return the axes of ``source`` that the last axis of ``shape`` covers, wholly or in part.

    Both shapes have the same number of elements.
    """
    last = len(shape) - 1
    return sorted({own for axis, own in _pair_axes(shape, source) if axis == last and source[own] != 1})


def _slice(value: Value, axis: int, test: _Test) -> bool:
    source = value.operands[0]
    starts, steps = value.params["starts"], value.params["strides"]
    full = all(starts[i] == 0 and steps[i] == 1 and shape_of(value)[i] == shape_of(source)[i] for i in (axis, axis + 1))
    return full and test(source, axis)


def _reverse(value: Value, axis: int, test: _Test) -> bool:
    reversed_axes = value.params["axes"]
    return axis not in reversed_axes and axis + 1 not in reversed_axes and test(value.operands[0], axis)


def _gather(value: Value, axis: int, test: _Test) -> bool:
    source, indices = value.operands
    batch, index_axes = value.params["batch"], len(shape_of(indices)) - 1
    if axis >= index_axes:
        depth = shape_of(indices)[-1]
        assert isinstance(depth, int)
        return test(source, axis - index_axes + batch + depth)
    return False


_RULES: dict[str, Callable[[Value, int, _Test], bool]] = {
    "constant": lambda value, axis, test: True,
    "dims": lambda value, axis, test: True,
    "stop_gradient": lambda value, axis, test: test(value.operands[0], axis),
    "iota": lambda value, axis, test: value.params["axis"] not in (axis, axis + 1),
    "broadcast": _broadcast,
    "permute": _permute,
    "slice": _slice,
    "reverse": _reverse,
    "gather": _gather,
}
