"""Operators that move elements: shapes, slices, concatenation, padding, repetition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.export.tflite.emission import Call, Scope, emits
from sardonyx.export.tflite.file_builder import Size, Tensor

FAR = (1 << 31) - 1
"""Largest end of a slice."""


@emits("Reshape")
def reshape(c: Call) -> Tensor:
    """Write a change of sizes."""
    x, s, shape = c.input(), c.scope, c.shape()
    target = c.array(1)
    if all(s.knows(size) for size in shape) or sum(not isinstance(size, int) for size in shape) == 1:
        return s.reshape(x, shape)
    if target is not None and (target > 0).sum() + (target == -1).sum() == target.size:
        return s.reshape_by(x, c.input(1), shape)
    if target is None and not c.attribute("allowzero", 0):
        return s.reshape_by(x, _without_zeros(s, c.input(1), x), shape)
    if target is not None:
        sizes = [x.shape[i] if n == 0 else int(n) for i, n in enumerate(target)]
        parts = [s.size(n) if n != -1 else s.constant([-1], np.int32) for n in sizes]
        return s.reshape_by(x, s.concatenation(parts, 0), shape)
    return s.reshape_by(x, c.input(1), shape)


def _without_zeros(s: Scope, sizes: Tensor, x: Tensor) -> Tensor:
    """Return computed sizes in which 0 is the size of the same axis of `x`."""
    from sardonyx.export.tflite.operators.elementwise import select

    count = sizes.shape[0]
    if not isinstance(count, int) or count > x.rank:
        return sizes
    sizes = s.cast(sizes, "INT32")
    own = s.concatenation([s.size(size) for size in x.shape[:count]], 0) if count else sizes
    return select(s, s.binary("EQUAL", sizes, s.like(0, sizes), type="BOOL"), own, sizes)


@emits("Flatten", "Squeeze", "Unsqueeze")
def flatten(c: Call) -> Tensor:
    """Write a change of sizes that the rank and the axes decide."""
    return _renamed(c, c.shape())


def _renamed(c: Call, shape: Sequence[Size]) -> Tensor:
    """Reshape to sizes of which each is one of the input's, or a product of these."""
    x, s = c.input(), c.scope
    if c.node.op_type == "Flatten":
        axis = int(c.attribute("axis", 1))
        axis += x.rank if axis < 0 else 0
        sides = [s.product(x.shape[:axis]), s.product(x.shape[axis:])]
        return s.reshape(x, sides)
    axes = c.array(1)
    if axes is None and c.has(1):
        raise c.refuse("the axes are computed, expected constants")
    if c.node.op_type == "Unsqueeze":
        assert axes is not None
        new_axes = [int(a) % (x.rank + axes.size) for a in axes.reshape(-1)]
        rest = iter(x.shape)
        return s.reshape(x, [1 if i in new_axes else next(rest) for i in range(x.rank + axes.size)])
    if axes is None and not x.is_static:
        raise c.refuse("Squeeze without axes of an input with open sizes")
    gone = [i for i, n in enumerate(x.shape) if n == 1] if axes is None else [int(a) % x.rank for a in axes.reshape(-1)]
    return s.reshape(x, [size for i, size in enumerate(x.shape) if i not in gone])


@emits("Transpose")
def transpose(c: Call) -> Tensor:
    """Write a permutation of axes."""
    order = c.attribute("perm") or list(reversed(range(c.input().rank)))
    return c.scope.transpose(c.input(), order)


@emits("Concat")
def concat(c: Call) -> Tensor:
    """Write concatenation; parts without elements are left out."""
    parts, axis = c.inputs(), c.axis()
    parts = [part for part in parts if part.shape[axis] != 0] or parts[:1]
    return c.scope.concatenation(parts, axis)


@emits("Shape")
def shape(c: Call) -> Tensor:
    """Write the sizes as int64."""
    x, s = c.input(), c.scope
    begin = int(c.attribute("start", 0))
    end = c.attribute("end")
    begin = min(max(begin + x.rank if begin < 0 else begin, 0), x.rank)
    end = x.rank if end is None else min(max(int(end) + x.rank if end < 0 else int(end), 0), x.rank)
    sizes = x.shape[begin : max(begin, end)]
    if all(isinstance(size, int) for size in sizes):
        return s.constant(sizes, np.int64)
    result = s.op("SHAPE", [x], [x.rank], "INT64", ("ShapeOptions", {"out_type": 4}))
    return result if len(sizes) == x.rank else s.slice(result, [begin], [end])


