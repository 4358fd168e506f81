"""Products of small integers that are added up within a lane: several of them are one number of 32 bits in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from sardonyx.compiler.llvm.ir_builder import Emitter, splat, vector

_WORDS = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}
"""Products of two pairs of 16 bits, by the lanes of the sums."""

_BYTES = {4: "llvm.x86.ssse3.pmadd.ub.sw.128", 8: "llvm.x86.avx2.pmadd.ub.sw", 16: "llvm.x86.avx512.pmaddubs.w.512"}
"""Products of two pairs of bytes as one of 16 bits, by the lanes of the sums."""

_MOST = 128
"""Two weights of one sign with a larger sum may have products with bytes whose sum is no number of 16 bits."""


def overflowing(weights: np.ndarray) -> np.ndarray:
    """Whether the products of a pair of weights with bytes may have a sum that is no number of 16 bits.

    Args:
        weights: Of 8 bits, [..., pair, 2].

    Returns:
        [..., pair].
    """
    wide = weights.astype(np.int16)
    found: np.ndarray = (wide.clip(min=0).sum(-1) > _MOST) | (wide.clip(max=0).sum(-1) < -_MOST)
    return found


def parted(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights as a sum of two parts, neither of which has a pair that is :func:`overflowing`.

    Args:
        weights: Of 8 bits, [..., pair, 2].

    Returns:
        Both of that shape; the second has few elements but 0.
    """
    apart = np.zeros_like(weights)
    apart[..., 1] = np.where(overflowing(weights), weights[..., 1], 0)
    return weights - apart, apart


def _whole(count: int, lanes: int) -> int:
    """So many numbers and those that fill the last vector."""
    return -(-count // lanes) * lanes


def entries(weights: np.ndarray, places: np.ndarray, columns: int, lanes: int) -> np.ndarray:
    """Weights that are multiplied apart, most of which are 0, for :func:`each_entry`.

    First the number of each tile's first entry, and of the end; then the entries: where its inputs are, and the weights
    of all columns. All begin with whole vectors.

    Args:
        weights: Those that lie together as one of 32 bits, [all columns, inputs].
        places: Numbers that tell where the inputs are, [inputs, numbers].
        columns: Columns of a tile.
        lanes: Lanes of a vector.
    """
    tiles, (_, numbers) = -(-len(weights) // columns), places.shape
    starts, head = np.zeros(_whole(tiles + 1, lanes), np.int32), _whole(numbers, lanes)
    parts = [starts]
    for tile in range(tiles):
        part = weights[tile * columns : (tile + 1) * columns]
        (inputs,) = np.nonzero(part.any(0))
        found = np.zeros((len(inputs), head + columns), np.int32)
        found[:, :numbers] = places[inputs]
        found[:, head : head + len(part)] = part[:, inputs].T
        starts[tile + 1] = starts[tile] + len(inputs)
        parts.append(found.ravel())
    return np.concatenate(parts)


@contextmanager
def each_entry(
    e: Emitter, pointer: str, tile: str | int, *, tiles: int, columns: int, lanes: int, numbers: int
) -> Iterator[tuple[list[str], str]]:
    """The loop over the :func:`entries` of a tile; gives the numbers that tell where inputs are, and the weights."""

    def number(start: str, at: str | int) -> str:
        return e.let(f"sext i32 {e.load('i32', e.address(start, 'i32', at), 4)} to i64")

    first = e.address(pointer, "i32", _whole(tiles + 1, lanes))
    head = _whole(numbers, lanes)
    with e.loop(number(pointer, tile), number(pointer, e.add(tile, 1)), opaque=True) as at:
        entry = e.address(first, "i32", e.mul(at, head + columns))
        yield [number(entry, each) for each in range(numbers)], e.address(entry, "i32", head)


def dot_add(e: Emitter, lanes: int, together: int, a: str, b: str, c: str, *, saturates: bool) -> str:
    """``c`` plus the sum of the products in each lane of 32 bits.

    Args:
        e: Where the instructions go.
        lanes: How many lanes there are.
        together: 4: products of bytes, those of ``a`` without a sign. 2: products of 16 bits.
        a: A vector of 32 bits a lane.
        b: Another one.
        c: Sums.
        saturates: Whether the target's products of bytes do, see :attr:`.Target.saturates`: no pair of ``b`` then is
            :func:`overflowing`.
    """
    type = vector(lanes, "i32")
    if together == 4 and not saturates:
        return e.call(type, f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", [(type, c), (type, a), (type, b)])
    pairs = vector(2 * lanes, "i16")
    if together == 4:
        bytes = vector(4 * lanes, "i8")
        factors = [(bytes, e.let(f"bitcast {type} {each} to {bytes}")) for each in (a, b)]
        operands = [(pairs, e.call(pairs, _BYTES[lanes], factors)), (pairs, splat("1", 2 * lanes, "i16"))]
    else:
        operands = [(pairs, e.let(f"bitcast {type} {each} to {pairs}")) for each in (a, b)]
    # LLVM would add up products of several steps before they are added to the sum, and have no registers for them.
    return e.opaque(type, e.let(f"add {type} {e.call(type, _WORDS[lanes], operands)}, {c}"))
