"""From a Model to a protobuf message.

The writer walks the graph and asks a `Placement` what becomes of each tensor's contents, so that one walk serves
messages in memory, skeletons without weights, and files whose contents are streamed.
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
    Stray,
    ValueRecord,
    metadata_of,
    record,
    without,
)
from sardonyx.model.tensors import DetachedTensor, ProtoTensor, SparseTensor, attach
from sardonyx.model.types import write_type
from sardonyx.model.wire import RAW_DATA, length_field

FUNCTION_INFO_VERSION = 10
"""The IR version that gave functions a ``value_info`` of their own."""

_MAX_GRAPHS = 33
_CONTENTS = ("raw_data", "float_data", "int32_data", "int64_data", "uint64_data", "double_data")
_TYPE = ir.AttributeType


class Placement(Protocol):
    """Decides where the contents of large tensors go.

    Attributes:
        least: Tensors of fewer bytes are written into the message without asking.
        references: Whether a tensor in a data file that is not known stays a reference to it.
    """

    least: int
    references: bool

    def place(self, message: onnx.TensorProto, tensor: ir.TensorProtocol, field: int | None, initializer: bool) -> bool:
        """Places the contents of a tensor.

        Args:
            message: The tensor's message, complete but for its contents.
            tensor: The tensor.
            field: The field of the message that the contents would have; None where their encoding there is not
                the contents as they are in memory.
            initializer: Whether the tensor is an initializer, and not in an attribute.

        Returns:
            Whether the contents were placed; where not, the writer puts them into the message.
        """


class Inline:
    """Puts all contents into the message."""

    least = 1 << 63
    references = True

    def place(self, message: onnx.TensorProto, tensor: ir.TensorProtocol, field: int | None, initializer: bool) -> bool:
        """Leaves the contents to the writer."""
        return False


class Writer:
    """Writes the parts of a Model into messages.

    Args:
        placement: Where the contents of tensors go.
        ir_version: The model's IR version.
    """

    def __init__(self, placement: Placement, ir_version: int) -> None:
        self._placement = placement
        self._function_infos = ir_version >= FUNCTION_INFO_VERSION

    def model(self, model: ir.Model, message: onnx.ModelProto) -> None:
        """Writes a whole model."""
        write_model_head(model, message)
        self.graph(model.graph, message.graph)
        message.graph.SetInParent()
        for function in model.functions.values():
            self.function(function, message.functions.add())
        carried = record(model.graph)
        if carried is not None and carried.model is not None:
            if carried.model.head is not None:
                carried.model.head.restore(message)
            message.training_info.extend(carried.model.training_info)

    def graph(self, graph: ir.Graph, message: onnx.GraphProto, depth: int = 1) -> None:
        """Writes a graph and all within it."""
        if depth > _MAX_GRAPHS:
            raise UnsupportedError(
                f"nests graphs more than {_MAX_GRAPHS} deep, which a protobuf file cannot hold.",
                where=f"graph '{graph.name}'",
                remedy="Move inner bodies into functions of the model.",
            )
        carried: GraphRecord | None = record(graph)
        write_graph_head(graph, message)
        for value in graph.inputs:
            write_value(value, message.input.add(), "input")
        for value in graph.initializers.data.values():
            self._initializer(value, message)
        self._nodes(graph, message.node, carried, depth)
        for value in graph.outputs:
            write_value(value, message.output.add(), "output")
        _write_infos(_listed(graph, natural=True), message.value_info, carried)
        _write_annotations(graph, message, carried)
        if carried is not None and carried.head is not None:
            carried.head.restore(message)

    def function(self, function: ir.Function, message: onnx.FunctionProto) -> None:
        """Writes a function of the model."""
        carried: GraphRecord | None = record(function.graph)
        write_function_head(function, message)
        for attribute in function.attributes.values():
            if attribute.value is not None or attribute.is_ref():
                self.attribute(attribute, message.attribute_proto.add(), 1)
        self._nodes(function.graph, message.node, carried, 1)
        _write_infos(_listed(function.graph, natural=self._function_infos, function=True), message.value_info, carried)
        if carried is not None and carried.head is not None:
            carried.head.restore(message)

    def _nodes(self, graph: ir.Graph, messages: Any, carried: GraphRecord | None, depth: int) -> None:
        explicit = carried.explicit if carried is not None else frozenset[str]()
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
            restored = record(node)
            if restored is not None:
                restored.restore(message)

    def _initializer(self, value: ir.Value, message: onnx.GraphProto) -> None:
        tensor = value.const_value
        if tensor is None:
            raise InvalidModelError(
                "is an initializer without contents.",
                where=f"value '{value.name}'",
                remedy="Give it a const_value, or remove it from the graph's initializers.",
            )
        if type(tensor) is SparseTensor:
            self.sparse_tensor(tensor, message.sparse_initializer.add(), value.name)
        else:
            self.tensor(tensor, message.initializer.add(), value.name, initializer=True)

    def attribute(self, attribute: ir.Attr, message: onnx.AttributeProto, depth: int) -> None:
        """Writes an attribute of a node or a default of a function's."""
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
            message.s = _encoded(value)
        elif kind is _TYPE.TENSOR:
            self.tensor(value, message.t, value.name or "")
        elif kind is _TYPE.GRAPH:
            message.g.SetInParent()
            self.graph(value, message.g, depth + 1)
        elif kind is _TYPE.FLOATS:
            message.floats.extend(value)
        elif kind is _TYPE.STRINGS:
            message.strings.extend(map(_encoded, value))
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
        carried = record(attribute)
        if carried is not None:
            carried.restore(message)

    def sparse_tensor(self, tensor: SparseTensor, message: onnx.SparseTensorProto, name: str | None) -> None:
        """Writes a sparse tensor under a name."""
        message.MergeFrom(tensor.head)
        self.tensor(tensor.values, message.values, name or "")
        self.tensor(tensor.indices, message.indices, tensor.indices.name or "")
        message.dims.extend(tensor.shape.numpy())

    def tensor(
        self, tensor: ir.TensorProtocol, message: onnx.TensorProto, name: str | None, initializer: bool = False
    ) -> None:
        """Writes a tensor under a name."""
        message.SetInParent()
        if isinstance(tensor, ProtoTensor):
            self._proto_tensor(tensor, message, initializer)
        elif tensor.dtype is ir.DataType.STRING:
            head = record(tensor)
            if isinstance(head, Head):
                message.CopyFrom(head.proto)
            else:
                _write_tensor_head(tensor, message)
                message.string_data.extend(_encoded(text) for text in tensor.string_data())  # type: ignore[attr-defined]
        elif isinstance(tensor, DetachedTensor) and self._placement.references and not tensor.base_dir:
            message.CopyFrom(tensor.head)
        else:
            self._contents(tensor, message, initializer)
        if message.name != (name or ""):
            message.name = name or ""

    def _proto_tensor(self, tensor: ProtoTensor, message: onnx.TensorProto, initializer: bool) -> None:
        proto = tensor.raw
        if proto.ByteSize() >= self._placement.least:
            message.MergeFrom(without(proto, *_CONTENTS))
            field = RAW_DATA if proto.HasField("raw_data") else None
            if self._placement.place(message, tensor, field, initializer):
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
        if tensor.nbytes >= self._placement.least and self._placement.place(message, tensor, field, initializer):
            return
        write_contents(message, tensor.tobytes(), field)


