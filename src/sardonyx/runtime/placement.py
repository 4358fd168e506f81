"""The providers that run the nodes of a model, with reasons."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.compiler.program import Program
from sardonyx.ops.graph import node_label
from sardonyx.rewrite.surgery.subgraph import is_constant_node


@dataclass(frozen=True)
class Placement:
    """The provider of a node.

    Attributes:
        node: The name of the node, or its operator and an output if the node has no name.
        operator: The operator.
        provider: The provider that runs the node; empty for a constant.
        part: The index of the call that contains the node; -1 for a constant, which belongs to every part that reads
            the constant.
        reason: The reason for this provider.
    """

    node: str
    operator: str
    provider: str
    part: int
    reason: str


def place_nodes(model: ir.Model, program: Program | None, not_compiled: str) -> list[Placement]:
    """Return the placement of the nodes of a model that is not partitioned.

    Args:
        model: The model.
        program: The compiled model; None if the model is not compiled.
        not_compiled: The reason why the model is not compiled.
    """
    # A program from the store has no nodes for the interpreter.
    host = (
        {value.origin: reason for value, reason in program.grouping.host.items()}
        if (program is not None and program.has_graph)
        else {}
    )
    placements = []
    for node in model.graph:
        names = [output.name for output in node.outputs if output.name in host]
        if is_constant_node(node):
            provider, reason = "", "a constant, part of every reader"
        elif program is None:
            provider, reason = "reference", not_compiled
        elif names:
            provider, reason = "reference", host[names[0]]
        else:
            provider, reason = "native", "the node is compiled"
        placements.append(Placement(node_label(node), node.op_type, provider, -1 if not provider else 0, reason))
    return placements
