"""Matrix products: ``C[m, n] = sum over k of A[m, k] * B[k, n]``, batched, with whatever is fused behind.

A is read where it lies, an element at a time. B comes in panels of a tile's columns, ``[panel][K][columns]`` with zeros
past the last column: weights are packed so when a model is built, other operands a panel at a time into the scratch
memory of the thread that needs it.

A work item is one panel by a block of rows. Items that follow one another share the panel; the rows are taken in groups
whose part of A stays in the second-level cache while all panels pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sardonyx.compiler.emitter import Emitter
from sardonyx.compiler.kernels.gemm_tile import accumulate, tile_for
from sardonyx.compiler.kernels.kernel import Epilogue, Index, Kernel
from sardonyx.compiler.target import Target
from sardonyx.core.dim import Size, ceil_div
from sardonyx.core.types import DType, dtype_of

TILES_IN_ITEM = 4
"""Register tiles of rows in one work item."""


@dataclass(frozen=True)
class Matrix:
    """A matrix in memory.

    Attributes:
        pointer: Where it begins.
        dtype: Its element type.
        row: Elements from a row to the next.
        column: Elements from a column to the next.
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


def pack(array: np.ndarray, target: Target, result: DType | None = None) -> np.ndarray:
    """Return a matrix [..., K, N] in panels [..., ceil(N / columns), K, columns], zeros past N.

    Args:
        array: The matrix, or a batch of them.
        target: What the kernel is for.
        result: The element type of the sums; the array's own by default.
    """
    columns = tile_for(target, result or dtype_of(array)).columns
    *batch, k, n = array.shape
    panels = -(-n // columns)
    padded = np.zeros((*batch, k, panels * columns), array.dtype)
    padded[..., :n] = array
    return np.ascontiguousarray(np.moveaxis(padded.reshape(*batch, k, panels, columns), -2, -3))


def scratch_bytes(target: Target, k: Size, result: DType) -> Size:
    """Bytes of scratch memory that each worker needs where B is not packed beforehand."""
    tile = tile_for(target, result)
    return k * (tile.columns * tile.bytes)


def gemm(
    kernel: Kernel,
    *,
    m: Size,
    n: Size,
    k: Size,
    a: Matrix,
    b: Matrix | Packed,
    epilogue: Epilogue,
    batch: Size = 1,
    place: Callable[[Emitter, str | int], Place] | None = None,
    result: DType | None = None,
    scratch: str | None = None,
) -> Size:
    """Write a matrix product into a kernel.

    Args:
        kernel: The kernel; its work items become this product's.
        m: Rows of A and of the result.
        n: Columns of B and of the result.
        k: Columns of A, rows of B.
        a: The first operand.
        b: The second operand.
        epilogue: Gets every vector of the result, along columns, with the indices (leading ..., row, column).
        batch: How many products there are.
        place: Gives the operands of a product of the batch by its number; by default those of ``a`` and ``b``.
        result: The element type of the sums, which operands are converted to; by default that of ``a``.
        scratch: Scratch memory where ``b`` is a :class:`Matrix`: :func:`scratch_bytes` for each worker.

    Returns:
        The number of work items.
    """
    return _Gemm(kernel, m, n, k, a, b, epilogue, batch, place, result or a.dtype, scratch).write()


class _Gemm:
    """One product while it is written."""

    def __init__(
        self,
        kernel: Kernel,
        m: Size,
        n: Size,
        k: Size,
        a: Matrix,
        b: Matrix | Packed,
        epilogue: Epilogue,
        batch: Size,
        place: Callable[[Emitter, str | int], Place] | None,
        result: DType,
        scratch: str | None,
    ) -> None:
        self.kernel = kernel
        self.e = kernel.emitter
        self.tile = tile_for(kernel.target, result)
        self.shape = (m, n, k)
        self.rows, self.columns, self.depth = (kernel.size(size) for size in (m, n, k))
        self.a, self.b = a, b
        self.epilogue = epilogue
        self.batch = batch
        self.place = place
        self.scratch = scratch
        self.block = self.tile.rows * TILES_IN_ITEM

    def write(self) -> Size:
        e, tile = self.e, self.tile
        m, n, _ = self.shape
        panels = e.div(e.add(self.columns, tile.columns - 1), tile.columns)
        blocks = e.div(e.add(self.rows, self.block - 1), self.block)
        room = self.kernel.target.l2 // 2
        resident = e.most(1, e.div(room, e.mul(e.most(1, self.depth), self.block * tile.bytes)))
        panel_buffer = self._panel_buffer()
        held = e.variable("i64", "-1")
        finished = e.array(tile.element, tile.rows * tile.columns)
        with e.loop("%first", "%last") as item:
            each = e.mul(panels, blocks)
            number: str | int = 0 if self.batch == 1 else e.div(item, each)
            within = e.sub(item, e.mul(number, each))
            group = e.mul(e.div(within, e.mul(resident, panels)), resident)
            within = e.sub(within, e.mul(group, panels))
            grouped = e.least(resident, e.sub(blocks, group))
            panel, block = e.div(within, grouped), e.add(group, e.rem(within, grouped))
            place = self.place(e, number) if self.place else Place(self.a.pointer, self.b.pointer)
            column = e.mul(panel, tile.columns)
            if isinstance(self.b, Packed):
                values = e.address(place.b, tile.element, e.mul(e.mul(panel, self.depth), tile.columns))
            else:
                values = panel_buffer
                wanted = e.add(e.mul(number, panels), panel)
                with e.when(e.let(f"icmp ne i64 {held.get()}, {wanted}")):
                    held.set(str(wanted))
                    self._fill(place.b, column, values)
            start = e.mul(block, self.block)
            end = e.least(self.rows, e.add(start, self.block))
            with e.loop(start, end, tile.rows) as row:
                count = e.least(tile.rows, e.sub(end, row))
                self._compute(place.a, row, count, values, finished, tile.row_counts)
                self._finish(place.leading, row, count, column, finished)
        return self.batch * ceil_div(m, self.block) * ceil_div(n, tile.columns)

    def _panel_buffer(self) -> str:
        """Where this worker packs its panels."""
        if self.scratch is None:
            return ""
        e = self.e
        bytes = e.mul(self.depth, self.tile.columns * self.tile.bytes)
        return e.address(self.scratch, "i8", e.mul("%worker", bytes))

    def _fill(self, source: str, column: str | int, panel: str) -> None:
        """Pack a panel of B."""
        e, tile, b = self.e, self.tile, self.b
        assert isinstance(b, Matrix)
        left = e.least(tile.columns, e.sub(self.columns, column))
        begin = e.address(source, tile.element, e.mul(column, b.column))
        with e.loop(0, self.depth) as place:
            line = e.address(begin, tile.element, e.mul(place, b.row))
            target = e.address(panel, tile.element, e.mul(place, tile.columns))
            for number in range(tile.vectors):
                e.store(tile.type, "zeroinitializer", e.address(target, tile.element, number * tile.lanes), tile.bytes)
            with e.loop(0, left) as lane:
                value = e.load(tile.element, e.address(line, tile.element, e.mul(lane, b.column)), tile.bytes)
                e.store(tile.element, value, e.address(target, tile.element, lane), tile.bytes)

    def _compute(
        self, a: str, row: str | int, count: str | int, panel: str, finished: str, counts: tuple[int, ...]
    ) -> None:
        """Compute a tile by the code for the least row count that suffices."""
        if len(counts) == 1:
            self._compute_rows(a, row, count, panel, finished, counts[0], 0)
            return
        e = self.e
        with e.either(e.let(f"icmp sgt i64 {count}, {counts[1]}")) as branches:
            next(branches)
            self._compute_rows(a, row, count, panel, finished, counts[0], counts[1])
            next(branches)
            self._compute(a, row, count, panel, finished, counts[1:])
            next(branches, None)

    def _compute_rows(
        self, a: str, row: str | int, count: str | int, panel: str, finished: str, rows: int, more_than: int
    ) -> None:
        """Compute a tile; rows past the last are the last once more, and are not looked at afterwards."""
        e, tile = self.e, self.tile
        last = e.sub(count, 1)
        lines = []
        for offset in range(rows):
            there = offset if offset <= more_than else e.least(offset, last)
            lines.append(e.address(a, tile.element, e.mul(e.add(row, there), self.a.row)))

        def load_a(number: int, place: str | int) -> str:
            at = e.address(lines[number], tile.element, e.mul(place, self.a.column))
            return e.spread(e.load(tile.element, at, tile.bytes), tile.lanes, tile.element)

        def load_b(place: str | int) -> list[str]:
            line = e.address(panel, tile.element, e.mul(place, tile.columns))
            return [
                e.load(tile.type, e.address(line, tile.element, number * tile.lanes), tile.bytes)
                for number in range(tile.vectors)
            ]

        for number, sums in enumerate(accumulate(e, tile, rows, self.depth, load_a, load_b)):
            for offset, value in enumerate(sums):
                at = e.address(finished, tile.element, number * tile.columns + offset * tile.lanes)
                e.store(tile.type, value, at, tile.bytes * tile.lanes)

    def _finish(
        self, leading: tuple[Index, ...], row: str | int, count: str | int, column: str | int, finished: str
    ) -> None:
        """Hand the vectors of a finished tile on."""
        e, tile = self.e, self.tile
        left = e.least(tile.columns, e.sub(self.columns, column))
        with e.loop(0, count) as number:
            line = e.address(finished, tile.element, e.mul(number, tile.columns))
            there = Index(e.add(row, number))

            def hand(offset: str | int, mask: str | None) -> None:
                value = e.load(tile.type, e.address(line, tile.element, offset), tile.bytes * tile.lanes)
                self.epilogue((*leading, there, Index(e.add(column, offset), 1)), value, mask)

            whole = e.mul(e.div(left, tile.lanes), tile.lanes)
            with e.loop(0, whole, tile.lanes) as offset:
                hand(offset, None)
            if not (isinstance(self.columns, int) and self.columns % tile.lanes == 0):
                with e.when(e.let(f"icmp slt i64 {whole}, {left}")):
                    hand(whole, e.lanes_below(e.sub(left, whole), tile.lanes))
