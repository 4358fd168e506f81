"""Models in the form that the format can express: one operator set, decomposed operators, images with channels last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import onnx_ir as ir

from sardonyx.core.eval.trace import inline, trace
from sardonyx.core.export.export import to_model
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.transform.rewriting import Match, RuleSet
from sardonyx.core.transform.simplify import simplify
from sardonyx.errors import SardonyxError
from sardonyx.export.tflite.channel_order import over_images, with_channels_last
from sardonyx.export.tflite.emission import EMITTERS, OPSET
from sardonyx.export.tflite.operators.windows import can_resize
from sardonyx.model.copying import copy_model
from sardonyx.ops.core_values import declared_type
from sardonyx.ops.graph import prepare
from sardonyx.rewrite import facts, inference, pipeline
from sardonyx.rewrite.names import node_label
from sardonyx.rewrite.opset import convert_opset
from sardonyx.rewrite.optimize import optimize
from sardonyx.rewrite.rewrite_context import Settings
from sardonyx.runtime.compiled.frontend import name_unbound_sizes

ROUNDS = 4
"""Decompositions of decompositions."""

LEGALIZED = ("legalize_einsum", "legalize_microsoft", "inline_functions")
"""Passes of the optimizer that remove operators which the format lacks."""

EXPANSION = RuleSet("expand calls of an operator")


@EXPANSION.rule("get")
def _result_of_call(m: Match, source: Value, *, index: int) -> Value | None:
    """``get(call(f, x), i)`` is result ``i`` of ``f(x)``, for the operator to decompose."""
    operator, inlined = m.context
    if source.op != "call":
        return None
    node = source.params["function"].node
    if node is None or node.name != operator:
        return None
    if source not in inlined:
        inlined[source] = inline(source.params["function"], source.operands)
    result: Value = inlined[source][index]
    return result


def prepared(model: ir.Model) -> tuple[ir.Model, Mapping[str, ir.Node]]:
    """Return a model for emission, and the original node of each call over channels-last images.

    Args:
        model: The model, which is not changed.
    """
    version = model.graph.opset_imports.get("", OPSET)
    copy = copy_model(model) if version == OPSET else convert_opset(model, OPSET)
    copy.graph.opset_imports.setdefault("", OPSET)
    for _ in range(ROUNDS):
        pipeline.transform(copy, pipeline.select(passes=LEGALIZED), Settings())
        inference.infer_shapes(copy, strict=False)
        if not _decompose_all(copy):
            break
        copy = optimize(copy, verify=False).model
    return copy, with_channels_last(copy)


def is_direct(node: ir.Node) -> bool:
    """Return True if the node is written as it is."""
    if node.domain not in facts.STANDARD:
        return False
    if node.op_type == "Resize":
        return can_resize(node)
    if node.op_type in ("DepthToSpace", "SpaceToDepth", "GroupNormalization", "LRN"):
        return over_images(node)
    if node.op_type in ("MaxPool", "LayerNormalization"):
        return all(facts.unused(output) for output in node.outputs[1:])
    if node.op_type == "ScatterElements" or node.op_type == "ScatterND":
        return facts.attribute(node, "reduction", OPSET, "none") in ("none", "add")
    return node.op_type in EMITTERS or node.op_type == "Constant"


def _decompose_all(model: ir.Model) -> bool:
    """Replace nodes that the format lacks by their definitions; return True if any was."""
    changed = False
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        if not is_direct(node) and node.graph is not None and not _holds_bodies_with_captures(node):
            changed |= _decompose(node)
    return changed


def _holds_bodies_with_captures(node: ir.Node) -> bool:
    return any(facts.captured_values(body) for body in facts.bodies(node)) if facts.may_hold_bodies(node) else False


def _decompose(node: ir.Node) -> bool:
    """Replace a node by the primitives of its definition; return False if there is none."""
    lone, operands = _lone_model(node)
    try:
        function = _traced(lone)
        expanded = EXPANSION.apply(function, context=(node.op_type, {}))
        written = to_model(simplify(expanded), opset=OPSET)
    except SardonyxError:
        return False
    if any(inner.op_type == node.op_type and inner.domain == node.domain for inner in written.graph.all_nodes()):
        return False
    if written.graph.opset_imports.get("", 0) > OPSET:
        return False
    _splice(node, written, operands)
    return True


def _traced(model: ir.Model) -> Function:
    graph = prepare(model)
    types: Any = name_unbound_sizes([declared_type(value) for value in graph.inputs])  # type: ignore[misc]
    return trace("node", lambda *inputs: list(graph.call(list(inputs))), types)


def _lone_model(node: ir.Node) -> tuple[ir.Model, list[ir.Value]]:
    """Return the node as a model of its own, and the values that are its inputs."""
    operands: list[ir.Value] = []
    twins: dict[ir.Value, ir.Value] = {}
    weights: list[ir.Value] = []
    for value in node.inputs:
        if value is None or value in twins:
            continue
        tensor = facts.constant_tensor(value)
        twin = ir.Value(name=f"in{len(twins)}", type=value.type, shape=value.shape, const_value=tensor)
        if tensor is not None:
            twin.type, twin.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
            weights.append(twin)
        else:
            operands.append(value)
        twins[value] = twin
    inputs = [None if value is None else twins[value] for value in node.inputs]
    copy = ir.Node(node.domain, node.op_type, inputs, _copied_attributes(node), num_outputs=len(node.outputs))
    outputs = []
    for old, new in zip(node.outputs, copy.outputs, strict=True):
        new.name = f"out{old.index()}"
        if not facts.unused(old):
            outputs.append(new)
    owner = node.graph
    assert owner is not None
    imports = {"": OPSET} if node.domain in facts.STANDARD else {"": OPSET, node.domain: 1}
    graph = ir.Graph(
        [twins[v] for v in operands], outputs, nodes=[copy], initializers=weights, opset_imports=imports, name="lone"
    )
    return ir.Model(graph, ir_version=10), operands


def _copied_attributes(node: ir.Node) -> Iterable[ir.Attr]:
    """Return attributes that another node may own: bodies are copied."""
    for attribute in node.attributes.values():
        if attribute.type is ir.AttributeType.GRAPH:
            yield ir.AttrGraph(attribute.name, attribute.as_graph().clone())
        else:
            yield attribute


def _splice(node: ir.Node, written: ir.Model, operands: list[ir.Value]) -> None:
    """Replace a node by the nodes of a model whose inputs are the operands."""
    graph, body = node.graph, written.graph
    assert graph is not None
    for value, operand in zip(list(body.inputs), operands, strict=True):
        ir.convenience.replace_all_uses_with(value, operand)
    label = node_label(node)
    prefix = f"{node.outputs[0].name or label}/"
    results = list(body.outputs)
    nodes: list[ir.Node] = []
    for value in list(body.initializers.values()):
        constant = ir.node("Constant", [], {"value": value.const_value})
        constant.outputs[0].name = f"{prefix}{value.name}"
        constant.outputs[0].shape, constant.outputs[0].type = value.shape, value.type
        ir.convenience.replace_all_uses_with(value, constant.outputs[0])
        if value in results:
            results[results.index(value)] = constant.outputs[0]
        nodes.append(constant)
    inner = list(body)
    while len(body.outputs):
        body.outputs.pop()
    body.remove(inner)
    for one in inner:
        one.name = f"{prefix}{one.name or one.op_type}"
        for output in one.outputs:
            output.name = f"{prefix}{output.name}"
    used = [output for output in node.outputs if not facts.unused(output)]
    graph.insert_before(node, [*nodes, *inner])
    for old, new in zip(used, results, strict=True):
        if new.producer() is None or new in operands or new.producer() not in inner:
            identity = ir.node("Identity", [new])
            identity.outputs[0].name = f"{prefix}{old.name}_copy"
            graph.insert_before(node, [identity])
            new = identity.outputs[0]
        new.type, new.shape = old.type, old.shape
        name = old.name
        old.name = f"{prefix}replaced_{old.index()}"
        new.name = name
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
