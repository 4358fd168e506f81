"""Transposing maps in blocks: operands are loaded along the other axis, and transposed in registers.

A map computes its result in memory order. If an operand is transposed, neighbouring lanes are a row of the operand
apart: each element comes from another cache line, which is evicted before the next element in the line is needed. A
block has as many rows as lanes, so that as many vectors along the rows contain all elements that its lanes read; these
vectors are transposed in registers. If the last axis is shorter than a vector, lanes run along another axis, and
results are transposed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sardonyx.compiler.analysis.axis_collapsing import visit_inlined
from sardonyx.compiler.analysis.strided_views import Memory
from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.element_reader import Element, Reader
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.codegen.loop_nest import CHUNK, Axis, over_vectors, put
from sardonyx.compiler.codegen.position_arithmetic import ORIGIN
from sardonyx.compiler.llvm.ir_builder import Emitter, vector
from sardonyx.compiler.llvm.vector_value import BITS
from sardonyx.core.dim import Size, ceil_div, dim_max, dim_min, floor_div
from sardonyx.core.ir.graph import Value

SIDE = 64
"""Side of the square of elements that is processed block by block: whole cache lines of a few pages."""

_LONG = 100
"""Longest row, in instructions, that is still unrolled over the rows of a block."""

Body = Callable[[list[Index]], None]


@dataclass(frozen=True)
class Blocks:
    """Orientation of the blocks of a map.

    Attributes:
        lanes: The loop along the lanes.
        rows: The loop along the rows of a block: transposed operands, or else the result, are contiguous along this
            axis.
    """

    lanes: Axis
    rows: Axis

    def height(self, lanes: int) -> int:
        """Return the number of rows of a block."""
        return max(min(self.rows.size, lanes), 1) if isinstance(self.rows.size, int) else lanes


def blocks_of(
    reader: Reader, value: Value, memory: Callable[[Value], Memory | None], loops: Sequence[Axis], rank: int, body: Body
) -> Blocks | None:
    """Return the blocks with the most contiguous accesses of a map; None without a gain.

    Args:
        reader: Reader of the body.
        value: The result of the map.
        memory: Returns the buffer of a value, or None for values without one.
        loops: The loops of the nest, outermost first.
        rank: Axes of the shape.
        body: Writes a vector of the result.
    """
    if reader.lanes == 1 or len(loops) < 2:
        return None
    *outer, inner = loops
    if _is_filled(inner.size, reader.lanes):
        # Blocks only pay if a permutation or a blocked image changes the order of axes.
        if not any(source.op == "permute" if at is None else at.block for source, at in visit_inlined(value, memory)):
            return None
        candidates = [Blocks(inner, axis) for axis in reversed(outer) if axis.size != 1]
    else:
        candidates = [Blocks(axis, inner) for axis in reversed(outer) if _is_filled(axis.size, reader.lanes)]
    best, most = None, 0
    for candidate in candidates:
        gain = _estimate_gain(reader, loops, candidate, rank, body)
        if gain > most:
            best, most = candidate, gain
    return best


def _is_filled(size: Size, lanes: int) -> bool:
    """Return True if an axis may fill a vector."""
    return not isinstance(size, int) or size >= lanes


def _estimate_gain(reader: Reader, loops: Sequence[Axis], blocks: Blocks, rank: int, body: Body) -> int:
    """Return the number of contiguous vector loads gained, counted by a trial of one row.

    The gain is 0 if a block would be too long or cannot store its results.
    """
    gained = 0
    position = [ORIGIN] * rank
    for number, axis in enumerate(loops):
        put(position, axis, Index(f"%{number}"))
    put(position, blocks.rows, Index("%row", 0, reader.lanes, row=1))
    put(position, blocks.lanes, Index("%lane", 1, reader.lanes))
    transposes_results = blocks.rows is loops[-1]
    fits = True

    def loaded(memory: Memory, at: Index) -> None:
        nonlocal gained
        if not transposes_results:
            gained += _is_across(at)
        elif not at.vector:
            gained += (at.lane == at.repeat == 1) - _is_across(at)

    def stored(memory: Memory, at: Index, value: Element) -> bool:
        nonlocal fits
        fits = fits and not (transposes_results and (at.vector or at.row != 1))
        return False

    reader.across = loaded, stored
    with reader.trial() as written:
        body(position)
    reader.across, length = None, written.text().count("\n")
    return gained if fits and length <= _LONG else 0


def _is_across(at: Index) -> bool:
    """Return True if the elements that lanes read are contiguous along the rows."""
    return not at.vector and at.row == at.repeat == 1 and at.lane not in (0, 1, -1)


def block_items(reader: Reader, loops: Sequence[Axis], blocks: Blocks, rank: int, body: Body) -> Size:
    """Write the nest of a map over its work items, in blocks.

    Args:
        reader: Reader of the body.
        loops: The loops of the nest, outermost first.
        blocks: The orientation of the blocks.
        rank: Axes of the shape.
        body: Writes a vector of the result.

    Returns:
        The number of work items.
    """
    e, kernel = reader.kernel.emitter, reader.kernel
    outer = [axis for axis in loops if axis not in (blocks.lanes, blocks.rows)]
    wide, high = _side(blocks.rows.size), _side(blocks.lanes.size)
    across, down = ceil_div(blocks.lanes.size, wide), ceil_div(blocks.rows.size, high)
    count = math.prod(axis.size for axis in outer) * down * across
    elements = dim_min(blocks.lanes.size, wide) * dim_min(blocks.rows.size, high)
    per_item = dim_max(floor_div(CHUNK, dim_max(elements, 1)), 1)
    with e.loop("%first", "%last") as item:
        begin = e.mul(item, kernel.size(per_item))
        with e.loop(begin, e.least(e.add(begin, kernel.size(per_item)), kernel.size(count))) as number, reader.inside():
            position = [ORIGIN] * rank
            lanes = _range(e, e.rem(number, kernel.size(across)), wide, kernel.size(blocks.lanes.size))
            at = e.div(number, kernel.size(across))
            rows = _range(e, e.rem(at, kernel.size(down)), high, kernel.size(blocks.rows.size))
            at = e.div(at, kernel.size(down))
            for axis in reversed(outer):
                size = kernel.size(axis.size)
                put(position, axis, Index(e.rem(at, size)))
                at = e.div(at, size)
            _emit_blocks(
                reader, (blocks.rows, rows), (blocks.lanes, lanes), blocks.height(reader.lanes), position, body
            )
    return ceil_div(count, per_item)


def _side(other: Size) -> int:
    """Return the number of positions along one side of a square of blocks.

    If ``other``, the size of the other axis, is shorter than the square, this side is proportionally longer.
    """
    return SIDE * (SIDE // other) if isinstance(other, int) and 0 < other < SIDE else SIDE


_Range = tuple[str | int, str | int]


def _range(e: Emitter, number: str | int, side: int, size: str | int) -> _Range:
    """Return start and end of a square along an axis."""
    start = e.mul(number, side)
    return start, e.least(e.add(start, side), size)


def _emit_blocks(
    reader: Reader,
    rows: tuple[Axis, _Range],
    lanes: tuple[Axis, _Range],
    height: int,
    position: list[Index],
    body: Body,
) -> None:
    """Write the blocks of a square.

    If an axis is shorter than a vector at run time, lanes run along the other axis.
    """
    e, kernel, count = reader.kernel.emitter, reader.kernel, reader.lanes
    (along, (first_row, last_row)), (inner, (first_lane, last_lane)) = rows, lanes

    def block(row: Index, written: range) -> None:
        with e.loop(first_lane, last_lane, count) as j, reader.inside():
            here, transposed = list(position), _Block(reader, height)
            put(here, along, row)
            put(here, inner, _within(reader, j, inner.size, count, Index(0, 1)))
            reader.across = transposed.loaded, transposed.stored
            for reader.row in written:
                body(here)
            reader.across, reader.row = None, 0
            transposed.finish()

    def whole() -> None:
        rest = along.size % height if isinstance(along.size, int) else 0
        with e.loop(first_row, e.sub(last_row, e.rem(last_row, height)) if rest else last_row, height) as i:
            block(_within(reader, i, along.size - rest, height, Index(0, row=1)), range(height))
        if rest:
            with e.when(e.let(f"icmp eq i64 {last_row}, {along.size}")):
                block(Index(e.sub(last_row, height), row=1), range(height - rest, height))

    def vectors(vector: tuple[Axis, _Range], other: tuple[Axis, _Range]) -> None:
        (axis, (first, last)), (single, (start, end)) = vector, other
        with e.loop(start, end) as i, reader.inside():
            here = list(position)
            put(here, single, Index(i))

            def some(index: Index) -> None:
                put(here, axis, index)
                body(here)

            over_vectors(reader, first, last, None, some)

    def unless_short(short: tuple[Axis, _Range], other: tuple[Axis, _Range], otherwise: Callable[[], None]) -> None:
        size = kernel.size(short[0].size)
        if isinstance(size, int):
            otherwise()
            return
        alternatives = iter((otherwise, functools.partial(vectors, other, short)))
        with e.either(e.let(f"icmp sge i64 {size}, {count}")) as branches:
            for _ in branches:
                with reader.inside():
                    next(alternatives)()

    unless_short(lanes, rows, lambda: unless_short(rows, lanes, whole))


def _within(reader: Reader, start: str, size: Size, count: int, step: Index) -> Index:
    """Return the positions of a block along an axis; the last block ends where the axis ends."""
    e = reader.kernel.emitter
    if isinstance(size, int) and size % count == 0:
        return Index(start, step.lane, count, row=step.row)
    return Index(e.least(start, e.sub(reader.kernel.size(size), count)), step.lane, row=step.row)


class _Block:
    """One block: transposes operands before their first use, and results when all rows are computed.

    Args:
        reader: Reader of the block's rows.
        height: Number of rows.
    """

    def __init__(self, reader: Reader, height: int) -> None:
        self._reader = reader
        self._height = height
        self._transposed: dict[tuple[str, Index, int], tuple[list[str], tuple[str, ...]]] = {}
        self._results: list[tuple[str, str, Index, str]] = []

    def _parts(self, element: str) -> list[range]:
        """Return the groups of rows that are transposed together: shuffles within 128 bits take one cycle."""
        parts, first, most = [], 0, min(self._reader.lanes, 128 // BITS[element])
        while first < self._height:
            few = min(most, 1 << (self._height - first).bit_length() - 1)
            parts.append(range(first, first + few))
            first += few
        return parts

    def loaded(self, memory: Memory, at: Index) -> str | None:
        """Return the current row of an operand that is contiguous along the rows; None for other operands."""
        e, reader = self._reader.kernel.emitter, self._reader
        element = load_store.memory_type(memory.dtype)
        part = next(part for part in self._parts(element) if reader.row in part)
        if not _is_across(at) or len(part) == 1:
            return None
        key = memory.pointer, at, part.start
        rows, block_path = self._transposed.get(key, ([], ()))
        if not rows or not e.is_known(block_path):
            rows = self._transpose(memory.pointer, element, at, part)
            self._transposed[key] = rows, e.where
        return load_store.from_memory(e, memory.dtype, rows[reader.row - part.start], reader.lanes)

    def _transpose(self, pointer: str, element: str, at: Index, part: range) -> list[str]:
        e, lanes, few = self._reader.kernel.emitter, self._reader.lanes, len(part)

        def piece(lane: int) -> str:
            start = e.address(pointer, element, e.add(at.base, e.mul(lane, at.lane)))
            return e.load(vector(few, element), e.address(start, element, part.start), BITS[element] // 8)

        merged = [_concatenate(e, [piece(lane) for lane in range(i, lanes, few)], few, element) for i in range(few)]
        return interleave(e, merged, few, lanes, element)

    def stored(self, memory: Memory, at: Index, value: Element) -> bool:
        """Queue a row of a result that is contiguous along the rows; return True if queued.

        Rows of one result are queued; other results of the kernel are stored row by row.
        """
        if at.vector or at.row != 1 or at.lane == 1:
            return False
        if self._results and self._results[0][0] != memory.pointer:
            return False
        e, lanes, register = self._reader.kernel.emitter, self._reader.lanes, load_store.register_type(memory.dtype)
        name = e.spread(value.name, lanes, register) if value.uniform else value.name
        raw = load_store.to_memory(e, memory.dtype, name, lanes)
        self._results.append((memory.pointer, load_store.memory_type(memory.dtype), at, raw))
        return True

    def finish(self) -> None:
        """Store the queued results."""
        if not self._results:
            return
        e, lanes = self._reader.kernel.emitter, self._reader.lanes
        pointer, element, at, _ = self._results[0]
        rows = [raw for *_, raw in self._results]
        type = vector(lanes, element)
        if at.lane == self._height == 1 << self._height.bit_length() - 1:
            # The columns are adjacent in memory.
            for number, column in enumerate(interleave(e, rows, lanes, lanes, element)):
                e.store(type, column, e.address(pointer, element, e.add(at.base, number * lanes)), BITS[element] // 8)
            return
        for part in self._parts(element):
            few = len(part)
            columns = interleave(e, [rows[row] for row in part], few, lanes, element)
            for lane in range(lanes):
                source, order = columns[lane % few], ", ".join(f"i32 {lane // few * few + i}" for i in range(few))
                if few == 1:
                    piece = e.let(f"extractelement {type} {source}, i64 {lane}")
                else:
                    piece = e.let(f"shufflevector {type} {source}, {type} poison, <{few} x i32> <{order}>")
                start = e.address(pointer, element, e.add(at.base, e.mul(lane, at.lane)))
                e.store(vector(few, element), piece, e.address(start, element, part.start), BITS[element] // 8)


def interleave(e: Emitter, rows: list[str], group: int, lanes: int, element: str) -> list[str]:
    """Interleave groups of elements of several vectors: the first of each vector, then the second of each.

    Args:
        e: Emitter of the instructions.
        rows: The vectors, a power of two.
        group: Elements of a group; an element stays in the group of the same number.
        lanes: Elements of a vector.
        element: The element type in memory.
    """
    half, type = len(rows) // 2, vector(lanes, element)
    low, high = (
        ", ".join(
            f"i32 {first + start + i + other}"
            for first in range(0, lanes, group) for i in range(group // 2) for other in (0, lanes)
        )
        for start in (0, group // 2)
    )  # fmt: skip
    for _ in range(len(rows).bit_length() - 1):
        rows = [
            e.let(f"shufflevector {type} {rows[i]}, {type} {rows[i + half]}, <{lanes} x i32> <{order}>")
            for i in range(half)
            for order in (low, high)
        ]
    return rows


def _concatenate(e: Emitter, pieces: list[str], width: int, element: str) -> str:
    """Concatenate vectors, a power of two, into one."""
    while len(pieces) > 1:
        type, lanes = vector(width, element), 2 * width
        order = ", ".join(f"i32 {lane}" for lane in range(lanes))
        pieces = [
            e.let(f"shufflevector {type} {low}, {type} {high}, <{lanes} x i32> <{order}>")
            for low, high in zip(pieces[::2], pieces[1::2], strict=True)
        ]
        width = lanes
    return pieces[0]
