"""Operators that a target lacks, replaced by their definitions over Core, written as ONNX nodes again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import onnx_ir as ir

from sardonyx.core.eval.trace import inline, trace
from sardonyx.core.export.export import to_model
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.transform.rewriting import Match, RuleSet
from sardonyx.core.transform.simplify import simplify
from sardonyx.errors import OpsetConversionError, SardonyxError
from sardonyx.export.artifact import Refusal
from sardonyx.model.copying import copy_model
from sardonyx.ops.core_values import declared_type
from sardonyx.ops.graph import prepare
from sardonyx.rewrite import opset, pipeline
from sardonyx.rewrite.analysis import facts, inference
from sardonyx.rewrite.analysis.names import node_label
from sardonyx.rewrite.optimize import optimize
from sardonyx.runtime.compiled.frontend import name_unbound_sizes

ROUNDS = 4
"""Decompositions of decompositions."""

Result = TypeVar("Result")

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


def converted(
    model: ir.Model, convert: Callable[[ir.Model], tuple[Result, Sequence[Refusal], Collection[str]]]
) -> tuple[ir.Model, Result, Sequence[Refusal], list[str]]:
    """Convert a model; where the converter lacks operators, definitions replace the operators that the converter lacks.

    Args:
        model: The model, which is not changed.
        convert: Returns the result for a model, the refusals, and the names of the operators that it lacks.

    Returns:
        The model that was converted, the result, the refusals of the model as given, and the replaced operators.
    """
    replaced: set[str] = set()
    result, refused, lacking = convert(model)
    first, source = refused, model
    for _ in range(ROUNDS):
        names = frozenset(lacking) - replaced
        written = _without(model, names) if refused and names else None
        if written is None:
            break
        model = written
        replaced |= names
        result, refused, lacking = convert(model)
    return (source, result, first, []) if refused else (model, result, (), sorted(replaced))


def lacking(model: ir.Model, names: Collection[str], rule: str) -> list[Refusal]:
    """Return a refusal for each node of some operators.

    Args:
        model: The model.
        names: The operators, without their domains.
        rule: The rule of the target; the operator's name is appended.
    """
    nodes = [node for node in ir.traversal.RecursiveGraphIterator(model.graph) if node.op_type in names]
    operators = [f"{n.domain}::{n.op_type}" if n.domain not in facts.STANDARD else n.op_type for n in nodes]
    return [
        Refusal(node_label(n), operator, f"{rule} {operator}") for n, operator in zip(nodes, operators, strict=True)
    ]


def notes_of(replaced: Sequence[str]) -> list[str]:
    """Return the remark on operators that definitions replace."""
    return [f"written by their definitions, because the engine lacks them: {', '.join(replaced)}"] if replaced else []


def _without(model: ir.Model, names: frozenset[str]) -> ir.Model | None:
    """Return a copy without operators: expressed by older operators, or by Core; None if none could be replaced."""
    copy, changed = copy_model(model), False
    for name in sorted(names):
        with contextlib.suppress(OpsetConversionError):
            copy, changed = opset.decompose(copy, {name}), True
    changed |= replace_by_definitions(copy, lambda node: node.op_type not in names)
    passes = [name for name in pipeline.exact_passes() if name.startswith(("eliminate_", "fold_"))]
    return optimize(copy, verify=False, passes=passes).model if changed else None


def replace_by_definitions(model: ir.Model, is_direct: Callable[[ir.Node], bool]) -> bool:
    """Replace nodes by their definitions, in place; return True if any was.

    Args:
        model: The model.
        is_direct: Returns True for a node that stays.
    """
    inference.infer_shapes(model, strict=False)
    changed = False
    for node in list(ir.traversal.RecursiveGraphIterator(model.graph)):
        if not is_direct(node) and node.graph is not None and not _holds_bodies_with_captures(node):
            changed |= _decompose(node, model.graph.opset_imports)
    return changed


def _holds_bodies_with_captures(node: ir.Node) -> bool:
    return any(facts.captured_values(body) for body in facts.bodies(node)) if facts.may_hold_bodies(node) else False


def _decompose(node: ir.Node, imports: dict[str, int]) -> bool:
    """Replace a node by the primitives of its definition; return False if there is none."""
    version = imports.get("", 1)
    lone, operands = _lone_model(node, imports)
    try:
        function = _traced(lone)
        expanded = EXPANSION.apply(function, context=(node.op_type, {}))
        written = to_model(simplify(expanded), opset=version)
    except SardonyxError:
        return False
    if any(inner.op_type == node.op_type and inner.domain == node.domain for inner in written.graph.all_nodes()):
        return False
    if written.graph.opset_imports.get("", 0) > version:
        return False
    _splice(node, written, operands)
    return True


def _traced(model: ir.Model) -> Function:
    graph = prepare(model)
    types: Any = name_unbound_sizes([declared_type(value) for value in graph.inputs])  # type: ignore[misc]
    return trace("node", lambda *inputs: list(graph.call(list(inputs))), types)


def _lone_model(node: ir.Node, imports: dict[str, int]) -> tuple[ir.Model, list[ir.Value]]:
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
    versions = {domain: version for domain, version in imports.items() if domain in ("", node.domain)}
    graph = ir.Graph(
        [twins[v] for v in operands], outputs, nodes=[copy], initializers=weights, opset_imports=versions, name="lone"
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
