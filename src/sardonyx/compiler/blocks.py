"""Maps that read across, block by block: what lies along another axis than the lanes is loaded as vectors and turned.

A map goes over its result in the order in which it is written. Where an operand is transposed, neighbouring lanes are
a row of the operand apart: each element comes from another cache line, which is gone when its neighbour is wanted. A
block has as many rows as lanes: as many vectors along the rows hold all that its lanes read, and are turned in
registers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from sardonyx.compiler import storage
from sardonyx.compiler.emitter import Emitter, vector
from sardonyx.compiler.kernels.kernel import Index
from sardonyx.compiler.loops import CHUNK, Axis, over_vectors, put
from sardonyx.compiler.reader import ORIGIN, Memory, Reader
from sardonyx.compiler.vectors import BITS
from sardonyx.core.dim import Size, ceil_div, dim_max, dim_min, floor_div
from sardonyx.core.graph import Value

SIDE = 64
"""Places along either axis of the blocks that are done one after the other: whole cache lines of a few pages."""

_LONG = 100
"""Instructions of a row that is not written as often as a block has rows."""

Body = Callable[[list[Index]], None]


def reads_across(value: Value, memory: Callable[[Value], Memory | None]) -> bool:
    """Whether axes are in another order somewhere between a value and what it is read from."""
    waiting, seen = [value], {value}
    while waiting:
        each = waiting.pop()
        found = memory(each)
        if each.op == "permute" if found is None else found.block:
            return True
        new = [operand for operand in each.operands if found is None and operand not in seen]
        seen.update(new)
        waiting += new
    return False


def axis_of_blocks(reader: Reader, loops: Sequence[Axis], rank: int, body: Body) -> Axis | None:
    """The loop of a nest along which most operands lie that do not lie along its last one; None without any.

    Args:
        reader: Reads in the body.
        loops: The loops of the nest, outermost first.
        rank: Axes of the shape.
        body: Writes a vector of the result.
    """
    best, most = None, 0
    *outer, inner = loops or [Axis((), 1)]
    if reader.lanes == 1 or not _is_filled(inner.size, reader.lanes):
        return None
    for along in reversed(outer):
        if along.block or not _is_filled(along.size, reader.lanes):
            continue
        found = _turned_by(reader, loops, along, rank, body)
        if found > most:
            best, most = along, found
    return best


def _is_filled(size: Size, lanes: int) -> bool:
    """Whether an axis may have a vector of places."""
    return not isinstance(size, int) or size >= lanes


def _turned_by(reader: Reader, loops: Sequence[Axis], along: Axis, rank: int, body: Body) -> int:
    """How many operands blocks along an axis turn, found by writing a row away; 0 where a block would be too long."""
    kernel, found = reader.kernel, 0
    place = [ORIGIN] * rank
    for number, axis in enumerate(loops):
        put(place, axis, Index(f"%{number}"))
    put(place, along, Index("%row", 0, reader.lanes, row=1))
    put(place, loops[-1], Index("%lane", 1, reader.lanes))

    def seen(memory: Memory, at: Index) -> None:
        nonlocal found
        found += _is_across(at)

    written, kernel.emitter = kernel.emitter, Emitter(converts_halves=kernel.emitter.converts_halves)
    reader.across = seen
    with reader.inside():
        body(place)
    length = kernel.emitter.text().count("\n")
    reader.across, kernel.emitter = None, written
    return found if length <= _LONG else 0


def _is_across(at: Index) -> bool:
    """Whether what lanes read lies along the rows."""
    return not at.vector and at.row == 1 and at.lane not in (0, 1, -1)


def block_items(reader: Reader, loops: Sequence[Axis], along: Axis, rank: int, body: Body) -> Size:
    """Write the nest of a map over its work items, in blocks.

    Args:
        reader: Reads in the body.
        loops: The loops of the nest, outermost first; lanes go along the last one.
        along: The one of them that rows of blocks go along.
        rank: Axes of the shape.
        body: Writes a vector of the result.

    Returns:
        How many work items there are.
    """
    e, kernel, inner = reader.kernel.emitter, reader.kernel, loops[-1]
    outer = [axis for axis in loops[:-1] if axis is not along]
    wide, high = ceil_div(inner.size, SIDE), ceil_div(along.size, SIDE)
    count = math.prod(axis.size for axis in outer) * high * wide
    each = dim_max(floor_div(CHUNK, dim_max(dim_min(inner.size, SIDE) * dim_min(along.size, SIDE), 1)), 1)
    with e.loop("%first", "%last") as item:
        begin = e.mul(item, kernel.size(each))
        with e.loop(begin, e.least(e.add(begin, kernel.size(each)), kernel.size(count))) as number, reader.inside():
            place = [ORIGIN] * rank
            lanes, at = _range(e, number, kernel.size(wide), kernel.size(inner.size))
            rows, at = _range(e, at, kernel.size(high), kernel.size(along.size))
            for axis in reversed(outer):
                size = kernel.size(axis.size)
                put(place, axis, Index(e.rem(at, size)))
                at = e.div(at, size)
            _blocks(reader, (along, rows), (inner, lanes), place, body)
    return ceil_div(count, each)


_Range = tuple[str | int, str | int]


def _range(e: Emitter, number: str | int, parts: str | int, size: str | int) -> tuple[_Range, str | int]:
    """The places of an axis that are done together, and what is left of the number of the blocks."""
    start = e.mul(e.rem(number, parts), SIDE)
    return (start, e.least(e.add(start, SIDE), size)), e.div(number, parts)


def _blocks(
    reader: Reader, rows: tuple[Axis, _Range], lanes: tuple[Axis, _Range], place: list[Index], body: Body
) -> None:
    """Write some blocks; where an axis turns out to have no vector of places, lanes go along the other one."""
    e, kernel, count = reader.kernel.emitter, reader.kernel, reader.lanes
    (along, (first_row, last_row)), (inner, (first_lane, last_lane)) = rows, lanes

    def block(row: Index, written: range) -> None:
        with e.loop(first_lane, last_lane, count) as j, reader.inside():
            here, turned = list(place), _Block(reader)
            put(here, along, row)
            put(here, inner, _within(reader, j, inner.size, Index(0, 1)))
            reader.across = turned.loaded
            for reader.row in written:
                body(here)
            reader.across, reader.row = None, 0

    def whole() -> None:
        rest = along.size % count if isinstance(along.size, int) else 0
        with e.loop(first_row, e.sub(last_row, e.rem(last_row, count)) if rest else last_row, count) as i:
            block(_within(reader, i, along.size - rest, Index(0, row=1)), range(count))
        if rest:
            with e.when(e.let(f"icmp eq i64 {last_row}, {along.size}")):
                block(Index(e.sub(last_row, count), row=1), range(count - rest, count))

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


def _within(reader: Reader, start: str, size: Size, step: Index) -> Index:
    """A block's places along an axis: the last block is moved back to end where the axis does."""
    count, e = reader.lanes, reader.kernel.emitter
    if isinstance(size, int) and size % count == 0:
        return Index(start, step.lane, count, row=step.row)
    return Index(e.least(start, e.sub(reader.kernel.size(size), count)), step.lane, row=step.row)


