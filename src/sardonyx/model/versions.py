"""Which version of the ONNX file format (IR version) a model needs.

Sources: the version comments of onnx.proto, and ``onnx.helper.VERSION_TABLE`` for operator sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import onnx
import onnx_ir as ir
from onnx.helper import OP_SET_ID_VERSION_MAP

from sardonyx.model.carry import QUANTIZATION_KEY, metadata_of, record
from sardonyx.model.tensors import SparseTensor
from sardonyx.model.types import MapType
from sardonyx.model.writer import FUNCTION_INFO_VERSION, natural_infos

OLDEST = 3
"""The first IR version with operator sets; files of an older one are not written."""

_INITIALIZERS_WITHOUT_INPUTS = 4
_QUANTIZATION_ANNOTATIONS = 5
_SPARSE_CONSTANTS = 6
_TRAINING_INFO = 7
_FUNCTIONS = _SPARSE_AND_OPTIONAL_TYPES = 8
_ATTRIBUTE_DEFAULTS = 9
_OVERLOADS = _METADATA = 10
_DEVICES = 11
_ELEMENT_TYPES = {
    ir.DataType.BFLOAT16: 4,
    ir.DataType.FLOAT8E4M3FN: 9,
    ir.DataType.FLOAT8E4M3FNUZ: 9,
    ir.DataType.FLOAT8E5M2: 9,
    ir.DataType.FLOAT8E5M2FNUZ: 9,
    ir.DataType.UINT4: 10,
    ir.DataType.INT4: 10,
    ir.DataType.FLOAT4E2M1: 11,
    ir.DataType.FLOAT8E8M0: 12,
    ir.DataType.UINT2: 13,
    ir.DataType.INT2: 13,
    ir.DataType.FLOAT6E2M3: 14,
    ir.DataType.FLOAT6E3M2: 14,
}
_SPARSE_ATTRIBUTES = frozenset({ir.AttributeType.SPARSE_TENSOR, ir.AttributeType.SPARSE_TENSORS})
_TENSOR_ATTRIBUTES = frozenset({ir.AttributeType.TENSOR, ir.AttributeType.TENSORS})
_TYPE_ATTRIBUTES = frozenset({ir.AttributeType.TYPE_PROTO, ir.AttributeType.TYPE_PROTOS})


def ir_version_of_opset(domain: str, version: int) -> int:
    """The IR version that came with an operator set.

    Args:
        domain: The domain of the operator set; "" is ONNX's own.
        version: Its version.

    Returns:
        The IR version of the first onnx release with that operator set; `OLDEST` for domains that are not ONNX's,
        and the newest one for versions newer than the onnx package.
    """
    known = sorted(
        (opset, ir_version)
        for (name, opset), ir_version in OP_SET_ID_VERSION_MAP.items()
        if name == (domain or "ai.onnx")
    )
    if not known:
        return OLDEST
    return next((ir_version for opset, ir_version in known if opset >= version), int(onnx.IR_VERSION))


def lowest_ir_version(model: ir.Model) -> int:
    """The lowest IR version that holds a model.

    Args:
        model: The model; its own ``ir_version`` counts where it gives things another meaning: types known of values
            in functions are written from IR version 10 on, and callers may override initializers that are inputs
            from IR version 4 on.

    Returns:
        The IR version; what the model uses came with it or before it.
    """
    return max(_needs(model))


def lower_ir_version(model: ir.Model) -> None:
    """States the lowest IR version that holds a model, in place, so that as many readers as can be take it.

    A version that is lower already, as some exporters state it, is left.
    """
    model.ir_version = min(model.ir_version, lowest_ir_version(model))


def _needs(model: ir.Model) -> Iterator[int]:
    yield OLDEST
    for domain, version in model.opset_imports.items():
        yield ir_version_of_opset(domain, version)
    if model.device_configurations:
        yield _DEVICES
    carried = record(model.graph)
    if carried is not None and carried.model is not None and carried.model.training_info:
        yield _TRAINING_INFO
    yield from _graph_needs(model.graph, overridable=model.ir_version >= _INITIALIZERS_WITHOUT_INPUTS)
    for function in model.functions.values():
        yield _FUNCTIONS
        for domain, version in function.opset_imports.items():
            yield ir_version_of_opset(domain, version)
        if function.overload:
            yield _OVERLOADS
        if any(attribute.value is not None for attribute in function.attributes.values()):
            yield _ATTRIBUTE_DEFAULTS
        if model.ir_version >= FUNCTION_INFO_VERSION and natural_infos(function.graph, function=True):
            yield FUNCTION_INFO_VERSION
        yield from _graph_needs(function.graph)


def _graph_needs(graph: ir.Graph, *, overridable: bool = False) -> Iterator[int]:
    yield from _metadata_needs(graph)
    for value in graph.initializers.values():
        if overridable or not value.is_graph_input():
            yield _INITIALIZERS_WITHOUT_INPUTS
        if value.const_value is not None:
            yield from _tensor_needs(value.const_value)
    yield from _value_needs((*graph.inputs, *graph.outputs, *graph.initializers.values()))
    for node in graph:
        yield from _metadata_needs(node)
        if node.overload:
            yield _OVERLOADS
        if node.device_configurations:
            yield _DEVICES
        yield from _value_needs(node.outputs)
        for attribute in node.attributes.values():
            if not attribute.is_ref():
                yield from _attribute_needs(attribute)


def _attribute_needs(attribute: ir.Attr) -> Iterator[int]:
    value = attribute.value
    if attribute.type is ir.AttributeType.GRAPH:
        yield from _graph_needs(value)
    elif attribute.type is ir.AttributeType.GRAPHS:
        for graph in value:
            yield from _graph_needs(graph)
    elif attribute.type in _TENSOR_ATTRIBUTES or attribute.type in _SPARSE_ATTRIBUTES:
        for tensor in value if isinstance(value, tuple) else (value,):
            yield from _tensor_needs(tensor)
    elif attribute.type in _TYPE_ATTRIBUTES:
        for item in value if isinstance(value, tuple) else (value,):
            yield from _type_needs(item.type)


def _tensor_needs(tensor: ir.TensorProtocol) -> Iterator[int]:
    if isinstance(tensor, SparseTensor):
        yield _SPARSE_CONSTANTS
    yield _ELEMENT_TYPES.get(tensor.dtype, OLDEST)
    yield from _metadata_needs(tensor)


def _value_needs(values: Iterable[ir.Value]) -> Iterator[int]:
    for value in values:
        yield from _metadata_needs(value)
        if value.type is not None:
            yield from _type_needs(value.type)
        if value._metadata and value._metadata.get(QUANTIZATION_KEY):
            yield _QUANTIZATION_ANNOTATIONS


def _type_needs(kind: ir.TypeProtocol | None) -> Iterator[int]:
    if isinstance(kind, (ir.SparseTensorType, ir.OptionalType)):
        yield _SPARSE_AND_OPTIONAL_TYPES
    if isinstance(kind, (ir.SequenceType, ir.OptionalType, MapType)):
        yield from _type_needs(kind.elem_type)
    elif kind is not None:
        yield _ELEMENT_TYPES.get(kind.dtype, OLDEST)


def _metadata_needs(holder: Any) -> Iterator[int]:
    if metadata_of(holder):
        yield _METADATA
