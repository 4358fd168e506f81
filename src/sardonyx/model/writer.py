"""Conversion of a Model to a protobuf message.

The writer walks the graph and passes each tensor's contents to a `Placement`, so that one walk serves messages in
memory, skeletons without weights, and files whose contents are streamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import onnx
import onnx_ir as ir
from google.protobuf.message import Message

from sardonyx.errors import InvalidModelError, UnsupportedError
from sardonyx.model.carry import (
    QUANTIZATION_KEY,
    GraphRecord,
    Head,
    UnmatchedEntry,
    ValueRecord,
    copy_without,
    metadata_of,
    record,
)
from sardonyx.model.tensors import DetachedTensor, ProtoTensor, SparseTensor, attach
from sardonyx.model.types import write_type
from sardonyx.model.wire import RAW_DATA, length_field

FUNCTION_INFO_VERSION = 10
"""First IR version with a ``value_info`` in functions."""

_MAX_GRAPHS = 33
_CONTENTS = ("raw_data", "float_data", "int32_data", "int64_data", "uint64_data", "double_data")
_TYPE = ir.AttributeType


class Placement(Protocol):
    """Strategy that decides the destination of large tensors' contents.

    Attributes:
        min_bytes: The writer puts smaller contents into the message without calling `store`.
        references: True if a tensor in a data file of unknown folder stays a reference to the file.
    """

    min_bytes: int
    references: bool

    def store(self, message: onnx.TensorProto, tensor: ir.TensorProtocol, field: int | None, initializer: bool) -> bool:
        """Store the contents of a tensor.

        Args:
            message: The tensor's message, complete except for its contents.
            tensor: The tensor.
            field: The field of the message for the contents; None if the field's encoding differs from the contents in
                memory.
            initializer: True for an initializer, False for a tensor in an attribute.

        Returns:
            True if the contents were stored; otherwise the writer puts the contents into the message.
        """


class Inline:
    """Placement that leaves all contents in the message."""

    min_bytes = 1 << 63
    references = True

    def store(self, message: onnx.TensorProto, tensor: ir.TensorProtocol, field: int | None, initializer: bool) -> bool:
        """Leave the contents to the writer."""
        return False


class Writer:
    """Writer of the parts of a Model into messages.

    Args:
        placement: Strategy for the contents of tensors.
        ir_version: The model's IR version.
    """

    def __init__(self, placement: Placement, ir_version: int) -> None:
        self._placement = placement
        self._function_infos = ir_version >= FUNCTION_INFO_VERSION

    def model(self, model: ir.Model, message: onnx.ModelProto) -> None:
        """Write a whole model."""
        write_model_head(model, message)
        self.graph(model.graph, message.graph)
        message.graph.SetInParent()
        for function in model.functions.values():
            self.function(function, message.functions.add())
        graph_record = record(model.graph)
        if graph_record is not None and graph_record.model is not None:
            if graph_record.model.head is not None:
                graph_record.model.head.restore(message)
            message.training_info.extend(graph_record.model.training_info)

    def graph(self, graph: ir.Graph, message: onnx.GraphProto, depth: int = 1) -> None:
        """Write a graph and its nested graphs."""
        if depth > _MAX_GRAPHS:
            raise UnsupportedError(
                f"nests graphs more than {_MAX_GRAPHS} deep, the limit of a protobuf file.",
                where=f"graph '{graph.name}'",
                remedy="Move inner bodies into functions of the model.",
            )
        graph_record: GraphRecord | None = record(graph)
        write_graph_head(graph, message)
        for value in graph.inputs:
            write_value(value, message.input.add(), "input")
        for value in graph.initializers.data.values():
            self._initializer(value, message)
        self._nodes(graph, message.node, graph_record, depth)
        for value in graph.outputs:
            write_value(value, message.output.add(), "output")
        _write_infos(_list_infos(graph, default=True), message.value_info, graph_record)
        _write_annotations(graph, message, graph_record)
        if graph_record is not None and graph_record.head is not None:
            graph_record.head.restore(message)

    def function(self, function: ir.Function, message: onnx.FunctionProto) -> None:
        """Write a function of the model."""
        graph_record: GraphRecord | None = record(function.graph)
        write_function_head(function, message)
        for attribute in function.attributes.values():
            if attribute.value is not None or attribute.is_ref():
                self.attribute(attribute, message.attribute_proto.add(), 1)
        self._nodes(function.graph, message.node, graph_record, 1)
        infos = _list_infos(function.graph, default=self._function_infos, function=True)
        _write_infos(infos, message.value_info, graph_record)
        if graph_record is not None and graph_record.head is not None:
            graph_record.head.restore(message)

    def _nodes(self, graph: ir.Graph, messages: Any, graph_record: GraphRecord | None, depth: int) -> None:
        explicit = graph_record.explicit if graph_record is not None else frozenset[str]()
        for node in graph:
            message = messages.add()
            try:
                write_node_head(node, message, explicit)
                for attribute in node.attributes.data.values():
                    self.attribute(attribute, message.attribute.add(), depth)
            except (TypeError, ValueError, AttributeError) as error:
                raise InvalidModelError(
                    f"cannot be written: {error}.", where=f"node '{node.name}' ({node.op_type})"
                ) from error
            head_record = record(node)
            if head_record is not None:
                head_record.restore(message)

    def _initializer(self, value: ir.Value, message: onnx.GraphProto) -> None:
        tensor = value.const_value
        if tensor is None:
            raise InvalidModelError(
                "is an initializer without contents.",
                where=f"value '{value.name}'",
                remedy="Set its const_value, or remove the value from the graph's initializers.",
            )
        if type(tensor) is SparseTensor:
            self.sparse_tensor(tensor, message.sparse_initializer.add(), value.name)
        else:
            self.tensor(tensor, message.initializer.add(), value.name, initializer=True)

    def attribute(self, attribute: ir.Attr, message: onnx.AttributeProto, depth: int) -> None:
        """Write an attribute of a node or the default of a function's attribute."""
        write_attribute_head(attribute, message)
        kind = attribute.type
        value = attribute.value
        if attribute.is_ref():
            message.ref_attr_name = attribute.ref_attr_name or ""
        elif kind is _TYPE.INTS:
            message.ints.extend(value)
        elif kind is _TYPE.INT:
            message.i = value
        elif kind is _TYPE.FLOAT:
            message.f = value
        elif kind is _TYPE.STRING:
            message.s = _encode(value)
        elif kind is _TYPE.TENSOR:
            self.tensor(value, message.t, value.name or "")
        elif kind is _TYPE.GRAPH:
            message.g.SetInParent()
            self.graph(value, message.g, depth + 1)
        elif kind is _TYPE.FLOATS:
            message.floats.extend(value)
        elif kind is _TYPE.STRINGS:
            message.strings.extend(map(_encode, value))
        elif kind is _TYPE.TENSORS:
            for tensor in value:
                self.tensor(tensor, message.tensors.add(), tensor.name or "")
        elif kind is _TYPE.GRAPHS:
            for graph in value:
                self.graph(graph, message.graphs.add(), depth + 1)
        elif kind is _TYPE.SPARSE_TENSOR:
            self.sparse_tensor(value, message.sparse_tensor, value.name)
        elif kind is _TYPE.SPARSE_TENSORS:
            for tensor in value:
                self.sparse_tensor(tensor, message.sparse_tensors.add(), tensor.name)
        elif kind is _TYPE.TYPE_PROTO:
            message.tp.SetInParent()
            write_type(value.type, value.shape, message.tp)
        elif kind is _TYPE.TYPE_PROTOS:
            for item in value:
                write_type(item.type, item.shape, message.type_protos.add())
        attribute_record = record(attribute)
        if attribute_record is not None:
            attribute_record.restore(message)

    def sparse_tensor(self, tensor: SparseTensor, message: onnx.SparseTensorProto, name: str | None) -> None:
        """Write a sparse tensor under a name."""
        message.MergeFrom(tensor.head)
        self.tensor(tensor.values, message.values, name or "")
        self.tensor(tensor.indices, message.indices, tensor.indices.name or "")
        message.dims.extend(tensor.shape.numpy())

    def tensor(
        self, tensor: ir.TensorProtocol, message: onnx.TensorProto, name: str | None, initializer: bool = False
    ) -> None:
        """Write a tensor under a name."""
        message.SetInParent()
        if isinstance(tensor, ProtoTensor):
            self._proto_tensor(tensor, message, initializer)
        elif tensor.dtype is ir.DataType.STRING:
            head = record(tensor)
            if isinstance(head, Head):
                message.CopyFrom(head.proto)
            else:
                _write_tensor_head(tensor, message)
                message.string_data.extend(_encode(text) for text in tensor.string_data())  # type: ignore[attr-defined]
        elif isinstance(tensor, DetachedTensor) and self._placement.references and not tensor.base_dir:
            message.CopyFrom(tensor.head)
        else:
            self._contents(tensor, message, initializer)
        if message.name != (name or ""):
            message.name = name or ""

    def _proto_tensor(self, tensor: ProtoTensor, message: onnx.TensorProto, initializer: bool) -> None:
        proto = tensor.raw
        if proto.ByteSize() >= self._placement.min_bytes:
            message.MergeFrom(copy_without(proto, *_CONTENTS))
            field = RAW_DATA if proto.HasField("raw_data") else None
            if self._placement.store(message, tensor, field, initializer):
                return
        message.CopyFrom(proto)

    def _contents(self, tensor: ir.TensorProtocol, message: onnx.TensorProto, initializer: bool) -> None:
        field = RAW_DATA
        if isinstance(tensor, ir.ExternalTensor):
            tensor = attach(tensor)
            field = tensor.payload.field
            message.CopyFrom(tensor.head)
            _update_tensor_head(tensor, message)
        elif isinstance(head := record(tensor), Head):
            field = head.field
            message.CopyFrom(head.proto)
            _update_tensor_head(tensor, message)
        else:
            _write_tensor_head(tensor, message)
        if tensor.nbytes >= self._placement.min_bytes and self._placement.store(message, tensor, field, initializer):
            return
        write_contents(message, tensor.tobytes(), field)