@emits("Size")
def size(c: Call) -> Tensor:
    """Write the number of elements."""
    x, s = c.input(), c.scope
    result = s.op("SHAPE", [x], [x.rank], "INT64", ("ShapeOptions", {"out_type": 4}))
    return s.reduce("REDUCE_PROD", result, [0], keepdims=False) if x.rank else s.constant(1, np.int64)


@emits("Slice")
def slice_(c: Call) -> Tensor:
    """Write slices with steps; computed bounds may be any integer vectors."""
    x, s = c.input(), c.scope
    axes = [int(a) % x.rank for a in c.integers(3, "the axes")] if c.has(3) else None
    steps = c.integers(4, "the steps") if c.has(4) else None
    starts, ends = c.input(1), c.input(2)
    if axes is None:
        axes = list(range(int(starts.shape[0])))
    steps = [1] * len(axes) if steps is None else steps
    if starts.array is not None and ends.array is not None:
        return _static_slice(c, x, axes, steps, starts.array.tolist(), ends.array.tolist())
    if any(step < 0 for step in steps):
        raise c.refuse("computed bounds with a negative step")
    begin = _bounds(s, starts, axes, x, 0)
    end = _bounds(s, ends, axes, x, FAR)
    stride = [1] * x.rank
    for axis, step in zip(axes, steps, strict=True):
        stride[axis] = step
    return _strided(c, x, begin, end, s.constant(stride, np.int32), c.shape())


def _bounds(s: Scope, values: Tensor, axes: Sequence[int], x: Tensor, default: int) -> Tensor:
    """Return the bounds of all axes, clipped to int32."""
    narrow = s.binary("MINIMUM", s.binary("MAXIMUM", values, s.like(-FAR, values)), s.like(FAR, values))
    narrow = s.cast(narrow, "INT32")
    parts = []
    for axis in range(x.rank):
        if axis in axes:
            position = axes.index(axis)
            whole = narrow if narrow.rank and narrow.shape[0] == 1 else s.slice(narrow, [position], [position + 1])
            parts.append(whole)
        else:
            parts.append(s.constant([default], np.int32))
    return s.concatenation(parts, 0)


def _static_slice(
    c: Call, x: Tensor, axes: Sequence[int], steps: Sequence[int], starts: Sequence[int], ends: Sequence[int]
) -> Tensor:
    begin, end, stride = [0] * x.rank, [FAR] * x.rank, [1] * x.rank
    end_mask = (1 << x.rank) - 1
    begin_mask = (1 << x.rank) - 1
    for axis, step, first, last in zip(axes, steps, starts, ends, strict=True):
        stride[axis] = step
        begin[axis] = max(-FAR, min(FAR, int(first)))
        end[axis] = max(-FAR, min(FAR, int(last)))
        if (step > 0 and begin[axis] != 0) or (step < 0 and begin[axis] != FAR):
            begin_mask &= ~(1 << axis)
        if step > 0 and end[axis] < FAR:
            end_mask &= ~(1 << axis)
        elif step < 0:
            size = x.shape[axis]
            if not isinstance(size, int):
                if end[axis] > -FAR:
                    raise c.refuse("a negative step with an end, along an axis of open size")
            else:
                end[axis] = end[axis] + size if -size <= end[axis] < 0 else end[axis]
                if end[axis] >= 0:
                    end_mask &= ~(1 << axis)
    if begin_mask == end_mask == (1 << x.rank) - 1 and all(step == 1 for step in stride):
        return x
    s = c.scope
    bounds = (s.constant(begin, np.int32), s.constant(end, np.int32), s.constant(stride, np.int32))
    return _strided(c, x, *bounds, c.shape(), begin_mask, end_mask)


def _strided(
    c: Call,
    x: Tensor,
    begin: Tensor,
    end: Tensor,
    stride: Tensor,
    shape: Sequence[Size],
    begin_mask: int = 0,
    end_mask: int = 0,
) -> Tensor:
    if x.rank > 5:
        raise c.refuse(f"slices of {x.rank} axes, expected at most 5")
    y = c.scope.checked("STRIDED_SLICE", x)
    options = ("StridedSliceOptions", {"begin_mask": begin_mask, "end_mask": end_mask})
    inputs = [y, begin, end, stride]
    return c.scope.cast(
        c.scope.op("STRIDED_SLICE", inputs, shape, options=options, quantization=x.quantization), x.type
    )


