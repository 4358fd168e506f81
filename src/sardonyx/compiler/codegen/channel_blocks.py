"""Maps from row-major operands to blocked images: lanes run along positions, and are interleaved with the channels.

With channels as lanes, each lane of an operand is an image away, and an image of three channels leaves most lanes
unused. A tile has as many positions as lanes: each channel of a block is loaded along the positions, and the registers
of all channels are interleaved into the contiguous elements of the tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from sardonyx.compiler.analysis.strided_views import Memory
from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.element_reader import Element, Reader
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.codegen.loop_nest import Axis, put, work_items
from sardonyx.compiler.codegen.position_arithmetic import ORIGIN
from sardonyx.compiler.codegen.tiled_transpose import interleave
from sardonyx.compiler.llvm.ir_builder import vector
from sardonyx.compiler.llvm.vector_value import BITS
from sardonyx.core.dim import Size, ceil_div

_LONG = 100
"""Longest body, in instructions, that is still repeated for the channels of a block."""

Body = Callable[[list[Index]], None]


def reads_rows(reader: Reader, loops: Sequence[Axis], rank: int, body: Body) -> bool:
    """Return True if tiles of positions along the innermost spatial loop can be interleaved, found by a trial.

    The map reads every or every second element along the loop, and writes adjacent positions of the blocked image. The
    positions of a part of an image are not adjacent along an axis before a last one of size 1 in the part alone.

    Args:
        reader: Reader of the body.
        loops: The spatial loops, outermost first.
        rank: Axes of the shape.
        body: Writes a vector of the result.
    """
    if not loops or reader.lanes == 1 or (isinstance(loops[-1].size, int) and loops[-1].size < reader.lanes):
        return False
    trial = _try(reader, loops, [Index("%n"), Index("%c"), *[ORIGIN] * (rank - 2)], body, (1, 2))
    return trial.rows > 0 and trial.others == 0 and trial.writes_positions and trial.length <= _LONG


def moves_rows(reader: Reader, loops: Sequence[Axis], rank: int, body: Body) -> bool:
    """Return True if a map reads nothing but adjacent elements, or one element, along its innermost loop.

    Args:
        reader: Reader of the body.
        loops: The loops, outermost first.
        rank: Axes of the shape.
        body: Writes a vector of the result.
    """
    trial = _try(reader, loops, [ORIGIN] * rank, body, (1,))
    return trial.rows > 0 and trial.others == 0


class _Trial(NamedTuple):
    """Reads and writes of a body in lanes along the innermost loop.

    Attributes:
        rows: Loads at some steps.
        others: Other vector loads.
        writes_positions: True if the written positions are adjacent in a blocked image.
        length: Instructions.
    """

    rows: int
    others: int
    writes_positions: bool
    length: int


def _try(reader: Reader, loops: Sequence[Axis], position: list[Index], body: Body, steps: Sequence[int]) -> _Trial:
    for number, axis in enumerate(loops):
        put(position, axis, Index(f"%{number}"))
    put(position, loops[-1], Index("%lane", 1, reader.lanes))
    contiguous, others, writes_positions = 0, 0, True

    def loaded(memory: Memory, at: Index) -> None:
        nonlocal contiguous, others
        is_row = not at.vector and at.repeat == 1 and at.lane in steps
        contiguous += is_row
        others += not is_row and not at.is_uniform

    def stored(memory: Memory, at: Index, value: Element) -> bool:
        nonlocal writes_positions
        writes_positions &= not at.vector and at.repeat == 1 and at.lane == memory.block
        return True

    reader.across = loaded, stored
    with reader.trial() as written:
        body(position)
    reader.across, length = None, written.text().count("\n")
    return _Trial(contiguous, others, writes_positions, length)


def channel_items(
    reader: Reader, memory: Memory, channels: int, outer: Sequence[Axis], spatial: Sequence[Axis], rank: int,
    work: int, body: Body, rest: Body, width: int,
) -> Size:  # fmt: skip
    """Write the nest of a map over a blocked image, in tiles of positions.

    Args:
        reader: Reader of the body.
        memory: The blocked image, of which the map may write a part, for example an operand of a concatenation.
        channels: The channels of the map.
        outer: The loops over samples and blocks of channels.
        spatial: The spatial loops, outermost first.
        rank: Axes of the shape.
        work: Cost of one element.
        body: Writes a vector of the result along positions.
        rest: Writes the block of channels at one position, with channels as lanes.
        width: The positions of a tile.

    Returns:
        The number of work items.
    """
    kernel, lanes, block = reader.kernel, reader.lanes, memory.block
    e, *between, inner = kernel.emitter, *spatial
    size = kernel.size(inner.size)

    def tile(position: list[Index]) -> None:
        channel = position[1].base
        start = e.mul(position[inner.axes[-1]].base, width)
        with e.either(e.let(f"icmp sle i64 {e.add(start, width)}, {size}")) as branches:
            for is_rest, _ in enumerate(branches):
                if is_rest:
                    with e.loop(start, size) as i, reader.inside():
                        here = list(position)
                        put(here, inner, Index(i))
                        rest(here)
                else:
                    reader.lanes = width
                    for count in _counts(reader, channel, channels, block):
                        _write_tile(reader, memory, position, inner, start, count, body)
                    reader.lanes = lanes

    tiles = Axis(inner.axes, ceil_div(inner.size, width))
    return work_items(reader, [*outer, *between, tiles], rank, width * block * work, False, tile)


def _counts(reader: Reader, channel: str | int, channels: int, block: int) -> Iterator[int]:
    """Yield the channels of a block, in a branch for the last block if that is not full."""
    e, whole = reader.kernel.emitter, channels // block * block
    if whole == channels or not whole:
        yield min(channels, block)
        return
    with e.either(e.let(f"icmp slt i64 {channel}, {whole}")) as branches:
        for is_last, _ in enumerate(branches):
            yield channels - whole if is_last else block


def _write_tile(
    reader: Reader, memory: Memory, position: list[Index], inner: Axis, start: str | int, count: int, body: Body
) -> None:
    e, lanes, block = reader.kernel.emitter, reader.lanes, memory.block
    element = load_store.memory_type(memory.dtype)
    rows: list[str] = []
    offsets: list[str | int] = []

    def stored(_: Memory, at: Index, value: Element) -> bool:
        offsets.append(at.base)
        register = load_store.register_type(memory.dtype)
        name = e.spread(value.name, lanes, register) if value.uniform else value.name
        rows.append(load_store.to_memory(e, memory.dtype, name, lanes))
        return True

    with reader.inside():
        here = list(position)
        put(here, inner, Index(start, 1, lanes))
        reader.across = lambda _, at: None, stored
        for number in range(count):
            here[1] = Index(e.add(position[1].base, number))
            body(here)
        reader.across = None
        rows += ["zeroinitializer"] * (block - count)
        # The first channel is stored at the begin of the block: of the part that the map writes.
        for number, part in enumerate(interleave(e, rows, lanes, lanes, element)):
            address = e.address(memory.pointer, element, e.add(offsets[0], number * lanes))
            e.store(vector(lanes, element), part, address, BITS[element] // 8)
