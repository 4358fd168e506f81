"""Vector values with operators, so that emitted arithmetic reads like mathematics."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from sardonyx.compiler.llvm.ir_builder import Emitter, float_literal, splat, suffix, vector

BITS = {"float": 32, "double": 64, "half": 16, "i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64}
"""Bits of an element."""


class Vector:
    """A vector in the function that is being written; operators write instructions and give what they give.

    A Python number stands for the vector of it. Integers are signed where it matters, except where a method says
    otherwise; comparisons of floating-point numbers are false for NaN, and ``!=`` is not among them.

    Args:
        emitter: Where the instructions go.
        name: The SSA value or constant.
        element: LLVM's type of an element.
        lanes: How many elements.
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
        """Whether the elements are floating-point numbers."""
        return not self.element.startswith("i")

    def __str__(self) -> str:
        return f"{self.type} {self.name}"

    # Making others.

    def like(self, number: float | int) -> Vector:
        """The vector of a number, of this type."""
        literal = float_literal(number, self.element) if self.is_float else str(int(number))
        return Vector(self.emitter, splat(literal, self.lanes, self.element), self.element, self.lanes)

    def _of(self, other: Vector | float | int) -> Vector:
        return other if isinstance(other, Vector) else self.like(other)

    def _let(self, text: str, element: str | None = None) -> Vector:
        return Vector(self.emitter, self.emitter.let(text), element or self.element, self.lanes)

    def _two(self, op: str, other: Vector | float | int, element: str | None = None) -> Vector:
        return self._let(f"{op} {self}, {self._of(other).name}", element)

    def call(self, name: str, *others: Vector | float | int) -> Vector:
        """An intrinsic of vectors of one type: ``call("sqrt")`` is ``llvm.sqrt``."""
        given = [(self.type, self._of(each).name) for each in (self, *others)]
        return Vector(
            self.emitter,
            self.emitter.call(self.type, f"llvm.{name}.{suffix(self.type)}", given),
            self.element,
            self.lanes,
        )

    def to(self, op: str, element: str) -> Vector:
        """A conversion by LLVM's instruction: ``to("sitofp", "float")``."""
        return self._let(f"{op} {self} to {vector(self.lanes, element)}", element)

    def bits(self) -> Vector:
        """The bits of floating-point numbers, as integers."""
        return self.to("bitcast", f"i{BITS[self.element]}")

    def number(self) -> Vector:
        """The floating-point numbers of these bits."""
        return self.to("bitcast", {16: "half", 32: "float", 64: "double"}[BITS[self.element]])

    def uniform(self) -> float | None:
        """The number that all lanes hold, where it is a floating-point constant; None otherwise."""
        words = {word.split()[-1] for word in self.name.strip("<>").split(",")}
        if not self.is_float or len(words) > 1:
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
        """What the sign fills in from above; :meth:`lshr` fills in zeros."""
        return self._two("ashr", by)

    def lshr(self, by: Vector | int) -> Vector:
        """Shifted right, zeros filled in."""
        return self._two("lshr", by)

    def fma(self, factor: Vector | float, summand: Vector | float) -> Vector:
        """``self * factor + summand``, rounded once."""
        return self.call("fma", factor, summand)

    # Comparisons.

    def compare(self, predicate: str, other: Vector | float | int) -> Vector:
        """By LLVM's predicate: ``olt``, ``ult``, ``slt`` …"""
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
        """Where both are equal."""
        return self.compare("oeq" if self.is_float else "eq", other)

    def is_nan(self) -> Vector:
        """Where it is no number."""
        return self.compare("uno", self)

    def where(self, yes: Vector, no: Vector | float | int) -> Vector:
        """Of ``i1``: the first where it holds, else the second."""
        return yes._let(f"select {self}, {yes}, {yes.type} {yes._of(no).name}")

    def any(self) -> str:
        """Of ``i1``: whether it holds in any lane, as an ``i1``."""
        if self.lanes == 1:
            return self.name
        return self.emitter.call("i1", f"llvm.vector.reduce.or.{suffix(self.type)}", [(self.type, self.name)])

    # Functions that are one instruction, or nearly.

    def abs(self) -> Vector:
        """Without sign; the least integer stays what it is."""
        if self.is_float:
            return self.call("fabs")
        name = f"llvm.abs.{suffix(self.type)}"
        given = [(self.type, self.name), ("i1", "false")]
        return Vector(self.emitter, self.emitter.call(self.type, name, given), self.element, self.lanes)

    def with_sign_of(self, other: Vector) -> Vector:
        """The magnitude of this, the sign of the other."""
        return self.call("copysign", other)

    def above(self, limit: Vector | float | int) -> Vector:
        """The greater one; this where it is NaN or both are zeros."""
        limit = self._of(limit)
        return (limit > self).where(limit, self)

    def below(self, limit: Vector | float | int) -> Vector:
        """The lesser one; this where it is NaN or both are zeros."""
        limit = self._of(limit)
        return (limit < self).where(limit, self)


def polynomial(x: Vector, coefficients: Sequence[float]) -> Vector:
    """By Horner's rule, one fused step a coefficient.

    Args:
        x: Where.
        coefficients: From the constant term on; two at least.
    """
    found: Vector = x.like(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        found = found.fma(x, coefficient)
    return found
