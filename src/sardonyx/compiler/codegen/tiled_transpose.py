"""Maps that read across, block by block: what lies along another axis than the lanes is loaded as vectors and turned.

A map goes over its result in the order in which it is written. Where an operand is transposed, neighbouring lanes are
a row of the operand apart: each element comes from another cache line, which is gone when its neighbour is wanted. A
block has as many rows as lanes: as many vectors along the rows hold all that its lanes read, and are turned in
registers. Where the last axis is too short for a vector, lanes go along another one, and results are turned.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sardonyx.compiler.analysis.axis_collapsing import fused
from sardonyx.compiler.analysis.strided_views import Memory
from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.element_reader import ORIGIN, Element, Reader
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.codegen.loop_nest import CHUNK, Axis, over_vectors, put
from sardonyx.compiler.llvm.ir_builder import Emitter, vector
from sardonyx.compiler.llvm.vector_value import BITS
from sardonyx.core.dim import Size, ceil_div, dim_max, dim_min, floor_div
from sardonyx.core.ir.graph import Value

SIDE = 64
"""Places along either axis of the blocks that are done one after the other: whole cache lines of a few pages."""

_LONG = 100
"""Instructions of a row that is not written as often as a block has rows."""

Body = Callable[[list[Index]], None]


@dataclass(frozen=True)
class Blocks:
    """How the blocks of a map lie.

    Attributes:
        lanes: The loop that lanes go along.
        rows: The loop that rows go along: what is read, or else the result, lies along it.
    """

    lanes: Axis
    rows: Axis

    def height(self, lanes: int) -> int:
        """How many rows a block has."""
        return min(self.rows.size, lanes) if isinstance(self.rows.size, int) else lanes


def blocks_of(
    reader: Reader, value: Value, memory: Callable[[Value], Memory | None], loops: Sequence[Axis], rank: int, body: Body
) -> Blocks | None:
    """The blocks that turn most of what a map reads and does not find along its last axis; None without any.

    Args:
        reader: Reads in the body.
        value: What the map computes.
        memory: Where a value is, for those in memory.
        loops: The loops of the nest, outermost first.
        rank: Axes of the shape.
        body: Writes a vector of the result.
    """
    if reader.lanes == 1 or len(loops) < 2:
        return None
    *outer, inner = loops
    if _is_filled(inner.size, reader.lanes):
        # Axes are in another order somewhere between the result and what it is read from.
        if not any(each.op == "permute" if at is None else at.block for each, at in fused(value, memory)):
            return None
        ways = [Blocks(inner, axis) for axis in reversed(outer) if axis.size != 1]
    else:
        ways = [Blocks(axis, inner) for axis in reversed(outer) if _is_filled(axis.size, reader.lanes)]
    best, most = None, 0
    for way in ways:
        found = _gained(reader, loops, way, rank, body)
        if found > most:
            best, most = way, found
    return best


def _is_filled(size: Size, lanes: int) -> bool:
    """Whether an axis may have a vector of places."""
    return not isinstance(size, int) or size >= lanes


def _gained(reader: Reader, loops: Sequence[Axis], blocks: Blocks, rank: int, body: Body) -> int:
    """How many vectors more are loaded whole, found by writing a row away; 0 where a block would be too long."""
    gained = 0
    place = [ORIGIN] * rank
    for number, axis in enumerate(loops):
        put(place, axis, Index(f"%{number}"))
    put(place, blocks.rows, Index("%row", 0, reader.lanes, row=1))
    put(place, blocks.lanes, Index("%lane", 1, reader.lanes))
    turns_results = blocks.rows is loops[-1]
    fits = True

    def loaded(memory: Memory, at: Index) -> None:
        nonlocal gained
        if not turns_results:
            gained += _is_across(at)
        elif not at.vector:
            gained += (at.lane == at.repeat == 1) - _is_across(at)

    def stored(memory: Memory, at: Index, value: Element) -> bool:
        nonlocal fits
        fits = fits and not (turns_results and (at.vector or at.row != 1))
        return False

    reader.across = loaded, stored
    with reader.trial() as written:
        body(place)
    reader.across, length = None, written.text().count("\n")
    return gained if fits and length <= _LONG else 0


def _is_across(at: Index) -> bool:
    """Whether what lanes read lies along the rows."""
    return not at.vector and at.row == at.repeat == 1 and at.lane not in (0, 1, -1)


def block_items(reader: Reader, loops: Sequence[Axis], blocks: Blocks, rank: int, body: Body) -> Size:
    """Write the nest of a map over its work items, in blocks.

    Args:
        reader: Reads in the body.
        loops: The loops of the nest, outermost first.
        blocks: How the blocks lie.
        rank: Axes of the shape.
        body: Writes a vector of the result.

    Returns:
        How many work items there are.
    """
    e, kernel = reader.kernel.emitter, reader.kernel
    outer = [axis for axis in loops if axis not in (blocks.lanes, blocks.rows)]
    wide, high = _side(blocks.rows.size), _side(blocks.lanes.size)
    across, down = ceil_div(blocks.lanes.size, wide), ceil_div(blocks.rows.size, high)
    count = math.prod(axis.size for axis in outer) * down * across
    elements = dim_min(blocks.lanes.size, wide) * dim_min(blocks.rows.size, high)
    each = dim_max(floor_div(CHUNK, dim_max(elements, 1)), 1)
    with e.loop("%first", "%last") as item:
        begin = e.mul(item, kernel.size(each))
        with e.loop(begin, e.least(e.add(begin, kernel.size(each)), kernel.size(count))) as number, reader.inside():
            place = [ORIGIN] * rank
            lanes = _range(e, e.rem(number, kernel.size(across)), wide, kernel.size(blocks.lanes.size))
            at = e.div(number, kernel.size(across))
            rows = _range(e, e.rem(at, kernel.size(down)), high, kernel.size(blocks.rows.size))
            at = e.div(at, kernel.size(down))
            for axis in reversed(outer):
                size = kernel.size(axis.size)
                put(place, axis, Index(e.rem(at, size)))
                at = e.div(at, size)
            _written(reader, (blocks.rows, rows), (blocks.lanes, lanes), blocks.height(reader.lanes), place, body)
    return ceil_div(count, each)


def _side(other: Size) -> int:
    """Places along an axis that are done together, by the size of the other one: of a short one there are more."""
    return SIDE * (SIDE // other) if isinstance(other, int) and 0 < other < SIDE else SIDE


_Range = tuple[str | int, str | int]


def _range(e: Emitter, number: str | int, side: int, size: str | int) -> _Range:
    """The places of an axis that are done together."""
    start = e.mul(number, side)
    return start, e.least(e.add(start, side), size)


def _written(
    reader: Reader, rows: tuple[Axis, _Range], lanes: tuple[Axis, _Range], height: int, place: list[Index], body: Body
) -> None:
    """Write some blocks; where an axis turns out to have no vector of places, lanes go along the other one."""
    e, kernel, count = reader.kernel.emitter, reader.kernel, reader.lanes
    (along, (first_row, last_row)), (inner, (first_lane, last_lane)) = rows, lanes

    def block(row: Index, written: range) -> None:
        with e.loop(first_lane, last_lane, count) as j, reader.inside():
            here, turned = list(place), _Block(reader, height)
            put(here, along, row)
            put(here, inner, _within(reader, j, inner.size, count, Index(0, 1)))
            reader.across = turned.loaded, turned.stored
            for reader.row in written:
                body(here)
            reader.across, reader.row = None, 0
            turned.finish()

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
            here = list(place)
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
        ways = iter((otherwise, functools.partial(vectors, other, short)))
        with e.either(e.let(f"icmp sge i64 {size}, {count}")) as branches:
            for _ in branches:
                with reader.inside():
                    next(ways)()

    unless_short(lanes, rows, lambda: unless_short(rows, lanes, whole))


def _within(reader: Reader, start: str, size: Size, count: int, step: Index) -> Index:
    """A block's places along an axis: the last block is moved back to end where the axis does."""
    e = reader.kernel.emitter
    if isinstance(size, int) and size % count == 0:
        return Index(start, step.lane, count, row=step.row)
    return Index(e.least(start, e.sub(reader.kernel.size(size), count)), step.lane, row=step.row)


