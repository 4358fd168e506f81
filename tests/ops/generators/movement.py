"""Cases of data movement, and of tensors made from sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import numpy_helper

from tests.ops.generators.draw import FLOATS, INTS, SMALL, Array, Case, Draw, ints, scalar
from tests.ops.generators.table import draws


def _any(draw: Draw, shape: tuple[int, ...] | list[int]) -> Array:
    return draw.array(shape, draw.pick(*FLOATS, *INTS, np.bool_, object))


@draws("Reshape")
def reshape(draw: Draw, name: str) -> Case:
    shape = draw.shape()
    left, target = math.prod(shape), []
    if not left:
        return Case(name, 14, [_any(draw, shape), ints(*shape)], {"allowzero": 1})
    while left > 1 and draw.chance(0.8):
        target.append(draw.pick(*[n for n in range(1, left + 1) if left % n == 0]))
        left //= target[-1]
    target.append(left)
    target = [0 if i < len(shape) and size == shape[i] and draw.chance(0.4) else size for i, size in enumerate(target)]
    if draw.chance(0.5):
        target[draw.integer(0, len(target) - 1)] = -1
    return Case(name, draw.pick(5, 13, 14), [_any(draw, shape), ints(*target)])


@draws("Transpose")
def transpose(draw: Draw, name: str) -> Case:
    shape = draw.shape(1)
    order = draw.random.sample(range(len(shape)), len(shape))
    return Case(name, 13, [_any(draw, shape)], draw.options(perm=order))


@draws("Squeeze")
def squeeze(draw: Draw, name: str) -> Case:
    shape = draw.shape(1)
    single = [i - len(shape) * draw.integer(0, 1) for i, size in enumerate(shape) if size == 1]
    axes = draw.maybe(lambda: ints(*single), 0.7) if single else None
    return Case(name, 13, [_any(draw, shape), axes])


@draws("Unsqueeze")
def unsqueeze(draw: Draw, name: str) -> Case:
    shape, count = draw.shape(0, 3), draw.integer(1, 3)
    return Case(name, 13, [_any(draw, shape), ints(*draw.axes(len(shape) + count, count))])


@draws("Flatten")
def flatten(draw: Draw, name: str) -> Case:
    shape = draw.shape()
    return Case(name, 13, [_any(draw, shape)], {"axis": draw.integer(-len(shape), len(shape))})


@draws("Concat")
def concat(draw: Draw, name: str) -> Case:
    shape, dtype = list(draw.shape(1)), draw.pick(*FLOATS, *INTS, object)
    axis, parts = draw.axis(len(shape)), []
    for _ in range(draw.integer(1, 4)):
        shape[axis] = draw.integer(0, 3)
        parts.append(draw.array(shape, dtype))
    return Case(name, draw.pick(11, 13), parts, {"axis": axis})


@draws("Split")
def split(draw: Draw, name: str) -> Case:
    shape, count, opset = list(draw.shape(1)), draw.integer(1, 4), draw.pick(11, 13, 18)
    axis, parts = draw.axis(len(shape)), [draw.integer(0, 3) for _ in range(count)]
    options: dict[str, Any] = {"axis": axis}
    dtype = draw.pick(np.float32, np.int64)
    if draw.chance(0.5):
        shape[axis] = count * draw.integer(0, 3)
        options |= {"num_outputs": count} if opset == 18 else {}
        return Case(name, opset, [draw.array(shape, dtype)], options, count)
    shape[axis] = sum(parts)
    if opset == 11:
        return Case(name, opset, [draw.array(shape, dtype)], options | {"split": parts}, count)
    return Case(name, opset, [draw.array(shape, dtype), ints(*parts)], options, count)


@draws("Slice")
def slice_(draw: Draw, name: str) -> Case:
    shape = draw.shape(1)
    count = draw.integer(1, len(shape))

    def positions() -> Array:
        return ints(*(draw.pick(draw.integer(-4, 4), draw.integer(-2, 2), 2**63 - 1, -(2**63)) for _ in range(count)))

    axes = draw.axes(len(shape), count)
    steps = [draw.pick(1, 1, 2, -1, -2, 3) for _ in axes]
    x = draw.array(shape, draw.pick(np.float32, np.int64))
    if draw.chance(0.2):
        return Case(name, 13, [x, positions(), positions()])
    return Case(name, 13, [x, positions(), positions(), ints(*axes), draw.maybe(lambda: ints(*steps), 0.8)])


@draws("Pad")
def pad(draw: Draw, name: str) -> Case:
    mode = draw.pick("constant", "constant", "reflect", "edge", "wrap")
    shape = draw.shape(1, 4, zero=False)
    axes = draw.axes(len(shape), draw.integer(1, len(shape))) if draw.chance(0.4) else list(range(len(shape)))
    most = {axis: {"reflect": shape[axis] - 1, "wrap": shape[axis]}.get(mode, 3) for axis in axes}
    low = [draw.integer(-1 if mode == "constant" and shape[axis] > 1 else 0, most[axis]) for axis in axes]
    high = [draw.integer(0, most[axis]) for axis in axes]
    dtype = draw.pick(*FLOATS, *INTS)
    value = draw.maybe(lambda: draw.array((), dtype, special=False)) if mode == "constant" else None
    return Case(name, 19, [draw.array(shape, dtype), ints(*low, *high), value, ints(*axes)], {"mode": mode})


@draws("Expand")
def expand(draw: Draw, name: str) -> Case:
    shape = draw.shape()
    target = [draw.integer(0, 3) if size == 1 else draw.pick(1, size) for size in shape]
    extra = list(draw.shape(0, 1, zero=False)) if draw.chance(0.5) else []
    target = extra + target if extra else target[draw.integer(0, len(target)) :]
    return Case(name, 13, [_any(draw, shape), ints(*target)])


@draws("Tile")
def tile(draw: Draw, name: str) -> Case:
    shape = draw.shape(1, 5)
    return Case(name, 13, [draw.array(shape, draw.pick(*FLOATS, *INTS)), ints(*(draw.integer(0, 3) for _ in shape))])


@draws("DepthToSpace")
def depth_to_space(draw: Draw, name: str) -> Case:
    block = draw.integer(1, 3)
    shape = (draw.integer(0, 2), block * block * draw.integer(1, 2), draw.integer(1, 3), draw.integer(1, 3))
    return Case(name, 13, [draw.array(shape)], {"blocksize": block, "mode": draw.pick("DCR", "CRD")})


@draws("SpaceToDepth")
def space_to_depth(draw: Draw, name: str) -> Case:
    block = draw.integer(1, 3)
    shape = (draw.integer(0, 2), draw.integer(1, 2), block * draw.integer(1, 3), block * draw.integer(1, 3))
    return Case(name, 13, [draw.array(shape)], {"blocksize": block})


@draws("CenterCropPad")
def center_crop_pad(draw: Draw, name: str) -> Case:
    shape = draw.shape(1, 4)
    axes = draw.axes(len(shape), draw.integer(1, len(shape)))
    return Case(name, 18, [draw.array(shape), ints(*(draw.integer(1, 7) for _ in axes))], {"axes": axes})


@draws("Trilu")
def trilu(draw: Draw, name: str) -> Case:
    x = draw.array(draw.shape(2, 4), draw.pick(*FLOATS, np.int64, np.bool_))
    k = draw.maybe(lambda: scalar(draw.integer(-5, 5)), 0.8)
    return Case(name, 14, [x, k], draw.options(upper=draw.integer(0, 1)))


@draws("ReverseSequence")
def reverse_sequence(draw: Draw, name: str) -> Case:
    shape, time = draw.shape(2, 4, zero=False), draw.integer(0, 1)
    lengths = draw.numbers.integers(1, shape[time] + 1, shape[1 - time]).astype(np.int64)
    x = draw.array(shape, draw.pick(*FLOATS))
    return Case(name, 10, [x, lengths], {"time_axis": time, "batch_axis": 1 - time})


@draws("Col2Im")
def col2im(draw: Draw, name: str) -> Case:
    image, block = ([draw.integer(low, high) for _ in range(2)] for low, high in ((3, 6), (1, 2)))
    strides, dilations = ([draw.integer(1, 2) for _ in range(2)] for _ in range(2))
    pads = [draw.integer(0, 1) for _ in range(4)]
    counts = [
        (image[i] + pads[i] + pads[2 + i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1 for i in range(2)
    ]
    columns = draw.array((draw.integer(1, 2), draw.integer(1, 2) * math.prod(block), math.prod(counts)))
    options = {"strides": strides, "dilations": dilations, "pads": pads}
    return Case(name, 18, [columns, ints(*image), ints(*block)], options)


@draws("ConstantOfShape")
def constant_of_shape(draw: Draw, name: str) -> Case:
    value = numpy_helper.from_array(draw.array((1,), draw.pick(np.float32, np.int64, np.bool_), special=False))
    return Case(name, 9, [ints(*draw.shape())], draw.options(value=value))


@draws("Constant")
def constant(draw: Draw, name: str) -> Case:
    dtype = draw.pick(*FLOATS, *INTS, *SMALL, np.bool_)
    values: list[dict[str, Any]] = [
        {"value": numpy_helper.from_array(draw.array(draw.shape(), dtype))},
        {"value_float": 1.5}, {"value_floats": [1.0, 2.5]}, {"value_int": 3}, {"value_ints": [1, -2]},
        {"value_string": "é"}, {"value_strings": ["a", ""]},
    ]  # fmt: skip
    return Case(name, 13, [], draw.pick(*values))


@draws("Shape")
def shape_of(draw: Draw, name: str) -> Case:
    return Case(name, 15, [_any(draw, draw.shape())], draw.options(start=draw.integer(-5, 5), end=draw.integer(-5, 5)))


@draws("Size")
def size_of(draw: Draw, name: str) -> Case:
    return Case(name, 13, [_any(draw, draw.shape())])


@draws("Range")
def range_(draw: Draw, name: str) -> Case:
    dtype = draw.pick(*FLOATS, *INTS, np.int16)
    start, limit = (draw.array((), dtype, special=False) for _ in range(2))
    step = draw.pick(-3, -1, 1, 2) if np.dtype(dtype).kind == "i" else draw.pick(-0.7, 0.3, 1.0)
    return Case(name, 11, [start, limit, np.array(step, dtype)])


@draws("EyeLike")
def eye_like(draw: Draw, name: str) -> Case:
    options = draw.options(k=draw.integer(-4, 4), dtype=draw.pick(1, 7, 11))
    return Case(name, 9, [draw.array(draw.shape(2, 2), draw.pick(*FLOATS, np.int64))], options)
