"""Weights that are known only when a program runs, put into the order that convolutions read."""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.compiler.codegen.kernel_builder import Kernel
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.tiling.convolution import Tile
from sardonyx.compiler.tiling.windows import Number

Weight = Callable[[Number, Number, Number], str]
"""Writes what reads a weight: a float, by its filter among all, its channel in the group, and its tap."""


def pack(kernel: Kernel, tile: Tile, *, weight: Weight, packed: str, taps: int) -> int:
    """Write a kernel that does what :func:`~sardonyx.compiler.kernels.conv.convolution.pack_weights` does.

    Args:
        kernel: What is written.
        tile: How the convolution is cut.
        weight: The weights.
        packed: Room for ``packed_size(tile, taps)`` floats.
        taps: Taps of the window.

    Returns:
        The number of work items.
    """
    e = kernel.emitter
    lanes, each = tile.lanes, tile.channels // tile.groups
    rows = {"direct": tile.depth * taps * tile.inner, "dot": taps * tile.filters, "grouped": taps * each}[tile.form]
    with e.loop("%first", "%last") as number:
        first_input = tile.first_input_at(e, number) if tile.form == "direct" else 0
        blocks: Number = 1
        if tile.form == "direct":
            blocks = e.least(tile.blocks, e.sub(tile.output_blocks, e.mul(number, tile.blocks)))
        start = e.address(packed, "float", e.mul(number, rows * lanes * tile.blocks))
        with e.loop(0, rows) as row, e.loop(0, blocks) as block, e.loop(0, lanes) as lane:
            if tile.form == "dot":
                filter, tap = e.rem(row, tile.filters), e.div(row, tile.filters)
                channel = e.add(e.mul(number, lanes), lane)
            elif tile.form == "grouped":
                filter, tap = e.add(e.mul(number, lanes), lane), e.div(row, each)
                channel = e.rem(row, each)
            else:
                filter = e.add(e.mul(e.add(e.mul(number, tile.blocks), block), lanes), lane)
                tap = e.rem(e.div(row, tile.inner), taps)
                seen = e.add(e.mul(e.div(row, taps * tile.inner), tile.inner), e.rem(row, tile.inner))
                group = e.div(filter, tile.filters // tile.groups)
                channel = e.sub(e.add(e.mul(first_input, tile.inner), seen), e.mul(group, each))
            value = _existing(e, tile, weight, filter, channel, tap)
            at = e.add(e.mul(e.add(e.mul(row, blocks), block), lanes), lane)
            e.store("float", value, e.address(start, "float", at), 4)
    return {"direct": tile.tiles, "dot": tile.depth, "grouped": tile.output_blocks}[tile.form]


def packed_size(tile: Tile, taps: int) -> int:
    """How many floats the packed weights of a convolution are."""
    if tile.form == "dot":
        return tile.depth * taps * tile.filters * tile.lanes
    depth = tile.channels // tile.groups if tile.form == "grouped" else tile.depth * tile.inner
    return tile.output_blocks * depth * taps * tile.lanes


def _existing(e: Emitter, tile: Tile, weight: Weight, filter: Number, channel: Number, tap: Number) -> str:
    """A weight; 0 where there is no such filter, or no such channel in its group."""
    known = e.let(f"icmp ult i64 {filter}, {tile.filters}")
    inside = e.let(f"icmp ult i64 {channel}, {tile.channels // tile.groups}")
    found = e.variable("float", "0.0")
    with e.when(e.let(f"and i1 {known}, {inside}")):
        found.set(weight(filter, channel, tap))
    return found.get()
