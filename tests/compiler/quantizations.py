"""Quantizations and dequantizations as models write them."""

from __future__ import annotations

import numpy as np

from sardonyx.core import language as L
from sardonyx.core.eval.tensor import constant
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType

LIMITS = {t.UINT8: (0, 255), t.INT8: (-128, 127)}


def dequantized(x: L.Tensor, scale: float, zero: int) -> L.Tensor:
    return (L.cast(x, t.FLOAT) - float(zero)) * constant(np.float32(scale), t.FLOAT)


def quantized(x: L.Tensor, scale: float, zero: int, dtype: DType) -> L.Tensor:
    low, high = LIMITS[dtype]
    units = L.round_(x / constant(np.float32(scale), t.FLOAT)) + float(zero)
    return L.cast(L.clip(units, float(low), float(high)), dtype)