def write_model_head(model: ir.Model, message: onnx.ModelProto) -> None:
    """Write a model except for its graph, functions and training information."""
    message.ir_version = model.ir_version
    _write_optional(message, model, ("producer_name", "producer_version", "domain", "model_version", "doc_string"))
    _write_opsets(model.opset_imports, message.opset_import)
    _write_metadata(metadata_of(model), message.metadata_props)
    for configuration in model.device_configurations:
        message.configuration.append(ir.serde.serialize_model_configuration(configuration))


def write_graph_head(graph: ir.Graph, message: onnx.GraphProto) -> None:
    """Write a graph except for its nodes, tensors and values."""
    _write_optional(message, graph, ("name", "doc_string"))
    _write_metadata(metadata_of(graph), message.metadata_props)


def write_function_head(function: ir.Function, message: onnx.FunctionProto) -> None:
    """Write a function except for its nodes, values and attributes with defaults."""
    message.name = function.name
    message.domain = function.domain
    if function.overload:
        message.overload = function.overload
    _write_optional(message, function, ("doc_string",))
    message.input.extend(value.name or "" for value in function.inputs)
    message.output.extend(value.name or "" for value in function.outputs)
    for attribute in function.attributes.values():
        if attribute.value is None and not attribute.is_ref():
            message.attribute.append(attribute.name)
    _write_opsets(function.opset_imports, message.opset_import)
    _write_metadata(metadata_of(function.graph), message.metadata_props)


