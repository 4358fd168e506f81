"""Requantization: floats are rounded, shifted by a zero point, clamped and converted to int8 or uint8.

Each step is a primitive, so an instruction or more per vector. Fusion takes fewer instructions: the conversion
instruction rounds, the packing instruction clamps, and packing four vectors takes little more than packing one.
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
"""Number of 32-bit lanes in each packed vector."""

PACKED = 4
"""Maximum number of vectors that are packed at once."""

_WIDE = f"<{LANES} x i32>"
_LIMITS = {t.UINT8: (0, 255), t.INT8: (-128, 127)}


@dataclass(frozen=True)
class Codes:
    """The requantization of floats to a value.

    Attributes:
        source: The floats.
        zero: Zero point, added after rounding.
        low: The least integer.
        high: The greatest integer.
        signed: True if the integers are signed.
        none: The integer for NaN.
    """

    source: Value
    zero: int
    low: int
    high: int
    signed: bool
    none: int = 0

    def rounded(self, x: Vector) -> Vector:
        """Return the source as 32-bit integers, before the zero point and the lower limit are applied.

        Both are applied by packing. Floats beyond 32 bits become the least 32-bit integer, the processor's result of
        such conversions.
        """
        if self.low != _LIMITS[t.INT8 if self.signed else t.UINT8][0]:
            x = x.above(self.low - self.zero)
        x, e = x.below(self.high - self.zero), x.emitter
        whole = Vector(e, e.call(_WIDE, "llvm.x86.avx.cvt.ps2dq.256", [(x.type, x.name)]), "i32", LANES)
        # The processor converts NaN to the least integer, too.
        least = _LIMITS[t.INT8 if self.signed else t.UINT8][0]
        return whole if self.none == least else (~x.is_nan()).where(whole, self.none - self.zero)

    def store(self, e: Emitter, pointer: str, whole: Sequence[str]) -> None:
        """Write results of :meth:`rounded` as adjacent bytes.

        Args:
            e: Emitter of the instructions.
            pointer: The address of the first vector.
            whole: The vectors, at most :data:`PACKED`.
        """
        words, bytes = f"<{2 * LANES} x i16>", f"<{4 * LANES} x i8>"

        def pair(first: int, second: int) -> str:
            vectors = [whole[min(i, len(whole) - 1)] for i in (first, second)]
            packed = e.call(words, "llvm.x86.avx2.packssdw", [(_WIDE, name) for name in vectors])
            return Vector(e, packed, "i16", 2 * LANES).call("sadd.sat", self.zero).name if self.zero else packed

        low = pair(0, 1)
        high = pair(2, 3) if len(whole) > 2 else low
        name = "llvm.x86.avx2.packsswb" if self.signed else "llvm.x86.avx2.packuswb"
        parts = e.let(f"bitcast {bytes} {e.call(bytes, name, [(words, low), (words, high)])} to {_WIDE}")
        done = 0
        # Packing works within 128-bit halves: each half of the register holds half of every vector.
        for count in (4, 2, 1):
            if len(whole) & count:
                order = ", ".join(f"i32 {half + number}" for number in range(done, done + count) for half in (0, 4))
                stored = e.let(f"shufflevector {_WIDE} {parts}, {_WIDE} poison, <{2 * count} x i32> <{order}>")
                e.store(f"<{2 * count} x i32>", stored, e.address(pointer, "i8", done * LANES), 1)
                done += count


def packs(target: Target) -> bool:
    """Return True if the target has the packing instructions of :class:`Codes`, and no wider vectors."""
    return target.triple.startswith("x86_64") and target.lanes(32) == LANES


def codes(value: Value, inside: Collection[Value]) -> Codes | None:
    """Return the requantization that computes a value, or None.

    The result is None unless the value is a requantization of which ``inside`` computes the rounding.
    """
    signed = _signed_source(value)
    if signed is not None:
        result = codes(signed, inside)
        return result and replace(
            result, zero=result.zero + 128, low=result.low + 128, high=result.high + 128, signed=False, none=128
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


def _signed_source(value: Value) -> Value | None:
    """Return the int8 value of which ``value`` is the uint8 form, greater by 128; None for other values.

    The addition of 128 is a flip of the sign bit.
    """
    if value.op != "xor" or dtype_of(value) != t.UINT8 or value.operands[0].op != "bitcast":
        return None
    number, other = _with_number("xor", value)
    signed = other.operands[0] if other.op == "bitcast" else other
    return signed if number == 128 and dtype_of(signed) == t.INT8 else None


def _with_number(op: str, value: Value) -> tuple[int | None, Value]:
    """Split a primitive into its constant integer operand and its other operand.

    Returns:
        The integer and the other operand: None and the value itself if ``value`` is another primitive or has no
        constant operand, None and the other operand if the constant is not an integer.
    """
    if value.op == op:
        for number, other in (value.operands[::-1], value.operands):
            known = number.operands[0] if number.op == "broadcast" else number
            if is_splat(known):
                number_value = float(np.ravel(known.known)[0])
                return (int(number_value) if number_value.is_integer() else None), other
    return None, value
