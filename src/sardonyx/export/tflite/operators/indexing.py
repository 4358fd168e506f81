"""Operators that read and write by index, and that order elements."""

from __future__ import annotations

import numpy as np

from sardonyx.export.tflite.emission import Call, Scope, emits
from sardonyx.export.tflite.file_builder import Size, Tensor
from sardonyx.export.tflite.operators.elementwise import select

MOST_CLASSES = 256
"""Number of classes up to which suppression is written class by class."""

_STRIDES = ("StridedSliceOptions", dict[str, int]())


def indices_of(s: Scope, indices: Tensor, size: Size, axis: int, data: Tensor) -> Tensor:
    """Return indices from 0: those below zero count from the end."""
    if indices.array is not None:
        if not (indices.array < 0).any():
            return s.cast(indices, "INT32") if indices.array.size and indices.array.max() < 2**31 else indices
        if isinstance(size, int):
            return s.constant(np.where(indices.array < 0, indices.array + size, indices.array), np.int32)
    length = s.cast(s.reshape(s.size(size), []), indices.type)
    moved = s.binary("ADD", indices, length)
    return select(s, s.binary("LESS", indices, s.like(0, indices), type="BOOL"), moved, indices)


@emits("Gather")
def gather(c: Call) -> Tensor:
    """Write slices at indices along an axis."""
    x, s, axis = c.input(), c.scope, c.axis()
    y = s.checked("GATHER", x)
    indices = indices_of(s, c.input(1), x.shape[axis], axis, x)
    shape = [*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]]
    options = ("GatherOptions", {"axis": axis})
    return s.cast(s.op("GATHER", [y, indices], shape, options=options, quantization=x.quantization), x.type)


@emits("GatherND")
def gather_nd(c: Call) -> Tensor:
    """Write elements or slices at index tuples; batch axes become indices."""
    x, indices = c.input(0), c.input(1)
    s, batch = c.scope, int(c.attribute("batch_dims", 0))
    y = s.checked("GATHER_ND", x)
    depth = indices.shape[-1]
    if not isinstance(depth, int):
        raise c.refuse("index tuples of open length")
    columns = [_column(s, indices, i, x.shape[batch + i], x) for i in range(depth)]
    if batch:
        columns = [*(_positions(s, indices.shape[:-1], axis) for axis in range(batch)), *columns]
    tuples = s.concatenation(columns, indices.rank - 1)
    shape = [*indices.shape[:-1], *x.shape[batch + depth :]]
    return s.cast(s.op("GATHER_ND", [y, tuples], shape, quantization=x.quantization), x.type)


def _column(s: Scope, indices: Tensor, number: int, size: Size, data: Tensor) -> Tensor:
    """Return one column of index tuples, int32, not negative."""
    last = indices.rank - 1
    options = ("GatherOptions", {"axis": last})
    if indices.array is not None:
        column = s.constant(indices.array[..., number : number + 1])
    else:
        shape = [*indices.shape[:-1], 1]
        column = s.op("GATHER", [indices, s.constant([number], np.int32)], shape, options=options)
    return s.cast(indices_of(s, column, size, 0, data), "INT32")


def _positions(s: Scope, shape: tuple[Size, ...], axis: int) -> Tensor:
    """Return the position along an axis for every element of `shape`, with a last axis of size 1."""
    n = shape[axis]
    if all(isinstance(size, int) for size in shape):
        wide = [1] * len(shape)
        wide[axis] = int(n)
        grid = np.broadcast_to(np.arange(int(n), dtype=np.int32).reshape(wide), [int(size) for size in shape])
        return s.constant(np.ascontiguousarray(grid)[..., None])
    zero, one = s.constant(0, np.int32), s.constant(1, np.int32)
    line = s.op("RANGE", [zero, s.reshape(s.size(n), []), one], [n])
    around: list[Size] = [1] * len(shape)
    around[axis] = n
    return s.reshape(s.broadcast_to(s.reshape(line, around), shape), [*shape, 1])


@emits("GatherElements")
def gather_elements(c: Call) -> Tensor:
    """Write elements at positions along an axis, by index tuples."""
    x, indices = c.inputs()
    s, axis = c.scope, c.axis()
    tuples = _element_tuples(s, indices, axis, x)
    y = s.checked("GATHER_ND", x)
    return s.cast(s.op("GATHER_ND", [y, tuples], indices.shape, quantization=x.quantization), x.type)


