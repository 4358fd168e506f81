"""Functions for generated modules: the source of each is copied into the modules with calls of the function.

The functions are self-contained, up to other functions of this file and the names ``torch``, ``F`` and ``math``.
Source: the primitives of Core (``docs/design/index.md``).
"""

# Copied into files of users: no imports of Sardonyx.

from __future__ import annotations

import math

import torch
import torch.nn.functional as F


def add_parameter(module: torch.nn.Module, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Add a parameter under a dotted name; its numbers come from the state."""
    owner, leaf = group_of(module, name)
    owner.register_parameter(leaf, torch.nn.Parameter(torch.zeros(shape, dtype=dtype)))


def add_buffer(module: torch.nn.Module, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Add a constant under a dotted name; its numbers come from the state."""
    owner, leaf = group_of(module, name)
    owner.register_buffer(leaf, torch.zeros(shape, dtype=dtype))


def group_of(module: torch.nn.Module, name: str) -> tuple[torch.nn.Module, str]:
    """Return the owner of a dotted name, with groups added as needed, and the last part of the name."""
    *path, leaf = name.split(".")
    for part in path:
        if part not in module._modules:
            module.add_module(part, Group())
        module = module.get_submodule(part)
    return module, leaf


class Group(torch.nn.Module):  # type: ignore[misc,unused-ignore]
    """Parameters and groups under one name; numbered parts are reached as ``group[0]``."""

    def __getitem__(self, index: int) -> torch.nn.Module:
        return getattr(self, str(index))


def broadcast_size(first: int, second: int) -> int:
    """Return the size of an axis of two tensors after broadcasting."""
    return second if first == 1 else first


def truncated(first: int, second: int) -> int:
    """Return a quotient rounded toward zero."""
    quotient = first // second
    return quotient + 1 if quotient < 0 and quotient * second != first else quotient


def top_k(x: torch.Tensor, k: int, axis: int, largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first numbers of an axis in order, with their indices; equal numbers keep their order."""
    values, indices = torch.sort(x, dim=axis, descending=largest, stable=True)
    return values.narrow(axis, 0, k), indices.narrow(axis, 0, k)


def from_start(indices: torch.Tensor, size: int) -> torch.Tensor:
    """Return indices without those that count from the end."""
    return torch.where(indices < 0, indices + size, indices).to(torch.int64)


def wrap(x: torch.Tensor, bits: int, offset: int) -> torch.Tensor:
    """Reduce integers to a number of bits; numbers are signed if `offset` is not 0."""
    return ((x + offset) & ((1 << bits) - 1)) - offset


def unsigned_less(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Compare the bits of int64 numbers as unsigned numbers."""
    least = torch.iinfo(torch.int64).min
    return (x ^ least) < (y ^ least)


def unsigned_max(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the larger of unsigned numbers in int64."""
    return torch.where(unsigned_less(x, y), y, x)


def unsigned_min(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the smaller of unsigned numbers in int64."""
    return torch.where(unsigned_less(x, y), x, y)


def unsigned_shift(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """Shift unsigned numbers in int64 right; excessive amounts give 0."""
    inside = (by >= 0) & (by < 64)
    amount = torch.where(inside, by, torch.zeros_like(by))
    mask = torch.where(amount == 0, -1, ~(torch.full_like(amount, -1) << (64 - amount)))
    return torch.where(inside, (x >> amount) & mask, 0)


def unsigned_quotient(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Divide unsigned numbers in int64, rounded down."""
    half = ((x >> 1) & torch.iinfo(torch.int64).max) // torch.clamp(y, min=1)
    quotient = half << 1
    quotient = quotient + (~unsigned_less(x - quotient * y, y)).to(torch.int64)
    return torch.where(y < 0, (~unsigned_less(x, y)).to(torch.int64), quotient)


def unsigned_remainder(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the remainder of unsigned numbers in int64."""
    return x - unsigned_quotient(x, y) * y


def unsigned_to_float(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert unsigned numbers in int64 to floats."""
    half = ((x >> 1) & torch.iinfo(torch.int64).max) | (x & 1)
    return torch.where(x < 0, half.to(torch.float64) * 2, x.to(torch.float64)).to(dtype)


def sign(x: torch.Tensor) -> torch.Tensor:
    """Return the sign of every element; NaN stays."""
    return torch.where(x != x, x, torch.sign(x))


def shift(x: torch.Tensor, by: torch.Tensor, bits: int, left: bool) -> torch.Tensor:
    """Shift integers; excessive amounts give 0, or -1 for a negative number shifted right."""
    inside = (by >= 0) & (by < bits)
    amount = torch.where(inside, by, torch.zeros_like(by))
    shifted = torch.bitwise_left_shift(x, amount) if left else torch.bitwise_right_shift(x, amount)
    return torch.where(inside, shifted, torch.where((x < 0) & (not left), -1, 0).to(x.dtype))


def integer_power(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return integer powers; a negative exponent rounds toward zero."""
    result = torch.pow(x, torch.clamp(y, min=0))
    inverse = torch.where(x == 1, 1, torch.where(x == -1, 1 - 2 * (y & 1), 0)).to(x.dtype)
    return torch.where(y < 0, inverse, result)


def to_float8(x: torch.Tensor, dtype: torch.dtype, saturate: bool) -> torch.Tensor:
    """Convert to an 8-bit float; numbers beyond the largest are the largest if `saturate` is set."""
    wide = x.to(torch.float32)
    if saturate:
        limit = torch.finfo(dtype).max
        wide = torch.where(torch.isnan(wide), wide, torch.clamp(wide, -limit, limit))
    return wide.to(dtype)


def product_over(x: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """Return products over axes, which go away."""
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, dim=axis, dtype=x.dtype)
    return x


def spread(
    x: torch.Tensor, low: tuple[int, ...], high: tuple[int, ...], interior: tuple[int, ...], value: torch.Tensor
) -> torch.Tensor:
    """Put a number before, after and between the elements of axes; negative amounts crop."""
    for axis, between in enumerate(interior):
        if between and x.shape[axis]:
            size, fill = x.shape[axis], list(x.shape)
            fill.insert(axis + 1, between)
            filler = torch.zeros(fill, dtype=x.dtype, device=x.device) + value.to(x.dtype)
            x = torch.cat([x.unsqueeze(axis + 1), filler], axis + 1).flatten(axis, axis + 1)
            x = x.narrow(axis, 0, size * (between + 1) - between)
    for axis, (before, after) in enumerate(zip(low, high, strict=True)):
        if type(before) is int and type(after) is int and before == 0 and after == 0:
            continue
        if type(before) is not int or before > 0:
            fill = list(x.shape)
            fill[axis] = torch.sym_max(before, 0)
            filler = torch.zeros(fill, dtype=x.dtype, device=x.device) + value.to(x.dtype)
            x = torch.cat([filler, x], axis)
        if type(after) is not int or after > 0:
            fill = list(x.shape)
            fill[axis] = torch.sym_max(after, 0)
            filler = torch.zeros(fill, dtype=x.dtype, device=x.device) + value.to(x.dtype)
            x = torch.cat([x, filler], axis)
        start, end = torch.sym_max(-before, 0), torch.sym_max(-after, 0)
        x = x.narrow(axis, start, x.shape[axis] - start - end)
    return x


def convolve(
    x: torch.Tensor,
    w: torch.Tensor,
    strides: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    base_dilation: tuple[int, ...],
    kernel_dilation: tuple[int, ...],
) -> torch.Tensor:
    """Convolve [G, N, C, *spatial] with [G, M, C, *kernel] to [G, N, M, *spatial], every group by itself."""
    groups, count, dtype = x.shape[0], x.shape[1], x.dtype
    if not dtype.is_floating_point and not dtype.is_complex:
        # torch convolves no integers; sums of products of 8 or 16 bits are exact in float64.
        x, w = x.to(torch.float64), w.to(torch.float64)
        return convolve(x, w, strides, padding, base_dilation, kernel_dilation).to(dtype)
    if not strides:
        return torch.einsum("gnc,gmc->gnm", x, w)
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    low, high = [pair[0] for pair in padding], [pair[1] for pair in padding]
    x = spread(x, (0, 0, 0, *low), (0, 0, 0, *high), (0, 0, 0, *[step - 1 for step in base_dilation]), zero)
    rows = x.transpose(0, 1).flatten(1, 2)
    function = (F.conv1d, F.conv2d, F.conv3d)[len(strides) - 1]
    result = function(rows, w.flatten(0, 1), stride=strides, dilation=kernel_dilation, groups=groups)
    result = result.unflatten(1, (groups, w.shape[1])).transpose(0, 1)
    return result.reshape(groups, count, w.shape[1], *result.shape[3:])


def windows(
    x: torch.Tensor,
    window: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
    value: torch.Tensor,
) -> torch.Tensor:
    """Return all windows over the last axes, [leading…, out…, elements of a window]."""
    leading, n = x.dim() - len(window), len(window)
    low, high = [pair[0] for pair in padding], [pair[1] for pair in padding]
    x = spread(x, (0,) * leading + tuple(low), (0,) * leading + tuple(high), (0,) * x.dim(), value)
    for axis in range(n):
        x = x.unfold(leading + axis, (window[axis] - 1) * dilation[axis] + 1, strides[axis])
    for axis in range(n):
        if dilation[axis] > 1:
            index = [slice(None)] * x.dim()
            index[leading + n + axis] = slice(None, None, dilation[axis])
            x = x[tuple(index)]
    return x.flatten(leading + n)


def window_indices(
    x: torch.Tensor,
    greatest: bool,
    window: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
    dilation: tuple[int, ...],
) -> torch.Tensor:
    """Return the flat index of the first extremum (or NaN) of every window; -1 in padding alone."""
    sizes = x.shape[x.dim() - len(window) :]
    positions = torch.arange(math.prod(sizes), device=x.device).reshape(sizes)
    outside = torch.full((), -1, device=x.device)
    positions = windows(positions, window, strides, padding, dilation, outside)
    values = windows(x, window, strides, padding, dilation, torch.zeros((), dtype=x.dtype, device=x.device))
    wide = values if values.dtype.is_floating_point else values.to(torch.int64)
    # Among the elements outside of the padding, NaN first, then the greatest, then the first.
    best = torch.where(positions >= 0, wide, lowest(wide, greatest))
    extreme = torch.amax(best, -1, keepdim=True) if greatest else torch.amin(best, -1, keepdim=True)
    attained = ((wide == extreme) | (wide != wide)) & (positions >= 0)
    first = torch.argmax(attained.to(torch.uint8), -1, keepdim=True)
    return torch.where(attained, positions.expand_as(wide), -1).gather(-1, first).squeeze(-1)


def lowest(x: torch.Tensor, greatest: bool) -> torch.Tensor:
    """Return the number below all others of the type of `x`, or above all others."""
    if x.dtype.is_floating_point:
        return torch.full((), -math.inf if greatest else math.inf, dtype=x.dtype, device=x.device)
    limits = torch.iinfo(x.dtype)
    return torch.full((), limits.min if greatest else limits.max, dtype=x.dtype, device=x.device)


def extremum(x: torch.Tensor, axes: tuple[int, ...], greatest: bool) -> torch.Tensor:
    """Return the greatest or least numbers over axes, which go away; of no numbers, the identity."""
    if x.numel():
        return torch.amax(x, axes) if greatest else torch.amin(x, axes)
    shape = [size for axis, size in enumerate(x.shape) if axis not in axes]
    identity = torch.full((), not greatest, device=x.device) if x.dtype == torch.bool else lowest(x, greatest)
    return identity.expand(shape)


def gather_vectors(x: torch.Tensor, indices: torch.Tensor, batch: int) -> torch.Tensor:
    """Gather at index vectors, the last axis of `indices`, after `batch` axes that both share."""
    indices = indices.to(torch.int64)
    depth = indices.shape[-1]
    if depth == 0:
        return x[(...,)].expand(*indices.shape[:-1], *x.shape[batch:])
    leading = [
        torch.arange(x.shape[axis], device=x.device).reshape((-1,) + (1,) * (indices.dim() - 2 - axis))
        for axis in range(batch)
    ]
    return x[(*leading, *indices.unbind(-1))]


def scatter_vectors(
    x: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor, kind: str, batch: int
) -> torch.Tensor:
    """Write updates into a copy at index vectors; equal indices are combined in order."""
    indices = indices.to(torch.int64)
    depth, shape = indices.shape[-1], x.shape
    size = math.prod(shape[: batch + depth])
    flat = torch.zeros(indices.shape[:-1], dtype=torch.int64, device=x.device)
    for axis in range(batch):
        line = torch.arange(shape[axis], device=x.device)
        flat = flat * shape[axis] + line.reshape((-1,) + (1,) * (flat.dim() - 1 - axis))
    for axis in range(depth):
        flat = flat * shape[batch + axis] + indices[..., axis]
    rest = math.prod(shape[batch + depth :])
    flat = flat.reshape(-1)
    rows, new = x.reshape(size, rest), updates.reshape(flat.shape[0], rest)
    if kind == "set":
        return rows.index_copy(0, flat, new).reshape(shape)
    if kind == "add":
        return rows.index_add(0, flat, new).reshape(shape)
    reduce = {"mul": "prod", "min": "amin", "max": "amax"}[kind]
    return rows.scatter_reduce(0, flat[:, None].expand_as(new), new, reduce).reshape(shape)


def inserted(sequence: list[torch.Tensor], tensor: torch.Tensor, position: int) -> list[torch.Tensor]:
    """Return a sequence with a tensor inserted at a position, which may count from the end."""
    position = position + len(sequence) if position < 0 else position
    return [*sequence[:position], tensor, *sequence[position:]]


def erased(sequence: list[torch.Tensor], position: int) -> list[torch.Tensor]:
    """Return a sequence without the tensor at a position, which may count from the end."""
    position = position + len(sequence) if position < 0 else position
    return [*sequence[:position], *sequence[position + 1 :]]


def non_max_suppression(
    boxes: torch.Tensor, scores: torch.Tensor, most: int, overlap: float, least: float | None, centered: bool
) -> torch.Tensor:
    """Return the indices [image, class, box] of boxes without stronger boxes that overlap."""
    a, b = boxes[..., :2], boxes[..., 2:]
    low, high = (a - b / 2, a + b / 2) if centered else (torch.minimum(a, b), torch.maximum(a, b))
    area = (high - low).prod(-1)
    selected = []
    for image in range(scores.shape[0]):
        for category in range(scores.shape[1]):
            of = scores[image, category]
            order = torch.argsort(of, descending=True, stable=True)
            order = order if least is None else order[of[order] > least]
            count = 0
            while order.numel() and count < most:
                best, order = order[0], order[1:]
                selected.append((image, category, int(best)))
                count += 1
                sides = torch.minimum(high[image, order], high[image, best])
                sides = torch.clamp(sides - torch.maximum(low[image, order], low[image, best]), min=0)
                common = sides.prod(-1)
                union = area[image, order] + area[image, best] - common
                solid = (common > 0) & (area[image, order] > 0) & (area[image, best] > 0) & (union > 0)
                order = order[~(solid & (common / torch.where(solid, union, 1) > overlap))]
    return torch.tensor(selected, dtype=torch.int64, device=boxes.device).reshape(-1, 3)


def unique(
    x: torch.Tensor, axis: int | None, in_order: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the different slices of an axis (or elements), first indices, indices into the result, and counts."""
    flat = x.reshape(-1) if axis is None else x
    dim = 0 if axis is None else axis
    values, inverse, counts = torch.unique(flat, return_inverse=True, return_counts=True, dim=dim)
    positions = torch.arange(inverse.numel() - 1, -1, -1, device=x.device)
    first = torch.zeros_like(counts).index_copy_(0, inverse.flip(0), positions)
    if not in_order:
        order = torch.argsort(first)
        rank = torch.zeros_like(order).index_copy_(0, order, torch.arange(len(order), device=x.device))
        return values.index_select(dim, order), first[order], rank[inverse], counts[order]
    return values, first, inverse, counts


def gates_in_order(x: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Reorder the blocks of the first axis, one for each gate."""
    blocks = x.chunk(len(order))
    return torch.cat([blocks[i] for i in order])


def layer_weights(
    w: torch.Tensor, r: torch.Tensor, b: torch.Tensor | None, order: tuple[int, ...]
) -> list[torch.Tensor]:
    """Return the weights of a recurrent layer in torch's order, from [directions, gates * hidden, …]."""
    weights = []
    for direction in range(w.shape[0]):
        parts = [w[direction], r[direction], *([] if b is None else b[direction].chunk(2))]
        weights += [gates_in_order(part, order) for part in parts]
    return weights


def by_direction(x: torch.Tensor, directions: int) -> torch.Tensor:
    """Return [time, directions, batch, hidden] from [time, batch, directions * hidden]."""
    return x.unflatten(2, (directions, x.shape[2] // directions)).transpose(1, 2)


def onnx_lstm(
    x: torch.Tensor,
    w: torch.Tensor,
    r: torch.Tensor,
    b: torch.Tensor | None,
    h: torch.Tensor | None,
    c: torch.Tensor | None,
    direction: str,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute an LSTM with weights in the order of ONNX: input, output, forget, cell."""
    count, hidden = w.shape[0], r.shape[2]
    zero = torch.zeros((count, x.shape[1], hidden), dtype=x.dtype, device=x.device)
    states = (zero if h is None else h, zero if c is None else c)
    x = x.flip(0) if direction == "reverse" else x
    weights = layer_weights(w, r, b, (0, 2, 3, 1))
    y, h, c = torch.lstm(x, states, weights, b is not None, 1, 0.0, False, count == 2, False)
    y = y.flip(0) if direction == "reverse" else y
    return by_direction(y, count), h, c


def onnx_gru(
    x: torch.Tensor,
    w: torch.Tensor,
    r: torch.Tensor,
    b: torch.Tensor | None,
    h: torch.Tensor | None,
    direction: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute a GRU with weights in the order of ONNX: update, reset, hidden."""
    count, hidden = w.shape[0], r.shape[2]
    h = torch.zeros((count, x.shape[1], hidden), dtype=x.dtype, device=x.device) if h is None else h
    x = x.flip(0) if direction == "reverse" else x
    weights = layer_weights(w, r, b, (1, 0, 2))
    y, h = torch.gru(x, h, weights, b is not None, 1, 0.0, False, count == 2, False)
    y = y.flip(0) if direction == "reverse" else y
    return by_direction(y, count), h


def onnx_rnn(
    x: torch.Tensor,
    w: torch.Tensor,
    r: torch.Tensor,
    b: torch.Tensor | None,
    h: torch.Tensor | None,
    direction: str,
    activation: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute a recurrent layer with one gate."""
    count, hidden = w.shape[0], r.shape[2]
    h = torch.zeros((count, x.shape[1], hidden), dtype=x.dtype, device=x.device) if h is None else h
    x = x.flip(0) if direction == "reverse" else x
    weights = layer_weights(w, r, b, (0,))
    layer = torch.rnn_tanh if activation == "tanh" else torch.rnn_relu
    y, h = layer(x, h, weights, b is not None, 1, 0.0, False, count == 2, False)
    y = y.flip(0) if direction == "reverse" else y
    return by_direction(y, count), h
