"""TensorFlow Lite files under construction: tensors, operators and subgraphs as records of the schema.

The schema's tables are those of the reader (:mod:`sardonyx.convert.tflite.schema`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from sardonyx.convert.tflite.flatbuffer_writer import flatbuffer
from sardonyx.convert.tflite.schema import ELEMENT_TYPES, OPERATORS
from sardonyx.errors import ModelTooLargeError

Size = int | str
"""A size: a number, or the name of an open one."""

Array = npt.NDArray[Any]

DTYPES: Mapping[str, Any] = {
    "FLOAT32": np.float32,
    "FLOAT16": np.float16,
    "FLOAT64": np.float64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "BOOL": np.bool_,
    "INT4": ml_dtypes.int4,
}
"""Element types that the writer stores, with those of numpy."""

NAMES: Mapping[np.dtype[Any], str] = {np.dtype(dtype): name for name, dtype in DTYPES.items()}

LARGEST = (1 << 31) - 1
"""Bytes of a flatbuffer: offsets have 32 bits, and interpreters read these as signed."""

_VERSIONS = {"BROADCAST_TO": 2}
"""Least versions that interpreters register; 1 for all other operators."""

_PLACEHOLDER = 127
"""Number in the old 8-bit field of operators whose number is greater."""


@dataclass(frozen=True)
class Quantization:
    """Affine quantization of a tensor: real = scale * (stored - zero_point).

    Attributes:
        scale: Scales, one, or one for each index of `axis`.
        zero_point: Zero points, as many as scales.
        axis: Axis of the scales.
    """

    scale: Array
    zero_point: Array
    axis: int = 0

    def equals(self, other: Quantization | None) -> bool:
        """Return True if both map codes to the same numbers."""
        return (
            other is not None
            and self.axis == other.axis
            and np.array_equal(self.scale, other.scale)
            and np.array_equal(self.zero_point, other.zero_point)
        )


@dataclass(eq=False)
class Tensor:
    """A tensor of a subgraph; a constant is stored when an operator reads it.

    Attributes:
        type: Element type, a name of the schema.
        shape: Sizes, the name of an open one where not a number.
        array: Elements of a constant.
        quantization: Scales of a tensor of codes.
        index: Position in the subgraph; None for a constant that nothing reads yet.
        name: Name in the file.
    """

    type: str
    shape: tuple[Size, ...]
    array: Array | None = None
    quantization: Quantization | None = None
    index: int | None = None
    name: str = ""

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """True if every size is a number."""
        return all(isinstance(size, int) for size in self.shape)


class SubgraphBuilder:
    """One function of the file.

    Args:
        file: The file.
        number: Position among the file's subgraphs.
        name: Name in the file.
    """

    def __init__(self, file: FileBuilder, number: int, name: str) -> None:
        self.file = file
        self.number = number
        self.name = name
        self.records: list[dict[str, Any]] = []
        self.operators: list[dict[str, Any]] = []
        self.inputs: list[int] = []
        self.outputs: list[int] = []

    def index_of(self, tensor: Tensor) -> int:
        """Return the position of a tensor in the subgraph, which is added on first use."""
        if tensor.index is None:
            tensor.index = len(self.records)
            self.records.append({})
            self.describe(tensor)
        return tensor.index

    def describe(self, tensor: Tensor) -> None:
        """Write the record of a stored tensor."""
        assert tensor.index is not None
        record: dict[str, Any] = {
            "shape": [size if isinstance(size, int) else 1 for size in tensor.shape],
            "type": ELEMENT_TYPES.index(tensor.type),
            "name": tensor.name or f"{self.name}_{tensor.index}",
            "buffer": 0 if tensor.array is None else self.file.buffer(tensor.array),
            "has_rank": True,
        }
        if not tensor.is_static:
            record["shape_signature"] = [size if isinstance(size, int) else -1 for size in tensor.shape]
        if tensor.quantization is not None:
            record["quantization"] = {
                "scale": tensor.quantization.scale,
                "zero_point": tensor.quantization.zero_point,
                "quantized_dimension": tensor.quantization.axis,
            }
        self.records[tensor.index] = record

    def rename(self, tensor: Tensor, name: str) -> None:
        """Set the name of a stored tensor."""
        tensor.name = name
        self.records[self.index_of(tensor)]["name"] = name

    def operator(
        self,
        name: str,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
        options: tuple[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Add an operator."""
        self.operators.append(
            {
                "opcode_index": self.file.code(name),
                "inputs": [-1 if tensor is None else self.index_of(tensor) for tensor in inputs],
                "outputs": [self.index_of(tensor) for tensor in outputs],
                "builtin_options": options,
            }
        )

    def record(self) -> dict[str, Any]:
        """Return the subgraph as a record of the schema."""
        return {
            "tensors": self.records,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "operators": self.operators,
            "name": self.name,
        }


