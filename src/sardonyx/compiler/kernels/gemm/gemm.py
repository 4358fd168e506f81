"""Matrix products, ``C[m, n] = sum over k of A[m, k] * B[k, n]``, batched, with an epilogue.

A is read in place, an element at a time. B is stored in panels of a tile's columns, ``[panel][K][columns]``: weights
are packed when the program is compiled, other operands a panel at a time into the scratch memory of the thread that
needs the panel, or read in place if too few rows of A amortize the packing.

A work item is one panel by a block of rows. Consecutive items share the panel; with packed weights the rows form groups
whose part of A stays in L2 while all panels pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace

from sardonyx.compiler.analysis.low_bit_weights import LowBits
from sardonyx.compiler.codegen.integer_dot import each_entry
from sardonyx.compiler.codegen.kernel_builder import Epilogue, Gated, Index, Kernel
from sardonyx.compiler.codegen.load_store import memory_type
from sardonyx.compiler.kernels.gemm.gemv import Lines, dots, multiply_few_columns, multiply_one_row
from sardonyx.compiler.kernels.gemm.input_digits import InputDigits
from sardonyx.compiler.kernels.gemm.low_bits import LowBitPanel
from sardonyx.compiler.kernels.gemm.matrix import multiply_matrix
from sardonyx.compiler.kernels.gemm.microkernel import accumulate, multiply_add, read
from sardonyx.compiler.kernels.gemm.operands import LowBitPanels, Matrix, Operands, Packed, Product, Serpentine
from sardonyx.compiler.kernels.gemm.packing import fill, pack
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.tiling import costs
from sardonyx.compiler.tiling.gemm_schedule import DOT_ROWS, GemmSchedule
from sardonyx.compiler.tiling.low_bits import FEW_ROWS, MOST_ROWS, ROW_COUNTS, digit_bytes
from sardonyx.core.dim import Size, ceil_div
from sardonyx.core.ir.types import FLOAT, DType, numpy_dtype

__all__ = ["LowBitPanels", "Matrix", "Operands", "Packed", "Serpentine", "gemm", "pack", "scratch_bytes"]


def scratch_bytes(schedule: GemmSchedule, k: Size, low: LowBits | None = None) -> Size:
    """Return the bytes of scratch memory of a worker: one packed panel, a block of K of converted weights, or digits.

    Args:
        schedule: The schedule.
        k: Rows of B.
        low: The storage of weights of few bits; None for others.
    """
    if schedule.form == "low_bits" and not schedule.k_block:
        assert low is not None
        assert isinstance(k, int)
        return schedule.tiles_per_item * schedule.tile.rows * digit_bytes(low, k)
    depth = schedule.k_block if schedule.form == "low_bits" else k
    return depth * (schedule.tile.columns * schedule.tile.bytes)


def gemm(
    kernel: Kernel,
    *,
    schedule: GemmSchedule,
    m: Size,
    n: Size,
    k: Size,
    a: Matrix,
    b: Matrix | Packed | LowBitPanels,
    epilogue: Epilogue | Gated,
    batch: Size = 1,
    locate: Callable[[Emitter, str | int], Operands] | None = None,
    result: DType | None = None,
    scratch: str | None = None,
    serpentine: Serpentine | None = None,
    epilogue_operations: int = 0,
) -> Size:
    """Write a matrix product into a kernel.

    Args:
        kernel: The kernel; its work items become this product's.
        schedule: The schedule, see :func:`~sardonyx.compiler.tiling.gemm.choose_gemm`; of small integers ``k`` and
            the strides count groups of its dot width.
        m: Rows of A and the result.
        n: Columns of B and of the result.
        k: Columns of A, rows of B.
        a: The first operand.
        b: The second operand.
        epilogue: Gets every vector of the result, along columns, with the indices (leading ..., row, column); or all
            gates of a vector of units, if B was packed with interleaved gates (``n`` then counts packed columns).
        batch: Number of products.
        locate: Emits the addresses of the operands of a product of the batch by its number; by default those of ``a``
            and ``b``.
        result: The element type of the sums, which operands are converted to; by default that of ``a``.
        scratch: Scratch memory where ``b`` is not :class:`Packed`: :func:`scratch_bytes` for each worker.
        serpentine: The order of panels; None for ascending order.
        epilogue_operations: Operations of the epilogue for each result.

    Returns:
        The number of work items.
    """
    product = Product(
        m, n, k, a, b, epilogue, batch, locate, result or a.dtype, scratch, serpentine, epilogue_operations
    )
    if schedule.form == "few_columns":
        return multiply_few_columns(kernel, schedule.tile, product)
    if schedule.form == "one_row":
        return multiply_one_row(kernel, schedule.tile, product)
    if schedule.form == "matrix":
        return multiply_matrix(kernel, schedule, product)
    return _Gemm(kernel, schedule, product).write()


@dataclass(frozen=True)
class _Panel:
    """A panel in memory, packed or in place, as the inner loop reads B.

    Attributes:
        pointer: Address of the first row.
        row: Stride of rows, in elements.
        dtype: The element type.
        depth: Rows of the panel.
        following: Address of the next panel; None if unknown.
        first_row: The first row of the group of A's rows that is multiplied before the next panel.
    """

    pointer: str
    row: str | int
    dtype: DType
    depth: str | int
    following: str | None = None
    first_row: str | int = 0


@dataclass(frozen=True)
class _Strip:
    """The rows of A and the panel that a register tile multiplies.

    Attributes:
        a: Address of A.
        row: The first row.
        count: Rows, at most a tile's.
        left: Columns, at most a panel's.
        panel: The panel.
        sums: Address of the sums; if K is blocked, the sums of earlier blocks are there.
    """

    a: str
    row: str | int
    count: str | int
    left: str | int
    panel: _Panel
    sums: str


class _Gemm:
    """The emitter of one matrix product."""

    def __init__(self, kernel: Kernel, schedule: GemmSchedule, product: Product) -> None:
        self.kernel = kernel
        self.e = kernel.emitter
        self.target = kernel.target
        self.schedule = schedule
        tile = self.tile = schedule.tile
        self.product = product
        self.a, self.b = product.a, product.b
        self.rows, self.columns, self.depth = (kernel.size(size) for size in (product.m, product.n, product.k))
        self.k_block = schedule.k_block
        self.tiles = schedule.tiles_per_item
        self.panel_columns = tile.columns * schedule.panel_tiles
        self.has_row_tiles = bool(self.k_block) or isinstance(self.b, LowBitPanels)
        rows = (self.tiles if self.has_row_tiles else 1) * tile.rows
        sums = max(rows * tile.columns, FEW_ROWS * self.panel_columns if schedule.panel_tiles > 1 else 0)
        self.finished = self.e.array(tile.element, sums)
        self.packed_panel = self.e.variable("i64", "-1")

    def write(self) -> Size:
        """Emit the loop over work items; return the number of items."""
        e, tile = self.e, self.tile
        product = self.product
        width = self.panel_columns
        panels = e.div(e.add(self.columns, width - 1), width)
        block_rows, blocks = self._blocks()
        resident = self._resident(blocks)
        digits = self._digits()
        with e.loop("%first", "%last") as item:
            items_of_product = e.mul(panels, blocks)
            number: str | int = 0 if product.batch == 1 else e.div(item, items_of_product)
            within = e.sub(item, e.mul(number, items_of_product))
            group = e.mul(e.div(within, e.mul(resident, panels)), resident)
            within = e.sub(within, e.mul(group, panels))
            grouped = e.least(resident, e.sub(blocks, group))
            panel, block = self._order_panel(e.div(within, grouped), panels), e.add(group, e.rem(within, grouped))
            operands = product.locate_operands(e, number)
            column = e.mul(panel, width)
            left = e.least(width, e.sub(self.columns, column))
            start = e.mul(block, block_rows)
            end = e.least(self.rows, e.add(start, block_rows))
            unique, first_row = e.add(e.mul(number, panels), panel), e.mul(group, block_rows)
            if isinstance(self.b, LowBitPanels):
                self._multiply_low_bits(self.b, operands, digits, panel, start, end, column, left)
            elif self.k_block:
                values = self._panel(operands.b, panel, unique, left, first_row)
                self._by_k_blocks(operands.a, start, end, left, functools.partial(self._piece, values, start))
                self._correct_overflow(operands, start, e.sub(end, start), panel)
                self._finish(operands.leading, start, e.sub(end, start), column, left)
            else:

                def by_tiles() -> None:
                    values = self._panel(operands.b, panel, unique, left, first_row)
                    with e.loop(start, end, tile.rows) as row:
                        count = e.least(tile.rows, e.sub(end, row))
                        self._prefetch_epilogue(operands.leading, row, count, column, left)
                        self._compute(_Strip(operands.a, row, count, left, values, self.finished))
                        self._correct_overflow(operands, row, count, panel)
                        self._finish(operands.leading, row, count, column, left)

                if self._may_have_one_row():
                    with e.either(e.let(f"icmp eq i64 {self.rows}, 1")) as branches:
                        next(branches)
                        self._multiply_one_row(operands, column, left)
                        next(branches)
                        by_tiles()
                        next(branches, None)
                else:
                    by_tiles()
        if isinstance(product.k, int):
            most = tile.rows * self.tiles
            rows = min(product.m, most) if isinstance(product.m, int) else most
            self.kernel.work = (width // tile.lanes) * (
                product.k * max(rows, costs.L2_LOAD_FMAS) + rows * product.epilogue_operations
            )
        return product.batch * ceil_div(product.m, tile.rows * self.tiles) * ceil_div(product.n, width)

    def _may_have_one_row(self) -> bool:
        """Return True if a call may have one row, for which columns that are contiguous along K are not transposed."""
        a, b = self.a, self.b
        return (
            isinstance(b, Matrix) and not isinstance(self.rows, int) and a.column == 1 and b.row == 1 and b.column != 1
            and not isinstance(self.product.epilogue, Gated)
        )  # fmt: skip

    def _multiply_one_row(self, operands: Operands, column: str | int, left: str | int) -> None:
        """Emit the columns of a panel as dot products with the only row, and the epilogue."""
        e, tile, b = self.e, self.tile, self.b
        assert isinstance(b, Matrix)
        first, second = Lines(operands.b, b.dtype, b.column, 1), Lines(operands.a, self.a.dtype, 0, 1)
        last = e.sub(left, 1)
        with e.loop(0, left, DOT_ROWS) as offset:
            numbers = [e.add(column, e.least(e.add(offset, number), last)) for number in range(DOT_ROWS)]
            for number, (value,) in enumerate(dots(e, tile, first, numbers, second, 1, self.depth)):
                e.store(tile.element, value, e.address(self.finished, tile.element, e.add(offset, number)), tile.bytes)
        self._finish(operands.leading, 0, 1, column, left)

    def _blocks(self) -> tuple[str | int, str | int]:
        """Return the rows of a block (one work item) and the number of blocks."""
        e, rows = self.e, self.tile.rows
        most = rows * self.tiles
        blocks = e.div(e.add(self.rows, most - 1), most)
        if not self.has_row_tiles:
            return most, blocks
        tiles, some = e.div(e.add(self.rows, rows - 1), rows), e.most(1, blocks)
        return e.mul(e.div(e.sub(e.add(tiles, some), 1), some), rows), blocks

    def _digits(self) -> InputDigits | None:
        """Return the digits of rows that are multiplied with codes of few bits; None for other products."""
        k, product, tile = self.product.k, self.product, self.tile
        if not isinstance(self.b, LowBitPanels) or self.k_block:
            return None
        assert isinstance(k, int)
        assert product.scratch is not None
        e, room = self.e, scratch_bytes(self.schedule, k, self.b.form)

        def load(line: str, at: str | int, mask: str | None) -> str:
            return read(e, tile, self.a.dtype, line, Index(e.mul(at, self.a.column), self.a.column), tile.lanes, mask)

        memory = e.address(product.scratch, "i8", e.mul("%worker", self.kernel.size(room)))
        return InputDigits(e, self.b.form, k, memory, load)

    def _multiply_low_bits(
        self, b: LowBitPanels, operands: Operands, digits: InputDigits | None, panel: str | int, start: str | int,
        end: str | int, column: str | int, left: str | int,
    ) -> None:  # fmt: skip
        """Emit the rows of a work item, by weights of few bits, and the epilogue."""
        e, tile, product, k = self.e, self.tile, self.product, self.product.k
        assert isinstance(k, int)
        width = self.panel_columns
        start_of_panel = e.address(operands.b, "i32", e.mul(panel, b.form.blocks(k) * b.form.block_words(width)))
        wide = replace(tile, vectors=width // tile.lanes)
        low = LowBitPanel(e, self.target, wide, b, start_of_panel, k, self.k_block)
        count = e.sub(end, start)

        def by_digits(rows: int) -> None:
            assert digits is not None
            tiles = e.div(e.add(count, rows - 1), rows)
            digits.write(lambda row: self._line(operands.a, e.add(start, row)), str(count), tiles, rows)
            low.multiply_digits(digits, tiles, rows, self.finished)

        def few(rows: int, first: str | int = 0) -> None:
            last = e.sub(count, 1)
            numbers = [i if i == 0 or count == rows else e.least(e.add(first, i), last) for i in range(rows)]
            numbers[0] = first
            sums = e.address(self.finished, tile.element, e.mul(first, width))
            low.multiply_rows(self.a, [self._line(operands.a, e.add(start, number)) for number in numbers], sums)

        def finish() -> None:
            with e.loop(0, count) as number:
                sums = e.address(self.finished, tile.element, e.mul(number, width))
                with e.when(low.has_infinite(1, sums)):
                    low.multiply_weights(self.a, self._line(operands.a, e.add(start, number)), sums)
            self._finish(operands.leading, start, count, column, left, width)

        def many() -> None:
            assert product.scratch is not None
            room = self.k_block * tile.columns * tile.bytes
            floats = e.address(product.scratch, "i8", e.mul("%worker", room))
            with e.loop(0, left, tile.columns) as part:

                def piece(begin: str | int, length: str | int) -> _Panel:
                    low.convert(begin, length, floats, part, tile.vectors)
                    return _Panel(floats, tile.columns, FLOAT, length, None, start)

                some = e.least(tile.columns, e.sub(left, part))
                self._by_k_blocks(operands.a, start, end, some, piece)
                self._finish(operands.leading, start, count, e.add(column, part), some)

        def choose(counts: tuple[int, ...]) -> None:
            if not counts:
                many()
                return
            with e.either(e.let(f"icmp sle i64 {count}, {counts[0]}")) as branches:
                next(branches)
                few(counts[0])
                finish()
                next(branches)
                choose(counts[1:])
                next(branches, None)

        if digits is not None:
            if isinstance(product.m, int):
                by_digits(tile.rows)
            else:
                with e.either(e.let(f"icmp eq i64 {count}, 1")) as branches:
                    next(branches)
                    by_digits(1)
                    next(branches)
                    by_digits(tile.rows)
                    next(branches, None)
            finish()
        elif not isinstance(product.m, int):
            choose(ROW_COUNTS)
        elif product.m <= FEW_ROWS:
            rows = -(-product.m // -(-product.m // MOST_ROWS))
            with e.loop(0, product.m, rows) as first:
                few(rows, first)
            finish()
        else:
            many()

    def _line(self, a: str, row: str | int) -> str:
        """Return the address of a row of A."""
        return self.e.address(a, memory_type(self.a.dtype), self.e.mul(row, self.a.row))

    def _piece(self, panel: _Panel, first_row: str | int, begin: str | int, length: str | int) -> _Panel:
        """Return some steps of K of a packed panel."""
        e = self.e
        pointer = e.address(panel.pointer, memory_type(panel.dtype), e.mul(begin, panel.row))
        following = e.address(pointer, memory_type(panel.dtype), e.mul(length, panel.row))
        return _Panel(pointer, panel.row, panel.dtype, length, following, first_row)

    def _by_k_blocks(
        self,
        a: str,
        start: str | int,
        end: str | int,
        left: str | int,
        piece: Callable[[str | int, str | int], _Panel],
    ) -> None:
        """Emit the rows of a work item by blocks of K, of which ``piece`` gives B.

        Sums are stored between blocks, which does not change any bit.
        """
        e, tile = self.e, self.tile
        with e.loop(0, e.mul(e.sub(end, start), tile.columns), tile.lanes) as offset:
            at = e.address(self.finished, tile.element, offset)
            e.store(tile.type, "zeroinitializer", at, tile.bytes * tile.lanes)
        with e.loop(0, self.depth, self.k_block) as begin:
            length: str | int = self.k_block
            if isinstance(self.depth, int) and self.depth % self.k_block:
                length = e.least(self.k_block, e.sub(self.depth, begin))
            values = piece(begin, length)
            operand = e.address(a, memory_type(self.a.dtype), e.mul(begin, self.a.column))
            with e.loop(start, end, tile.rows) as row:
                count = e.least(tile.rows, e.sub(end, row))
                sums = e.address(self.finished, tile.element, e.mul(e.sub(row, start), tile.columns))
                self._compute(_Strip(operand, row, count, left, values, sums))

    def _order_panel(self, panel: str | int, panels: str | int) -> str | int:
        """Return the panel of a position in serpentine order, within the part of each thread."""
        e, serpentine = self.e, self.product.serpentine
        if serpentine is None:
            return panel
        first = e.div(panels, serpentine.threads)
        early = e.let(f"icmp slt i64 {panel}, {first}")
        end = e.let(f"select i1 {early}, i64 {first}, i64 {e.add(panels, first)}")
        return e.let(f"select i1 {serpentine.back}, i64 {e.sub(e.sub(end, 1), panel)}, i64 {panel}")

    def _resident(self, blocks: str | int) -> str | int:
        """Return the blocks of rows in a group: half of L2, or all rows if each group would pack B again."""
        e, tile = self.e, self.tile
        if isinstance(self.b, Matrix):
            return e.most(1, blocks)
        if isinstance(self.b, LowBitPanels) and not self.k_block:
            return 1  # The digits of one block of rows are in scratch memory.
        block_bytes = e.mul(e.most(1, self.depth), tile.rows * self.tiles * tile.bytes)
        return e.most(1, e.div(self.target.l2 // 2, block_bytes))

    def _panel(self, start: str, panel: str | int, unique: str | int, left: str | int, first_row: str | int) -> _Panel:
        """Return a panel of B by number: packed before the call, in place, or packed now."""
        e, tile, b = self.e, self.tile, self.b
        assert not isinstance(b, LowBitPanels)
        if isinstance(b, Packed):
            offset = e.mul(e.mul(panel, self.depth), tile.columns)
            begin = e.address(start, memory_type(b.dtype), offset)
            following = e.address(begin, memory_type(b.dtype), e.mul(self.depth, tile.columns))
            return _Panel(begin, tile.columns, b.dtype, self.depth, following, first_row)
        source = e.address(start, memory_type(b.dtype), e.mul(e.mul(panel, tile.columns), b.column))
        assert self.product.scratch is not None
        room = e.mul(self.depth, tile.columns * tile.bytes)
        packed = e.address(self.product.scratch, "i8", e.mul("%worker", room))
        pointer, row = e.variable("ptr", packed), e.variable("i64", str(tile.columns))

        def pack_it() -> None:
            with e.when(e.let(f"icmp ne i64 {self.packed_panel.get()}, {unique}")):
                self.packed_panel.set(str(unique))
                fill(e, tile, b, source, left, self.depth, packed)

        if b.column != 1 or b.dtype != tile.result:
            pack_it()
        else:
            few = e.let(f"icmp sle i64 {self.rows}, {tile.rows * costs.ROW_TILES_WORTH_PACKING}")
            whole = e.let(f"icmp eq i64 {left}, {tile.columns}")
            with e.either(e.let(f"and i1 {few}, {whole}")) as branches:
                next(branches)
                pointer.set(source)
                row.set(str(b.row))
                next(branches)
                pack_it()
                next(branches, None)
        return _Panel(pointer.get(), row.get(), tile.result, self.depth)

    def _compute(self, strip: _Strip) -> None:
        """Emit a tile, by the code for the smallest size that suffices."""
        e, tile = self.e, self.tile
        counts = self._row_counts()
        edges = self._edge_vectors()
        if not edges:
            self._choose(strip, counts, tile.vectors)
            return
        narrower = (edges[0]) * tile.lanes
        with e.either(e.let(f"icmp sgt i64 {strip.left}, {narrower}")) as branches:
            next(branches)
            self._choose(strip, counts, tile.vectors)
            next(branches)
            self._narrow(strip, edges)
            next(branches, None)

    def _row_counts(self) -> tuple[int, ...]:
        """Return the row counts with code of their own, descending; other counts take the next larger code."""
        rows = self.tile.rows
        if isinstance(self.rows, int):
            rest = self.rows % rows
            return (*([rows] if self.rows >= rows else []), *([rest] if rest else [])) or (rows,)
        return (rows, *(count for count in (4, 2, 1) if count < rows))

    def _edge_vectors(self) -> tuple[int, ...]:
        """Return the counts of vectors, descending, that the last panel may have."""
        tile = self.tile
        if isinstance(self.columns, int):
            rest = -(-(self.columns % tile.columns) // tile.lanes)
            return (rest,) if 0 < rest < tile.vectors else ()
        return tuple(count for count in (2, 1) if count < tile.vectors)

    def _narrow(self, strip: _Strip, edges: tuple[int, ...]) -> None:
        """Emit a tile of the last panel."""
        e, counts = self.e, self._row_counts()
        few = (counts[0], counts[-1]) if len(counts) > 2 else counts
        if len(edges) == 1:
            self._choose(strip, few, edges[0])
            return
        with e.either(e.let(f"icmp sgt i64 {strip.left}, {edges[1] * self.tile.lanes}")) as branches:
            next(branches)
            self._choose(strip, few, edges[0])
            next(branches)
            self._narrow(strip, edges[1:])
            next(branches, None)

    def _choose(self, strip: _Strip, counts: tuple[int, ...], vectors: int) -> None:
        """Emit a tile, by the code for the smallest row count that suffices."""
        e = self.e
        if len(counts) == 1:
            self._multiply(strip, counts[0], 0, vectors)
            return
        with e.either(e.let(f"icmp sgt i64 {strip.count}, {counts[1]}")) as branches:
            next(branches)
            self._multiply(strip, counts[0], counts[1], vectors)
            next(branches)
            self._choose(strip, counts[1:], vectors)
            next(branches, None)

    def _multiply(self, strip: _Strip, rows: int, more_than: int, vectors: int) -> None:
        """Emit a tile; rows past the last repeat the last one and are never stored."""
        e, tile, panel = self.e, self.tile, strip.panel
        last = e.sub(strip.count, 1)
        exact = isinstance(self.rows, int)
        lines = []
        for offset in range(rows):
            there = offset if exact or offset <= more_than else e.least(offset, last)
            lines.append(e.address(strip.a, memory_type(self.a.dtype), e.mul(e.add(strip.row, there), self.a.row)))

        def load_a(number: int, step: str | int) -> str:
            return read(e, tile, self.a.dtype, lines[number], Index(e.mul(step, self.a.column)), tile.lanes)

        def load_b(step: str | int) -> list[str]:
            line = e.address(panel.pointer, memory_type(panel.dtype), e.mul(step, panel.row))
            return [
                read(e, tile, panel.dtype, line, Index(number * tile.lanes, 1), tile.lanes) for number in range(vectors)
            ]

        def sum_at(number: int, offset: int) -> str:
            return e.address(strip.sums, tile.element, number * tile.columns + offset * tile.lanes)

        def before(number: int, offset: int) -> str:
            return e.load(tile.type, sum_at(number, offset), tile.bytes * tile.lanes)

        unroll = tile.unroll if vectors == tile.vectors else 1
        is_full = rows == tile.rows and unroll == tile.unroll
        prefetch = None
        if self.schedule.prefetch == "panel" and is_full:
            prefetch = self._prefetching(strip.row, lines[0], panel)
        elif self.schedule.prefetch == "stream" and is_full:
            prefetch = self._streaming(panel)
        elif self.schedule.prefetch == "steps":
            prefetch = self._stepping(panel)
        initial = before if self.k_block else None
        computed = accumulate(e, tile, rows, vectors, panel.depth, unroll, load_a, load_b, initial, prefetch)
        for number, sums in enumerate(computed):
            for offset, value in enumerate(sums):
                e.store(tile.type, value, sum_at(number, offset), tile.bytes * tile.lanes)

    def _correct_overflow(self, operands: Operands, row: str | int, count: str | int, panel: str | int) -> None:
        """Emit the products with the overflow corrections after the panels, see :func:`.entries`."""
        e, tile, product = self.e, self.tile, self.product
        if not self.schedule.corrects_overflow:
            return
        assert isinstance(product.k, int)
        assert isinstance(product.n, int)
        panels = -(-product.n // tile.columns)
        table = e.address(operands.b, tile.element, panels * product.k * tile.columns)
        with (
            each_entry(e, table, panel, tiles=panels, columns=tile.columns, lanes=tile.lanes, numbers=1) as entry,
            e.loop(0, count) as number,
        ):
            (step,), weights = entry
            at = Index(e.add(e.mul(e.add(row, number), self.a.row), e.mul(step, self.a.column)))
            element = read(e, tile, self.a.dtype, operands.a, at, tile.lanes)
            line = e.address(self.finished, tile.element, e.mul(number, tile.columns))
            for offset in range(0, tile.columns, tile.lanes):
                weight = e.load(tile.type, e.address(weights, tile.element, offset), tile.bytes * tile.lanes)
                there = e.address(line, tile.element, offset)
                before = e.load(tile.type, there, tile.bytes * tile.lanes)
                e.store(tile.type, multiply_add(e, tile, element, weight, before), there, tile.bytes * tile.lanes)

    def _prefetching(self, row: str | int, line: str, panel: _Panel) -> Callable[[str], None]:
        """Return the emitter of prefetches of the next panel, a few cache lines a round.

        The hardware prefetcher follows the stream of loads, not the panel after it: without these prefetches the first
        tile of each panel waits for memory, while memory is idle during the other tiles. Once the whole panel has been
        prefetched, or if the panel would evict the current one, the prefetches are of cached lines of A.
        """
        e, tile = self.e, self.tile
        row_bytes = tile.columns * numpy_dtype(panel.dtype).itemsize
        lines = -(-tile.unroll * row_bytes // costs.CACHE_LINE)
        tiles = self.product.m // tile.rows if isinstance(self.product.m, int) else lines
        lines_per_round = -(-lines // max(tiles, 1))
        assert panel.following is not None
        part = e.mul(e.div(panel.depth, tile.unroll), lines_per_round * costs.CACHE_LINE)
        number = e.div(e.sub(row, panel.first_row), tile.rows)
        following_lines = e.address(panel.following, "i8", e.mul(number, part))
        enough = e.let(f"icmp sge i64 {number}, {-(-lines // lines_per_round)}")
        large = e.let(f"icmp sgt i64 {panel.depth}, {self.target.l2 // 4 // row_bytes}")
        none = e.let(f"or i1 {enough}, {large}")
        start = e.let(f"select i1 {none}, ptr {line}, ptr {following_lines}")
        along = e.mul(self.a.column, numpy_dtype(self.a.dtype).itemsize)
        step = e.let(f"select i1 {none}, i64 {along}, i64 {lines_per_round * costs.CACHE_LINE // tile.unroll}")

        def prefetch(step_of_k: str) -> None:
            first = e.address(start, "i8", e.mul(step_of_k, step))
            for offset in range(lines_per_round):
                e.prefetch(e.address(first, "i8", offset * costs.CACHE_LINE), level=2)

        return prefetch

    def _streaming(self, panel: _Panel) -> Callable[[str], None]:
        """Return the emitter of prefetches of lines of B that are read some rounds later."""
        e, tile = self.e, self.tile
        row_bytes = tile.columns * numpy_dtype(panel.dtype).itemsize

        def prefetch(step_of_k: str) -> None:
            ahead = e.add(e.mul(step_of_k, row_bytes), costs.STREAM_PREFETCH_BYTES)
            line = e.address(panel.pointer, "i8", ahead)
            for offset in range(0, tile.unroll * row_bytes, costs.CACHE_LINE):
                e.prefetch(e.address(line, "i8", offset))

        return prefetch

    def _stepping(self, panel: _Panel) -> Callable[[str], None]:
        """Return the emitter of prefetches of rows of B that are read some steps later, each on another page."""
        e, tile = self.e, self.tile

        def prefetch(step_of_k: str) -> None:
            for step in range(tile.unroll):
                there = e.mul(e.add(step_of_k, costs.STRIDED_PREFETCH_STEPS + step), panel.row)
                line = e.address(panel.pointer, memory_type(panel.dtype), there)
                for offset in range(0, tile.columns * tile.bytes, costs.CACHE_LINE):
                    e.prefetch(e.address(line, "i8", offset), level=2)

        return prefetch

    def _prefetch_epilogue(
        self, leading: tuple[Index, ...], row: str | int, count: str | int, column: str | int, left: str | int
    ) -> None:
        """Emit prefetches of the operands that the epilogue of a gated tile reads."""
        e, tile, epilogue = self.e, self.tile, self.product.epilogue
        if not isinstance(epilogue, Gated):
            return
        first = e.div(column, epilogue.count)
        with e.loop(0, count) as number, e.loop(0, e.div(left, epilogue.count), tile.lanes) as offset:
            epilogue.prefetch((*leading, Index(e.add(row, number)), Index(e.add(first, offset), 1)))

    def _finish(
        self, leading: tuple[Index, ...], row: str | int, count: str | int, column: str | int, left: str | int,
        width: int | None = None,
    ) -> None:  # fmt: skip
        """Emit the epilogue for the vectors of a finished tile; ``width`` columns apart, by default a tile's."""
        e, tile, epilogue = self.e, self.tile, self.product.epilogue
        with e.loop(0, count) as number:
            line = e.address(self.finished, tile.element, e.mul(number, width or tile.columns))
            there = Index(e.add(row, number))
            if isinstance(epilogue, Gated):
                self._emit_gates(epilogue, (*leading, there), line, column, left)
                return

            def emit(offset: str | int, mask: str | None) -> None:
                value = e.load(tile.type, e.address(line, tile.element, offset), tile.bytes * tile.lanes)
                epilogue((*leading, there, Index(e.add(column, offset), 1)), value, mask)

            whole = e.mul(e.div(left, tile.lanes), tile.lanes)
            with e.loop(0, whole, tile.lanes) as offset:
                emit(offset, None)
            if not (isinstance(self.columns, int) and self.columns % tile.lanes == 0):
                with e.when(e.let(f"icmp slt i64 {whole}, {left}")):
                    emit(whole, e.lanes_below(e.sub(left, whole), tile.lanes))

    def _emit_gates(
        self, gated: Gated, leading: tuple[Index, ...], line: str, column: str | int, left: str | int
    ) -> None:
        """Emit the epilogue for a row of a finished tile, the gates of a vector of units at a time."""
        e, tile = self.e, self.tile
        first = e.div(column, gated.count)
        with e.loop(0, e.div(left, gated.count), tile.lanes) as offset:
            unit = e.add(first, offset)
            start = e.address(line, tile.element, e.mul(offset, gated.count))
            addresses = [e.address(start, tile.element, gate * tile.lanes) for gate in range(gated.count)]
            values = [e.load(tile.type, address, tile.bytes * tile.lanes) for address in addresses]
            whole = gated.units % tile.lanes == 0
            mask = None if whole else e.lanes_below(e.least(e.sub(gated.units, unit), tile.lanes), tile.lanes)
            gated.epilogue((*leading, Index(unit, 1)), values, mask)
