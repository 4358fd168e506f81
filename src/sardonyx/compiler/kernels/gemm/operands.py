"""The operands of a matrix product in memory, with sizes and epilogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sardonyx.compiler.analysis.low_bit_weights import LowBits
from sardonyx.compiler.codegen.kernel_builder import Epilogue, Gated, Index
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.tiling.gemm_schedule import Layout, accumulator
from sardonyx.core.dim import Size
from sardonyx.core.ir.types import FLOAT, DType


@dataclass(frozen=True)
class Matrix:
    """A matrix in memory.

    Attributes:
        pointer: Address of the first element.
        dtype: The element type.
        row: Stride of rows, in elements.
        column: Stride of columns, in elements. A known 1 here (or, for a second operand, as ``row``) makes loads of
            whole vectors possible.
    """

    pointer: str
    dtype: DType
    row: str | int
    column: str | int


@dataclass(frozen=True)
class Packed:
    """A matrix in the panels of :func:`~sardonyx.compiler.kernels.gemm.packing.pack`.

    Attributes:
        pointer: Address of the first panel.
        dtype: The element type.
    """

    pointer: str
    dtype: DType


@dataclass(frozen=True)
class LowBitPanels:
    """Weights of few bits in the panels of :func:`~sardonyx.compiler.kernels.gemm.low_bits.pack_codes`.

    Attributes:
        pointer: Address of the first panel.
        form: The storage.
    """

    pointer: str
    form: LowBits

    @property
    def dtype(self) -> DType:
        """The element type of converted weights."""
        return FLOAT


def b_layout(a: Matrix, b: Matrix, result: DType) -> Layout:
    """Return the storage of a B that is read in place, for a result of an element type."""
    along_k = b.row == 1 and a.column == 1
    by_rows = b.column == 1 and b.dtype == accumulator(result)
    if along_k:
        return "unit" if by_rows else "columns"
    return "rows" if by_rows else "strided"


@dataclass(frozen=True)
class Operands:
    """The operands of one product of a batch.

    Attributes:
        a: Address of A.
        b: Address of B.
        leading: The indices before row and column in the result.
    """

    a: str
    b: str
    leading: tuple[Index, ...] = ()


@dataclass(frozen=True)
class Serpentine:
    """Panels in serpentine order: the most recently used panels are read first.

    In ascending order, weights larger than a cache would all be evicted before the next iteration reads them.

    Attributes:
        back: An ``i1``: true in iterations from the last panel to the first.
        threads: Threads among which the panels are divided; each thread alternates within its own part.
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
    b: Matrix | Packed | LowBitPanels
    epilogue: Epilogue | Gated
    batch: Size
    locate: Callable[[Emitter, str | int], Operands] | None
    result: DType
    scratch: str | None
    serpentine: Serpentine | None = None
    epilogue_operations: int = 0

    def locate_operands(self, e: Emitter, number: str | int) -> Operands:
        """Emit the addresses of the operands of a product of the batch."""
        return self.locate(e, number) if self.locate else Operands(self.a.pointer, self.b.pointer)