def write_node_head(node: ir.Node, message: onnx.NodeProto, explicit: frozenset[str] = frozenset()) -> None:
    """Write a node except for its attributes.

    Args:
        node: The node.
        message: The message.
        explicit: Fields that are written even if empty.
    """
    message.op_type = node.op_type
    if node.name or "name" in explicit:
        message.name = node.name or ""
    if node.domain or "domain" in explicit:
        message.domain = node.domain
    if node.overload or "overload" in explicit:
        message.overload = node.overload
    if node.doc_string is not None:
        message.doc_string = node.doc_string
    message.input.extend(["" if value is None else value.name or "" for value in node.inputs])
    message.output.extend([value.name or "" for value in node.outputs])
    props = metadata_of(node)
    if props:
        _write_metadata(props, message.metadata_props)
    for configuration in node.device_configurations:
        message.device_configurations.append(ir.serde.serialize_node_device_configuration(configuration))


def write_attribute_head(attribute: ir.Attr, message: onnx.AttributeProto) -> None:
    """Write an attribute except for its value."""
    message.name = attribute.name
    message.type = attribute.type  # type: ignore[assignment]
    if attribute.doc_string is not None:
        message.doc_string = attribute.doc_string


def write_contents(message: onnx.TensorProto, contents: bytes, field: int) -> None:
    """Write a tensor's contents, in little-endian order, into the given field of its message."""
    if field == RAW_DATA:
        message.raw_data = contents
    else:
        message.MergeFromString(length_field(field, contents))


