"""Rules of operators that divide channels into groups: convolutions and normalizations in groups, shuffled channels.

A group that loses channels must stay as large as the others. Channels are removed in one of two ways, by which more
choices are left: whole groups, or as many channels of every group (:meth:`ChannelGraph.balance`). Whole groups leave
the statistics of a normalization in groups as they are, fewer channels of a group change these.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from sardonyx.compress.pruning.channels import (
    UNNUMBERED,
    AttributeCount,
    Axis,
    BalancedGroups,
    ChannelGraph,
    Cut,
    SizeEntry,
    is_constant,
)
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import node_label

NORMALIZATIONS = ("GroupNormalization", "InstanceNormalization")
"""Operators whose mean and variance are those of a group of channels; the latter after a Reshape to groups."""

_SCALE_PER_CHANNEL = 21
"""The operator set from which GroupNormalization has a scale per channel, not per group."""


def axis_of(graph: ChannelGraph, node: ir.Node, index: int = 0) -> Axis | None:
    """Return the axis of channels of an input; None if there is none."""
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None else graph.axes.get(value)


def _goes_by_group(groups: int, size: int) -> bool:
    """Return True if whole groups are removed: a group has no more channels than there are groups."""
    return groups >= max(size, 2)


def convolution(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    """Consume the channels of the input and number those of the output, in groups or not."""
    shape, axis = facts.static_shape(node.inputs[1]), axis_of(graph, node)
    has_bias = len(node.inputs) > 2 and node.inputs[2] is not None
    if not is_constant(node, 1) or shape is None or (has_bias and not is_constant(node, 2)):
        return False
    groups = int(facts.attribute(node, "group", opset, 1))
    is_transposed = node.op_type == "ConvTranspose"
    inputs, outputs = (shape[0], shape[1] * groups) if is_transposed else (shape[1] * groups, shape[0])
    if inputs % groups or outputs % groups or (axis is not None and (axis.index != 1 or len(axis.ids) != inputs)):
        return False
    if axis is not None and _goes_by_group(groups, inputs // groups):
        by_group = graph.unite_rows(axis.ids.reshape(groups, -1), f"in a group of {node.op_type} '{node_label(node)}'")
        ids = np.repeat(by_group, outputs // groups)
        rows = np.repeat(by_group, inputs // groups) if is_transposed else ids
        graph.cuts.append(Cut(node, 1, 0, rows, "parameter"))
        graph.counts.append(AttributeCount(node, "group", by_group))
    else:
        ids = graph.new(outputs)
        if is_transposed:
            graph.cuts.append(Cut(node, 1, 1, ids, "producer", groups))
        else:
            graph.cuts.append(Cut(node, 1, 0, ids, "producer"))
        if axis is not None and is_transposed:
            graph.cuts.append(Cut(node, 1, 0, axis.ids, "consumer"))
        elif axis is not None:
            graph.cuts.append(Cut(node, 1, 1, axis.ids, "consumer", groups))
        if groups > 1:
            sides = [ids] if axis is None else [axis.ids, ids]
            graph.balanced += [BalancedGroups(node, side.reshape(groups, -1)) for side in sides]
    graph.axes[node.outputs[0]] = Axis(1, ids)
    if has_bias:
        graph.cuts.append(Cut(node, 2, 0, ids, "parameter"))
    return True


def normalization(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    """Continue channels through a normalization over the other axes."""
    axis = axis_of(graph, node)
    if axis is None:
        return True
    indices = range(1, len(node.inputs))
    if axis.index != 1 or not all(is_constant(node, index) for index in indices):
        return False
    if facts.attribute(node, "training_mode", opset, 0):
        return False
    graph.cuts += [Cut(node, index, 0, axis.ids, "parameter") for index in indices]
    graph.axes[node.outputs[0]] = axis
    return True


def group_normalization(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    """Continue channels through GroupNormalization."""
    axis = axis_of(graph, node)
    if axis is None:
        return True
    groups = int(facts.attribute(node, "num_groups", opset, 0))
    if axis.index != 1 or not (is_constant(node, 1) and is_constant(node, 2)) or groups < 1 or len(axis.ids) % groups:
        return False
    by_group = _grouped(graph, node, axis.ids, groups)
    if by_group is not None:
        graph.counts.append(AttributeCount(node, "num_groups", by_group))
    for index in (1, 2):
        ids = axis.ids if opset >= _SCALE_PER_CHANNEL else by_group
        if ids is not None:
            graph.cuts.append(Cut(node, index, 0, ids, "parameter"))
    graph.axes[node.outputs[0]] = axis
    return True


def _grouped(graph: ChannelGraph, node: ir.Node, ids: np.ndarray, groups: int) -> np.ndarray | None:
    """Let channels go by whole groups, and return a channel of each; None if all groups lose as many channels."""
    rows = ids.reshape(groups, -1)
    if _goes_by_group(groups, rows.shape[1]):
        return graph.unite_rows(rows, f"in a group of {node.op_type} '{node_label(node)}'")
    graph.balanced.append(BalancedGroups(node, rows))
    return None


def reshaped_normalization(graph: ChannelGraph, node: ir.Node, axis: Axis) -> ir.Node | None:
    """Continue channels from a Reshape to [batch, groups, elements] over InstanceNormalization to the Reshape back.

    Args:
        graph: The channels.
        node: The first Reshape.
        axis: The axis of channels that the Reshape reads.

    Returns:
        The Reshape back, whose list of sizes counts the channels; None for another form.
    """
    count, value = len(axis.ids), node.outputs[0]
    groups = facts.dim_at(value, 1)
    if axis.index != 1 or facts.rank(value) != 3 or groups is None or groups < 1 or count % groups:
        return None
    norm = _sole_reader(value, "InstanceNormalization")
    back = None if norm is None else _sole_reader(norm.outputs[0], "Reshape")
    sizes = facts.constant_ints(node.inputs[1])
    if norm is None or back is None or not (is_constant(norm, 1) and is_constant(norm, 2)) or sizes is None:
        return None
    if facts.dim_at(back.outputs[0], 1) != count or facts.rank(back.outputs[0]) != facts.rank(node.inputs[0]):
        return None
    by_group = _grouped(graph, norm, axis.ids, groups)
    if by_group is not None:
        graph.cuts += [Cut(norm, index, 0, by_group, "parameter") for index in (1, 2)]
    for position, ids in ((1, by_group), (2, axis.ids if by_group is None else None)):
        if ids is not None and sizes[position] > 0:
            graph.sizes.append(SizeEntry(node, 1, position, ids))
    graph.axes[back.outputs[0]] = axis
    return back


def _sole_reader(value: ir.Value, op_type: str) -> ir.Node | None:
    """Return the reader of a value as first input if it is the only one and of the type."""
    uses = list(value.uses())
    if len(uses) != 1 or value.is_graph_output() or uses[0].idx != 0:
        return None
    return uses[0].node if facts.is_op(uses[0].node, op_type) else None


def shuffled_columns(graph: ChannelGraph, node: ir.Node, ids: np.ndarray, first: int, sizes: tuple[int, int]) -> bool:
    """Unite channels over groups that a Reshape makes of them, a Transpose exchanges and a Reshape joins again.

    Args:
        graph: The channels.
        node: The Reshape whose result has the channels as two axes, groups and channels of a group.
        ids: The channels.
        first: The index of the axis of groups in the result.
        sizes: The groups, and the channels of a group.

    Returns:
        True if the channels of one position in all groups are united, because there are more positions than groups.
    """
    groups, size = sizes
    if size <= groups or UNNUMBERED in ids:
        return False
    exchange = _sole_reader(node.outputs[0], "Transpose")
    join = None if exchange is None else _sole_reader(exchange.outputs[0], "Reshape")
    rank = facts.rank(node.outputs[0])
    if exchange is None or join is None or rank is None or facts.rank(join.outputs[0]) != rank - 1:
        return False
    order = list(range(rank))
    order[first], order[first + 1] = first + 1, first
    perm = exchange.attributes.get("perm")
    if perm is None or list(perm.as_ints()) != order or facts.dim_at(join.outputs[0], first) != len(ids):
        return False
    graph.unite_rows(ids.reshape(groups, size).T, "")
    return True


def depth_to_space(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    """Unite the channels that become one channel of a larger image."""
    axis = axis_of(graph, node)
    if axis is None:
        return True
    area = int(facts.attribute(node, "blocksize", opset, 1)) ** 2
    if axis.index != 1 or len(axis.ids) % area:
        return False
    is_inner = _text(node, "mode", "DCR") == "CRD"
    rows = axis.ids.reshape(-1, area) if is_inner else axis.ids.reshape(area, -1).T
    graph.axes[node.outputs[0]] = Axis(1, graph.unite_rows(rows, f"in an area of {node.op_type} '{node_label(node)}'"))
    return True


def space_to_depth(graph: ChannelGraph, node: ir.Node, opset: int) -> bool:
    """Repeat the channels for each position of an area of the image."""
    axis = axis_of(graph, node)
    if axis is None:
        return True
    area = int(facts.attribute(node, "blocksize", opset, 1)) ** 2
    if axis.index != 1:
        return False
    graph.axes[node.outputs[0]] = Axis(1, np.tile(axis.ids, area))
    return True


def _text(node: ir.Node, name: str, default: str) -> str:
    attribute = node.attributes.get(name)
    return default if attribute is None else attribute.as_string()


GROUPING: dict[str, Callable[[ChannelGraph, ir.Node, int], bool]] = {
    **dict.fromkeys(("Conv", "ConvTranspose"), convolution),
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization"), normalization),
    "GroupNormalization": group_normalization,
    "DepthToSpace": depth_to_space,
    "SpaceToDepth": space_to_depth,
}
"""The rules by operator."""
