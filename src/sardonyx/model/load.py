"""Load a model from a file, bytes or a message in memory, without reading the weights."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from sardonyx.base.gc_pause import collector_paused
from sardonyx.errors import (
    InvalidModelError,
    ModelFileError,
    OptionError,
    SardonyxError,
    TextFormatError,
    UnsupportedError,
)
from sardonyx.model.carry import KEY, Head
from sardonyx.model.external import Folder, MappedFile, open_file, plain_text_refusal, read_reference
from sardonyx.model.reader import Reader
from sardonyx.model.tensors import (
    DetachedTensor,
    MappedTensor,
    ProtoTensor,
    byte_count,
    check_contents,
    check_span,
    map_external,
    metadata_of,
)
from sardonyx.model.types import DATA_TYPES
from sardonyx.model.wire import Contents, Payload, extract_payloads

Loadable = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model
"""Forms in which a model may be passed; see :func:`load`."""

MAPPED_BYTES = 4096
"""Tensors of at least this many bytes stay in the file; smaller ones are parsed with the graph."""

DECRYPTED = "sardonyx.decrypted"
"""Key of a Model's ``meta`` with the opened file (`sardonyx.model.external.Decrypted`), if a file was encrypted."""

_COPIED_BYTES = 1 << 24
_TEXT_SUFFIXES = {".onnxtxt": "onnxtxt", ".onnxtext": "onnxtxt", ".textproto": "textproto", ".pbtxt": "textproto"}
_SNIFFED = 1 << 12
_FIELD_OF_MODEL = re.compile(
    rb"(\s|#[^\n]*\n)*(ir_version|opset_import|producer_name|producer_version|domain|model_version|doc_string|graph"
    rb"|metadata_props|training_info|functions|configuration)\s*[:{\[]"
)
_ONNX_TEXT = re.compile(rb"(\s|//[^\n]*\n|#[^\n]*\n)*<\s*\w")


SkipExternal = Callable[[str, str], bool]
"""Predicate of the name of a tensor and the location of its external data."""

_ORT_FORMAT = b"ORTM"


def load(source: Loadable, *, skip_external: SkipExternal | None = None) -> ir.Model:
    """Load a model.

    Weights are not read: tensors of 4,096 bytes and more are mapped from the file (`MappedTensor`, an
    ``onnx_ir.ExternalTensor``), or are views of the bytes passed. The file may be replaced while the model is in use,
    but not written in place. Encrypted files (`sardonyx.encrypt`) are decrypted into memory.

    Args:
        source: A path to a binary model (with its external data in the same folder) or to a model in ONNX's text
            syntax (``.onnxtxt``) or protobuf's (``.textproto``, ``.prototxt``); the contents of such a file; a protobuf
            message, whose tensors the Model shares; or a Model, which is returned unchanged.
        skip_external: Tensors whose data file is not opened, for callers that replace the contents; reading such a
            tensor is an error.

    Returns:
        The Model.

    Raises:
        ModelFileError: The source is missing, truncated or malformed, or a tensor's contents contradict its shape.
        ExternalDataError: External data is missing, too short, or outside the model's folder.
        EncryptionError: No key of this process opens an encrypted file, or the file was changed.
        TextFormatError: A text form does not parse.
        InvalidModelError: The graph breaks ONNX's rules in a way that a Model cannot hold, e.g. two values of one name.
        UnsupportedError: The file is in ONNX Runtime's own format (``.ort``).
        OptionError: The source is of another type.
    """
    if isinstance(source, ir.Model):
        return source
    if isinstance(source, onnx.ModelProto):
        return from_proto(source)
    if isinstance(source, bytes):
        if (format := _text_format(source[:_SNIFFED], "")) is not None:
            return from_proto(_parse_text(source, format, "the text"))
        return _read(memoryview(source), "", None, None)
    path = path_of(source)
    file = open_file(path)
    contents = file.view()
    folder = Folder(path, file)
    format = _text_format(bytes(contents[:_SNIFFED]), path.suffix.lower())
    if format is not None:
        proto = _parse_text(bytes(contents), format, str(path))
        model = _build(proto, _Tensors(str(path), folder=folder, skip=skip_external), compare_all=False)
    else:
        model = _read(contents, str(path), file, folder, skip_external)
    if (decrypted := folder.decrypted) is not None:
        model.meta[DECRYPTED] = decrypted
    return model


def path_of(source: object) -> Path:
    """Return the path that is passed as a model.

    Raises:
        OptionError: The argument is no path.
    """
    if not isinstance(source, (str, os.PathLike)):
        raise OptionError(
            f"expected a path, bytes, an onnx.ModelProto or an onnx_ir.Model, got {type(source).__name__}.",
            where="model",
        )
    return Path(source)