def write_value(value: ir.Value, message: onnx.ValueInfoProto, section: str) -> None:
    """Write a value as an entry of one of a graph's lists.

    Args:
        value: The value.
        message: The message.
        section: The list: "input", "output" or "value_info"; "" ignores the original forms of the entry.
    """
    message.name = value.name or ""
    if value.type is not None:
        write_type(value.type, value.shape, message.type)
    if value.doc_string is not None:
        message.doc_string = value.doc_string
    _write_metadata(metadata_of(value), message.metadata_props)
    value_record: ValueRecord | None = record(value)
    if value_record is not None and section in value_record.forms:
        value_record.forms[section].restore(message)


def list_default_infos(graph: ir.Graph, function: bool = False) -> list[ir.Value]:
    """Return the values that the writer lists in ``value_info`` by default, in order.

    The list consists of outputs of nodes with known type, metadata or text, except graph outputs; in a function, also
    of its inputs and outputs. Initializers are omitted: their tensors state type and shape.
    """
    values = list(graph.inputs) if function else []
    values += [value for node in graph for value in node.outputs if function or not value.is_graph_output()]
    return [value for value in values if value.name and _is_known(value)]


def list_default_annotations(graph: ir.Graph) -> list[ir.Value]:
    """Return the values with a quantization annotation, in the order in which the writer lists the values."""
    values = [*graph.inputs, *graph.initializers.data.values(), *(value for node in graph for value in node.outputs)]
    return [value for value in dict.fromkeys(values) if value._metadata and value._metadata.get(QUANTIZATION_KEY)]


def write_annotation(value: ir.Value, message: onnx.TensorAnnotation) -> None:
    """Write the quantization annotation of a value."""
    message.tensor_name = value.name or ""
    _write_metadata(value.meta[QUANTIZATION_KEY], message.quant_parameter_tensor_names)
    value_record: ValueRecord | None = record(value)
    if value_record is not None and value_record.annotation is not None:
        value_record.annotation.restore(message)


