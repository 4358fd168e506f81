"""TensorFlow Lite files as ONNX models, without TensorFlow.

The file is read by tables of its schema (:mod:`schema`, :mod:`flatbuffer`, :mod:`file`); each operator is one function
that adds ONNX nodes (:mod:`operators`).
"""

from __future__ import annotations

from sardonyx.convert.tflite import operators
from sardonyx.convert.tflite.file import parse
from sardonyx.convert.tflite.translation import Translation

__all__ = ["Translation", "operators", "translate"]


def translate(data: bytes | memoryview, where: str = "model.tflite") -> Translation:
    """Return the translation of a TensorFlow Lite file; its ``model()`` is the ONNX model.

    Args:
        data: The file's bytes.
        where: Name of the file for errors.

    Raises:
        ModelFileError: The bytes are not a TensorFlow Lite file.
    """
    return Translation(parse(data, where))
