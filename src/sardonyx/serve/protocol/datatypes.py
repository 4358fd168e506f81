"""Element types by their names in the Open Inference Protocol."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from sardonyx.errors import RequestError


class Datatype(NamedTuple):
    """An element type.

    Attributes:
        name: The name in the protocol.
        onnx: The name in the notation of sessions, inside of ``tensor()``.
        dtype: The numpy type of arrays; ``object`` for strings.
        size: Bytes of an element on the wire; 0 for strings, whose elements have their own lengths.
        contents: The field of typed contents in gRPC messages; empty if elements are sent as raw bytes alone.
        is_standard: True for the types that the protocol names.
    """

    name: str
    onnx: str
    dtype: np.dtype[Any]
    size: int
    contents: str = ""
    is_standard: bool = True

    @property
    def has_json(self) -> bool:
        """True if elements have a JSON form."""
        return self.name not in ("FP16", "BF16") and self.is_standard


def _type(name: str, onnx: str, dtype: Any, contents: str = "", is_standard: bool = True) -> Datatype:
    kind = np.dtype(dtype)
    return Datatype(name, onnx, kind, 0 if kind.kind == "O" else kind.itemsize, contents, is_standard)


DATATYPES = {
    type.name: type
    for type in (
        _type("BOOL", "bool", np.bool_, "bool_contents"),
        _type("UINT8", "uint8", np.uint8, "uint_contents"),
        _type("UINT16", "uint16", np.uint16, "uint_contents"),
        _type("UINT32", "uint32", np.uint32, "uint_contents"),
        _type("UINT64", "uint64", np.uint64, "uint64_contents"),
        _type("INT8", "int8", np.int8, "int_contents"),
        _type("INT16", "int16", np.int16, "int_contents"),
        _type("INT32", "int32", np.int32, "int_contents"),
        _type("INT64", "int64", np.int64, "int64_contents"),
        _type("FP16", "float16", np.float16),
        _type("FP32", "float", np.float32, "fp32_contents"),
        _type("FP64", "double", np.float64, "fp64_contents"),
        _type("BF16", "bfloat16", ml_dtypes.bfloat16),
        _type("BYTES", "string", object, "bytes_contents"),
        # Beyond the protocol; one byte an element, also for types of four bits.
        _type("FP8E4M3FN", "float8e4m3fn", ml_dtypes.float8_e4m3fn, is_standard=False),
        _type("FP8E4M3FNUZ", "float8e4m3fnuz", ml_dtypes.float8_e4m3fnuz, is_standard=False),
        _type("FP8E5M2", "float8e5m2", ml_dtypes.float8_e5m2, is_standard=False),
        _type("FP8E5M2FNUZ", "float8e5m2fnuz", ml_dtypes.float8_e5m2fnuz, is_standard=False),
        _type("INT4", "int4", ml_dtypes.int4, is_standard=False),
        _type("UINT4", "uint4", ml_dtypes.uint4, is_standard=False),
        _type("COMPLEX64", "complex64", np.complex64, is_standard=False),
        _type("COMPLEX128", "complex128", np.complex128, is_standard=False),
    )
}
"""The element types by name."""

_BY_ONNX = {f"tensor({type.onnx})": type for type in DATATYPES.values()}
_BY_DTYPE = {type.dtype: type for type in DATATYPES.values()}


def of_onnx(type: str) -> Datatype | None:
    """Return the element type of a session's type such as ``tensor(float)``; None for values that are not tensors."""
    return _BY_ONNX.get(type)


def of_array(array: np.ndarray) -> Datatype:
    """Return the element type of an array.

    Raises:
        RequestError: The protocol has no name for the type.
    """
    return of_dtype(array.dtype)


def of_dtype(dtype: np.dtype[Any]) -> Datatype:
    """Return the element type of a numpy type.

    Raises:
        RequestError: The protocol has no name for the type.
    """
    datatype = _BY_DTYPE.get(dtype)
    if datatype is None:
        if dtype.kind in "US":
            return DATATYPES["BYTES"]
        raise RequestError(f"the protocol cannot express elements of type {dtype}.", kind="unsupported")
    return datatype


def named(name: object, where: str) -> Datatype:
    """Return the element type of a name.

    Raises:
        RequestError: The name is unknown.
    """
    datatype = DATATYPES.get(name) if isinstance(name, str) else None
    if datatype is None:
        known = ", ".join(DATATYPES)
        raise RequestError(f"unknown datatype {shortened(name)}.", where=where, remedy=f"Known: {known}.")
    return datatype


def all_finite(array: np.ndarray) -> bool:
    """Return True if no number of an array is NaN or infinite."""
    finite = np.isfinite(array)
    if array.size <= 1024:
        # A search in bytes takes half of the time of a reduction of a small array.
        return b"\0" not in finite.tobytes()
    return bool(finite.all())


def shortened(value: object) -> str:
    """Return a value of a request for a message: at most 64 characters, without control characters."""
    text = repr(value)
    return text if len(text) <= 64 else f"{text[:60]}…"
