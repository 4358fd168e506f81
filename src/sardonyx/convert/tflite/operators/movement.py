"""Operators that move elements: shapes, slices, concatenation, gathering and scattering, padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.convert.tflite.translation import Call, tflite

INT64_MAX = np.iinfo(np.int64).max


def axes_constant(c: Call, axes: Sequence[int]) -> ir.Value:
    """Return axes as an int64 vector."""
    return c.constant(list(axes), np.int64)


def axis_of(c: Call, axis: int, rank: int) -> int:
    """Return an axis from 0.

    Raises:
        InvalidModelError: The axis is out of range.
    """
    if not -rank <= axis < rank:
        raise c.invalid(f"axis {axis}, expected {-rank} to {rank - 1}")
    return axis % rank


@tflite("RESHAPE", "STABLEHLO_RESHAPE")
def reshape(c: Call) -> ir.Value:
    """Translate a change of sizes; the sizes are the second input or an option."""
    if c.has(1):
        array = c.array(1)
        if array is None:
            return c.node("Reshape", c.input(0), c.node("Reshape", c.int64(1), axes_constant(c, [-1])), allowzero=1)
        sizes = [int(n) for n in array.reshape(-1)]
    elif c.name == "RESHAPE" and len(c.option("new_shape", ())):
        sizes = [int(n) for n in c.option("new_shape")]
    else:
        sizes = list(c.output().signature)
    if sizes == [0] and c.output().shape == ():
        sizes = []
    if sizes.count(-1) > 1:
        raise c.unsupported(f"sizes {sizes} are not known, expected at most one open size")
    if c.tensor(0).type.startswith("COMPLEX"):
        sizes.append(2)
    allowzero = 1 if 0 in sizes and -1 not in sizes else None
    return c.node("Reshape", c.input(0), axes_constant(c, sizes), allowzero=allowzero)


@tflite("SQUEEZE")
def squeeze(c: Call) -> ir.Value:
    """Translate removal of axes of size 1: the options' axes, or all."""
    axes = [int(a) for a in c.option("squeeze_dims", ())]
    axes = axes or [i for i, n in enumerate(c.sizes(0)) if n == 1]
    return c.node("Squeeze", c.input(0), axes_constant(c, axes))


@tflite("EXPAND_DIMS")
def expand_dims(c: Call) -> ir.Value:
    """Translate insertion of an axis of size 1."""
    return c.node("Unsqueeze", c.input(0), c.node("Reshape", c.int64(1), axes_constant(c, [-1])))


@tflite("TRANSPOSE")
def transpose(c: Call) -> ir.Value:
    """Translate permutation of axes."""
    return c.node("Transpose", c.input(0), perm=c.integers(1, "the permutation"))


@tflite("STABLEHLO_TRANSPOSE")
def stablehlo_transpose(c: Call) -> ir.Value:
    """Translate permutation of axes by option."""
    return c.node("Transpose", c.input(0), perm=[int(a) for a in c.option("permutation", ())])


@tflite("CONCATENATION")
def concatenation(c: Call) -> ir.Value:
    """Translate concatenation along an axis."""
    axis = axis_of(c, int(c.option("axis")), max(len(c.output().shape), c.rank(0)))
    return c.activated(c.node("Concat", *c.reals(), axis=axis))


@tflite("STABLEHLO_CONCATENATE")
def stablehlo_concatenate(c: Call) -> ir.Value:
    """Translate concatenation along an axis."""
    return c.node("Concat", *c.reals(), axis=int(c.option("dimension")))


def _parts(c: Call, value: ir.Value, sizes: ir.Value | None, axis: int) -> list[ir.Value]:
    count = len(c.record.outputs)
    attributes = {"num_outputs": count} if sizes is None else {}
    return c.nodes("Split", count, value, sizes, axis=axis, **attributes)


@tflite("SPLIT")
def split(c: Call) -> list[ir.Value]:
    """Translate division into equal parts: axis, tensor."""
    axis = axis_of(c, c.integers(0, "the axis")[0], c.rank(1))
    return _parts(c, c.input(1), None, axis)


