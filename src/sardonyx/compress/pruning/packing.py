"""Rules of packed queries, keys and values: parts of one product that Gather or Split select, and Attention.

A product may compute queries, keys and values at once. A Reshape then divides its channels into parts, heads and
elements, e.g. [batch, rows, 3, heads, size], and each reader selects a part. The channels of a head are united over all
parts, so that a head leaves all of them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from sardonyx.compress.pruning.channels import UNNUMBERED, AttributeCount, Axis, ChannelGraph, Cut, is_constant
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import node_label


def selected_axes(value: ir.Value, opset: int) -> set[int]:
    """Return the axes of a value along which its readers select parts, directly or after movements of axes."""
    rank = facts.rank(value)
    selected: set[int] = set()
    pending: list[tuple[ir.Value, list[int | None]]] = [] if rank is None else [(value, list(range(rank)))]
    while pending:
        current, origins = pending.pop()
        for use in current.uses():
            node = use.node
            if node.domain or use.idx != 0:
                continue
            if node.op_type in ("Gather", "Split"):
                axis = int(facts.attribute(node, "axis", opset, 0))
                if node.op_type == "Split" and any(facts.dim_at(output, axis) != 1 for output in node.outputs):
                    continue
                origin = origins[axis % len(origins)]
                selected |= set() if origin is None else {origin}
                continue
            moved = _moved(node, origins, opset)
            if moved is not None:
                pending.append((node.outputs[0], moved))
    return selected


def _moved(node: ir.Node, origins: list[int | None], opset: int) -> list[int | None] | None:
    """Return the origin of each axis of a movement's result; None for other operators."""
    if node.op_type in ("Identity", "Cast"):
        return origins
    if node.op_type == "Transpose":
        order = facts.attribute(node, "perm", opset, None)
        return [origins[axis] for axis in order or range(len(origins))[::-1]]
    if node.op_type not in ("Squeeze", "Unsqueeze"):
        return None
    axes = facts.constant_ints(node.inputs[1]) if len(node.inputs) > 1 else facts.attribute(node, "axes", opset, None)
    if axes is None:
        return None
    if node.op_type == "Squeeze":
        removed = {int(axis) % len(origins) for axis in axes}
        return [origin for axis, origin in enumerate(origins) if axis not in removed]
    rest, rank = iter(origins), len(origins) + len(axes)
    added = {int(axis) % rank for axis in axes}
    return [None if axis in added else next(rest) for axis in range(rank)]


def divided_parts(graph: ChannelGraph, ids: np.ndarray, sizes: tuple[int, ...], selected: set[int]) -> Axis | None:
    """Return the axis of heads of channels that a Reshape divides, if readers select along the first axis.

    Args:
        graph: The channels, of which those of a head are united.
        ids: The channels.
        sizes: The axes that the channels are divided into.
        selected: The axes of `sizes` along which readers select parts.

    Returns:
        The axis, by its index in `sizes`; None if readers do not select along the first axis.
    """
    rest = [axis for axis in range(len(sizes)) if axis not in selected and sizes[axis] > 1]
    if 0 not in selected or not rest or UNNUMBERED in ids:
        return None
    index = rest[0]
    rows = np.moveaxis(ids.reshape(sizes), index, 0).reshape(sizes[index], -1)
    return Axis(index, graph.group(rows, "") if len(rest) > 1 else graph.unite_rows(rows, ""))


def _gather(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    """Continue channels through a selection along another axis, and number the columns of a table of vectors."""
    data, indices = node.inputs[:2]
    axis, rank, added = (None if data is None else graph.axes.get(data)), facts.rank(data), facts.rank(indices)
    if indices is not None and indices in graph.axes:
        return False
    if axis is None:
        _look_up(graph, node, opset)
        return True
    if rank is None or added is None:
        return False
    selected = int(facts.attribute(node, "axis", opset, 0)) % rank
    if selected == axis.index:
        return False
    graph.axes[node.outputs[0]] = Axis(axis.index + (added - 1 if axis.index > selected else 0), axis.ids)
    return True


def _look_up(graph: ChannelGraph, node: ir.Node, opset: int) -> None:
    """Number the columns of a constant table whose rows a Gather selects, such as a table of embeddings."""
    table, indices = node.inputs[:2]
    shape, dtype, added = facts.static_shape(table), facts.dtype(table), facts.rank(indices)
    if not is_constant(node, 0) or shape is None or len(shape) != 2 or added is None:
        return
    if dtype is None or not dtype.is_floating_point() or int(facts.attribute(node, "axis", opset, 0)) % 2:
        return
    ids = graph.new(shape[1])
    graph.cuts.append(Cut(node, 0, 1, ids, "producer"))
    graph.axes[node.outputs[0]] = Axis(added, ids)


def _attention(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    """Unite the heads of queries, keys and values; a head of keys serves several queries.

    Inputs have the heads as second of four axes, or heads and elements joined as last of three axes.
    """
    numbered = [graph.axes[value] for value in node.inputs if value is not None and value in graph.axes]
    if not numbered:
        return True
    ranks = {facts.rank(value) for value in node.inputs[:3]}
    if len(numbered) != 3 or len(ranks) != 1 or any(node.inputs[4:]) or not _serves_all_heads(graph, node):
        return False
    reason = f"multiplied in Attention '{node_label(node)}'"
    if ranks == {4} and all(axis.index == 1 for axis in numbered):
        queries, keys, values = (axis.ids for axis in numbered)
        size = 1
    elif ranks == {3} and all(axis.index == 2 for axis in numbered):
        counts = [int(facts.attribute(node, f"{kind}_num_heads", opset, 0)) for kind in ("q", "kv", "kv")]
        if any(count < 1 or len(axis.ids) % count for count, axis in zip(counts, numbered, strict=True)):
            return False
        size = len(numbered[2].ids) // counts[2]
        queries, keys, values = (
            graph.group(axis.ids.reshape(count, -1), reason) for count, axis in zip(counts, numbered, strict=True)
        )
    else:
        return False
    if len(keys) != len(values) or len(queries) % len(keys):
        return False
    graph.unite(keys, values, reason)
    graph.unite(queries, np.repeat(keys, len(queries) // len(keys)), reason)
    graph.attended.update(queries.tolist())
    if ranks == {3}:
        graph.counts += [
            AttributeCount(node, "q_num_heads", queries), AttributeCount(node, "kv_num_heads", keys)
        ]  # fmt: skip
    graph.axes[node.outputs[0]] = Axis(numbered[0].index, np.repeat(queries, size))
    return True


def _serves_all_heads(graph: ChannelGraph, node: ir.Node) -> bool:
    """Return True if an Attention has no mask, or one for all heads alike."""
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    rank = facts.rank(mask)
    if mask is None or rank is None:
        return mask is None
    return mask not in graph.axes and (rank <= 2 or facts.dim_at(mask, rank - 3) == 1)


PACKING: dict[str, Callable[[ChannelGraph, ir.Node, int], bool]] = {"Attention": _attention, "Gather": _gather}
"""The rules by operator."""
