"""Nodes, with types, of an operator that the specification defines as a function of other operators."""

from __future__ import annotations

from collections.abc import Mapping

import onnx
from onnx import TensorProto, defs, helper

from sardonyx.errors import InvalidModelError
from sardonyx.model.check.onnx_inference import infer
from sardonyx.model.function_bodies import write_body
from sardonyx.model.schemas import get_schema, has_schema


def is_composed(schema: defs.OpSchema) -> bool:
    """Return True if an operator is defined as a function of other operators."""
    return bool(schema.has_function or schema.has_context_dependent_function)  # type: ignore[attr-defined]


def compose(
    node: onnx.NodeProto, schema: defs.OpSchema, opset: int, types: Mapping[str, str]
) -> tuple[onnx.ModelProto, dict[str, str]] | None:
    """Expand a composed operator into its nodes.

    Args:
        node: The node.
        schema: Schema of a composed operator.
        opset: The version of the operator's domain that the model imports.
        types: Element types of the node's inputs, by name, in lower case.

    Returns:
        A model of the nodes (empty if the composition belongs to a later opset) and the element types of its values;
        None if the composition depends on unknown types, or refuses the types or the attributes.
    """
    body = _body(node, schema, opset, types)
    if body is None:
        return None
    attributes = {attribute.name: attribute for attribute in node.attribute}
    defaults = {name: attribute.default_value for name, attribute in schema.attributes.items()}
    graph = onnx.GraphProto(name=node.op_type)
    for actual, formal in zip(node.input, body.input, strict=False):
        if types.get(actual):
            graph.input.append(helper.make_tensor_value_info(formal, _element(types[actual]), None))
    for inner in body.node:
        slot = graph.node.add()
        slot.CopyFrom(inner)
        del slot.attribute[:]
        for attribute in inner.attribute:
            _resolve(attribute, {**defaults, **attributes}, slot)
    imports = list(body.opset_import) or [helper.make_opsetid(schema.domain, opset)]
    model = onnx.ModelProto(ir_version=8, graph=graph, opset_import=imports)
    inferred = infer(model)
    if inferred is None:
        return None
    values = [*inferred.graph.input, *inferred.graph.value_info]
    return model, {value.name: _name(value.type.tensor_type.elem_type) for value in values}


def _resolve(attribute: onnx.AttributeProto, known: Mapping[str, onnx.AttributeProto], node: onnx.NodeProto) -> None:
    """Add an attribute to a node; a reference is replaced by the caller's attribute."""
    if not attribute.ref_attr_name:
        node.attribute.append(attribute)
        return
    source = known.get(attribute.ref_attr_name)
    if source is not None and source.type:
        copy = node.attribute.add()
        copy.CopyFrom(source)
        copy.name = attribute.name


def _body(
    node: onnx.NodeProto, schema: defs.OpSchema, opset: int, types: Mapping[str, str]
) -> onnx.FunctionProto | None:
    body = onnx.FunctionProto()
    if schema.has_function:  # type: ignore[attr-defined]
        written: list[int] = schema.function_opset_versions  # type: ignore[attr-defined]
        newest = max((version for version in written if version <= opset), default=0)
        if newest:
            body.ParseFromString(schema.get_function_with_opset_version(newest))  # type: ignore[attr-defined]
        return body if _means_the_same(body, newest, opset) else onnx.FunctionProto()
    elements = [types.get(name) for name in node.input]
    if not all(elements):
        return None
    inputs = [helper.make_tensor_type_proto(_element(element or ""), None).SerializeToString() for element in elements]
    versions: list[int] = schema.context_dependent_function_opset_versions  # type: ignore[attr-defined]
    version = max((version for version in versions if version <= opset), default=0)
    if version:
        try:
            return write_body(schema, version, node, inputs) or body
        except InvalidModelError:
            return None
    return body


def _means_the_same(body: onnx.FunctionProto, written: int, opset: int) -> bool:
    """Return True if all operators of a body are the same at the model's operator set as where the body was written.

    Otherwise engines do not expand the operator (``OpSchema::GetFunction`` of onnx).
    """
    return all(
        get_schema(node.op_type, written, node.domain).since_version
        == get_schema(node.op_type, opset, node.domain).since_version
        for node in body.node
        if node.domain in ("", "ai.onnx") and has_schema(node.op_type, written, "")
    )


def _element(name: str) -> int:
    element: int = TensorProto.DataType.Value(name.upper())
    return element


def _name(element: int) -> str:
    return TensorProto.DataType.Name(element).lower() if element in TensorProto.DataType.values() else ""
