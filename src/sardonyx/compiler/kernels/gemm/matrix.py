"""Matrix products of bytes or bfloat16 on the matrix unit: blocks of 32 rows by 32 columns, 64 bytes of K a step.

A is read in place, rows of unsigned bytes or bfloat16. B is packed in panels of 32 columns, K padded with zeros to
whole steps. Of the last step of K the rows of A are copied, as reading whole rows would pass the end of A.
"""

from __future__ import annotations

from sardonyx.compiler.codegen.kernel_builder import Gated, Index, Kernel
from sardonyx.compiler.kernels.gemm.operands import Product
from sardonyx.compiler.kernels.matrix_tiles import COLUMNS, DEPTH, ROWS, WORDS, MatrixUnit
from sardonyx.compiler.tiling.gemm_schedule import GemmSchedule
from sardonyx.core.dim import Size, ceil_div
from sardonyx.core.ir.types import is_float


def multiply_matrix(kernel: Kernel, schedule: GemmSchedule, product: Product) -> Size:
    """Write a product of words of four bytes or two bfloat16; see :func:`sardonyx.compiler.kernels.gemm.gemm.gemm`."""
    return _MatrixProduct(kernel, schedule, product).write()


class _MatrixProduct:
    """The emitter of one product."""

    def __init__(self, kernel: Kernel, schedule: GemmSchedule, product: Product) -> None:
        self.kernel, self.product = kernel, product
        self.e = kernel.emitter
        self.tile = schedule.tile
        self.unit = MatrixUnit(self.e, is_bfloat16=is_float(self.tile.result))
        self.block_rows = schedule.tile.rows * schedule.tiles_per_item
        self.rows, self.columns = kernel.size(product.m), kernel.size(product.n)
        assert isinstance(product.k, int)
        self.whole, self.rest = divmod(product.k, WORDS)
        self.sums = self.e.array("i32", self.tile.rows * self.tile.columns)
        self.copies = self.e.array("i32", 2 * ROWS * WORDS) if self.rest else ""

    def write(self) -> Size:
        """Emit the loop over work items; return the number of items."""
        e, tile, product = self.e, self.tile, self.product
        panels = e.div(e.add(self.columns, tile.columns - 1), tile.columns)
        blocks = e.div(e.add(self.rows, self.block_rows - 1), self.block_rows)
        depth = (self.whole + bool(self.rest)) * DEPTH
        many = max(1, self.kernel.target.l2 // 2 // (max(depth, 1) * self.block_rows))
        with self.unit.configured(), e.loop("%first", "%last") as item:
            of_product = e.mul(panels, blocks)
            number: str | int = 0 if product.batch == 1 else e.div(item, of_product)
            within = e.sub(item, e.mul(number, of_product))
            group = e.mul(e.div(within, e.mul(panels, many)), many)
            within = e.sub(within, e.mul(group, panels))
            grouped = e.least(many, e.sub(blocks, group))
            panel, block = e.div(within, grouped), e.add(group, e.rem(within, grouped))
            operands = product.locate_operands(e, number)
            values = e.address(operands.b, "i8", e.mul(panel, depth * tile.columns))
            start = e.mul(block, self.block_rows)
            end = e.least(self.rows, e.add(start, self.block_rows))
            left = e.least(tile.columns, e.sub(self.columns, e.mul(panel, tile.columns)))
            self._columns(operands.a, operands.leading, values, (start, end), e.mul(panel, tile.columns), left)
        most = min(product.m, self.block_rows) if isinstance(product.m, int) else self.block_rows
        self.kernel.work = most * tile.columns * (depth // 512 + product.epilogue_operations // 16 + 1)
        return product.batch * ceil_div(product.m, self.block_rows) * ceil_div(product.n, tile.columns)

    def _columns(
        self, a: str, leading: tuple[Index, ...], values: str, span: tuple[str | int, str | int], column: str | int,
        left: str | int,
    ) -> None:  # fmt: skip
        """Emit a panel: the code for two tiles of columns, or for one if the last panel has no more."""
        e = self.e
        narrow = isinstance(self.columns, int) and 0 < self.columns % self.tile.columns <= COLUMNS
        if not narrow:
            self._blocks(a, leading, values, span, column, left, 2)
            return
        with e.either(e.let(f"icmp sgt i64 {left}, {COLUMNS}")) as branches:
            for count, _ in zip((2, 1), branches, strict=True):
                self._blocks(a, leading, values, span, column, left, count)

    def _blocks(
        self, a: str, leading: tuple[Index, ...], values: str, span: tuple[str | int, str | int], column: str | int,
        left: str | int, tiles: int,
    ) -> None:  # fmt: skip
        """Emit the blocks of rows of a work item; the last may have fewer rows."""
        e, unit, most = self.e, self.unit, self.tile.rows
        start, end = span
        whole = e.add(start, e.mul(e.div(e.sub(end, start), most), most))
        with e.loop(start, whole, most) as row:
            self._block(a, values, row, (ROWS, ROWS), tiles)
            self._finish(leading, row, most, column, left, tiles)
        if isinstance(self.rows, int) and self.rows % most == 0:
            return
        rest = e.sub(end, whole)
        with e.when(e.let(f"icmp sgt i64 {rest}, 0")):
            with e.either(e.let(f"icmp sgt i64 {rest}, {ROWS}")) as branches:
                for counts, _ in zip(((ROWS, e.sub(rest, ROWS)), (rest,)), branches, strict=True):
                    unit.configure_rows(counts)
                    self._block(a, values, whole, counts, tiles)
            self._finish(leading, whole, rest, column, left, tiles)
            unit.configure_whole()

    def _block(self, a: str, values: str, row: str | int, counts: tuple[str | int, ...], tiles: int) -> None:
        """Emit the sums of a block of rows and store them."""
        e, unit, pitch = self.e, self.unit, self.e.mul(self.product.a.row, 4)
        starts = [e.address(a, "i8", e.mul(e.add(row, ROWS * i), pitch)) for i in range(len(counts))]
        unit.clear(len(counts), tiles)
        row_bytes = 4 * self.tile.columns

        def weights(step: str | int) -> list[str]:
            first = e.address(values, "i8", e.mul(step, DEPTH * self.tile.columns))
            return [e.address(first, "i8", 4 * COLUMNS * j) for j in range(tiles)]

        with e.loop(0, self.whole) as step:
            unit.step([e.address(s, "i8", e.mul(step, DEPTH)) for s in starts], pitch, weights(step), row_bytes)
        if self.rest:
            mask = e.lanes_below(self.rest, WORDS)
            copies = [e.address(self.copies, "i32", i * ROWS * WORDS) for i in range(len(counts))]
            for begin, copy, count in zip(starts, copies, counts, strict=True):
                with e.loop(0, count) as number:
                    source = e.address(begin, "i8", e.add(e.mul(number, pitch), self.whole * DEPTH))
                    part = e.masked_load(f"<{WORDS} x i32>", source, 1, mask, WORDS)
                    e.store(f"<{WORDS} x i32>", part, e.address(copy, "i32", e.mul(number, WORDS)), 64)
            unit.step(copies, DEPTH, weights(self.whole), row_bytes)
        for i in range(len(counts)):
            for j in range(tiles):
                at = e.address(self.sums, "i32", i * ROWS * self.tile.columns + j * COLUMNS)
                unit.store(i, j, at, row_bytes)

    def _finish(
        self, leading: tuple[Index, ...], row: str | int, count: str | int, column: str | int, left: str | int,
        tiles: int,
    ) -> None:  # fmt: skip
        """Emit the epilogue for the sums of a block."""
        e, tile, epilogue = self.e, self.tile, self.product.epilogue
        assert not isinstance(epilogue, Gated)
        known = isinstance(self.columns, int) and self.columns % COLUMNS == 0
        with e.loop(0, count) as number:
            line = e.address(self.sums, "i32", e.mul(number, tile.columns))
            at = Index(e.add(row, number))

            def emit(j: int, mask: str | None) -> None:
                value = e.load(tile.type, e.address(line, "i32", j * COLUMNS), 64)
                epilogue((*leading, at, Index(e.add(column, j * COLUMNS), 1)), value, mask)

            if known:
                with self.kernel.side_by_side():
                    for j in range(tiles):
                        emit(j, None)
                return
            for j in range(tiles):
                with e.either(e.let(f"icmp sge i64 {left}, {(j + 1) * COLUMNS}")) as branches:
                    next(branches)
                    emit(j, None)
                    next(branches)
                    with e.when(e.let(f"icmp sgt i64 {left}, {j * COLUMNS}")):
                        emit(j, e.lanes_below(e.sub(left, j * COLUMNS), COLUMNS))
                    next(branches, None)
