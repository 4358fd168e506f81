"""Movement: the same elements in other sizes, orders and places.

Source: ONNX Operators, *Reshape*, *Transpose*, *Squeeze*, *Unsqueeze*, *Flatten*, *Concat*, *Split*, *Expand*, *Tile*,
*DepthToSpace*, *SpaceToDepth*, *Trilu*, *ReverseSequence*, *Col2Im*, *Identity*.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core import language as L
from sardonyx.core.dim import POSITIVE, Size, ceil_div, equal, floor_div
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError, ShapeError
from sardonyx.ops.definitions.windows import explicit_padding, per_axis
from sardonyx.ops.registry import operator


@operator("Identity", since=1)
def identity(x: Value) -> Value:
    return x


# Reshape. 0 stands for the size that the operand has there, -1 for what is left.


@operator("Reshape", since=5)
def reshape(x: Tensor, shape: Tensor, *, allowzero: int = 0) -> Tensor:
    wanted = L.elements(shape)
    if wanted is None:
        return L.reshape(x, L.sizes(_resolved(x, shape, allowzero), "a size of the new shape"))
    return _reshaped(x, wanted, allowzero)


@operator("Reshape", since=1)
def reshape_by_attribute(x: Tensor, *, shape: Sequence[int] = ()) -> Tensor:
    return _reshaped(x, shape, 0)


def _reshaped(x: Tensor, wanted: Sequence[Size], allowzero: int) -> Tensor:
    copied = [] if allowzero else [i for i, size in enumerate(wanted) if isinstance(size, int) and size == 0]
    if copied and copied[-1] >= x.rank:
        raise ShapeError(f"axis {copied[-1]} of the new shape is copied, and the operand has rank {x.rank}.")
    shape = [x.shape[i] if i in copied else size for i, size in enumerate(wanted)]
    if any(isinstance(size, int) and size < -1 for size in wanted):
        raise ShapeError(f"the new shape {list(wanted)} has a negative size.", remedy="-1 stands for what is left.")
    open_axes = [i for i, size in enumerate(wanted) if isinstance(size, int) and size == -1]
    if len(open_axes) > 1:
        raise ShapeError(f"-1 occurs {len(open_axes)} times in the new shape {list(wanted)}.")
    if open_axes and allowzero and 0 in wanted:
        raise ShapeError(f"the new shape {list(wanted)} has 0 and -1, with `allowzero`: what is left has no answer.")
    for i in open_axes:
        # Copied sizes cancel out, so that those of 0 leave no question.
        total = L.product([size for axis, size in enumerate(x.shape) if axis not in copied])
        shape[i] = _quotient(total, L.product([s for j, s in enumerate(wanted) if j != i and j not in copied]))
    return L.reshape(x, shape)


def _quotient(total: Size, rest: Size) -> Size:
    """What times ``rest`` is ``total``; a symbol in ``rest`` is taken not to be 0, for which there is no answer."""
    found = floor_div(total, rest, POSITIVE)
    return found if equal(found * rest, total) is True else floor_div(total, rest)


def _resolved(x: Tensor, shape: Tensor, allowzero: int) -> Tensor:
    """A shape computed from data, without 0 and -1."""
    count = L.static_size(shape, 0, "the rank of the new shape")
    shape = L.reshape(shape, [count])
    if not allowzero:
        own = L.size_tensor([*x.shape, *[0] * count][:count])
        shape = L.where(L.equal(shape, 0), own, shape)
    rest = L.reduce_product(L.where(L.equal(shape, -1), 1, shape))
    return L.where(L.equal(shape, -1), L.number(L.product(x.shape)) / L.maximum(rest, 1), shape)


@operator("Flatten", since=1)
def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    if not -x.rank <= axis <= x.rank:
        raise ShapeError(f"axis {axis} is out of range for rank {x.rank}.")
    return L.flatten_to(x, axis + x.rank if axis < 0 else axis)


@operator("Squeeze", since=13)
def squeeze(x: Tensor, axes: Tensor | None = None) -> Tensor:
    return squeeze_axes(x, axes=None if axes is None else L.static(axes, "the axes of Squeeze"))


@operator("Squeeze", since=1)
def squeeze_axes(x: Tensor, *, axes: Sequence[int] | None = None) -> Tensor:
    if axes is None:
        ones = L.is_one(x.shape, "Squeeze without axes needs all sizes: which of them are 1 is not known.")
        axes = [axis for axis, one in enumerate(ones) if one]
    return L.squeeze(x, axes)


@operator("Unsqueeze", since=13)
def unsqueeze(x: Tensor, axes: Tensor) -> Tensor:
    return L.unsqueeze(x, L.static(axes, "the axes of Unsqueeze"))


@operator("Unsqueeze", since=1)
def unsqueeze_axes(x: Tensor, *, axes: Sequence[int]) -> Tensor:
    return L.unsqueeze(x, axes)


@operator("Transpose", since=1)
def transpose(x: Tensor, *, perm: Sequence[int] | None = None) -> Tensor:
    return L.permute(x, range(x.rank)[::-1] if perm is None else perm)


# Joining and splitting.


@operator("Concat", since=4)
def concat(*inputs: Tensor, axis: int) -> Tensor:
    return L.concat(inputs, axis)


@operator("Concat", since=1)
def concat_with_default(*inputs: Tensor, axis: int = 1) -> Tensor:
    return L.concat(inputs, axis)


@operator("Split", since=18)
def split(
    x: Tensor, split: Tensor | None = None, *, axis: int = 0, num_outputs: int | None = None, outputs: int
) -> tuple[Tensor, ...]:
    if split is not None:
        return _parts(x, L.sizes(split, "a size of Split"), axis)
    count = outputs if num_outputs is None else num_outputs
    if count != outputs:
        raise InvalidModelError(f"`num_outputs` of Split is {count}, and it has {outputs} outputs.")
    n = x.shape[L.normalized_axis(axis, x.rank)]
    part = ceil_div(n, count)
    return _parts(x, [part] * (count - 1) + [n - part * (count - 1)], axis)


@operator("Split", since=13)
def split_evenly(x: Tensor, split: Tensor | None = None, *, axis: int = 0, outputs: int) -> tuple[Tensor, ...]:
    return _parts(x, _even(x, axis, outputs) if split is None else L.sizes(split, "a size of Split"), axis)


@operator("Split", since=2)
def split_by_attribute(
    x: Tensor, *, split: Sequence[int] | None = None, axis: int = 0, outputs: int
) -> tuple[Tensor, ...]:
    return _parts(x, split or _even(x, axis, outputs), axis)


@operator("Split", since=1)
def split_either_way(
    x: Tensor, sizes: Tensor | None = None, *, split: Sequence[int] | None = None, axis: int = 0, outputs: int
) -> tuple[Tensor, ...]:
    if sizes is not None:
        return _parts(x, L.sizes(sizes, "a size of Split"), axis)
    return _parts(x, split or _even(x, axis, outputs), axis)


def _even(x: Tensor, axis: int, count: int) -> list[Size]:
    return [floor_div(x.shape[L.normalized_axis(axis, x.rank)], count)] * count


def _parts(x: Tensor, sizes: Sequence[Size], axis: int) -> tuple[Tensor, ...]:
    """Pieces of these sizes, which must be all there is."""
    axis = L.normalized_axis(axis, x.rank)
    whole, total = x.shape[axis], sum(sizes)
    if equal(whole, total) is False or any(isinstance(size, int) and size < 0 for size in sizes):
        raise ShapeError(f"an axis of {whole} cannot be split into {', '.join(map(str, sizes))}.")
    # Sizes that only the run tells are checked by it.
    x = L.reshape(x, [total if i == axis else size for i, size in enumerate(x.shape)])
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(L.slice_(x, axis, end - size, end) for end, size in zip(ends, sizes, strict=True))


# Repeating.


@operator("Expand", since=8)
def expand(x: Tensor, shape: Tensor) -> Tensor:
    return L.broadcast_to(x, L.broadcast_shapes(x.shape, L.sizes(shape, "a size of Expand")))


@operator("Tile", since=6)
def tile(x: Tensor, repeats: Tensor) -> Tensor:
    counts = L.sizes(repeats, "a number of repeats")
    if len(counts) != x.rank:
        raise ShapeError(f"{len(counts)} numbers of repeats are given for rank {x.rank}.")
    rows = L.reshape(x, [size for n in x.shape for size in (1, n)])
    rows = L.broadcast_to(rows, tuple([size for pair in zip(counts, x.shape, strict=True) for size in pair]))
    return L.reshape(rows, [count * n for count, n in zip(counts, x.shape, strict=True)])


@operator("Tile", since=1)
def tile_axis(x: Tensor, tiles: Tensor, axis: Tensor) -> Tensor:
    along = L.normalized_axes(L.static(L.cast(axis, t.INT64), "the axis of Tile"), x.rank)
    count = L.one_size(L.cast(tiles, t.INT64), "the number of tiles")
    return tile(x, L.size_tensor([count if i in along else 1 for i in range(x.rank)]))


# Blocks of an image and its depth.


@operator("DepthToSpace", since=1)
def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = _image_shape(x, blocksize)
    b, depth = blocksize, floor_div(c, blocksize * blocksize)
    if _is_depth_first(mode):
        blocks = L.permute(L.reshape(x, (n, b, b, depth, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        blocks = L.permute(L.reshape(x, (n, depth, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return L.reshape(blocks, (n, depth, h * b, w * b))


@operator("SpaceToDepth", since=1)
def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = _image_shape(x, blocksize)
    b = blocksize
    rows, columns = floor_div(h, b), floor_div(w, b)
    blocks = L.reshape(x, (n, c, rows, b, columns, b))
    order = (0, 3, 5, 1, 2, 4) if _is_depth_first(mode) else (0, 1, 3, 5, 2, 4)
    return L.reshape(L.permute(blocks, order), (n, c * b * b, rows, columns))


def _image_shape(x: Tensor, blocksize: int) -> tuple[Size, Size, Size, Size]:
    if blocksize < 1:
        raise InvalidModelError(f"`blocksize` is {blocksize}.", remedy="Blocks have one pixel or more.")
    if x.rank != 4:
        raise ShapeError(f"a tensor [N, C, H, W] is needed, and rank {x.rank} was given.")
    return x.shape  # type: ignore[return-value]


def _is_depth_first(mode: str) -> bool:
    if mode not in ("DCR", "CRD"):
        raise InvalidModelError(f"there is no mode {mode!r}.", remedy="The modes are DCR and CRD.")
    return mode == "DCR"


# Parts chosen by place.


@operator("Trilu", since=14)
def trilu(x: Tensor, k: Tensor | None = None, *, upper: int = 1) -> Tensor:
    if x.rank < 2:
        raise ShapeError(f"Trilu is of matrices, and rank {x.rank} was given.")
    shape, diagonal = x.shape[-2:], L.constant(0, t.INT64) if k is None else L.reshape(k, ())
    distance = L.iota(shape, 1) - L.iota(shape, 0)
    kept = ~(distance < diagonal) if upper else ~(diagonal < distance)
    return L.where(kept, x, L.zero(x.dtype))


@operator("ReverseSequence", since=10)
def reverse_sequence(x: Tensor, sequence_lens: Tensor, *, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    if sorted((batch_axis, time_axis)) != [0, 1] or x.rank < 2:
        raise ShapeError(f"batch axis {batch_axis} and time axis {time_axis} are not the first two of rank {x.rank}.")
    time, batch = L.iota(x.shape[:2], time_axis), L.iota(x.shape[:2], batch_axis)
    lengths = L.unsqueeze(sequence_lens, [time_axis])
    mirrored = L.where(time < lengths, lengths - 1 - time, time)
    # A negative length is an error, as one past the end is.
    mirrored = L.where(lengths < 0, L.number(x.shape[time_axis]), mirrored)
    places = [mirrored, batch] if time_axis == 0 else [batch, mirrored]
    return L.gather_nd(x, L.concat([L.unsqueeze(place, [-1]) for place in places], -1))


@operator("Col2Im", since=18)
def col2im(
    x: Tensor,
    image_shape: Tensor,
    block_shape: Tensor,
    *,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:
    """Every block is added to the padded image at its place; then the padding is cut off."""
    image, block = L.sizes(image_shape, "a size of the image"), L.sizes(block_shape, "a size of the block")
    n = len(image)
    if len(block) != n or x.rank != 3:
        raise ShapeError(f"blocks of {len(block)} axes and columns {x.type} make no image of {n} axes.")
    step, spread = per_axis(strides, n, "strides"), per_axis(dilations, n, "dilations")
    around = [size for both in zip(*explicit_padding(pads, n), strict=True) for size in both]
    padded = [image[i] + around[i] + around[n + i] for i in range(n)]
    counts = [floor_div(padded[i] - spread[i] * (block[i] - 1) - 1, step[i]) + 1 for i in range(n)]
    channels = floor_div(x.shape[1], L.product(block))
    columns = L.reshape(x, (x.shape[0], channels, *block, *counts))
    grid = (*block, *counts)
    places = [L.iota(grid, i) * spread[i] + L.iota(grid, n + i) * step[i] for i in range(n)]
    empty = L.full((*padded, *columns.shape[:2]), 0, x.dtype)
    vectors = L.concat([L.unsqueeze(place, [-1]) for place in places], -1)
    found = L.scatter_nd(empty, vectors, L.permute(columns, (*range(2, 2 + 2 * n), 0, 1)), "add")
    found = L.permute(found, (n, n + 1, *range(n)))
    return L.pad(found, (0, 0, *(-p for p in around[:n])), (0, 0, *(-p for p in around[n:])))
