"""Shapes and movement: views, joins, repetitions and padding."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.convert.torch.operators.promotion import cast, promoted, result_type, tensor_of
from sardonyx.convert.torch.operators.registry import aten, site
from sardonyx.convert.torch.operators.sizes import END, clamped, expanded, predicted_shape, reshaped, size_of
from sardonyx.core import language as L
from sardonyx.core.dim import Dim, Size, dim_max, dim_min, floor_div, product
from sardonyx.core.eval.tensor import Tensor, constant
from sardonyx.errors import UnsupportedError
from sardonyx.ops.nodes import onnx


@aten("reshape_as.default", "view_as.default")
def _view_as(x: Tensor, other: Tensor) -> Tensor:
    return reshaped(x, other.shape)


@aten("view.default", "reshape.default", "_unsafe_view.default", "view_copy.default", "_reshape_alias.default")
def _view(x: Tensor, shape: Any, *_: Any) -> Tensor:
    return reshaped(x, _completed(x, [size if size == -1 else size_of(size) for size in shape]))


def _completed(x: Tensor, shape: Sequence[Any]) -> list[Size]:
    """Return a shape with the size of its axis -1: torch's own, else the quotient of the numbers of elements."""
    if not any(isinstance(size, int) and size == -1 for size in shape):
        return list(shape)
    at = next(i for i, size in enumerate(shape) if isinstance(size, int) and size == -1)
    rest = list(x.shape)
    others = [size for i, size in enumerate(shape) if i != at]
    for size in list(others):
        if size in rest:
            rest.remove(size)
            others.remove(size)
    known = predicted_shape()
    quotient = floor_div(product(rest), product(others)) if product(others) != 0 else 0
    # torch may write a number of the program as an expression that has the number's value for the example alone.
    agrees = (
        known is not None
        and len(known) == len(shape)
        and all(a == b for i, (a, b) in enumerate(zip(known, shape, strict=True)) if i != at)
    )
    if isinstance(quotient, Dim) and agrees and known is not None and known[at] is not None:
        quotient = known[at]  # type: ignore[assignment]
    return [quotient if i == at else size for i, size in enumerate(shape)]


@aten("flatten.using_ints")
def _flatten(x: Tensor, start: int = 0, end: int = -1) -> Tensor:
    if x.rank == 0:
        return reshaped(x, [1])
    start, end = L.normalized_axis(start, x.rank), L.normalized_axis(end, x.rank)
    shape = (*x.shape[:start], product(x.shape[start : end + 1]), *x.shape[end + 1 :])
    if start == 1 and end == x.rank - 1:
        return onnx.Flatten(x, axis=1, body=lambda y: [L.reshape(y, shape)])  # type: ignore[no-any-return]
    return reshaped(x, shape)


@aten("ravel.default")
def _ravel(x: Tensor) -> Tensor:
    return reshaped(x, [product(x.shape)])


@aten("unflatten.int")
def _unflatten(x: Tensor, dim: int, sizes: Sequence[Any]) -> Tensor:
    dim = L.normalized_axis(dim, x.rank)
    return _view(x, [*x.shape[:dim], *sizes, *x.shape[dim + 1 :]])


