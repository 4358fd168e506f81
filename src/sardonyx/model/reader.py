"""From a protobuf message to a Model.

The reader asks each message for the fields that are present (``ListFields``), so that a field which is absent and one
which is empty stay two things, and compares what it understood with what the writer would make of it. What differs
goes into the records of `sardonyx.model.carry`. Messages that are known to be plain are not compared.
"""

from __future__ import annotations

import collections
import contextlib
import gc
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir import serde

from sardonyx.errors import InvalidModelError, ModelFileError
from sardonyx.model.carry import (
    KEY,
    QUANTIZATION_KEY,
    GraphRecord,
    MapType,
    ModelRecord,
    OpaqueType,
    Original,
    Stray,
    ValueRecord,
    differing,
    without,
)
from sardonyx.model.tensors import DATA_TYPES
from sardonyx.model.writer import (
    FUNCTION_INFO_VERSION,
    Inline,
    Writer,
    natural_annotations,
    natural_infos,
    write_annotation,
    write_function_head,
    write_graph_head,
    write_model_head,
    write_node_head,
    write_type,
    write_value,
)

_TYPE = ir.AttributeType
_ATTRIBUTE_TYPES = {int(kind): kind for kind in _TYPE}
_NODE_LISTS = ("attribute",)
_GRAPH_LISTS = (
    "node",
    "initializer",
    "sparse_initializer",
    "input",
    "output",
    "value_info",
    "quantization_annotation",
)
_OPTIONAL_NODE_FIELDS = {3: "name", 7: "domain", 8: "overload"}
_PLAIN_NODE_FIELDS = frozenset({1, 2, 3, 4, 5, 6, 7})
_EMPTY: tuple[()] = ()

# Which field of AttributeProto holds the value of each type.
_VALUE_FIELDS = {
    _TYPE.FLOAT: 2,
    _TYPE.INT: 3,
    _TYPE.STRING: 4,
    _TYPE.TENSOR: 5,
    _TYPE.GRAPH: 6,
    _TYPE.FLOATS: 7,
    _TYPE.INTS: 8,
    _TYPE.STRINGS: 9,
    _TYPE.TENSORS: 10,
    _TYPE.GRAPHS: 11,
    _TYPE.TYPE_PROTO: 14,
    _TYPE.TYPE_PROTOS: 15,
    _TYPE.SPARSE_TENSOR: 22,
    _TYPE.SPARSE_TENSORS: 23,
}
_TYPE_OF_FIELD = {number: kind for kind, number in _VALUE_FIELDS.items()}
_SCALARS = frozenset({_TYPE.FLOAT, _TYPE.INT, _TYPE.STRING})

Fields = dict[int, Any]
Scopes = list[dict[str, ir.Value]]


class TensorSource:
    """Where the tensors of a message have their contents; see `sardonyx.model.load`."""

    def tensor(self, proto: onnx.TensorProto) -> ir.TensorProtocol:
        """Makes a tensor of its message."""
        raise NotImplementedError


class Reader:
    """Builds a Model from a message.

    Args:
        source: Makes tensors of their messages.
        compare_all: Whether every message is compared with what the writer makes of it. Needed where there may be
            fields that this version of onnx does not know.
    """

    def __init__(self, source: TensorSource, compare_all: bool) -> None:
        self._source = source
        self._compare_all = compare_all
        self._writer = Writer(Inline(), FUNCTION_INFO_VERSION)
        self._types: dict[bytes, tuple[ir.DataType | None, ir.Shape | None, bool]] = {}
        self._ir_version = 0

    def model(self, proto: onnx.ModelProto) -> ir.Model:
        """Reads a whole model.

        Raises:
            InvalidModelError: Names are defined twice, or a type is none of ONNX's.
        """
        self._ir_version = proto.ir_version
        with _collector_paused():
            graph = self._graph(proto.graph, [])
            graph.opset_imports.update(_opsets(proto.opset_import))
            functions = [self._function(function) for function in proto.functions]
            fields = _fields(proto)
            model = ir.Model(
                graph,
                ir_version=proto.ir_version,
                producer_name=fields.get(2),
                producer_version=fields.get(3),
                domain=fields.get(4),
                model_version=fields.get(5),
                doc_string=fields.get(6),
                functions=functions,
                metadata_props=_metadata(proto.metadata_props),
                device_configurations=tuple(map(serde.deserialize_model_configuration, proto.configuration)),
            )
        if len(model.functions) != len(functions):
            names = collections.Counter(function.identifier() for function in functions)
            raise InvalidModelError("is defined twice.", where=f"function '{names.most_common(1)[0][0]}'")
        written = onnx.ModelProto()
        write_model_head(model, written)
        head = differing(without(proto, "graph", "functions", "training_info"), written)
        training_info = tuple(proto.training_info)
        if head is not None or training_info:
            _record(graph).model = ModelRecord(head, training_info)
        _resolve_device_configurations(model)
        return model

    def _graph(self, proto: onnx.GraphProto, scopes: Scopes) -> ir.Graph:
        infos = {info.name: info for info in proto.value_info}
        annotations = {annotation.tensor_name: annotation for annotation in proto.quantization_annotation}
        inputs = [self._value(info.name, info, "input") for info in proto.input]
        values: dict[str, ir.Value] = {value.name or "": value for value in inputs}
        initializers = self._initializers(proto, values, infos)
        scopes.append(values)
        nodes, explicit = self._nodes(proto.node, scopes, infos)
        outputs = []
        for info in proto.output:
            value = values.get(info.name)
            outputs.append(self._output(info, value, infos))
        scopes.pop()
        fields = _fields(proto)
        graph = ir.Graph(
            inputs,
            outputs,
            nodes=nodes,
            initializers=initializers,
            doc_string=fields.get(10),
            name=fields.get(2),
            metadata_props=_metadata(proto.metadata_props),
        )
        written = onnx.GraphProto()
        write_graph_head(graph, written)
        head = differing(without(proto, *_GRAPH_LISTS), written)
        if head is not None or explicit:
            carried = _record(graph)
            carried.head, carried.explicit = head, explicit
        self._list_infos(graph, proto.value_info, values, natural_infos(graph))
        if annotations:
            self._annotate(graph, proto, values)
        return graph