def _element_tuples(s: Scope, indices: Tensor, axis: int, data: Tensor) -> Tensor:
    own = s.reshape(s.cast(indices_of(s, indices, data.shape[axis], axis, data), "INT32"), [*indices.shape, 1])
    columns = [own if i == axis else _positions(s, indices.shape, i) for i in range(data.rank)]
    return s.concatenation(columns, indices.rank)


@emits("ScatterElements")
def scatter_elements(c: Call) -> Tensor:
    """Write updates at positions along an axis."""
    x, indices, updates = c.inputs()
    return _scattered(c, x, _element_tuples(c.scope, indices, c.axis(), x), updates)


@emits("ScatterND")
def scatter_nd(c: Call) -> Tensor:
    """Write updates at index tuples."""
    x, indices, updates = c.inputs()
    depth = indices.shape[-1]
    if not isinstance(depth, int):
        raise c.refuse("index tuples of open length")
    s = c.scope
    columns = [_column(s, indices, i, x.shape[i], x) for i in range(depth)]
    return _scattered(c, x, s.concatenation(columns, indices.rank - 1), updates)


def _added(s: Scope, tuples: Tensor, updates: Tensor, shape: Tensor, x: Tensor) -> Tensor:
    """Return zeros of the sizes of `x`, with updates added."""
    return s.op("SCATTER_ND", [tuples, updates, shape], x.shape, updates.type)


def _scattered(c: Call, x: Tensor, tuples: Tensor, updates: Tensor) -> Tensor:
    """Return `x` with updates set or added: SCATTER_ND adds them to zeros."""
    s = c.scope
    reduction = c.attribute("reduction", "none")
    shape = s.shape_tensor(x.shape)
    if reduction == "add":
        total = _added(s, tuples, s.checked("SCATTER_ND", updates), shape, x)
        return s.binary("ADD", x, s.cast(total, x.type))
    if reduction != "none":
        raise c.refuse(f"reduction '{reduction}'")
    wide = s.cast(updates, "INT32") if updates.type == "BOOL" else s.checked("SCATTER_ND", updates)
    values = s.cast(_added(s, tuples, wide, shape, x), x.type)
    ones = s.binary("ADD", s.binary("MUL", s.cast(updates, "INT32"), s.constant(0, np.int32)), s.constant(1, np.int32))
    written = _added(s, tuples, ones, shape, x)
    return select(s, s.binary("GREATER", written, s.constant(0, np.int32), type="BOOL"), values, x)


@emits("OneHot")
def one_hot(c: Call) -> Tensor:
    """Write vectors with one element set; indices below zero count from the end."""
    s = c.scope
    depth = c.input(1)
    values = c.input(2)
    rank = c.input().rank + 1
    axis = int(c.attribute("axis", -1)) % rank
    indices = s.cast(c.input(), "INT64") if c.input().type != "INT32" else c.input()
    length = s.cast(s.reshape(depth, []), indices.type)
    moved = select(
        s, s.binary("LESS", indices, s.like(0, indices), type="BOOL"), s.binary("ADD", indices, length), indices
    )
    off, on = (s.reshape(s.slice(values, [i], [i + 1]), []) for i in (0, 1))
    operands = [moved, s.cast(length, "INT32"), on, off]
    return s.op("ONE_HOT", operands, c.shape(), values.type, ("OneHotOptions", {"axis": axis}))


@emits("NonZero")
def non_zero(c: Call) -> Tensor:
    """Write the positions of elements that are not zero, [rank, count]."""
    x, s = c.input(), c.scope
    condition = x if x.type == "BOOL" else s.binary("NOT_EQUAL", x, s.like(0, x), type="BOOL")
    count = c.shape()[1]
    positions = s.op("WHERE", [condition], [count, x.rank], "INT64")
    return s.transpose(positions, [1, 0])


@emits("TopK")
def top_k(c: Call) -> list[Tensor]:
    """Write the largest elements along an axis; the smallest by negation."""
    x, s, axis = c.input(), c.scope, c.axis(-1)
    largest = c.attribute("largest", 1)
    order = [i for i in range(x.rank) if i != axis] + [axis]
    y = s.transpose(s.checked("TOPK_V2", x), order)
    if not largest:
        y = s.unary("NEG", y)
    count = s.reshape(s.cast(c.input(1), "INT32"), [])
    shape = [c.shape()[i] for i in order]
    values, indices = s.computed(y.type, shape), s.computed("INT32", shape)
    s.builder.operator("TOPK_V2", [y, count], [values, indices], ("TopKV2Options", {}))
    if not largest:
        values = s.unary("NEG", values)
    back = [order.index(i) for i in range(x.rank)]
    return [s.cast(s.transpose(values, back), x.type), s.cast(s.transpose(indices, back), "INT64")]


