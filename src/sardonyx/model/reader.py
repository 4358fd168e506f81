"""Conversion of a protobuf message to a Model.

The reader asks each message for its present fields (``ListFields``), so that an absent field and an empty one stay
distinct, and compares the parsed object's written form with the message. Differences are stored in the records of
`sardonyx.model.carry`. Messages known to be plain are not compared.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import onnx
import onnx_ir as ir
from onnx_ir import serde

from sardonyx.errors import InvalidModelError, ModelFileError
from sardonyx.model.carry import (
    KEY,
    QUANTIZATION_KEY,
    GraphRecord,
    ModelRecord,
    UnmatchedEntry,
    ValueRecord,
    copy_without,
    record_original,
)
from sardonyx.model.tensors import SparseTensor
from sardonyx.model.types import read_type, write_type
from sardonyx.model.writer import (
    FUNCTION_INFO_VERSION,
    Inline,
    Writer,
    list_default_annotations,
    list_default_infos,
    write_annotation,
    write_attribute_head,
    write_function_head,
    write_graph_head,
    write_model_head,
    write_node_head,
    write_value,
)

_TYPE = ir.AttributeType
_ATTRIBUTE_TYPES = {int(kind): kind for kind in _TYPE}
_FUNCTION_LISTS = ("node", "attribute_proto", "value_info")
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
_USUAL_NODE_FIELDS = frozenset({1, 2, 3, 4, 5})
_NODE_TEXTS = (3, 4, 6, 7, 8)

# Fields of AttributeProto that hold the value of each type.
_NAMES = {
    _TYPE.FLOAT: "f",
    _TYPE.INT: "i",
    _TYPE.STRING: "s",
    _TYPE.TENSOR: "t",
    _TYPE.GRAPH: "g",
    _TYPE.FLOATS: "floats",
    _TYPE.INTS: "ints",
    _TYPE.STRINGS: "strings",
    _TYPE.TENSORS: "tensors",
    _TYPE.GRAPHS: "graphs",
    _TYPE.TYPE_PROTO: "tp",
    _TYPE.TYPE_PROTOS: "type_protos",
    _TYPE.SPARSE_TENSOR: "sparse_tensor",
    _TYPE.SPARSE_TENSORS: "sparse_tensors",
}
_VALUE_FIELDS = {kind: onnx.AttributeProto.DESCRIPTOR.fields_by_name[name].number for kind, name in _NAMES.items()}
_TYPE_OF_FIELD = {number: kind for kind, number in _VALUE_FIELDS.items()}
_WITH_CHILDREN = frozenset(
    {_TYPE.TENSOR, _TYPE.TENSORS, _TYPE.GRAPH, _TYPE.GRAPHS, _TYPE.SPARSE_TENSOR, _TYPE.SPARSE_TENSORS}
)
_NUMBERS = frozenset({_TYPE.INT, _TYPE.FLOAT, _TYPE.INTS, _TYPE.FLOATS})
_TYPED = frozenset({_TYPE.TYPE_PROTO, _TYPE.TYPE_PROTOS})
_LISTS = frozenset({_TYPE.FLOATS, _TYPE.INTS, _TYPE.STRINGS, _TYPE.TENSORS, _TYPE.GRAPHS, _TYPE.SPARSE_TENSORS})

Fields = dict[int, Any]
Scopes = list[dict[str, ir.Value]]


class TensorSource(Protocol):
    """Factory of tensors from their messages; see `sardonyx.model.load`."""

    def tensor(self, proto: onnx.TensorProto) -> ir.TensorProtocol:
        """Create a tensor from its message."""


class Reader:
    """Builder of a Model from a message.

    Args:
        source: Creates tensors from their messages.
        compare_all: True to compare every message with the writer's form, which is needed if there may be fields that
            this version of onnx does not know.
    """

    def __init__(self, source: TensorSource, compare_all: bool) -> None:
        self._source = source
        self._compare_all = compare_all
        self._writer = Writer(Inline(), FUNCTION_INFO_VERSION)
        self._types: dict[bytes, tuple[ir.TypeProtocol | None, ir.Shape | None, bool]] = {}
        self._configurations: dict[str, ir.ModelConfiguration] = {}
        self._function_infos = False
        self._doubtful: list[tuple[ir.Value, str, onnx.ValueInfoProto]] = []

    def model(self, proto: onnx.ModelProto) -> ir.Model:
        """Convert a whole model.

        Raises:
            ModelFileError: A tensor's contents contradict its shape, or may not be read.
            InvalidModelError: A name is defined twice, or a type is not an ONNX type.
        """
        if not proto.HasField("graph"):
            raise InvalidModelError("contains no graph.", where="the model")
        self._function_infos = proto.ir_version >= FUNCTION_INFO_VERSION
        configurations = tuple(map(serde.deserialize_model_configuration, proto.configuration))
        self._configurations = {configuration.name: configuration for configuration in configurations}
        graph = self._graph(proto.graph, [])
        graph.opset_imports.update(_opsets(proto.opset_import))
        functions = [self._function(function) for function in proto.functions]
        names = collections.Counter(function.identifier() for function in functions)
        if len(names) != len(functions):
            domain, name, _ = names.most_common(1)[0][0]
            raise InvalidModelError("is defined twice.", where=f"function '{name}' of domain '{domain}'")
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
            device_configurations=configurations,
        )
        written = onnx.ModelProto()
        write_model_head(model, written)
        head = record_original(copy_without(proto, "graph", "functions", "training_info"), written)
        training_info = tuple(proto.training_info)
        if head is not None or training_info:
            _graph_record(graph).model = ModelRecord(head, training_info)
        return model

    def _graph(self, proto: onnx.GraphProto, scopes: Scopes) -> ir.Graph:
        outer, self._doubtful = self._doubtful, []
        infos = {info.name: info for info in proto.value_info}
        inputs = [self._value(info, "input") for info in proto.input]
        values = {value.name: value for value in inputs if value.name}
        for value in inputs:
            if value.name in infos:
                self._doubtful.append((value, "value_info", infos[value.name]))
        initializers = self._initializers(proto, values, infos)
        scopes.append(values)
        nodes, explicit = self._nodes(proto.node, scopes, infos)
        scopes.pop()
        input_infos = {info.name: info for info in proto.input}
        _check_text([info.name for info in proto.output], "an output's name")
        outputs = [self._output(info, values.get(info.name), infos, input_infos) for info in proto.output]
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
        self._record_graph(graph, record_original(copy_without(proto, *_GRAPH_LISTS), written), explicit)
        self._record_infos(graph, proto.value_info, values, list_default_infos(graph))
        if proto.quantization_annotation:
            self._annotate(graph, proto.quantization_annotation, values)
        self._compare_values()
        self._doubtful = outer
        return graph

    def _function(self, proto: onnx.FunctionProto) -> ir.Function:
        infos = {info.name: info for info in proto.value_info}
        inputs = [
            self._value(infos[name], "value_info") if name in infos else ir.Value(name=name) for name in proto.input
        ]
        values = {value.name: value for value in inputs if value.name}
        nodes, explicit = self._nodes(proto.node, [values], infos)
        _check_text(proto.output, "the name of a function's output")
        fields = _fields(proto)
        graph = ir.Graph(
            inputs,
            [values.get(name) or ir.Value(name=name) for name in proto.output],
            nodes=nodes,
            doc_string=fields.get(8),
            opset_imports=_opsets(proto.opset_import),
            name=proto.name,
            metadata_props=_metadata(proto.metadata_props),
        )
        attributes = [self._attribute(attribute, []) for attribute in proto.attribute_proto]
        attributes += [ir.Attr(name, _TYPE.UNDEFINED, None) for name in proto.attribute]
        function = ir.Function(proto.domain, proto.name, proto.overload, graph=graph, attributes=attributes)
        written = onnx.FunctionProto()
        write_function_head(function, written)
        self._record_graph(graph, record_original(copy_without(proto, *_FUNCTION_LISTS), written), explicit)
        default = list_default_infos(graph, function=True) if self._function_infos else []
        self._record_infos(graph, proto.value_info, values, default)
        self._compare_values()
        return function

    def _initializers(
        self, proto: onnx.GraphProto, values: dict[str, ir.Value], infos: dict[str, onnx.ValueInfoProto]
    ) -> list[ir.Value]:
        tensors: list[ir.TensorProtocol] = [self._source.tensor(tensor) for tensor in proto.initializer]
        tensors += [self._sparse_tensor(tensor) for tensor in proto.sparse_initializer]
        initializers: dict[str, ir.Value] = {}
        for tensor in tensors:
            name = tensor.name
            if not name:
                raise InvalidModelError("contains an initializer without a name.", where=f"graph '{proto.name}'")
            if name in initializers:
                raise InvalidModelError("is defined twice.", where=f"graph '{proto.name}', initializer '{name}'")
            value = values.get(name)
            if value is not None:
                value.const_value = tensor
            else:
                shape = tensor.shape if isinstance(tensor.shape, ir.Shape) else ir.Shape(tensor.shape.numpy())
                value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
                if name in infos:
                    self._describe(value, infos[name], "value_info")
                values[name] = value
            initializers[name] = value
        return list(initializers.values())

    def _sparse_tensor(self, proto: onnx.SparseTensorProto) -> SparseTensor:
        if not (proto.HasField("values") and proto.HasField("indices")):
            raise InvalidModelError("lacks its values or its indices.", where=f"sparse tensor '{proto.values.name}'")
        if any(size < 0 for size in proto.dims):
            raise InvalidModelError("has a negative size in its shape.", where=f"sparse tensor '{proto.values.name}'")
        values, indices = self._source.tensor(proto.values), self._source.tensor(proto.indices)
        return SparseTensor(values, indices, proto.dims, copy_without(proto, "values", "indices", "dims"))

    def _nodes(
        self, protos: Sequence[onnx.NodeProto], scopes: Scopes, infos: dict[str, onnx.ValueInfoProto]
    ) -> tuple[list[ir.Node], frozenset[str]]:
        """Read nodes; return the nodes, and the fields that the file contains even if empty."""
        values = scopes[-1]
        messages = [{field.number: content for field, content in proto.ListFields()} for proto in protos]
        for number in _NODE_TEXTS:
            _check_text([fields[number] for fields in messages if number in fields], "a node's name, type or text")
        # All outputs are declared first: a body may use values of the outer graph that follow later in its list.
        produced = [self._declare(fields, values, infos) for fields in messages]
        explicit = _explicit_fields(messages)
        nodes = []
        for proto, fields, outputs in zip(protos, messages, produced, strict=True):
            attributes = self._attributes(fields, scopes) if 5 in fields else ()
            node = ir.Node(
                fields.get(7, ""),
                fields.get(4, ""),
                [(values.get(name) or _outer(name, scopes)) if name else None for name in fields.get(1, ())],
                attributes,
                overload=fields.get(8, ""),
                outputs=outputs,
                # The graph would invent a name for a node without one.
                name=fields.get(3, ""),
                doc_string=fields.get(6),
                metadata_props=_metadata(fields[9]) if 9 in fields else None,
            )
            if 10 in fields:
                node.device_configurations = self._device_configurations(fields[10], scopes)
            if self._compare_all or not _is_plain(fields, node, explicit):
                self._compare_node(proto, node, explicit)
            nodes.append(node)
        _check_text(values, "a value's name")
        return nodes, explicit

    def _declare(
        self, fields: Fields, values: dict[str, ir.Value], infos: dict[str, onnx.ValueInfoProto]
    ) -> list[ir.Value]:
        outputs = []
        for name in fields.get(2, ()):
            if not name:
                outputs.append(ir.Value(name=""))
                continue
            if name in values:
                raise InvalidModelError(
                    f"output name '{name}' is already used by another value.",
                    where=f"node '{fields.get(3, '')}' ({fields.get(4, '')})",
                    remedy="Rename one of them; `sardonyx check` lists every name that is defined twice.",
                )
            info = infos.get(name)
            value = ir.Value(name=name) if info is None else self._value(info, "value_info")
            values[name] = value
            outputs.append(value)
        return outputs

    def _device_configurations(self, protos: Iterable[Any], scopes: Scopes) -> tuple[ir.NodeDeviceConfiguration, ...]:
        values = collections.ChainMap(*reversed(scopes))
        configurations = []
        for proto in protos:
            read = serde.deserialize_node_device_configuration(proto, values=values)
            known = self._configurations.get(proto.configuration_id)
            configurations.append(read if known is None else dataclasses.replace(read, configuration=known))
        return tuple(configurations)

    def _compare_node(self, proto: onnx.NodeProto, node: ir.Node, explicit: frozenset[str]) -> None:
        written = onnx.NodeProto()
        try:
            write_node_head(node, written, explicit)
        except ValueError as error:
            raise InvalidModelError(f"cannot be read: {error}", where=f"node '{node.name}' ({node.op_type})") from error
        if len(node.attributes) != len(proto.attribute):
            names = collections.Counter(attribute.name for attribute in proto.attribute)
            raise InvalidModelError(
                f"attribute '{names.most_common(1)[0][0]}' occurs twice.",
                where=f"node '{node.name}' ({node.op_type})",
            )
        head = record_original(copy_without(proto, "attribute"), written)
        if head is not None:
            node.meta[KEY] = head

    def _attributes(self, fields: Fields, scopes: Scopes) -> list[ir.Attr]:
        try:
            attributes = [self._attribute(attribute, scopes) for attribute in fields[5]]
            _check_text([attribute.name for attribute in attributes], "an attribute's name")
            return attributes
        except (ModelFileError, InvalidModelError) as error:
            where = f"node '{fields.get(3, '')}' ({fields.get(4, '')}), {error.where}"
            raise type(error)(error.problem, where=where, remedy=error.remedy) from error

    def _attribute(self, proto: onnx.AttributeProto, scopes: Scopes) -> ir.Attr:
        fields = {field.number: content for field, content in proto.ListFields()}
        name = fields.get(1, "")
        kind = _ATTRIBUTE_TYPES[fields[20]] if 20 in fields else _present_type(fields)
        if len(fields) == 3 and kind in _NUMBERS and name and _VALUE_FIELDS[kind] in fields and not self._compare_all:
            # Fast path: nearly all attributes consist of name, type and value.
            return ir.Attr(name, kind, fields[_VALUE_FIELDS[kind]])
        doc_string = fields.get(13)
        if fields.get(21):
            attribute = ir.RefAttr(name, fields[21], kind, doc_string=doc_string)
            plain = len(fields) == 3 + (doc_string is not None)
        else:
            content = fields.get(_VALUE_FIELDS.get(kind, 0))
            if content is None and kind in _WITH_CHILDREN and kind not in _LISTS:
                raise InvalidModelError(f"has type {kind.name} and no value.", where=f"attribute '{name}'")
            absent = getattr(proto, _NAMES[kind]) if content is None and kind in _NAMES else None
            value = self._attribute_value(kind, absent if content is None else content, scopes)
            attribute = ir.Attr(name, kind, value, doc_string=doc_string)
            expected = 2 + (content is not None) + (doc_string is not None)
            plain = len(fields) == expected and (content is not None or kind in _LISTS) and kind not in _TYPED
        if self._compare_all or not plain or 1 not in fields or 20 not in fields:
            self._compare_attribute(proto, attribute)
        return attribute

    def _attribute_value(self, kind: ir.AttributeType, content: Any, scopes: Scopes) -> Any:
        if kind is _TYPE.INTS or kind is _TYPE.FLOATS or kind is _TYPE.INT or kind is _TYPE.FLOAT:
            return content
        if kind is _TYPE.STRING:
            return _text(content)
        if kind is _TYPE.TENSOR:
            return self._source.tensor(content)
        if kind is _TYPE.GRAPH:
            return self._graph(content, scopes)
        if kind is _TYPE.STRINGS:
            return [_text(text) for text in content]
        if kind is _TYPE.TENSORS:
            return [self._source.tensor(tensor) for tensor in content]
        if kind is _TYPE.GRAPHS:
            return [self._graph(graph, scopes) for graph in content]
        if kind is _TYPE.SPARSE_TENSOR:
            return self._sparse_tensor(content)
        if kind is _TYPE.SPARSE_TENSORS:
            return [self._sparse_tensor(tensor) for tensor in content]
        if kind is _TYPE.TYPE_PROTO:
            return ir.TypeAndShape(*read_type(content))
        if kind is _TYPE.TYPE_PROTOS:
            return [ir.TypeAndShape(*read_type(proto)) for proto in content]
        return None

    def _compare_attribute(self, proto: onnx.AttributeProto, attribute: ir.Attr) -> None:
        written = onnx.AttributeProto()
        children: tuple[str, ...] = ()
        if attribute.type in _WITH_CHILDREN and not attribute.is_ref():
            # Tensors and graphs have their own records.
            children = (_NAMES[attribute.type],)
            write_attribute_head(attribute, written)
        else:
            self._writer.attribute(attribute, written, 1)
        form = record_original(copy_without(proto, *children), written)
        if form is not None:
            attribute.meta[KEY] = form

    def _value(self, info: onnx.ValueInfoProto, section: str) -> ir.Value:
        value = ir.Value(name=info.name)
        self._describe(value, info, section)
        return value

    def _output(
        self,
        info: onnx.ValueInfoProto,
        value: ir.Value | None,
        infos: dict[str, onnx.ValueInfoProto],
        input_infos: dict[str, onnx.ValueInfoProto],
    ) -> ir.Value:
        if value is None:
            # Illegal; reported by the checker.
            return self._value(info, "output")
        self._describe(value, info, "output")
        # A value that several lists contain may be described differently in each.
        others = {"value_info": infos.get(info.name), "input": input_infos.get(info.name)}
        for section, other in others.items():
            if other is not None:
                self._doubtful += ((value, section, other), (value, "output", info))
        return value

    def _describe(self, value: ir.Value, info: onnx.ValueInfoProto, section: str) -> None:
        """Apply an entry's type, text and metadata to a value; fields absent from the entry stay unchanged."""
        fields = _fields(info)
        plain = 1 in fields
        if 2 in fields:
            kind, shape, is_lossy = self._type(fields[2])
            if kind is not None:
                value.type, value.shape = kind, shape
            plain = plain and not is_lossy
        elif value.type is not None:
            plain = False
        if 3 in fields:
            _check_text([fields[3]], "a value's text")
            value.doc_string = fields[3]
        if 4 in fields:
            props = {entry.key: entry.value for entry in fields[4]}
            _check_text([*props, *props.values()], "a value's metadata")
            value.metadata_props.update(props)
            plain = plain and _is_plain_metadata(fields[4], props)
        if self._compare_all or not plain:
            self._doubtful.append((value, section, info))

    def _type(self, proto: onnx.TypeProto) -> tuple[ir.TypeProtocol | None, ir.Shape | None, bool]:
        """Convert a type and return True as third element if the writer would write the type differently.

        Models have few distinct types and many values, so results are cached by message. Types are mutable: each value
        gets its own copy. Shapes are frozen and shared.
        """
        key = proto.SerializeToString()
        known = self._types.get(key)
        if known is None:
            kind, shape = read_type(proto)
            written = onnx.TypeProto()
            write_type(kind, shape, written)
            known = self._types[key] = kind, shape, kind is None or written != proto
        kind, shape, is_lossy = known
        if type(kind) is ir.TensorType:
            return ir.TensorType(kind.dtype, denotation=kind.denotation), shape, is_lossy
        return read_type(proto)[0], shape, is_lossy

    def _compare_values(self) -> None:
        for value, section, info in self._doubtful:
            written = onnx.ValueInfoProto()
            write_value(value, written, "")
            form = record_original(info, written)
            if form is not None:
                _value_record(value).forms[section] = form
        self._doubtful.clear()

    def _record_graph(self, graph: ir.Graph, head: Any, explicit: frozenset[str]) -> None:
        if head is not None or explicit:
            graph_record = _graph_record(graph)
            graph_record.head, graph_record.explicit = head, explicit

    def _record_infos(
        self,
        graph: ir.Graph,
        infos: Sequence[onnx.ValueInfoProto],
        values: dict[str, ir.Value],
        default: list[ir.Value],
    ) -> None:
        """Record the order of ``value_info`` if the writer's default order differs."""
        names = [info.name for info in infos]
        if names == [value.name for value in default]:
            return
        last = {name: index for index, name in enumerate(names)}
        unmatched = []
        for index, info in enumerate(infos):
            value = values.get(info.name)
            if value is None or not _is_listable(value) or last[info.name] != index:
                unmatched.append(UnmatchedEntry(index, info, always=last[info.name] != index))
            else:
                _value_record(value).listed = index
        if unmatched:
            _graph_record(graph).infos = tuple(unmatched)

    def _annotate(
        self, graph: ir.Graph, annotations: Sequence[onnx.TensorAnnotation], values: dict[str, ir.Value]
    ) -> None:
        unmatched = []
        indices: dict[ir.Value, int] = {}
        for index, annotation in enumerate(annotations):
            value = values.get(annotation.tensor_name)
            names = {entry.key: entry.value for entry in annotation.quant_parameter_tensor_names}
            if value is None or not _is_listable(value) or not names or value in indices:
                unmatched.append(UnmatchedEntry(index, annotation, always=value is not None))
                continue
            indices[value] = index
            value.meta[QUANTIZATION_KEY] = names
            written = onnx.TensorAnnotation()
            write_annotation(value, written)
            form = record_original(annotation, written)
            if form is not None:
                _value_record(value).annotation = form
        if unmatched:
            _graph_record(graph).annotations = tuple(unmatched)
        if unmatched or list(indices) != list_default_annotations(graph):
            for value, index in indices.items():
                _value_record(value).annotated = index


