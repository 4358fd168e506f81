"""Block quantization of GGUF: integers with a scale, and for some types an offset, for each block.

Source: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from sardonyx.errors import MissingDependencyError

_BYTES = npt.NDArray[np.uint8]
_FLOATS = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Blocks:
    """Numbers in blocks along the last axis: element = integer * scale - offset of the element's block.

    Attributes:
        integers: Integers of 4 or 8 bits, [..., columns].
        scales: float32, [..., columns / size].
        size: Elements of a block.
        offsets: float32, as the scales; None for symmetric types.
    """

    integers: npt.NDArray[Any]
    scales: _FLOATS
    size: int
    offsets: _FLOATS | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the sizes of the tensor."""
        return tuple(self.integers.shape)

    def __len__(self) -> int:
        return len(self.integers)

    def __getitem__(self, index: Any) -> Blocks:
        """Return a part along the first axis."""
        offsets = None if self.offsets is None else self.offsets[index]
        return Blocks(self.integers[index], self.scales[index], self.size, offsets)

    def dense(self) -> _FLOATS:
        """Return the elements in float32."""
        result = self.integers.astype(np.float32) * np.repeat(self.scales, self.size, axis=-1)
        return result if self.offsets is None else result - np.repeat(self.offsets, self.size, axis=-1)


