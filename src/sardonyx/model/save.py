"""Save a model to a file, atomically and without loading its weights, or convert a model to a message."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from sardonyx.base.gc_pause import collector_paused
from sardonyx.errors import InvalidModelError, ModelFileError, ModelTooLargeError, OptionError
from sardonyx.model.external import write_all
from sardonyx.model.load import Loadable, from_proto, load, require_plain
from sardonyx.model.tensors import MAX_PROTO_BYTES, MappedTensor, contents_of
from sardonyx.model.wire import RAW_DATA, Payload, insert_payloads
from sardonyx.model.writer import Placement, Writer, write_contents

SKELETON_LOCATION = "sardonyx-skeleton"
"""Data file named by the placeholders of a skeleton; the file does not exist."""

SKELETON_BYTES = 1024
"""Tensors of at least this many bytes are placeholders in a skeleton."""

ALIGNMENT = 4096
"""Alignment in a data file of tensors of at least `ALIGNED_BYTES`, so that runtimes can map them.

Equal to the page size of most systems.
"""

ALIGNED_BYTES = 1 << 20
_SMALL_ALIGNMENT = 64
_STREAMED_BYTES = 4096
_BUFFER_BYTES = 1 << 16
_AMPLE_BYTES = 1 << 28
_FORMATS = ("onnx", "onnxtxt", "textproto")
_FORMAT_OF_SUFFIX = {
    ".onnxtxt": "onnxtxt",
    ".onnxtext": "onnxtxt",
    ".textproto": "textproto",
    ".pbtxt": "textproto",
    ".prototxt": "textproto",
}


def to_proto(model: Loadable, *, weights: bool = True) -> onnx.ModelProto:
    """Convert a Model to a protobuf message.

    Args:
        model: The Model, which is not changed; or a path, bytes or message to load first.
        weights: False omits the contents of tensors of 1,024 bytes and more: such tensors become references to
            external data at `SKELETON_LOCATION`, so that shape inference and checks stay cheap.

    Returns:
        The message. Contents that were mapped from a file are copied into the message. A tensor in a data file of
        unknown folder, because the model was converted from a message, stays a reference to the data file.

    Raises:
        ModelTooLargeError: The message would take 2 GB or more.
        InvalidModelError: A part of the Model cannot be represented in a file.
        ExternalDataError: The contents of a tensor cannot be read.
    """
    if not isinstance(model, ir.Model):
        model = load(model)
    proto = onnx.ModelProto()
    if not weights:
        _write(model, proto, _Skeleton())
        return proto
    placement = _Deferred()
    _write(model, proto, placement)
    _check_size(placement.size, "the model")
    placement.fill()
    # Computing the size of a message costs as much as serializing: skipped if the contents leave ample room.
    if placement.size > MAX_PROTO_BYTES - _AMPLE_BYTES:
        _check_size(proto.ByteSize(), "the model")
    return proto


def save(
    model: ir.Model | onnx.ModelProto,
    path: str | os.PathLike[str],
    *,
    external_data: bool | None = None,
    external_threshold: int = 1024,
    external_file: str | None = None,
    format: str | None = None,
) -> None:
    """Save a Model to a file.

    The file is complete or untouched: the contents are written to a new file in the same folder, which is then renamed.
    The model may be mapped from the files that are replaced. Equal models give equal bytes. With external data there
    are two files: both are complete on disk before either is renamed, and if the second renaming fails the first file
    gets its old contents back; only a crash of the machine between the two renamings can leave a new data file with an
    old model. A symbolic link at ``path`` is replaced by the file; the link's target is not touched.

    Args:
        model: The Model, or a message of a model; not changed.
        path: The file to write.
        external_data: True puts initializers of at least ``external_threshold`` bytes into the file
            ``<name of the model file>.data``; False forbids a data file; None writes one for models of 2 GB and more.
            Tensors in attributes are moved too if the model would not fit otherwise.
        external_threshold: In bytes.
        external_file: Name of the data file, in the folder of the model file; None for the default.
        format: "onnx" (binary), "onnxtxt" or "textproto"; None derives the format from the suffix.

    Raises:
        ModelFileError: The file cannot be written.
        ModelTooLargeError: The model does not fit into one file of 2 GB, and a second file is not allowed.
        InvalidModelError: A part of the Model cannot be represented in a file.
        OptionError: ``model`` is no model, the format is unknown, the threshold is negative, or the name of the data
            file has a folder.
        EncryptionError: The Model was loaded from an encrypted file.
    """
    if isinstance(model, onnx.ModelProto):
        model = from_proto(model)
    if not isinstance(model, ir.Model):
        raise OptionError(f"expected a Model or a ModelProto, got {type(model).__name__}.", where="model")
    require_plain(model)
    target = Path(path)
    data = target.with_name(f"{target.name}.data") if external_file is None else target.parent / external_file
    if data.parent != target.parent or data == target:
        raise OptionError(
            f"expected the name of another file in the model's folder, got {external_file!r}.", where="external_file"
        )
    if format is None:
        format = _FORMAT_OF_SUFFIX.get(target.suffix.lower(), "onnx")
    if format not in _FORMATS:
        raise OptionError(
            f"unknown format of model files {format!r}; expected one of {', '.join(_FORMATS)}.", where="format"
        )
    if external_threshold < 0:
        raise OptionError(f"expected 0 bytes or more, got {external_threshold}.", where="external_threshold")
    require_writable(target)
    if format != "onnx":
        _save_text(model, target, format, external_data)
        return
    plan, content = (None, b"") if external_data else _plan(model, _Streamed())
    if plan is not None and _size(plan, content) > MAX_PROTO_BYTES:
        if external_data is False:
            _check_size(_size(plan, content), str(target))
        plan = None
    if plan is None:
        plan, content = _plan_external(model, target, data, external_threshold)
    _write_files(target, data, plan, content)


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """Contents that are written straight from their tensor."""

    tensor: ir.TensorProtocol
    length: int
    field: int

    def write(self, descriptor: int) -> None:
        tensor = self.tensor
        if isinstance(tensor, MappedTensor):
            tensor.file.copy_to(descriptor, tensor.payload.start, tensor.payload.length)
            return
        write_all(descriptor, self.contents())

    def contents(self) -> bytes | memoryview:
        """Return the contents to write; those of a tensor in a file are read without touching the mapping."""
        tensor = self.tensor
        if isinstance(tensor, MappedTensor):
            return b"".join(tensor.file.chunks(tensor.payload.start, tensor.payload.length))
        contents = contents_of(tensor)
        if len(contents) != self.length:
            raise ModelFileError(
                f"has {len(contents):,} bytes of contents; shape {tensor.shape} of type {tensor.dtype} needs"
                f" {self.length:,}.",
                where=f"tensor '{tensor.name}'",
            )
        return contents


class _Deferred:
    """Placement that stores contents in the message only once their total size is known to fit."""

    min_bytes = _STREAMED_BYTES
    references = True

    def __init__(self) -> None:
        self.size = 0
        self._parts: list[tuple[onnx.TensorProto, ir.TensorProtocol, int]] = []

    def store(self, message: onnx.TensorProto, tensor: ir.TensorProtocol, field: int | None, initializer: bool) -> bool:
        self.size += tensor.nbytes
        if field is None:
            return False
        self._parts.append((message, tensor, field))
        return True

    def fill(self) -> None:
        """Write the contents into their messages."""
        for message, tensor, field in self._parts:
            write_contents(message, tensor.tobytes(), field)


class _Skeleton:
    """Placement that omits contents."""

    min_bytes = SKELETON_BYTES
    references = True

    def store(self, message: onnx.TensorProto, tensor: ir.TensorProtocol, field: int | None, initializer: bool) -> bool:
        _refer(message, SKELETON_LOCATION, None, tensor.nbytes)
        return True


class _Streamed:
    """Placement that puts a marker into the message for contents to be streamed."""

    min_bytes = _STREAMED_BYTES
    references = False

    def __init__(self) -> None:
        self.parts: list[_Part] = []
        self.external: list[tuple[int, _Part]] = []
        # Random, so that no tensor can contain the marker by accident or intent; the file never contains the marker.
        self._marker = os.urandom(24)

    def store(self, message: onnx.TensorProto, tensor: ir.TensorProtocol, field: int | None, initializer: bool) -> bool:
        if field is None:
            return False
        message.raw_data = self._marker + len(self.parts).to_bytes(8, "little")
        self.parts.append(_Part(tensor, tensor.nbytes, field))
        return True

    def find_markers(self, serialized: bytes) -> list[tuple[int, int, Payload]]:
        """Return start, length and payload of the markers in the serialized message, in order."""
        markers = []
        length = len(self._marker) + 8
        start = serialized.find(self._marker)
        while start >= 0:
            index = int.from_bytes(serialized[start + len(self._marker) : start + length], "little")
            part = self.parts[index]
            markers.append((start, length, Payload(index, part.length, part.field)))
            start = serialized.find(self._marker, start + length)
        return markers


class _External(_Streamed):
    """Placement that puts large contents into a data file and streams the others into the model file."""

    def __init__(self, location: str, threshold: int, attributes: bool) -> None:
        super().__init__()
        self.min_bytes = min(threshold, _STREAMED_BYTES)
        self._location = location
        self._threshold = threshold
        self._attributes = attributes
        self._end = 0

    def store(self, message: onnx.TensorProto, tensor: ir.TensorProtocol, field: int | None, initializer: bool) -> bool:
        length = tensor.nbytes
        if length < self._threshold or not (initializer or self._attributes):
            return length >= _STREAMED_BYTES and super().store(message, tensor, field, initializer)
        alignment = ALIGNMENT if length >= ALIGNED_BYTES else _SMALL_ALIGNMENT
        start = -(-self._end // alignment) * alignment
        _refer(message, self._location, start, length)
        self.external.append((start, _Part(tensor, length, RAW_DATA)))
        self._end = start + length
        return True


def _check_size(size: int, where: str) -> None:
    if size > MAX_PROTO_BYTES:
        raise ModelTooLargeError(
            f"takes at least {size:,} bytes; a protobuf message holds at most {MAX_PROTO_BYTES:,}.",
            where=where,
            remedy="Save the model to a file with external_data=True.",
        )


def _refer(message: onnx.TensorProto, location: str, offset: int | None, length: int) -> None:
    message.data_location = onnx.TensorProto.EXTERNAL
    entries = {"location": location, "offset": offset, "length": length}
    for key, value in entries.items():
        if value is not None:
            message.external_data.add(key=key, value=str(value))


def _write(model: ir.Model, proto: onnx.ModelProto, placement: Placement) -> None:
    try:
        with collector_paused():
            Writer(placement, model.ir_version).model(model, proto)
    except (TypeError, ValueError) as error:
        raise InvalidModelError(f"cannot be written: {error}", where="the model") from error


def _plan(model: ir.Model, plan: _Streamed) -> tuple[_Streamed, bytes]:
    proto = onnx.ModelProto()
    _write(model, proto, plan)
    return plan, proto.SerializeToString(deterministic=True)


def _plan_external(model: ir.Model, target: Path, data: Path, threshold: int) -> tuple[_Streamed, bytes]:
    for attributes in (False, True):
        plan, content = _plan(model, _External(data.name, threshold, attributes))
        if _size(plan, content) <= MAX_PROTO_BYTES:
            return plan, content
    raise ModelTooLargeError(
        f"needs {_size(plan, content):,} bytes in the model file, which holds at most {MAX_PROTO_BYTES:,}.",
        where=str(target),
        remedy="Lower external_threshold.",
    )


def _size(plan: _Streamed, content: bytes) -> int:
    return len(content) + sum(part.length for part in plan.parts)


def _write_files(target: Path, data: Path, plan: _Streamed, content: bytes) -> None:
    def write_model(descriptor: int) -> None:
        buffer = bytearray()
        for piece in insert_payloads(content, plan.find_markers(content)):
            if not isinstance(piece, Payload):
                buffer += piece
            elif piece.length < _BUFFER_BYTES:
                # Few large writes are faster than many small ones; a larger buffer would touch new memory.
                buffer += plan.parts[piece.start].contents()
            else:
                write_all(descriptor, buffer)
                buffer.clear()
                plan.parts[piece.start].write(descriptor)
            if len(buffer) >= _BUFFER_BYTES:
                write_all(descriptor, buffer)
                buffer.clear()
        write_all(descriptor, buffer)

    def write_data(descriptor: int) -> None:
        end = 0
        for start, part in plan.external:
            write_all(descriptor, bytes(start - end))
            part.write(descriptor)
            end = start + part.length

    with _new_file(target, write_model) as model_file:
        if not plan.external:
            model_file.replace(target)
            return
        require_writable(data)
        with _new_file(data, write_data) as data_file, _replaced(data_file, data):
            model_file.replace(target)


@contextlib.contextmanager
def _new_file(target: Path, write: Callable[[int], None]) -> Iterator[Path]:
    """Write a new file in the folder of ``target`` and yield its path; a failure removes the file."""
    path = target.with_name(f".{target.name[:200]}.{os.urandom(8).hex()}.tmp")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            try:
                write(descriptor)
                if target.exists():
                    os.fchmod(descriptor, stat.S_IMODE(target.stat().st_mode))
            finally:
                os.close(descriptor)
            yield path
        except BaseException:
            path.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ModelFileError(f"cannot be written: {error.strerror}.", where=str(target)) from error


@contextlib.contextmanager
def _replaced(new: Path, target: Path) -> Iterator[None]:
    """Rename ``new`` to ``target``; a failure within the context restores the previous file."""
    old = new.with_suffix(".old")
    existed = target.exists() or target.is_symlink()
    if existed:
        target.replace(old)
    try:
        new.replace(target)
        yield
    except BaseException:
        if existed:
            old.replace(target)
        else:
            target.unlink(missing_ok=True)
        raise
    old.unlink(missing_ok=True)


def require_writable(path: str | os.PathLike[str]) -> None:
    """Refuse a path that no file can be written to, before anything is computed for the file.

    Args:
        path: Path of the file to write or replace.

    Raises:
        ModelFileError: The path names something other than a regular file, or its folder does not exist or is
            read-only.
    """
    target = Path(path)
    try:
        exists = _exists(target)
    except (OSError, ValueError) as error:  # The name is too long, a folder is locked, or the name has a null.
        reason = getattr(error, "strerror", None) or error
        raise ModelFileError(f"cannot be written: {reason}.", where=str(target)) from error
    if exists and not target.is_file():
        raise ModelFileError("is not a regular file and cannot be replaced.", where=str(target))
    if not target.name:
        raise ModelFileError("is not the path of a file.", where=str(target))
    if not target.parent.is_dir():
        nearest = next((folder for folder in target.parents if folder.exists()), None)
        if nearest is not None and not nearest.is_dir():
            raise ModelFileError(f"cannot be written: '{nearest}' is not a folder.", where=str(target))
        raise ModelFileError(
            "cannot be written: its folder does not exist.",
            where=str(target),
            remedy=f"Create '{target.parent}' first.",
        )
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise ModelFileError("cannot be written: its folder is not writable.", where=str(target))


def require_file(path: str | os.PathLike[str], where: str) -> None:
    """Refuse a path that an option names and that no file can be written to; see :func:`require_writable`.

    Args:
        path: Path of the file to write or replace.
        where: The name of the option.

    Raises:
        OptionError: No file can be written at the path.
    """
    try:
        require_writable(path)
    except ModelFileError as error:
        raise OptionError(f"{error.where!r} {error.problem}", where=where, remedy=error.remedy) from error


def _exists(target: Path) -> bool:
    try:
        target.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _save_text(model: ir.Model, target: Path, format: str, external_data: bool | None) -> None:
    if external_data:
        raise OptionError("applies to binary files only.", where="external_data=True")
    if format == "onnxtxt":
        from sardonyx.model import text

        content = text.print_model(to_proto(model))
    else:
        from sardonyx.model import textproto

        content = textproto.print_model(to_proto(model))
    write_text(target, content)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file as a whole; a failure leaves a previous file unchanged.

    Args:
        path: Path of the file.
        text: Contents of the file.

    Raises:
        ModelFileError: The file cannot be written.
    """
    target, encoded = Path(path), text.encode()
    require_writable(target)
    with _new_file(target, lambda descriptor: write_all(descriptor, encoded)) as file:
        file.replace(target)
