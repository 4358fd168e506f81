"""Read GGUF files: metadata, and tensors as views of the mapped file, with every size checked.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from sardonyx.convert.weights.blocks import BLOCKS, CODEBOOKS, Blocks, by_codebook
from sardonyx.errors import ModelFileError, UnsupportedError

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MOST_ENTRIES = 1 << 20
_MOST_AXES = 4
_PLAIN = {0: np.dtype("<f4"), 1: np.dtype("<f2"), 28: np.dtype("<f8"), 30: np.dtype(ml_dtypes.bfloat16)}
"""Element types without blocks, by number of the type."""


class GgufFile:
    """A GGUF file.

    Args:
        path: The file.

    Attributes:
        metadata: Values by key.
        shapes: Sizes of tensors by name, outermost first.

    Raises:
        ModelFileError: The file is malformed or truncated.
    """

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        with path.open("rb") as file:
            try:
                self._data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            except ValueError as error:
                raise self._damaged("the file is empty") from error
        self._position = 0
        if bytes(self._bytes(4)) != b"GGUF":
            raise self._damaged("expected the identifier GGUF")
        version = self._scalar("<I")
        if version not in (2, 3):
            raise self._damaged(f"expected GGUF version 2 or 3, got {version}")
        tensors, entries = self._scalar("<Q"), self._scalar("<Q")
        if max(tensors, entries) > _MOST_ENTRIES:
            raise self._damaged(f"{tensors} tensors and {entries} entries exceed {_MOST_ENTRIES}")
        self.metadata: dict[str, Any] = {}
        for _ in range(entries):
            key = self._text()
            self.metadata[key] = self._value(self._scalar("<I"), 0)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._types: dict[str, int] = {}
        self._offsets: dict[str, int] = {}
        for _ in range(tensors):
            self._read_tensor()
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
            raise self._damaged(f"alignment {alignment!r}, expected 1 to {1 << 20}")
        self._start = self._position + -self._position % alignment

    def _damaged(self, problem: str) -> ModelFileError:
        remedy = "Download or export the file again: it is damaged, or no GGUF file."
        return ModelFileError(problem, where=self.where, remedy=remedy)

    def _bytes(self, count: int) -> memoryview:
        end = self._position + count
        if count < 0 or end > len(self._data):
            raise self._damaged(f"expected {count} bytes at {self._position}, the file has {len(self._data)}")
        start, self._position = self._position, end
        return self._data[start:end]

    def _scalar(self, form: str) -> Any:
        return struct.unpack(form, self._bytes(struct.calcsize(form)))[0]

    def _text(self) -> str:
        return bytes(self._bytes(self._scalar("<Q"))).decode("utf-8", "replace")

    def _value(self, kind: int, depth: int) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY or depth > 4:
            raise self._damaged(f"unknown type {kind} of metadata at {self._position}")
        inner, count = self._scalar("<I"), self._scalar("<Q")
        if inner in _SCALARS:
            element = np.dtype(_SCALARS[inner].replace("<?", "?"))
            return np.frombuffer(self._bytes(count * element.itemsize), element)
        if count > len(self._data) // 8:
            raise self._damaged(f"an array of {count} texts exceeds the file")
        return [self._value(inner, depth + 1) for _ in range(count)]

    def _read_tensor(self) -> None:
        name = self._text()
        rank = self._scalar("<I")
        if rank > _MOST_AXES:
            raise self._damaged(f"tensor '{name}' has {rank} axes, expected at most {_MOST_AXES}")
        sizes = [self._scalar("<Q") for _ in range(rank)]
        kind, offset = self._scalar("<I"), self._scalar("<Q")
        if math.prod(sizes) > 1 << 40:
            raise self._damaged(f"tensor '{name}' has sizes {sizes}")
        self.shapes[name] = tuple(reversed(sizes))
        self._types[name], self._offsets[name] = kind, offset

    def tensor(self, name: str) -> npt.NDArray[Any] | Blocks:
        """Return a tensor, in blocks if its type is a block quantization.

        Raises:
            ModelFileError: The tensor is missing or exceeds the file.
            UnsupportedError: The type is not known.
        """
        if name not in self.shapes:
            raise self._damaged(f"tensor '{name}' is missing")
        number, shape = self._types[name], self.shapes[name]
        plain = _PLAIN.get(number)
        if plain is None and number not in BLOCKS and number not in CODEBOOKS:
            raise UnsupportedError(
                f"tensor '{name}' has type {number}", where=self.where, remedy="Requantize to Q4_0, Q8_0 or Q6_K."
            )
        size, width = (1, plain.itemsize) if plain else CODEBOOKS.get(number, ("", 0, 0))[1:]
        if number in BLOCKS:
            size, width = BLOCKS[number].size, BLOCKS[number].width
        columns = shape[-1] if shape else 1
        if columns % size:
            raise ModelFileError(
                f"tensor '{name}' has {columns} columns, expected a multiple of {size}", where=self.where
            )
        blocks = math.prod(shape) // size
        self._position = self._start + self._offsets[name]
        data = np.frombuffer(self._bytes(blocks * width), np.uint8)
        if plain:
            whole: npt.NDArray[Any] = data.view(plain).reshape(shape)
            return whole
        if number in CODEBOOKS:
            return by_codebook(number, data.reshape(blocks, width), shape, f"{self.where}: {name}")
        return BLOCKS[number].decode(data.reshape(blocks, width), shape)
