"""Rules of operators that move or regroup elements: reshapes, expansions, slices, splits, reductions, softmax.

A Reshape that divides an axis of channels groups these to heads, which stay or go at once; a Reshape that joins axes
repeats or tiles the numbers. Sizes in constants that count channels are recorded, so that removal writes smaller ones;
open sizes stay as they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compress.pruning.channels import UNNUMBERED, Axis, ChannelGraph, SizeEntry, is_constant
from sardonyx.compress.pruning.packing import divided_parts, selected_axes
from sardonyx.rewrite.analysis import facts

SEVERAL_RESULTS = ("Split",)
"""Operators whose rules number all results."""

Extent = tuple[int, Counter[str]]
"""A product of sizes: the known factor, and the open sizes."""


def _axis(graph: ChannelGraph, node: ir.Node) -> Axis | None:
    value = node.inputs[0]
    return None if value is None else graph.axes.get(value)


def extent(sizes: Sequence[Any]) -> Extent | None:
    """Return the product of sizes; None if a size is unknown."""
    numbers = [size for size in sizes if isinstance(size, int)]
    names = [str(size.value) for size in sizes if isinstance(size, ir.SymbolicDim) and size.value is not None]
    if len(numbers) + len(names) != len(sizes):
        return None
    return math.prod(numbers), Counter(names)


def _regroup(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    """Continue channels through Reshape and Flatten."""
    axis = _axis(graph, node)
    if axis is None:
        return True
    before = None if node.inputs[0] is None else node.inputs[0].shape
    after = node.outputs[0].shape
    if before is None or after is None:
        return False
    parts = _divided_parts(graph, node, axis, list(before), list(after), opset)
    if parts is not None:
        if node.op_type == "Reshape" and not _record_size(
            graph, node, 1, parts.index, parts.ids, copies=False, allowzero=_allowzero(node, opset)
        ):
            return False
        graph.axes[node.outputs[0]] = parts
        return True
    candidates = [
        (kind, -size, index)
        for index, size in enumerate(after)
        if isinstance(size, int) and (kind := _relation(list(before), axis, list(after), index)) is not None
    ]
    if not candidates:
        return False
    kind, _, index = min(candidates)
    size = after[index]
    assert isinstance(size, int)
    ids = _regrouped(graph, axis.ids, kind, size)
    if ids is None:
        return False
    if node.op_type == "Reshape":
        is_same = index == axis.index and size == len(axis.ids)
        if not _record_size(graph, node, 1, index, ids, copies=is_same, allowzero=_allowzero(node, opset)):
            return False
    graph.axes[node.outputs[0]] = Axis(index, ids)
    return True


def _divided_parts(
    graph: ChannelGraph, node: ir.Node, axis: Axis, before: list[Any], after: list[Any], opset: int
) -> Axis | None:
    """Return the axis of heads if the channels are divided into several axes, of which readers select the first."""
    inner, count = extent(before[axis.index + 1 :]), len(axis.ids)
    for first in range(len(after) - 1):
        size, last = 1, first
        while last < len(after) and isinstance(after[last], int) and size < count:
            size *= after[last]
            last += 1
        if size == count and last - first > 1 and inner is not None and extent(after[last:]) == inner:
            selected = {one - first for one in selected_axes(node.outputs[0], opset)}
            parts = divided_parts(graph, axis.ids, tuple(after[first:last]), selected)
            return None if parts is None else Axis(parts.index + first, parts.ids)
    return None


_SAME, _JOINED, _DIVIDED, _TILED = range(4)


def _relation(before: list[Any], axis: Axis, after: list[Any], index: int) -> int | None:
    """Return the relation of an axis of the result to the channels: equal, joined with others, divided or tiled."""
    inner, outer = extent(before[axis.index + 1 :]), extent(after[index + 1 :])
    if inner is None or outer is None or inner[1] != outer[1] or not inner[0] or not outer[0]:
        return None
    n, m = len(axis.ids), after[index]
    if n * inner[0] == m * outer[0]:
        if n == m:
            return _SAME
        if m % n == 0:
            return _JOINED
        return _DIVIDED if m > 1 and n % m == 0 else None
    return _TILED if inner[0] == outer[0] and m % n == 0 else None


def _regrouped(graph: ChannelGraph, ids: np.ndarray, kind: int, size: int) -> np.ndarray | None:
    if kind == _DIVIDED:
        rows = ids.reshape(size, -1)
        if UNNUMBERED in rows:
            return None
        for row in rows:
            graph.unite(np.repeat(row[:1], len(row) - 1), row[1:], "")
            # A group whose elements are one channel already, repeated by an earlier join, is no head.
            if len(np.unique(row)) > 1:
                graph.heads.add(int(row[0]))
        return np.ascontiguousarray(rows[:, 0])
    return np.tile(ids, size // len(ids)) if kind == _TILED else np.repeat(ids, size // len(ids))


def _allowzero(node: ir.Node, opset: int) -> bool:
    return bool(facts.attribute(node, "allowzero", opset, 0))


def _record_size(
    graph: ChannelGraph, node: ir.Node, index: int, position: int, ids: np.ndarray, *, copies: bool, allowzero: bool
) -> bool:
    """Record the element of a list of sizes that counts channels; False if the element cannot be changed.

    Args:
        graph: The channels.
        node: The node that reads the list, as input `index`: a constant, or a Concat of pieces.
        index: The index of the input.
        position: The offset of the element in the list.
        ids: The channels that the element counts.
        copies: True if an element 0 copies the size of the channels.
        allowzero: True if an element 0 is a size.
    """
    entry = _element(node, index, position)
    if entry is None:
        return False
    owner, input_index, offset, value = entry
    if value == 0 and not allowzero:
        return copies
    if value != -1:
        graph.sizes.append(SizeEntry(owner, input_index, offset, ids))
    return True


def _element(node: ir.Node, index: int, position: int) -> tuple[ir.Node, int, int, int] | None:
    """Return the node, input, offset and value of an element of a list of sizes; None if it is computed."""
    sizes = facts.constant_ints(node.inputs[index])
    if sizes is not None:
        return (node, index, position, sizes[position]) if position < len(sizes) else None
    value = node.inputs[index]
    producer = None if value is None else value.producer()
    if producer is None or producer.op_type != "Concat" or producer.domain:
        return None
    offset = position
    for number, piece in enumerate(producer.inputs):
        length = facts.dim_at(piece, 0)
        if length is None:
            return None
        if offset < length:
            known = facts.constant_ints(piece)
            return None if known is None else (producer, number, offset, known[offset])
        offset -= length
    return None


def _expand(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    axis, before, after = _axis(graph, node), facts.rank(node.inputs[0]), facts.rank(node.outputs[0])
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
        entry = _element(node, 1, position)
        if entry is None:
            return False
        if entry[3] != 1:
            graph.sizes.append(SizeEntry(*entry[:3], axis.ids))
    graph.axes[node.outputs[0]] = Axis(index, axis.ids)
    return True


def _slice(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    axis, rank = _axis(graph, node), facts.rank(node.inputs[0])
    if axis is None:
        return True
    if rank is None:
        return False
    axes = facts.attribute(node, "axes", opset, None)
    if opset >= 10 and len(node.inputs) > 3 and node.inputs[3] is not None:
        axes = facts.constant_ints(node.inputs[3])
        if axes is None:
            return False
    if axes is None or axis.index in {int(one) % rank for one in axes}:
        return False
    graph.axes[node.outputs[0]] = axis
    return True


def _split(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    """Continue channels through Split along another axis, or along their own with constant sizes."""
    axis, rank = _axis(graph, node), facts.rank(node.inputs[0])
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
    axis, rank = _axis(graph, node), facts.rank(node.inputs[0])
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
    graph.axes[node.outputs[0]] = Axis(axis.index - shift, axis.ids)
    return True


def _unsqueeze(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    axis, rank = _axis(graph, node), facts.rank(node.outputs[0])
    if axis is None:
        return True
    axes = _axes(node, opset)
    if axes is None or rank is None:
        return False
    added = {int(one) % rank for one in axes}
    graph.axes[node.outputs[0]] = Axis([one for one in range(rank) if one not in added][axis.index], axis.ids)
    return True


def _axes(node: ir.Node, opset: int) -> Sequence[int] | None:
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        return facts.constant_ints(node.inputs[1])
    axes: Sequence[int] | None = facts.attribute(node, "axes", opset, None)
    return axes


def _transpose(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    axis, rank = _axis(graph, node), facts.rank(node.inputs[0])
    if axis is None:
        return True
    if rank is None:
        return False
    order = list(facts.attribute(node, "perm", opset, None) or range(rank)[::-1])
    graph.axes[node.outputs[0]] = Axis(order.index(axis.index), axis.ids)
    return True


def _softmax(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    """Continue channels through a softmax over other axes; below operator set 13 over all axes from one on."""
    axis, rank = _axis(graph, node), facts.rank(node.inputs[0])
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
    **dict.fromkeys(("ReduceMean", "ReduceMax", "ReduceSum", "ReduceMin", "Squeeze"), _reduction),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    "Expand": _expand,
    "Slice": _slice,
    "Split": _split,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
"""The rules by operator."""