def data_file_locations(contents: Contents, file: MappedFile) -> dict[str, str]:
    """Return the locations of a model's data files, each with the name of a tensor in it; no data file is opened.

    Args:
        contents: The plain contents of the model file; of large tensors, nothing is read.
        file: The model file.

    Raises:
        ModelFileError: The contents are malformed, or a tensor's contents contradict its shape.
        TextFormatError: A text form does not parse.
        InvalidModelError: The graph breaks ONNX's rules in a way that a Model cannot hold.
    """
    locations: dict[str, str] = {}

    def is_skipped(tensor: str, location: str) -> bool:
        locations.setdefault(location, tensor)
        return True

    origin, folder = str(file.path), Folder(file.path)
    format = _text_format(bytes(contents[:_SNIFFED]), file.path.suffix.lower())
    if format is None:
        _read(contents, origin, file, folder, is_skipped)
    else:
        proto = _parse_text(bytes(contents[:]), format, origin)
        _build(proto, _Tensors(origin, folder=folder, skip=is_skipped), compare_all=False)
    return locations


def require_plain(model: ir.Model, where: str = "the model") -> None:
    """Refuse to write a Model from an encrypted file: the written file would be plain text.

    Raises:
        EncryptionError: The Model was loaded from an encrypted file.
    """
    if DECRYPTED in model.meta:
        raise plain_text_refusal(where)


def from_proto(proto: onnx.ModelProto) -> ir.Model:
    """Convert a protobuf model to a Model.

    Args:
        proto: The model; not changed. The contents of its tensors are shared, not copied.

    Returns:
        The Model.

    Raises:
        ModelFileError: A tensor's contents contradict its shape.
        InvalidModelError: The graph breaks ONNX's rules in a way that a Model cannot hold, e.g. two values of one name.
    """
    small = proto.ByteSize() < _COPIED_BYTES
    return _build(proto, _Tensors(""), compare_all=not small or _has_unknown_fields(proto))


def _has_unknown_fields(proto: onnx.ModelProto) -> bool:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    size = copy.ByteSize()
    copy.DiscardUnknownFields()
    return bool(copy.ByteSize() != size)


def _read(
    contents: Contents, origin: str, file: MappedFile | None, folder: Folder | None, skip: SkipExternal | None = None
) -> ir.Model:
    """Read a binary model from a buffer, which is the view of ``file`` if a file is passed."""
    if not contents:
        raise ModelFileError("is empty.", where=origin)
    if contents[4:8] == _ORT_FORMAT:
        raise UnsupportedError(
            "is in ONNX Runtime's own format (.ort), which only ONNX Runtime reads.",
            where=origin,
            remedy="Pass the .onnx file from which the file was converted.",
        )
    token = f"sardonyx:{os.urandom(16).hex()}"
    try:
        skeleton, payloads = extract_payloads(contents, MAPPED_BYTES, token)
    except ModelFileError as error:
        _refuse_text(bytes(contents[:_SNIFFED]), origin)
        raise ModelFileError(error.problem, where=origin, remedy=error.remedy) from error
    proto = _parse(skeleton, origin)
    size = proto.ByteSize()
    proto.DiscardUnknownFields()
    unknown = proto.ByteSize() != size
    if unknown:
        proto = _parse(skeleton, origin)
    if not proto.HasField("graph"):
        raise ModelFileError(
            "contains no graph: the file is damaged or not an ONNX model.",
            where=origin,
            remedy="Pass the path of an .onnx file.",
        )
    tensors = _Tensors(origin, token, payloads, contents, file, folder, owned=True, skip=skip)
    return _build(proto, tensors, compare_all=unknown)


def _refuse_text(start: bytes, origin: str) -> None:
    """Refuse a file that begins with text, which no binary model does."""
    if start.startswith(b"version https://git-lfs"):
        raise ModelFileError(
            "is a Git LFS pointer, expected the model.", where=origin, remedy="Fetch the file: git lfs pull."
        )
    # A character may be cut at the end of what was read.
    text = start.decode("utf-8", "ignore")
    if len(text.encode()) > len(start) - 4 and all(c.isprintable() or c in "\t\n\r\f" for c in text):
        raise ModelFileError(
            "is a text file, expected an ONNX model.", where=origin, remedy="Pass the path of a model."
        )


def _parse(serialized: bytes, origin: str) -> onnx.ModelProto:
    try:
        proto = onnx.ModelProto()
        proto.ParseFromString(serialized)
    except DecodeError as error:
        raise ModelFileError(
            f"cannot be parsed as an ONNX model ({error}).",
            where=origin,
            remedy="Download the file again; a file of a few hundred bytes may be a Git LFS pointer.",
        ) from error
    return proto


def _build(proto: onnx.ModelProto, tensors: _Tensors, compare_all: bool) -> ir.Model:
    try:
        with collector_paused():
            return Reader(tensors, compare_all).model(proto)
    except SardonyxError:
        raise
    except (ValueError, TypeError) as error:
        raise InvalidModelError(f"cannot be represented: {error}", where=tensors.origin or "the model") from error


def _text_format(start: bytes, suffix: str) -> str | None:
    """Return the text form of a file by its suffix or else its first bytes; None for a binary file."""
    if suffix in _TEXT_SUFFIXES:
        return _TEXT_SUFFIXES[suffix]
    if _ONNX_TEXT.match(start):
        return "onnxtxt"
    if suffix == ".prototxt" or _FIELD_OF_MODEL.match(start):
        return "textproto"
    return None


