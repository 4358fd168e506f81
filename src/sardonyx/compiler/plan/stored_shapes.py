"""Shapes of values as stored: images in blocked layout have whole blocks of channels."""

from __future__ import annotations

from collections.abc import Mapping

from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.executor.size_program import SizeTable
from sardonyx.core.dim import evaluate
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value


def stored_shape(value: Value, blocks: Mapping[Value, int], sizes: Mapping[str, int]) -> list[int]:
    """Return the shape of a value as stored; in blocked layout, channels are padded to whole blocks.

    Args:
        value: The value.
        blocks: Channels per block, of values in blocked layout.
        sizes: Values of the size symbols.
    """
    shape = [int(evaluate(size, sizes)) for size in shape_of(value)]
    block = blocks.get(value, 0)
    if block:
        shape[1] = -(-shape[1] // block) * block
    return shape


def stored_registers(table: SizeTable, value: Value, blocks: Mapping[Value, int]) -> list[int]:
    """Return the registers of the shape of a value as stored, see :func:`stored_shape`."""
    shape = [table.register(size) for size in shape_of(value)]
    block = blocks.get(value, 0)
    if block:
        shape[1] = table.round_up(shape[1], block)
    return shape


def bytes_register(table: SizeTable, value: Value, blocks: Mapping[Value, int]) -> int:
    """Return the register of the bytes of a value as stored."""
    itemsize = t.numpy_dtype(value.type.dtype).itemsize  # type: ignore[union-attr]
    return table.product([table.register(itemsize), *stored_registers(table, value, blocks)])
