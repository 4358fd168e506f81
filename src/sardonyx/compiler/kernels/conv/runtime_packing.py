"""Packing of convolution weights that are computed at run time."""

from __future__ import annotations

from collections.abc import Callable

from sardonyx.compiler.codegen.kernel_builder import Kernel
from sardonyx.compiler.llvm.ir_builder import Emitter
from sardonyx.compiler.tiling.convolution_tiles import Tile
from sardonyx.compiler.tiling.windows import Number

Weight = Callable[[Number, Number, Number], str]
"""Emit the load of a weight as float, by filter (of all groups), channel of the group, and tap."""


def pack(kernel: Kernel, tile: Tile, *, weight: Weight, packed: str, taps: int) -> int:
    """Write a kernel that packs like :func:`~sardonyx.compiler.kernels.conv.convolution.pack_weights`.

    Args:
        kernel: The kernel.
        tile: The register tile of the convolution.
        weight: The weights.
        packed: Address of ``packed_size(tile, taps)`` floats.
        taps: Taps of the window.

    Returns:
        The number of work items.
    """
    e = kernel.emitter
    lanes, group_channels = tile.lanes, tile.channels // tile.groups
    rows = {"direct": tile.depth * taps * tile.inner, "dot": taps * tile.filters, "grouped": taps * group_channels}[
        tile.form
    ]
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
                filter, tap = e.add(e.mul(number, lanes), lane), e.div(row, group_channels)
                channel = e.rem(row, group_channels)
            else:
                filter = e.add(e.mul(e.add(e.mul(number, tile.blocks), block), lanes), lane)
                tap = e.rem(e.div(row, tile.inner), taps)
                seen = e.add(e.mul(e.div(row, taps * tile.inner), tile.inner), e.rem(row, tile.inner))
                group = e.div(filter, tile.filters // tile.groups)
                channel = e.sub(e.add(e.mul(first_input, tile.inner), seen), e.mul(group, group_channels))
            value = _load_weight(e, tile, weight, filter, channel, tap)
            at = e.add(e.mul(e.add(e.mul(row, blocks), block), lanes), lane)
            e.store("float", value, e.address(start, "float", at), 4)
    return {"direct": tile.tiles, "dot": tile.depth, "grouped": tile.output_blocks}[tile.form]


def packed_size(tile: Tile, taps: int) -> int:
    """Return the number of floats of the packed weights of a convolution."""
    if tile.form == "dot":
        return tile.depth * taps * tile.filters * tile.lanes
    depth = tile.channels // tile.groups if tile.form == "grouped" else tile.depth * tile.inner
    return tile.output_blocks * depth * taps * tile.lanes


def _load_weight(e: Emitter, tile: Tile, weight: Weight, filter: Number, channel: Number, tap: Number) -> str:
    """Return a weight, or 0 if the filter does not exist or the channel is not in the filter's group."""
    known = e.let(f"icmp ult i64 {filter}, {tile.filters}")
    inside = e.let(f"icmp ult i64 {channel}, {tile.channels // tile.groups}")
    value = e.variable("float", "0.0")
    with e.when(e.let(f"and i1 {known}, {inside}")):
        value.set(weight(filter, channel, tap))
    return value.get()
