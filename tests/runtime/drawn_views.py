"""Random views: movements of elements, over fixed, open and counted sizes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from tests.runtime.graph_draft import Draft, Drawn


def draw_view(d: Draft, x: Drawn) -> Drawn:
    """Move the elements of a value, or return the value if no draw fits."""
    for _ in range(20):
        moved = d.choice(_VIEWS)(d, x)
        if moved is not None and moved.rank <= 6 and 0 < math.prod(moved.shape) <= 20000:
            return moved
    return x


def _flatten(d: Draft, x: Drawn) -> Drawn | None:
    axis = d.pick(0, x.rank)
    (name,) = d.node("Flatten", [x.name], axis=axis)
    return x.with_shape(
        name, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])), (all(x.fixed[:axis]), all(x.fixed[axis:]))
    )


def _merge(d: Draft, x: Drawn) -> Drawn | None:
    """Reshape two adjacent axes to one, with sizes computed from the shape where open."""
    if x.rank < 2:
        return None
    axis = d.pick(0, x.rank - 2)
    before, after = range(axis), range(axis + 2, x.rank)
    parts = [*d.part_of_shape(x, before), d.ints(-1), *d.part_of_shape(x, after)]
    (shape,) = d.node("Concat", parts, axis=0)
    (name,) = d.node("Reshape", [x.name, shape])
    return x.with_shape(
        name,
        (*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :]),
        (*x.fixed[:axis], x.fixed[axis] and x.fixed[axis + 1], *x.fixed[axis + 2 :]),
    )


def _split_axis(d: Draft, x: Drawn) -> Drawn | None:
    """Reshape a fixed axis to two, with sizes computed from the shape where open."""
    axes = [axis for axis in range(x.rank) if x.fixed[axis] and x.shape[axis] % 2 == 0]
    if not axes:
        return None
    axis = d.choice(axes)
    first, second = d.choice([(2, x.shape[axis] // 2), (x.shape[axis] // 2, 2)])
    parts = [
        *d.part_of_shape(x, range(axis)), d.ints(first, second), *d.part_of_shape(x, range(axis + 1, x.rank))
    ]  # fmt: skip
    (shape,) = d.node("Concat", parts, axis=0)
    (name,) = d.node("Reshape", [x.name, shape])
    return x.with_shape(
        name,
        (*x.shape[:axis], first, second, *x.shape[axis + 1 :]),
        (*x.fixed[:axis], True, True, *x.fixed[axis + 1 :]),
    )


def _refactor(d: Draft, x: Drawn) -> Drawn | None:
    """Reshape to one open axis and a factor of the fixed sizes, in any order."""
    factor = math.prod(size for size, known in zip(x.shape, x.fixed, strict=True) if known)
    divisors = [size for size in range(1, factor + 1) if factor % size == 0]
    size = d.choice(divisors)
    rest = d.choice([divisor for divisor in divisors if size % divisor == 0])
    shape = [None, size // rest, rest]
    order = d.rng.permutation(3)
    whole = all(x.fixed)
    return d.reshaped(x, [shape[i] for i in order], [whole or shape[i] is not None for i in order])


def _flat(d: Draft, x: Drawn) -> Drawn | None:
    return d.reshaped(x, [None], [all(x.fixed)])


def _unsqueeze(d: Draft, x: Drawn) -> Drawn | None:
    axis = d.pick(0, x.rank)
    (name,) = d.node("Unsqueeze", [x.name, d.ints(axis)])
    return x.with_shape(name, (*x.shape[:axis], 1, *x.shape[axis:]), (*x.fixed[:axis], True, *x.fixed[axis:]))


def _squeeze(d: Draft, x: Drawn) -> Drawn | None:
    axes = [axis for axis in range(x.rank) if x.shape[axis] == 1 and x.fixed[axis]]
    if not axes:
        return None
    axis = d.choice(axes)
    (name,) = d.node("Squeeze", [x.name, d.ints(axis)])
    return x.with_shape(name, (*x.shape[:axis], *x.shape[axis + 1 :]), (*x.fixed[:axis], *x.fixed[axis + 1 :]))


def _transpose(d: Draft, x: Drawn) -> Drawn | None:
    order = [int(axis) for axis in d.rng.permutation(x.rank)]
    (name,) = d.node("Transpose", [x.name], perm=order)
    return x.with_shape(name, [x.shape[axis] for axis in order], [x.fixed[axis] for axis in order])


def _slice(d: Draft, x: Drawn) -> Drawn | None:
    if not x.rank:
        return None
    axis = d.pick(0, x.rank - 1)
    start, end, step = d.choice([(1, 2**62, 1), (0, -1, 1), (0, 2**62, 2), (-1, -(2**62), -1), (0, 1, 1)])
    (name,) = d.node("Slice", [x.name, d.ints(start), d.ints(end), d.ints(axis), d.ints(step)])
    size = len(range(x.shape[axis])[slice(start, None if end < -(2**60) else end, step)])
    known = x.fixed[axis]
    return x.with_shape(
        name, (*x.shape[:axis], size, *x.shape[axis + 1 :]), (*x.fixed[:axis], known, *x.fixed[axis + 1 :])
    )


def _expand(d: Draft, x: Drawn) -> Drawn | None:
    ones = [axis for axis in range(x.rank) if x.shape[axis] == 1 and x.fixed[axis]]
    target, shape, fixed = [1] * x.rank, [*x.shape], [*x.fixed]
    for axis in ones:
        if d.chance(0.5):
            target[axis] = shape[axis] = 3
    if d.chance(0.5):
        target, shape, fixed = [2, *target], [2, *shape], [True, *fixed]
    (name,) = d.node("Expand", [x.name, d.ints(*target)])
    return x.with_shape(name, shape, fixed)


def _concat(d: Draft, x: Drawn) -> Drawn | None:
    if not x.rank:
        return None
    axis = d.pick(0, x.rank - 1)
    (other,) = d.node("Neg", [x.name])
    others = [other] if d.chance(0.7) else [x.name]
    (name,) = d.node("Concat", [x.name, *others], axis=axis)
    return x.with_shape(name, [size * 2 if i == axis else size for i, size in enumerate(x.shape)], x.fixed)


def _split(d: Draft, x: Drawn) -> Drawn | None:
    axes = [axis for axis in range(x.rank) if x.fixed[axis] and x.shape[axis] >= 2]
    if not axes:
        return None
    axis = d.choice(axes)
    first = d.pick(1, x.shape[axis] - 1)
    sizes = (first, x.shape[axis] - first)
    names = d.node("Split", [x.name, d.ints(*sizes)], outputs=2, axis=axis)
    parts = [
        x.with_shape(name, [size if i == axis else old for i, old in enumerate(x.shape)], x.fixed)
        for name, size in zip(names, sizes, strict=True)
    ]
    if d.chance(0.5):
        d.outputs.append(parts[1])
    return parts[0]


def _size_alone(d: Draft, x: Drawn) -> Drawn | None:
    """Drop the elements: a constant expanded to the shape of a value."""
    if d.chance(0.7):
        return None
    (shape,) = d.node("Shape", [x.name])
    (name,) = d.node("Expand", [d.constant(np.float32(0.75)), shape])
    return x.with_shape(name, x.shape, x.fixed)


_VIEWS: list[Callable[[Draft, Drawn], Drawn | None]] = [
    _flatten, _merge, _split_axis, _refactor, _flat, _unsqueeze, _squeeze, _transpose, _slice, _expand, _concat, _split,
    _size_alone,
]  # fmt: skip
