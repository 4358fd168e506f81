"""Isolation of groups of channels: NaN and infinity reach the outputs of their own group alone.

A direct convolution of groups multiplies the channels of other groups by weights that are 0, and the product of 0 and
NaN or infinity is NaN. If a register tile has NaN, its sums are computed again without the channels of other groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sardonyx.compiler.kernels.conv.window_sweep import Row, Sweep, steps
from sardonyx.compiler.llvm.ir_builder import Emitter, Variable, splat, vector
from sardonyx.compiler.tiling.convolution_tiles import Tile
from sardonyx.compiler.tiling.windows import Number


class DirectCode(Protocol):
    """The emitter of a direct convolution, see :class:`.DirectConvolution`."""

    emitter: Emitter
    sweep: Sweep
    tile: Tile
    element: str
    type: str
    taps: int
    place_step: int
    row_step: Number
    slice_step: Number
    channel_step: Number
    block_step: Number


def isolate_groups(
    code: DirectCode, row: Row, image: str, weights: str, lowest: Number, sums: Sequence[Sequence[Variable]]
) -> None:
    """Write the repetition of a register tile of floats whose sums contain NaN.

    Args:
        code: The convolution.
        row: The row of outputs.
        image: Address of the first input block that the tile reads.
        weights: Address of the weights of the tile.
        lowest: Index of the first input along the row.
        sums: The sums, by output and block.
    """
    e, tile = code.emitter, code.tile
    flat = [variable for of_output in sums for variable in of_output]
    with e.when(_has_nan(e, flat)):
        vectors = len(sums[0])
        repeated = e.array(code.element, len(flat) * tile.lanes)
        with e.loop(0, vectors) as b, e.loop(0, len(sums)) as i:
            first = e.mul(e.add(e.mul(row.block, tile.blocks), b), tile.lanes)
            total = _sum_of_group(code, row, image, weights, e.add(lowest, e.mul(i, row.phases[2].advance)), b, first,
                                  vectors * tile.lanes)  # fmt: skip
            target = e.address(repeated, code.element, e.mul(e.add(e.mul(i, vectors), b), tile.lanes))
            e.store(code.type, total, target, 4)
        for number, variable in enumerate(flat):
            variable.set(e.load(variable.type, e.address(repeated, code.element, number * tile.lanes), 4))


def _has_nan(e: Emitter, sums: Sequence[Variable]) -> str:
    """Return True if a lane of a sum is NaN: two vectors of one type are compared at once."""
    flags = []
    for type in dict.fromkeys(variable.type for variable in sums):
        values = [variable.get() for variable in sums if variable.type == type]
        lanes = int(type[1:].split()[0])
        pairs = zip(values[::2], [*values[1::2], *values[-1:]], strict=False)
        unordered = [e.let(f"fcmp uno {type} {a}, {b}") for a, b in pairs]
        total = unordered[0]
        for other in unordered[1:]:
            total = e.let(f"or {vector(lanes, 'i1')} {total}, {other}")
        flags.append(e.call("i1", f"llvm.vector.reduce.or.v{lanes}i1", [(vector(lanes, "i1"), total)]))
    return flags[0] if len(flags) == 1 else e.let(f"or i1 {flags[0]}, {flags[1]}")


def _sum_of_group(
    code: DirectCode, row: Row, image: str, weights: str, lowest: Number, block: Number, first: Number,
    width: int,
) -> str:  # fmt: skip
    """Write the sums of a vector of filters over the channels of their groups, and return them.

    Args:
        code: The convolution.
        row: The row of outputs.
        image: Address of the first input block that the tile reads.
        weights: Address of the weights of the tile.
        lowest: Index of the first input along the row.
        block: The vector in the tile.
        first: The first filter.
        width: Filters of the tile.
    """
    e, tile, phase = code.emitter, code.tile, row.phases[2]
    total = e.variable(code.type, "zeroinitializer")
    begin = e.mul(tile.first_input_at(e, row.block), tile.inner)
    own = _first_channels(e, tile, first)
    with steps(e, 0, tile.depth) as at:
        plane = e.address(image, code.element, e.mul(at, code.block_step))
        packed = e.address(weights, code.element, e.mul(at, code.taps * tile.inner * width))
        with code.sweep.lines(row, plane, code.element, code.slice_step, code.row_step) as (line, tap):
            of_row = e.address(packed, code.element, e.mul(tap, tile.inner * width))
            with steps(e, 0, phase.taps) as x:
                position = e.add(lowest, e.mul(x, phase.offset_step))
                inside = e.let(f"icmp ult i64 {position}, {code.sweep.axes[2].size}")
                start = e.address(line, code.element, e.mul(position, code.place_step))
                of_tap = e.address(of_row, code.element, e.mul(x, phase.tap_step * tile.inner * width))
                with e.when(inside), e.loop(0, tile.inner) as u:
                    value = e.load(code.element, e.address(start, code.element, e.mul(u, code.channel_step)), 4)
                    factor_at = e.address(of_tap, code.element, e.add(e.mul(u, width), e.mul(block, tile.lanes)))
                    channel = e.add(e.add(begin, e.mul(at, tile.inner)), u)
                    total.set(_add_product(code, total.get(), value, factor_at, channel, own))
    return total.get()


def _first_channels(e: Emitter, tile: Tile, first: Number) -> str:
    """Return the first channel of the group of each of a vector of filters."""
    indices = vector(tile.lanes, "i64")
    filters = e.let(f"add {indices} {e.spread(str(first), tile.lanes, 'i64')}, {e.lane_numbers(tile.lanes)}")
    group = e.let(f"udiv {indices} {filters}, {splat(str(tile.filters // tile.groups), tile.lanes, 'i64')}")
    return e.let(f"mul {indices} {group}, {splat(str(tile.channels // tile.groups), tile.lanes, 'i64')}")


def _add_product(code: DirectCode, total: str, value: str, factor_at: str, channel: Number, own: str) -> str:
    """Return sums with the product of an input, in the lanes of the filters whose group has the channel."""
    e, tile = code.emitter, code.tile
    indices, flags = vector(tile.lanes, "i64"), vector(tile.lanes, "i1")
    distance = e.let(f"sub {indices} {e.spread(str(channel), tile.lanes, 'i64')}, {own}")
    member = e.let(f"icmp ult {indices} {distance}, {splat(str(tile.channels // tile.groups), tile.lanes, 'i64')}")
    spread = e.spread(value, tile.lanes, code.element)
    factor = e.let(f"select {flags} {member}, {code.type} {spread}, {code.type} zeroinitializer")
    return e.multiply_add(code.type, factor, e.load(code.type, factor_at, 4), total)