class _Block:
    """What lies along the rows of a block, turned: operands before they are read, results when all rows are there.

    Args:
        reader: Reads the block's rows.
        height: How many there are.
    """

    def __init__(self, reader: Reader, height: int) -> None:
        self._reader = reader
        self._height = height
        self._turned: dict[tuple[str, Index, int], tuple[list[str], tuple[str, ...]]] = {}
        self._results: list[tuple[str, str, Index, str]] = []

    def _parts(self, element: str) -> list[range]:
        """Rows that are turned together: within 128 bits that takes instructions of one cycle."""
        parts, first, most = [], 0, min(self._reader.lanes, 128 // BITS[element])
        while first < self._height:
            few = min(most, 1 << (self._height - first).bit_length() - 1)
            parts.append(range(first, first + few))
            first += few
        return parts

    def loaded(self, memory: Memory, at: Index) -> str | None:
        """The lanes of the row that is written, of what lies along the rows; None of what does not."""
        e, reader = self._reader.kernel.emitter, self._reader
        element = load_store.memory_type(memory.dtype)
        part = next(part for part in self._parts(element) if reader.row in part)
        if not _is_across(at) or len(part) == 1:
            return None
        key = memory.pointer, at, part.start
        rows, where = self._turned.get(key, ([], ()))
        if not rows or not e.is_known(where):
            rows = self._turn(memory.pointer, element, at, part)
            self._turned[key] = rows, e.where
        return load_store.from_memory(e, memory.dtype, rows[reader.row - part.start], reader.lanes)

    def _turn(self, pointer: str, element: str, at: Index, part: range) -> list[str]:
        e, lanes, few = self._reader.kernel.emitter, self._reader.lanes, len(part)

        def piece(lane: int) -> str:
            start = e.address(pointer, element, e.add(at.base, e.mul(lane, at.lane)))
            return e.load(vector(few, element), e.address(start, element, part.start), BITS[element] // 8)

        found = [_joined(e, [piece(lane) for lane in range(i, lanes, few)], few, element) for i in range(few)]
        return _exchanged(e, found, few, lanes, element)

    def stored(self, memory: Memory, at: Index, value: Element) -> bool:
        """Keep the lanes of a row of a result that lies along the rows; whether it does."""
        if at.vector or at.row != 1 or at.lane == 1:
            return False
        e, lanes, register = self._reader.kernel.emitter, self._reader.lanes, load_store.register_type(memory.dtype)
        name = e.spread(value.name, lanes, register) if value.uniform else value.name
        raw = load_store.to_memory(e, memory.dtype, name, lanes)
        self._results.append((memory.pointer, load_store.memory_type(memory.dtype), at, raw))
        return True

    def finish(self) -> None:
        """Write the results that were kept."""
        if not self._results:
            return
        e, lanes = self._reader.kernel.emitter, self._reader.lanes
        pointer, element, at, _ = self._results[0]
        rows = [raw for *_, raw in self._results]
        type = vector(lanes, element)
        if at.lane == self._height == 1 << self._height.bit_length() - 1:
            # They lie one behind the other.
            for number, each in enumerate(_exchanged(e, rows, lanes, lanes, element)):
                e.store(type, each, e.address(pointer, element, e.add(at.base, number * lanes)), BITS[element] // 8)
            return
        for part in self._parts(element):
            few = len(part)
            found = _exchanged(e, [rows[row] for row in part], few, lanes, element)
            for lane in range(lanes):
                taken, order = found[lane % few], ", ".join(f"i32 {lane // few * few + i}" for i in range(few))
                if few == 1:
                    piece = e.let(f"extractelement {type} {taken}, i64 {lane}")
                else:
                    piece = e.let(f"shufflevector {type} {taken}, {type} poison, <{few} x i32> <{order}>")
                start = e.address(pointer, element, e.add(at.base, e.mul(lane, at.lane)))
                e.store(vector(few, element), piece, e.address(start, element, part.start), BITS[element] // 8)


def _exchanged(e: Emitter, rows: list[str], group: int, lanes: int, element: str) -> list[str]:
    """The elements of some vectors in other order, group by group: the first of each vector, then the second of each.

    Args:
        e: Where the instructions go.
        rows: The vectors, a power of two of them.
        group: Elements of a group: what lies in one of the vectors stays in this group of another.
        lanes: Elements of a vector.
        element: Their type in memory.
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


def _joined(e: Emitter, pieces: list[str], each: int, element: str) -> str:
    """Vectors one behind the other, as one."""
    while len(pieces) > 1:
        type, lanes = vector(each, element), 2 * each
        order = ", ".join(f"i32 {lane}" for lane in range(lanes))
        pieces = [
            e.let(f"shufflevector {type} {low}, {type} {high}, <{lanes} x i32> <{order}>")
            for low, high in zip(pieces[::2], pieces[1::2], strict=True)
        ]
        each = lanes
    return pieces[0]
