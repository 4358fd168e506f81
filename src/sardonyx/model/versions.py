"""The version of the ONNX file format (IR version) that a model needs.

Sources: the version comments of onnx.proto, and ``onnx.helper.VERSION_TABLE`` for operator sets.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import onnx
import onnx_ir as ir
from onnx.helper import OP_SET_ID_VERSION_MAP

from sardonyx.model.carry import QUANTIZATION_KEY, metadata_of, record
from sardonyx.model.tensors import SparseTensor
from sardonyx.model.types import MapType
from sardonyx.model.writer import FUNCTION_INFO_VERSION, list_default_infos

OLDEST = 3
"""First IR version with operator sets; files of older versions are not written."""

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
_GRAPH_ATTRIBUTES = frozenset({ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS})
_TYPE_ATTRIBUTES = frozenset({ir.AttributeType.TYPE_PROTO, ir.AttributeType.TYPE_PROTOS})
_VERSIONED_ATTRIBUTES = (
    _GRAPH_ATTRIBUTES
    | _TYPE_ATTRIBUTES
    | {
        ir.AttributeType.TENSOR,
        ir.AttributeType.TENSORS,
        ir.AttributeType.SPARSE_TENSOR,
        ir.AttributeType.SPARSE_TENSORS,
    }
)
"""Attribute types whose value may use a feature of a later IR version."""


@functools.cache
def ir_version_of_opset(domain: str, version: int) -> int:
    """Return the IR version that was released with an operator set.

    Args:
        domain: The domain of the operator set; "" is ONNX's own.
        version: Version of the operator set.

    Returns:
        The IR version of the first onnx release with the operator set; `OLDEST` for domains outside ONNX, and the
        newest IR version for operator sets newer than the onnx package.
    """
    releases = sorted(
        (opset, ir_version)
        for (name, opset), ir_version in OP_SET_ID_VERSION_MAP.items()
        if name == (domain or "ai.onnx")
    )
    if not releases:
        return OLDEST
    return next((ir_version for opset, ir_version in releases if opset >= version), int(onnx.IR_VERSION))


def lowest_ir_version(model: ir.Model) -> int:
    """Return the lowest IR version that can represent a model.

    Args:
        model: The model; its own ``ir_version`` counts for features with a version-dependent meaning: known types of
            values in functions are written from IR version 10 on, and callers may override initializers among the
            inputs from IR version 4 on.

    Returns:
        The IR version; all features of the model exist in this version.
    """
    return _Requirements(model).highest()


def lower_ir_version(model: ir.Model) -> None:
    """Set the lowest IR version that can represent a model, in place, for as many readers as possible.

    A version already lower, as some exporters write, is not changed.
    """
    model.ir_version = min(model.ir_version, lowest_ir_version(model))


class _Requirements:
    """Requirements of the parts of a model, collected in one walk.

    Attributes:
        versions: IR versions that introduced parts of the model.
        dtypes: Element types of its values and tensors.
    """

    def __init__(self, model: ir.Model) -> None:
        self.versions = {OLDEST}
        self.dtypes: set[ir.DataType] = set()
        self._opsets(model.opset_imports)
        if model.device_configurations:
            self.versions.add(_DEVICES)
        graph_record = record(model.graph)
        if graph_record is not None and graph_record.model is not None and graph_record.model.training_info:
            self.versions.add(_TRAINING_INFO)
        self._graph(model.graph, overridable=model.ir_version >= _INITIALIZERS_WITHOUT_INPUTS)
        for function in model.functions.values():
            self._function(function, model.ir_version)

    def highest(self) -> int:
        """Return the IR version that meets all requirements."""
        return max(*self.versions, *(_ELEMENT_TYPES.get(dtype, OLDEST) for dtype in self.dtypes), OLDEST)

    def _opsets(self, imports: Mapping[str, int]) -> None:
        self.versions.update(ir_version_of_opset(domain, version) for domain, version in imports.items())

    def _function(self, function: ir.Function, ir_version: int) -> None:
        self.versions.add(_FUNCTIONS)
        self._opsets(function.opset_imports)
        if function.overload:
            self.versions.add(_OVERLOADS)
        if any(attribute.value is not None for attribute in function.attributes.values()):
            self.versions.add(_ATTRIBUTE_DEFAULTS)
        if ir_version >= FUNCTION_INFO_VERSION and list_default_infos(function.graph, function=True):
            self.versions.add(FUNCTION_INFO_VERSION)
        self._graph(function.graph)

    def _graph(self, graph: ir.Graph, *, overridable: bool = False) -> None:
        self._metadata(graph)
        for value in graph.initializers.data.values():
            if overridable or not value.is_graph_input():
                self.versions.add(_INITIALIZERS_WITHOUT_INPUTS)
            if value.const_value is not None:
                self._tensor(value.const_value)
        for values in (graph.inputs, graph.outputs, graph.initializers.data.values()):
            self._values(values)
        outputs: list[ir.Value] = []
        for node in graph:
            if node._metadata_props:
                self.versions.add(_METADATA)
            outputs += node.outputs
            if node.overload:
                self.versions.add(_OVERLOADS)
            if node.device_configurations:
                self.versions.add(_DEVICES)
            for attribute in node.attributes.data.values():
                if attribute.type in _VERSIONED_ATTRIBUTES and not attribute.is_ref():
                    self._attribute(attribute)
        self._values(outputs)

    def _attribute(self, attribute: ir.Attr) -> None:
        values = attribute.value if isinstance(attribute.value, (tuple, list)) else (attribute.value,)
        for value in values:
            if attribute.type in _GRAPH_ATTRIBUTES:
                self._graph(value)
            elif attribute.type in _TYPE_ATTRIBUTES:
                self._type(value.type)
            else:
                self._tensor(value)

    def _tensor(self, tensor: ir.TensorProtocol) -> None:
        if type(tensor) is SparseTensor:
            self.versions.add(_SPARSE_CONSTANTS)
        self.dtypes.add(tensor.dtype)
        self._metadata(tensor)

    def _values(self, values: Iterable[ir.Value]) -> None:
        for value in values:
            if value._metadata_props:
                self.versions.add(_METADATA)
            kind = value.type
            if type(kind) is ir.TensorType:
                self.dtypes.add(kind.dtype)
            else:
                self._type(kind)
            if value._metadata and value._metadata.get(QUANTIZATION_KEY):
                self.versions.add(_QUANTIZATION_ANNOTATIONS)

    def _type(self, kind: ir.TypeProtocol | None) -> None:
        if isinstance(kind, (ir.SparseTensorType, ir.OptionalType)):
            self.versions.add(_SPARSE_AND_OPTIONAL_TYPES)
        if isinstance(kind, (ir.SequenceType, ir.OptionalType, MapType)):
            self._type(kind.elem_type)
        elif kind is not None:
            self.dtypes.add(kind.dtype)

    def _metadata(self, holder: Any) -> None:
        if metadata_of(holder):
            self.versions.add(_METADATA)