@tflite("SPLIT_V")
def split_v(c: Call) -> list[ir.Value]:
    """Translate division into parts: tensor, sizes, axis."""
    axis = axis_of(c, c.integers(2, "the axis")[0], c.rank(0))
    sizes = c.integers(1, "the part sizes")
    if -1 in sizes:
        whole = c.sizes(0)[axis]
        if whole < 0 or sizes.count(-1) > 1:
            raise c.unsupported(f"part sizes {sizes} of an axis of open size")
        sizes[sizes.index(-1)] = whole - sum(sizes) - 1
    return _parts(c, c.input(0), axes_constant(c, sizes), axis)


@tflite("PACK")
def pack(c: Call) -> ir.Value:
    """Translate stacking along a new axis."""
    axis = axis_of(c, int(c.option("axis")), c.rank(0) + 1)
    parts = [c.node("Unsqueeze", value, axes_constant(c, [axis])) for value in c.reals()]
    return c.node("Concat", *parts, axis=axis)


@tflite("UNPACK")
def unpack(c: Call) -> list[ir.Value]:
    """Translate division along an axis into parts without the axis."""
    axis = axis_of(c, int(c.option("axis")), c.rank(0))
    parts = _parts(c, c.input(0), None, axis)
    return [c.node("Squeeze", part, axes_constant(c, [axis])) for part in parts]


@tflite("SLICE")
def slice_(c: Call) -> ir.Value:
    """Translate a slice by starts and sizes; a size of -1 reaches the end."""
    axes = axes_constant(c, range(c.rank(0)))
    starts, sizes = c.array(1), c.array(2)
    if starts is not None and sizes is not None:
        pairs = zip(starts.reshape(-1).tolist(), sizes.reshape(-1).tolist(), strict=True)
        ends = [INT64_MAX if size == -1 else start + size for start, size in pairs]
        return c.node("Slice", c.input(0), c.int64(1), axes_constant(c, ends), axes)
    begin, size = c.int64(1), c.int64(2)
    to_end = c.node("Equal", size, c.constant(-1, np.int64))
    ends_value = c.node("Where", to_end, c.constant(INT64_MAX, np.int64), c.node("Add", begin, size))
    return c.node("Slice", c.input(0), begin, ends_value, axes)


@tflite("STABLEHLO_SLICE")
def stablehlo_slice(c: Call) -> ir.Value:
    """Translate a slice by starts, ends and steps of options."""
    starts, ends, steps = (
        axes_constant(c, [int(n) for n in c.option(name, ())]) for name in ("start_indices", "limit_indices", "strides")
    )
    return c.node("Slice", c.input(0), starts, ends, axes_constant(c, range(c.rank(0))), steps)


@tflite("STRIDED_SLICE")
def strided_slice(c: Call) -> ir.Value:
    """Translate a numpy-like slice: bits of masks leave an end open, insert or remove axes."""
    begin_mask, end_mask, ellipsis, new_axis, shrink = (
        int(c.option(f"{name}_mask")) for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    )
    rank, count = c.rank(0), c.tensor(1).shape[0] if c.tensor(1).shape else 1
    steps = c.integers(3, "the steps")
    if len(steps) != count or ellipsis & (ellipsis - 1):
        raise c.invalid(f"expected {count} steps and at most one ellipsis, got {len(steps)}")
    consumed = sum(1 for i in range(count) if not (new_axis | ellipsis) >> i & 1)
    axis, rows, axes = 0, [], []
    squeezed, inserted, result_axis = [], [], 0
    for i in range(count):
        if ellipsis >> i & 1:
            skipped = rank - consumed
            axis += skipped
            result_axis += skipped
        elif new_axis >> i & 1:
            inserted.append(result_axis)
            result_axis += 1
        else:
            rows.append(i)
            axes.append(axis)
            if shrink >> i & 1:
                squeezed.append(axis)
            else:
                result_axis += 1
            axis += 1
    if axis > rank:
        raise c.invalid(f"a slice of {axis} axes, expected at most {rank}")
    value = c.input(0)
    if rows:
        starts, ends = _slice_ends(c, rows, steps, begin_mask, end_mask, shrink)
        value = c.node("Slice", value, starts, ends, axes_constant(c, axes), axes_constant(c, [steps[i] for i in rows]))
    if squeezed:
        value = c.node("Squeeze", value, axes_constant(c, squeezed))
    if inserted:
        value = c.node("Unsqueeze", value, axes_constant(c, inserted))
    return value


