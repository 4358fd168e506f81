"""Read GGUF files: metadata, and tensors as views of the mapped file, with every size checked.

Block quantization of symmetric types stays: integers of 4 or 8 bits with one scale for each block. Types with an offset
for each block become float32.
Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from sardonyx.errors import ModelFileError, UnsupportedError

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MOST_ENTRIES = 1 << 20
_MOST_AXES = 4

BLOCKS: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}
"""Name, elements and bytes of a block, by number of the type."""


@dataclass(frozen=True)
class Blocks:
    """A matrix in blocks along its last axis: element = integer * scale of the element's block.

    Attributes:
        integers: int4 or int8, [rows, columns].
        scales: float32, [rows, columns / size].
        size: Elements of a block.
    """

    integers: npt.NDArray[Any]
    scales: npt.NDArray[np.float32]
    size: int

    def dense(self) -> npt.NDArray[np.float32]:
        """Return the elements in float32."""
        return self.integers.astype(np.float32) * np.repeat(self.scales, self.size, axis=-1)


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
        """Return a tensor, in blocks if its type is symmetric block quantization.

        Raises:
            ModelFileError: The tensor is missing or exceeds the file.
            UnsupportedError: The type is not known.
        """
        if name not in self.shapes:
            raise self._damaged(f"tensor '{name}' is missing")
        number, shape = self._types[name], self.shapes[name]
        if number not in BLOCKS:
            raise UnsupportedError(
                f"tensor '{name}' has type {number}", where=self.where, remedy="Requantize to Q4_0, Q8_0 or Q6_K."
            )
        kind, size, width = BLOCKS[number]
        columns = shape[-1] if shape else 1
        if columns % size:
            raise ModelFileError(
                f"tensor '{name}' has {columns} columns, expected a multiple of {size}", where=self.where
            )
        blocks = math.prod(shape) // size
        self._position = self._start + self._offsets[name]
        data = np.frombuffer(self._bytes(blocks * width), np.uint8)
        if size == 1:
            dtype = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}[kind]
            plain: npt.NDArray[Any] = data.view(dtype).reshape(shape)
            return plain
        return _DECODERS[kind](data.reshape(blocks, width), shape)


def _half(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(data).view("<f2").astype(np.float32)


def _nibbles(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return the low halves of all bytes, then the high halves."""
    return np.concatenate([data & 15, data >> 4], axis=1)


def _fifth_bits(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    return np.unpackbits(np.ascontiguousarray(data), axis=1, bitorder="little")


def _blocked(integers: npt.NDArray[Any], scales: npt.NDArray[np.float32], shape: tuple[int, ...], size: int) -> Blocks:
    return Blocks(integers.reshape(shape), scales.reshape(*shape[:-1], shape[-1] // size), size)


def _q4_0(data: npt.NDArray[np.uint8], shape: tuple[int, ...]) -> Blocks:
    integers = (_nibbles(data[:, 2:]).astype(np.int8) - 8).astype(ml_dtypes.int4)
    return _blocked(integers, _half(data[:, :2]), shape, 32)


def _q5_0(data: npt.NDArray[np.uint8], shape: tuple[int, ...]) -> Blocks:
    integers = (_nibbles(data[:, 6:]) | _fifth_bits(data[:, 2:6]) << 4).astype(np.int8) - np.int8(16)
    return _blocked(integers, _half(data[:, :2]), shape, 32)


def _q8_0(data: npt.NDArray[np.uint8], shape: tuple[int, ...]) -> Blocks:
    return _blocked(np.ascontiguousarray(data[:, 2:]).view(np.int8), _half(data[:, :2]), shape, 32)


def _q4_1(data: npt.NDArray[np.uint8], shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    return (_nibbles(data[:, 4:]) * _half(data[:, :2]) + _half(data[:, 2:4])).astype(np.float32).reshape(shape)


def _q5_1(data: npt.NDArray[np.uint8], shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    numbers = _nibbles(data[:, 8:]) | _fifth_bits(data[:, 4:8]) << 4
    return (numbers * _half(data[:, :2]) + _half(data[:, 2:4])).astype(np.float32).reshape(shape)


def _q6_k(data: npt.NDArray[np.uint8], shape: tuple[int, ...]) -> Blocks:
    low, high = data[:, :128].reshape(-1, 2, 2, 32), data[:, 128:192].reshape(-1, 2, 32)
    scales = np.ascontiguousarray(data[:, 192:208]).view(np.int8).astype(np.float32) * _half(data[:, 208:210])
    quarters = [
        low[:, :, 0] & 15 | (high & 3) << 4,
        low[:, :, 1] & 15 | (high >> 2 & 3) << 4,
        low[:, :, 0] >> 4 | (high >> 4 & 3) << 4,
        low[:, :, 1] >> 4 | (high >> 6 & 3) << 4,
    ]
    integers = np.stack(quarters, axis=2).reshape(len(data), 256).astype(np.int8) - np.int8(32)
    return _blocked(integers, scales, shape, 16)


def _k_scales(data: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return the scales and minima of 8 sub-blocks from 12 bytes of 6-bit numbers."""
    first, second, third = data[:, :4], data[:, 4:8], data[:, 8:12]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    minima = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _affine_k(
    numbers: npt.NDArray[Any], data: npt.NDArray[np.uint8], shape: tuple[int, ...]
) -> npt.NDArray[np.float32]:
    scales, minima = _k_scales(data[:, 4:16])
    steps, lows = _half(data[:, :2]) * scales, _half(data[:, 2:4]) * minima
    result: npt.NDArray[np.float32] = numbers * steps[:, :, None] - lows[:, :, None]
    return result.astype(np.float32).reshape(shape)


def _q4_k(data: npt.NDArray[np.uint8], shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    pairs = data[:, 16:].reshape(-1, 4, 1, 32)
    return _affine_k(np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 8, 32), data, shape)


def _q5_k(data: npt.NDArray[np.uint8], shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    pairs = data[:, 48:].reshape(-1, 4, 1, 32)
    low = np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 8, 32)
    bits = data[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return _affine_k(low | bits << 4, data, shape)


_DECODERS: dict[str, Callable[[npt.NDArray[np.uint8], tuple[int, ...]], npt.NDArray[Any] | Blocks]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
