"""Vector values with operators, so that emitted arithmetic reads like mathematics."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from sardonyx.compiler.llvm.ir_builder import Emitter, elements_of, float_literal, splat, suffix, vector

BITS = {"float": 32, "double": 64, "half": 16, "i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64}
"""Bits of an element."""


class Vector:
    """A vector of the function being written; operators write instructions and return their results.

    A Python number is broadcast to a vector. Integers are signed unless a method states otherwise; comparisons of
    floating-point numbers are false for NaN, and ``!=`` is not supported.

    Args:
        emitter: The builder of the function.
        name: The SSA value or constant.
        element: LLVM's type of an element.
        lanes: Number of elements.
    """

    __slots__ = ("element", "emitter", "lanes", "name")

    def __init__(self, emitter: Emitter, name: str, element: str, lanes: int) -> None:
        self.emitter = emitter
        self.name = name
        self.element = element
        self.lanes = lanes

    @property
    def type(self) -> str:
        """LLVM's type of the vector."""
        return vector(self.lanes, self.element)

    @property
    def is_float(self) -> bool:
        """True if the elements are floating-point numbers."""
        return not self.element.startswith("i")

    def __str__(self) -> str:
        return f"{self.type} {self.name}"

    # Construction.

    def like(self, number: float | int) -> Vector:
        """Return the vector of this type with a number in all lanes."""
        literal = float_literal(number, self.element) if self.is_float else str(int(number))
        return Vector(self.emitter, splat(literal, self.lanes, self.element), self.element, self.lanes)

    def _of(self, other: Vector | float | int) -> Vector:
        return other if isinstance(other, Vector) else self.like(other)

    def _let(self, text: str, element: str | None = None) -> Vector:
        return Vector(self.emitter, self.emitter.let(text), element or self.element, self.lanes)

    def _two(self, op: str, other: Vector | float | int, element: str | None = None) -> Vector:
        return self._let(f"{op} {self}, {self._of(other).name}", element)

    def call(self, name: str, *others: Vector | float | int) -> Vector:
        """Call an intrinsic of vectors of one type: ``call("sqrt")`` is ``llvm.sqrt``."""
        operands = [(self.type, self._of(other).name) for other in (self, *others)]
        return Vector(
            self.emitter,
            self.emitter.call(self.type, f"llvm.{name}.{suffix(self.type)}", operands),
            self.element,
            self.lanes,
        )

    def to(self, op: str, element: str) -> Vector:
        """Convert by an instruction of LLVM: ``to("sitofp", "float")``."""
        return self._let(f"{op} {self} to {vector(self.lanes, element)}", element)

    def bits(self) -> Vector:
        """Return the bits of floating-point numbers as integers."""
        return self.to("bitcast", f"i{BITS[self.element]}")

    def number(self) -> Vector:
        """Return the floating-point numbers with these bits."""
        return self.to("bitcast", {16: "half", 32: "float", 64: "double"}[BITS[self.element]])

    def uniform(self) -> float | None:
        """Return the number in all lanes, for a floating-point constant; None otherwise."""
        if not self.is_float or self.name.startswith("%"):
            return None
        words = {*elements_of(self.name)}
        if len(words) > 1:
            return None
        (word,) = words
        if word == "zeroinitializer":
            return 0.0
        if not word.startswith("0x"):
            return None
        return float(struct.unpack("<d", struct.pack("<Q", int(word, 16)))[0])

    # Arithmetic.

    def __add__(self, other: Vector | float | int) -> Vector:
        return self._two("fadd" if self.is_float else "add", other)

    def __sub__(self, other: Vector | float | int) -> Vector:
        return self._two("fsub" if self.is_float else "sub", other)

    def __rsub__(self, other: float | int) -> Vector:
        return self.like(other) - self

    def __mul__(self, other: Vector | float | int) -> Vector:
        return self._two("fmul" if self.is_float else "mul", other)

    def __truediv__(self, other: Vector | float | int) -> Vector:
        return self._two("fdiv", other)

    def __rtruediv__(self, other: float | int) -> Vector:
        return self.like(other) / self

    def __neg__(self) -> Vector:
        return self._let(f"fneg {self}") if self.is_float else self.like(0) - self

    __radd__ = __add__
    __rmul__ = __mul__

    def __and__(self, other: Vector | int) -> Vector:
        return self._two("and", other)

    def __or__(self, other: Vector | int) -> Vector:
        return self._two("or", other)

    def __xor__(self, other: Vector | int) -> Vector:
        return self._two("xor", other)

    def __invert__(self) -> Vector:
        return self ^ -1

    def __lshift__(self, by: Vector | int) -> Vector:
        return self._two("shl", by)

    def __rshift__(self, by: Vector | int) -> Vector:
        """Shift right, filling with the sign; :meth:`lshr` fills with zeros."""
        return self._two("ashr", by)

    def lshr(self, by: Vector | int) -> Vector:
        """Shift right, filling with zeros."""
        return self._two("lshr", by)

    def fma(self, factor: Vector | float, summand: Vector | float) -> Vector:
        """Return ``self * factor + summand``, rounded once."""
        return self.call("fma", factor, summand)

    # Comparisons.

    def compare(self, predicate: str, other: Vector | float | int) -> Vector:
        """Compare by LLVM's predicate: ``olt``, ``ult``, ``slt`` …"""
        return self._two(f"{'fcmp' if self.is_float else 'icmp'} {predicate}", other, "i1")

    def __lt__(self, other: Vector | float | int) -> Vector:
        return self.compare("olt" if self.is_float else "slt", other)

    def __gt__(self, other: Vector | float | int) -> Vector:
        return self.compare("ogt" if self.is_float else "sgt", other)

    def __le__(self, other: Vector | float | int) -> Vector:
        return self.compare("ole" if self.is_float else "sle", other)

    def __ge__(self, other: Vector | float | int) -> Vector:
        return self.compare("oge" if self.is_float else "sge", other)

    def equals(self, other: Vector | float | int) -> Vector:
        """Return the mask of equal lanes."""
        return self.compare("oeq" if self.is_float else "eq", other)

    def is_nan(self) -> Vector:
        """Return the mask of NaN lanes."""
        return self.compare("uno", self)

    def where(self, yes: Vector, no: Vector | float | int) -> Vector:
        """Of ``i1``: select the first vector in lanes that hold, else the second."""
        return yes._let(f"select {self}, {yes}, {yes.type} {yes._of(no).name}")

    def any(self) -> str:
        """Of ``i1``: return an ``i1`` that holds if any lane holds."""
        if self.lanes == 1:
            return self.name
        return self.emitter.call("i1", f"llvm.vector.reduce.or.{suffix(self.type)}", [(self.type, self.name)])

    # Functions of about one instruction.

    def abs(self) -> Vector:
        """Return the magnitude; the smallest integer is unchanged."""
        if self.is_float:
            return self.call("fabs")
        name = f"llvm.abs.{suffix(self.type)}"
        operands = [(self.type, self.name), ("i1", "false")]
        return Vector(self.emitter, self.emitter.call(self.type, name, operands), self.element, self.lanes)

    def with_sign_of(self, other: Vector) -> Vector:
        """Return this magnitude with the sign of the other vector."""
        return self.call("copysign", other)

    def above(self, limit: Vector | float | int) -> Vector:
        """Return the maximum; this vector's lane if this lane is NaN or both are zeros."""
        limit = self._of(limit)
        return (limit > self).where(limit, self)

    def below(self, limit: Vector | float | int) -> Vector:
        """Return the minimum; this vector's lane if this lane is NaN or both are zeros."""
        limit = self._of(limit)
        return (limit < self).where(limit, self)


def polynomial(x: Vector, coefficients: Sequence[float]) -> Vector:
    """Evaluate a polynomial by Horner's rule, one FMA for each coefficient.

    Args:
        x: The argument.
        coefficients: Coefficients from the constant term on; at least two.
    """
    result: Vector = x.like(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result.fma(x, coefficient)
    return result
