"""Arrays aligned to cache lines, as kernels read and write them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64
"""Bytes of a cache line and of the widest vector."""


def aligned(array: np.ndarray) -> np.ndarray:
    """Return the array, contiguous and aligned to a cache line; a copy only if necessary."""
    if array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0:
        return array
    copy = _view_aligned(np.empty(array.nbytes + ALIGNMENT, np.uint8), array.shape, array.dtype)
    copy[...] = array
    return copy


def aligned_zeros(shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
    """Return zeros aligned to a cache line."""
    kind = np.dtype(dtype)
    return _view_aligned(np.zeros(math.prod(shape) * kind.itemsize + ALIGNMENT, np.uint8), shape, kind)


def _view_aligned(memory: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
