"""Views: values that address the elements of another value in memory with an offset and strides.

Permutations, reversals, slices, broadcasts and most reshapes move no elements: the reader computes the addresses.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from sardonyx.core.dim import Dim, Size, divides, equal, floor_div
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import TensorType

MOVEMENTS = frozenset({"reshape", "permute", "broadcast", "slice", "reverse", "stop_gradient"})
"""Primitives that only change the indices of one operand's elements."""


@dataclass(frozen=True)
class View:
    """Elements of a value in memory, at ``offset + sum(index * stride)``.

    Attributes:
        base: The value in memory, row-major and contiguous.
        offset: Offset of the first element, in elements.
        shape: Sizes of the view.
        strides: For each axis, the elements between neighbours; 0 if the axis repeats.
    """

    base: Value
    offset: Size
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]


@dataclass
class Memory:
    """The location of a value in memory.

    Attributes:
        pointer: Pointer to the first element.
        dtype: Element type.
        shape: Sizes.
        block: Channels of a block for an image in blocked layout; 0 for row-major order.
    """

    pointer: str
    dtype: t.DType
    shape: tuple[Size, ...]
    block: int = 0


def shape_of(value: Value) -> tuple[Size, ...]:
    """Return the sizes of a tensor value."""
    assert isinstance(value.type, TensorType)
    assert value.type.shape is not None
    return value.type.shape


def may_repeat(size: Size, wide: Size) -> bool:
    """Return True if an axis of open size may turn out to be 1, and so be repeated to the size ``wide``."""
    return isinstance(size, Dim) and size != wide and not equal(size, wide)


def contiguous(shape: Sequence[Size]) -> tuple[Size, ...]:
    """Return the row-major strides of a shape."""
    strides: list[Size] = []
    step: Size = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def view(value: Value, stop: frozenset[Value] | set[Value] | dict[Value, object] = frozenset()) -> View:
    """Return a value as a view of the value from which movements derive it.

    Args:
        value: A tensor.
        stop: Values that are in memory anyway: the view ends there.

    Returns:
        The view; a view of ``value`` itself if no movement, or a movement that must copy, computes ``value``.
    """
    shape = shape_of(value)
    itself = View(value, 0, shape, contiguous(shape))
    if value in stop or value.op not in MOVEMENTS:
        return itself
    inner = view(value.operands[0], stop)
    params = value.params
    if value.op == "stop_gradient":
        return inner
    if value.op == "permute":
        axes = params["axes"]
        return View(inner.base, inner.offset, shape, tuple(inner.strides[axis] for axis in axes))
    if value.op == "broadcast":
        if any(may_repeat(size, wide) for size, wide in zip(inner.shape, shape, strict=True)):
            return itself
        strides = tuple(
            0 if size == 1 and wide != 1 else stride
            for size, wide, stride in zip(inner.shape, shape, inner.strides, strict=True)
        )
        return View(inner.base, inner.offset, shape, strides)
    if value.op == "slice":
        offset = inner.offset + sum(
            (start * stride for start, stride in zip(params["starts"], inner.strides, strict=True)), start=0
        )
        strides = tuple(stride * step for stride, step in zip(inner.strides, params["strides"], strict=True))
        return View(inner.base, offset, shape, strides)
    if value.op == "reverse":
        offset = inner.offset
        strides_list = list(inner.strides)
        for axis in params["axes"]:
            offset = offset + (shape[axis] - 1) * inner.strides[axis]
            strides_list[axis] = -1 * inner.strides[axis]
        return View(inner.base, offset, shape, tuple(strides_list))
    reshaped = reshaped_strides(inner.shape, inner.strides, shape)
    return itself if reshaped is None else View(inner.base, inner.offset, shape, reshaped)


def factor_groups(first: Sequence[Size], second: Sequence[Size]) -> list[tuple[list[int], list[int]]]:
    """Split the axes of two shapes of equal element counts into the smallest runs of equal products.

    Returns:
        Pairs of axis lists, in order; the other side of an axis of size 1 may be empty.
    """
    # If the last axes are equal, so are the products of the others, even if their factors cannot be compared.
    last = 0
    while last < min(len(first), len(second)) and _same(first[-1 - last], second[-1 - last]):
        last += 1
    groups = _groups(first[: len(first) - last], second[: len(second) - last])
    if groups is None:
        groups = [([*range(len(first) - last)], [*range(len(second) - last)])]
    return groups + [([len(first) - i], [len(second) - i]) for i in range(last, 0, -1)]


def _groups(first: Sequence[Size], second: Sequence[Size]) -> list[tuple[list[int], list[int]]] | None:
    """Split axes from the first axis on; return None if sizes cannot be compared."""
    groups: list[tuple[list[int], list[int]]] = []
    rounded: set[int] = set()
    i = j = 0
    while i < len(first) or j < len(second):
        mine: list[int] = []
        theirs: list[int] = []
        a: Size = 1
        b: Size = 1
        while True:
            if i < len(first) and j < len(second) and not mine and not theirs:
                a, b = first[i], second[j]
                mine.append(i)
                theirs.append(j)
                i, j = i + 1, j + 1
            elif _same(a, b):
                break
            elif (side := _rounded_side(a, b, [first[k] for k in mine], [second[k] for k in theirs])) is not None:
                rounded.add(side)
                break
            elif j < len(second) and (
                i >= len(first) or _smaller(b, a) or _rounded_side(a, b * second[j], (), second[j : j + 1]) == 1
            ):
                b = b * second[j]
                theirs.append(j)
                j += 1
            elif i < len(first):
                a = a * first[i]
                mine.append(i)
                i += 1
            else:
                return None
            if (
                (i >= len(first) and j >= len(second))
                and not _same(a, b)
                and _rounded_side(a, b, [first[k] for k in mine], [second[k] for k in theirs]) is None
            ):
                return None
        if not mine and not theirs:
            # All remaining axes of one side have size 1.
            groups += [([axis], []) for axis in range(i, len(first))] + [([], [axis]) for axis in range(j, len(second))]
            break
        groups.append((mine, theirs))
    return None if len(rounded) > 1 else groups


