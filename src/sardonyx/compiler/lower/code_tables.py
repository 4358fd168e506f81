"""Lowering of tables of codes: every byte of a value in memory is replaced by the table's byte."""

from __future__ import annotations

import math

from sardonyx.compiler.analysis.code_tables import CodeTable
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.kernels.code_lookup import LookUp, Padding
from sardonyx.compiler.lower.context import FunctionContext, KernelWriter
from sardonyx.compiler.lower.launch import Launch
from sardonyx.compiler.schedule.groups import Group
from sardonyx.compiler.tiling import costs
from sardonyx.core.dim import Size, ceil_div

_BYTES_PER_ITEM = 4096


def is_dense_table(context: FunctionContext, table: CodeTable) -> bool:
    """Return True if source and result are in memory with their elements in the same order."""
    block, channels = context.blocks.get(table.source, 0), shape_of(table.source)[1:2]
    if not context.in_memory(table.source) or block != context.blocks.get(table.result, 0):
        return False
    return not block or isinstance(channels[0], int)


def lower_table(context: FunctionContext, group: Group, table: CodeTable) -> Launch:
    """Emit the kernel of a table of codes."""
    w = KernelWriter(context, group)
    e, kernel = w.kernel.emitter, w.kernel
    source, result = w.located(table.source), w.located(table.result)
    shape, block = shape_of(table.result), context.blocks.get(table.result, 0)
    count = math.prod(shape)
    lookup = LookUp(e, context.target, table.elements())
    kernel.work = _BYTES_PER_ITEM // costs.TABLE_BYTES_PER_FMA
    channels = shape[1] if block else 0
    if isinstance(channels, int) and block and channels % block:
        items = _replace_blocks(w, lookup, shape, channels, block, (source.pointer, result.pointer))
        return w.launch(items, "table of codes")
    with e.loop("%first", "%last") as item:
        start = e.mul(item, _BYTES_PER_ITEM)
        length = e.least(_BYTES_PER_ITEM, e.sub(kernel.size(count), start))
        lookup.replace(e.address(source.pointer, "i8", start), e.address(result.pointer, "i8", start), length)
    return w.launch(ceil_div(count, _BYTES_PER_ITEM), "table of codes")


def _replace_blocks(
    w: KernelWriter, lookup: LookUp, shape: tuple[Size, ...], channels: int, block: int, pointers: tuple[str, str]
) -> Size:
    """Emit the lookups of an image whose last block of channels is padded with zeros, which stay; return the items.

    Args:
        w: The writer of the kernel.
        lookup: The table.
        shape: The shape of the image, [N, channels, spatial].
        channels: The channels.
        block: Channels of a block.
        pointers: Addresses of the source and of the result.
    """
    e, (source, result) = w.kernel.emitter, pointers
    blocks, size = -(-channels // block), math.prod(shape[2:]) * block
    parts = ceil_div(size, _BYTES_PER_ITEM)
    bytes, count = w.kernel.size(size), w.kernel.size(parts)
    with e.loop("%first", "%last") as item:
        number, start = e.div(item, count), e.mul(e.rem(item, count), _BYTES_PER_ITEM)
        is_last = e.let(f"icmp eq i64 {e.rem(number, blocks)}, {blocks - 1}")
        codes = e.let(f"select i1 {is_last}, i64 {channels % block}, i64 {block}")
        at = e.add(e.mul(number, bytes), start)
        length = e.least(_BYTES_PER_ITEM, e.sub(bytes, start))
        lookup.replace(e.address(source, "i8", at), e.address(result, "i8", at), length, Padding(block, codes))
    return shape[0] * blocks * parts