def _extreme(*, is_start: bool, up: bool) -> int:
    """Return the start or end of a slice of the whole axis."""
    if is_start:
        return 0 if up else INT64_MAX
    return INT64_MAX if up else -INT64_MAX


def _slice_ends(
    c: Call, rows: list[int], steps: list[int], begin_mask: int, end_mask: int, shrink: int
) -> tuple[ir.Value, ir.Value]:
    begin, end = c.array(1), c.array(2)
    if begin is not None and (end is not None or all((shrink | end_mask) >> i & 1 for i in rows)):
        starts, ends = [], []
        for i in rows:
            start = int(begin.reshape(-1)[i])
            if shrink >> i & 1:
                starts.append(start)
                ends.append(start + 1 if start != -1 else INT64_MAX)
                if steps[i] < 0:
                    raise c.invalid("a removed axis has a negative step")
                continue
            up = steps[i] > 0
            starts.append((0 if up else INT64_MAX) if begin_mask >> i & 1 else start)
            if end_mask >> i & 1:
                ends.append(INT64_MAX if up else -INT64_MAX)
            else:
                assert end is not None
                ends.append(int(end.reshape(-1)[i]))
        return axes_constant(c, starts), axes_constant(c, ends)
    chosen = axes_constant(c, rows)
    start_value = c.node("Gather", c.int64(1), chosen)
    end_value = c.node("Gather", c.int64(2), chosen)
    single = np.array([bool(shrink >> i & 1) for i in rows])
    if single.any():
        next_value = c.node("Add", start_value, c.constant(1, np.int64))
        is_last = c.node("Equal", next_value, c.constant(0, np.int64))
        next_value = c.node("Where", is_last, c.constant(INT64_MAX, np.int64), next_value)
        end_value = c.node("Where", c.constant(single), next_value, end_value)
    for mask, is_start in ((begin_mask, True), (end_mask, False)):
        open_ = np.array([bool(mask >> i & 1) and not shrink >> i & 1 for i in rows])
        if open_.any():
            extreme = [_extreme(is_start=is_start, up=steps[i] > 0) for i in rows]
            if is_start:
                start_value = c.node("Where", c.constant(open_), axes_constant(c, extreme), start_value)
            else:
                end_value = c.node("Where", c.constant(open_), axes_constant(c, extreme), end_value)
    return start_value, end_value


@tflite("GATHER")
def gather(c: Call) -> ir.Value:
    """Translate gathering along an axis, with leading axes in common if ``batch_dims`` is set."""
    rank, batch = c.rank(0), int(c.option("batch_dims"))
    axis = axis_of(c, int(c.option("axis")), rank)
    if not batch:
        return c.node("Gather", c.input(0), c.stored(1), axis=axis)
    indices_rank = c.rank(1)
    batch = axis_of(c, batch, indices_rank + 1) if batch < 0 else batch
    if batch > min(axis, indices_rank):
        raise c.invalid(f"batch_dims {batch}, expected at most {min(axis, indices_rank)}")
    # Bring the axis next to the batch axes, gather with GatherND, and bring the indices' axes to the axis.
    order = [*range(batch), axis, *range(batch, axis), *range(axis + 1, rank)]
    x = c.input(0) if order == list(range(rank)) else c.node("Transpose", c.input(0), perm=order)
    indices = c.node("Unsqueeze", c.int64(1), axes_constant(c, [-1]))
    result = c.node("GatherND", x, indices, batch_dims=batch)
    inner, before = indices_rank - batch, axis - batch
    back = [
        *range(batch),
        *range(batch + inner, batch + inner + before),
        *range(batch, batch + inner),
        *range(batch + inner + before, rank - 1 + inner),
    ]
    return result if back == list(range(len(back))) else c.node("Transpose", result, perm=back)


