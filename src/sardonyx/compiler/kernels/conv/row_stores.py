"""Stores of blocks of channels in NCHW: vectors of adjacent outputs are transposed to rows of single channels.

Without, each element of a vector of channels would be stored alone: its neighbours in the vector are an image away.
"""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.compiler.kernels.gemm.packing import transpose_square
from sardonyx.compiler.llvm.ir_builder import Emitter, vector


def store_rows(
    e: Emitter, lanes: int, element: str, channel_step: str | int, remaining: str | int, pointer: str,
    results: Sequence[str],
) -> None:  # fmt: skip
    """Store the channels of a block at adjacent outputs of a row.

    Args:
        e: Emitter of the instructions.
        lanes: Channels of a block, at least as many as results.
        element: The LLVM type of the elements in memory.
        channel_step: The distance of channels, in elements.
        remaining: The channels from the first of the block to the last of the image.
        pointer: The address of the first channel at the first output.
        results: The vectors of channels, one for each output.
    """
    count, type, bytes = len(results), vector(lanes, element), 4 if element in ("float", "i32") else 1
    mask = None if count == lanes else e.lanes_below(count, lanes)

    def store(channel: int, row: str) -> None:
        at = e.address(pointer, element, e.mul(channel_step, channel))
        if mask is None:
            e.store(type, row, at, bytes)
        else:
            e.masked_store(type, row, at, bytes, mask, lanes)

    rows = transpose_square(e, [*results, *["poison"] * (lanes - count)], element)
    for channel, row in enumerate(rows):
        if isinstance(remaining, int):
            if channel < remaining:
                store(channel, row)
            continue
        with e.when(e.let(f"icmp slt i64 {channel}, {remaining}")):
            store(channel, row)
