"""The model to check: the message as stored on disk, with large tensors' contents left in the file."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx import TensorProto, numpy_helper

from sardonyx.errors import ModelFileError
from sardonyx.model import external, wire
from sardonyx.model.check.codes import finding
from sardonyx.model.check.findings import Finding, Location
from sardonyx.model.check.scopes import MAX_DEPTH, scopes
from sardonyx.model.load import Loadable, load, path_of
from sardonyx.model.save import to_proto

MAX_MESSAGE_BYTES = 2**31 - 1
"""Size limit of a protobuf message."""

_MIN_PAYLOAD_BYTES = 65536
_FIELD_NAMES = {wire.RAW_DATA: "raw_data", wire.FLOAT_DATA: "float_data", wire.DOUBLE_DATA: "double_data"}

Contents = wire.Payload | ir.TensorProtocol


@dataclass(slots=True)
class Source:
    """A model to check.

    Attributes:
        proto: The message. Large tensors may be markers for contents stored elsewhere.
        name: Name of the model: its path, or ``MODEL.onnx``.
        folder: Folder of the external data; None for a model without a path.
        size: The size of the file or message in bytes, if known.
        findings: Findings made while opening the model.
    """

    proto: onnx.ModelProto
    name: str = "MODEL.onnx"
    folder: external.Folder | None = None
    size: int | None = None
    findings: list[Finding] = field(default_factory=list)
    _token: str = ""
    _view: memoryview | bytes = b""
    _payloads: list[Contents] = field(default_factory=list)

    def payload_of(self, tensor: onnx.TensorProto) -> Contents | None:
        """Return the contents of a tensor that is a marker; None for a tensor with its own contents."""
        if not self._token or not tensor.external_data or tensor.external_data[-1].key != self._token:
            return None
        return self._payloads[int(tensor.external_data[-1].value)]

    def filled_fields(self, tensor: onnx.TensorProto) -> dict[str, int]:
        """Return the lengths of a tensor's nonempty content fields, in bytes (``raw_data``) or entries."""
        names = ("raw_data", "float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
        filled = {name: len(getattr(tensor, name)) for name in names}
        contents = self.payload_of(tensor)
        if isinstance(contents, wire.Payload):
            entry = {wire.RAW_DATA: 1, wire.FLOAT_DATA: 4, wire.DOUBLE_DATA: 8}[contents.field]
            filled[_FIELD_NAMES[contents.field]] = contents.length // entry
        return {name: length for name, length in filled.items() if length}

    def read(self, tensor: onnx.TensorProto) -> np.ndarray | None:
        """Read the contents of a tensor as a flat array, mapped into memory if stored in a file.

        Args:
            tensor: A tensor of ``proto`` without findings.

        Returns:
            The array in the tensor's own type, a ``numpy`` or ``ml_dtypes`` type; None for strings and for external
            data of a model without a path.
        """
        if tensor.data_type == TensorProto.STRING:
            return None
        contents = self.payload_of(tensor)
        if contents is not None and not isinstance(contents, wire.Payload):
            return contents.numpy().reshape(-1)
        dtype = ir.DataType(tensor.data_type).numpy()
        if isinstance(contents, wire.Payload):
            view = memoryview(self._view)[contents.start : contents.start + contents.length]
        elif tensor.data_location == TensorProto.EXTERNAL:
            if self.folder is None:
                return None
            reference = external.read_reference(tensor.external_data, tensor.name)
            stop = None if reference.length is None else reference.offset + reference.length
            view = self.folder.open(reference.location, tensor.name).view()[reference.offset : stop]
        else:
            return numpy_helper.to_array(tensor).reshape(-1)
        if ir.DataType(tensor.data_type).itemsize < 1:
            return np.frombuffer(view, np.uint8)
        return np.frombuffer(view, dtype, count=int(np.prod(tensor.dims, dtype=np.int64)))


def open_source(source: Loadable) -> Source:
    """Open any ``Loadable``, preserving the parts of a broken model that a Model cannot represent.

    Args:
        source: A path, the contents of a file, a message, or a Model.

    Returns:
        The source.

    Raises:
        ModelFileError: The file is missing, or not an ONNX model at all.
        OptionError: The source is of another type.
    """
    if isinstance(source, onnx.ModelProto):
        return Source(source)
    if isinstance(source, ir.Model):
        return _open_model(source)
    if isinstance(source, bytes):
        return _open_bytes(source) or _open_model(load(source))
    path = path_of(source)
    file = external.open_file(path)
    opened = _open_bytes(file.view())
    if opened is None:
        opened = _open_model(load(path))
    opened.name, opened.folder, opened.size = str(source), external.Folder(path, file), file.size
    if file.size > MAX_MESSAGE_BYTES:
        opened.findings.append(
            finding(
                "message-too-large",
                f"the file has {file.size:,} bytes; a protobuf message has at most {MAX_MESSAGE_BYTES:,}.",
                Location(item=f"file {path.name}"),
            )
        )
    return opened


def _open_bytes(content: memoryview | bytes) -> Source | None:
    """Open a binary file; None if the contents are not binary (they may be text)."""
    token = secrets.token_hex(16)
    try:
        skeleton, payloads = wire.extract_payloads(content, _MIN_PAYLOAD_BYTES, token)
        proto = onnx.ModelProto.FromString(skeleton)
    except (ModelFileError, DecodeError):
        return None
    if not proto.HasField("graph"):
        return None
    return Source(proto, _token=token, _view=content, _payloads=list(payloads), size=len(content))


def _open_model(model: ir.Model) -> Source:
    graphs = list(_graphs(model))
    deep = next((name for name, _, depth in graphs if depth > MAX_DEPTH), None)
    if deep is not None:
        where = Location(graph=deep)
        reason = f"graphs are nested more than {MAX_DEPTH} deep, so no file can hold the model; nothing was checked."
        return Source(onnx.ModelProto(), findings=[finding("nesting-too-deep", reason, where)])
    try:
        proto = to_proto(model, weights=False)
    except RecursionError:
        reason = "types or attributes are nested so deep that no file can hold the model; nothing was checked."
        return Source(onnx.ModelProto(), findings=[finding("nesting-too-deep", reason, Location())])
    token = secrets.token_hex(16)
    payloads: list[Contents] = []
    for scope, (_, graph, _) in zip(scopes(proto), graphs, strict=True):
        for tensor, original in _pairs(scope.graph, graph):
            if tensor.data_location == TensorProto.EXTERNAL:
                del tensor.external_data[:]
                tensor.ClearField("data_location")
                tensor.external_data.add(key=token, value=str(len(payloads)))
                payloads.append(original)
    return Source(proto, _token=token, _payloads=payloads)


def _graphs(model: ir.Model) -> Iterator[tuple[str, ir.Graph | ir.Function, int]]:
    """Yield the graphs of a Model in the order of ``scopes``: name of the owning node, graph, depth."""
    pending: list[tuple[str, ir.Graph | ir.Function, int]] = [
        (f"function {function.name}", function, 0) for function in reversed(list(model.functions.values()))
    ]
    pending.append(("", model.graph, 0))
    while pending:
        name, graph, depth = pending.pop()
        yield name, graph, depth
        if depth > MAX_DEPTH:
            continue
        inner: list[tuple[str, ir.Graph | ir.Function, int]] = []
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
                    inner.append((f"{node.name or node.op_type}.{attribute.name}", attribute.as_graph(), depth + 1))
                elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
                    path = f"{node.name or node.op_type}.{attribute.name}"
                    inner.extend((path, graph, depth + 1) for graph in attribute.as_graphs())
        pending.extend(reversed(inner))


def _pairs(
    proto: onnx.GraphProto | onnx.FunctionProto, graph: ir.Graph | ir.Function
) -> Iterator[tuple[onnx.TensorProto, ir.TensorProtocol]]:
    """Yield the tensors of a graph's message, each with its original tensor in the Model."""
    if isinstance(proto, onnx.GraphProto) and isinstance(graph, ir.Graph):
        for tensor in proto.initializer:
            value = graph.initializers.get(tensor.name)
            if value is not None and value.const_value is not None:
                yield tensor, value.const_value
    for written, node in zip(proto.node, graph, strict=True):
        for attribute in written.attribute:
            original = node.attributes.get(attribute.name)
            if original is None or original.is_ref():
                continue
            if original.type == ir.AttributeType.TENSOR:
                yield attribute.t, original.as_tensor()
            elif original.type == ir.AttributeType.TENSORS:
                yield from zip(attribute.tensors, original.as_tensors(), strict=True)
