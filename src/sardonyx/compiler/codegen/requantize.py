"""Floats that become integers of 8 bits: rounded, moved by a zero point, cut off, converted.

Each of these is a primitive, and so an instruction or more a vector. Together they are less: a processor rounds where
it converts, and cuts off where it packs; and it packs four vectors with little more than what one takes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sardonyx.compiler.analysis.primitive_traits import dtype_of, is_splat
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.llvm.vector_value import Vector
from sardonyx.compiler.target.description import Target
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

LANES = 8
"""Lanes of 32 bits of the vectors that are packed."""

PACKED = 4
"""Most vectors that are packed at a time."""

_WIDE = f"<{LANES} x i32>"
_LIMITS = {t.UINT8: (0, 255), t.INT8: (-128, 127)}


@dataclass(frozen=True)
class Codes:
    """A value as what is rounded.

    Attributes:
        source: Floats.
        zero: What is added once they are rounded.
        low: The least integer.
        high: The greatest.
        signed: Whether the integers have a sign.
        none: What NaN becomes.
    """

    source: Value
    zero: int
    low: int
    high: int
    signed: bool
    none: int = 0

    def rounded(self, x: Vector) -> Vector:
        """The source as integers of 32 bits; the zero point is still to be added, and what is too small to be cut off.

        Those that 32 bits cannot hold are the least then, as the processor has them.
        """
        if self.low != _LIMITS[t.INT8 if self.signed else t.UINT8][0]:
            x = x.above(self.low - self.zero)
        x, e = x.below(self.high - self.zero), x.emitter
        whole = Vector(e, e.call(_WIDE, "llvm.x86.avx.cvt.ps2dq.256", [(x.type, x.name)]), "i32", LANES)
        # NaN is the least, too.
        least = _LIMITS[t.INT8 if self.signed else t.UINT8][0]
        return whole if self.none == least else (~x.is_nan()).where(whole, self.none - self.zero)

    def store(self, e: Emitter, pointer: str, whole: Sequence[str]) -> None:
        """Write what :meth:`rounded` gave, vectors behind each other.

        Args:
            e: Where the instructions go.
            pointer: Where the first one goes.
            whole: The vectors, :data:`PACKED` at most.
        """
        words, bytes = f"<{2 * LANES} x i16>", f"<{4 * LANES} x i8>"

        def pair(first: int, second: int) -> str:
            given = [whole[min(each, len(whole) - 1)] for each in (first, second)]
            found = e.call(words, "llvm.x86.avx2.packssdw", [(_WIDE, each) for each in given])
            return Vector(e, found, "i16", 2 * LANES).call("sadd.sat", self.zero).name if self.zero else found

        low = pair(0, 1)
        high = pair(2, 3) if len(whole) > 2 else low
        name = "llvm.x86.avx2.packsswb" if self.signed else "llvm.x86.avx2.packuswb"
        parts = e.let(f"bitcast {bytes} {e.call(bytes, name, [(words, low), (words, high)])} to {_WIDE}")
        done = 0
        # Each half of the register holds half of every vector.
        for count in (4, 2, 1):
            if len(whole) & count:
                order = ", ".join(f"i32 {half + number}" for number in range(done, done + count) for half in (0, 4))
                found = e.let(f"shufflevector {_WIDE} {parts}, {_WIDE} poison, <{2 * count} x i32> <{order}>")
                e.store(f"<{2 * count} x i32>", found, e.address(pointer, "i8", done * LANES), 1)
                done += count


def packs(target: Target) -> bool:
    """Whether it has the instructions that are used here, and none that do more."""
    return target.triple.startswith("x86_64") and target.lanes(32) == LANES


def codes(value: Value, inside: Collection[Value]) -> Codes | None:
    """What is rounded, where a value is such integers, and they and the floats before are computed inside."""
    turned = _turned(value)
    if turned is not None:
        found = codes(turned, inside)
        return found and replace(
            found, zero=found.zero + 128, low=found.low + 128, high=found.high + 128, signed=False, none=128
        )
    dtype = dtype_of(value)
    if value.op != "convert" or dtype not in _LIMITS or dtype_of(value.operands[0]) != t.FLOAT:
        return None
    least, greatest = _LIMITS[dtype]
    high, inner = _with_number("min", value.operands[0])
    low, inner = _with_number("max", inner)
    zero, inner = _with_number("add", inner) if inner.op == "add" else (0, inner)
    if inner.op != "round" or high is None or low is None or zero is None or inner not in inside:
        return None
    if not least <= low <= high <= greatest or not least <= zero <= greatest:
        return None
    return Codes(inner.operands[0], zero, low, high, dtype == t.INT8)


def _turned(value: Value) -> Value | None:
    """The integers with a sign of which a value is those that are greater by 128, without one."""
    if value.op != "xor" or dtype_of(value) != t.UINT8 or value.operands[0].op != "bitcast":
        return None
    number, other = _with_number("xor", value)
    signed = other.operands[0] if other.op == "bitcast" else other
    return signed if number == 128 and dtype_of(signed) == t.INT8 else None


def _with_number(op: str, value: Value) -> tuple[int | None, Value]:
    """The integer that a primitive takes with another operand, and that; None where it takes none."""
    if value.op == op:
        for number, other in (value.operands[::-1], value.operands):
            known = number.operands[0] if number.op == "broadcast" else number
            if is_splat(known):
                found = float(np.ravel(known.known)[0])
                return (int(found) if found.is_integer() else None), other
    return None, value
