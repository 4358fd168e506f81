"""Checks of nodes, types, opset and IR version against the limits of a target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx
from onnx import TensorProto, defs

from sardonyx.model.check.codes import finding
from sardonyx.model.check.commands import Commands
from sardonyx.model.check.composition import compose, is_composed
from sardonyx.model.check.findings import Finding, Location
from sardonyx.model.check.functions import called_function
from sardonyx.model.check.onnx_inference import infer
from sardonyx.model.check.scopes import Scope, canonical_domain, function_key, qualified, scopes
from sardonyx.model.check.skeleton import without_weights
from sardonyx.model.check.targets import Entry, Range, Target
from sardonyx.model.schemas import get_schema, has_schema

_ElementTypes = Mapping[str, str]
_LEGALIZABLE_DOMAINS = ("", "com.microsoft")
_LEGALIZABLE_OPERATORS = ("Identity",)
"""Operators that the optimizer removes or replaces independently of their types."""

_OPTIMIZER_TARGETS = ("onnxruntime", "tensorrt", "openvino")


def check_target(model: onnx.ModelProto, target: Target, commands: Commands, *, inferable: bool) -> Iterator[Finding]:
    """Report the parts of a model that a target cannot run, or runs only under a condition.

    Args:
        model: The message.
        target: The target.
        commands: Builds the command lines of the remedies.
        inferable: True if shape inference may run; otherwise the types of nodes are not checked.

    Yields:
        The findings.
    """
    yield from _check_versions(model, target, commands)
    typed = _with_types(model) if inferable else model
    functions = {function_key(function): index for index, function in enumerate(model.functions)}
    types_of: dict[int, _ElementTypes] = {}
    conditions: dict[str, list[Location]] = {}
    for scope, twin in zip(scopes(model), scopes(typed), strict=True):
        types_of[id(scope)] = types = {**(types_of[id(scope.parent)] if scope.parent else {}), **_element_types(twin)}
        for node in scope.graph.node:
            if called_function(node, functions) is None:
                yield from _check_node(scope, node, types, target, commands, conditions)
    for condition, locations in conditions.items():
        others = f" ({len(locations) - 1} more nodes of this kind)" if len(locations) > 1 else ""
        yield finding("target-restriction", f"{condition}{others}", locations[0])


def _check_versions(model: onnx.ModelProto, target: Target, commands: Commands) -> Iterator[Finding]:
    label = f"{target.name} {target.version}"
    if not _within(model.ir_version, target.ir):
        reason = f"{label} reads IR versions {_format_range(target.ir)}; the model has {model.ir_version}."
        command = commands.convert_ir(_nearest(model.ir_version, target.ir))
        yield finding("target-ir", reason, Location(item="ir_version"), command=command)
    for entry in model.opset_import:
        domain = canonical_domain(entry.domain)
        limits = target.opsets.get(domain)
        if limits is None or _within(entry.version, limits):
            continue
        reason = (
            f"{label} accepts opsets {_format_range(limits)} of {domain or 'ai.onnx'}; the model has {entry.version}."
        )
        command = "" if domain else commands.convert_opset(_nearest(entry.version, limits))
        yield finding("target-opset", reason, Location(item=f"opset import {domain or 'ai.onnx'}"), command=command)


def _check_node(
    scope: Scope,
    node: onnx.NodeProto,
    types: _ElementTypes,
    target: Target,
    commands: Commands,
    conditions: dict[str, list[Location]],
) -> Iterator[Finding]:
    domain = canonical_domain(node.domain)
    entries = target.operators.get(qualified(domain, node.op_type), ())
    schema = _schema(scope, node, domain)
    fitting = _fitting_entries(entries, node, schema, scope.opsets.get(domain, 1), target)
    label = f"{target.name} {target.version}"
    if not fitting:
        missing = _find_missing_inner_operator(node, schema, scope.opsets.get(domain, 0), types, target)
        if missing == "":
            return
        more = f" in opset {scope.opsets.get(domain, 0)} (only in others)" if entries else ""
        rest = f"; {target.fallback} runs the node instead" if target.fallback else ""
        inside = f" (nor {missing}, a part of its decomposition)" if missing else ""
        reason = f"{label} does not run {qualified(domain, node.op_type)}{more}{inside}{rest}."
        command = _legalize(scope, node, target, commands, entries)
        remedy = "" if command else "Choose another target, or export the model without the operator."
        yield finding("target-operator", reason, scope.at(node), remedy=remedy, command=command)
        return
    refused = [_refused_types(node, schema, types, entry, target.casts) for entry in fitting]
    if all(refused):
        if _find_missing_inner_operator(node, schema, scope.opsets.get(domain, 0), types, target) == "":
            return
        reason = f"{label} does not run the node with {', '.join(refused[0])}."
        command = _legalize(scope, node, target, commands, ()) if node.op_type in _LEGALIZABLE_OPERATORS else ""
        yield finding("target-type", reason, scope.at(node), command=command)
        return
    if target.narrowed:
        narrowed = sorted({types[name] for name in node.input if types.get(name) in target.casts})
        if narrowed:
            reason = f"{node.op_type} has inputs of type {', '.join(narrowed)}. {target.narrowed}"
            conditions.setdefault(reason, []).append(scope.at(node))
    if fitting[0].restriction:
        conditions.setdefault(f"{label} on {node.op_type}: {fitting[0].restriction}", []).append(scope.at(node))


def supports_node(node: onnx.NodeProto, opsets: Mapping[str, int], types: Mapping[str, str], target: Target) -> bool:
    """Return True if a target runs a node, itself or decomposed.

    Args:
        node: The node; its bodies are not looked at.
        opsets: Versions of the operator sets, by canonical domain.
        types: Names of element types in lower case, by value; a value without one is accepted.
        target: The target.
    """
    domain = canonical_domain(node.domain)
    schema = _schema_of(node, domain, opsets)
    opset = opsets.get(domain, 1)
    entries = target.operators.get(qualified(domain, node.op_type), ())
    fitting = _fitting_entries(entries, node, schema, opset, target)
    if any(not _refused_types(node, schema, types, entry, target.casts) for entry in fitting):
        return True
    return _find_missing_inner_operator(node, schema, opset, types, target) == ""


def _fitting_entries(
    entries: Sequence[Entry], node: onnx.NodeProto, schema: defs.OpSchema | None, opset: int, target: Target
) -> list[Entry]:
    """Return the entries for the version of a schema; all of them for an operator without schemas in onnx."""
    domain = canonical_domain(node.domain)
    if schema is None and target.name == "onnxruntime" and not defs.has(node.op_type, domain=domain):
        return list(entries)
    version = opset if schema is None else schema.since_version
    return [entry for entry in entries if _accepts_version(entry, version, opset, target)]


def _accepts_version(entry: Entry, version: int, opset: int, target: Target) -> bool:
    """Return True if an entry covers a version of an operator's schema.

    A kernel registry (types by variable) matches schema versions: an open range covers its first version only, since a
    later schema may have another meaning. A table from a document refers to the model's opset.
    """
    if target.name != "onnxruntime":
        return _within(opset, (entry.first, entry.last))
    if entry.last is None:
        return entry.first == version
    return entry.first is None or entry.first <= version <= entry.last


def _find_missing_inner_operator(
    node: onnx.NodeProto, schema: defs.OpSchema | None, opset: int, types: _ElementTypes, target: Target
) -> str | None:
    """Find an operator beyond the target in the decomposition of a composed operator, at any depth.

    Returns:
        The missing operator; an empty string if there is none, so the target runs the decomposition; None if the
        operator is not composed, or the target does not decompose operators.
    """
    if schema is None or target.name != "onnxruntime" or canonical_domain(schema.domain) not in target.opsets:
        return None
    if not is_composed(schema):
        return None
    composed = compose(node, schema, opset, types)
    if composed is None:
        return ""
    body, inner_types = composed
    if not body.graph.node:
        return None
    imports = {canonical_domain(entry.domain): entry.version for entry in body.opset_import}
    imports[canonical_domain(schema.domain)] = opset  # The nodes join the model, at the model's operator set.
    for inner in body.graph.node:
        domain = canonical_domain(inner.domain)
        version = imports.get(domain, opset)
        if not has_schema(inner.op_type, version, domain):
            continue
        inner_schema = get_schema(inner.op_type, version, domain)
        name = qualified(domain, inner.op_type)
        fitting = [
            entry
            for entry in target.operators.get(name, ())
            if _accepts_version(entry, inner_schema.since_version, version, target)
        ]
        if any(not _refused_types(inner, inner_schema, inner_types, entry, target.casts) for entry in fitting):
            continue
        missing = _find_missing_inner_operator(inner, inner_schema, version, inner_types, target)
        if missing is None or missing:
            return missing or name
    return ""


def _refused_types(
    node: onnx.NodeProto, schema: defs.OpSchema | None, types: _ElementTypes, entry: Entry, casts: Mapping[str, str]
) -> list[str]:
    """Return the types of a node's inputs and outputs that an entry refuses, each as text."""
    refused: list[str] = []
    if not entry.types:
        return refused
    bound = list(_type_variables(node, schema))
    # A single list of types in a source refers to the operator's data, its first input.
    data = bound[0][0] if bound else "*"
    for variable, name in bound:
        element = types.get(name)
        allowed = entry.types.get("*" if variable == data and "*" in entry.types else variable)
        if not element or allowed is None or element in allowed or casts.get(element) in allowed:
            continue
        text = f"{element} {name!r}"
        if text not in refused:
            refused.append(text)
    return refused


