"""Dot products within a 32-bit lane of 4 bytes, 2 integers of 16 bits or 2 numbers of bfloat16."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from sardonyx.compiler.llvm.ir_builder import Emitter, splat, vector

_WORDS = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}
"""Instructions that add products of two pairs of 16 bits, by the lanes of the sums."""

_BYTES = {4: "llvm.x86.ssse3.pmadd.ub.sw.128", 8: "llvm.x86.avx2.pmadd.ub.sw", 16: "llvm.x86.avx512.pmaddubs.w.512"}
"""Instructions that add two products of bytes into one number of 16 bits, by the lanes of the sums."""

_MOST = 128
"""Largest sum of two weights of one sign whose products with bytes cannot overflow 16 bits."""


def overflowing(weights: np.ndarray) -> np.ndarray:
    """Return True for the pairs of weights whose products with bytes may overflow 16 bits when added.

    Args:
        weights: 8-bit weights, [..., pair, 2].

    Returns:
        Flags, [..., pair].
    """
    wide = weights.astype(np.int16)
    flags: np.ndarray = (wide.clip(min=0).sum(-1) > _MOST) | (wide.clip(max=0).sum(-1) < -_MOST)
    return flags


def parted(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Split weights into a sum of two parts, neither of which has an :func:`overflowing` pair.

    Args:
        weights: 8-bit weights, [..., pair, 2].

    Returns:
        The weights without the second weight of overflowing pairs, and the overflow correction, which is mostly 0. Both
        have the shape of ``weights``.
    """
    correction = np.zeros_like(weights)
    correction[..., 1] = np.where(overflowing(weights), weights[..., 1], 0)
    return weights - correction, correction


def _round_up(count: int, lanes: int) -> int:
    return -(-count // lanes) * lanes


def entries(weights: np.ndarray, locations: np.ndarray, columns: int, lanes: int) -> np.ndarray:
    """Return the table of nonzero overflow corrections for :func:`each_entry`.

    The table begins with the number of each tile's first entry, and the end. The entries follow: the numbers that
    locate the inputs of an entry, then the weights of all columns of the tile. Every section begins at a multiple of
    the lanes.

    Args:
        weights: Corrections, several adjacent inputs packed into one 32-bit word, [all columns, inputs].
        locations: Numbers that locate the inputs, [inputs, numbers].
        columns: Columns of a tile.
        lanes: Lanes of a vector.
    """
    tiles, (_, numbers) = -(-len(weights) // columns), locations.shape
    starts, head = np.zeros(_round_up(tiles + 1, lanes), np.int32), _round_up(numbers, lanes)
    parts = [starts]
    for tile in range(tiles):
        part = weights[tile * columns : (tile + 1) * columns]
        (inputs,) = np.nonzero(part.any(0))
        table = np.zeros((len(inputs), head + columns), np.int32)
        table[:, :numbers] = locations[inputs]
        table[:, head : head + len(part)] = part[:, inputs].T
        starts[tile + 1] = starts[tile] + len(inputs)
        parts.append(table.ravel())
    return np.concatenate(parts)


@contextmanager
def each_entry(
    e: Emitter, pointer: str, tile: str | int, *, tiles: int, columns: int, lanes: int, numbers: int
) -> Iterator[tuple[list[str], str]]:
    """Write the loop over the :func:`entries` of a tile.

    Yields:
        The numbers that locate the inputs of an entry, and the address of its weights.
    """

    def number(start: str, index: str | int) -> str:
        return e.let(f"sext i32 {e.load('i32', e.address(start, 'i32', index), 4)} to i64")

    first = e.address(pointer, "i32", _round_up(tiles + 1, lanes))
    head = _round_up(numbers, lanes)
    with e.loop(number(pointer, tile), number(pointer, e.add(tile, 1)), opaque=True) as at:
        entry = e.address(first, "i32", e.mul(at, head + columns))
        yield [number(entry, i) for i in range(numbers)], e.address(entry, "i32", head)


def dot_add(
    e: Emitter, lanes: int, dot_width: int, a: str, b: str, c: str, *, saturates: bool, adds_pairs: bool = False
) -> str:
    """Return ``c`` plus the sum of the products in each 32-bit lane.

    Args:
        e: Emitter of the instructions.
        lanes: Number of lanes.
        dot_width: 4: products of unsigned bytes ``a`` and signed bytes ``b``. 2: products of 16-bit integers.
        a: A vector of 32-bit lanes.
        b: The other operand.
        c: The sums.
        saturates: True if the target's byte products saturate, see :attr:`.Target.saturates`; no pair of ``b`` may then
            be :func:`overflowing`.
        adds_pairs: True if the target adds the products of two pairs of 16 bits in one instruction.
    """
    type = vector(lanes, "i32")
    if dot_width == 4 and not saturates:
        return e.call(type, f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", [(type, c), (type, a), (type, b)])
    if dot_width == 2 and adds_pairs:
        return e.call(type, f"llvm.x86.avx512.vpdpwssd.{32 * lanes}", [(type, c), (type, a), (type, b)])
    pairs = vector(2 * lanes, "i16")
    if dot_width == 4:
        bytes = vector(4 * lanes, "i8")
        factors = [(bytes, e.let(f"bitcast {type} {operand} to {bytes}")) for operand in (a, b)]
        operands = [(pairs, e.call(pairs, _BYTES[lanes], factors)), (pairs, splat("1", 2 * lanes, "i16"))]
    else:
        operands = [(pairs, e.let(f"bitcast {type} {operand} to {pairs}")) for operand in (a, b)]
    # Opaque: LLVM would reassociate the products of several steps before adding to the sum, and run out of registers.
    return e.opaque(type, e.let(f"add {type} {e.call(type, _WORDS[lanes], operands)}, {c}"))


def bfloat16_dot_add(e: Emitter, lanes: int, a: str, b: str, c: str) -> str:
    """Return ``c`` plus the products of two pairs of bfloat16 in each float32 lane; denormal numbers count as 0."""
    type, pairs = vector(lanes, "float"), vector(2 * lanes, "bfloat")
    factors = [(pairs, e.let(f"bitcast {type} {operand} to {pairs}")) for operand in (a, b)]
    return e.call(type, f"llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}", [(type, c), *factors])
