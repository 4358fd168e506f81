"""Products with very few columns, or of one row with contiguous columns: dot products along K.

A tile would leave most lanes idle, or transpose B for a single use. Here the lanes are along K and are summed at the
end, in an order that depends on K alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.compiler.codegen.kernel_builder import Gated, Index, Kernel
from sardonyx.compiler.codegen.load_store import memory_type
from sardonyx.compiler.kernels.gemm.microkernel import multiply_add, read
from sardonyx.compiler.kernels.gemm.operands import LowBitPanels, Matrix, Packed, Product
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.tiling.gemm_schedule import DOT_ROWS, Tile
from sardonyx.core.dim import Size, ceil_div
from sardonyx.core.ir.types import DType, is_float

ITEM = 64
"""Rows, or columns of the one row, in a work item."""


def multiply_few_columns(kernel: Kernel, tile: Tile, product: Product) -> Size:
    """Emit a product of few columns, whose packed form is [N, K]; return the work items."""
    e, a, b, n, epilogue = kernel.emitter, product.a, product.b, product.n, product.epilogue
    assert isinstance(n, int)
    assert not isinstance(epilogue, Gated)
    assert not isinstance(b, LowBitPanels)
    rows, depth = kernel.size(product.m), kernel.size(product.k)
    blocks = e.div(e.add(rows, ITEM - 1), ITEM)
    finished = e.array(tile.element, DOT_ROWS * tile.lanes)
    mask = e.lanes_below(n, tile.lanes)
    with e.loop("%first", "%last") as item:
        number, block = _split(e, item, blocks, product)
        operands = product.locate_operands(e, number)
        first = Lines(operands.a, a.dtype, a.row, a.column)
        along, step = (1, depth) if isinstance(b, Packed) else (b.row, b.column)
        second = Lines(operands.b, b.dtype, step, along)
        start = e.mul(block, ITEM)
        end = e.least(rows, e.add(start, ITEM))
        with e.loop(start, end, DOT_ROWS) as row:
            last = e.sub(end, 1)
            numbers = [e.least(e.add(row, offset), last) for offset in range(DOT_ROWS)]
            for offset, values in enumerate(dots(e, tile, first, numbers, second, n, depth)):
                for column, value in enumerate(values):
                    at = e.address(finished, tile.element, offset * tile.lanes + column)
                    e.store(tile.element, value, at, tile.bytes)
            with e.loop(row, e.least(end, e.add(row, DOT_ROWS))) as output_row:
                at = e.address(finished, tile.element, e.mul(e.sub(output_row, row), tile.lanes))
                value = e.load(tile.type, at, tile.bytes)
                epilogue((*operands.leading, Index(output_row), Index(0, 1)), value, mask)
    return product.batch * ceil_div(product.m, ITEM)


def multiply_one_row(kernel: Kernel, tile: Tile, product: Product) -> Size:
    """Emit a product of one row with columns that are contiguous; return the work items."""
    e, a, b, epilogue = kernel.emitter, product.a, product.b, product.epilogue
    assert isinstance(b, Matrix)
    assert not isinstance(epilogue, Gated)
    columns, depth = kernel.size(product.n), kernel.size(product.k)
    blocks = e.div(e.add(columns, ITEM - 1), ITEM)
    finished = e.array(tile.element, tile.lanes)
    with e.loop("%first", "%last") as item:
        number, block = _split(e, item, blocks, product)
        operands = product.locate_operands(e, number)
        first, second = Lines(operands.b, b.dtype, b.column, 1), Lines(operands.a, a.dtype, 0, a.column)
        start = e.mul(block, ITEM)
        end = e.least(columns, e.add(start, ITEM))
        last = e.sub(end, 1)
        with e.loop(start, end, tile.lanes) as base:
            with e.loop(0, e.least(tile.lanes, e.sub(end, base)), DOT_ROWS) as lane:
                numbers = [e.least(e.add(e.add(base, lane), offset), last) for offset in range(DOT_ROWS)]
                for offset, (value,) in enumerate(dots(e, tile, first, numbers, second, 1, depth)):
                    at = e.address(finished, tile.element, e.add(lane, offset))
                    e.store(tile.element, value, at, tile.bytes)
            value, left = e.load(tile.type, finished, tile.bytes), e.sub(end, base)
            with e.either(e.let(f"icmp sge i64 {left}, {tile.lanes}")) as branches:
                next(branches)
                epilogue((*operands.leading, Index(0), Index(base, 1)), value, None)
                next(branches)
                mask = e.lanes_below(left, tile.lanes)
                epilogue((*operands.leading, Index(0), Index(base, 1)), value, mask)
                next(branches, None)
    return product.batch * ceil_div(product.n, ITEM)


def _split(e: Emitter, item: str, blocks: str | int, product: Product) -> tuple[str | int, str | int]:
    """Return the number of the product in the batch, and of the block in the product."""
    return (0, item) if product.batch == 1 else (e.div(item, blocks), e.rem(item, blocks))


@dataclass(frozen=True)
class Lines:
    """Vectors along K in memory, at a constant stride.

    Attributes:
        start: Address of the first vector.
        dtype: The element type.
        step: Elements from one vector to the next.
        along: Elements from one step of K to the next.
    """

    start: str
    dtype: DType
    step: str | int
    along: str | int

    def at(self, e: Emitter, number: str | int) -> str:
        """Emit the address of a vector."""
        return e.address(self.start, memory_type(self.dtype), e.mul(number, self.step))


def dots(
    e: Emitter, tile: Tile, first: Lines, numbers: list[str | int], second: Lines, count: int, depth: str | int
) -> list[list[str]]:
    """Emit the dot products of some of the first vectors with the first ``count`` of the second."""
    lanes = tile.lanes
    rows = [first.at(e, number) for number in numbers]
    columns = [second.at(e, number) for number in range(count)]
    sums = [[e.variable(tile.type, "zeroinitializer") for _ in columns] for _ in rows]

    def step(start: str | int, mask: str | None) -> None:
        right = [_load_vector(e, tile, second, line, start, mask) for line in columns]
        for line, variables in zip(rows, sums, strict=True):
            left = _load_vector(e, tile, first, line, start, mask)
            for variable, vector in zip(variables, right, strict=True):
                variable.set(multiply_add(e, tile, left, vector, variable.get()))

    whole = e.mul(e.div(depth, lanes), lanes)
    with e.loop(0, whole, lanes) as first_step:
        step(first_step, None)
    if not (isinstance(depth, int) and depth == whole):
        with e.when(e.let(f"icmp slt i64 {whole}, {depth}")):
            step(whole, e.lanes_below(e.sub(depth, whole), lanes))
    return [[emit_lane_sum(e, tile, variable.get()) for variable in variables] for variables in sums]


def _load_vector(e: Emitter, tile: Tile, lines: Lines, line: str, start: str | int, mask: str | None) -> str:
    """Emit the load of elements along K; strided elements are loaded one by one."""
    if lines.along == 1:
        return read(e, tile, lines.dtype, line, Index(start, 1), tile.lanes, mask)
    variable = e.variable(tile.type, "zeroinitializer")
    for lane in range(tile.lanes):
        there = "true" if mask is None else e.let(f"extractelement <{tile.lanes} x i1> {mask}, i64 {lane}")
        with e.when(there):
            one = read(e, tile, lines.dtype, line, Index(e.mul(e.add(start, lane), lines.along)), 1)
            variable.set(e.let(f"insertelement {tile.type} {variable.get()}, {tile.element} {one}, i64 {lane}"))
    return variable.get()


def emit_lane_sum(e: Emitter, tile: Tile, value: str) -> str:
    """Emit the sum of the lanes of a vector, by halves."""
    lanes, kind = tile.lanes, "fadd" if is_float(tile.result) else "add"
    while lanes > 1:
        half = lanes // 2
        type, parts = f"<{lanes} x {tile.element}>", []
        for start in (0, half):
            order = ", ".join(f"i32 {start + lane}" for lane in range(half))
            parts.append(e.let(f"shufflevector {type} {value}, {type} poison, <{half} x i32> <{order}>"))
        value = e.let(f"{kind} <{half} x {tile.element}> {parts[0]}, {parts[1]}")
        lanes = half
    return e.let(f"extractelement <1 x {tile.element}> {value}, i64 0")