@emits("Split")
def split(c: Call) -> list[Tensor]:
    """Write parts along an axis."""
    x, s, axis = c.input(), c.scope, c.axis()
    count = len(c.call.outputs)
    shapes = [c.shape(i) for i in range(count)]
    if c.has(1):
        sizes: list[int] = c.integers(1, "the part sizes")
    elif isinstance(x.shape[axis], int):
        step = -(-int(x.shape[axis]) // count)
        sizes = [min(step, int(x.shape[axis]) - step * i) for i in range(count)]
    else:
        raise c.refuse("equal parts of an axis of open size")
    y = s.checked("SPLIT_V", x)
    outputs = [s.computed(y.type, shape, x.quantization) for shape in shapes]
    operands = [y, s.constant(sizes, np.int32), s.constant(axis, np.int32)]
    s.builder.operator("SPLIT_V", operands, outputs, ("SplitVOptions", {"num_splits": count}))
    return [s.cast(output, x.type) for output in outputs]


@emits("Expand")
def expand(c: Call) -> Tensor:
    """Write repetition along axes of size 1; the shape may have more axes, and sizes of 1."""
    x, s = c.input(), c.scope
    target, shape = c.array(1), c.shape()
    if x.shape == shape:
        return x
    y = s.checked("BROADCAST_TO", x)
    if all(s.knows(size) for size in shape):
        return s.cast(s.broadcast_to(y, shape), x.type)
    sizes = c.input(1)
    if target is not None and (target == 1).any() and not x.is_static:
        raise c.refuse("a target size of 1 over an open size")
    own = s.op("SHAPE", [y], [y.rank], "INT32", ("ShapeOptions", {"out_type": 2}))
    both = s.op("BROADCAST_ARGS", [own, s.cast(sizes, "INT32")], [len(shape)], "INT32")
    return s.cast(s.broadcast_to(y, shape, both), x.type)


@emits("Tile")
def tile(c: Call) -> Tensor:
    """Write repetition of whole tensors."""
    x, s = c.input(), c.scope
    y = s.checked("TILE", x)
    return s.cast(s.op("TILE", [y, s.cast(c.input(1), "INT32")], c.shape()), x.type)


@emits("Pad")
def pad(c: Call) -> Tensor:
    """Write padding by a number, by reflection, by the edge or by wrapping; negative amounts crop."""
    x, s = c.input(), c.scope
    mode = c.attribute("mode", "constant")
    axes = [int(a) % x.rank for a in c.integers(3, "the axes")] if c.has(3) else list(range(x.rank))
    amounts = c.array(1)
    shape = c.shape()
    if amounts is None:
        if mode != "constant" or axes != list(range(x.rank)):
            raise c.refuse(f"computed amounts of padding in mode {mode}")
        pairs = s.reshape(s.cast(c.input(1), "INT32"), [2, x.rank])
        return _padded(c, x, s.transpose(pairs, [1, 0]), shape)
    pads = np.zeros((x.rank, 2), np.int64)
    for i, axis in enumerate(axes):
        pads[axis] = amounts[i], amounts[i + len(axes)]
    if (pads < 0).any():
        crops = np.maximum(-pads, 0)
        ends = [FAR if not crop else -int(crop) for crop in crops[:, 1]]
        mask = sum(1 << axis for axis, end in enumerate(ends) if end == FAR)
        inner: list[Size] = [
            size - int(crop.sum()) if isinstance(size, int) else s.fresh_size() if crop.any() else size
            for size, crop in zip(x.shape, crops, strict=True)
        ]
        begin, end, stride = (s.constant(v, np.int32) for v in (crops[:, 0], ends, [1] * x.rank))
        x = _strided(c, x, begin, end, stride, inner, 0, mask)
        pads = np.maximum(pads, 0)
    if not pads.any():
        return x
    if mode == "constant":
        return _padded(c, x, s.constant(pads, np.int32), shape)
    if mode == "reflect":
        y = s.checked("MIRROR_PAD", x)
        options = ("MirrorPadOptions", {"mode": 0})
        result = s.op("MIRROR_PAD", [y, s.constant(pads, np.int32)], shape, options=options)
        return s.cast(result, x.type)
    return _edged(c, x, pads, mode)


def _padded(c: Call, x: Tensor, pads: Tensor, shape: Sequence[Size]) -> Tensor:
    s = c.scope
    if x.rank > 5:
        raise c.refuse(f"padding of {x.rank} axes, expected at most 5")
    y = s.checked("PADV2", x)
    number = c.optional(2)
    if c.node.op_type != "Pad" or number is None:
        number = s.like(0, y)
    if x.quantization is not None:
        number = Tensor(x.type, (), np.asarray(x.quantization.zero_point[0], x_dtype(x)), x.quantization)
    number = s.reshape(s.cast(number, y.type), [1])
    return s.cast(s.op("PADV2", [y, pads, number], shape, quantization=x.quantization), x.type)


def x_dtype(x: Tensor) -> type:
    """Return numpy's type of a tensor."""
    from sardonyx.export.tflite.file_builder import DTYPES

    return DTYPES[x.type]  # type: ignore[no-any-return]


def _edged(c: Call, x: Tensor, pads: np.ndarray, mode: str) -> Tensor:
    """Repeat the edge, or wrap, axis by axis: the positions are gathered."""
    s = c.scope
    for axis in range(x.rank):
        before, after = (int(n) for n in pads[axis])
        if not before and not after:
            continue
        n = x.shape[axis]
        if not isinstance(n, int):
            raise c.refuse(f"padding in mode {mode} of an axis of open size")
        positions = np.arange(-before, n + after)
        positions = positions % n if mode == "wrap" else positions.clip(0, n - 1)
        shape = [*x.shape[:axis], n + before + after, *x.shape[axis + 1 :]]
        indices = s.constant(positions, np.int32)
        y = s.checked("GATHER", x)
        x = s.cast(s.op("GATHER", [y, indices], shape, options=("GatherOptions", {"axis": axis})), x.type)
    return x


@emits("ConstantOfShape")
def constant_of_shape(c: Call) -> Tensor:
    """Write a filled tensor."""
    s = c.scope
    value = c.attribute("value")
    number = np.zeros((), np.float32) if value is None else value.numpy().reshape(-1)[0]
    shape = c.shape()
    if all(isinstance(size, int) for size in shape) and np.prod([float(n) for n in shape]) <= 1 << 16:
        return s.constant(np.full([int(n) for n in shape], number))
    scalar = s.constant(np.asarray(number))
    return s.op("FILL", [s.cast(c.input(), "INT32"), scalar], shape, scalar.type)


@emits("Range")
def range_(c: Call) -> Tensor:
    """Write an arithmetic sequence."""
    s = c.scope
    operands = [s.reshape(s.checked("RANGE", x), []) for x in c.inputs()]
    return s.cast(s.op("RANGE", operands, c.shape()), c.type())


@emits("DepthToSpace")
def depth_to_space(c: Call) -> Tensor:
    """Write blocks of pixels from channels; with channels last, or by reshapes."""
    return _blocks(c, "DEPTH_TO_SPACE", c.attribute("mode", "DCR"))


@emits("SpaceToDepth")
def space_to_depth(c: Call) -> Tensor:
    """Write channels from blocks of pixels."""
    return _blocks(c, "SPACE_TO_DEPTH", "DCR")


def _blocks(c: Call, name: str, mode: str) -> Tensor:
    x, s, block = c.input(), c.scope, int(c.attribute("blocksize"))
    shape = c.shape()
    if not c.is_last:
        raise c.refuse("an image of unknown channels")
    if mode == "CRD":
        channels = int(x.shape[3]) // (block * block)
        order = np.arange(x.shape[3]).reshape(channels, block * block).T.reshape(-1)
        options = ("GatherOptions", {"axis": 3})
        x = s.op("GATHER", [x, s.constant(order, np.int32)], x.shape, options=options, quantization=x.quantization)
    kind = "DepthToSpaceOptions" if name == "DEPTH_TO_SPACE" else "SpaceToDepthOptions"
    return s.op(name, [s.checked(name, x)], shape, options=(kind, {"block_size": block}), quantization=x.quantization)