@tflite("GATHER_ND")
def gather_nd(c: Call) -> ir.Value:
    """Translate gathering by tuples of indices."""
    return c.node("GatherND", c.input(0), c.int64(1))


@tflite("EMBEDDING_LOOKUP")
def embedding_lookup(c: Call) -> ir.Value:
    """Translate rows of a table: indices, table."""
    return c.node("Gather", c.input(1), c.stored(0), axis=0)


@tflite("SCATTER_ND")
def scatter_nd(c: Call) -> ir.Value:
    """Translate addition of updates into zeros: indices, updates, sizes."""
    zero = ir.tensor(np.zeros(1, np.float32 if c.scope.is_quantized(c.record.outputs[0]) else c.output_type().numpy()))
    zeros = c.node("ConstantOfShape", c.int64(2), value=zero)
    return c.node("ScatterND", zeros, c.int64(0), c.input(1), reduction="add")


@tflite("SPARSE_TO_DENSE")
def sparse_to_dense(c: Call) -> ir.Value:
    """Translate values at indices over a default: indices, sizes, values, default."""
    dense = c.node("Expand", c.input(3), c.int64(1))
    indices = c.int64(0)
    if c.rank(0) == 0:
        indices = c.node("Reshape", indices, axes_constant(c, [1, 1]))
    elif c.rank(0) == 1:
        indices = c.node("Unsqueeze", indices, axes_constant(c, [1]))
    values = c.input(2)
    if c.rank(2) == 0:
        values = c.node("Expand", values, c.node("Shape", indices, end=1))
    return c.node("ScatterND", dense, indices, values)


@tflite("DYNAMIC_UPDATE_SLICE", "STABLEHLO_DYNAMIC_UPDATE_SLICE")
def dynamic_update_slice(c: Call) -> ir.Value:
    """Translate replacement of a block: tensor, block, starts, which are clamped so that the block fits."""
    rank = c.rank(0)
    if c.name.startswith("STABLEHLO"):
        parts = [c.node("Reshape", c.int64(2 + i), axes_constant(c, [1])) for i in range(rank)]
        starts = c.node("Concat", *parts, axis=0)
    else:
        starts = c.int64(2)
    block = c.node("Shape", c.input(1))
    most = c.node("Sub", c.node("Shape", c.input(0)), block)
    starts = c.node("Max", c.node("Min", starts, most), c.constant(0, np.int64))
    grids = []
    for axis in range(rank):
        size = c.node("Squeeze", c.node("Shape", c.input(1), start=axis, end=axis + 1), axes_constant(c, [0]))
        line = c.node("Range", c.constant(0, np.int64), size, c.constant(1, np.int64))
        line = c.node("Add", line, c.node("Gather", starts, axes_constant(c, [axis])))
        column = [1] * rank
        column[axis] = -1
        grid = c.node("Expand", c.node("Reshape", line, axes_constant(c, column)), block)
        grids.append(c.node("Unsqueeze", grid, axes_constant(c, [-1])))
    return c.node("ScatterND", c.input(0), c.node("Concat", *grids, axis=-1), c.input(1))


def _pads(c: Call, number: int) -> ir.Value:
    """Return pads [rank, 2] as begins and ends."""
    array = c.array(number)
    if array is not None:
        return axes_constant(c, array.reshape(-1, 2).T.reshape(-1).tolist())
    return c.node("Reshape", c.node("Transpose", c.int64(number), perm=[1, 0]), axes_constant(c, [-1]))


@tflite("PAD", "PADV2")
def pad(c: Call) -> ir.Value:
    """Translate padding with zeros or a value."""
    value = c.node("Squeeze", c.input(2)) if c.has(2) and c.rank(2) else c.optional(2)
    return c.node("Pad", c.input(0), _pads(c, 1), value)


