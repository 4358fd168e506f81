"""Copies of a message without weights, for onnx's C++ functions, which accept serialized messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
from onnx import TensorProto

from sardonyx.model.check.scopes import MAX_DEPTH, canonical_domain, scopes
from sardonyx.model.schemas import get_schema, has_schema

_SMALL_BYTES = 1024
_SMALL_INTEGER_BYTES = 65536
_INTEGERS = (TensorProto.INT32, TensorProto.INT64)
_CONTENT = ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")


def without_weights(model: onnx.ModelProto, *, keep_shapes: bool) -> onnx.ModelProto:
    """Copy a message without the contents of its larger tensors.

    Args:
        model: The message; not changed.
        keep_shapes: True turns emptied tensors into references to external data, which shape inference accepts. False
            turns them into tensors without elements, which the checker accepts since it does not read weights' shapes.

    Returns:
        The copy. Integer tensors up to 64 KiB stay complete: shapes are computed from them.
    """
    copy = onnx.ModelProto()
    _copy_fields(model, copy, leave_out="graph")
    _copy_fields(model.graph, copy.graph, leave_out="initializer")
    for tensor in model.graph.initializer:
        slot = copy.graph.initializer.add()
        if _is_large(tensor):
            slot.name, slot.data_type = tensor.name, tensor.data_type
            slot.dims.extend(tensor.dims)
            _detach(slot, keep_shapes)
        else:
            slot.CopyFrom(tensor)
    for scope in scopes(copy):
        for tensor in tensors_of(scope.graph, weights=not scope.is_main):
            if _is_large(tensor):
                _detach(tensor, keep_shapes)
    return copy


def number_nodes(model: onnx.ModelProto) -> None:
    """Set the name of every node in every graph to its position in the order of ``scopes``, as ``@@17@@``."""
    number = 0
    for scope in scopes(model, max_depth=MAX_DEPTH):
        for node in scope.graph.node:
            node.name = f"@@{number}@@"
            number += 1


def write_defaults(model: onnx.ModelProto) -> None:
    """Write the attribute defaults of composed operators into their nodes.

    onnx's inference inlines such an operator without its defaults, which are then missing inside.
    """
    defaults: dict[tuple[str, str, int], list[onnx.AttributeProto]] = {}
    for scope in scopes(model):
        for node in scope.graph.node:
            domain = canonical_domain(node.domain)
            key = (node.op_type, domain, scope.opsets.get(domain, 0))
            if key not in defaults:
                defaults[key] = _function_defaults(*key)
            if defaults[key]:
                names = {attribute.name for attribute in node.attribute}
                node.attribute.extend(default for default in defaults[key] if default.name not in names)


def _function_defaults(op_type: str, domain: str, version: int) -> list[onnx.AttributeProto]:
    if version < 1 or not has_schema(op_type, version, domain):
        return []
    schema = get_schema(op_type, version, domain)
    if not schema.has_function:  # type: ignore[attr-defined]
        return []
    return [attribute.default_value for attribute in schema.attributes.values() if attribute.default_value.name]


def tensors_of(graph: onnx.GraphProto | onnx.FunctionProto, *, weights: bool = True) -> Iterator[onnx.TensorProto]:
    """Yield the tensors of one graph: weights, and tensors in attributes of its nodes.

    Args:
        graph: The graph.
        weights: False omits the weights.

    Yields:
        The tensors; a sparse tensor as its values and indices.
    """
    if weights and isinstance(graph, onnx.GraphProto):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("sparse_tensor"):
                yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
            yield from attribute.tensors


def _is_large(tensor: onnx.TensorProto) -> bool:
    if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
        return True
    if tensor.data_type == TensorProto.STRING:
        return len(tensor.string_data) > _SMALL_BYTES
    limit = _SMALL_INTEGER_BYTES if tensor.data_type in _INTEGERS else _SMALL_BYTES
    if len(tensor.raw_data) > limit:
        return True
    counts = (len(getattr(tensor, field)) for field in _CONTENT[1:-1])
    return max(counts) * 4 > limit


def _detach(tensor: onnx.TensorProto, keep_shapes: bool) -> None:
    for field in (*_CONTENT, "external_data", "data_location"):
        tensor.ClearField(field)
    if keep_shapes:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights")
    else:
        del tensor.dims[:]
        tensor.dims.append(0)


def _copy_fields(source: Any, target: Any, leave_out: str) -> None:
    for field, value in source.ListFields():
        if field.name == leave_out:
            continue
        slot = getattr(target, field.name)
        if hasattr(slot, "extend"):
            slot.extend(value)
        elif field.message_type is not None:
            slot.CopyFrom(value)
        else:
            setattr(target, field.name, value)
