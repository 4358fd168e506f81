"""Products by dequantized weights of few bits: the weights keep their codes, in one form.

Models write such weights in several ways: ``DequantizeLinear`` before ``MatMul`` or ``Gemm``, with a scale per tensor,
column or block, transposed or not, or ``MatMulNBits``. This pass reads codes, zero points and scales as numbers, and
writes :attr:`~sardonyx.compiler.analysis.low_bit_weights.LowBitWeights.value`, which has the same elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sardonyx.compiler.analysis.constant_values import evaluate_closed, is_closed
from sardonyx.compiler.analysis.element_types import PACKED_BITS
from sardonyx.compiler.analysis.low_bit_weights import LowBitWeights, low_bit_weights, match_low_bits, pack_bytes
from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.repeated_entries import group_entries
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.core.eval.tensor import Tensor, apply
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

_CODES = frozenset({t.UINT8, t.INT8, *PACKED_BITS})
_MOVEMENTS = ("reshape", "permute", "stop_gradient")

LEAST_BLOCK = 8
"""Smallest number of weights along K that share a scale; below, scales take as much memory as codes."""

MOST_BLOCK = 1024
"""Largest block; longer ones are split, so that a part of a panel is whole blocks."""


def keep_low_bits(params: Mapping[str, Any], x: Value, y: Value) -> Tensor | None:
    """Return a ``contract`` by dequantized weights as one by weights of few bits; None for other weights.

    Args:
        params: Parameters of the ``contract``.
        x: The first operand.
        y: The weights.
    """
    is_plain = not params["batch"] and len(params["right"]) == 1 and params["dtype"] == t.FLOAT
    if not is_plain or is_closed(x) or y.is_constant or len(shape_of(y)) != 2 or dtype_of(y) != t.FLOAT:
        return None
    if not is_closed(y) or 0 in shape_of(y) or match_low_bits(y) is not None:
        return None
    parts = _parts(y)
    if parts is None:
        return None
    (summed,) = params["right"]
    weights = _low_bits(*(part if part is None or summed == 0 else _transposed(part) for part in parts))
    return None if weights is None else apply("contract", x, weights.value, **{**params, "right": (0,)})


def _transposed(value: Value) -> Value:
    return apply("permute", value, axes=(1, 0))


def _parts(y: Value) -> tuple[Value, Value, Value | None] | None:
    """Return integer codes, scales and zero points of a closed value, in its shape; None for other values."""
    movements = []
    inner = y
    while inner.op in _MOVEMENTS:
        movements.append(inner)
        inner = inner.operands[0]
    if inner.op != "mul":
        return None
    sides = next((sides for sides in (inner.operands, inner.operands[::-1]) if _units(sides[0]) is not None), None)
    if sides is None:
        return None
    units, scale = sides
    codes = _units(units)
    assert codes is not None

    def replay(part: Value) -> Value:
        for movement in reversed(movements):
            part = part if movement.op == "stop_gradient" else apply(movement.op, part, **movement.params)
        return part

    return replay(codes), replay(scale), replay(units.operands[1]) if units.op == "sub" else None


def _units(value: Value) -> Value | None:
    """Return the integer codes of a value of the form codes, or codes less a zero point; None for other values."""
    codes = value.operands[0] if value.op == "sub" else value
    codes = codes.operands[0] if codes.op == "convert" else codes
    return codes if dtype_of(codes) in _CODES else None


def _low_bits(codes: Value | None, scale: Value | None, zero: Value | None) -> LowBitWeights | None:
    """Return weights [K, N] in few bits; None if scales vary within short blocks or are not finite.

    Args:
        codes: Integers, [K, N].
        scale: float32, [K, N].
        zero: float32, [K, N]; None for zeros.
    """
    assert codes is not None
    assert scale is not None
    k = int(shape_of(codes)[0])  # type: ignore[arg-type]
    parameters = [_by_block(part, k) for part in (scale, zero) if part is not None]
    if not all(np.isfinite(entries).all() for entries, _ in parameters):
        return None
    # A single row restricts no block.
    block = _limited(math.gcd(*(size for entries, size in parameters if len(entries) > 1)) or k, k)
    if block < LEAST_BLOCK:
        return None
    count = -(-k // block)
    scales, *others = (entries.repeat(-(-size // block), axis=0)[:count] for entries, size in parameters)
    zeros = others[0] if others else np.zeros((1, 1), np.float32)
    packed = _packed_bytes(codes, block)
    if packed is not None:
        bits, bytes = packed
        return low_bit_weights(bytes, scales, np.broadcast_to(zeros, scales.shape), bits, block, k)
    numbers = evaluate_closed(codes)
    units = numbers if numbers.dtype == np.uint8 else numbers.astype(np.int8).view(np.uint8)
    signed = units.view(np.int8)
    if numbers.dtype != np.uint8 and signed.min() < 0:
        low, high = int(signed.min()), int(signed.max())
        bits = next(bits for bits in (2, 4, 8) if -(1 << bits - 1) <= low and high < 1 << bits - 1)
        middle = 1 << (bits - 1)
        units = units + np.uint8(middle)
    else:
        bits, middle = next(bits for bits in (2, 4, 8) if int(units.max()) < 1 << bits), 0
    zeros = np.broadcast_to(zeros + np.float32(middle), scales.shape)
    return low_bit_weights(pack_bytes(units, bits, block), scales, zeros, bits, block, k)


def _by_block(value: Value, k: int) -> tuple[np.ndarray, int]:
    """Return the different rows of a closed value [K, N], and the steps of K that share a row."""
    entries, size = group_entries(value, 0)
    rows = np.ascontiguousarray(evaluate_closed(entries), np.float32)
    if size > 1:
        return rows, k if len(rows) == 1 else size
    # The structure of the value does not tell: its elements do.
    changes = np.flatnonzero((rows[1:] != rows[:-1]).any(1)) + 1
    size = math.gcd(*(int(at) for at in changes)) if len(changes) else k
    return rows[::size], size


def _limited(block: int, k: int) -> int:
    """Return a part of a block of at most :data:`MOST_BLOCK` steps."""
    if block <= MOST_BLOCK:
        return block
    return MOST_BLOCK if block >= k else max(size for size in range(1, MOST_BLOCK + 1) if block % size == 0)


def _packed_bytes(codes: Value, block: int) -> tuple[int, np.ndarray] | None:
    """Return bits and bytes [blocks, bytes of a block, N] of codes that a model unpacks from bytes; None for others."""
    k, width = (int(size) for size in shape_of(codes))  # type: ignore[arg-type]
    inner = codes
    if inner.op != "permute" or inner.params["axes"] != (1, 0):
        return None
    inner = inner.operands[0]
    if inner.op == "slice" and not any(inner.params["starts"]) and set(inner.params["strides"]) == {1}:
        inner = inner.operands[0]
    if inner.op != "reshape" or shape_of(inner)[0] != width:
        return None
    while inner.op == "reshape":
        inner = inner.operands[0]
    if inner.op != "and" or inner.operands[0].op != "shift_right":
        return None
    shifted, mask = inner.operands[0], _innermost(inner.operands[1])
    bytes, shifts = _innermost(shifted.operands[0]), _innermost(shifted.operands[1])
    if not (mask.is_constant and shifts.is_constant and bytes.is_constant) or mask.known.size != 1:
        return None
    bits, parts = int(mask.known.max()).bit_length(), int(shifts.known.size)
    *leading, last = shape_of(inner)
    stored, count = np.asarray(bytes.known), math.prod(leading) * parts
    is_unpacking = (
        bits * parts == 8 and last == parts and stored.dtype == np.uint8 and stored.size * parts == count
        and mask.known.max() == (1 << bits) - 1 and np.array_equal(shifts.known.ravel(), range(0, 8, bits))
    )  # fmt: skip
    if not is_unpacking or block % parts or count % (width * block):
        return None
    blocks = stored.reshape(width, -1, block // parts)[:, : -(-k // block)]
    return bits, np.ascontiguousarray(blocks.transpose(1, 2, 0))


def _innermost(value: Value) -> Value:
    """Return the value from which broadcasts and reshapes derive a value."""
    while value.op in ("broadcast", "reshape"):
        value = value.operands[0]
    return value
