"""Element types in torch: the type that holds a Core type's numbers, and its spelling."""

from __future__ import annotations

from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType

SPELLINGS: dict[DType, str] = {
    t.FLOAT: "torch.float32",
    t.DOUBLE: "torch.float64",
    t.FLOAT16: "torch.float16",
    t.BFLOAT16: "torch.bfloat16",
    DType.FLOAT8E4M3FN: "torch.float8_e4m3fn",
    DType.FLOAT8E4M3FNUZ: "torch.float8_e4m3fnuz",
    DType.FLOAT8E5M2: "torch.float8_e5m2",
    DType.FLOAT8E5M2FNUZ: "torch.float8_e5m2fnuz",
    t.INT64: "torch.int64",
    t.INT32: "torch.int32",
    t.INT16: "torch.int16",
    t.INT8: "torch.int8",
    t.UINT8: "torch.uint8",
    t.UINT16: "torch.int32",
    t.UINT32: "torch.int64",
    t.UINT64: "torch.int64",
    DType.INT4: "torch.int8",
    DType.INT2: "torch.int8",
    DType.UINT4: "torch.uint8",
    DType.UINT2: "torch.uint8",
    t.BOOL: "torch.bool",
    t.COMPLEX64: "torch.complex64",
    t.COMPLEX128: "torch.complex128",
}
"""The torch type in which a module computes with a Core type: torch has no arithmetic on some integers."""

CARRIED: dict[DType, str] = {
    t.UINT16: "torch.uint16",
    t.UINT32: "torch.uint32",
    t.UINT64: "torch.uint64",
}
"""Types whose inputs and outputs torch holds, and whose numbers a module computes in a wider type."""

WRAPPED: dict[DType, tuple[int, int]] = {
    t.UINT16: (16, 0),
    t.UINT32: (32, 0),
    DType.INT4: (4, 8),
    DType.INT2: (2, 2),
    DType.UINT4: (4, 0),
    DType.UINT2: (2, 0),
}
"""Bits of types computed in a wider one, with the offset of signed ones: results are reduced to these bits."""

WIDENED = {
    DType.FLOAT8E4M3FN: "torch.float32",
    DType.FLOAT8E4M3FNUZ: "torch.float32",
    DType.FLOAT8E5M2: "torch.float32",
    DType.FLOAT8E5M2FNUZ: "torch.float32",
}
"""Floats without arithmetic in torch, with the type of their arithmetic."""
