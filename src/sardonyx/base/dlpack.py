"""DLPack for every element type of numpy and of ``ml_dtypes``: numpy itself refuses bfloat16 and the 8-bit floats.

A capsule says in two bytes what its elements are. Of types that numpy does not know, one is made from that of unsigned
integers of the same size, and read as such: only the byte that tells the kind of number is exchanged, and memory stays
the matter of whoever made it. Protocol: https://dmlc.github.io/dlpack/latest/.
"""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np

PROCESSOR = (1, 0)
"""The device of numpy's arrays, as DLPack counts: ``kDLCPU``."""

_HOST_KINDS = (1, 3)
"""Devices whose memory the processor reads: its own, and what CUDA has pinned of it."""

_UNSIGNED = 1

_CODES = {
    np.dtype(ml_dtypes.bfloat16): 4,
    np.dtype(ml_dtypes.float8_e3m4): 7,
    np.dtype(ml_dtypes.float8_e4m3): 8,
    np.dtype(ml_dtypes.float8_e4m3b11fnuz): 9,
    np.dtype(ml_dtypes.float8_e4m3fn): 10,
    np.dtype(ml_dtypes.float8_e4m3fnuz): 11,
    np.dtype(ml_dtypes.float8_e5m2): 12,
    np.dtype(ml_dtypes.float8_e5m2fnuz): 13,
    np.dtype(ml_dtypes.float8_e8m0fnu): 14,
}
"""What DLPack calls the element types that numpy refuses (``DLDataTypeCode``)."""

_DTYPES = {(code, dtype.itemsize * 8): dtype for dtype, code in _CODES.items()}


class _Tensor(ctypes.Structure):
    """The head of ``DLTensor``."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


_PLACES = {b"dltensor": 0, b"dltensor_versioned": 32}
"""Where the tensor is in what a capsule of this name points to: behind version, context, deleter and flags, if it says
those first."""

_is_valid, _pointer = ctypes.pythonapi.PyCapsule_IsValid, ctypes.pythonapi.PyCapsule_GetPointer
_is_valid.argtypes = _pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_is_valid.restype, _pointer.restype = ctypes.c_int, ctypes.c_void_p


def _tensor(capsule: Any) -> _Tensor:
    """What a capsule says of its tensor, to be read and changed in place.

    Raises:
        BufferError: It is no capsule of DLPack, or was taken already.
    """
    for name, place in _PLACES.items():
        if _is_valid(capsule, name):
            return _Tensor.from_address(_pointer(capsule, name) + place)
    raise BufferError("this is no capsule of DLPack, or it was taken already")


class _Unsigned:
    """A capsule, for numpy to take, its elements as unsigned integers."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return PROCESSOR


def from_capsule(capsule: Any) -> np.ndarray:
    """The array over the memory of a capsule, which is taken by that.

    Raises:
        BufferError: It is none, or was taken already; or it is not in the processor's memory.
    """
    tensor = _tensor(capsule)
    if tensor.device_type not in _HOST_KINDS:
        raise BufferError(f"it is on a device of kind {tensor.device_type}, and not in the processor's memory")
    dtype = _DTYPES.get((tensor.code, tensor.bits))
    if dtype is None:
        return np.from_dlpack(_Unsigned(capsule))
    tensor.code = _UNSIGNED
    return np.from_dlpack(_Unsigned(capsule)).view(dtype)


def from_dlpack(exporter: Any) -> np.ndarray:
    """The array over the memory of whoever speaks DLPack; nothing is copied.

    Args:
        exporter: What has ``__dlpack__`` and ``__dlpack_device__``, a torch tensor for example.

    Raises:
        BufferError: It is not in the processor's memory, or the exporter refuses.
    """
    kind, _ = exporter.__dlpack_device__()
    if int(kind) not in _HOST_KINDS:
        raise BufferError(f"it is on a device of kind {int(kind)}, and not in the processor's memory")
    try:
        capsule = exporter.__dlpack__(max_version=(1, 0))
    except TypeError:  # Who speaks it since before there were versions.
        capsule = exporter.__dlpack__()
    return from_capsule(capsule)


def to_capsule(array: np.ndarray, **options: Any) -> Any:
    """The capsule of an array, which keeps it; nothing is copied.

    Args:
        array: The array; of numbers.
        options: As ``numpy.ndarray.__dlpack__`` has them.

    Raises:
        BufferError: The elements are not numbers, or must not be written and ``max_version`` cannot say so.
    """
    code = _CODES.get(array.dtype)
    if code is None:
        return array.__dlpack__(**options)
    capsule = array.view(f"u{array.itemsize}").__dlpack__(**options)
    _tensor(capsule).code = code
    return capsule
