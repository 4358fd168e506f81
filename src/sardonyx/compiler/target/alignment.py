"""Arrays on cache lines, as kernels read and write them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector."""


def aligned(array: np.ndarray) -> np.ndarray:
    """The array, contiguous and on a cache line."""
    if array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0:
        return array
    found = _on_a_line(np.empty(array.nbytes + ALIGNMENT, np.uint8), array.shape, array.dtype)
    found[...] = array
    return found


def aligned_zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
    """Zeros, on a cache line: what is packed there needs no other place."""
    kind = np.dtype(dtype)
    return _on_a_line(np.zeros(math.prod(shape) * kind.itemsize + ALIGNMENT, np.uint8), shape, kind)


def _on_a_line(memory: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
