"""Subgraphs of a model as models of their own, cut so as to run one after the other."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

import onnx_ir as ir

from sardonyx.ops.core_values import is_unnamed
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.surgery.interface import drop_unused_functions, symbols_in


def reads(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values of the enclosing graph read by a node, captures of its bodies included."""
    inside = {output for body in facts.bodies(node) for inner in facts.nodes_of(body) for output in inner.outputs}
    for body in facts.bodies(node):
        for graph in facts.graphs_of(body):
            inside.update((*graph.inputs, *graph.initializers.values()))
    yield from (value for value in node.inputs if value is not None)
    for body in facts.bodies(node):
        for graph in facts.graphs_of(body):
            yield from (value for value in graph.outputs if value not in inside)
        for inner in facts.nodes_of(body):
            yield from (value for value in inner.inputs if value is not None and value not in inside)


def is_constant_node(node: ir.Node) -> bool:
    """Return True if a node is a Constant, which costs nothing to repeat at every reader."""
    return node.op_type == "Constant" and node.domain in ("", "ai.onnx")


def boundary(
    nodes: Sequence[ir.Node], constants: Collection[ir.Node], required: Collection[ir.Value]
) -> tuple[list[ir.Value], list[ir.Value], list[ir.Node]]:
    """Return the inputs and outputs of a set of nodes.

    Args:
        nodes: The nodes.
        constants: Nodes repeated in every set with a reader.
        required: Values read outside of the nodes.

    Returns:
        Inputs, outputs, and the constant nodes to repeat.
    """
    own = {output for node in nodes for output in node.outputs}
    inputs: dict[ir.Value, None] = {}
    repeated: dict[ir.Node, None] = {}
    for node in nodes:
        for value in reads(node):
            producer = value.producer()
            if producer in constants and value not in own and producer is not None:
                repeated[producer] = None
            elif value not in own and not value.is_initializer():
                inputs[value] = None
    outputs = [output for node in nodes for output in node.outputs if output in required]
    return list(inputs), outputs, list(repeated)


def part_of(
    model: ir.Model, nodes: Iterable[ir.Node], inputs: Sequence[ir.Value], outputs: Sequence[ir.Value], name: str = ""
) -> ir.Model:
    """Return a model of some nodes of another's main graph, which is unchanged; weights are shared.

    Args:
        model: The model.
        nodes: The nodes, in an executable order.
        inputs: Values read by the nodes that are neither their results nor weights.
        outputs: Results of the nodes to return.
        name: Name of the new graph.
    """
    ordered = list(nodes)
    weights = dict.fromkeys(
        value for node in ordered for value in reads(node) if value.is_initializer() and value not in set(inputs)
    )
    graph = ir.GraphView(
        inputs, outputs, nodes=ordered, initializers=tuple(weights), opset_imports=model.graph.opset_imports,
        name=name or model.graph.name,
    ).clone()  # fmt: skip
    part = ir.Model(graph, ir_version=model.ir_version, functions=list(model.functions.values()))
    drop_unused_functions(part)
    _name_sizes(part)
    return part


def _name_sizes(part: ir.Model) -> None:
    """Give names of their own to sizes expressed by symbols that the part's inputs do not determine.

    A size may be ``floor(N/2)`` in the model, while an input of the part with this size does not determine ``N``.
    """
    inputs = [dim for value in part.graph.inputs for dim in value.shape or ()]
    known = {str(dim.value) for dim in inputs if not isinstance(dim, int) and symbols_in(dim) == {dim.value}}
    values = dict.fromkeys((*part.graph.inputs, *part.graph.outputs))
    for graph in facts.graphs_of(part.graph):
        values.update(dict.fromkeys((*graph.inputs, *graph.outputs)))
        values.update(dict.fromkeys(output for node in graph for output in node.outputs))
    names: dict[str, str] = {}
    owner = re.sub(r"\W", "_", part.graph.name or "part")  # A size is read as a formula: "a-b" would be a difference.
    for value in values:
        if value.shape is None or all(isinstance(dim, int) or symbols_in(dim) <= known for dim in value.shape):
            continue
        # An unnamed size stays unnamed.
        value.shape = ir.Shape(
            [
                dim
                if isinstance(dim, int)
                else dim.value
                if dim.value is None or is_unnamed(dim) or symbols_in(dim) <= known
                else names.setdefault(dim.value, f"size_{len(names)}_of_{owner}")
                for dim in value.shape
            ]
        )
