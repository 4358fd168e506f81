"""Reads a model from a file, from bytes or from a message in memory."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx_ir import external_data, serde

from sardonyx.errors import ModelFileError


def from_proto(proto: onnx.ModelProto) -> ir.Model:
    """Turns a protobuf model into a Model.

    Args:
        proto: The model; it is not changed.

    Returns:
        The Model. It may share tensor contents with ``proto``.

    Raises:
        ModelFileError: The message does not describe a graph.
    """
    try:
        return serde.deserialize_model(proto)
    except (serde.SerdeError, ValueError) as error:
        raise ModelFileError(f"the model cannot be read: {error.__cause__ or error}") from error


def load(source: str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model) -> ir.Model:
    """Reads a model.

    Args:
        source: A path, the contents of a file, a protobuf message, or a Model (returned as it is).

    Returns:
        The Model.

    Raises:
        ModelFileError: The source is missing, truncated or malformed.
    """
    if isinstance(source, ir.Model):
        return source
    if isinstance(source, onnx.ModelProto):
        return from_proto(source)
    if isinstance(source, bytes):
        return from_proto(_parse(source, "the bytes given"))
    path = Path(source)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"cannot be read: {error.strerror}", where=str(path)) from error
    model = from_proto(_parse(content, str(path)))
    external_data.set_base_dir(model.graph, path.parent)
    return model


def _parse(content: bytes, where: str) -> onnx.ModelProto:
    try:
        return onnx.ModelProto.FromString(content)
    except DecodeError as error:
        raise ModelFileError("is not an ONNX model (truncated or malformed protobuf)", where=where) from error