def _list_infos(graph: ir.Graph, default: bool, function: bool = False) -> list[tuple[int | None, ir.Value]]:
    """Return the values to list in ``value_info``, each with its index in the original file's list."""
    entries: list[tuple[int | None, ir.Value]] = []
    listed = set(list_default_infos(graph, function)) if default else set()
    graph_record: GraphRecord | None = record(graph)
    if graph_record is not None and graph_record.listable is not None:
        listed = {value for value in listed if value.name in graph_record.listable}
    nodes = (value for node in graph for value in node.outputs)
    for value in dict.fromkeys((*graph.inputs, *graph.initializers.data.values(), *nodes)):
        value_record: ValueRecord | None = record(value)
        index = None if value_record is None else value_record.listed
        if index is not None or value in listed:
            entries.append((index, value))
    return entries


def _write_infos(entries: list[tuple[int | None, ir.Value]], messages: Any, graph_record: GraphRecord | None) -> None:
    unmatched = graph_record.infos if graph_record is not None else ()
    names = {value.name for _, value in entries} if unmatched else set()
    for entry in _merge_in_order(
        entries, [entry for entry in unmatched if entry.always or entry.message.name not in names]
    ):
        if isinstance(entry, UnmatchedEntry):
            messages.append(entry.message)
        else:
            write_value(entry, messages.add(), "value_info")


def _write_annotations(graph: ir.Graph, message: onnx.GraphProto, graph_record: GraphRecord | None) -> None:
    entries: list[tuple[int | None, ir.Value]] = []
    for value in list_default_annotations(graph):
        value_record: ValueRecord | None = record(value)
        entries.append((None if value_record is None else value_record.annotated, value))
    unmatched = graph_record.annotations if graph_record is not None else ()
    names = {value.name for _, value in entries}
    for entry in _merge_in_order(
        entries, [entry for entry in unmatched if entry.always or entry.message.tensor_name not in names]
    ):
        if isinstance(entry, UnmatchedEntry):
            message.quantization_annotation.append(entry.message)
        else:
            write_annotation(entry, message.quantization_annotation.add())


def _merge_in_order(
    entries: list[tuple[int | None, ir.Value]], unmatched: list[UnmatchedEntry]
) -> Iterable[ir.Value | UnmatchedEntry]:
    """Return the entries that have an index in the original file, in its order, followed by the others."""
    indexed: list[tuple[int, ir.Value | UnmatchedEntry]] = [
        (index, value) for index, value in entries if index is not None
    ]
    indexed += [(entry.index, entry) for entry in unmatched]
    indexed.sort(key=lambda pair: pair[0])
    return [*(entry for _, entry in indexed), *(value for index, value in entries if index is None)]


def _is_known(value: ir.Value) -> bool:
    return value.type is not None or bool(metadata_of(value)) or value.doc_string is not None


def _write_tensor_head(tensor: ir.TensorProtocol, message: onnx.TensorProto) -> None:
    message.dims.extend(tensor.shape.numpy())
    message.data_type = tensor.dtype.value
    _write_optional(message, tensor, ("name", "doc_string"))
    _write_metadata(tensor.metadata_props, message.metadata_props)


def _update_tensor_head(tensor: ir.TensorProtocol, message: onnx.TensorProto) -> None:
    if (tensor.doc_string or "") != message.doc_string:
        message.doc_string = tensor.doc_string or ""
    props = metadata_of(tensor) or {}
    if props != {entry.key: entry.value for entry in message.metadata_props}:
        message.ClearField("metadata_props")
        _write_metadata(props, message.metadata_props)


def _write_opsets(opsets: Mapping[str, int], messages: Any) -> None:
    for domain, version in opsets.items():
        messages.add(domain=domain, version=version) if domain else messages.add(version=version)


def _write_metadata(props: Mapping[str, str] | None, messages: Any) -> None:
    if props:
        for key, text in props.items():
            messages.add(key=key, value=text)


def _write_optional(message: Message, holder: Any, names: Iterable[str]) -> None:
    for name in names:
        value = getattr(holder, name)
        if value is not None:
            setattr(message, name, value)


def _encode(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()
