"""A TensorFlow Lite file as records: subgraphs, tensors with quantization, operators with options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sardonyx.convert.tflite.flatbuffer import Reader
from sardonyx.convert.tflite.schema import ELEMENT_TYPES, OPERATORS

_PLACEHOLDER = 127
"""Number in the old 8-bit field if the operator's number is greater."""


@dataclass(frozen=True)
class Quantization:
    """Affine quantization: real = scale * (stored - zero_point).

    Attributes:
        scale: Scales, one, or one for each index of `axis`.
        zero_point: Zero points, as many as scales.
        axis: Axis of the scales.
    """

    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int64]
    axis: int


@dataclass(frozen=True)
class TensorRecord:
    """A tensor of a subgraph.

    Attributes:
        name: Name in the file, possibly empty or not unique.
        type: Element type, a name of :data:`ELEMENT_TYPES`.
        shape: Sizes at the time of export.
        signature: Sizes, -1 where open.
        data: Bytes of a constant; None for a computed tensor.
        quantization: Scales of a quantized tensor.
        is_variable: True for a state tensor, which is zero at the first call.
        sparsity: Record ``SparsityParameters`` of a compressed constant.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    signature: tuple[int, ...]
    data: memoryview | None
    quantization: Quantization | None
    is_variable: bool
    sparsity: Any


@dataclass(frozen=True)
class OperatorRecord:
    """An operator of a subgraph.

    Attributes:
        name: Builtin name, or the name of a custom operator.
        is_custom: True for a custom operator.
        inputs: Indices of tensors, -1 for an absent input.
        outputs: Indices of tensors.
        options: Record of the operator's options, None if absent.
        custom_options: Bytes of a custom operator's options.
    """

    name: str
    is_custom: bool
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Any
    custom_options: bytes


@dataclass(frozen=True)
class SubgraphRecord:
    """A function of the file; the first one is the model.

    Attributes:
        name: Name in the file.
        tensors: Tensors, referred to by index.
        inputs: Indices of tensors.
        outputs: Indices of tensors.
        operators: Operators in order of execution.
    """

    name: str
    tensors: tuple[TensorRecord, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[OperatorRecord, ...]


@dataclass(frozen=True)
class TfliteFile:
    """A TensorFlow Lite file.

    Attributes:
        where: Name of the file for errors.
        description: Text of the producer.
        subgraphs: Functions.
        signature: Names of inputs and outputs by tensor index, from the signature of subgraph 0.
    """

    where: str
    description: str
    subgraphs: tuple[SubgraphRecord, ...]
    signature: dict[int, str]


def parse(data: bytes | memoryview, where: str = "model.tflite") -> TfliteFile:
    """Return the records of a TensorFlow Lite file.

    Args:
        data: The file's bytes.
        where: Name of the file for errors.

    Raises:
        ModelFileError: The bytes are not a TensorFlow Lite file of schema 3, or a reference is out of range.
    """
    reader = Reader(data, where)
    if len(reader.data) < 8 or bytes(reader.data[4:8]) != b"TFL3":
        raise reader.error(f"expected identifier TFL3 at offset 4, got {bytes(reader.data[4:8])!r}")
    model = reader.root("Model")
    if model.version != 3:
        raise reader.error(f"expected schema version 3, got {model.version}")
    if not model.subgraphs:
        raise reader.error("expected at least one subgraph, got none")
    buffers = [_buffer(reader, buffer) for buffer in model.buffers]
    codes = [_operator_name(reader, code) for code in model.operator_codes]
    subgraphs = tuple(_subgraph(reader, record, buffers, codes) for record in model.subgraphs)
    return TfliteFile(where, model.description, subgraphs, _signature(model, len(subgraphs[0].tensors)))


def read(path: str | Path) -> TfliteFile:
    """Return the records of the TensorFlow Lite file at `path`."""
    return parse(Path(path).read_bytes(), str(path))


def _buffer(reader: Reader, record: Any) -> memoryview | None:
    if record.offset > 1:
        return reader.span(record.offset, record.size, "a buffer after the flatbuffer")
    return memoryview(record.data) if len(record.data) else None


def _operator_name(reader: Reader, record: Any) -> tuple[str, bool]:
    number = record.builtin_code if record.deprecated_builtin_code == _PLACEHOLDER else 0
    number = max(number, record.builtin_code, record.deprecated_builtin_code)
    if not 0 <= number < len(OPERATORS):
        raise reader.error(f"unknown operator number {number}; expected 0 to {len(OPERATORS) - 1}")
    name = OPERATORS[number]
    return (record.custom_code or "unnamed custom operator", True) if name == "CUSTOM" else (name, False)


def _subgraph(
    reader: Reader, record: Any, buffers: list[memoryview | None], codes: list[tuple[str, bool]]
) -> SubgraphRecord:
    tensors = tuple(_tensor(reader, tensor, buffers) for tensor in record.tensors)

    def indices(values: Any, subject: str, least: int = 0) -> tuple[int, ...]:
        result = tuple(int(i) for i in values)
        for i in result:
            if not least <= i < len(tensors):
                raise reader.error(f"{subject}: tensor {i}, expected {least} to {len(tensors) - 1}")
        return result

    operators = []
    for i, operator in enumerate(record.operators):
        if operator.opcode_index >= len(codes):
            raise reader.error(f"operator {i}: code {operator.opcode_index}, expected less than {len(codes)}")
        name, is_custom = codes[operator.opcode_index]
        subject = f"operator {i} ({name})"
        if operator.large_custom_options_offset:
            custom = bytes(
                reader.span(operator.large_custom_options_offset, operator.large_custom_options_size, subject)
            )
        else:
            custom = operator.custom_options.tobytes()
        operators.append(
            OperatorRecord(
                name,
                is_custom,
                indices(operator.inputs, subject, -1),
                indices(operator.outputs, subject),
                operator.builtin_options2 if operator.builtin_options is None else operator.builtin_options,
                custom,
            )
        )
    name = record.name or "main"
    return SubgraphRecord(
        name,
        tensors,
        indices(record.inputs, f"inputs of {name}"),
        indices(record.outputs, f"outputs of {name}"),
        tuple(operators),
    )


def _tensor(reader: Reader, record: Any, buffers: list[memoryview | None]) -> TensorRecord:
    subject = f"tensor '{record.name}'"
    if not 0 <= record.type < len(ELEMENT_TYPES):
        raise reader.error(f"{subject}: unknown element type {record.type}")
    if record.buffer >= len(buffers):
        raise reader.error(f"{subject}: buffer {record.buffer}, expected less than {len(buffers)}")
    shape = tuple(int(n) for n in record.shape)
    signature = tuple(int(n) for n in record.shape_signature)
    if any(n < 0 for n in shape) or any(n < -1 for n in signature):
        raise reader.error(f"{subject}: expected sizes of at least 0, got {list(shape)} and {list(signature)}")
    data = buffers[record.buffer] if record.buffer else None
    if data is None and record.buffer and 0 in shape:
        data = memoryview(b"")
    return TensorRecord(
        record.name,
        ELEMENT_TYPES[record.type],
        shape,
        signature if len(signature) == len(shape) else shape,
        data,
        _quantization(reader, record, subject, len(shape)),
        record.is_variable,
        record.sparsity,
    )


def _quantization(reader: Reader, record: Any, subject: str, rank: int) -> Quantization | None:
    parameters = record.quantization
    if parameters is None or not len(parameters.scale):
        return None
    scale = np.asarray(parameters.scale, np.float32)
    zero = np.asarray(parameters.zero_point, np.int64)
    if not len(zero):
        zero = np.zeros(len(scale), np.int64)
    if len(zero) == 1 < len(scale):
        zero = np.repeat(zero, len(scale))
    axis = int(parameters.quantized_dimension)
    if len(zero) != len(scale) or (len(scale) > 1 and not 0 <= axis < rank):
        raise reader.error(
            f"{subject}: expected scales and zero points along an axis of {rank}, got {len(scale)} scales, "
            f"{len(zero)} zero points and axis {axis}"
        )
    if len(scale) > 1 and record.shape[axis] != len(scale):
        raise reader.error(f"{subject}: {len(scale)} scales, expected {record.shape[axis]} (axis {axis})")
    return Quantization(scale, zero, axis)


def _signature(model: Any, count: int) -> dict[int, str]:
    for signature in model.signature_defs:
        if signature.subgraph_index == 0:
            entries = [*signature.outputs, *signature.inputs]
            return {e.tensor_index: e.name for e in entries if e.tensor_index < count and e.name}
    return {}
