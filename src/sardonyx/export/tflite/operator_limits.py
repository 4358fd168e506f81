"""Limits of the operators of a TensorFlow Lite file: element types and ranks of broadcasting."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

TYPES = {
    ir.DataType.FLOAT: "FLOAT32",
    ir.DataType.FLOAT16: "FLOAT32",
    ir.DataType.BFLOAT16: "FLOAT32",
    ir.DataType.INT8: "INT8",
    ir.DataType.INT16: "INT16",
    ir.DataType.INT32: "INT32",
    ir.DataType.INT64: "INT64",
    ir.DataType.UINT8: "UINT8",
    ir.DataType.UINT16: "UINT16",
    ir.DataType.UINT32: "UINT32",
    ir.DataType.UINT64: "UINT64",
    ir.DataType.INT4: "INT4",
    ir.DataType.BOOL: "BOOL",
}
"""Element types within the file; 16-bit floats are computed in float32, since builtin operators lack them."""

FLOAT = frozenset(("FLOAT32",))
_WIDE = frozenset(("FLOAT32", "INT32", "INT64"))
_NUMBERS = _WIDE | {"INT8", "UINT8", "INT16"}
_ANY = _NUMBERS | {"BOOL"}

ACCEPTED: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("ADD", "SUB", "MUL", "NEG", "CUMSUM", "SUM", "REDUCE_PROD", "RANGE", "FLOOR_MOD"), _WIDE),
    **dict.fromkeys(("DIV", "POW", "FLOOR_DIV", "SIGN", "ABS"), frozenset(("FLOAT32", "INT32"))),
    **dict.fromkeys(("MAXIMUM", "MINIMUM", "REDUCE_MAX", "REDUCE_MIN", "TOPK_V2"), _NUMBERS - {"INT16"}),
    **dict.fromkeys(("LESS", "GREATER", "LESS_EQUAL", "GREATER_EQUAL"), _NUMBERS - {"INT16"}),
    **dict.fromkeys(("EQUAL", "NOT_EQUAL"), _ANY - {"INT16"}),
    **dict.fromkeys(("ARG_MAX", "ARG_MIN"), frozenset(("FLOAT32", "INT32", "INT8", "UINT8", "BOOL"))),
    **dict.fromkeys(("GATHER", "CONCATENATION", "STRIDED_SLICE", "TRANSPOSE", "SELECT_V2", "BROADCAST_TO"), _ANY),
    **dict.fromkeys(("REVERSE_V2",), _ANY),
    "GATHER_ND": _ANY,
    "SPLIT_V": _NUMBERS,
    "TILE": _ANY - {"INT16"},
    "PADV2": _NUMBERS,
    "MIRROR_PAD": _NUMBERS,
    "SCATTER_ND": _ANY - {"INT16"},
    "FILL": _ANY,
    "BITWISE_XOR": frozenset(("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32")),
    "RIGHT_SHIFT": frozenset(("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32")),
    "WHERE": frozenset(("BOOL",)),
    "DEPTH_TO_SPACE": frozenset(("FLOAT32", "INT8", "UINT8", "INT32", "INT64")),
    "SPACE_TO_DEPTH": frozenset(("FLOAT32", "INT8", "UINT8", "INT32", "INT64")),
    "UNIQUE": _WIDE | {"INT8", "UINT8", "INT16"},
    "REVERSE_SEQUENCE": frozenset(("FLOAT32", "UINT8", "INT16", "INT32", "INT64")),
}
"""Element types of the first input of each operator; float32 alone where not listed."""

WIDENED = {"INT8": "INT32", "UINT8": "INT32", "INT16": "INT32", "UINT16": "INT32", "BOOL": "INT32"}
"""A wider type that holds every value, for operators without the narrow one."""

MOST_AXES = {"ADD": 6, "SUB": 5, "MUL": 6, "DIV": 5, "MAXIMUM": 5, "MINIMUM": 5, "SELECT_V2": 5}
"""Ranks up to which operators broadcast; 4 where not listed."""

LONG_SUM = 4096
"""Number of elements from which sums over several axes are computed axis by axis."""

OPTIONS: Mapping[str, str] = {
    "ADD": "AddOptions",
    "SUB": "SubOptions",
    "MUL": "MulOptions",
    "DIV": "DivOptions",
}