@tflite("MIRROR_PAD")
def mirror_pad(c: Call) -> ir.Value:
    """Translate reflection without the edge, or with the edge (by concatenation of reversed slices)."""
    if not int(c.option("mode")):
        return c.node("Pad", c.input(0), _pads(c, 1), mode="reflect")
    pads = c.integers(1, "the padding")
    value = c.input(0)
    for axis in range(c.rank(0)):
        begin, end = pads[2 * axis], pads[2 * axis + 1]
        parts = [value]
        one, minus = axes_constant(c, [axis]), axes_constant(c, [-1])
        if begin:
            parts.insert(
                0, c.node("Slice", value, axes_constant(c, [begin - 1]), axes_constant(c, [-INT64_MAX]), one, minus)
            )
        if end:
            parts.append(c.node("Slice", value, minus, axes_constant(c, [-end - 1]), one, minus))
        if len(parts) > 1:
            value = c.node("Concat", *parts, axis=axis)
    return value


@tflite("TILE")
def tile(c: Call) -> ir.Value:
    """Translate repetition."""
    return c.node("Tile", c.input(0), c.int64(1))


@tflite("BROADCAST_TO")
def broadcast_to(c: Call) -> ir.Value:
    """Translate repetition of axes of size 1."""
    return c.node("Expand", c.input(0), c.int64(1))


@tflite("STABLEHLO_BROADCAST_IN_DIM")
def broadcast_in_dim(c: Call) -> ir.Value:
    """Translate repetition to the result's sizes, with a target for each axis."""
    sizes, targets = c.output().signature, [int(a) for a in c.option("broadcast_dimensions", ())]
    if -1 in sizes or len(targets) != c.rank(0):
        raise c.unsupported("broadcast to open sizes")
    inner = [1] * len(sizes)
    for axis, target in enumerate(targets):
        inner[axis_of(c, target, len(sizes))] = c.sizes(0)[axis]
    return c.node("Expand", c.node("Reshape", c.input(0), axes_constant(c, inner)), axes_constant(c, sizes))


@tflite("BROADCAST_ARGS")
def broadcast_args(c: Call) -> ir.Value:
    """Translate the sizes that two lists of sizes broadcast to."""
    ones = [c.node("ConstantOfShape", c.int64(i), value=ir.tensor(np.zeros(1, np.int64))) for i in range(2)]
    return c.cast(c.node("Shape", c.node("Add", *ones)), c.output_type())


@tflite("REVERSE_V2")
def reverse_v2(c: Call) -> ir.Value:
    """Translate reversal along axes."""
    axes = [axis_of(c, axis, c.rank(0)) for axis in c.integers(1, "the axes")]
    ends = [-INT64_MAX] * len(axes)
    minus = [-1] * len(axes)
    return c.node("Slice", c.input(0), *(axes_constant(c, part) for part in (minus, ends, axes, minus)))


@tflite("REVERSE_SEQUENCE")
def reverse_sequence(c: Call) -> ir.Value:
    """Translate reversal of leading parts; ONNX has axes 0 and 1 alone, other axes are moved there."""
    rank = c.rank(0)
    time, batch = (axis_of(c, int(c.option(name)), rank) for name in ("seq_dim", "batch_dim"))
    if {time, batch} == {0, 1}:
        return c.node("ReverseSequence", c.input(0), c.int64(1), time_axis=time, batch_axis=batch)
    order = [batch, time, *(axis for axis in range(rank) if axis not in (batch, time))]
    moved = c.node("Transpose", c.input(0), perm=order)
    result = c.node("ReverseSequence", moved, c.int64(1), time_axis=1, batch_axis=0)
    return c.node("Transpose", result, perm=[order.index(axis) for axis in range(rank)])


@tflite("DEPTH_TO_SPACE")
def depth_to_space(c: Call) -> ir.Value:
    """Translate blocks of channels to blocks of pixels."""
    x = c.node("Transpose", c.input(0), perm=[0, 3, 1, 2])
    result = c.node("DepthToSpace", x, blocksize=int(c.option("block_size")), mode="DCR")
    return c.node("Transpose", result, perm=[0, 2, 3, 1])


@tflite("SPACE_TO_DEPTH")
def space_to_depth(c: Call) -> ir.Value:
    """Translate blocks of pixels to blocks of channels."""
    x = c.node("Transpose", c.input(0), perm=[0, 3, 1, 2])
    result = c.node("SpaceToDepth", x, blocksize=int(c.option("block_size")))
    return c.node("Transpose", result, perm=[0, 2, 3, 1])