def _parse_text(contents: bytes, format: str, origin: str) -> onnx.ModelProto:
    try:
        text = contents.decode()
    except UnicodeDecodeError as error:
        raise TextFormatError(f"is not UTF-8 text: {error}", where=origin) from error
    try:
        return _text_parser(format)(text)
    except TextFormatError as error:
        raise TextFormatError(error.problem, where=f"{origin}, {error.where}", remedy=error.remedy) from error


def _text_parser(format: str) -> Callable[[str], onnx.ModelProto]:
    # Imported on demand: few models are text, and the parsers are slow to import.
    if format == "onnxtxt":
        from sardonyx.model import text

        return text.parse
    from sardonyx.model import textproto

    return textproto.parse


class _Tensors:
    """Factory of tensors from the messages of one model.

    Args:
        origin: The source of the model, for messages.
        token: The key that marks tensors whose contents were extracted.
        payloads: Offsets of the extracted contents.
        contents: The buffer of the extracted contents.
        file: The file whose mapping is the buffer, if there is one.
        folder: Folder of the data files.
        owned: True if no other object uses the messages.
        skip: Tensors whose data file is not opened; None for no tensors.
    """

    def __init__(
        self,
        origin: str,
        token: str = "",
        payloads: list[Payload] | None = None,
        contents: Contents | None = None,
        file: MappedFile | None = None,
        folder: Folder | None = None,
        owned: bool = False,
        skip: SkipExternal | None = None,
    ) -> None:
        self.origin = origin
        self._token = token
        self._payloads = payloads or []
        self._contents = contents
        self._file = file
        self._folder = folder
        self._owned = owned
        self._skip = skip

    def tensor(self, proto: onnx.TensorProto) -> ir.TensorProtocol:
        """Create a tensor from its message."""
        dtype = DATA_TYPES.get(proto.data_type)
        if dtype is None:
            raise InvalidModelError(f"unknown tensor element type {proto.data_type}.", where=self._where(proto))
        entries = proto.external_data
        if entries and entries[-1].key == self._token:
            payload = self._payloads[int(entries[-1].value)]
            del entries[-1]
            return self._span(proto, payload, dtype)
        if proto.data_location == onnx.TensorProto.EXTERNAL:
            return self._external(proto, dtype)
        check_contents(proto, dtype, self.origin)
        if dtype is ir.DataType.STRING:
            tensor = ir.StringTensor(
                list(proto.string_data),
                shape=ir.Shape(proto.dims),
                name=proto.name,
                doc_string=proto.doc_string or None,
                metadata_props=metadata_of(proto),
            )
            tensor.meta[KEY] = Head(proto, 0)
            return tensor
        return ProtoTensor(proto, dtype, self._owned)

    def _span(self, proto: onnx.TensorProto, payload: Payload, dtype: ir.DataType) -> ir.TensorProtocol:
        check_span(payload.length, dtype, payload.field, proto.dims, self._where(proto))
        if self._file is not None:
            return MappedTensor(self._file, payload, proto, dtype)
        assert self._contents is not None
        contents = self._contents[payload.start : payload.start + payload.length]
        name, doc_string, metadata = proto.name, proto.doc_string or None, metadata_of(proto)
        shape = ir.Shape(proto.dims)
        tensor: ir.Tensor[Any] | ir.PackedTensor[Any]
        if dtype.bitwidth < 8:
            array = np.frombuffer(contents, np.uint8)
            tensor = ir.PackedTensor(
                array, dtype, shape=shape, name=name, doc_string=doc_string, metadata_props=metadata
            )
        else:
            array = np.frombuffer(contents, dtype.numpy().newbyteorder("<")).reshape(shape.numpy())
            tensor = ir.Tensor(array, dtype, shape=shape, name=name, doc_string=doc_string, metadata_props=metadata)
        tensor.meta[KEY] = Head(proto, payload.field)
        return tensor

    def _external(self, proto: onnx.TensorProto, dtype: ir.DataType) -> ir.TensorProtocol:
        if dtype is ir.DataType.STRING or dtype is ir.DataType.UNDEFINED or any(size < 0 for size in proto.dims):
            raise ModelFileError(
                f"external data cannot hold a tensor of type {dtype} and shape {list(proto.dims)}.",
                where=self._where(proto),
            )
        reference = read_reference(proto.external_data, proto.name)
        length = byte_count(dtype, proto.dims) if reference.length is None else reference.length
        if self._folder is None or (self._skip is not None and self._skip(proto.name, reference.location)):
            return DetachedTensor(proto, reference.location, reference.offset, length, dtype)
        file = self._folder.open(reference.location, proto.name)
        return map_external(file, proto, dtype, reference.offset, length)

    def _where(self, proto: onnx.TensorProto) -> str:
        return f"{self.origin}, tensor '{proto.name}'" if self.origin else f"tensor '{proto.name}'"
