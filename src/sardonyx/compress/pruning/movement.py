"""Rules of operators that move or regroup elements: reshapes, expansions, slices, splits, reductions, softmax.

A Reshape that divides an axis of channels groups these to heads, which stay or go at once; a Reshape that joins axes
repeats or tiles the numbers. Sizes in constants that count channels are recorded, so that removal writes smaller ones;
open sizes stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compress.pruning.channels import UNNUMBERED, Axis, ChannelGraph, SizeEntry, is_constant
from sardonyx.compress.pruning.grouping import axis_of, reshaped_normalization, shuffled_columns
from sardonyx.compress.pruning.packing import divided_parts, selected_axes
from sardonyx.compress.pruning.sizes import record_size, size_element
from sardonyx.core.dim.api import Size, as_dim, divides
from sardonyx.rewrite.analysis import facts

SEVERAL_RESULTS = ("Split",)
"""Operators whose rules number all results."""


def extent(sizes: Sequence[Any]) -> Size | None:
    """Return the product of sizes; None if a size is unknown or 0."""
    product: Size = 1
    for size in sizes:
        known = size if isinstance(size, int) else size.value
        if known is None or known == 0:
            return None
        product = product * as_dim(known)
    return product


def _regroup(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    """Continue channels through Reshape and Flatten."""
    axis = axis_of(graph, node)
    if axis is None:
        return True
    before = None if node.inputs[0] is None else node.inputs[0].shape
    after = node.outputs[0].shape
    if before is None or after is None:
        return False
    if node.op_type == "Reshape":
        back = reshaped_normalization(graph, node, axis)
        if back is not None:
            return record_size(graph, back, 1, 1, axis.ids, copies=False, allowzero=_allowzero(back, opset))
    parts = _divided_parts(graph, node, axis, list(before), list(after), opset)
    if parts is not None:
        if node.op_type == "Reshape" and not record_size(
            graph, node, 1, parts.index, parts.ids, copies=False, allowzero=_allowzero(node, opset)
        ):
            return False
        graph.axes[node.outputs[0]] = parts
        return True
    candidates = [
        (kind, -size if isinstance(size, int) else 0, index)
        for index, size in enumerate(after)
        if (kind := _relation(list(before), axis, list(after), index)) is not None
    ]
    if not candidates:
        return False
    kind, _, index = min(candidates)
    size = after[index]
    ids = _regrouped(graph, axis.ids, kind, size) if isinstance(size, int) else axis.ids
    if ids is None:
        return False
    if node.op_type == "Reshape":
        is_same = index == axis.index and size == len(axis.ids)
        if not record_size(graph, node, 1, index, ids, copies=is_same, allowzero=_allowzero(node, opset)):
            return False
    graph.axes[node.outputs[0]] = Axis(index, ids, kind == _REPEATED)
    return True


def _divided_parts(
    graph: ChannelGraph, node: ir.Node, axis: Axis, before: list[Any], after: list[Any], opset: int
) -> Axis | None:
    """Return the axis of the channels of a Reshape to several axes, of which readers select or exchange one."""
    inner, count = extent(before[axis.index + 1 :]), len(axis.ids)
    for first in range(len(after) - 1):
        size, last = 1, first
        while last < len(after) and isinstance(after[last], int) and size < count:
            size *= after[last]
            last += 1
        if size != count or last - first < 2 or inner is None or extent(after[last:]) != inner:
            continue
        sizes = tuple(after[first:last])
        if len(sizes) == 2 and shuffled_columns(graph, node, axis.ids, first, (sizes[0], sizes[1])):
            return Axis(first + 1, np.ascontiguousarray(axis.ids[: sizes[1]]))
        parts = divided_parts(graph, axis.ids, sizes, {one - first for one in selected_axes(node.outputs[0], opset)})
        return None if parts is None else parts.at(parts.index + first)
    return None


_SAME, _JOINED, _REPEATED, _DIVIDED, _TILED = range(5)


def _relation(before: list[Any], axis: Axis, after: list[Any], index: int) -> int | None:
    """Return the relation of an axis of the result to the channels: equal, joined with others, divided or tiled."""
    inner, outer = extent(before[axis.index + 1 :]), extent(after[index + 1 :])
    n, m = len(axis.ids), extent([after[index]])
    if m is None or inner is None or outer is None:
        return None
    # Equal sizes ahead make equal sizes from the axis on, though these may be rounded: x//2*2 is x there.
    leading = extent(before[: axis.index])
    if n * inner == m * outer or (isinstance(m, int) and leading is not None and leading == extent(after[:index])):
        if not isinstance(m, int):
            return _REPEATED if divides(n, m) else None
        if n == m:
            return _SAME
        if m % n == 0:
            return _JOINED
        return _DIVIDED if m > 1 and n % m == 0 else None
    return _TILED if inner == outer and isinstance(m, int) and m % n == 0 else None


def _regrouped(graph: ChannelGraph, ids: np.ndarray, kind: int, size: int) -> np.ndarray | None:
    if kind == _DIVIDED:
        return None if UNNUMBERED in ids else graph.group(ids.reshape(size, -1), "")
    return np.tile(ids, size // len(ids)) if kind == _TILED else np.repeat(ids, size // len(ids))


def _allowzero(node: ir.Node, opset: int) -> bool:
    return bool(facts.attribute(node, "allowzero", opset, 0))


def _expand(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    axis, before, after = axis_of(graph, node), facts.rank(node.inputs[0]), facts.rank(node.outputs[0])
    if axis is None:
        return True
    length = facts.dim_at(node.inputs[1], 0)
    if before is None or after is None or length is None:
        return False
    index = axis.index + after - before
    if facts.dim_at(node.outputs[0], index) != len(axis.ids):
        return False
    position = index - (after - length)
    if position >= 0:
        entry = size_element(node, 1, position)
        if entry is None:
            return False
        if entry[3] != 1:
            graph.sizes.append(SizeEntry(*entry[:3], axis.ids))
    graph.axes[node.outputs[0]] = Axis(index, axis.ids)
    return True


def _tile(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    """Continue channels that a Tile repeats along their own axis or others."""
    axis = axis_of(graph, node)
    if axis is None:
        return True
    repeats = facts.constant_ints(node.inputs[1]) if len(node.inputs) == 2 else None
    if repeats is None or axis.index >= len(repeats) or axis.is_repeated:
        return False
    graph.axes[node.outputs[0]] = Axis(axis.index, np.tile(axis.ids, repeats[axis.index]))
    return True


def _slice(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    """Continue channels through a slice of other axes, or of their own with constant bounds and step 1."""
    axis, rank = axis_of(graph, node), facts.rank(node.inputs[0])
    if axis is None:
        return True
    if rank is None:
        return False
    axes = facts.attribute(node, "axes", opset, None)
    if opset >= 10 and len(node.inputs) > 3 and node.inputs[3] is not None:
        axes = facts.constant_ints(node.inputs[3])
        if axes is None:
            return False
    if axes is None:
        return False
    positions = [int(one) % rank for one in axes]
    if axis.index not in positions:
        graph.axes[node.outputs[0]] = axis
        return True
    return opset >= 10 and not axis.is_repeated and _sliced(graph, node, axis, positions.index(axis.index))


def _sliced(graph: ChannelGraph, node: ir.Node, axis: Axis, position: int) -> bool:
    """Continue the channels of a slice of channels; bounds count the channels ahead of them."""
    bounds, count = [facts.constant_ints(node.inputs[index]) for index in (1, 2)], len(axis.ids)
    steps = facts.constant_ints(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] is not None else None
    if bounds[0] is None or bounds[1] is None or (steps is not None and steps[position] != 1):
        return False
    if len(node.inputs) > 4 and node.inputs[4] is not None and steps is None:
        return False
    limits = [bounds[0][position], bounds[1][position]]
    start, end = (min(max(one + count if one < 0 else one, 0), count) for one in limits)
    for index, limit, bound in ((1, limits[0], start), (2, limits[1], end)):
        if limit < 0:
            graph.sizes.append(SizeEntry(node, index, position, axis.ids[bound:]))
            graph.counted.append(axis.ids[bound:])
        elif bound > 0 and limit <= count:
            graph.sizes.append(SizeEntry(node, index, position, axis.ids[:bound]))
    graph.axes[node.outputs[0]] = Axis(axis.index, axis.ids[start:end])
    return True


def _pad(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    """Continue channels through constant padding of other axes."""
    axis, rank = axis_of(graph, node), facts.rank(node.inputs[0])
    if axis is None:
        return True
    pads = facts.attribute(node, "pads", opset, None) if opset < 11 else facts.constant_ints(node.inputs[1])
    if rank is None or pads is None:
        return False
    axes: Sequence[int] | None = range(rank)
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        axes = facts.constant_ints(node.inputs[3])
    if axes is None:
        return False
    ends = list(zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True))
    if any(int(one) % rank == axis.index and (before or after) for one, before, after in ends):
        return False
    graph.axes[node.outputs[0]] = axis
    return True


def _shape(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    """Let the sizes of other axes be read."""
    axis, rank = axis_of(graph, node), facts.rank(node.inputs[0])
    if axis is None:
        return True
    start, end = facts.attribute(node, "start", opset, 0), facts.attribute(node, "end", opset, rank)
    return rank is not None and axis.index not in range(*slice(start, end).indices(rank))


def _split(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    """Continue channels through Split along another axis, or along their own with constant sizes."""
    axis, rank = axis_of(graph, node), facts.rank(node.inputs[0])
    if axis is None:
        return True
    if rank is None:
        return False
    if int(facts.attribute(node, "axis", opset, 0)) % rank != axis.index:
        graph.axes |= dict.fromkeys(node.outputs, axis)
        return True
    sizes = facts.constant_ints(node.inputs[1]) if len(node.inputs) > 1 and is_constant(node, 1) else None
    if sizes is None or len(sizes) != len(node.outputs) or sum(sizes) != len(axis.ids):
        return False
    ends = np.cumsum(sizes)
    for position, (output, end, size) in enumerate(zip(node.outputs, ends, sizes, strict=True)):
        ids = axis.ids[end - size : end]
        graph.sizes.append(SizeEntry(node, 1, position, ids))
        graph.axes[output] = Axis(axis.index, ids)
    return True


def _reduction(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    """Continue channels over removed or reduced other axes, for ReduceMean and such, and Squeeze."""
    axis, rank = axis_of(graph, node), facts.rank(node.inputs[0])
    if axis is None:
        return True
    axes = _axes(node, opset)
    if axes is None or rank is None:
        return False
    positions = {int(one) % rank for one in axes}
    if not positions or axis.index in positions:
        return False
    stays = node.op_type != "Squeeze" and facts.attribute(node, "keepdims", opset, 1)
    shift = 0 if stays else sum(one < axis.index for one in positions)
    graph.axes[node.outputs[0]] = axis.at(axis.index - shift)
    return True


def _unsqueeze(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    axis, rank = axis_of(graph, node), facts.rank(node.outputs[0])
    if axis is None:
        return True
    axes = _axes(node, opset)
    if axes is None or rank is None:
        return False
    added = {int(one) % rank for one in axes}
    graph.axes[node.outputs[0]] = axis.at([one for one in range(rank) if one not in added][axis.index])
    return True


def _axes(node: ir.Node, opset: int) -> Sequence[int] | None:
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        return facts.constant_ints(node.inputs[1])
    axes: Sequence[int] | None = facts.attribute(node, "axes", opset, None)
    return axes


def _transpose(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    axis, rank = axis_of(graph, node), facts.rank(node.inputs[0])
    if axis is None:
        return True
    if rank is None:
        return False
    order = list(facts.attribute(node, "perm", opset, None) or range(rank)[::-1])
    graph.axes[node.outputs[0]] = axis.at(order.index(axis.index))
    return True


def _softmax(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    """Continue channels through a softmax over other axes; below operator set 13 over all axes from one on."""
    axis, rank = axis_of(graph, node), facts.rank(node.inputs[0])
    if axis is None:
        return True
    if rank is None:
        return False
    summed = int(facts.attribute(node, "axis", opset, -1 if opset >= 13 else 1)) % rank
    if summed == axis.index or (opset < 13 and summed < axis.index):
        return False
    graph.axes[node.outputs[0]] = axis
    return True


MOVEMENT: dict[str, Callable[[ChannelGraph, ir.Node, int], bool]] = {
    **dict.fromkeys(("Flatten", "Reshape"), _regroup),
    **dict.fromkeys(
        ("ReduceMean", "ReduceMax", "ReduceSum", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceLogSum",
         "ReduceLogSumExp", "ReduceProd", "ReduceSumSquare", "Squeeze"), _reduction
    ),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    "Expand": _expand,
    "Pad": _pad,
    "Shape": _shape,
    "Slice": _slice,
    "Split": _split,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}  # fmt: skip
"""The rules by operator."""
