"""Requantization: floats are rounded, shifted by a zero point, clamped and converted to int8, uint8 or int16.

Each step is a primitive, so an instruction or more per vector. Fusion takes fewer instructions: the conversion
instruction rounds, the packing instruction clamps, and packing four vectors takes little more than packing one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sardonyx.compiler.analysis.code_tables import CodeTable, code_table
from sardonyx.compiler.analysis.logistic import Gate, gate_of
from sardonyx.compiler.analysis.magnitudes import largest_magnitude, magnitude_class
from sardonyx.compiler.analysis.primitive_traits import dtype_of, is_splat
from sardonyx.compiler.codegen.exact_division import Quotient, quotient
from sardonyx.compiler.codegen.vector_math_f32 import POWER_ERRORS, rough_logistics
from sardonyx.compiler.llvm.ir_builder import Emitter, vector
from sardonyx.compiler.llvm.vector_value import Vector
from sardonyx.compiler.target.description import Target
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import DType

PACKED = 4
"""Maximum number of vectors that are packed at once."""

_ROUND = {8: "llvm.x86.avx.cvt.ps2dq.256", 16: "llvm.x86.avx512.mask.cvtps2dq.512"}
"""Instructions that convert floats to the nearest integers, by lanes."""

_PACK_WORDS = {8: "llvm.x86.avx2.packssdw", 16: "llvm.x86.avx512.packssdw.512"}
_PACK_BYTES = {
    (8, True): "llvm.x86.avx2.packsswb", (8, False): "llvm.x86.avx2.packuswb",
    (16, True): "llvm.x86.avx512.packsswb.512", (16, False): "llvm.x86.avx512.packuswb.512",
}  # fmt: skip
"""Instructions that join two vectors with saturation, to 16 bits by lanes, to 8 bits by lanes and sign."""

_LARGEST_WHOLE = float(1 << 30)
"""Bound below which the nearest integer of a float has 32 bits."""

_GATE_ERROR = 2.0**-12
"""Largest error of a gate in units of its codes, where a smaller one takes more instructions."""

Computes = Callable[[Value], bool]
"""True for the values that a kernel computes, False for those that the kernel reads from memory."""

_CODES = (t.UINT8, t.INT8)
_LIMITS = {t.UINT8: (0, 255), t.INT8: (-128, 127), t.INT16: (-(1 << 15), (1 << 15) - 1)}


@dataclass(frozen=True)
class Codes:
    """The requantization of floats to a value.

    Attributes:
        source: The floats.
        rounding: The rounded floats.
        zero: Zero point, added after rounding.
        low: The least integer.
        high: The greatest integer.
        dtype: The element type, of 8 bits or int16.
        none: The integer for NaN.
        first: A requantization whose units are multiplied by ``factor`` in place of ``source``; None for ``source``.
        factor: Units of this requantization in a unit of ``first``.
        largest: A bound of the magnitude of the numbers that are rounded, which are never NaN; infinity if there is
            none.
        gate: The gate whose result is divided; None for other values.
    """

    source: Value
    rounding: Value
    zero: int
    low: int
    high: int
    dtype: DType
    none: int = 0
    first: Codes | None = None
    factor: float = 1.0
    largest: float = math.inf
    gate: Gate | None = None

    @property
    def is_limited_packed(self) -> bool:
        """True if :meth:`store` applies the limits: the source fits 32 bits. 0 is then inside of the limits."""
        return self.largest < _LARGEST_WHOLE and self.low <= 0 <= self.high

    @functools.cached_property
    def quotient(self) -> Quotient | None:
        """The division of floats by a number that computes the source; None for another source."""
        if self.source.op != "div":
            return None
        divisor = self.source.operands[1]
        known = divisor.operands[0] if divisor.op == "broadcast" else divisor
        number = float(np.ravel(known.known)[0]) if is_splat(known) else 0.0
        return quotient(number, self.low - self.zero, self.high - self.zero) if 0 < number < np.inf else None

    def steps(self, result: Value) -> Iterator[Value]:
        """Yield the values between :attr:`dividend` and a result of this requantization, with the result."""
        value, last = result, self.first or self
        while value is not last._divided:
            yield value
            value = value.operands[0] if not is_splat(_unrepeated(value.operands[0])) else value.operands[1]
        if last.gate is not None:
            yield from last.gate.parts

    @property
    def dividend(self) -> Value:
        """The operand of :meth:`rounded`: the argument of the gate, the dividend of :attr:`quotient`, or the source."""
        if self.first is not None:
            return self.first.dividend
        return self._divided if self.gate is None else self.gate.x

    @property
    def factors(self) -> tuple[Value, ...]:
        """Constants by which the results of the gate are multiplied, further operands of :meth:`rounded`."""
        if self.first is not None:
            return self.first.factors
        return () if self.gate is None else self.gate.factors

    @property
    def _divided(self) -> Value:
        return self.source if self.quotient is None else self.source.operands[0]

    def moved(self, amount: int, dtype: DType) -> Codes:
        """Return the requantization of which every integer is greater by ``amount``."""
        return replace(
            self, zero=self.zero + amount, low=self.low + amount, high=self.high + amount, none=self.none + amount,
            dtype=dtype,
        )  # fmt: skip

    def rounded(self, vectors: Sequence[Vector], factors: Sequence[Vector] = ()) -> list[Vector]:
        """Return the integers of the source as 32-bit integers, before zero point and lower limit are applied.

        Both are applied by packing. Floats beyond 32 bits become the least 32-bit integer, the processor's result of
        such conversions.

        Args:
            vectors: Elements of :attr:`dividend`.
            factors: The elements of :attr:`factors` at the same channels.
        """
        return [self._nearest(x) for x in self._units(vectors, factors)]

    def _nearest(self, x: Vector) -> Vector:
        if self.is_limited_packed:
            return nearest(x)
        least = _LIMITS[self.dtype][0]
        low = float(self.low - self.zero)
        if self.low == self.none != least:
            # NaN is not greater, so that it becomes the limit.
            x = (x > low).where(x, low)
        elif self.low != least:
            x = x.above(low)
        x = x.below(self.high - self.zero)
        whole = nearest(x)
        # The processor converts NaN to the least integer, too.
        return whole if self.none in (least, self.low) else (~x.is_nan()).where(whole, self.none - self.zero)

    def numbers(self, x: Vector, factors: Sequence[Vector] = ()) -> Vector:
        """Return the integers as floats, from the operands of :meth:`rounded`; NaN becomes :attr:`none`.

        Conversions to integers and back take as long as all other instructions of a requantization.
        """
        (units,) = self._units([x], factors)
        whole = units.call("roundeven")
        if self.zero:
            whole = whole + float(self.zero)
        low, high = float(self.low), float(self.high)
        if self.largest < math.inf:
            return whole.above(low).below(high)
        if self.low != self.none:
            return (~whole.is_nan()).where(whole.above(low).below(high), float(self.none))
        return (whole > low).where(whole, low).below(high)

    def _units(self, vectors: Sequence[Vector], factors: Sequence[Vector]) -> list[Vector]:
        """Return the source from the operands of :meth:`rounded`."""
        if self.gate is not None:
            return self._gated(self.gate, vectors, factors)
        if self.first is None:
            return list(vectors) if self.quotient is None else [self.quotient(x) for x in vectors]
        first = self.first
        whole = [x.call("roundeven") for x in first._units(vectors, factors)]
        if self.factor <= 0:
            whole = [x.above(first.low - first.zero).below(first.high - first.zero) for x in whole]
        # A product that increases keeps the order: the limits of this range hold those of the first one.
        return whole if self.factor == 1 else [x * self.factor for x in whole]

    def _gated(self, gate: Gate, vectors: Sequence[Vector], factors: Sequence[Vector]) -> list[Vector]:
        """Return the quotients of a gate, whose error is that of a function within some units in the last place."""
        assert self.quotient is not None
        number = float(np.float32(1 / np.float64(self.quotient.divisor)))
        factor, bound = vectors[0].like(number * (1.0 if gate.numerator is None else gate.numerator)), number
        for value, elements in zip(gate.factors, factors, strict=True):
            factor, bound = elements * factor, bound * (magnitude_class(_unrepeated(value)) or math.inf)
        numerators = [x * factor if gate.numerator is None else factor for x in vectors]
        is_near = gate.sensitivity * POWER_ERRORS[4] * bound <= _GATE_ERROR
        return rough_logistics(numerators, vectors, gate.slope, 4 if is_near else 5)

    @property
    def bytes(self) -> int:
        """Bytes of an element."""
        return self.dtype.bitwidth // 8

    def round_and_store(
        self, e: Emitter, lanes: int, factors: Sequence[Vector], mask: str | None, pointer: str, names: Sequence[str]
    ) -> None:
        """Write the codes of adjacent vectors.

        Args:
            e: Emitter of the instructions.
            lanes: Lanes of a vector.
            factors: The elements of :attr:`factors`.
            mask: The channels that exist, of type ``i1``; None for all. Others, which fill the last block, become 0.
            pointer: The address of the first vector.
            names: Vectors of :attr:`dividend`, at most :data:`PACKED`.
        """
        whole = self.rounded([Vector(e, name, "float", lanes) for name in names], factors)
        if mask is not None:
            whole = [Vector(e, mask, "i1", lanes).where(x, -self.zero) for x in whole]
        self.store(e, lanes, pointer, [x.name for x in whole])

    def store(self, e: Emitter, lanes: int, pointer: str, whole: Sequence[str]) -> None:
        """Write results of :meth:`rounded` as adjacent elements.

        Args:
            e: Emitter of the instructions.
            lanes: Lanes of a vector.
            pointer: The address of the first vector.
            whole: The vectors, at most :data:`PACKED`.
        """
        wide, words, bytes = vector(lanes, "i32"), vector(2 * lanes, "i16"), vector(4 * lanes, "i8")

        def pair(first: int, second: int) -> str:
            vectors = [whole[min(i, len(whole) - 1)] for i in (first, second)]
            packed = Vector(e, e.call(words, _PACK_WORDS[lanes], [(wide, name) for name in vectors]), "i16", 2 * lanes)
            packed = packed.call("sadd.sat", self.zero) if self.zero else packed
            return self._within(packed, *_LIMITS[t.INT16]).name if self.dtype == t.INT16 else packed.name

        def write(parts: str, element: str, width: int, written: int) -> None:
            # Packing works within 128 bits: each 128 bits of the register hold a part of every vector.
            done, vectors = 0, min(len(whole) - written, width)
            for count in (4, 2, 1):
                if vectors & count:
                    order = ", ".join(
                        f"i32 {quarter + number}"
                        for number in range(done, done + count) for quarter in range(0, lanes // 4 * width, width)
                    )  # fmt: skip
                    size = count * lanes // 4
                    type = vector(lanes // 4 * width, element)
                    stored = e.let(f"shufflevector {type} {parts}, {type} poison, <{size} x i32> <{order}>")
                    start = (written + done) * lanes * self.bytes
                    e.store(vector(size, element), stored, e.address(pointer, "i8", start), 1)
                    done += count

        if self.dtype == t.INT16:
            for written in range(0, len(whole), 2):
                halves = vector(lanes // 2, "i64")
                write(e.let(f"bitcast {words} {pair(written, written + 1)} to {halves}"), "i64", 2, written)
            return
        low = pair(0, 1)
        high = pair(2, 3) if len(whole) > 2 else low
        joined = e.call(bytes, _PACK_BYTES[lanes, self.dtype == t.INT8], [(words, low), (words, high)])
        limited = self._within(Vector(e, joined, "i8", 4 * lanes), *_LIMITS[self.dtype])
        write(e.let(f"bitcast {bytes} {limited.name} to {wide}"), "i32", 4, 0)

    def _within(self, packed: Vector, least: int, greatest: int) -> Vector:
        """Apply the limits to packed integers, but for those of the type."""
        if not self.is_limited_packed:
            return packed
        sign = "u" if self.dtype == t.UINT8 else "s"
        packed = packed.call(f"{sign}max", self.low) if self.low > least else packed
        return packed.call(f"{sign}min", self.high) if self.high < greatest else packed


def nearest(x: Vector) -> Vector:
    """Return the nearest 32-bit integers of a whole vector of floats; the least one for NaN and beyond 32 bits."""
    wide, operands = vector(x.lanes, "i32"), [(x.type, x.name)]
    if x.lanes == 16:
        operands += [(wide, "zeroinitializer"), ("i16", "-1"), ("i32", "4")]
    return Vector(x.emitter, x.emitter.call(wide, _ROUND[x.lanes], operands), "i32", x.lanes)


def packs(target: Target) -> bool:
    """Return True if the target has the packing instructions of :class:`Codes`."""
    return target.triple.startswith("x86_64") and target.lanes(32) in _ROUND


def codes(value: Value, inside: Collection[Value], computes: Computes) -> Codes | None:
    """Return the requantization that computes a value, or None.

    The result is None unless the value is a requantization of which ``inside`` computes the rounding. An int16 value
    may be 8-bit integers less a number. ``computes`` returns True for the values that the kernel does not read.
    """
    signed = _signed_source(value)
    if signed is not None:
        result = codes(signed, inside, computes)
        return result and result.moved(128, t.UINT8)
    if dtype_of(value) == t.INT16:
        number, wide = _with_number("sub", value) if value.op == "sub" else (0, value)
        source = wide.operands[0] if wide.op == "convert" else wide
        result = codes(source, inside, computes) if number is not None and dtype_of(source) in _CODES else None
        return result and result.moved(-number, t.INT16) if number is not None else None
    result = plain_codes(value, computes)
    if result is None or result.rounding not in inside:
        return None
    table = code_table(value)
    first = codes(table.source, inside, computes) if table is not None else None
    return result if table is None or first is None else _after(first, result, table) or result


def _after(first: Codes, second: Codes, table: CodeTable) -> Codes | None:
    """Return a requantization of requantized numbers that multiplies the units of the first; None for other functions.

    The product is compared for every integer of the first.
    """
    dtype, source = (t.numpy_dtype(dtype) for dtype in (second.dtype, first.dtype))
    integers = np.arange(first.low, first.high + 1)
    elements = table.elements().view(dtype).astype(np.int32)
    of_bytes = dict(zip(np.arange(256, dtype=np.uint8).view(source).tolist(), elements.tolist(), strict=True))
    results = np.array([of_bytes[integer] for integer in integers.tolist()])
    low, high, units = int(results.min()), int(results.max()), (integers - first.zero).astype(np.float32)
    inner = results[(low < results) & (results < high)] - second.zero
    if not inner.size:
        return None
    at = units[(low < results) & (results < high)].astype(np.float64)
    slope = float(inner @ at) / max(float(at @ at), 1.0)
    for factor in (1.0, *_factors(table), slope):
        rounded = np.round(units * np.float32(factor)) + second.zero
        if np.array_equal(np.clip(rounded, low, high), results):
            none = of_bytes[first.none]
            largest = (first.largest + 1) * abs(factor) * 2
            return replace(
                second, low=low, high=high, none=none, first=first, factor=float(np.float32(factor)), largest=largest
            )
    return None


def _factors(table: CodeTable) -> Iterator[float]:
    """Yield quotients of numbers by which a function of codes multiplies and divides."""
    multiplied, divided = [1.0], [1.0]
    for value in table.interior:
        if value.op in ("mul", "div"):
            for number in value.operands:
                known = number.operands[0] if number.op == "broadcast" else number
                if is_splat(known):
                    (multiplied if value.op == "mul" else divided).append(float(np.ravel(known.known)[0]))
    yield from (a / b for a in multiplied for b in divided if b)


def quantization(x: Value, dtype: DType) -> Codes | None:
    """Return the requantization that computes ``x`` as an 8-bit type; None if ``x`` is no rounded and limited float."""
    if dtype not in _CODES or dtype_of(x) != t.FLOAT:
        return None
    least, greatest = _LIMITS[dtype]
    high, inner = _with_number("min", x)
    low, inner = _with_number("max", inner)
    zero, inner = _with_number("add", inner) if inner.op == "add" else (0, inner)
    if inner.op != "round" or high is None or low is None or zero is None:
        return None
    if not least <= low <= high <= greatest or not least <= zero <= greatest:
        return None
    return Codes(inner.operands[0], inner, zero, low, high, dtype)


def plain_codes(value: Value, computes: Computes) -> Codes | None:
    """Return the requantization that computes a value of 8 bits, in a kernel; None for other values."""
    result = quantization(value.operands[0], dtype_of(value)) if value.op == "convert" else None
    if result is None:
        return None
    result = replace(result, largest=largest_magnitude(result.source, computes))
    gate = gate_of(result.source.operands[0]) if result.quotient is not None and result.quotient.factor else None
    if gate is None or not all(computes(part) for part in (result.source, *gate.parts)):
        return result
    is_finite = result.largest < math.inf and largest_magnitude(gate.x, computes) < math.inf
    return replace(result, gate=gate if is_finite else None)


def _signed_source(value: Value) -> Value | None:
    """Return the int8 value of which ``value`` is the uint8 form, greater by 128; None for other values.

    The addition of 128 is a flip of the sign bit.
    """
    if value.op != "xor" or dtype_of(value) != t.UINT8 or value.operands[0].op != "bitcast":
        return None
    number, other = _with_number("xor", value)
    signed = other.operands[0] if other.op == "bitcast" else other
    return signed if number == 128 and dtype_of(signed) == t.INT8 else None


def _unrepeated(value: Value) -> Value:
    return value.operands[0] if value.op == "broadcast" else value


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
