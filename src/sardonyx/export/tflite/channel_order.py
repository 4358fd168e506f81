"""Images with their channels last: each operator over images between two transpositions, moved to the cheapest place.

A convolution of channels-first images becomes the call of a function Transpose → Conv → Transpose whose operands have
channels last, and the call stands between the opposite transpositions. The optimizer then moves and cancels the
transpositions (``move_transposes``), which is exact: no layout is guessed, and inputs and outputs keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from sardonyx.export.tflite.operators.windows import can_resize
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.analysis import facts, inference
from sardonyx.rewrite.rewrite_context import Settings

DOMAIN = "sardonyx.channels_last"

PASSES = (
    "move_transposes",
    "fuse_consecutive_transposes",
    "eliminate_nop_transpose",
    "fold_constants",
    "rewrite_transpose_to_reshape",
)
"""Passes of the optimizer that move transpositions, to the fixed point."""

_ALWAYS = frozenset(
    {"Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "DepthToSpace"}
    | {"SpaceToDepth", "LRN", "InstanceNormalization", "GroupNormalization"}
)


def _is_image_batch_norm(node: ir.Node) -> bool:
    return (facts.rank(node.inputs[0]) or 0) > 2


_CONDITIONS: dict[str, Callable[[ir.Node], bool]] = {
    "Resize": can_resize,
    "BatchNormalization": _is_image_batch_norm,
}


def over_images(node: ir.Node) -> bool:
    """Return True if the format computes a node over images with channels last."""
    if node.domain not in facts.STANDARD or (facts.rank(node.inputs[0] if node.inputs else None) or 0) < 3:
        return False
    return node.op_type in _ALWAYS or (node.op_type in _CONDITIONS and _CONDITIONS[node.op_type](node))


def with_channels_last(model: ir.Model) -> dict[str, ir.Node]:
    """Rewrite a model in place; return the original node of each call, by the name of its function."""
    calls: dict[str, ir.Node] = {}
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        if over_images(node):
            name = f"{node.op_type}_{len(calls)}"
            calls[name] = _replace(model, node, name)
    if calls:
        model.graph.opset_imports.setdefault(DOMAIN, 1)
        pipeline.transform(model, pipeline.select(passes=PASSES), Settings())
    inference.infer_shapes(model, strict=False)
    return calls


def _replace(model: ir.Model, node: ir.Node, name: str) -> ir.Node:
    """Replace a node by the call of a function between transpositions; return the node, detached."""
    x = node.inputs[0]
    assert x is not None and node.graph is not None
    rank = facts.rank(x)
    assert rank is not None
    last, first = [0, *range(2, rank), 1], [0, rank - 1, *range(1, rank - 1)]
    _add_function(model, node, name, last, first)
    before = ir.node("Transpose", [x], {"perm": last}, name=f"{node.name or name}_last")
    before.outputs[0].name = f"{name}_image"
    before.outputs[0].type = x.type
    call = ir.Node(DOMAIN, name, [before.outputs[0], *node.inputs[1:]], num_outputs=len(node.outputs), name=node.name)
    after = ir.node("Transpose", [call.outputs[0]], {"perm": first}, name=f"{node.name or name}_first")
    for i, output in enumerate(call.outputs):
        output.name = f"{name}_result_{i}"
    result, old = after.outputs[0], node.outputs[0]
    result.name, result.type, result.shape = old.name, old.type, old.shape
    graph = node.graph
    graph.insert_before(node, [before, call, after])
    ir.convenience.replace_all_uses_with(old, result, replace_graph_outputs=True)
    for position, output in enumerate(node.outputs[1:], 1):
        ir.convenience.replace_all_uses_with(output, call.outputs[position], replace_graph_outputs=True)
    original = ir.Node(
        node.domain,
        node.op_type,
        [None] * len(node.inputs),
        node.attributes.values(),
        num_outputs=len(node.outputs),
        name=node.name,
    )
    graph.remove(node, safe=True)
    return original


def _add_function(model: ir.Model, node: ir.Node, name: str, last: list[int], first: list[int]) -> None:
    inputs = [ir.Value(name=f"x{i}") for i in range(len(node.inputs))]
    before = ir.node("Transpose", [inputs[0]], {"perm": first})
    operands = [
        None if value is None else (before.outputs[0] if i == 0 else inputs[i]) for i, value in enumerate(node.inputs)
    ]
    inner = ir.Node("", node.op_type, operands, node.attributes.values(), num_outputs=len(node.outputs))
    after = ir.node("Transpose", [inner.outputs[0]], {"perm": last})
    for i, value in enumerate((before.outputs[0], *inner.outputs, after.outputs[0])):
        value.name = f"v{i}"
    outputs = [after.outputs[0], *inner.outputs[1:]]
    imports = {"": model.graph.opset_imports[""]}
    graph = ir.Graph(inputs, outputs, nodes=[before, inner, after], opset_imports=imports, name=name)
    function = ir.Function(DOMAIN, name, graph=graph, attributes=[])
    model.functions[function.identifier()] = function