def _blocks(c: Call) -> tuple[list[int], list[tuple[int, int]]]:
    blocks = c.integers(1, "the block sizes")
    pairs = c.integers(2, "the padding or cropping")
    if len(pairs) != 2 * len(blocks) or min(blocks, default=0) < 1 or len(blocks) >= c.rank(0):
        raise c.invalid(f"expected block sizes of at least 1 and a pair for each, got {blocks} and {pairs}")
    return blocks, list(zip(pairs[::2], pairs[1::2], strict=True))


@tflite("SPACE_TO_BATCH_ND")
def space_to_batch_nd(c: Call) -> ir.Value:
    """Translate blocks of pixels to the batch axis, after padding."""
    blocks, pairs = _blocks(c)
    count, rank = len(blocks), c.rank(0)
    begins, ends = [0] * rank, [0] * rank
    for i, (begin, end) in enumerate(pairs):
        begins[1 + i], ends[1 + i] = begin, end
    value = c.node("Pad", c.input(0), axes_constant(c, [*begins, *ends]))
    shape = c.node("Shape", value)
    inner = [axes_constant(c, [n]) for n in blocks]
    lengths = c.node(
        "Div", c.node("Slice", shape, *(axes_constant(c, [n]) for n in (1, 1 + count))), axes_constant(c, blocks)
    )
    pieces: list[ir.Value] = [c.node("Slice", shape, axes_constant(c, [0]), axes_constant(c, [1]))]
    for i in range(count):
        pieces += [c.node("Slice", lengths, axes_constant(c, [i]), axes_constant(c, [i + 1])), inner[i]]
    if 1 + count < rank:
        pieces.append(c.node("Slice", shape, axes_constant(c, [1 + count]), axes_constant(c, [rank])))
    value = c.node("Reshape", value, c.node("Concat", *pieces, axis=0))
    rest = range(1 + 2 * count, rank + count)
    order = [*(2 + 2 * i for i in range(count)), 0, *(1 + 2 * i for i in range(count)), *rest]
    value = c.node("Transpose", value, perm=order)
    sizes: list[ir.Value] = [axes_constant(c, [-1]), lengths]
    if 1 + count < rank:
        sizes.append(pieces[-1])
    return c.node("Reshape", value, c.node("Concat", *sizes, axis=0))


@tflite("BATCH_TO_SPACE_ND")
def batch_to_space_nd(c: Call) -> ir.Value:
    """Translate parts of the batch axis to blocks of pixels, and crop."""
    blocks, pairs = _blocks(c)
    count, rank = len(blocks), c.rank(0)
    shape = c.node("Shape", c.input(0))
    tail = c.node("Slice", shape, axes_constant(c, [1]), axes_constant(c, [rank]))
    value = c.node("Reshape", c.input(0), c.node("Concat", axes_constant(c, [*blocks, -1]), tail, axis=0))
    order = [count]
    for i in range(count):
        order += [count + 1 + i, i]
    order += range(2 * count + 1, rank + count)
    value = c.node("Transpose", value, perm=order)
    lengths = c.node(
        "Mul", c.node("Slice", shape, *(axes_constant(c, [n]) for n in (1, 1 + count))), axes_constant(c, blocks)
    )
    sizes: list[ir.Value] = [axes_constant(c, [-1]), lengths]
    if 1 + count < rank:
        sizes.append(c.node("Slice", shape, axes_constant(c, [1 + count]), axes_constant(c, [rank])))
    value = c.node("Reshape", value, c.node("Concat", *sizes, axis=0))
    if any(begin or end for begin, end in pairs):
        begins = axes_constant(c, [begin for begin, _ in pairs])
        ends = axes_constant(c, [-end if end else INT64_MAX for _, end in pairs])
        value = c.node("Slice", value, begins, ends, axes_constant(c, range(1, 1 + count)))
    return value


@tflite("SHAPE")
def shape(c: Call) -> ir.Value:
    """Translate the sizes of a tensor."""
    return c.cast(c.node("Shape", c.stored(0)), c.output_type())


