"""Weights in the form that kernels read, in memory once for all programs of the process."""

from __future__ import annotations

import hashlib
import threading
import weakref

import numpy as np

from sardonyx.compiler.analysis.constant_values import evaluate_closed, is_closed
from sardonyx.compiler.lower.launch import Prepared
from sardonyx.compiler.target.alignment import aligned
from sardonyx.core.ir.graph import Value, function

_arrays: weakref.WeakValueDictionary[tuple[str, bytes], np.ndarray] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def prepare_weight(weight: Prepared) -> np.ndarray:
    """Return a weight in the form that kernels read; programs with equal elements share the array."""
    if not is_closed(weight.source):
        return aligned(weight.make(evaluate_closed))
    key = weight.form, _digest(weight.source)
    with _lock:
        shared = _arrays.get(key)
    if shared is None:
        array = aligned(weight.make(evaluate_closed))
        with _lock:
            shared = _arrays.setdefault(key, array)
    return shared


def _digest(value: Value) -> bytes:
    """Return a digest of the graph of a closed value, including the elements of its constants."""
    digests: dict[Value, bytes] = {}
    for member in function("closed", (), [value], 0).values:
        sum = hashlib.blake2b(f"{member.op} {member.type}".encode(), digest_size=20)
        if member.is_constant:
            _add_elements(sum, member.known)
        else:
            sum.update(repr(sorted(member.params.items())).encode())
            sum.update(b"".join(digests[operand] for operand in member.operands))
        digests[member] = sum.digest()
    return digests[value]


def _add_elements(sum: hashlib.blake2b, array: np.ndarray) -> None:
    """Add the elements of an array in the order of memory, without a copy of a transposed array."""
    if array.dtype == object:
        sum.update(repr(array.tolist()).encode())
        return
    axes = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    sum.update(repr(axes).encode())
    sum.update(np.ascontiguousarray(array.transpose(axes)).reshape(-1).view(np.uint8).data)
