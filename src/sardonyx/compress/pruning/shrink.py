"""Choice and removal of channels: smaller constants in a model of the same graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.compress.pruning.channels import UNNUMBERED, ChannelGraph
from sardonyx.errors import EvaluationError
from sardonyx.rewrite import facts
from sardonyx.rewrite.names import Names, node_label, value_names


@dataclass(frozen=True)
class LayerChannels:
    """The channels of a layer that computes channels.

    Attributes:
        name: The name of the node.
        op_type: The operator.
        before: The number of channels of the original.
        after: The number of channels of the result.
        fixed: The reason why channels of the layer cannot go; empty if all can.
    """

    name: str
    op_type: str
    before: int
    after: int
    fixed: str


def score_channels(graph: ChannelGraph, activations: Mapping[ir.Value, np.ndarray] | None) -> dict[int, float]:
    """Return the importance of each representing channel: the mean over its slices, each relative to its layer.

    Without activations the importance of a slice is the L2 norm of a weight that computes or reads the channel. With
    activations it is the mean absolute activation of the channel times the norm of the weight that reads the channel.

    Args:
        graph: The channels.
        activations: The mean absolute activation per channel, of shape [channels], by input of the consumers.

    Raises:
        EvaluationError: A score is not finite.
    """
    sums: dict[int, list[float]] = {}
    for cut in graph.cuts:
        if cut.role == "parameter" or (activations is not None and cut.role == "producer"):
            continue
        weight = facts.constant(cut.node.inputs[cut.index])
        assert weight is not None
        rows = np.moveaxis(weight, cut.axis, 0).reshape(len(cut.ids), -1).astype(np.float32)
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
        if activations is not None:
            value = cut.node.inputs[0]
            assert value is not None
            norms = norms * activations[value]
        if not np.isfinite(norms).all():
            raise EvaluationError(
                "expected finite weights and activations, got infinity or NaN.",
                where=node_label(cut.node),
                remedy="Repair the weights, or exclude the node.",
            )
        mean = norms.mean() if norms.size else 0.0
        for root, norm in zip(graph.roots(cut.ids).tolist(), (norms / (mean or 1.0)).tolist(), strict=True):
            sums.setdefault(root, []).append(norm)
    return {root: float(np.mean(values)) for root, values in sums.items() if root != UNNUMBERED}


def has_free_channels(graph: ChannelGraph) -> bool:
    """Return True if a channel that a weight computes can be removed."""
    fixed = graph.fixed_roots()
    return any(
        root not in fixed for cut in graph.cuts if cut.role == "producer" for root in graph.roots(cut.ids).tolist()
    )


def choose_channels(graph: ChannelGraph, scores: Mapping[int, float], share: float) -> tuple[set[int], int]:
    """Return the representing channels to remove, the least important first, and the number of channels that can go.

    A layer keeps at least one channel, so that fewer channels than the share may be removed.
    """
    fixed = graph.fixed_roots()
    left: dict[int, int] = {}
    members: dict[int, dict[int, int]] = {}
    for number, cut in enumerate(cut for cut in graph.cuts if cut.role == "producer"):
        left[number] = len(cut.ids)
        for root in graph.roots(cut.ids).tolist():
            layer_counts = members.setdefault(root, {})
            layer_counts[number] = layer_counts.get(number, 0) + 1
    free = sorted((root for root in members if root not in fixed and root in scores), key=lambda r: (scores[r], r))
    removed: set[int] = set()
    for root in free:
        if len(removed) >= round(share * len(free)):
            break
        if any(left[layer] <= count for layer, count in members[root].items()):
            continue
        for layer, count in members[root].items():
            left[layer] -= count
        removed.add(root)
    return removed, len(free)


def layer_channels(graph: ChannelGraph, removed: set[int]) -> tuple[LayerChannels, ...]:
    """Return the layers that compute channels, in the order of the graph."""
    fixed = graph.fixed_roots()
    layers = []
    for cut in graph.cuts:
        if cut.role != "producer":
            continue
        roots = graph.roots(cut.ids).tolist()
        reason = next((fixed[root] for root in roots if root in fixed), "")
        after = sum(root not in removed for root in roots)
        layers.append(LayerChannels(node_label(cut.node), cut.node.op_type, len(roots), after, reason))
    return tuple(layers)


def remove_channels(model: ir.Model, graph: ChannelGraph, removed: set[int]) -> None:
    """Remove channels from all constants of a model, in place; types of inner values are cleared where sizes change."""
    names = Names(value_names(model))
    masks: dict[tuple[ir.Node, int], list[tuple[int, np.ndarray]]] = {}
    for cut in graph.cuts:
        stays = stays_after(graph, cut.ids, removed)
        if not stays.all():
            masks.setdefault((cut.node, cut.index), []).append((cut.axis, stays))
    written: dict[tuple[object, ...], ir.Value] = {}
    for (node, index), slices in masks.items():
        old = node.inputs[index]
        assert old is not None
        key = (old, *((axis, stays.tobytes()) for axis, stays in sorted(slices, key=lambda one: one[0])))
        if key not in written:
            array = facts.constant(old)
            assert array is not None
            for axis, stays in slices:
                array = np.compress(stays, array, axis)
            written[key] = write_constant(model, names, node, index, array)
        else:
            replace_constant(model, node, index, written[key])
    for node, ids in graph.groups:
        node.attributes["group"] = ir.AttrInt64("group", int(stays_after(graph, ids, removed).sum()))
    for node in graph.flattened:
        if not stays_after(graph, graph.axes[node.outputs[0]].ids, removed).all():
            write_constant(model, names, node, 1, np.array([0, -1], np.int64))
    outputs = set(model.graph.outputs)
    for node in model.graph:
        for value in node.outputs:
            if value not in outputs:
                value.shape = None


def write_constant(model: ir.Model, names: Names, node: ir.Node, index: int, array: np.ndarray) -> ir.Value:
    """Let a node read an array in place of its constant; other readers of the constant are unchanged.

    Returns:
        The new initializer, which has the old name if no other node reads the old constant.
    """
    old = node.inputs[index]
    assert old is not None
    sole = len(old.uses()) == 1 and old.name in model.graph.initializers and not old.is_graph_output()
    if sole:
        del model.graph.initializers[str(old.name)]
    name = str(old.name) if sole else names.fresh(f"{old.name}_pruned")
    dtype = facts.dtype(old)
    tensor = ir.tensor(np.ascontiguousarray(array), dtype=dtype, name=name)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
    model.graph.register_initializer(value)
    replace_constant(model, node, index, value)
    return value


def replace_constant(model: ir.Model, node: ir.Node, index: int, value: ir.Value) -> None:
    """Let a node read another initializer, and remove the old constant if no node reads it any more."""
    old = node.inputs[index]
    assert old is not None
    node.replace_input_with(index, value)
    if old.uses() or old.is_graph_output() or old.is_graph_input():
        return
    producer = old.producer()
    if producer is not None and producer.graph is model.graph:
        model.graph.remove(producer, safe=True)
    elif model.graph.initializers.get(str(old.name)) is old:
        del model.graph.initializers[str(old.name)]


def stays_after(graph: ChannelGraph, ids: np.ndarray, removed: set[int]) -> np.ndarray:
    """Return True for the elements of an axis that stay, of shape [elements]."""
    return np.array([root not in removed for root in graph.roots(ids).tolist()], bool)