class _Block:
    """The operands of a block, turned.

    Args:
        reader: Reads the block's rows.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._turned: dict[tuple[str, Index, int], tuple[list[str], tuple[str, ...]]] = {}

    def loaded(self, memory: Memory, at: Index) -> str | None:
        """The lanes of the row that is written, of what lies along the rows; None of what does not."""
        if not _is_across(at):
            return None
        e, lanes = self._reader.kernel.emitter, self._reader.lanes
        element = storage.memory_type(memory.dtype)
        # Within 128 bits a vector is turned by instructions of one cycle.
        few = min(lanes, 128 // BITS[element])
        part, row = divmod(self._reader.row, few)
        key = memory.pointer, at, part
        rows, where = self._turned.get(key, ([], ()))
        if not rows or not e.is_known(where):
            rows = self._turn(memory.pointer, element, at, part * few, few)
            self._turned[key] = rows, e.where
        return storage.from_memory(e, memory.dtype, rows[row], lanes)

    def _turn(self, pointer: str, element: str, at: Index, first: int, few: int) -> list[str]:
        """As many rows as 128 bits hold elements, from the first one on."""
        e, lanes = self._reader.kernel.emitter, self._reader.lanes
        align = BITS[element] // 8

        def piece(lane: int) -> str:
            start = e.address(pointer, element, e.add(at.base, e.mul(lane, at.lane)))
            return e.load(vector(few, element), e.address(start, element, first), align)

        found = [_joined(e, [piece(lane) for lane in range(i, lanes, few)], few, element) for i in range(few)]
        type, half = vector(lanes, element), few // 2
        low, high = (
            ", ".join(
                f"i32 {group + start + i + other}"
                for group in range(0, lanes, few) for i in range(half) for other in (0, lanes)
            )
            for start in (0, half)
        )  # fmt: skip
        for _ in range(few.bit_length() - 1):
            found = [
                e.let(f"shufflevector {type} {found[i]}, {type} {found[i + half]}, <{lanes} x i32> <{order}>")
                for i in range(half)
                for order in (low, high)
            ]
        return found


def _joined(e: Emitter, pieces: list[str], each: int, element: str) -> str:
    """Vectors one behind the other as one."""
    while len(pieces) > 1:
        type, lanes = vector(each, element), 2 * each
        order = ", ".join(f"i32 {lane}" for lane in range(lanes))
        pieces = [
            e.let(f"shufflevector {type} {low}, {type} {high}, <{lanes} x i32> <{order}>")
            for low, high in zip(pieces[::2], pieces[1::2], strict=True)
        ]
        each = lanes
    return pieces[0]