def _rounded_side(a: Size, b: Size, mine: Sequence[Size], theirs: Sequence[Size]) -> int | None:
    """Return which of two products (0 or 1) is the other one, rounded down to a multiple of one of its factors.

    If products of one side alone are rounded, both are equal wherever the counts of all elements are.
    """
    for side, (whole, part, factors) in enumerate(((b, a, mine), (a, b, theirs))):
        for factor in factors:
            if isinstance(factor, int) and factor > 1 and _same(floor_div(whole, factor) * factor, part):
                return side
    return None


def common_factors(first: Sequence[Size], second: Sequence[Size]) -> tuple[list[list[Size]], list[list[Size]]] | None:
    """Factor the sizes of two shapes of equal element counts into one common sequence.

    An index along the axes of one shape then maps to the axes of the other factor by factor: [32, h, w] and
    [8, 4 * h * w] are both [8, 4, h, w].

    Returns:
        The factors of each axis of the first shape, and of each axis of the second; None if no factors are known.
    """
    mine, theirs = list(first), list(second)
    my_factors: list[list[Size]] = [[] for _ in first]
    their_factors: list[list[Size]] = [[] for _ in second]
    i = j = 0
    while i < len(mine) and j < len(theirs):
        a, b = mine[i], theirs[j]
        if run := _run(mine[i:], b):
            for axis in range(i, i + run):
                my_factors[axis].append(mine[axis])
            their_factors[j] += mine[i : i + run]
            i, j = i + run, j + 1
        elif run := _run(theirs[j:], a):
            for axis in range(j, j + run):
                their_factors[axis].append(theirs[axis])
            my_factors[i] += theirs[j : j + run]
            i, j = i + 1, j + run
        elif _is_factor(a, b):
            my_factors[i].append(a)
            their_factors[j].append(a)
            i, theirs[j] = i + 1, floor_div(b, a)
        elif _is_factor(b, a):
            my_factors[i].append(b)
            their_factors[j].append(b)
            mine[i], j = floor_div(a, b), j + 1
        else:
            return None
    whole = all(size == 1 for size in (*mine[i:], *theirs[j:]))
    return (my_factors, their_factors) if whole else None


def _is_factor(size: Size, product: Size) -> bool:
    """Return True if ``size`` is a number that divides ``product`` in every run."""
    return isinstance(size, int) and size > 0 and divides(size, product) is True


def _run(sizes: Sequence[Size], product: Size) -> int:
    """Return the number of leading sizes whose product is known to be ``product``, or 0."""
    so_far: Size = 1
    for count, size in enumerate(sizes, 1):
        so_far = so_far * size
        if _same(so_far, product):
            return count
    return 0


def repeats_one(value: Value) -> bool:
    """Return True if a value is a constant, or the broadcast of a single element."""
    return value.op == "constant" or (
        value.op == "broadcast" and all(size == 1 for size in shape_of(value.operands[0]))
    )


def _same(a: Size, b: Size) -> bool:
    """Return True if two sizes are known to be equal."""
    return a == b or equal(a, b) is True


def _smaller(a: Size, b: Size) -> bool:
    """Return True if ``a`` is the smaller number, or a number compared with an open size."""
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    return isinstance(a, int)


def reshaped_strides(shape: Sequence[Size], strides: Sequence[Size], target: Sequence[Size]) -> tuple[Size, ...] | None:
    """Return the strides of a view after a reshape; None if elements would have to move."""
    groups = factor_groups(shape, target)
    target_strides: list[Size] = [0] * len(target)
    for mine, theirs in groups:
        wide = [axis for axis in mine if shape[axis] != 1]
        for axis, following in itertools.pairwise(wide):
            if strides[axis] != strides[following] * shape[following]:
                return None
        step: Size = strides[wide[-1]] if wide else 0
        for axis in reversed(theirs):
            target_strides[axis] = step
            step = step * target[axis]
    return tuple(target_strides)


def merge_axes(shape: Sequence[Size], *strides: Sequence[Size]) -> tuple[list[Size], list[list[Size]]] | None:
    """Merge all axes into one if every list of strides permits.

    Returns:
        The size of the merged axis and its stride for each list, in lists of length one; None if axes cannot be merged.
    """
    wide = [axis for axis in range(len(shape)) if shape[axis] != 1]
    for steps in strides:
        for axis, following in itertools.pairwise(wide):
            if steps[axis] != steps[following] * shape[following]:
                return None
    last = wide[-1] if wide else -1
    return [math.prod(shape)], [[steps[last] if wide else 0] for steps in strides]
