"""DLPack for every element type of numpy and of ``ml_dtypes``.

Numpy itself refuses bfloat16 and the 8-bit floats. A capsule states its element type in two bytes. For types that numpy
does not know, the capsule is exported and imported as unsigned integers of the same size: only the byte with the kind
of number is exchanged, and ownership of the memory stays with the exporter.
Protocol: https://dmlc.github.io/dlpack/latest/.
"""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np

PROCESSOR = (1, 0)
"""The device of numpy's arrays in DLPack: ``kDLCPU``."""

_HOST_KINDS = (1, 3)
"""Devices whose memory the CPU can read: ``kDLCPU`` and ``kDLCUDAHost`` (pinned)."""

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
"""DLPack codes of the element types that numpy refuses (``DLDataTypeCode``)."""

_DTYPES = {(code, dtype.itemsize * 8): dtype for dtype, code in _CODES.items()}


class _Tensor(ctypes.Structure):
    """The first fields of ``DLTensor``."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    )


_TENSOR_OFFSETS = {b"dltensor": 0, b"dltensor_versioned": 32}
"""Offset of the tensor in the struct of a capsule, by name.

Versioned structs begin with version, context, deleter and flags.
"""

_is_valid, _pointer = ctypes.pythonapi.PyCapsule_IsValid, ctypes.pythonapi.PyCapsule_GetPointer
_is_valid.argtypes = _pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_is_valid.restype, _pointer.restype = ctypes.c_int, ctypes.c_void_p


def _tensor(capsule: Any) -> _Tensor:
    """Return the tensor struct of a capsule, to be read and changed in place.

    Raises:
        BufferError: The object is not a DLPack capsule, or was consumed already.
    """
    for name, offset in _TENSOR_OFFSETS.items():
        if _is_valid(capsule, name):
            return _Tensor.from_address(_pointer(capsule, name) + offset)
    raise BufferError("expected an unconsumed DLPack capsule")


class _Unsigned:
    """An exporter of a capsule whose elements are unsigned integers."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return PROCESSOR


def from_capsule(capsule: Any) -> np.ndarray:
    """Return an array over the memory of a capsule, which is consumed.

    Raises:
        BufferError: The object is not a capsule, was consumed already, or is not in host memory.
    """
    tensor = _tensor(capsule)
    if tensor.device_type not in _HOST_KINDS:
        raise BufferError(f"expected a tensor in host memory, got one on a device of kind {tensor.device_type}")
    dtype = _DTYPES.get((tensor.code, tensor.bits))
    if dtype is None:
        return np.from_dlpack(_Unsigned(capsule))
    tensor.code = _UNSIGNED
    return np.from_dlpack(_Unsigned(capsule)).view(dtype)


def from_dlpack(exporter: Any) -> np.ndarray:
    """Return an array over the memory of a DLPack exporter; nothing is copied.

    Args:
        exporter: An object with ``__dlpack__`` and ``__dlpack_device__``, for example a torch tensor.

    Raises:
        BufferError: The tensor is not in host memory, or the exporter refuses.
    """
    kind, _ = exporter.__dlpack_device__()
    if int(kind) not in _HOST_KINDS:
        raise BufferError(f"expected a tensor in host memory, got one on a device of kind {int(kind)}")
    try:
        capsule = exporter.__dlpack__(max_version=(1, 0))
    except TypeError:  # Exporters of the unversioned protocol.
        capsule = exporter.__dlpack__()
    return from_capsule(capsule)


def to_capsule(array: np.ndarray, **options: Any) -> Any:
    """Return a capsule of an array, which holds a reference to the array; nothing is copied.

    Args:
        array: The array, of numbers.
        options: Options of ``numpy.ndarray.__dlpack__``.

    Raises:
        BufferError: The elements are not numbers, or the array is read-only and ``max_version`` cannot express that.
    """
    code = _CODES.get(array.dtype)
    if code is None:
        return array.__dlpack__(**options)
    capsule = array.view(f"u{array.itemsize}").__dlpack__(**options)
    _tensor(capsule).code = code
    return capsule
