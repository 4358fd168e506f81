"""Types of Core values: tensors with sizes, sequences, optionals, maps.

Element types are the ONNX ones, as ``onnx_ir``'s enumeration; their numpy form is ``numpy``'s own or ``ml_dtypes``'s.
A tensor type has a rank and sizes; only inside a sequence, an optional or a map may a tensor type have an unknown
shape.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from sardonyx.base.onnx_enums import DataType
from sardonyx.core.dim import Dim, Size
from sardonyx.errors import InvalidModelError, UnsupportedError

DType: TypeAlias = DataType
"""An ONNX element type."""

Shape: TypeAlias = "tuple[Size, ...]"
"""Sizes, one per axis."""

Kind = Literal["float", "int", "uint", "bool", "complex", "string"]

FLOAT, DOUBLE, FLOAT16, BFLOAT16 = DType.FLOAT, DType.DOUBLE, DType.FLOAT16, DType.BFLOAT16
BOOL, STRING = DType.BOOL, DType.STRING
INT8, INT16, INT32, INT64 = DType.INT8, DType.INT16, DType.INT32, DType.INT64
UINT8, UINT16, UINT32, UINT64 = DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64
COMPLEX64, COMPLEX128 = DType.COMPLEX64, DType.COMPLEX128

FLOAT8 = (DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ)
FLOATS = (
    *(DOUBLE, FLOAT, FLOAT16, BFLOAT16, *FLOAT8, DType.FLOAT8E8M0),
    *(DType.FLOAT6E2M3, DType.FLOAT6E3M2, DType.FLOAT4E2M1),
)
INTS = (INT64, INT32, INT16, INT8, DType.INT4, DType.INT2)
UINTS = (UINT64, UINT32, UINT16, UINT8, DType.UINT4, DType.UINT2)
ALL_DTYPES = (*FLOATS, *INTS, *UINTS, BOOL, COMPLEX64, COMPLEX128, STRING)
"""Every element type of a Core tensor: all of ONNX 1.23."""

_KINDS: dict[DType, Kind] = {
    **dict.fromkeys(FLOATS, "float"),
    **dict.fromkeys(INTS, "int"),
    **dict.fromkeys(UINTS, "uint"),
    BOOL: "bool",
    COMPLEX64: "complex",
    COMPLEX128: "complex",
    STRING: "string",
}
_NUMPY: dict[DType, np.dtype] = {dtype: np.dtype(dtype.numpy()) for dtype in ALL_DTYPES}
_FROM_NUMPY: dict[np.dtype, DType] = {numpy: dtype for dtype, numpy in _NUMPY.items()}


def kind(dtype: DType) -> Kind:
    """Return the kind of number of the element type."""
    return _KINDS[dtype]


def is_float(dtype: DType) -> bool:
    """Return True for floating-point element types."""
    return _KINDS[dtype] == "float"


def is_integer(dtype: DType) -> bool:
    """Return True for integer element types; bool is not one."""
    return _KINDS[dtype] in ("int", "uint")


def numpy_dtype(dtype: DType) -> np.dtype:
    """Return the numpy form of an element type; strings are objects."""
    return _NUMPY[dtype]


def element_type(identifier: int | str) -> DType:
    """Return the element type with this number in the standard, or this name in any case.

    Raises:
        InvalidModelError: Unknown number or name.
    """
    name = identifier.upper() if isinstance(identifier, str) else None
    dtype = next((one for one in ALL_DTYPES if name == one.name or identifier == one.value), None)
    if dtype is None:
        raise InvalidModelError(f"unknown element type {identifier!r}.")
    return dtype


def computing_type(identifier: int, attribute: str) -> DType:
    """Return the float type in which an operator computes, by its number in the standard.

    Args:
        identifier: The number.
        attribute: Name of the attribute that has it, for the error.

    Raises:
        InvalidModelError: Unknown number, or a type without arithmetic in the standard.
    """
    dtype = element_type(identifier)
    if dtype not in (DOUBLE, FLOAT, FLOAT16, BFLOAT16):
        raise InvalidModelError(f"expected a float type of 16 bits or more as `{attribute}`, got {dtype.name.lower()}.")
    return dtype


def dtype_of(array: np.ndarray) -> DType:
    """Return the element type of an array.

    Raises:
        UnsupportedError: ONNX has no such element type.
    """
    dtype = _FROM_NUMPY.get(array.dtype)
    if dtype is not None:
        return dtype
    if array.dtype.kind in "SU":
        return STRING
    native = _FROM_NUMPY.get(array.dtype.newbyteorder("="))
    if native is None:
        # The widest type of this kind that ONNX has; others, e.g. records, have no closest one.
        closest = {"f": DOUBLE, "c": COMPLEX128, "m": INT64, "M": INT64}.get(array.dtype.kind)
        raise UnsupportedError(
            f"ONNX has no element type for numpy's {array.dtype}.",
            remedy="Give an array of numbers or strings." if closest is None else conversion_remedy(closest),
        )
    return native


def conversion_remedy(expected: DType) -> str:
    """Return the instruction to a user whose array has another element type than expected."""
    return f"Convert the array to {'strings' if expected == STRING else numpy_dtype(expected).name}."


class TensorType(NamedTuple):
    """A tensor: element type and sizes.

    ``shape`` is None (rank unknown) only inside a sequence, optional or map.
    """

    dtype: DType
    shape: Shape | None

    @property
    def nbytes(self) -> int | None:
        """Bytes of the unpacked elements, as in numpy; None if a size is symbolic. Objects count 8."""
        if self.shape is None:
            return None
        count = math.prod(self.shape)
        return None if isinstance(count, Dim) else count * _NUMPY[self.dtype].itemsize

    def __str__(self) -> str:
        return self.dtype.name.lower() + ("" if self.shape is None else f"[{', '.join(map(str, self.shape))}]")


class SequenceType(NamedTuple):
    """A sequence of values of one type."""

    element: Type

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SequenceType) and self.element == other.element

    def __hash__(self) -> int:
        return hash(("sequence", self.element))

    def __str__(self) -> str:
        return f"sequence({self.element})"


class OptionalType(NamedTuple):
    """A value of a type, or none."""

    element: Type

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OptionalType) and self.element == other.element

    def __hash__(self) -> int:
        return hash(("optional", self.element))

    def __str__(self) -> str:
        return f"optional({self.element})"


class MapType(NamedTuple):
    """A map from integers or strings to values of one type, as in classical machine learning results."""

    key: DType
    value: Type

    def __str__(self) -> str:
        return f"map({self.key.name.lower()}, {self.value})"


class TupleType(NamedTuple):
    """The results of a primitive that has several; ``get`` extracts each."""

    results: tuple[Type, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.results))})"


Type: TypeAlias = TensorType | SequenceType | OptionalType | MapType | TupleType
