"""Division, remainder and powers of integers, with defined results where processors trap."""

from __future__ import annotations

from typing import NamedTuple

from sardonyx.compiler.llvm.ir_builder import elements_of
from sardonyx.compiler.llvm.vector_value import BITS, Vector
from sardonyx.errors import UnsupportedError


class Faults(NamedTuple):
    """Destination of run-time faults: lanes without a result set a status word.

    Attributes:
        mask: The lanes that exist; None for all.
        status: A pointer to an ``i32``, set to 1 by a fault; None if faults cannot be reported.
    """

    mask: str | None
    status: str | None

    def note(self, where: Vector) -> None:
        """Write the instructions that set the status if any existing lane of an ``i1`` vector is true.

        Raises:
            UnsupportedError: The status pointer is missing.
        """
        if self.status is None:
            raise UnsupportedError("expected a status pointer for a primitive that can fault on its data; got None.")
        if self.mask is not None:
            where = where & Vector(where.emitter, self.mask, "i1", where.lanes)
        with where.emitter.when(where.any()):
            where.emitter.line(f"store atomic i32 1, ptr {self.status} monotonic, align 4")


def _is_constant(x: Vector) -> bool:
    return not x.name.startswith("%")


def _numbers(x: Vector) -> list[int]:
    """Return the elements of a constant."""
    if x.name == "zeroinitializer":
        return [0]
    return [int(literal) for literal in elements_of(x.name)]


def _safe_divisor(faults: Faults, y: Vector, signed: bool) -> Vector:
    """Return the divisor, with 1 in lanes of undefined division.

    A divisor of 0 sets the status; -1 is left to the caller.
    """
    if _is_constant(y) and 0 not in _numbers(y):
        return y if not signed or -1 not in _numbers(y) else y.equals(-1).where(y.like(1), y)
    zero = y.equals(0)
    faults.note(zero)
    wrong = zero | y.equals(-1) if signed else zero
    return wrong.where(y.like(1), y)


def _quotient(x: Vector, y: Vector, signed: bool) -> Vector:
    """Return the quotient, truncated; up to 32 bits by floating-point division in a wider precision.

    The truncation is exact, because a quotient that is not an integer differs from the next integer by more than the
    rounding error. Division by a constant becomes a multiplication in LLVM, and 64-bit integers use the processor's own
    division, lane by lane.
    """
    if _is_constant(y) or BITS[x.element] > 32:
        return x._two("sdiv" if signed else "udiv", y)
    wide, there, back = ("float" if BITS[x.element] <= 16 else "double"), "uitofp", "fptoui"
    if signed:
        there, back = "sitofp", "fptosi"
    return (x.to(there, wide) / y.to(there, wide)).to(back, x.element)


def divided(faults: Faults, x: Vector, y: Vector, *, signed: bool) -> Vector:
    """Return the quotient, rounded toward zero; the least integer divided by -1 wraps to itself."""
    quotient = _quotient(x, _safe_divisor(faults, y, signed), signed)
    if not signed or (_is_constant(y) and -1 not in _numbers(y)):
        return quotient
    return y.equals(-1).where(-x, quotient)


def remainder(faults: Faults, x: Vector, y: Vector, *, signed: bool) -> Vector:
    """Return the remainder of the truncated division, with the sign of the dividend."""
    divisor = _safe_divisor(faults, y, signed)
    return x - _quotient(x, divisor, signed) * divisor


def power(faults: Faults, x: Vector, y: Vector, *, signed: bool) -> Vector:
    """Return ``x ** y`` by repeated squaring.

    A negative exponent gives the exact power, rounded toward zero; 0 to a negative exponent is a fault.
    """
    emitter, element = x.emitter, x.element
    if _is_constant(y) and len(set(_numbers(y))) == 1 and _numbers(y)[0] >= 0:
        return _constant_power(x, _numbers(y)[0])
    negative = y < 0
    if signed and not (_is_constant(y) and min(_numbers(y)) >= 0):
        faults.note(negative & x.equals(0))
    result, base, remaining = (emitter.variable(x.type, value) for value in (x.like(1).name, x.name, y.name))
    # Only 1 and -1 have nonzero powers of negative exponents, which depend on parity alone: one step per bit suffices.
    with emitter.loop(0, BITS[element]):
        exponent, square, product = (Vector(emitter, v.get(), element, x.lanes) for v in (remaining, base, result))
        odd = (exponent & 1).compare("ne", 0)
        result.set(odd.where(product * square, product).name)
        base.set((square * square).name)
        remaining.set(exponent.lshr(1).name)
    product = Vector(emitter, result.get(), element, x.lanes)
    if not signed:
        return product
    of_one = x.equals(1).where(product.like(1), x.equals(-1).where((y & 1).equals(0).where(x.like(1), -1), 0))
    return negative.where(of_one, product)


def _constant_power(x: Vector, exponent: int) -> Vector:
    result, square = x.like(1), x
    while exponent:
        if exponent & 1:
            result = result * square
        exponent >>= 1
        square = square * square if exponent else square
    return result
