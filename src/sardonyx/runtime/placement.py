"""Where the nodes of a model run, and why."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from sardonyx.compiler.program import Program
from sardonyx.ops.graph import node_label
from sardonyx.rewrite.surgery.subgraph import is_constant_node


@dataclass(frozen=True)
class Placement:
    """Where a node runs.

    Attributes:
        node: Its name, or its operator and an output where it has none.
        operator: Its operator.
        provider: Who runs it.
        part: Which of the calls it is in, from 0; -1 for a constant, which is in every part that reads it.
        reason: Why there.
    """

    node: str
    operator: str
    provider: str
    part: int
    reason: str


def placed(model: ir.Model, program: Program | None, not_compiled: str) -> list[Placement]:
    """Where the nodes of a model run that no other provider shares.

    Args:
        model: The model.
        program: What it is compiled to; None where it is not.
        not_compiled: Why not.
    """
    # What is restored from the store has nothing left to the interpreter.
    host = (
        {value.origin: reason for value, reason in program.schedule.host.items()}
        if (program is not None and program.has_graph)
        else {}
    )
    told = []
    for node in model.graph:
        names = [output.name for output in node.outputs if output.name in host]
        if is_constant_node(node):
            where, reason = "", "a constant, wherever it is read"
        elif program is None:
            where, reason = "reference", not_compiled
        elif names:
            where, reason = "reference", host[names[0]]
        else:
            where, reason = "native", "it is compiled"
        told.append(Placement(node_label(node), node.op_type, where, -1 if not where else 0, reason))
    return told
