"""Element types that kernels compute in, move, or only convert."""

from __future__ import annotations

from types import MappingProxyType

from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType

PACKED_BITS = MappingProxyType({DType.INT4: 4, DType.INT2: 2, DType.UINT4: 4, DType.UINT2: 2})
"""Bits per element of the integers narrower than a byte."""

MINIFLOATS = (
    DType.FLOAT8E4M3FN, DType.FLOAT8E4M3FNUZ, DType.FLOAT8E5M2, DType.FLOAT8E5M2FNUZ,
    DType.FLOAT6E2M3, DType.FLOAT6E3M2, DType.FLOAT4E2M1, DType.FLOAT8E8M0,
)  # fmt: skip
"""Floating-point types of 8 bits and less."""

DTYPES = (
    t.FLOAT, t.DOUBLE, t.FLOAT16, t.BFLOAT16, t.BOOL,
    t.INT8, t.INT16, t.INT32, t.INT64, t.UINT8, t.UINT16, t.UINT32, t.UINT64,
    *PACKED_BITS, *MINIFLOATS,
)  # fmt: skip
"""Element types of the values that kernels compute."""

MOVED_DTYPES = (*DTYPES, t.COMPLEX64)
"""Element types of the values that kernels load and store.

A ``complex64`` is only moved, as 64 bits.
"""

SMALL_DTYPES = frozenset((*PACKED_BITS, *MINIFLOATS))
"""Types of at most 8 bits without processor support.

Kernels move and convert their elements, and rarely compute in these types.
"""
