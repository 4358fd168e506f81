"""Determinants by elimination with partial pivoting."""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.compiler.llvm.ir_builder import Emitter, float_literal
from sardonyx.compiler.llvm.vector_value import Vector
from sardonyx.core.dim import Size


def scratch_bytes(n: Size) -> Size:
    """Return the bytes of scratch memory for a matrix of ``n`` rows."""
    return n * n * 8


def determinant(e: Emitter, n: str | int, scratch: str, element: str, entry: Callable[[str, str], str]) -> str:
    """Write the determinant of a square matrix (Golub and Van Loan, algorithm 3.4.1).

    Args:
        e: The IR builder.
        n: Number of rows.
        scratch: Address of :func:`scratch_bytes` bytes.
        element: The LLVM type of the elements.
        entry: Emits the load of an entry, by row and column.

    Returns:
        The determinant; 1 for an empty matrix.
    """
    align = {"float": 4, "double": 8}[element]

    def at(row: str | int, column: str | int) -> str:
        return e.address(scratch, element, e.add(e.mul(row, n), column))

    def load(row: str | int, column: str | int) -> Vector:
        return Vector(e, e.load(element, at(row, column), align), element, 1)

    with e.loop(0, n) as i, e.loop(0, n) as j:
        e.store(element, entry(i, j), at(i, j), align)
    result = e.variable(element, float_literal(1.0, element))
    with e.loop(0, n) as k:
        pivot = e.variable("i64", k)
        most = e.variable(element, load(k, k).abs().name)
        below = e.add(k, 1)
        with e.loop(below, n) as i:
            size, best = load(i, k).abs(), Vector(e, most.get(), element, 1)
            with e.when((size > best).name):
                pivot.set(i)
                most.set(size.name)
        row = pivot.get()
        with e.when(e.let(f"icmp ne i64 {row}, {k}")):
            with e.loop(k, n) as j:
                one, other = load(k, j).name, load(row, j).name
                e.store(element, one, at(row, j), align)
                e.store(element, other, at(k, j), align)
            result.set((-Vector(e, result.get(), element, 1)).name)
        head = load(k, k)
        result.set((Vector(e, result.get(), element, 1) * head).name)
        # A column of zeros has set the determinant to 0; elimination with a pivot of 0 would produce NaN.
        with e.when(head.compare("une", 0.0).name), e.loop(below, n) as i:
            factor = load(i, k) / head
            with e.loop(below, n) as j:
                e.store(element, (load(i, j) - factor * load(k, j)).name, at(i, j), align)
    return result.get()
