"""Hashes of strings and numbers, as feature hashers of scikit-learn's converter use.

Source: ONNX Runtime's contrib operators, *MurmurHash3*: MurmurHash3_x86_32.
"""

from __future__ import annotations

import numpy as np

from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType, Type
from sardonyx.ops.registry import host_operator

_FIRST, _SECOND = 0xCC9E2D51, 0x1B873593
_WORD = 0xFFFFFFFF


def _types(x: Type, *, positive: int = 1, seed: int = 0) -> tuple[Type]:
    assert isinstance(x, TensorType) and x.shape is not None
    return (TensorType(t.UINT32 if positive else t.INT32, x.shape),)


@host_operator("MurmurHash3", since=1, domain="com.microsoft", types=_types, reason="strings are not numbers")
def murmur_hash(x: np.ndarray, *, positive: int = 1, seed: int = 0) -> tuple[np.ndarray]:
    """Return the 32-bit hash of each string, in UTF-8, or of the bytes of each number."""
    if x.dtype == object:
        items = [str(text).encode() for text in x.ravel().tolist()]
    else:
        items = [number.tobytes() for number in np.ascontiguousarray(x).reshape(-1)]
    hashes = np.array([_hash(item, seed & _WORD) for item in items], np.uint32).reshape(x.shape)
    return (hashes if positive else hashes.view(np.int32),)


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & _WORD


def _mixed(word: int) -> int:
    return _rotated(word * _FIRST & _WORD, 15) * _SECOND & _WORD


def _hash(data: bytes, seed: int) -> int:
    """Return MurmurHash3_x86_32 of some bytes."""
    state = seed
    whole = len(data) & ~3
    for start in range(0, whole, 4):
        state ^= _mixed(int.from_bytes(data[start : start + 4], "little"))
        state = (_rotated(state, 13) * 5 + 0xE6546B64) & _WORD
    if len(data) > whole:
        state ^= _mixed(int.from_bytes(data[whole:], "little"))
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & _WORD
    state = (state ^ state >> 13) * 0xC2B2AE35 & _WORD
    return state ^ state >> 16
