"""Cases of gather, scatter, ranking and selection."""

from __future__ import annotations

import math

import numpy as np

from tests.ops.generators.draw import FLOATS, INTS, Array, Case, Draw, ints
from tests.ops.generators.table import draws


@draws("Gather")
def gather(draw: Draw, name: str) -> Case:
    shape = draw.shape(1, zero=False)
    axis = draw.axis(len(shape))
    indices = draw.numbers.integers(-shape[axis], shape[axis], draw.shape(0, 3)).astype(draw.pick(*INTS))
    return Case(name, 13, [draw.array(shape, draw.pick(*FLOATS, *INTS, np.bool_, object)), indices], {"axis": axis})


@draws("GatherElements")
def gather_elements(draw: Draw, name: str) -> Case:
    shape = draw.shape(1, zero=False)
    axis = draw.axis(len(shape))
    target = [draw.integer(0, size) for size in shape]
    target[axis] = draw.integer(0, 4)
    indices = draw.numbers.integers(-shape[axis], shape[axis], target).astype(draw.pick(*INTS))
    return Case(name, 13, [draw.array(shape, draw.pick(*FLOATS, *INTS)), indices], {"axis": axis})


def _vectors(draw: Draw, shape: tuple[int, ...], depth: int, leading: tuple[int, ...], first: int = 0) -> Array:
    """Return index vectors into the axes from ``first`` on."""
    sizes = shape[first : first + depth]
    return np.stack([draw.numbers.integers(-size, size, leading) for size in sizes], -1).astype(np.int64)


@draws("GatherND")
def gather_nd(draw: Draw, name: str) -> Case:
    shape = draw.shape(1, zero=False)
    batch = draw.integer(0, len(shape) - 1)
    depth = draw.integer(1, len(shape) - batch)
    leading = shape[:batch] + draw.shape(0, 2, zero=False)
    x = draw.array(shape, draw.pick(*FLOATS, np.int64, np.bool_))
    return Case(name, 13, [x, _vectors(draw, shape, depth, leading, batch)], {"batch_dims": batch})


@draws("ScatterElements", "Scatter")
def scatter_elements(draw: Draw, name: str) -> Case:
    shape = draw.shape(1, 3, zero=False)
    axis = draw.axis(len(shape))
    reduction = "none" if name == "Scatter" else draw.pick("none", "add", "mul", "max", "min")
    target = [draw.integer(1, size) for size in shape]
    if reduction == "none":
        # Indices that occur twice have no order in the standard.
        lines = [
            draw.numbers.permutation(shape[axis])[: target[axis]] for _ in range(math.prod(target) // target[axis])
        ]
        rest = [size for i, size in enumerate(target) if i != axis % len(shape)]
        indices = np.moveaxis(np.stack(lines).reshape(*rest, target[axis]), -1, axis)
    else:
        indices = draw.numbers.integers(-shape[axis], shape[axis], target)
    dtype = draw.pick(*FLOATS, *INTS)
    inputs = [
        draw.array(shape, dtype, special=False),
        indices.astype(np.int64),
        draw.array(target, dtype, special=False),
    ]
    if name == "Scatter":
        return Case(name, 9, inputs, {"axis": axis % len(shape)})
    return Case(name, 18, inputs, {"axis": axis, "reduction": reduction})


@draws("ScatterND")
def scatter_nd(draw: Draw, name: str) -> Case:
    shape = draw.shape(1, 4, zero=False)
    depth, reduction = draw.integer(1, len(shape)), draw.pick("none", "add", "mul", "max", "min")
    leading = (1,) if reduction == "none" else (draw.integer(0, 3),)
    dtype = draw.pick(*FLOATS, np.int64)
    updates = draw.array((*leading, *shape[depth:]), dtype, special=False)
    x = draw.array(shape, dtype, special=False)
    return Case(name, 18, [x, _vectors(draw, shape, depth, leading), updates], {"reduction": reduction})


@draws("TensorScatter")
def tensor_scatter(draw: Draw, name: str) -> Case:
    batch, heads, length, size = draw.integer(1, 2), draw.integer(1, 2), draw.integer(2, 5), draw.integer(1, 3)
    new, mode = draw.integer(1, length), draw.pick("linear", "circular")
    first = draw.numbers.integers(0, length - new + 1 if mode == "linear" else length, batch).astype(np.int64)
    inputs = [
        draw.array((batch, heads, length, size)),
        draw.array((batch, heads, new, size)),
        draw.maybe(lambda: first),
    ]
    return Case(name, 24, inputs, {"mode": mode})


@draws("TopK")
def top_k(draw: Draw, name: str) -> Case:
    shape = draw.shape(1, zero=False)
    axis = draw.axis(len(shape))
    x = draw.array(shape, draw.pick(*FLOATS, *INTS), -3, 3, special=False)
    options = draw.options(largest=draw.integer(0, 1)) | {"axis": axis}
    return Case(name, 11, [x, ints(draw.integer(0, shape[axis]))], options, 2)


@draws("NonZero")
def nonzero(draw: Draw, name: str) -> Case:
    return Case(name, 13, [draw.array(draw.shape(), draw.pick(np.float32, *INTS, np.bool_), 0, 1, special=False)])


@draws("Compress")
def compress(draw: Draw, name: str) -> Case:
    shape = draw.shape(1, zero=False)
    if draw.chance(0.4):
        return Case(name, 11, [draw.array(shape), draw.array((draw.integer(0, math.prod(shape)),), np.bool_)])
    axis = draw.axis(len(shape))
    return Case(name, 11, [draw.array(shape), draw.array((draw.integer(0, shape[axis]),), np.bool_)], {"axis": axis})


@draws("Unique")
def unique(draw: Draw, name: str) -> Case:
    shape = draw.shape(1, 3, zero=False)
    options = draw.options(sorted=draw.integer(0, 1), axis=draw.axis(len(shape)))
    x = draw.array(shape, draw.pick(np.float32, np.int64), -2, 2, special=False)
    return Case(name, 11, [np.round(x / 3).astype(x.dtype)], options, 4)


@draws("OneHot")
def one_hot(draw: Draw, name: str) -> Case:
    shape = draw.shape(0, 3)
    indices = draw.numbers.integers(-7, 8, shape).astype(draw.pick(np.int64, np.float32))
    values = draw.array((2,), draw.pick(np.float32, np.int64), special=False)
    return Case(name, 11, [indices, ints(draw.integer(1, 5)), values], {"axis": draw.axis(len(shape) + 1)})


@draws("NonMaxSuppression")
def suppression(draw: Draw, name: str) -> Case:
    batch, classes, boxes = draw.integer(1, 2), draw.integer(1, 2), draw.integer(1, 6)
    corners = draw.positive((batch, boxes, 4))
    inputs = [
        corners, draw.positive((batch, classes, boxes)), draw.maybe(lambda: ints(draw.integer(0, 4)), 0.9),
        draw.maybe(lambda: np.array([draw.pick(0.0, 0.3, 0.7)], np.float32)),
        draw.maybe(lambda: np.array([draw.pick(0.0, 0.8, 1.2)], np.float32)),
    ]  # fmt: skip
    return Case(name, 11, inputs, draw.options(center_point_box=draw.integer(0, 1)))
