"""Crossing of a version boundary by the schemas alone, if the node means the same on both sides."""

from __future__ import annotations

import onnx_ir as ir
from onnx.defs import OpSchema

from sardonyx.rewrite.opset.schemas import HINTS, default_of
from sardonyx.rewrite.opset.scope import is_read
from sardonyx.rewrite.opset.site import convert_attributes

_REQUIRED = OpSchema.FormalParameterOption.Single


def align(node: ir.Node, here: OpSchema, there: OpSchema) -> str | None:
    """Make a node of the schema ``here`` legal under ``there`` without changing its meaning.

    Attributes known only to ``here`` are dropped at their default value; differing defaults are
    written out; unread trailing outputs are dropped.

    Args:
        node: Changed in place, preserving its meaning under ``here``.
        here: The current definition.
        there: The target definition.

    Returns:
        None, or the reason for the lack of an equivalent.
    """
    return _align_attributes(node, here, there) or _align_inputs(node, there) or _align_outputs(node, there)


def _align_attributes(node: ir.Node, here: OpSchema, there: OpSchema) -> str | None:
    for name, attribute in list(node.attributes.items()):
        declared = there.attributes.get(name)
        if declared is not None and str(declared.type).rpartition(".")[2] == attribute.type.name:
            continue
        if name in HINTS:
            node.attributes.pop(name)
        elif attribute.is_ref():
            return f"its attribute {name!r} is a parameter of the function and exists on one side only"
        elif (default := default_of(here, name)) is not None and _plain(attribute) == default:
            node.attributes.pop(name)
        elif declared is not None:
            return f"its attribute {name!r} has another type in the target opset"
        else:
            return f"its attribute {name}={_plain(attribute)!r} does not exist in the target opset"
    for name, declared in there.attributes.items():
        if name in node.attributes:
            continue
        default = default_of(here, name)
        if name in here.attributes and default is not None and default != default_of(there, name):
            node.attributes[name] = convert_attributes({name: default})[0]  # type: ignore[dict-item]
        elif declared.required:
            return f"its attribute {name!r} is required in the target opset"
    return None


def _align_inputs(node: ir.Node, there: OpSchema) -> str | None:
    count = len(node.inputs)
    while count and node.inputs[count - 1] is None:
        count -= 1
    if count > there.max_input:
        return f"its input {there.inputs[-1].name if not count else count - 1} does not exist in the target opset"
    for index, formal in enumerate(there.inputs):
        if formal.option == _REQUIRED and (index >= count or node.inputs[index] is None):
            return f"its input {formal.name!r} is required in the target opset"
    if count < len(node.inputs):
        node.resize_inputs(count)
    return None


def _align_outputs(node: ir.Node, there: OpSchema) -> str | None:
    count = len(node.outputs)
    while count > there.min_output and not is_read(node.outputs[count - 1]):
        count -= 1
    if count > there.max_output:
        return f"its used output {count - 1} does not exist in the target opset"
    if len(node.outputs) > there.max_output:
        node.resize_outputs(count)
    return None


def _plain(attribute: ir.Attr) -> object:
    value = attribute.value
    return list(value) if isinstance(value, tuple) else value


def find_violation(node: ir.Node, schema: OpSchema) -> str | None:
    """Return the reason why inputs, outputs or types of attributes violate the node's own schema, else None."""
    count = len(node.inputs)
    if not schema.min_input <= count <= schema.max_input:
        return f"expected {_span(schema.min_input, schema.max_input)} inputs, got {count}"
    for index, formal in enumerate(schema.inputs):
        if formal.option == _REQUIRED and (index >= count or node.inputs[index] is None):
            return f"its required input {formal.name!r} is missing"
    if not schema.min_output <= len(node.outputs) <= schema.max_output:
        return f"expected {_span(schema.min_output, schema.max_output)} outputs, got {len(node.outputs)}"
    for value in node.inputs:
        if value is not None and value.producer() is None and not (value.is_graph_input() or value.is_initializer()):
            return f"its input {value.name!r} is undefined"
    for name, attribute in node.attributes.items():
        declared = schema.attributes.get(name)
        # The type stubs of onnx lack the value of the enumeration.
        kind = None if declared is None else ir.AttributeType(declared.type.value)  # type: ignore[attr-defined]
        if kind is not None and attribute.type != kind:
            return f"expected the attribute {name!r} to be of type {kind.name}, got {attribute.type.name}"
    return None


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} or more" if high > 1 << 20 else f"{low} to {high}"
