"""Removal of whole layers: residual branches, whose sum with the stream becomes the stream alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import node_label


@dataclass(frozen=True, eq=False)
class Block:
    """A residual branch.

    Attributes:
        sum: The Add of stream and branch.
        stream: The value that stays.
        branch: The value that is added to the stream, computed from the stream.
        nodes: The nodes that nothing else reads.
    """

    sum: ir.Node
    stream: ir.Value
    branch: ir.Value
    nodes: tuple[ir.Node, ...]

    @property
    def weights(self) -> int:
        """The number of elements of the block's constants."""
        values = {value for node in self.nodes for value in node.inputs if value is not None}
        return sum(value.const_value.size for value in values if value.is_initializer() and value.const_value)


@dataclass(frozen=True)
class RemovedLayer:
    """A residual branch of the original.

    Attributes:
        name: The name of the Add.
        op_type: ``"Add"``.
        weights: The number of weights of the branch.
        score: The importance.
        removed: True if the branch was removed.
        fixed: The reason why the branch cannot go; empty otherwise.
    """

    name: str
    op_type: str
    weights: int
    score: float
    removed: bool
    fixed: str


def find_blocks(model: ir.Model, exclude: Collection[str] = ()) -> list[Block]:
    """Return the residual branches of the main graph that have weights, in the order of the graph.

    Args:
        model: The model, with inferred shapes.
        exclude: Names of nodes, or operators, that stay: a branch with such a node is none.
    """
    order = {node: number for number, node in enumerate(model.graph)}
    outputs = set(model.graph.outputs)
    blocks = []
    for node in model.graph:
        if node.op_type != "Add" or node.domain or None in node.inputs or node.inputs[0] is node.inputs[1]:
            continue
        for stream, branch in (node.inputs, node.inputs[::-1]):
            assert stream is not None and branch is not None
            if not _same_type(stream, branch) or branch in outputs or facts.is_constant(stream):
                continue
            if not _computes(stream, branch, order):
                continue
            nodes = _exclusive(branch, node, order, outputs)
            block = Block(node, stream, branch, nodes)
            labels = {label for one in (node, *nodes) for label in (node_label(one), one.op_type)}
            if block.weights and labels.isdisjoint(exclude):
                blocks.append(block)
            break
    return blocks


def _same_type(a: ir.Value, b: ir.Value) -> bool:
    return a.shape is not None and b.shape is not None and facts.same_shape(a, b) and a.dtype == b.dtype


def _computes(stream: ir.Value, branch: ir.Value, order: Mapping[ir.Node, int]) -> bool:
    """Return True if the branch is computed from the stream."""
    origin = stream.producer()
    earliest = -1 if origin is None else order.get(origin, -1)
    waiting, seen = [branch], {branch}
    while waiting:
        value = waiting.pop()
        if value is stream:
            return True
        producer = value.producer()
        if producer is None or order.get(producer, -1) < earliest:
            continue
        inner = [captured for body in facts.bodies(producer) for captured in facts.captured_values(body)]
        for source in (*producer.inputs, *inner):
            if source is not None and source not in seen:
                seen.add(source)
                waiting.append(source)
    return False


def _exclusive(
    branch: ir.Value, reader: ir.Node, order: Mapping[ir.Node, int], outputs: Collection[ir.Value]
) -> tuple[ir.Node, ...]:
    """Return the nodes that only the reader needs, in the order of the graph."""
    gone: set[ir.Node] = {reader}
    waiting = [branch]
    while waiting:
        producer = waiting.pop().producer()
        if producer is None or producer in gone or producer not in order:
            continue
        used = [use.node for output in producer.outputs for use in output.uses()]
        if all(node in gone for node in used) and not any(output in outputs for output in producer.outputs):
            gone.add(producer)
            waiting += [value for value in producer.inputs if value is not None]
    gone.discard(reader)
    return tuple(sorted(gone, key=lambda node: order[node]))


def contributions(blocks: Collection[Block], powers: Mapping[ir.Value, float]) -> dict[Block, float]:
    """Return the power of each branch over the power of its stream, from the mean squares of both by value."""
    return {block: powers[block.branch] / (powers[block.stream] or 1.0) for block in blocks}


def choose_blocks(scores: Mapping[Block, float], share: float) -> list[Block]:
    """Return the blocks to remove, the least important first."""
    ranked = sorted(scores, key=lambda block: scores[block])
    return ranked[: round(share * len(ranked))]


def remove_blocks(model: ir.Model, blocks: Collection[Block]) -> None:
    """Let the readers of each sum read the stream, and remove the nodes and constants that nothing reads, in place."""
    outputs = set(model.graph.outputs)
    for block in blocks:
        result = block.sum.outputs[0]
        # A stream that was the sum of a removed block is that block's stream by now.
        stream = next(value for value in block.sum.inputs if value is not None and value is not block.branch)
        if result in outputs:
            identity = ir.node("Identity", [stream], name=block.sum.name)
            name = result.name
            result.name = f"{name}_removed"
            identity.outputs[0].name, identity.outputs[0].type = name, result.type
            identity.outputs[0].shape = result.shape
            model.graph.insert_after(block.sum, [identity])
            result.replace_all_uses_with(identity.outputs[0], replace_graph_outputs=True)
        else:
            result.replace_all_uses_with(stream)
    remove_unread(model)


def remove_unread(model: ir.Model) -> None:
    """Remove the nodes whose results nothing reads, and the initializers that nothing reads, in place."""
    outputs = set(model.graph.outputs)
    for node in reversed(list(model.graph)):
        if not any(value.uses() or value in outputs for value in node.outputs) and facts.is_pure(node):
            model.graph.remove(node, safe=True)
    inputs = set(model.graph.inputs)
    for name, value in list(model.graph.initializers.items()):
        if not value.uses() and value not in outputs and value not in inputs:
            del model.graph.initializers[name]