def write_model_head(model: ir.Model, message: onnx.ModelProto) -> None:
    """Writes all of a model but its graph, functions and training information."""
    message.ir_version = model.ir_version
    _write_optional(message, model, ("producer_name", "producer_version", "domain", "model_version", "doc_string"))
    _write_opsets(model.opset_imports, message.opset_import)
    _write_metadata(metadata_of(model), message.metadata_props)
    for configuration in model.device_configurations:
        message.configuration.append(ir.serde.serialize_model_configuration(configuration))


def write_graph_head(graph: ir.Graph, message: onnx.GraphProto) -> None:
    """Writes all of a graph but its nodes, tensors and values."""
    _write_optional(message, graph, ("name", "doc_string"))
    _write_metadata(metadata_of(graph), message.metadata_props)


def write_function_head(function: ir.Function, message: onnx.FunctionProto) -> None:
    """Writes all of a function but its nodes, values and attributes with defaults."""
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
    """Writes all of a node but its attributes.

    Args:
        node: The node.
        message: The message.
        explicit: Fields that are written even where they are empty.
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
    """Writes all of an attribute but its value."""
    message.name = attribute.name
    message.type = attribute.type  # type: ignore[assignment]
    if attribute.doc_string is not None:
        message.doc_string = attribute.doc_string


def write_contents(message: onnx.TensorProto, contents: bytes, field: int) -> None:
    """Puts a tensor's contents, in little-endian order, into the field of its message that holds them."""
    if field == RAW_DATA:
        message.raw_data = contents
    else:
        message.MergeFromString(length_field(field, contents))