def _type_variables(node: onnx.NodeProto, schema: defs.OpSchema | None) -> Iterator[tuple[str, str]]:
    """Yield the type variable of each input and output, with the value's name; ``*`` without a schema."""
    for names, formals in ((node.input, schema and schema.inputs), (node.output, schema and schema.outputs)):
        for position, name in enumerate(names):
            if not name:
                continue
            if not formals:
                yield "*", name
                continue
            yield formals[min(position, len(formals) - 1)].type_str, name


def _schema(scope: Scope, node: onnx.NodeProto, domain: str) -> defs.OpSchema | None:
    return _schema_of(node, domain, scope.opsets)


def _schema_of(node: onnx.NodeProto, domain: str, opsets: Mapping[str, int]) -> defs.OpSchema | None:
    version = opsets.get(domain, 0)
    if version < 1 or not has_schema(node.op_type, version, domain):
        return None
    return get_schema(node.op_type, version, domain)


def _with_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with the inferred types of all values, or with the declared types if inference fails.

    The strict inference, which runs on every model, reports the failure.
    """
    copy = without_weights(model, keep_shapes=True)
    return infer(copy) or copy


def _element_types(scope: Scope) -> dict[str, str]:
    graph = scope.graph
    values = list(graph.value_info)
    types: dict[str, str] = {}
    if isinstance(graph, onnx.GraphProto):
        values += [*graph.input, *graph.output]
        types = {tensor.name: _type_text(tensor.data_type) for tensor in graph.initializer}
    for value in values:
        if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type:
            types[value.name] = _type_text(value.type.tensor_type.elem_type)
    return types


def _type_text(element: int) -> str:
    """Return the name of an element type in lower case; empty for an unknown number."""
    return TensorProto.DataType.Name(element).lower() if element in TensorProto.DataType.values() else ""


def _legalize(scope: Scope, node: onnx.NodeProto, target: Target, commands: Commands, entries: Sequence[Entry]) -> str:
    """Return the command that rewrites the node for the target; empty if there is none.

    The optimizer knows the limits of some targets. For other targets, the command converts to an opset in which the
    target accepts the operator.
    """
    domain = canonical_domain(node.domain)
    if domain not in _LEGALIZABLE_DOMAINS:
        return ""
    version = scope.opsets.get("", 0)
    limits = target.opsets.get("", (None, None))
    if not domain and version and not has_schema(node.op_type, version, ""):
        # No operator set contains some early experimental operators; conversion, even to the same set, expands them.
        return commands.convert_opset(_nearest(version, limits))
    if target.name in _OPTIMIZER_TARGETS:
        return commands.optimize(target=target.name)
    ranges = [(entry.first, entry.last) for entry in entries] if not domain else []
    opsets = [near for near in (_nearest(version, limit) for limit in ranges) if _within(near, limits)]
    return commands.convert_opset(min(opsets, key=lambda near: abs(near - version))) if opsets else ""


def _within(value: int, limits: Range) -> bool:
    low, high = limits
    return (low is None or value >= low) and (high is None or value <= high)


def _nearest(value: int, limits: Range) -> int:
    low, high = limits
    if high is not None and value > high:
        return high
    return value if low is None else max(value, low)


def _format_range(limits: Range) -> str:
    low, high = limits
    if low is None or high is None:
        return f"up to {high}" if low is None else f"from {low}"
    return f"{low} to {high}"
