"""Division, remainder and powers of integers: what no processor has as it should be."""

from __future__ import annotations

from typing import NamedTuple

from sardonyx.compiler.llvm.vector_value import BITS, Vector
from sardonyx.errors import UnsupportedError


class Faults(NamedTuple):
    """Where it is noted that a lane has no result.

    Attributes:
        mask: The lanes that exist; None for all.
        status: A pointer to an ``i32`` that is set to 1; None where no fault can be noted.
    """

    mask: str | None
    status: str | None

    def note(self, where: Vector) -> None:
        """Write that the lanes of an ``i1`` vector have no result.

        Raises:
            UnsupportedError: There is no status.
        """
        if self.status is None:
            raise UnsupportedError("a kernel that can fail on its data needs a status.")
        if self.mask is not None:
            where = where & Vector(where.emitter, self.mask, "i1", where.lanes)
        with where.emitter.when(where.any()):
            where.emitter.line(f"store atomic i32 1, ptr {self.status} monotonic, align 4")


def _is_constant(x: Vector) -> bool:
    return not x.name.startswith("%")


def _numbers(x: Vector) -> list[int]:
    """The elements of a constant."""
    if x.name == "zeroinitializer":
        return [0]
    return [int(word.split()[-1]) for word in x.name.strip("<>").split(",")]


def _safe_divisor(faults: Faults, y: Vector, signed: bool) -> Vector:
    """The divisor, where division by it is defined; else 1: 0 is noted, -1 is left to the caller."""
    if _is_constant(y) and 0 not in _numbers(y):
        return y if not signed or -1 not in _numbers(y) else y.equals(-1).where(y.like(1), y)
    zero = y.equals(0)
    faults.note(zero)
    wrong = zero | y.equals(-1) if signed else zero
    return wrong.where(y.like(1), y)


def _quotient(x: Vector, y: Vector, signed: bool) -> Vector:
    """By floating-point numbers up to 32 bits: their quotient, cut off, is exact with twice the bits and less.

    (A quotient that is no integer is further from the next one than it is rounded.) Division by a constant becomes a
    multiplication, and 64 bits are left to the processor's own division, lane by lane.
    """
    if _is_constant(y) or BITS[x.element] > 32:
        return x._two("sdiv" if signed else "udiv", y)
    wide, there, back = ("float" if BITS[x.element] <= 16 else "double"), "uitofp", "fptoui"
    if signed:
        there, back = "sitofp", "fptosi"
    return (x.to(there, wide) / y.to(there, wide)).to(back, x.element)


def divided(faults: Faults, x: Vector, y: Vector, *, signed: bool) -> Vector:
    """The quotient, rounded toward zero; the least number by -1 is itself."""
    quotient = _quotient(x, _safe_divisor(faults, y, signed), signed)
    if not signed or (_is_constant(y) and -1 not in _numbers(y)):
        return quotient
    return y.equals(-1).where(-x, quotient)


def remainder(faults: Faults, x: Vector, y: Vector, *, signed: bool) -> Vector:
    """What division leaves, with the sign of the dividend."""
    divisor = _safe_divisor(faults, y, signed)
    return x - _quotient(x, divisor, signed) * divisor


def power(faults: Faults, x: Vector, y: Vector, *, signed: bool) -> Vector:
    """By squaring; a negative power is the exact one rounded toward zero, and that of 0 is noted."""
    emitter, element = x.emitter, x.element
    if _is_constant(y) and len(set(_numbers(y))) == 1 and _numbers(y)[0] >= 0:
        return _constant_power(x, _numbers(y)[0])
    negative = y < 0
    if signed and not (_is_constant(y) and min(_numbers(y)) >= 0):
        faults.note(negative & x.equals(0))
    found, base, left = (emitter.variable(x.type, value) for value in (x.like(1).name, x.name, y.name))
    # The power of 1 or -1 has the parity of the exponent, whatever its sign: as many steps as there are bits do.
    with emitter.loop(0, BITS[element]):
        exponent, square, product = (Vector(emitter, v.get(), element, x.lanes) for v in (left, base, found))
        odd = (exponent & 1).compare("ne", 0)
        found.set(odd.where(product * square, product).name)
        base.set((square * square).name)
        left.set(exponent.lshr(1).name)
    product = Vector(emitter, found.get(), element, x.lanes)
    if not signed:
        return product
    of_one = x.equals(1).where(product.like(1), x.equals(-1).where((y & 1).equals(0).where(x.like(1), -1), 0))
    return negative.where(of_one, product)


def _constant_power(x: Vector, exponent: int) -> Vector:
    found, square = x.like(1), x
    while exponent:
        if exponent & 1:
            found = found * square
        exponent >>= 1
        square = square * square if exponent else square
    return found
