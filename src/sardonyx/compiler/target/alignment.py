"""Arrays aligned to cache lines, as kernels read and write them."""

from __future__ import annotations

import math
from collections.abc import Iterable

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


def aligned_empty(shape: tuple[int, ...], dtype: npt.DTypeLike) -> np.ndarray:
    """Return an uninitialized array aligned to a cache line."""
    return aligned_arrays([(shape, dtype)])[0]


def aligned_arrays(kinds: Iterable[tuple[tuple[int, ...], npt.DTypeLike]]) -> list[np.ndarray]:
    """Return uninitialized arrays in one piece of memory, each aligned to a cache line.

    The system maps a large piece by large pages, also for arrays that are small.

    Args:
        kinds: The shape and element type of each array.
    """
    sizes = [(shape, kind := np.dtype(dtype), math.prod(shape) * kind.itemsize) for shape, dtype in kinds]
    rounded = [-(-size // ALIGNMENT) * ALIGNMENT for _, _, size in sizes]
    memory = np.empty(sum(rounded) + ALIGNMENT, np.uint8)
    arrays, start = [], 0
    for (shape, kind, _), room in zip(sizes, rounded, strict=True):
        arrays.append(_view_aligned(memory[start : start + room + ALIGNMENT], shape, kind))
        start += room
    return arrays


def _view_aligned(memory: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
