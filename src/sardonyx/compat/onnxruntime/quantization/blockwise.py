"""Integers of few bits with a scale for each block of a matrix, by ONNX Runtime's names and layouts.

The functions fill the arrays that the caller passes, as ONNX Runtime's do.
"""

from __future__ import annotations

import numpy as np

_FP4 = np.array([0.00260417, 0.0859375, 0.20833333, 0.29166667, 0.4166667, 0.583333, 0.8333333], np.float32)
_FP4_CODES = np.array([0, 1, 6, 7, 4, 5, 2, 3], np.uint8)
_NF4 = np.array(
    [
        -0.8480964004993439, -0.6106329262256622, -0.4599952697753906, -0.33967943489551544, -0.23460740596055984,
        -0.13791173323988914, -0.045525018125772476, 0.03979014977812767, 0.1202552504837513, 0.2035212516784668,
        0.2920137718319893, 0.3893125355243683, 0.5016634166240692, 0.6427869200706482, 0.8614784181118011,
    ],
    np.float32,
)  # fmt: skip
"""Limits between codes. Source: Dettmers et al., QLoRA, 2023."""


def blocks_of(matrix: np.ndarray, block_size: int) -> np.ndarray:
    """Return the blocks of the columns of a matrix, of shape [blocks, block size, columns], padded by 0."""
    rows, columns = matrix.shape
    count = -(-rows // block_size)
    padded = np.pad(matrix.astype(np.float32), ((0, count * block_size - rows), (0, 0)))
    return padded.reshape(count, block_size, columns)


def quantize_blocks(blocks: np.ndarray, bits: int, symmetric: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the integers from 0 on, the scales and the zero points of blocks along axis 1.

    Symmetric scales map the element of the largest magnitude to the least integer, so that they may be negative.

    Returns:
        Integers of the shape of the blocks, and scales and zero points with size 1 in axis 1.
    """
    top = (1 << bits) - 1
    low, high = blocks.min(1, keepdims=True), blocks.max(1, keepdims=True)
    if symmetric:
        largest = np.where(np.abs(low) >= np.abs(high), low, high)
        scale = largest / np.float32(-(1 << (bits - 1)))
        zero_point = np.full(scale.shape, 1 << (bits - 1), np.float32)
    else:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        scale = (high - low) / np.float32(top)
        zero_point = np.clip(np.round(np.where(scale == 0, low, -low / np.where(scale == 0, 1, scale))), 0, top)
    reciprocal = np.where(scale == 0, np.float32(0), 1 / np.where(scale == 0, np.float32(1), scale))
    integers = np.clip(np.round(blocks * reciprocal + zero_point), 0, top)
    return integers.astype(np.uint8), scale, zero_point.astype(np.uint8)


def pack_bits(values: np.ndarray, bits: int) -> np.ndarray:
    """Return integers with several in a byte along the last axis, the first in the low bits, padded by 0."""
    count = 8 // bits
    padded = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, -values.shape[-1] % count)])
    parts = padded.reshape(*padded.shape[:-1], -1, count)
    return np.asarray(sum(parts[..., i].astype(np.uint8) << (bits * i) for i in range(count)), np.uint8)


def _quantize_matmul(
    bits: int, dst: np.ndarray, src: np.ndarray, scale: np.ndarray, zero_points: np.ndarray, block_size: int,
    n: int, k: int, is_symmetric: bool,
) -> None:  # fmt: skip
    integers, scales, zeros = quantize_blocks(blocks_of(src[:k], block_size), bits, is_symmetric)
    dst[...] = pack_bits(integers.transpose(2, 0, 1), bits).reshape(dst.shape)
    scale[...] = scales[:, 0].T.reshape(scale.shape)
    if not is_symmetric:
        zero_points[...] = _packed_zero_points(zeros[:, 0].T, bits).reshape(zero_points.shape)


def _packed_zero_points(zeros: np.ndarray, bits: int) -> np.ndarray:
    """Return packed zero points, padded by the middle of the integers."""
    count = 8 // bits
    missing = -zeros.shape[-1] % count
    return pack_bits(np.pad(zeros, ((0, 0), (0, missing)), constant_values=1 << (bits - 1)), bits)


def quantize_matmul_2bits(
    dst: np.ndarray, src: np.ndarray, scale: np.ndarray, zero_points: np.ndarray, block_size: int, N: int, K: int,
    is_symmetric: bool,
) -> None:  # fmt: skip
    """Quantize a matrix [K, N] to 2 bits in the layout of MatMulNBits."""
    _quantize_matmul(2, dst, src, scale, zero_points, block_size, N, K, is_symmetric)


def quantize_matmul_4bits(
    dst: np.ndarray, src: np.ndarray, scale: np.ndarray, zero_points: np.ndarray, block_size: int, N: int, K: int,
    is_symmetric: bool,
) -> None:  # fmt: skip
    """Quantize a matrix [K, N] to 4 bits in the layout of MatMulNBits."""
    _quantize_matmul(4, dst, src, scale, zero_points, block_size, N, K, is_symmetric)


def quantize_matmul_8bits(
    dst: np.ndarray, src: np.ndarray, scale: np.ndarray, zero_points: np.ndarray, block_size: int, N: int, K: int,
    is_symmetric: bool,
) -> None:  # fmt: skip
    """Quantize a matrix [K, N] to 8 bits in the layout of MatMulNBits."""
    _quantize_matmul(8, dst, src, scale, zero_points, block_size, N, K, is_symmetric)


def quantize_qdq_matmul_4bits(
    dst: np.ndarray, src: np.ndarray, scale: np.ndarray, zero_points: np.ndarray, block_size: int, N: int, K: int,
    is_symmetric: bool,
) -> bool:  # fmt: skip
    """Quantize a matrix [K, N] to 4 bits in the layout of DequantizeLinear; return True if they are signed."""
    integers, scales, zeros = quantize_blocks(blocks_of(src[:K], block_size), 4, is_symmetric)
    flat = integers.reshape(-1, integers.shape[2])[:K].reshape(-1)
    if is_symmetric:
        flat = flat ^ 8  # Integers from 0 with zero point 8, as two's complement.
    dst[...] = pack_bits(flat, 4).reshape(dst.shape)
    scale[...] = scales[:, 0].reshape(scale.shape)
    if not is_symmetric:
        zero_points[...] = pack_bits(zeros[:, 0].reshape(-1), 4).reshape(zero_points.shape)
    return is_symmetric


def quantize_matmul_bnb4(
    dst: np.ndarray, src: np.ndarray, absmax: np.ndarray, block_size: int, quant_type: int, N: int, K: int
) -> None:
    """Quantize a transposed matrix to 4-bit floats (0: FP4, 1: NF4) with the largest magnitude of each block.

    Blocks are runs of elements; of two codes in a byte, the first is in the high half.
    """
    flat = src.astype(np.float32).reshape(-1)
    count = -(-flat.size // block_size)
    blocks = np.pad(flat, (0, count * block_size - flat.size)).reshape(count, block_size)
    largest = np.abs(blocks).max(1, keepdims=True)
    scaled = blocks * np.where(largest == 0, np.float32(0), 1 / np.where(largest == 0, np.float32(1), largest))
    if quant_type:
        codes = np.searchsorted(_NF4, scaled).astype(np.uint8)
    else:
        codes = _FP4_CODES[np.searchsorted(_FP4, np.abs(scaled))] | np.where(scaled < 0, 8, 0).astype(np.uint8)
    codes = codes.reshape(-1)[: flat.size + flat.size % 2]
    dst[...] = ((codes[0::2] << 4) | codes[1::2]).reshape(dst.shape)
    absmax[...] = largest.reshape(absmax.shape)
