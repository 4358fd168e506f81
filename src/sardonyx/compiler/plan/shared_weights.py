"""Weights in the form that kernels read, in memory once for all programs of the process."""

from __future__ import annotations

import threading
import weakref

import numpy as np

from sardonyx.base.artifact_store import digest
from sardonyx.compiler.analysis.constant_values import evaluate_closed, is_closed
from sardonyx.compiler.lower.launch import Prepared
from sardonyx.compiler.target.alignment import aligned

_arrays: weakref.WeakValueDictionary[tuple[str, int], np.ndarray] = weakref.WeakValueDictionary()
"""The shared arrays: by a digest of their form, size and a sample of their bytes, and a number."""

_lock = threading.Lock()

_SAMPLED_BYTES = 4096
"""Bytes of an array that decide with which arrays it is compared; a digest of all bytes takes longer than packing."""


def prepare_weight(weight: Prepared) -> np.ndarray:
    """Return a weight in the form that kernels read; programs with equal elements share the array."""
    array = aligned(weight.make(evaluate_closed))
    return _shared(array, weight.form) if is_closed(weight.source) and array.dtype != object else array


def _shared(array: np.ndarray, form: str) -> np.ndarray:
    """Return an array of equal bytes and form that a program holds, else this array."""
    contents = array.reshape(-1).view(np.uint8)
    sample = contents[:: max(1, contents.size // _SAMPLED_BYTES)].tobytes()
    key = digest(form, f"{array.dtype} {array.shape}", sample)
    number = 0
    while True:
        with _lock:
            other = _arrays.setdefault((key, number), array)
        if other is array or np.array_equal(_words(other), _words(array)):
            return other
        number += 1


def _words(array: np.ndarray) -> np.ndarray:
    """Return the contents of an array as large integers, which are fast to compare."""
    contents = array.reshape(-1).view(np.uint8)
    return contents.view(np.uint64) if contents.size % 8 == 0 else contents
