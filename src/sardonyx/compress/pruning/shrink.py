"""Choice and removal of channels: smaller constants in a model of the same graph."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import onnx_ir as ir

from sardonyx.compress.pruning.channels import ChannelGraph, Cut
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import Names, node_label, value_names


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


def free_channels(graph: ChannelGraph, *, heads: bool) -> set[int]:
    """Return the representing channels that weights compute and that can be removed: heads, or all others."""
    fixed, grouped = graph.fixed_roots(), graph.head_roots()
    roots = {root for cut in graph.cuts if cut.role == "producer" for root in graph.roots(cut.ids).tolist()}
    return {root for root in roots - fixed.keys() if (root in grouped) == heads}


def choose_channels(
    graph: ChannelGraph, scores: Mapping[int, float], share: float, free: Collection[int], lanes: int = 1
) -> set[int]:
    """Return the representing channels to remove, the least important first.

    A layer keeps at least one channel. With `lanes`, layers with more channels lose these in pieces that leave a
    multiple of `lanes`, by the mean score of a piece; the share is then the nearest one that pieces reach.

    Args:
        graph: The channels.
        scores: The importance of each representing channel.
        share: The share of `free` to remove.
        free: The representing channels that may be removed.
        lanes: The number of channels that a vector register holds.
    """
    left, members = _counted(graph, [cut.ids for cut in graph.cuts if cut.role == "producer"])
    # A layer that reads a part of the channels, and a part that is counted from the end, must not become empty.
    parts_left, parts = _counted(graph, [*(cut.ids for cut in graph.cuts if cut.role != "producer"), *graph.counted])
    aim = round(share * len(free))
    removed: set[int] = set()
    for piece in _pieces(scores, free, members, left, lanes):
        if len(removed) + len(piece) / 2 > aim or len(removed) >= aim:
            continue
        both = [(left, _sums(members, piece)), (parts_left, _sums(parts, piece))]
        if any(rest[layer] <= count for rest, counts in both for layer, count in counts.items()):
            continue
        for rest, counts in both:
            for layer, count in counts.items():
                rest[layer] -= count
        removed.update(piece)
    return removed


def _counted(graph: ChannelGraph, layers: Sequence[np.ndarray]) -> tuple[dict[int, int], dict[int, dict[int, int]]]:
    """Return the number of channels of each layer, and for each representing channel how often each layer has it."""
    left = {number: len(ids) for number, ids in enumerate(layers)}
    members: dict[int, dict[int, int]] = {}
    for number, ids in enumerate(layers):
        for root in graph.roots(ids).tolist():
            layer_counts = members.setdefault(root, {})
            layer_counts[number] = layer_counts.get(number, 0) + 1
    return left, members


def _sums(members: Mapping[int, Mapping[int, int]], piece: Collection[int]) -> dict[int, int]:
    """Return how many channels of each layer a piece takes."""
    counts: dict[int, int] = {}
    for root in piece:
        for layer, count in members.get(root, {}).items():
            counts[layer] = counts.get(layer, 0) + count
    return counts


def _pieces(
    scores: Mapping[int, float], free: Collection[int], members: Mapping[int, Mapping[int, int]],
    widths: Mapping[int, int], lanes: int,
) -> list[list[int]]:  # fmt: skip
    """Return the channels that go at once, the least important first; channels of the same layers are in order."""
    alike: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for root in sorted((root for root in free if root in scores), key=lambda r: (scores[r], r)):
        alike.setdefault(tuple(sorted(members[root].items())), []).append(root)
    pieces: list[tuple[float, list[int]]] = []
    for layers, roots in alike.items():
        width = min(widths[layer] // count for layer, count in layers)
        step, start = (lanes, width % lanes or lanes) if width > lanes else (1, 1)
        bounds = [0, *range(start, len(roots) + 1, step)]
        lowest = -np.inf
        for first, last in itertools.pairwise(bounds):
            piece = roots[first:last]
            # A later piece never precedes an earlier one of the same layers.
            lowest = max(lowest, float(np.mean([scores[root] for root in piece])))
            pieces.append((lowest, piece))
    return [piece for _, piece in sorted(pieces, key=lambda pair: pair[0])]


def padded_work(graph: ChannelGraph, removed: Collection[int], lanes: int) -> float:
    """Return the products of all layers per position, with outputs in whole vectors of `lanes`."""
    inputs = {cut.node: cut for cut in graph.cuts if cut.role == "consumer"}
    total = 0.0
    for cut in graph.cuts:
        if cut.role != "producer" or facts.is_op(cut.node, "Gather"):
            continue
        weight = facts.static_shape(cut.constant) or ()
        outputs = -(-int(stays_after(graph, cut.ids, removed).sum()) // lanes) * lanes
        depth = math.prod(weight) / max(len(cut.ids), 1)
        if cut.node in inputs:
            ids = inputs[cut.node].ids
            depth *= stays_after(graph, ids, removed).sum() / max(len(ids), 1)
        total += outputs * depth
    return total


def layer_channels(graph: ChannelGraph, removed: set[int]) -> tuple[LayerChannels, ...]:
    """Return the layers that compute channels, in the order of the graph."""
    fixed = graph.fixed_roots()
    layers = []
    for cut in graph.cuts:
        if cut.role != "producer":
            continue
        ids = np.unique(cut.ids).tolist()
        roots = graph.roots(np.unique(cut.ids)).tolist()
        reasons = (graph.reasons.get(i, fixed.get(root)) for i, root in zip(ids, roots, strict=True))
        reason = next(filter(None, reasons), "")
        after = sum(root not in removed for root in roots)
        layers.append(LayerChannels(node_label(cut.node), cut.node.op_type, len(roots), after, reason))
    return tuple(layers)


def remove_channels(model: ir.Model, graph: ChannelGraph, removed: set[int]) -> None:
    """Remove channels from constants and lists of sizes, in place; shapes of inner values are cleared."""
    names = Names(value_names(model))
    masks: dict[tuple[ir.Node, int], dict[int, tuple[Cut, np.ndarray]]] = {}
    for cut in graph.cuts:
        stays = stays_after(graph, cut.ids, removed)
        if not stays.all():
            masks.setdefault(cut.slot, {})[cut.axis] = cut, stays
    written: dict[tuple[object, ...], ir.Value] = {}
    for (node, index), slices in masks.items():
        old = node.inputs[index]
        array = facts.constant(old)
        assert old is not None and array is not None
        for _, (cut, stays) in sorted(slices.items()):
            array = cut.compress(array, stays)
        key = (old, array.shape, hashlib.sha256(array.tobytes()).digest())
        if key not in written:
            written[key] = write_constant(model, names, node, index, array)
        else:
            replace_constant(model, node, index, written[key])
    for count in graph.counts:
        left = int(stays_after(graph, count.ids, removed).sum())
        count.node.attributes[count.name] = ir.AttrInt64(count.name, left)
    _write_sizes(model, graph, removed, names)
    outputs = set(model.graph.outputs)
    for node in model.graph:
        for value in node.outputs:
            if value not in outputs:
                value.shape = None


def _write_sizes(model: ir.Model, graph: ChannelGraph, removed: set[int], names: Names) -> None:
    """Write the sizes in constants that count channels."""
    sizes: dict[tuple[ir.Node, int], np.ndarray] = {}
    for entry in graph.sizes:
        stays = stays_after(graph, entry.ids, removed)
        if not stays.all():
            key = entry.node, entry.index
            array = facts.constant(entry.node.inputs[entry.index]) if key not in sizes else sizes[key]
            assert array is not None
            sizes[key] = np.array(array)
            sizes[key][entry.position] = sizes[key][entry.position] * stays.sum() // len(stays)
    for (node, index), array in sizes.items():
        write_constant(model, names, node, index, array)


def write_constant(model: ir.Model, names: Names, node: ir.Node, index: int, array: np.ndarray) -> ir.Value:
    """Let a node read an array in place of its constant; see :func:`write_tensor`."""
    tensor = ir.tensor(np.ascontiguousarray(array), dtype=facts.dtype(node.inputs[index]))
    return write_tensor(model, names, node, index, tensor)


def write_tensor(model: ir.Model, names: Names, node: ir.Node, index: int, tensor: ir.TensorProtocol) -> ir.Value:
    """Let a node read a tensor in place of its constant; other readers of the constant are unchanged.

    Returns:
        The new initializer, which has the old name if no other node reads the old constant.
    """
    old = node.inputs[index]
    assert old is not None
    sole = len(old.uses()) == 1 and old.name in model.graph.initializers and not old.is_graph_output()
    if sole:
        del model.graph.initializers[str(old.name)]
    name = str(old.name) if sole else names.fresh(f"{old.name}_pruned")
    tensor.name = name
    shape = ir.Shape(list(cast("Iterable[int]", tensor.shape)))
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
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


def stays_after(graph: ChannelGraph, ids: np.ndarray, removed: Collection[int]) -> np.ndarray:
    """Return True for the elements of an axis that stay, of shape [elements]."""
    return np.array([root not in removed for root in graph.roots(ids).tolist()], bool)
