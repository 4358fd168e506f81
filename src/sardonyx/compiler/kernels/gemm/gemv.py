"""Products with very few columns, or of one row with columns that are contiguous: dot products along K.

A tile would leave most of its lanes idle, or have to transpose everything for one use of it. Here the lanes are along
K, and are summed at the end of it, in an order that K alone decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.compiler.codegen.kernel_builder import Gated, Index, Kernel
from sardonyx.compiler.codegen.load_store import memory_type
from sardonyx.compiler.kernels.gemm.microkernel import multiply_add, read
from sardonyx.compiler.kernels.gemm.operands import Packed, Product
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.tiling.gemm import DOT_ROWS, Tile
from sardonyx.core.dim import Size, ceil_div
from sardonyx.core.ir.types import DType, is_float

ITEM = 64
"""Rows, or columns of the one row, in a work item."""


def of_few_columns(kernel: Kernel, tile: Tile, product: Product) -> Size:
    """Write a product of few columns, whose packed form is [N, K]; returns the work items."""
    e, a, b, n, epilogue = kernel.emitter, product.a, product.b, product.n, product.epilogue
    assert isinstance(n, int)
    assert not isinstance(epilogue, Gated)
    rows, depth = kernel.size(product.m), kernel.size(product.k)
    blocks = e.div(e.add(rows, ITEM - 1), ITEM)
    finished = e.array(tile.element, DOT_ROWS * tile.lanes)
    mask = e.lanes_below(n, tile.lanes)
    with e.loop("%first", "%last") as item:
        number, block = _split(e, item, blocks, product)
        place = product.place_of(e, number)
        first = Lines(place.a, a.dtype, a.row, a.column)
        along, step = (1, depth) if isinstance(b, Packed) else (b.row, b.column)
        second = Lines(place.b, b.dtype, step, along)
        start = e.mul(block, ITEM)
        end = e.least(rows, e.add(start, ITEM))
        with e.loop(start, end, DOT_ROWS) as row:
            last = e.sub(end, 1)
            numbers = [e.least(e.add(row, offset), last) for offset in range(DOT_ROWS)]
            for offset, values in enumerate(dots(e, tile, first, numbers, second, n, depth)):
                for column, value in enumerate(values):
                    at = e.address(finished, tile.element, offset * tile.lanes + column)
                    e.store(tile.element, value, at, tile.bytes)
            with e.loop(row, e.least(end, e.add(row, DOT_ROWS))) as each:
                at = e.address(finished, tile.element, e.mul(e.sub(each, row), tile.lanes))
                value = e.load(tile.type, at, tile.bytes)
                epilogue((*place.leading, Index(each), Index(0, 1)), value, mask)
    return product.batch * ceil_div(product.m, ITEM)


def of_one_row(kernel: Kernel, tile: Tile, product: Product) -> Size:
    """Write a product of one row with columns that are contiguous; returns the work items."""
    e, a, b, epilogue = kernel.emitter, product.a, product.b, product.epilogue
    assert not isinstance(b, Packed)
    assert not isinstance(epilogue, Gated)
    columns, depth = kernel.size(product.n), kernel.size(product.k)
    blocks = e.div(e.add(columns, ITEM - 1), ITEM)
    finished = e.array(tile.element, tile.lanes)
    with e.loop("%first", "%last") as item:
        number, block = _split(e, item, blocks, product)
        place = product.place_of(e, number)
        first, second = Lines(place.b, b.dtype, b.column, 1), Lines(place.a, a.dtype, 0, a.column)
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
                epilogue((*place.leading, Index(0), Index(base, 1)), value, None)
                next(branches)
                mask = e.lanes_below(left, tile.lanes)
                epilogue((*place.leading, Index(0), Index(base, 1)), value, mask)
                next(branches, None)
    return product.batch * ceil_div(product.n, ITEM)


def _split(e: Emitter, item: str, blocks: str | int, product: Product) -> tuple[str | int, str | int]:
    """The number of the product in the batch, and of the block in it."""
    return (0, item) if product.batch == 1 else (e.div(item, blocks), e.rem(item, blocks))


@dataclass(frozen=True)
class Lines:
    """Vectors along K that lie in memory at even distances.

    Attributes:
        start: Where the first begins.
        dtype: Their element type.
        step: Elements from one to the next.
        along: Elements from a place along K to the next.
    """

    start: str
    dtype: DType
    step: str | int
    along: str | int

    def at(self, e: Emitter, number: str | int) -> str:
        """Where one of them begins."""
        return e.address(self.start, memory_type(self.dtype), e.mul(number, self.step))


def dots(
    e: Emitter, tile: Tile, first: Lines, numbers: list[str | int], second: Lines, count: int, depth: str | int
) -> list[list[str]]:
    """Write the dot products of some of the first vectors with the first ``count`` of the second."""
    lanes = tile.lanes
    rows = [first.at(e, number) for number in numbers]
    columns = [second.at(e, number) for number in range(count)]
    sums = [[e.variable(tile.type, "zeroinitializer") for _ in columns] for _ in rows]

    def step(place: str | int, mask: str | None) -> None:
        right = [_vector(e, tile, second, line, place, mask) for line in columns]
        for line, variables in zip(rows, sums, strict=True):
            left = _vector(e, tile, first, line, place, mask)
            for variable, vector in zip(variables, right, strict=True):
                variable.set(multiply_add(e, tile, left, vector, variable.get()))

    whole = e.mul(e.div(depth, lanes), lanes)
    with e.loop(0, whole, lanes) as place:
        step(place, None)
    if not (isinstance(depth, int) and depth == whole):
        with e.when(e.let(f"icmp slt i64 {whole}, {depth}")):
            step(whole, e.lanes_below(e.sub(depth, whole), lanes))
    return [[horizontal_sum(e, tile, variable.get()) for variable in variables] for variables in sums]


def _vector(e: Emitter, tile: Tile, lines: Lines, line: str, place: str | int, mask: str | None) -> str:
    """Elements along K; those that are apart come one by one."""
    if lines.along == 1:
        return read(e, tile, lines.dtype, line, Index(place, 1), tile.lanes, mask)
    found = e.variable(tile.type, "zeroinitializer")
    for lane in range(tile.lanes):
        there = "true" if mask is None else e.let(f"extractelement <{tile.lanes} x i1> {mask}, i64 {lane}")
        with e.when(there):
            one = read(e, tile, lines.dtype, line, Index(e.mul(e.add(place, lane), lines.along)), 1)
            found.set(e.let(f"insertelement {tile.type} {found.get()}, {tile.element} {one}, i64 {lane}"))
    return found.get()


def horizontal_sum(e: Emitter, tile: Tile, value: str) -> str:
    """The sum of the lanes of a vector, by halves."""
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
