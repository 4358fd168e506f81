"""Words of the ONNX text syntax: element types, attribute types, and the storage of each element type."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
from onnx import AttributeProto, TensorProto

ELEMENT_TYPES: Final[dict[str, int]] = {
    "undefined": 0,
    "float": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "string": 8,
    "bool": 9,
    "float16": 10,
    "double": 11,
    "uint32": 12,
    "uint64": 13,
    "complex64": 14,
    "complex128": 15,
    "bfloat16": 16,
    "float8e4m3fn": 17,
    "float8e4m3fnuz": 18,
    "float8e5m2": 19,
    "float8e5m2fnuz": 20,
    "uint4": 21,
    "int4": 22,
    "float4e2m1": 23,
    "float8e8m0": 24,
    "uint2": 25,
    "int2": 26,
    "float6e2m3": 27,
    "float6e3m2": 28,
}
"""Element types (``TensorProto.DataType``) by their name in the syntax."""

ELEMENT_NAMES: Final[dict[int, str]] = {number: name for name, number in ELEMENT_TYPES.items()}

TYPE_WORDS: Final = frozenset(ELEMENT_TYPES) | {"seq", "map", "optional", "sparse_tensor", "opaque"}
"""Words that begin a type; a name equal to one of these words is written in quotes."""

ATTRIBUTE_TYPES: Final[dict[str, int]] = {name.lower(): number for name, number in AttributeProto.AttributeType.items()}
ATTRIBUTE_NAMES: Final[dict[int, str]] = {number: name for name, number in ATTRIBUTE_TYPES.items()}

VALUE_FIELDS: Final[dict[int, str]] = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.TYPE_PROTO: "tp",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors",
    AttributeProto.GRAPHS: "graphs",
    AttributeProto.SPARSE_TENSORS: "sparse_tensors",
    AttributeProto.TYPE_PROTOS: "type_protos",
}
"""The field of ``AttributeProto`` for the value of each attribute type."""

LIST_OF: Final[dict[int, int]] = {
    AttributeProto.FLOAT: AttributeProto.FLOATS,
    AttributeProto.INT: AttributeProto.INTS,
    AttributeProto.STRING: AttributeProto.STRINGS,
    AttributeProto.TENSOR: AttributeProto.TENSORS,
    AttributeProto.GRAPH: AttributeProto.GRAPHS,
    AttributeProto.TYPE_PROTO: AttributeProto.TYPE_PROTOS,
}
"""The list type of each single type whose lists are written element by element."""

SINGLE_OF: Final[dict[int, int]] = {many: one for one, many in LIST_OF.items()}


@dataclass(frozen=True, slots=True)
class Storage:
    """Fields and formats for the numbers of a tensor of one element type.

    Attributes:
        field: The typed field of ``TensorProto`` (``float_data``, ``int32_data``, …).
        typed: Little-endian dtype of one entry of the typed field.
        raw: Little-endian dtype of one number of ``raw_data``. Types absent from numpy are written as bit patterns,
            types below one byte as their packed bytes; both as in ``int32_data``.
    """

    field: str
    typed: np.dtype[np.generic]
    raw: np.dtype[np.generic]


def _storage(field: str, typed: str, raw: str | None = None) -> Storage:
    return Storage(field, np.dtype(typed), np.dtype(raw or typed))


STORAGE: Final[dict[int, Storage]] = {
    TensorProto.FLOAT: _storage("float_data", "<f4"),
    TensorProto.COMPLEX64: _storage("float_data", "<f4"),
    TensorProto.DOUBLE: _storage("double_data", "<f8"),
    TensorProto.COMPLEX128: _storage("double_data", "<f8"),
    TensorProto.INT64: _storage("int64_data", "<i8"),
    TensorProto.UINT32: _storage("uint64_data", "<u8", "<u4"),
    TensorProto.UINT64: _storage("uint64_data", "<u8"),
    TensorProto.INT32: _storage("int32_data", "<i4"),
    TensorProto.INT16: _storage("int32_data", "<i4", "<i2"),
    TensorProto.INT8: _storage("int32_data", "<i4", "i1"),
    TensorProto.UINT16: _storage("int32_data", "<i4", "<u2"),
    TensorProto.FLOAT16: _storage("int32_data", "<i4", "<u2"),
    TensorProto.BFLOAT16: _storage("int32_data", "<i4", "<u2"),
    TensorProto.UINT8: _storage("int32_data", "<i4", "u1"),
    TensorProto.BOOL: _storage("int32_data", "<i4", "u1"),
    **{number: _storage("int32_data", "<i4", "u1") for number in range(TensorProto.FLOAT8E4M3FN, 29)},
}
"""Storage by element type; strings are stored in ``string_data`` and have no entry."""

IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

MAX_DEPTH: Final = 90
"""Nesting limit of parser and printer; protobuf itself refuses messages nested deeper than 100."""
