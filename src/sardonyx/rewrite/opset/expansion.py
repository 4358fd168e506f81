"""Expansion of operators into their standard function bodies."""

from __future__ import annotations

from typing import Any

import onnx
import onnx_ir as ir
from onnx import inliner
from onnx.defs import OpSchema
from onnx_ir import serde

from sardonyx.errors import InvalidModelError, TypeMismatchError
from sardonyx.model.function_bodies import write_body
from sardonyx.model.load import from_proto
from sardonyx.rewrite.analysis import inference
from sardonyx.rewrite.opset.constants import tensor_of_constant
from sardonyx.rewrite.opset.schemas import canonical, default_of, schema_at
from sardonyx.rewrite.opset.scope import Scope, forget_new_symbols, is_read, symbols_of
from sardonyx.rewrite.opset.site import Site

_DOMAIN = "decomposition"
_ARITHMETIC = {"Add", "Sub", "Mul", "Div", "Pow"}


def expand(site: Site) -> tuple[list[ir.Node], int] | None:
    """Replace a node by the function body of its schema.

    Args:
        site: The node, in the operator set ``site.source``.

    Returns:
        The new nodes in order and their operator set; None if the schema has no body.
    """
    schema = schema_at(site.domain, site.node.op_type, site.source)
    if schema is None:
        return None
    if site.node.op_type == "Celu" and not site.real("alpha", 1.0) > 0:
        site.refuse("the body of the standard answers other values for an alpha that is not positive")
    if site.node.op_type == "Bernoulli" and not site.domain:
        site.refuse("the body of the standard draws 1 with the probability 1 - p")
    body = _function(schema, site)
    if body is None:
        return None
    function, version = body
    return _splice(_inlined(function, schema, site, version), site), version


def _function(schema: OpSchema, site: Site) -> tuple[onnx.FunctionProto, int] | None:
    """Return the body for the newest set up to the node's own, else the oldest one above."""
    bodies: Any = schema  # The type stubs of onnx lack the functions.
    versions = sorted(bodies.context_dependent_function_opset_versions or bodies.function_opset_versions)
    if not versions:
        return None
    version = max((v for v in versions if v <= site.source), default=versions[0])
    function: onnx.FunctionProto | None
    if not bodies.has_context_dependent_function:
        function = onnx.FunctionProto.FromString(bodies.get_function_with_opset_version(version))
    else:
        types = [b"" if v is None else _type(v).SerializeToString() for v in site.node.inputs]
        try:
            function = write_body(schema, version, serde.serialize_node(site.node), types)
        except InvalidModelError as error:
            site.refuse(f"its body cannot be written: {error.problem}")
    if function is None:
        return None
    if len(function.input) == len(function.output) == 1:
        _make_factors_scalars(function)
    return function, version


def _make_factors_scalars(function: onnx.FunctionProto) -> None:
    """Make constants ``[1]`` of arithmetic scalars: with them, the body of Celu answers a scalar by a vector."""
    for node in function.node:
        readers = {reader.op_type for reader in function.node if node.output[0] in reader.input}
        if node.op_type == "Constant" and readers and readers <= _ARITHMETIC:
            for attribute in node.attribute:
                is_float = attribute.t.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
                if attribute.name == "value" and is_float and list(attribute.t.dims) == [1]:
                    del attribute.t.dims[:]


def _type(value: ir.Value) -> onnx.TypeProto:
    return serde.serialize_value(value).type


