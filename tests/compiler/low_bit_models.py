"""Products by weights of few bits, as Core functions of operators, with the magnitudes that bound their errors."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from sardonyx.core.dim import Dim, Size
from sardonyx.core.eval.tensor import Tensor, constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function
from sardonyx.core.ir.types import TensorType
from sardonyx.ops.definitions.microsoft.quantized_products import matmul_n_bits
from sardonyx.ops.definitions.products import gemm, matmul
from sardonyx.ops.definitions.quantization import dequantize_linear

M = Dim.symbol("M")
_DEQUANTIZED = {
    (2, True): ml_dtypes.int2, (4, True): ml_dtypes.int4, (8, True): np.int8,
    (2, False): ml_dtypes.uint2, (4, False): ml_dtypes.uint4, (8, False): np.uint8,
}  # fmt: skip


@dataclass(frozen=True)
class Weights:
    """Weights ``(codes - zero) * scale`` with a scale per block and column.

    Attributes:
        codes: [K, N].
        scale: [blocks, N].
        zero: [blocks, N]; None for the middle of the range.
        bits: Bits of a code.
        block: Steps of K that share a scale.
        signed: True if codes are signed: MatMulNBits has unsigned codes.
    """

    codes: np.ndarray
    scale: np.ndarray
    zero: np.ndarray | None
    bits: int
    block: int
    signed: bool

    @property
    def magnitude(self) -> np.ndarray:
        """Bounds of the magnitudes that a product adds, [K, N]."""
        k, middle = len(self.codes), 0 if self.signed else 1 << (self.bits - 1)
        zero = np.full_like(self.scale, middle) if self.zero is None else self.zero
        sizes = np.abs(self.codes - middle) + np.abs(zero - middle).repeat(self.block, 0)[:k]
        return (sizes * np.abs(self.scale).repeat(self.block, 0)[:k]).astype(np.float64)


def draw_weights(k: int, n: int, bits: int, block: int, *, zero: bool, signed: bool = False, seed: int = 0) -> Weights:
    """Return random weights; half of the columns have negative scales."""
    rng = np.random.default_rng(seed)
    low = -(1 << (bits - 1)) if signed else 0
    blocks = -(-k // block)
    codes = rng.integers(low, low + (1 << bits), (k, n)).astype(np.int32)
    scale = (rng.random((blocks, n), np.float32) + np.float32(0.5)) * rng.choice(np.array([-1, 1], np.float32), n)
    zeros = rng.integers(low, low + (1 << bits), (blocks, n)).astype(np.int32) if zero else None
    return Weights(codes, scale, zeros, bits, block, signed)


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return codes [..., count] in bytes, lowest bits first, padded with zeros."""
    parts = 8 // bits
    padded = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % parts)]).astype(np.uint8)
    split = padded.reshape(*codes.shape[:-1], -1, parts)
    return np.bitwise_or.reduce(split << np.arange(0, 8, bits, dtype=np.uint8), -1, dtype=np.uint8)


def n_bits(weights: Weights, rows: Size = M) -> Function:
    """Return ``MatMulNBits`` with constant weights."""
    k, n = weights.codes.shape
    blocks = len(weights.scale)
    padded = np.pad(weights.codes, ((0, blocks * weights.block - k), (0, 0))).T.reshape(n, blocks, weights.block)
    scales = constant(np.ascontiguousarray(weights.scale.T))
    zeros = None if weights.zero is None else constant(packed(weights.zero.T, weights.bits), t.UINT8)

    def body(x: Tensor) -> list[Tensor]:
        return [
            matmul_n_bits(
                x, constant(packed(padded, weights.bits), t.UINT8), scales, zeros,
                K=k, N=n, bits=weights.bits, block_size=weights.block,
            )
        ]  # fmt: skip

    return trace("n_bits", body, [TensorType(t.FLOAT, (rows, k))])


def dequantized(weights: Weights, rows: Size = M, *, transposed: bool = False, per: str = "block") -> Function:
    """Return ``DequantizeLinear`` before ``MatMul``, or before ``Gemm`` with transposed weights.

    Args:
        weights: The weights; scales of the first block alone count if ``per`` is not ``block``.
        rows: Rows of the first operand.
        transposed: Weights are [N, K].
        per: ``block``, ``column`` or ``tensor``.
    """
    dtype = _DEQUANTIZED[weights.bits, weights.signed]
    zero = np.full(weights.scale.shape, 0 if weights.signed else 1 << (weights.bits - 1))
    zero = (zero if weights.zero is None else weights.zero).astype(dtype)
    scale = weights.scale
    if per != "block":
        scale, zero = (part[0] if per == "column" else part[0, 0] for part in (scale, zero))
    codes = weights.codes.astype(dtype)
    axis, block = 0, weights.block if per == "block" else 0
    if per == "column":
        axis = 1
    if transposed:
        codes, scale, zero, axis = codes.T, scale.T, zero.T, 1 - axis

    def body(x: Tensor) -> list[Tensor]:
        parts = [constant(np.ascontiguousarray(part)) for part in (codes, scale, zero)]
        w = dequantize_linear(*parts, axis=axis, block_size=block)
        return [gemm(x, w, transB=1, alpha=0.5) if transposed else matmul(x, w)]

    return trace("dequantized", body, [TensorType(t.FLOAT, (rows, len(weights.codes)))])