@aten("permute.default", "permute_copy.default")
def permuted(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Reorder the axes."""
    return L.permute(x, axes)


@aten("transpose.int", "transpose_copy.int", "swapaxes.default", "swapdims.default")
def transposed(x: Tensor, a: int, b: int) -> Tensor:
    """Exchange two axes."""
    return x if x.rank == 0 else L.swap_axes(x, a % x.rank, b % x.rank)


@aten("t.default", "t_copy.default", "numpy_T.default", "mT.default", "adjoint.default", "matrix_H.default")
def _t(x: Tensor) -> Tensor:
    return x if x.rank < 2 else L.swap_axes(x, -1, -2)


@aten("movedim.int", "movedim.intlist", "moveaxis.int", "moveaxis.intlist")
def _movedim(x: Tensor, source: Any, target: Any) -> Tensor:
    sources = [a % x.rank for a in ([source] if isinstance(source, int) else source)]
    targets = [a % x.rank for a in ([target] if isinstance(target, int) else target)]
    order: list[int] = [-1] * x.rank
    for a, b in zip(sources, targets, strict=True):
        order[b] = a
    rest = iter(a for a in range(x.rank) if a not in sources)
    return L.permute(x, [next(rest) if a < 0 else a for a in order])


@aten("unsqueeze.default", "unsqueeze_copy.default")
def unsqueezed(x: Tensor, dim: int) -> Tensor:
    """Insert an axis of size 1."""
    axis = dim if dim >= 0 else dim + x.rank + 1
    return onnx.Unsqueeze(x, constant([axis]), body=lambda y, _: [L.unsqueeze(y, [axis])])  # type: ignore[no-any-return]


@aten("squeeze.default", "squeeze_copy.default")
def _squeeze_all(x: Tensor) -> Tensor:
    return _squeezed(x, [i for i, size in enumerate(x.shape) if isinstance(size, int) and size == 1])


@aten("squeeze.dim", "squeeze.dims", "squeeze_copy.dim", "squeeze_copy.dims")
def _squeeze(x: Tensor, dims: Any) -> Tensor:
    axes = [L.normalized_axis(a, max(x.rank, 1)) for a in ([dims] if isinstance(dims, int) else dims)]
    known = predicted_shape()
    count = x.rank - len(known) if known is not None else 0
    ones = [a for a in axes if x.rank and isinstance(x.shape[a], int) and x.shape[a] == 1]
    return _squeezed(x, ones if len(ones) >= count else axes)


def _squeezed(x: Tensor, axes: Sequence[int]) -> Tensor:
    if not axes:
        return x
    shape = [size for i, size in enumerate(x.shape) if i not in axes]
    return onnx.Squeeze(x, constant(list(axes)), body=lambda y, _: [L.reshape(y, shape)])  # type: ignore[no-any-return]


@aten("expand.default", "expand_copy.default", "broadcast_to.default", "expand_as.default")
def _expand(x: Tensor, shape: Any, *_: Any, implicit: bool = False) -> Tensor:
    if isinstance(shape, Tensor):
        shape = shape.shape
    missing = len(shape) - x.rank
    sizes: list[Size] = []
    for i, size in enumerate(shape):
        own = x.shape[i - missing] if i >= missing else 1
        size_ = size_of(size)
        keeps = isinstance(size_, int) and size_ == -1
        sizes.append(own if keeps or (isinstance(own, Dim) and isinstance(size_, Dim)) else size_)
    return expanded(x, sizes)


@aten("broadcast_tensors.default")
def _broadcast_tensors(xs: Sequence[Tensor]) -> list[Tensor]:
    shape = L.broadcast_shapes(*(x.shape for x in xs))
    return [expanded(x, shape) for x in xs]


@aten("slice.Tensor", "slice_copy.Tensor")
def sliced(x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    """Return a range along an axis."""
    dim = L.normalized_axis(dim, x.rank)
    size = x.shape[dim]
    first, last = size_of(0 if start is None else start), size_of(END if end is None else end)
    if isinstance(first, int) and first == 0 and isinstance(last, int) and last >= END and step == 1:
        return x
    low, high = clamped(first, size), clamped(last, size)
    high = dim_max(low, high)
    known = predicted_shape()
    length = floor_div(high - low + step - 1, step)
    if isinstance(length, Dim) and known is not None and len(known) == x.rank and isinstance(known[dim], int):
        # torch guards that the axis is long enough.
        high = low + known[dim] * step - (step - 1)  # type: ignore[operator]
    if (low, high, step) == (0, size, 1):
        return x
    bounds = [L.size_tensor([bound]) for bound in (first, min(last, END) if isinstance(last, int) else last)]
    return onnx.Slice(  # type: ignore[no-any-return]
        x, *bounds, constant([dim]), constant([step]), body=lambda y, *_: [L.slice_(y, dim, low, high, step)]
    )


@aten("narrow.default", "narrow_copy.default")
def _narrow(x: Tensor, dim: int, start: Any, length: Any) -> Tensor:
    start, length = size_of(start), size_of(length)
    dim = L.normalized_axis(dim, x.rank)
    low = start if not isinstance(start, int) or start >= 0 else start + x.shape[dim]
    return sliced(x, dim, low, low + length)


@aten("select.int", "select_copy.int")
def selected(x: Tensor, dim: int, index: Any) -> Tensor:
    """Return one entry of an axis, without the axis."""
    dim = L.normalized_axis(dim, x.rank)
    if isinstance(index, (int, Dim)):
        index = L.size_tensor([index], ())
    shape = [size for i, size in enumerate(x.shape) if i != dim]
    return onnx.Gather(  # type: ignore[no-any-return]
        x, index, axis=dim, body=lambda y, *at: [L.reshape(L.take(y, at[0] if at else index, dim), shape)]
    )


@aten("cat.default", "concat.default", "concatenate.default")
def joined(xs: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Concatenate along an axis; vectors without elements are skipped."""
    dtype = result_type(*xs)
    rank = max(x.rank for x in xs)
    parts = [cast(x, dtype) for x in xs if x.rank == rank and not (rank > 1 and x.shape == (0,))]
    dim = L.normalized_axis(dim, rank)
    if len(parts) == 1:
        return parts[0]
    rest = [_one_of([x.shape[a] for x in parts]) for a in range(rank)]
    return onnx.Concat(  # type: ignore[no-any-return]
        *parts,
        axis=dim,
        body=lambda *ys: [
            L.concat([L.reshape(y, [y.shape[a] if a == dim else rest[a] for a in range(rank)]) for y in ys], dim)
        ],
    )


def _one_of(sizes: Sequence[Size]) -> Size:
    """Return the form of equal sizes: a number if there is one."""
    return next((size for size in sizes if isinstance(size, int)), sizes[0])


@aten("stack.default")
def _stack(xs: Sequence[Tensor], dim: int = 0) -> Tensor:
    axis = dim if dim >= 0 else dim + xs[0].rank + 1
    return joined([unsqueezed(x, axis) for x in promoted(*xs)], axis)


@aten("column_stack.default")
def _column_stack(xs: Sequence[Tensor]) -> Tensor:
    return joined([x if x.rank > 1 else reshaped(x, [L.product(x.shape), 1]) for x in xs], 1)


@aten("hstack.default")
def _hstack(xs: Sequence[Tensor]) -> Tensor:
    return joined(xs, 0 if xs[0].rank == 1 else 1)


@aten("vstack.default")
def _vstack(xs: Sequence[Tensor]) -> Tensor:
    return joined([unsqueezed(x, 0) if x.rank == 1 else x for x in xs], 0)


def _parts(x: Tensor, dim: int, sizes: Sequence[Size]) -> list[Tensor]:
    """Return consecutive ranges of an axis."""
    if len(sizes) == 1:
        return [x]
    starts: list[Size] = [0]
    for size in sizes:
        starts.append(starts[-1] + size)

    def body(y: Tensor, _: Tensor) -> list[Tensor]:
        return [L.slice_(y, dim, low, low + size) for low, size in zip(starts[:-1], sizes, strict=True)]

    return list(onnx.Split(x, L.size_tensor(sizes), outputs=len(sizes), axis=dim, body=body))


@aten("split.Tensor", "unsafe_split.Tensor", "split_copy.Tensor")
def _split(x: Tensor, size: Any, dim: int = 0) -> list[Tensor]:
    dim, size = L.normalized_axis(dim, x.rank), size_of(size)
    total = x.shape[dim]
    if isinstance(total, int) and isinstance(size, int):
        sizes: list[Size] = [min(size, total - low) for low in range(0, total, size)] or [0]
        return _parts(x, dim, sizes)
    count = _predicted_count()
    return _parts(x, dim, [*[size] * (count - 1), total - size * (count - 1)])


def _predicted_count() -> int:
    result = site.get().result
    if not isinstance(result, (tuple, list)):
        raise UnsupportedError("the number of parts is computed from data.")
    return len(result)


@aten("split_with_sizes.default", "unsafe_split_with_sizes.default", "split.sizes", "split_with_sizes_copy.default")
def _split_with_sizes(x: Tensor, sizes: Sequence[Any], dim: int = 0) -> list[Tensor]:
    return _parts(x, L.normalized_axis(dim, x.rank), [size_of(size) for size in sizes])


@aten("chunk.default", "unsafe_chunk.default")
def _chunk(x: Tensor, chunks: int, dim: int = 0) -> list[Tensor]:
    dim = L.normalized_axis(dim, x.rank)
    return _split(x, dim_max(-floor_div(-x.shape[dim], chunks), 1), dim)


@aten("tensor_split.sections")
def _tensor_split(x: Tensor, count: int, dim: int = 0) -> list[Tensor]:
    dim = L.normalized_axis(dim, x.rank)
    total = x.shape[dim]
    share, extra = floor_div(total, count), total - count * floor_div(total, count)
    if isinstance(extra, int):
        return _parts(x, dim, [share + (1 if i < extra else 0) for i in range(count)])
    return _parts(x, dim, [share + dim_min(dim_max(extra - i, 0), 1) for i in range(count)])


@aten("tensor_split.indices")
def _tensor_split_indices(x: Tensor, indices: Sequence[int], dim: int = 0) -> list[Tensor]:
    bounds = [None, *indices, None]
    return [sliced(x, dim, low, high) for low, high in itertools.pairwise(bounds)]


@aten("unbind.int", "unbind_copy.int")
def _unbind(x: Tensor, dim: int = 0) -> list[Tensor]:
    dim = L.normalized_axis(dim, x.rank)
    count = L.static_size(x, dim, "the number of parts")
    if count <= 1:
        return [_squeezed(x, [dim])] * count
    return [_squeezed(part, [dim]) for part in _parts(x, dim, [1] * count)]


@aten("flip.default")
def _flip(x: Tensor, dims: Sequence[int]) -> Tensor:
    return L.reverse(x, [L.normalized_axis(dim, x.rank) for dim in dims])


@aten("fliplr.default")
def _flip_columns(x: Tensor) -> Tensor:
    return L.reverse(x, [1])


@aten("flipud.default")
def _flip_rows(x: Tensor) -> Tensor:
    return L.reverse(x, [0])


@aten("roll.default")
def _roll(x: Tensor, shifts: Any, dims: Any = ()) -> Tensor:
    if not dims:
        return reshaped(_roll(_ravel(x), shifts, [0]), x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        dim = L.normalized_axis(dim, x.rank)
        size = x.shape[dim]
        if isinstance(size, int):
            shift = shift % max(size, 1)
            if shift == 0:
                continue
            x = joined([sliced(x, dim, size - shift, size), sliced(x, dim, 0, size - shift)], dim)
        else:
            # The shift is taken modulo the size, which is only known at run time.
            moved = (L.arange(size) - tensor_of(shift)) + L.size_tensor([size], ()) * 0
            x = L.take(x, L.floor_mod(moved, L.size_tensor([size], ())), dim)
    return x


@aten("rot90.default")
def _rot90(x: Tensor, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
    a, b = (L.normalized_axis(dim, x.rank) for dim in dims)
    match k % 4:
        case 1:
            return transposed(L.reverse(x, [b]), a, b)
        case 2:
            return L.reverse(x, [a, b])
        case 3:
            return L.reverse(transposed(x, a, b), [b])
    return x


@aten("repeat.default", "tile.default")
def _repeat(x: Tensor, repeats: Sequence[Any]) -> Tensor:
    counts: list[Size] = [size_of(count) for count in repeats]
    if len(counts) < x.rank:
        counts = [*[1] * (x.rank - len(counts)), *counts]
    if len(counts) > x.rank:
        x = reshaped(x, [1] * (len(counts) - x.rank) + list(x.shape))
    if all(count == 1 for count in counts):
        return x

    def body(y: Tensor, _: Tensor) -> list[Tensor]:
        spread = [size for pair in zip(counts, y.shape, strict=True) for size in pair]
        whole = L.broadcast_to(L.reshape(y, [s for size in y.shape for s in (1, size)]), tuple(spread))
        return [L.reshape(whole, [count * size for count, size in zip(counts, y.shape, strict=True)])]

    return onnx.Tile(x, L.size_tensor(counts), body=body)  # type: ignore[no-any-return]


@aten("repeat_interleave.self_int")
def _repeat_interleave(x: Tensor, repeats: Any, dim: int | None = None, *, output_size: Any = None) -> Tensor:
    if dim is None:
        x, dim = _ravel(x), 0
    dim = L.normalized_axis(dim, x.rank)
    count = size_of(repeats)
    spread = expanded(unsqueezed(x, dim + 1), [*x.shape[: dim + 1], count, *x.shape[dim + 1 :]])
    return reshaped(spread, [*x.shape[:dim], x.shape[dim] * count, *x.shape[dim + 1 :]])


@aten("constant_pad_nd.default")
def padded(x: Tensor, pads: Sequence[Any], value: Any = 0) -> Tensor:
    """Pad the last axes with a number; pairs from the last axis on. Negative amounts crop."""
    low, high = _sides(x, pads)
    if all(amount == 0 for amount in (*low, *high)):
        return x
    filler = tensor_of(value, x.dtype)
    return onnx.Pad(  # type: ignore[no-any-return]
        x, L.size_tensor([*low, *high]), filler, mode="constant", body=lambda y, *_: [L.pad(y, low, high, filler)]
    )


def _sides(x: Tensor, pads: Sequence[Any]) -> tuple[list[Size], list[Size]]:
    amounts = [size_of(amount) for amount in pads]
    low: list[Size] = [0] * x.rank
    high: list[Size] = [0] * x.rank
    for i in range(len(amounts) // 2):
        low[x.rank - 1 - i], high[x.rank - 1 - i] = amounts[2 * i], amounts[2 * i + 1]
    return low, high


def _mirrored(x: Tensor, pads: Sequence[Any], mode: str) -> Tensor:
    low, high = _sides(x, pads)
    if mode == "wrap":
        # Negative amounts remove entries before the rest repeats.
        for axis, (a, b) in enumerate(zip(low, high, strict=True)):
            if isinstance(a, int) and isinstance(b, int) and min(a, b) < 0:
                x = L.slice_(x, axis, max(-a, 0), x.shape[axis] - max(-b, 0))
                low[axis], high[axis] = max(a, 0), max(b, 0)
    shape = [a + size + b for a, size, b in zip(low, x.shape, high, strict=True)]
    indices: list[tuple[int, Tensor]] = []
    for axis, (a, b) in enumerate(zip(low, high, strict=True)):
        if not (a == 0 and b == 0):
            size = L.size_tensor([x.shape[axis]], ())
            at = L.arange(shape[axis]) - L.size_tensor([a], ())
            if mode == "reflect":
                at = L.abs_(at)
                at = (size - 1) - L.abs_((size - 1) - at)
            elif mode == "edge":
                at = L.clip(at, 0, size - 1)
            else:
                at = L.floor_mod(at + size, size)
            indices.append((axis, at))

    def body(y: Tensor, *_: Tensor) -> list[Tensor]:
        for axis, at in indices:
            y = L.take(y, at, axis)
        return [y]

    if any(isinstance(amount, int) and amount < 0 for amount in (*low, *high)):
        return body(x)[0]
    return onnx.Pad(x, L.size_tensor([*low, *high]), mode=mode, body=body)  # type: ignore[no-any-return]


@aten("reflection_pad1d.default", "reflection_pad2d.default", "reflection_pad3d.default")
def _reflection_pad(x: Tensor, pads: Sequence[Any]) -> Tensor:
    return _mirrored(x, pads, "reflect")


@aten("replication_pad1d.default", "replication_pad2d.default", "replication_pad3d.default")
def _replication_pad(x: Tensor, pads: Sequence[Any]) -> Tensor:
    return _mirrored(x, pads, "edge")


@aten("_pad_circular.default")
def _circular_pad(x: Tensor, pads: Sequence[Any]) -> Tensor:
    return _mirrored(x, pads, "wrap")


@aten("pad.default")
def _pad(x: Tensor, pads: Sequence[Any], mode: str = "constant", value: Any = None) -> Tensor:
    if mode == "constant":
        return padded(x, pads, 0 if value is None else value)
    return _mirrored(x, pads, {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode])


@aten("unfold.default", "unfold_copy.default")
def _unfold(x: Tensor, dim: int, size: int, step: int) -> Tensor:
    dim = L.normalized_axis(dim, x.rank)
    count = floor_div(x.shape[dim] - size, step) + 1
    starts = L.unsqueeze(L.arange(count) * step, [1])
    windows = L.take(x, starts + constant(np.arange(size)[None, :]), dim)
    return L.permute(windows, [a for a in range(windows.rank) if a != dim + 1] + [dim + 1])


@aten("diagonal.default", "diagonal_copy.default")
def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """Return the diagonal over two axes, as the last axis."""
    a, b = L.normalized_axis(dim1, x.rank), L.normalized_axis(dim2, x.rank)
    first = L.permute(x, [a, b, *(i for i in range(x.rank) if i not in (a, b))])
    rows, columns = first.shape[:2]
    count = dim_max(dim_min(rows, columns - offset) if offset >= 0 else dim_min(rows + offset, columns), 0)
    line = L.arange(count)
    at = L.concat([L.unsqueeze(line + max(-offset, 0), [-1]), L.unsqueeze(line + max(offset, 0), [-1])], -1)
    chosen = L.gather_nd(first, at, from_end=False)
    return L.permute(chosen, [*range(1, chosen.rank), 0])


@aten("linalg_diagonal.default")
def _diagonal_of_matrices(x: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    return diagonal(x, offset, dim1, dim2)


@aten("diag_embed.default")
def _diag_embed(x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    size = x.shape[-1] + abs(offset)
    rows, columns = L.unsqueeze(L.arange(size), [1]), L.unsqueeze(L.arange(size), [0])
    on = L.equal(columns - rows, constant(offset))
    wide = L.pad(x, [0] * (x.rank - 1) + [max(offset, 0)], [0] * (x.rank - 1) + [max(-offset, 0)])
    full = L.where(on, L.unsqueeze(wide, [-2]), 0)
    a, b = dim1 % full.rank, dim2 % full.rank
    order = iter(range(full.rank - 2))
    return L.permute(
        full, [full.rank - 2 if i == a else full.rank - 1 if i == b else next(order) for i in range(full.rank)]
    )


@aten("diag.default")
def _diag(x: Tensor, offset: int = 0) -> Tensor:
    return _diag_embed(x, offset) if x.rank == 1 else diagonal(x, offset)


@aten("as_strided.default", "as_strided_copy.default")
def _as_strided(x: Tensor, size: Sequence[Any], stride: Sequence[Any], offset: Any = None) -> Tensor:
    """Read elements of the contiguous operand at regular distances."""
    return L.take(_ravel(x), _distances(size, stride, offset), 0)


def _distances(size: Sequence[Any], stride: Sequence[Any], offset: Any) -> Tensor:
    """Return the positions of strided elements."""
    at = tensor_of(size_of(offset or 0))
    rank = len(size)
    for axis, (count, step) in enumerate(zip(size, stride, strict=True)):
        line = L.arange(size_of(count)) * tensor_of(size_of(step))
        at = at + L.unsqueeze(line, [i for i in range(rank) if i != axis])
    return at


@aten("as_strided_scatter.default")
def _as_strided_scatter(
    x: Tensor, source: Tensor, size: Sequence[Any], stride: Sequence[Any], offset: Any = None
) -> Tensor:
    """Write elements of the contiguous operand at regular distances."""
    at = _ravel(_distances(size, stride, offset))
    return reshaped(L.scatter_elements(_ravel(x), at, _ravel(source), 0), x.shape)


@aten("pixel_shuffle.default")
def _pixel_shuffle(x: Tensor, factor: int) -> Tensor:
    *batch, c, h, w = x.shape
    if len(batch) == 1:
        return onnx.DepthToSpace(x, blocksize=factor, mode="CRD")  # type: ignore[no-any-return]
    n = len(batch)
    split = reshaped(x, [*batch, floor_div(c, factor * factor), factor, factor, h, w])
    moved = L.permute(split, [*range(n), n, n + 3, n + 1, n + 4, n + 2])
    return reshaped(moved, [*batch, floor_div(c, factor * factor), h * factor, w * factor])


@aten("pixel_unshuffle.default")
def _pixel_unshuffle(x: Tensor, factor: int) -> Tensor:
    *batch, c, h, w = x.shape
    n = len(batch)
    split = reshaped(x, [*batch, c, floor_div(h, factor), factor, floor_div(w, factor), factor])
    moved = L.permute(split, [*range(n), n, n + 2, n + 4, n + 1, n + 3])
    return reshaped(moved, [*batch, c * factor * factor, floor_div(h, factor), floor_div(w, factor)])


@aten("channel_shuffle.default", "native_channel_shuffle.default")
def _channel_shuffle(x: Tensor, groups: int) -> Tensor:
    n, c, *rest = x.shape
    split = reshaped(x, [n, groups, floor_div(c, groups), *rest])
    return reshaped(L.swap_axes(split, 1, 2), x.shape)


@aten("meshgrid.default", "meshgrid.indexing")
def _meshgrid(xs: Sequence[Tensor], *, indexing: str = "ij") -> list[Tensor]:
    order = [1, 0, *range(2, len(xs))] if indexing == "xy" and len(xs) > 1 else list(range(len(xs)))
    lines = [_ravel(x) for x in xs]
    shape = [lines[i].shape[0] for i in order]
    results = []
    for i, line in enumerate(lines):
        axis = order.index(i)
        results.append(expanded(L.unsqueeze(line, [a for a in range(len(xs)) if a != axis]), shape))
    return results


@aten("atleast_1d.default")
def _atleast_1d(x: Tensor) -> Tensor:
    return reshaped(x, [1]) if x.rank == 0 else x