@dataclass(frozen=True)
class BlockType:
    """A type of blocks in files.

    Attributes:
        name: Name of the type.
        size: Elements of a block.
        width: Bytes of a block.
        integers: Returns integers and scales, and offsets or None, of bytes [blocks, width]; a block of the file may
            hold several blocks of scales.
    """

    name: str
    size: int
    width: int
    integers: Callable[[_BYTES], tuple[npt.NDArray[Any], _FLOATS, _FLOATS | None]]

    def decode(self, data: _BYTES, shape: tuple[int, ...]) -> Blocks:
        """Return bytes [blocks, width] as blocks of a tensor."""
        integers, scales, offsets = self.integers(data)
        count = scales.size // max(len(data), 1) or 1
        sizes = (*shape[:-1], shape[-1] // self.size * count)
        offsets = None if offsets is None else offsets.astype(np.float32).reshape(sizes)
        return Blocks(integers.reshape(shape), scales.astype(np.float32).reshape(sizes), self.size // count, offsets)


def _half(data: _BYTES) -> _FLOATS:
    return np.ascontiguousarray(data).view("<f2").astype(np.float32)


def _nibbles(data: _BYTES) -> _BYTES:
    """Return the low halves of all bytes, then the high halves."""
    return np.concatenate([data & 15, data >> 4], axis=1)


def _fifth_bits(data: _BYTES) -> _BYTES:
    return np.unpackbits(np.ascontiguousarray(data), axis=1, bitorder="little")


def _q4_0(data: _BYTES) -> tuple[npt.NDArray[Any], _FLOATS, None]:
    return (_nibbles(data[:, 2:]).astype(np.int8) - 8).astype(ml_dtypes.int4), _half(data[:, :2]), None


def _q5_0(data: _BYTES) -> tuple[npt.NDArray[Any], _FLOATS, None]:
    integers = (_nibbles(data[:, 6:]) | _fifth_bits(data[:, 2:6]) << 4).astype(np.int8) - np.int8(16)
    return integers, _half(data[:, :2]), None


def _q8_0(data: _BYTES) -> tuple[npt.NDArray[Any], _FLOATS, None]:
    return np.ascontiguousarray(data[:, 2:]).view(np.int8), _half(data[:, :2]), None


def _q4_1(data: _BYTES) -> tuple[npt.NDArray[Any], _FLOATS, _FLOATS]:
    return _nibbles(data[:, 4:]).astype(ml_dtypes.uint4), _half(data[:, :2]), -_half(data[:, 2:4])


def _q5_1(data: _BYTES) -> tuple[npt.NDArray[Any], _FLOATS, _FLOATS]:
    return _nibbles(data[:, 8:]) | _fifth_bits(data[:, 4:8]) << 4, _half(data[:, :2]), -_half(data[:, 2:4])


def _q2_k(data: _BYTES) -> tuple[npt.NDArray[Any], _FLOATS, _FLOATS]:
    quarters = data[:, 16:80].reshape(-1, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    scales = data[:, :16]
    steps, lows = _half(data[:, 80:82]), _half(data[:, 82:84])
    return quarters.astype(ml_dtypes.uint4), steps * (scales & 15), lows * (scales >> 4)


def _q3_k(data: _BYTES) -> tuple[npt.NDArray[Any], _FLOATS, None]:
    low = data[:, 32:96].reshape(-1, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    high = data[:, None, :32] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    integers = (low.reshape(-1, 256) | high.reshape(-1, 256) << 2).astype(np.int8) - np.int8(4)
    packed, top = data[:, 96:104], data[:, None, 104:108] >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    scales = (_nibbles(packed) | top.reshape(-1, 16) << 4).astype(np.int8) - np.int8(32)
    return integers.astype(ml_dtypes.int4), _half(data[:, 108:110]) * scales, None


def _k_scales(data: _BYTES) -> tuple[_FLOATS, _FLOATS]:
    """Return the scales and offsets of 8 blocks of 32 from two factors and 12 bytes of 6-bit numbers."""
    first, second, third = data[:, 4:8], data[:, 8:12], data[:, 12:16]
    scales = np.concatenate([first & 63, third & 15 | first >> 6 << 4], axis=1)
    offsets = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], axis=1)
    return _half(data[:, :2]) * scales, _half(data[:, 2:4]) * offsets


def _q4_k(data: _BYTES) -> tuple[npt.NDArray[Any], _FLOATS, _FLOATS]:
    pairs = data[:, 16:].reshape(-1, 4, 1, 32)
    return np.concatenate([pairs & 15, pairs >> 4], axis=2).astype(ml_dtypes.uint4), *_k_scales(data)


def _q5_k(data: _BYTES) -> tuple[npt.NDArray[Any], _FLOATS, _FLOATS]:
    pairs = data[:, 48:].reshape(-1, 4, 1, 32)
    low = np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(-1, 8, 32)
    bits = data[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1
    return low | bits << 4, *_k_scales(data)


def _q6_k(data: _BYTES) -> tuple[npt.NDArray[Any], _FLOATS, None]:
    low, high = data[:, :128].reshape(-1, 2, 2, 32), data[:, 128:192].reshape(-1, 2, 32)
    scales = np.ascontiguousarray(data[:, 192:208]).view(np.int8).astype(np.float32) * _half(data[:, 208:210])
    quarters = [
        low[:, :, 0] & 15 | (high & 3) << 4,
        low[:, :, 1] & 15 | (high >> 2 & 3) << 4,
        low[:, :, 0] >> 4 | (high >> 4 & 3) << 4,
        low[:, :, 1] >> 4 | (high >> 6 & 3) << 4,
    ]
    return np.stack(quarters, axis=2).astype(np.int8) - np.int8(32), scales, None


_NONLINEAR = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
_FLOAT4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""Twice the values of e2m1."""


def _iq4_nl(data: _BYTES) -> tuple[npt.NDArray[Any], _FLOATS, None]:
    return _NONLINEAR[_nibbles(data[:, 2:])], _half(data[:, :2]), None


def _iq4_xs(data: _BYTES) -> tuple[npt.NDArray[Any], _FLOATS, None]:
    high = np.ascontiguousarray(data[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    low = np.stack([data[:, 4:8] & 15, data[:, 4:8] >> 4], axis=2).reshape(-1, 8)
    scales = (low | high.astype(np.uint8) << 4).astype(np.int8) - np.int8(32)
    halves = data[:, 8:].reshape(-1, 8, 16)
    integers = _NONLINEAR[np.concatenate([halves & 15, halves >> 4], axis=2)]
    return integers, _half(data[:, :2]) * scales, None


def _mxfp4(data: _BYTES) -> tuple[npt.NDArray[Any], _FLOATS, None]:
    return _FLOAT4[_nibbles(data[:, 1:])], np.ldexp(np.float32(1), data[:, :1].astype(np.int32) - 128), None


_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)
"""Factors that move a digit of base 3 of a byte, which is a fraction of 256, to the front."""


def _digits(data: _BYTES, count: int) -> _BYTES:
    """Return the first `count` digits of base 3 of each byte, [blocks, count * bytes]."""
    moved = data[:, None, :] * _POWERS[:count, None]  # Modulo 256.
    return (moved.astype(np.uint16) * 3 >> 8).astype(np.uint8).reshape(len(data), -1)


def _tq1_0(data: _BYTES) -> tuple[npt.NDArray[Any], _FLOATS, None]:
    parts = [_digits(data[:, :32], 5), _digits(data[:, 32:48], 5), _digits(data[:, 48:52], 4)]
    return (np.concatenate(parts, axis=1).astype(np.int8) - 1).astype(ml_dtypes.int4), _half(data[:, 52:54]), None


def _tq2_0(data: _BYTES) -> tuple[npt.NDArray[Any], _FLOATS, None]:
    quarters = data[:, :64].reshape(-1, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    integers = quarters.reshape(-1, 256).astype(np.int8) - np.int8(1)
    return integers.astype(ml_dtypes.int4), _half(data[:, 64:66]), None


BLOCKS: dict[int, BlockType] = {
    2: BlockType("Q4_0", 32, 18, _q4_0),
    3: BlockType("Q4_1", 32, 20, _q4_1),
    6: BlockType("Q5_0", 32, 22, _q5_0),
    7: BlockType("Q5_1", 32, 24, _q5_1),
    8: BlockType("Q8_0", 32, 34, _q8_0),
    10: BlockType("Q2_K", 256, 84, _q2_k),
    11: BlockType("Q3_K", 256, 110, _q3_k),
    12: BlockType("Q4_K", 256, 144, _q4_k),
    13: BlockType("Q5_K", 256, 176, _q5_k),
    14: BlockType("Q6_K", 256, 210, _q6_k),
    20: BlockType("IQ4_NL", 32, 18, _iq4_nl),
    23: BlockType("IQ4_XS", 256, 136, _iq4_xs),
    34: BlockType("TQ1_0", 256, 54, _tq1_0),
    35: BlockType("TQ2_0", 256, 66, _tq2_0),
    39: BlockType("MXFP4", 32, 17, _mxfp4),
}
"""Types by number."""

CODEBOOKS: dict[int, tuple[str, int, int]] = {
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    29: ("IQ1_M", 256, 56),
}
"""Name, elements and bytes of blocks of the types with codebooks, which the package gguf has."""


def by_codebook(number: int, data: _BYTES, shape: tuple[int, ...], where: str) -> _FLOATS:
    """Return the elements of blocks of a type with a codebook, in float32.

    Raises:
        MissingDependencyError: The package gguf is not installed.
    """
    name = CODEBOOKS[number][0]
    if importlib.util.find_spec("gguf") is None:
        raise MissingDependencyError(
            f"blocks of type {name} are read by the package gguf, which is not installed",
            where=where,
            remedy="pip install gguf, or requantize to Q4_0, Q8_0 or Q6_K.",
        )
    package = importlib.import_module("gguf")
    kind = package.GGMLQuantizationType[name]
    return np.asarray(package.quants.dequantize(data, kind), np.float32).reshape(shape)