def _fields(message: Any) -> Fields:
    """Return the present fields of a message, by number."""
    return {field.number: value for field, value in message.ListFields()}


def _explicit_fields(messages: list[Fields]) -> frozenset[str]:
    """Return the fields that are empty in more nodes than absent."""
    explicit = set()
    for number, name in _OPTIONAL_NODE_FIELDS.items():
        contents = [fields.get(number) for fields in messages]
        if contents.count("") > contents.count(None):
            explicit.add(name)
    return frozenset(explicit)


def _is_plain(fields: Fields, node: ir.Node, explicit: frozenset[str]) -> bool:
    """Return True if the writer is known to reproduce a node's message exactly."""
    if not explicit and fields.keys() <= _USUAL_NODE_FIELDS and 4 in fields and fields.get(3) != "":
        return 5 not in fields or len(node.attributes.data) == len(fields[5])
    for number, name in _OPTIONAL_NODE_FIELDS.items():
        if not fields.get(number) and (number in fields) != (name in explicit):
            return False
    if 4 not in fields or 10 in fields or fields.get(7) == "ai.onnx":
        return False
    if 5 in fields and len(node.attributes) != len(fields[5]):
        return False
    return 9 not in fields or _is_plain_metadata(fields[9], node.metadata_props)


def _check_text(texts: Iterable[str], where: str) -> None:
    """Refuse text that is not UTF-8, which protobuf returns as bytes.

    Joining is the fastest check of all texts.
    """
    try:
        "".join(texts)
    except TypeError as error:
        undecoded = next(text for text in texts if not isinstance(text, str))
        raise InvalidModelError(
            f"expected UTF-8, got {undecoded!r}.",
            where=where,
            remedy="Export the model again: the file is damaged, or was written in another encoding.",
        ) from error


