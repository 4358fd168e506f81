"""Data movement: operators that copy elements into other shapes, orders and positions.

Source: ONNX Operators, *Reshape*, *Transpose*, *Squeeze*, *Unsqueeze*, *Flatten*, *Concat*, *Split*, *Expand*, *Tile*,
*DepthToSpace*, *SpaceToDepth*, *Trilu*, *ReverseSequence*, *Col2Im*, *Identity*.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core import language as L
from sardonyx.core.dim import POSITIVE, Dim, Size, ceil_div, dim_min, equal, floor_div, symbols
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError, ShapeError
from sardonyx.ops.definitions.windows import explicit_padding, per_axis
from sardonyx.ops.registry import operator


@operator("Identity", since=1)
def identity(x: Value) -> Value:
    return x


# Reshape: 0 copies the operand's size of this axis, -1 is inferred from the others.


@operator("Reshape", since=5)
def reshape(x: Tensor, shape: Tensor, *, allowzero: int = 0) -> Tensor:
    target = L.elements(shape)
    if target is None:
        return L.reshape(x, L.sizes(_resolve_shape(x, shape, allowzero), "a size of the new shape"))
    return _reshape_to(x, target, allowzero)


@operator("Reshape", since=1)
def reshape_by_attribute(x: Tensor, *, shape: Sequence[int] = ()) -> Tensor:
    return _reshape_to(x, shape, 0)


def _reshape_to(x: Tensor, target: Sequence[Size], allowzero: int) -> Tensor:
    copied = [] if allowzero else [i for i, size in enumerate(target) if isinstance(size, int) and size == 0]
    if copied and copied[-1] >= x.rank:
        raise ShapeError(f"axis {copied[-1]} of the new shape is 0 (copied), and the operand has rank {x.rank}.")
    shape = [x.shape[i] if i in copied else size for i, size in enumerate(target)]
    if any(isinstance(size, int) and size < -1 for size in target):
        raise ShapeError(f"the new shape {list(target)} has a negative size.", remedy="Use -1 for an inferred size.")
    open_axes = [i for i, size in enumerate(target) if isinstance(size, int) and size == -1]
    if len(open_axes) > 1:
        raise ShapeError(f"-1 occurs {len(open_axes)} times in the new shape {list(target)}.")
    if open_axes and allowzero and 0 in target:
        raise ShapeError(
            f"the new shape {list(target)} has 0 and -1 with `allowzero`: the size for -1 cannot be inferred."
        )
    if not allowzero:
        _require_sizes_or_copies(x, target, bool(open_axes))
    elif open_axes:
        for i, size in enumerate(target):
            if not isinstance(size, int):
                L.at_most(x, 1, size, f"axis {i} of the new shape is 0: the size for -1 cannot be inferred.")
    for i in open_axes:
        # Copied sizes cancel; leaving them out keeps the quotient defined where one is 0.
        total = L.product([size for axis, size in enumerate(x.shape) if axis not in copied])
        shape[i] = _quotient(total, L.product([s for j, s in enumerate(target) if j != i and j not in copied]))
    return L.reshape(x, shape)


def _require_sizes_or_copies(x: Tensor, target: Sequence[Size], infers: bool) -> None:
    """Add the condition that no symbolic size of a new shape is 0, which copies a size, unless that size is 0 too.

    The element counts imply it for an operand with elements.
    """
    if not x.rank or all(isinstance(size, int) and size for size in x.shape):
        return
    for i, size in enumerate(target):
        if isinstance(size, int) or (i < x.rank and equal(size, x.shape[i]) is True):
            continue
        least = 1 if infers or i >= x.rank else dim_min(1, x.shape[i])
        # The result is not needed: tracing records the condition.
        L.at_most(x, least, size, f"axis {i} of the new shape is 0, which copies a size.")


def _quotient(total: Size, rest: Size) -> Size:
    """Return the quotient of two sizes; a symbolic divisor is assumed nonzero, as the conditions ensure."""
    quotient = floor_div(total, rest, POSITIVE)
    return quotient if equal(quotient * rest, total) is True else floor_div(total, rest)


def _resolve_shape(x: Tensor, shape: Tensor, allowzero: int) -> Tensor:
    """Return a shape computed from data with 0 and -1 resolved."""
    count = L.static_size(shape, 0, "the rank of the new shape")
    shape = L.reshape(shape, [count])
    total = L.number(L.product(x.shape))
    if not allowzero:
        copies = L.equal(shape, 0)
        # Copied sizes cancel, also where one is 0. A copy of an axis that the operand lacks is an error, as -2 is.
        rest = L.where(copies, 1, L.size_tensor([*x.shape, *[1] * count][:count]))
        total = L.reduce_product(rest) * L.number(L.product(x.shape[count:]))
        factors = L.where(copies | L.equal(shape, -1), 1, shape)
        shape = L.where(copies, L.size_tensor([*x.shape, *[-2] * count][:count]), shape)
    else:
        factors = L.where(L.equal(shape, -1), 1, shape)
    inferred = L.equal(shape, -1)
    # A second inferred size is an error, as a size below -1 is.
    shape = L.where(inferred & (L.reduce_sum(L.cast(inferred, t.INT64), [0]) > 1), -2, shape)
    if allowzero:  # With an empty axis, the size for -1 cannot be inferred.
        shape = L.where(inferred & L.any_of(L.equal(shape, 0)), -2, shape)
    return L.where(L.equal(shape, -1), total / L.maximum(L.reduce_product(factors), 1), shape)


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
        ones = L.is_one(x.shape, "Squeeze without axes needs every size to be known to be 1 or not.")
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
    if perm is None:
        return L.permute(x, range(x.rank)[::-1])
    if any(axis < 0 for axis in perm):  # The standard counts these axes from 0 only.
        raise ShapeError(f"expected a permutation of the {x.rank} axes of {x.type}, got {list(perm)}.")
    return L.permute(x, perm)


# Concatenation and splitting.


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
        return _split_parts(x, _part_sizes(x, split), axis)
    count = outputs if num_outputs is None else num_outputs
    if count != outputs:
        raise InvalidModelError(f"`num_outputs` of Split is {count}, and the node has {outputs} outputs.")
    n = x.shape[L.normalized_axis(axis, x.rank)]
    part = ceil_div(n, count)
    return _split_parts(x, [part] * (count - 1) + [n - part * (count - 1)], axis)


@operator("Split", since=13)
def split_evenly(x: Tensor, split: Tensor | None = None, *, axis: int = 0, outputs: int) -> tuple[Tensor, ...]:
    return _split_parts(x, _even_sizes(x, axis, outputs) if split is None else _part_sizes(x, split), axis)


@operator("Split", since=2)
def split_by_attribute(
    x: Tensor, *, split: Sequence[int] | None = None, axis: int = 0, outputs: int
) -> tuple[Tensor, ...]:
    return _split_parts(x, split or _even_sizes(x, axis, outputs), axis)


@operator("Split", since=1)
def split_either_way(
    x: Tensor, sizes: Tensor | None = None, *, split: Sequence[int] | None = None, axis: int = 0, outputs: int
) -> tuple[Tensor, ...]:
    if sizes is not None:
        return _split_parts(x, _part_sizes(x, sizes), axis)
    return _split_parts(x, split or _even_sizes(x, axis, outputs), axis)


def _even_sizes(x: Tensor, axis: int, count: int) -> list[Size]:
    return [floor_div(x.shape[L.normalized_axis(axis, x.rank)], count)] * count


def _part_sizes(x: Tensor, split: Tensor) -> Sequence[Size]:
    """Return the sizes of the parts; as numbers if ``x`` is empty, whose reshape cannot check them."""
    name = "a size of Split"
    return L.static(split, name) if 0 in x.shape else L.sizes(split, name)


def _split_parts(x: Tensor, sizes: Sequence[Size], axis: int) -> tuple[Tensor, ...]:
    """Split an axis into pieces of these sizes, which must add up to the axis."""
    axis = L.normalized_axis(axis, x.rank)
    whole, total = x.shape[axis], sum(sizes)
    if equal(whole, total) is False or any(isinstance(size, int) and size < 0 for size in sizes):
        raise ShapeError(f"an axis of {whole} cannot be split into {', '.join(map(str, sizes))}.")
    # The reshape makes the run check sizes that are unknown before it.
    x = L.reshape(x, [total if i == axis else size for i, size in enumerate(x.shape)])
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(L.slice_(x, axis, end - size, end) for end, size in zip(ends, sizes, strict=True))


# Repeating.


@operator("Expand", since=8)
def expand(x: Tensor, shape: Tensor) -> Tensor:
    target = L.sizes(shape, "a size of Expand")
    result = L.broadcast_shapes(x.shape, target)
    return L.reshape(L.broadcast_to(x, _testing(x.shape, target, result)), result)


def _testing(own: Sequence[Size], target: Sequence[Size], result: Sequence[Size]) -> tuple[Size, ...]:
    """Return the sizes of the result, written so that the run tests sizes of ``target`` which the result hides.

    A size n that is not 1 hides a size m read from data. The size n + (m - 1)·(m - n) is n if m is 1 or n.
    """
    tested = list(result)
    for back in range(1, min(len(own), len(target)) + 1):
        n, m = own[-back], target[-back]
        if isinstance(m, Dim) and symbols(m) - symbols(result[-back]):
            tested[-back] = n + (m - 1) * (m - n)
    return tuple(tested)


@operator("Tile", since=6)
def tile(x: Tensor, repeats: Tensor) -> Tensor:
    counts = L.sizes(repeats, "a number of repeats")
    if len(counts) != x.rank:
        raise ShapeError(f"expected {x.rank} repeats, one for each axis, got {len(counts)}.")
    rows = L.reshape(x, [size for n in x.shape for size in (1, n)])
    rows = L.broadcast_to(rows, tuple([size for pair in zip(counts, x.shape, strict=True) for size in pair]))
    return L.reshape(rows, [count * n for count, n in zip(counts, x.shape, strict=True)])


@operator("Tile", since=1)
def tile_axis(x: Tensor, tiles: Tensor, axis: Tensor) -> Tensor:
    along = L.normalized_axes(L.static(L.cast(axis, t.INT64), "the axis of Tile"), x.rank)
    count = L.one_size(L.cast(tiles, t.INT64), "the number of tiles")
    return tile(x, L.size_tensor([count if i in along else 1 for i in range(x.rank)]))


# Depth and space.


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
        raise InvalidModelError(f"`blocksize` is {blocksize}.", remedy="Use a block size of at least 1.")
    if x.rank != 4:
        raise ShapeError(f"expected a tensor [N, C, H, W], got rank {x.rank}.")
    return x.shape  # type: ignore[return-value]


def _is_depth_first(mode: str) -> bool:
    if mode not in ("DCR", "CRD"):
        raise InvalidModelError(f"unknown mode {mode!r}.", remedy="Use 'DCR' or 'CRD'.")
    return mode == "DCR"


# Selection by position.


@operator("Trilu", since=14)
def trilu(x: Tensor, k: Tensor | None = None, *, upper: int = 1) -> Tensor:
    if x.rank < 2:
        raise ShapeError(f"expected matrices for Trilu, got rank {x.rank}.")
    shape, diagonal = x.shape[-2:], L.constant(0, t.INT64) if k is None else L.reshape(k, ())
    distance = L.iota(shape, 1) - L.iota(shape, 0)
    mask = ~(distance < diagonal) if upper else ~(diagonal < distance)
    return L.where(mask, x, L.zero(x.dtype))


@operator("ReverseSequence", since=10)
def reverse_sequence(x: Tensor, sequence_lens: Tensor, *, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    if sorted((batch_axis, time_axis)) != [0, 1] or x.rank < 2:
        raise ShapeError(
            f"expected batch and time axes 0 and 1 in either order, got {batch_axis} and {time_axis} of rank {x.rank}."
        )
    time, batch = L.iota(x.shape[:2], time_axis), L.iota(x.shape[:2], batch_axis)
    lengths = L.unsqueeze(sequence_lens, [time_axis])
    mirrored = L.where(time < lengths, lengths - 1 - time, time)
    # A negative length becomes an index past the end, which is an error.
    mirrored = L.where(lengths < 0, L.number(x.shape[time_axis]), mirrored)
    indices = [mirrored, batch] if time_axis == 0 else [batch, mirrored]
    return L.gather_nd(x, L.concat([L.unsqueeze(index, [-1]) for index in indices], -1))


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
    """Add every block to the padded image at its position, then crop the padding."""
    image, block = L.sizes(image_shape, "a size of the image"), L.sizes(block_shape, "a size of the block")
    n = len(image)
    if len(block) != n or x.rank != 3:
        raise ShapeError(f"blocks of {len(block)} axes and columns {x.type} do not fit an image of {n} axes.")
    step, spread = per_axis(strides, n, "strides"), per_axis(dilations, n, "dilations")
    around = [size for both in zip(*explicit_padding(pads, n), strict=True) for size in both]
    padded = [image[i] + around[i] + around[n + i] for i in range(n)]
    counts = [floor_div(padded[i] - spread[i] * (block[i] - 1) - 1, step[i]) + 1 for i in range(n)]
    channels = floor_div(x.shape[1], L.product(block))
    columns = L.reshape(x, (x.shape[0], channels, *block, *counts))
    grid = (*block, *counts)
    indices = [L.iota(grid, i) * spread[i] + L.iota(grid, n + i) * step[i] for i in range(n)]
    empty = L.full((*padded, *columns.shape[:2]), 0, x.dtype)
    vectors = L.concat([L.unsqueeze(index, [-1]) for index in indices], -1)
    summed = L.scatter_nd(empty, vectors, L.permute(columns, (*range(2, 2 + 2 * n), 0, 1)), "add")
    summed = L.permute(summed, (n, n + 1, *range(n)))
    return L.pad(summed, (0, 0, *(-p for p in around[:n])), (0, 0, *(-p for p in around[n:])))
