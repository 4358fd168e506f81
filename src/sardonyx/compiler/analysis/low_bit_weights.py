"""Weights of few bits as a Core value in one form, which packing and kernels read without expanding it.

The form is ordinary Core, ``(codes - zero) * scale`` over packed bytes, so that every part of the compiler that does
not know it computes the same elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sardonyx.compiler.analysis.constant_values import is_closed
from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.core.eval.tensor import Tensor, apply, constant
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

ZeroPoints = Literal["none", "bytes", "floats"]
"""Zero points of blocks: all the middle of the range of codes, integers of 8 bits, or any numbers."""

WORD_BITS = 32
"""Bits of a word, which holds adjacent codes of one column."""


@dataclass(frozen=True)
class LowBits:
    """The storage of weights ``(codes - zero) * scale``, with a scale per block of K and column.

    Attributes:
        bits: Bits of a code: 2, 4 or 8.
        block: Steps of K that share a scale.
        zeros: The storage of zero points.
    """

    bits: int
    block: int
    zeros: ZeroPoints

    def __str__(self) -> str:
        zeros = {"none": "", "bytes": " with zero points", "floats": " with real zero points"}[self.zeros]
        return f"{self.bits} bits in blocks of {self.block}{zeros}"

    @property
    def codes_per_word(self) -> int:
        """Adjacent codes along K in a word."""
        return WORD_BITS // self.bits

    @property
    def code_words(self) -> int:
        """Words of a block and column that hold codes."""
        return -(-self.block // self.codes_per_word)

    def block_words(self, columns: int) -> int:
        """Words of a block of a panel: codes, scales and zero points of all columns."""
        # Bytes are padded to 32, so that vectors of words are within a cache line.
        zeros = {"none": 0, "bytes": -(-columns // 32) * 8, "floats": columns}[self.zeros]
        return (self.code_words + 1) * columns + zeros

    def blocks(self, k: int) -> int:
        """Blocks along K."""
        return -(-k // self.block)


@dataclass(frozen=True)
class LowBitWeights:
    """The parts of weights [K, N] of few bits.

    Attributes:
        packed: Unsigned codes in bytes, [blocks, bytes of a block, N]: adjacent codes along K, lowest bits first.
        scale: float32, [blocks, 1, N].
        zero: float32, [blocks, 1, N]; None if all are the middle of the range of codes.
        form: The storage.
        k: Rows; the last block may be shorter.
    """

    packed: Tensor
    scale: Tensor
    zero: Tensor | None
    form: LowBits
    k: int

    @property
    def value(self) -> Tensor:
        """The weights as float32, [K, N]."""
        blocks, size, columns = (int(extent) for extent in shape_of(self.packed))  # type: ignore[arg-type]
        bits, block = self.form.bits, self.form.block
        codes = self.packed
        if bits < 8:
            parts = 8 // bits
            shifts = constant(np.arange(0, 8, bits, dtype=np.uint8).reshape(1, 1, parts, 1), t.UINT8)
            split = apply("reshape", codes, shape=(blocks, size, 1, columns))
            shifted = apply("shift_right", *_alike((blocks, size, parts, columns), split, shifts))
            mask = constant(np.full((1, 1, 1, 1), (1 << bits) - 1, np.uint8), t.UINT8)
            masked = apply("and", *_alike((blocks, size, parts, columns), shifted, mask))
            codes = _first(apply("reshape", masked, shape=(blocks, size * parts, columns)), 1, block)
        floats = apply("convert", codes, dtype=t.FLOAT, saturate=True, rounding="up")
        zero = self.zero
        if zero is None:
            zero = constant(np.full((1, 1, 1), 1 << (bits - 1), np.float32), t.FLOAT)
        shape = (blocks, block, columns)
        weights = apply("mul", *_alike(shape, apply("sub", *_alike(shape, floats, zero)), self.scale))
        return _first(apply("reshape", weights, shape=(blocks * block, columns)), 0, self.k)


def _alike(shape: tuple[int, ...], *operands: Tensor) -> list[Tensor]:
    """Return the operands, broadcast to one shape."""
    return [operand if shape_of(operand) == shape else apply("broadcast", operand, shape=shape) for operand in operands]


def _first(value: Tensor, axis: int, count: int) -> Tensor:
    """Return the first elements along an axis."""
    shape = shape_of(value)
    if shape[axis] == count:
        return value
    limits = tuple(count if index == axis else size for index, size in enumerate(shape))
    return apply("slice", value, starts=(0,) * len(shape), limits=limits, strides=(1,) * len(shape))


def match_low_bits(value: Value) -> LowBitWeights | None:
    """Return the parts of a value in the form of :attr:`LowBitWeights.value`; None for other values."""
    if value.op not in ("slice", "reshape") or len(shape_of(value)) != 2 or dtype_of(value) != t.FLOAT:
        return None
    weights = _strip(value, "slice", "reshape")
    if weights.op != "mul" or weights.operands[0].op != "sub" or not is_closed(value):
        return None
    difference, scale = weights.operands[0], _strip(weights.operands[1], "broadcast")
    zero = _strip(difference.operands[1], "broadcast")
    packed = _strip(difference.operands[0], "convert", "slice", "reshape")
    bits = 8
    if packed.op == "and":
        mask = _strip(packed.operands[1], "broadcast")
        if not mask.is_constant or mask.known.size != 1:
            return None
        bits = int(mask.known.max()).bit_length()
        packed = _strip(packed.operands[0], "shift_right", "broadcast", "reshape")
    parts = (packed, scale, zero)
    if not all(isinstance(part, Tensor) and part.is_constant and len(shape_of(part)) == 3 for part in parts):
        return None
    assert isinstance(packed, Tensor)
    assert isinstance(scale, Tensor)
    assert isinstance(zero, Tensor)
    depth, block = shape_of(value)[0], shape_of(weights)[1]
    if dtype_of(packed) != t.UINT8 or bits not in (2, 4, 8) or not isinstance(depth, int) or not isinstance(block, int):
        return None
    middle = 1 << (bits - 1)
    known = np.asarray(zero.known)
    candidate = LowBitWeights(
        packed, scale, None if known.size == 1 else zero, LowBits(bits, block, _storage(known, middle)), depth
    )
    return candidate if candidate.value is value else None


def _strip(value: Value, *ops: str) -> Value:
    """Return the value from which some primitives compute a value."""
    while value.op in ops:
        value = value.operands[0]
    return value


def _storage(zero: np.ndarray, middle: int) -> ZeroPoints:
    """Return the storage of zero points."""
    shifted = zero - middle
    if not shifted.any():
        return "none"
    return "bytes" if ((shifted == np.rint(shifted)) & (np.abs(shifted) <= 127)).all() else "floats"


def low_bit_weights(
    packed: np.ndarray, scale: np.ndarray, zero: np.ndarray, bits: int, block: int, k: int
) -> LowBitWeights:
    """Return weights of few bits from their parts.

    Args:
        packed: Unsigned codes in bytes, [blocks, bytes of a block, N], see :func:`pack_bytes`.
        scale: float32, [blocks, N].
        zero: float32, [blocks, N].
        bits: Bits of a code: 2, 4 or 8.
        block: Rows of a block; the last block may be shorter.
        k: Rows.
    """
    storage = _storage(zero, 1 << (bits - 1))
    return LowBitWeights(
        constant(packed, t.UINT8),
        constant(scale[:, None], t.FLOAT),
        None if storage == "none" else constant(np.ascontiguousarray(zero[:, None]), t.FLOAT),
        LowBits(bits, block, storage),
        k,
    )


def pack_bytes(codes: np.ndarray, bits: int, block: int) -> np.ndarray:
    """Return unsigned codes [K, N] in bytes, [blocks, bytes of a block, N]: adjacent codes, lowest bits first."""
    (k, columns), parts = codes.shape, 8 // bits
    blocks, size = -(-k // block), -(-block // parts)
    if k != blocks * size * parts:
        padded = np.zeros((blocks, size * parts, columns), np.uint8)
        whole = k // block
        padded[:whole, :block] = codes[: whole * block].reshape(whole, block, columns)
        padded[whole:, : k - whole * block] = codes[whole * block :]
        codes = padded
    split = codes.reshape(blocks, size, parts, columns)
    packed = split[:, :, 0].copy()
    for part in range(1, parts):
        packed |= split[:, :, part] << np.uint8(part * bits)
    return packed