def _is_plain_metadata(entries: Sequence[onnx.StringStringEntryProto], props: dict[str, str]) -> bool:
    return len(entries) == len(props) and "" not in props and "" not in props.values()


def _metadata(entries: Iterable[onnx.StringStringEntryProto]) -> dict[str, str] | None:
    props = {entry.key: entry.value for entry in entries}
    _check_text([*props, *props.values()], "metadata")
    return props or None


def _opsets(protos: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    """Return operator-set versions by domain; a domain named twice has the highest, as onnx.proto says."""
    opsets: dict[str, int] = {}
    for proto in protos:
        domain = "" if proto.domain == "ai.onnx" else proto.domain
        opsets[domain] = max(proto.version, opsets.get(domain, proto.version))
    return opsets


def _outer(name: str, scopes: Scopes) -> ir.Value:
    """Return a value of an outer graph by name."""
    for values in reversed(scopes):
        if name in values:
            return values[name]
    # Illegal; reported by the checker.
    value = scopes[-1][name] = ir.Value(name=name)
    return value


def _is_listable(value: ir.Value) -> bool:
    return value.producer() is not None or value.is_graph_input() or value.is_initializer()


def _present_type(fields: Fields) -> ir.AttributeType:
    """Return the type of an attribute without a type field, as in files of the first IR version."""
    kinds = [_TYPE_OF_FIELD[number] for number in fields if number in _TYPE_OF_FIELD]
    return kinds[0] if len(kinds) == 1 else _TYPE.UNDEFINED


def _text(content: bytes) -> str | bytes:
    """Decode a string attribute; binary data, which operators of other domains store in some, stays bytes."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def _graph_record(graph: ir.Graph) -> GraphRecord:
    graph_record: GraphRecord = graph.meta.setdefault(KEY, GraphRecord())
    return graph_record


def _value_record(value: ir.Value) -> ValueRecord:
    value_record: ValueRecord = value.meta.setdefault(KEY, ValueRecord())
    return value_record
