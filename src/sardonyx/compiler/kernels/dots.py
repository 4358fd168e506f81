"""Products of small integers that are added up within a lane: several of them are one number of 32 bits in memory."""

from __future__ import annotations

from sardonyx.compiler.emitter import Emitter, vector

_WORDS = {4: "llvm.x86.sse2.pmadd.wd", 8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}
"""Products of two pairs of 16 bits, by the lanes of the sums."""


def dot_add(e: Emitter, lanes: int, together: int, a: str, b: str, c: str) -> str:
    """``c`` plus the sum of the products in each lane of 32 bits.

    Args:
        e: Where the instructions go.
        lanes: How many lanes there are.
        together: 4: products of bytes, those of ``a`` without a sign. 2: products of 16 bits.
        a: A vector of 32 bits a lane.
        b: Another one.
        c: Sums.
    """
    type = vector(lanes, "i32")
    if together == 4:
        return e.call(type, f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", [(type, c), (type, a), (type, b)])
    pairs = vector(2 * lanes, "i16")
    operands = [(pairs, e.let(f"bitcast {type} {each} to {pairs}")) for each in (a, b)]
    # LLVM would add up products of several steps before they are added to the sum, and have no registers for them.
    return e.opaque(type, e.let(f"add {type} {e.call(type, _WORDS[lanes], operands)}, {c}"))
