"""Lowering of tables of codes: every byte of a value in memory is replaced by the table's byte."""

from __future__ import annotations

import math

from sardonyx.compiler.analysis.code_tables import CodeTable
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.kernels.code_lookup import LookUp
from sardonyx.compiler.lower.context import FunctionContext, KernelWriter
from sardonyx.compiler.lower.launch import Launch
from sardonyx.compiler.schedule.groups import Group
from sardonyx.compiler.tiling import costs
from sardonyx.core.dim import ceil_div

_BYTES_PER_ITEM = 4096


def is_dense_table(context: FunctionContext, table: CodeTable) -> bool:
    """Return True if source and result are in memory with their elements in the same order, without padding."""
    block, channels = context.blocks.get(table.source, 0), shape_of(table.source)[1:2]
    if not context.in_memory(table.source) or block != context.blocks.get(table.result, 0):
        return False
    # Padding channels of the last block are zeros, which a lookup would change.
    return not block or (isinstance(channels[0], int) and channels[0] % block == 0)


def lower_table(context: FunctionContext, group: Group, table: CodeTable) -> Launch:
    """Emit the kernel of a table of codes."""
    w = KernelWriter(context, group)
    e, kernel = w.kernel.emitter, w.kernel
    source, result = w.located(table.source), w.located(table.result)
    count = math.prod(shape_of(table.result))
    lookup = LookUp(e, context.target, table.elements())
    with e.loop("%first", "%last") as item:
        start = e.mul(item, _BYTES_PER_ITEM)
        length = e.least(_BYTES_PER_ITEM, e.sub(kernel.size(count), start))
        lookup.replace(e.address(source.pointer, "i8", start), e.address(result.pointer, "i8", start), length)
    kernel.work = _BYTES_PER_ITEM // costs.TABLE_BYTES_PER_FMA
    return w.launch(ceil_div(count, _BYTES_PER_ITEM), "table of codes")
