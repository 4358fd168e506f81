"""float16 values that are held in float32: squares on the way to a root, and scores on the way to a softmax.

The square of 400 and a dot product of long rows exceed the range of float16, although the root and the softmax do not.
A graph in float16 that writes a normalization or attention out in plain operators names these intermediate values; the
specification gives them a type, and leaves the accuracy of the arithmetic open. ONNX Runtime and OpenVINO hold the
values in float32, on processors and in their fused kernels, and so does Sardonyx: interpreter and compiler alike,
because both call nodes in the same way. Whatever is an output of its graph is rounded.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx_ir as ir

_LINKS = frozenset(
    {
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Neg",
        "Where",
        "ReduceMean",
        "ReduceSum",
        "Identity",
        "Reshape",
        "Unsqueeze",
        "Squeeze",
    }
)
"""Operators on the way, whose result is wide if an operand is."""

_ENDS = frozenset({"Sqrt", "Pow", "Softmax", "LogSoftmax"})
"""Operators that map a large range to a small one; their results are rounded."""


def wide_values(nodes: Sequence[ir.Node], outputs: Collection[ir.Value]) -> frozenset[ir.Value]:
    """Return the values that are held in float32 if their type is float16.

    Args:
        nodes: Nodes of one graph, in sorted order.
        outputs: Requested values, which are rounded like the graph's outputs.
    """
    lead_to_an_end: set[ir.Value] = set()
    for node in reversed(nodes):
        if len(node.outputs) != 1 or not (_begins(node) or _is_link(node)):
            continue
        (output,) = node.outputs
        if output not in outputs and _is_only_read_on_the_way(output, node.graph, lead_to_an_end):
            lead_to_an_end.add(output)
    wide: set[ir.Value] = set()
    for node in nodes if lead_to_an_end else ():
        for output in node.outputs:
            if output in lead_to_an_end and (_begins(node) or any(value in wide for value in node.inputs)):
                wide.add(output)
    return frozenset(wide)


def _begins(node: ir.Node) -> bool:
    """Return True for a square, and for a product of two computed matrices."""
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "Mul":
        return node.inputs[0] is node.inputs[1]
    if node.op_type == "MatMul":
        return all(value is not None and not _is_weight(value) for value in node.inputs)
    return node.op_type in ("Pow", "ReduceSumSquare")


def _is_weight(value: ir.Value) -> bool:
    producer = value.producer()
    return value.is_initializer() or (producer is not None and producer.op_type == "Constant")


def _is_link(node: ir.Node) -> bool:
    return node.op_type in _LINKS and node.domain in ("", "ai.onnx")


def _is_only_read_on_the_way(
    value: ir.Value, graph: ir.Graph | ir.Function | None, lead_to_an_end: set[ir.Value]
) -> bool:
    """Return True if each reader is an end, or a link whose result leads to an end, and belongs to the same graph."""
    if value.is_graph_output() or not value.uses():
        return False
    return all(
        (reader := use.node).graph is graph
        and reader.domain in ("", "ai.onnx")
        and (reader.op_type in _ENDS or (_is_link(reader) and reader.outputs[0] in lead_to_an_end))
        for use in value.uses()
    )