@dataclass
class FileBuilder:
    """One file.

    Attributes:
        subgraphs: Functions; the first is the model.
        signature: Names of the model's inputs and outputs, by position.
    """

    subgraphs: list[SubgraphBuilder] = field(default_factory=list)
    signature: tuple[list[str], list[str]] = field(default_factory=lambda: ([], []))
    _buffers: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    _codes: dict[str, int] = field(default_factory=dict)
    _stored: dict[tuple[str, bytes], int] = field(default_factory=dict)
    _bytes: int = 0

    def subgraph(self, name: str) -> SubgraphBuilder:
        """Add a function."""
        self.subgraphs.append(SubgraphBuilder(self, len(self.subgraphs), name))
        return self.subgraphs[-1]

    def code(self, name: str) -> int:
        """Return the position of an operator in the file's list."""
        return self._codes.setdefault(name, len(self._codes))

    def buffer(self, array: Array) -> int:
        """Return the position of the buffer with these elements; equal buffers are stored once.

        Raises:
            ModelTooLargeError: The file exceeds 2 GiB.
        """
        data = _packed(array)
        key = (data.dtype.name, data.tobytes()) if data.nbytes <= 4096 else None
        if key is not None and key in self._stored:
            return self._stored[key]
        self._bytes += data.nbytes
        if self._bytes > LARGEST:
            raise ModelTooLargeError("the file exceeds 2 GiB, the limit of flatbuffers", remedy="Quantize the weights.")
        self._buffers.append({"data": data})
        if key is not None:
            self._stored[key] = len(self._buffers) - 1
        return len(self._buffers) - 1

    def operator_names(self) -> list[str]:
        """Return the names of operators by position in the file's list."""
        return list(self._codes)

    def operators(self) -> dict[str, int]:
        """Return the number of operators by name."""
        names = self.operator_names()
        counts = Counter(names[one["opcode_index"]] for subgraph in self.subgraphs for one in subgraph.operators)
        return dict(sorted(counts.items()))

    def data(self) -> bytes:
        """Return the file's bytes."""
        codes = []
        for name in self._codes:
            number = OPERATORS.index(name)
            codes.append(
                {
                    "deprecated_builtin_code": min(number, _PLACEHOLDER),
                    "builtin_code": number,
                    "version": _VERSIONS.get(name, 1),
                }
            )
        main = self.subgraphs[0]
        names_in, names_out = self.signature
        maps = [
            [{"name": name, "tensor_index": index} for name, index in zip(names, indices, strict=True)]
            for names, indices in ((names_in, main.inputs), (names_out, main.outputs))
        ]
        record = {
            "version": 3,
            "operator_codes": codes,
            "subgraphs": [subgraph.record() for subgraph in self.subgraphs],
            "description": "sardonyx",
            "buffers": self._buffers,
            "signature_defs": [{"inputs": maps[0], "outputs": maps[1], "signature_key": "serving_default"}],
        }
        return flatbuffer("Model", record, b"TFL3")


def _packed(array: Array) -> Array:
    """Return the bytes of an array; 4-bit integers are stored in pairs, the first one in the low half."""
    if array.dtype == ml_dtypes.int4:
        codes = array.reshape(-1).astype(np.int8).view(np.uint8) & 15
        if codes.size % 2:
            codes = np.append(codes, np.uint8(0))
        return np.asarray(codes[::2] | (codes[1::2] << 4), np.uint8)
    return np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