def write_value(value: ir.Value, message: onnx.ValueInfoProto, place: str) -> None:
    """Writes a value where it stands.

    Args:
        value: The value.
        message: The message.
        place: "input", "output" or "value_info".
    """
    message.name = value.name or ""
    if value.type is not None:
        write_type(value.type, value.shape, message.type)
    if value.doc_string is not None:
        message.doc_string = value.doc_string
    _write_metadata(metadata_of(value), message.metadata_props)
    carried: ValueRecord | None = record(value)
    if carried is not None and place in carried.forms:
        carried.forms[place].restore(message)


def natural_infos(graph: ir.Graph, function: bool = False) -> list[ir.Value]:
    """The values that the writer lists in ``value_info`` by itself, in its order.

    Those are the outputs of nodes about which something is known, graph outputs excepted; in a function, its inputs
    and outputs too. Initializers say themselves what they are.
    """
    values = list(graph.inputs) if function else []
    values += [value for node in graph for value in node.outputs if function or not value.is_graph_output()]
    return [value for value in values if value.name and _is_known(value)]


def natural_annotations(graph: ir.Graph) -> list[ir.Value]:
    """The values with a quantization annotation, in the order in which the writer lists them."""
    values = [*graph.inputs, *graph.initializers.data.values(), *(value for node in graph for value in node.outputs)]
    return [value for value in dict.fromkeys(values) if value._metadata and value._metadata.get(QUANTIZATION_KEY)]


def write_annotation(value: ir.Value, message: onnx.TensorAnnotation) -> None:
    """Writes the quantization annotation of a value."""
    message.tensor_name = value.name or ""
    _write_metadata(value.meta[QUANTIZATION_KEY], message.quant_parameter_tensor_names)
    carried: ValueRecord | None = record(value)
    if carried is not None and carried.annotation is not None:
        carried.annotation.restore(message)


def _listed(graph: ir.Graph, natural: bool, function: bool = False) -> list[tuple[int | None, ir.Value]]:
    """The values to list in ``value_info``, each with its place there where it has one of old."""
    entries: list[tuple[int | None, ir.Value]] = []
    by_nature = set(natural_infos(graph, function)) if natural else set()
    of_graph: GraphRecord | None = record(graph)
    if of_graph is not None and of_graph.listable is not None:
        by_nature = {value for value in by_nature if value.name in of_graph.listable}
    nodes = (value for node in graph for value in node.outputs)
    for value in dict.fromkeys((*graph.inputs, *graph.initializers.data.values(), *nodes)):
        carried: ValueRecord | None = record(value)
        place = None if carried is None else carried.listed
        if place is not None or value in by_nature:
            entries.append((place, value))
    return entries


def _write_infos(entries: list[tuple[int | None, ir.Value]], messages: Any, carried: GraphRecord | None) -> None:
    strays = carried.infos if carried is not None else ()
    names = {value.name for _, value in entries} if strays else set()
    for entry in _in_place(entries, [stray for stray in strays if stray.kept or stray.message.name not in names]):
        if isinstance(entry, Stray):
            messages.append(entry.message)
        else:
            write_value(entry, messages.add(), "value_info")


def _write_annotations(graph: ir.Graph, message: onnx.GraphProto, carried: GraphRecord | None) -> None:
    entries: list[tuple[int | None, ir.Value]] = []
    for value in natural_annotations(graph):
        of_value: ValueRecord | None = record(value)
        entries.append((None if of_value is None else of_value.annotated, value))
    strays = carried.annotations if carried is not None else ()
    names = {value.name for _, value in entries}
    for entry in _in_place(
        entries, [stray for stray in strays if stray.kept or stray.message.tensor_name not in names]
    ):
        if isinstance(entry, Stray):
            message.quantization_annotation.append(entry.message)
        else:
            write_annotation(entry, message.quantization_annotation.add())


def _in_place(entries: list[tuple[int | None, ir.Value]], strays: list[Stray]) -> Iterable[ir.Value | Stray]:
    """Puts what has a place of old in that order, and the rest after it."""
    placed: list[tuple[int, ir.Value | Stray]] = [(place, value) for place, value in entries if place is not None]
    placed += [(stray.place, stray) for stray in strays]
    placed.sort(key=lambda entry: entry[0])
    return [*(entry for _, entry in placed), *(value for place, value in entries if place is None)]


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


def _encoded(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()
