"""What a matrix product is of: its operands in memory, its sizes, and what becomes of the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sardonyx.compiler.codegen.kernel_builder import Epilogue, Gated, Index
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.tiling.gemm import Layout, accumulator
from sardonyx.core.dim import Size
from sardonyx.core.ir.types import DType


@dataclass(frozen=True)
class Matrix:
    """A matrix in memory.

    Attributes:
        pointer: Where it begins.
        dtype: Its element type.
        row: Elements from a row to the next.
        column: Elements from a column to the next. A known 1 here (or, for a second operand, as ``row``) makes loads
            of whole vectors possible.
    """

    pointer: str
    dtype: DType
    row: str | int
    column: str | int


@dataclass(frozen=True)
class Packed:
    """A matrix in the panels that :func:`pack` makes.

    Attributes:
        pointer: Where it begins.
        dtype: Its element type.
    """

    pointer: str
    dtype: DType


def b_layout(a: Matrix, b: Matrix, result: DType) -> Layout:
    """Return how a B that is read in place is stored, for a result of that element type."""
    along_k = b.row == 1 and a.column == 1
    by_rows = b.column == 1 and b.dtype == accumulator(result)
    if along_k:
        return "unit" if by_rows else "columns"
    return "rows" if by_rows else "strided"


@dataclass(frozen=True)
class Place:
    """Where one product of a batch finds its operands.

    Attributes:
        a: Where its A begins.
        b: Where its B begins.
        leading: The indices that stand before row and column in the result.
    """

    a: str
    b: str
    leading: tuple[Index, ...] = ()


@dataclass(frozen=True)
class Turned:
    """Panels that are taken forth and back in turns, so that those that were read last are read first.

    Weights that are more than a cache holds would all be gone from it before they are read again.

    Attributes:
        back: An ``i1``: whether it is the turn of the way back.
        threads: Who share the panels: each of them turns within its own.
    """

    back: str
    threads: int


@dataclass(frozen=True)
class Product:
    """A batch of matrix products: the arguments of :func:`sardonyx.compiler.kernels.gemm.gemm.gemm`."""

    m: Size
    n: Size
    k: Size
    a: Matrix
    b: Matrix | Packed
    epilogue: Epilogue | Gated
    batch: Size
    place: Callable[[Emitter, str | int], Place] | None
    result: DType
    scratch: str | None
    turned: Turned | None = None
    behind: int = 0

    def place_of(self, e: Emitter, number: str | int) -> Place:
        """Where a product of the batch finds its operands."""
        return self.place(e, number) if self.place else Place(self.a.pointer, self.b.pointer)