@emits("NonMaxSuppression")
def non_max_suppression(c: Call) -> Tensor:
    """Write suppression of overlapping boxes of one image, class by class."""
    s = c.scope
    boxes, scores = c.input(0), c.input(1)
    images, classes, count = scores.shape
    if images != 1 or not isinstance(classes, int) or classes > MOST_CLASSES or c.attribute("center_point_box", 0):
        raise c.refuse(f"several images, an open number of classes or more than {MOST_CLASSES}, or boxes by centres")
    if not c.has(2):
        return s.constant(np.zeros((0, 3), np.int64))
    flat = s.reshape(boxes, [count, 4])
    most = s.binary("MINIMUM", s.reshape(s.cast(c.input(2), "INT32"), [1]), s.size(count))
    thresholds = [
        s.reshape(c.input(3), []) if c.has(3) else s.constant(np.float32(0)),
        s.reshape(c.input(4), []) if c.has(4) else s.constant(np.float32(np.finfo(np.float32).min)),
    ]
    rows = []
    for number in range(classes):
        column = s.reshape(s.slice_open(scores, [0, number, 0], [1, number + 1, None]), [count])
        chosen, length = s.computed("INT32", [s.fresh_size()]), s.computed("INT32", [])
        operands = [flat, column, s.reshape(most, []), *thresholds]
        options: tuple[str, dict[str, int]] = ("NonMaxSuppressionV4Options", {})
        s.builder.operator("NON_MAX_SUPPRESSION_V4", operands, [chosen, length], options)
        begin, one = s.constant([0], np.int32), s.constant([1], np.int32)
        size = s.fresh_size()
        chosen_rows = s.op("STRIDED_SLICE", [chosen, begin, s.reshape(length, [1]), one], [size], options=_STRIDES)
        column = s.reshape(chosen_rows, [size, 1])
        zero = s.binary("MUL", column, s.constant(0, np.int32))
        rows.append(s.concatenation([zero, s.binary("ADD", zero, s.constant(number, np.int32)), column], 1))
    return s.cast(s.concatenation(rows, 0), "INT64")


@emits("ReverseSequence")
def reverse_sequence(c: Call) -> Tensor:
    """Write reversal of the first elements of each sequence."""
    x, lengths = c.inputs()
    options = {"seq_dim": int(c.attribute("time_axis", 0)), "batch_dim": int(c.attribute("batch_axis", 1))}
    y = c.scope.checked("REVERSE_SEQUENCE", x)
    return c.scope.op("REVERSE_SEQUENCE", [y, lengths], x.shape, options=("ReverseSequenceOptions", options))


@emits("Trilu")
def trilu(c: Call) -> Tensor:
    """Write a triangle of matrices, by comparison of positions."""
    x, s = c.input(), c.scope
    k = c.optional(1)
    offset = s.constant(0, np.int32) if k is None else s.reshape(s.cast(k, "INT32"), [])
    rows, columns = x.shape[-2], x.shape[-1]
    grid = (rows, columns)
    row, column = (s.reshape(_positions(s, grid, i), grid) for i in (0, 1))
    edge = s.binary("ADD", row, offset)
    inside = s.binary("GREATER_EQUAL" if c.attribute("upper", 1) else "LESS_EQUAL", column, edge, type="BOOL")
    if x.type == "BOOL":
        return s.broadcast("LOGICAL_AND", [x, inside], "BOOL")
    return select(s, inside, x, s.like(0, x))


@emits("EyeLike")
def eye_like(c: Call) -> Tensor:
    """Write ones on a diagonal."""
    x, s = c.input(), c.scope
    row, column = (s.reshape(_positions(s, x.shape, i), x.shape) for i in (0, 1))
    on = s.binary("EQUAL", column, s.binary("ADD", row, s.constant(int(c.attribute("k", 0)), np.int32)), type="BOOL")
    return s.cast(on, c.type())