def _inlined(function: onnx.FunctionProto, schema: OpSchema, site: Site, version: int) -> ir.Model:
    """Return the body as an annotated graph with substituted attributes."""
    function.domain = _DOMAIN
    imports = {entry.domain: entry.version for entry in function.opset_import} | {"": version}
    del function.opset_import[:]
    function.opset_import.extend(onnx.helper.make_opsetid(d, v) for d, v in imports.items())
    call = serde.serialize_node(site.node)
    call.domain = _DOMAIN
    del call.input[:], call.output[:]
    call.input.extend("" if v is None else f"in{i}" for i, v in enumerate(site.node.inputs))
    call.output.extend(f"out{i}" if is_read(value) else "" for i, value in enumerate(site.node.outputs))
    if len(call.input) > len(function.input) or len(call.output) > len(function.output):
        site.refuse(
            f"its body has {len(function.input)} inputs and {len(function.output)} outputs, "
            f"the node {len(call.input)} and {len(call.output)}"
        )
    present = {attribute.name for attribute in call.attribute}
    call.attribute.extend(
        schema.attributes[name].default_value
        for name in function.attribute
        if name not in present and default_of(schema, name) is not None
    )
    graph = onnx.helper.make_graph(
        [call],
        schema.name,
        [
            onnx.helper.make_value_info(f"in{i}", _type(v))
            for i, v in enumerate(site.node.inputs)
            if v is not None and f"in{i}" in call.input
        ],
        [onnx.helper.make_value_info(name, onnx.TypeProto()) for name in call.output if name],
    )
    wrapper = onnx.helper.make_model(
        graph,
        functions=[function],
        opset_imports=[onnx.helper.make_opsetid(d, v) for d, v in (imports | {_DOMAIN: 1}).items()],
        ir_version=max(8, site.scope.model.ir_version),
    )
    body = from_proto(inliner.inline_local_functions(wrapper))
    for refusal in inference.infer_shapes(body, strict=False).values():
        if isinstance(refusal, TypeMismatchError):  # The standard's body of CenterCropPad expects sizes of int64.
            site.refuse(f"its body does not accept the types: {refusal.problem}")
    known = symbols_of(site.node.inputs)
    for node in ir.traversal.RecursiveGraphIterator(body.graph):
        forget_new_symbols(node.outputs, known)
    return body


def _splice(body: ir.Model, site: Site) -> list[ir.Node]:
    """Move the used nodes of ``body`` before the site, connected to its inputs."""
    graph, scope = site.node.graph, site.scope
    assert graph is not None
    results = iter(list(body.graph.outputs))
    outputs = [next(results) if is_read(value) else None for value in site.node.outputs]
    body.graph.outputs.clear()
    live = set(outputs)
    for node in reversed(list(body.graph)):
        if not any(value.uses() or value in live for value in node.outputs):
            body.graph.remove(node, safe=True)
    for formal, actual in zip(body.graph.inputs, (v for v in site.node.inputs if v is not None), strict=True):
        formal.replace_all_uses_with(actual)
        outputs = [actual if value is formal else value for value in outputs]
    nodes = list(body.graph)
    body.graph.remove(nodes)
    stem = site.node.name or site.node.op_type
    for node in nodes:
        node.name = scope.fresh(f"{stem}/{node.name or node.op_type}")
        for value in node.outputs:
            value.name = scope.fresh(f"{stem}/{value.name}")
    remaining = [node for node in nodes if not _lift(node, scope, outputs)]
    graph.insert_before(site.node, remaining)
    site.emitted.extend(remaining)
    site.replace(*outputs)
    return _without_identities([node for node in site.emitted if node.graph is graph])


def _without_identities(nodes: list[ir.Node]) -> list[ir.Node]:
    """Remove ``Identity`` nodes, used by bodies to name values."""
    remaining: list[ir.Node] = []
    for node in nodes:
        source = node.inputs[0] if node.op_type == "Identity" else None
        if source is None or node.outputs[0].is_graph_output():
            remaining.append(node)
            continue
        node.outputs[0].replace_all_uses_with(source)
        assert node.graph is not None
        node.graph.remove(node, safe=True)
    return remaining


def _lift(node: ir.Node, scope: Scope, outputs: list[ir.Value | None]) -> bool:
    """Turn a ``Constant`` node into an initializer of the main graph; return False if impossible."""
    if node.op_type != "Constant" or canonical(node.domain) or scope.in_function or node.outputs[0] in outputs:
        return False
    tensor = tensor_of_constant(node)
    if tensor is None:
        return False
    node.outputs[0].replace_all_uses_with(scope.initializer(tensor, str(node.outputs[0].name)))
    return True