@tflite("RANK")
def rank(c: Call) -> ir.Value:
    """Translate the number of axes."""
    return c.constant(c.rank(0), c.output_type().numpy())


@tflite("FILL")
def fill(c: Call) -> ir.Value:
    """Translate repetition of one element: sizes, element."""
    return c.node("Expand", c.input(1), c.int64(0))


@tflite("RANGE")
def range_(c: Call) -> ir.Value:
    """Translate an arithmetic sequence."""
    return c.node("Range", *(c.node("Squeeze", c.input(i)) if c.rank(i) else c.input(i) for i in range(3)))


@tflite("ONE_HOT")
def one_hot(c: Call) -> ir.Value:
    """Translate one-hot rows: indices, depth, on, off; negative indices have no hot element in the source."""
    values = c.node("Concat", *(c.node("Reshape", c.input(i), axes_constant(c, [1])) for i in (3, 2)), axis=0)
    indices = c.int64(0)
    depth = c.int64(1)
    outside = c.node("Less", indices, c.constant(0, np.int64))
    return c.node("OneHot", c.node("Where", outside, depth, indices), depth, values, axis=int(c.option("axis")))


@tflite("WHERE")
def where(c: Call) -> ir.Value:
    """Translate the indices of elements that are not 0."""
    return c.node("Transpose", c.node("NonZero", c.input(0)), perm=[1, 0])


@tflite("MATRIX_DIAG")
def matrix_diag(c: Call) -> ir.Value:
    """Translate a vector to the diagonal of a matrix."""
    x = c.input(0)
    size = c.node("Shape", x, start=-1)
    square = c.node("Expand", c.constant(np.zeros((1, 1), np.float32)), c.node("Concat", size, size, axis=0))
    mask = c.cast(c.node("EyeLike", square), ir.DataType.BOOL)
    return c.node("Where", mask, c.node("Unsqueeze", x, axes_constant(c, [-1])), c.like(0, 0))


@tflite("MATRIX_SET_DIAG")
def matrix_set_diag(c: Call) -> ir.Value:
    """Translate replacement of the diagonal."""
    x, diagonal = c.input(0), c.input(1)
    square = c.node("Expand", c.constant(np.zeros((1, 1), np.float32)), c.node("Shape", x, start=-2))
    mask = c.cast(c.node("EyeLike", square), ir.DataType.BOOL)
    line = c.node("Unsqueeze", diagonal, axes_constant(c, [-1]))
    rows, columns = c.sizes(0)[-2:]
    if rows > columns or min(rows, columns) < 0:
        pads = [0] * c.rank(0) * 2
        more = c.node("Sub", c.node("Shape", x, start=-2, end=-1), c.node("Shape", diagonal, start=-1))
        ends = c.node("Concat", axes_constant(c, pads[: 2 * c.rank(0) - 2]), more, axes_constant(c, [0]), axis=0)
        line = c.node("Pad", line, ends)
    return c.node("Where", mask, line, x)


@tflite("STABLEHLO_PAD")
def stablehlo_pad(c: Call) -> ir.Value:
    """Translate padding by option, without padding between elements."""
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    low, high, inner = ([int(n) for n in c.option(name, ())] for name in names)
    if any(inner):
        raise c.unsupported(f"padding {inner} between elements")
    return c.node("Pad", c.input(0), axes_constant(c, [*low, *high]), c.input(1))


@tflite("STABLEHLO_IOTA")
def stablehlo_iota(c: Call) -> ir.Value:
    """Translate numbers along an axis, as a constant."""
    sizes = c.output().signature
    axis = axis_of(c, int(c.option("iota_dimension")), len(sizes))
    if -1 in sizes or np.prod(sizes, dtype=np.float64) > 1 << 28:
        raise c.unsupported(f"numbers of sizes {list(sizes)}")
    line = np.arange(sizes[axis]).reshape([-1 if i == axis else 1 for i in range(len(sizes))])
    return c.node("Expand", c.constant(line.astype(c.output_type().numpy())), axes_constant(c, sizes))
