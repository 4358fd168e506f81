"""What is checked: the message as it is on disk, with the contents of large tensors left where they are."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx import TensorProto, numpy_helper

from sardonyx.errors import ModelFileError
from sardonyx.model import external, wire
from sardonyx.model.check.codes import finding
from sardonyx.model.check.findings import Finding, Place
from sardonyx.model.check.scopes import MAX_DEPTH, scopes
from sardonyx.model.load import Loadable, load
from sardonyx.model.save import to_proto

MAX_MESSAGE_BYTES = 2**31 - 1
"""The largest protobuf message."""

_LEFT_IN_FILE = 65536
_FIELD_NAMES = {wire.RAW_DATA: "raw_data", wire.FLOAT_DATA: "float_data", wire.DOUBLE_DATA: "double_data"}

Contents = wire.Payload | ir.TensorProtocol


@dataclass(slots=True)
class Source:
    """A model to check.

    Attributes:
        proto: The message. Large tensors in it may be marks for contents that lie elsewhere.
        name: What the user calls the model: its path, or ``MODEL.onnx``.
        folder: Where external data is looked for; None where the model has no place on disk.
        size: The size of the file or message in bytes, where known.
        findings: What was found on opening it.
    """

    proto: onnx.ModelProto
    name: str = "MODEL.onnx"
    folder: external.Folder | None = None
    size: int | None = None
    findings: list[Finding] = field(default_factory=list)
    _token: str = ""
    _view: memoryview | bytes = b""
    _elsewhere: list[Contents] = field(default_factory=list)

    def elsewhere(self, tensor: onnx.TensorProto) -> Contents | None:
        """Where the contents of a tensor are when it is a mark; None when it holds them itself."""
        if not self._token or not tensor.external_data or tensor.external_data[-1].key != self._token:
            return None
        return self._elsewhere[int(tensor.external_data[-1].value)]

    def filled_fields(self, tensor: onnx.TensorProto) -> dict[str, int]:
        """The fields that hold contents of a tensor, with their numbers of bytes (``raw_data``) or entries."""
        names = ("raw_data", "float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")
        filled = {name: len(getattr(tensor, name)) for name in names}
        contents = self.elsewhere(tensor)
        if isinstance(contents, wire.Payload):
            entry = {wire.RAW_DATA: 1, wire.FLOAT_DATA: 4, wire.DOUBLE_DATA: 8}[contents.field]
            filled[_FIELD_NAMES[contents.field]] = contents.length // entry
        return {name: length for name, length in filled.items() if length}

    def read(self, tensor: onnx.TensorProto) -> np.ndarray | None:
        """The contents of a tensor as a flat array; mapped into memory where they lie in a file.

        Args:
            tensor: A tensor of ``proto`` of which no check complained.

        Returns:
            The array in the tensor's own type, as ``numpy`` or ``ml_dtypes`` has it; None where the contents are
            strings or external data without a place on disk.
        """
        if tensor.data_type == TensorProto.STRING:
            return None
        contents = self.elsewhere(tensor)
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
    """Opens anything that ``sardonyx.model.load`` takes, without losing what a broken model says.

    Args:
        source: A path, the contents of a file, a message, or a Model.

    Returns:
        The source.

    Raises:
        ModelFileError: It is missing, or no ONNX model at all.
    """
    if isinstance(source, onnx.ModelProto):
        return Source(source)
    if isinstance(source, ir.Model):
        return _of_model(source)
    if isinstance(source, bytes):
        return _of_bytes(source) or _of_model(load(source))
    path = Path(source)
    file = external.MappedFile(path)
    opened = _of_bytes(file.view())
    if opened is None:
        opened = _of_model(load(path))
    opened.name, opened.folder, opened.size = str(source), external.Folder(path), file.size
    if file.size > MAX_MESSAGE_BYTES:
        opened.findings.append(
            finding(
                "message-too-large",
                f"the file has {file.size:,} bytes, a protobuf message at most {MAX_MESSAGE_BYTES:,}.",
                Place(item=f"file {path.name}"),
            )
        )
    return opened


def _of_bytes(content: memoryview | bytes) -> Source | None:
    """The source in a binary file; None where the file is not one (it may be text)."""
    token = secrets.token_hex(16)
    try:
        skeleton, payloads = wire.extract_payloads(content, _LEFT_IN_FILE, token)
        proto = onnx.ModelProto.FromString(skeleton)
    except (ModelFileError, DecodeError):
        return None
    if not proto.HasField("graph"):
        return None
    return Source(proto, _token=token, _view=content, _elsewhere=list(payloads), size=len(content))


def _of_model(model: ir.Model) -> Source:
    graphs = list(_graphs(model))
    deep = next((name for name, _, depth in graphs if depth > MAX_DEPTH), None)
    if deep is not None:
        place = Place(graph=deep)
        reason = f"graphs are nested more than {MAX_DEPTH} deep, so no file can hold the model; nothing was checked."
        return Source(onnx.ModelProto(), findings=[finding("nesting-too-deep", reason, place)])
    try:
        proto = to_proto(model, weights=False)
    except RecursionError:
        reason = "types or attributes are nested so deep that no file can hold the model; nothing was checked."
        return Source(onnx.ModelProto(), findings=[finding("nesting-too-deep", reason, Place())])
    token = secrets.token_hex(16)
    elsewhere: list[Contents] = []
    for scope, (_, graph, _) in zip(scopes(proto), graphs, strict=True):
        for tensor, original in _pairs(scope.graph, graph):
            if tensor.data_location == TensorProto.EXTERNAL:
                del tensor.external_data[:]
                tensor.ClearField("data_location")
                tensor.external_data.add(key=token, value=str(len(elsewhere)))
                elsewhere.append(original)
    return Source(proto, _token=token, _elsewhere=elsewhere)


def _graphs(model: ir.Model) -> Iterator[tuple[str, ir.Graph | ir.Function, int]]:
    """The graphs of a Model in the order of ``scopes``: name of the owning node, graph, depth."""
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
    """The tensors of a graph's message, each with the tensor of the Model that it was written from."""
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
