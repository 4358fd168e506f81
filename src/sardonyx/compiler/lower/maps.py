"""Lowering of elementwise groups: a loop nest over the elements, in the order of the written memory."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

from sardonyx.compiler.analysis.axis_collapsing import can_collapse, visit_inlined
from sardonyx.compiler.analysis.constant_values import is_closed
from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.strided_views import MOVEMENTS, Memory, shape_of
from sardonyx.compiler.codegen.channel_blocks import channel_items, moves_rows, reads_rows
from sardonyx.compiler.codegen.element_reader import Reader
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.codegen.loop_nest import Axis, channel_mask, masked, nest_axes, put, stored, work_items
from sardonyx.compiler.codegen.position_arithmetic import Position
from sardonyx.compiler.codegen.tiled_transpose import block_items, blocks_of
from sardonyx.compiler.lower.code_tables import is_dense_table, lower_table
from sardonyx.compiler.lower.context import FunctionContext, KernelWriter
from sardonyx.compiler.lower.dynamic_quantization import dense_codes, lower_codes
from sardonyx.compiler.lower.launch import Launch
from sardonyx.compiler.schedule.groups import Group, operations
from sardonyx.compiler.tiling import costs
from sardonyx.core.dim import Size, ceil_div
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

Body = Callable[[list[Index]], None]

_BYTES = 4
"""Bytes in a lane of 32 bits."""

_TILE_BYTES = 16
"""Positions of a tile of bytes: processors interleave halves of 128 bits in one instruction."""


def lower_map(context: FunctionContext, group: Group) -> Launch:
    """Emit the kernel of an elementwise group."""
    table = context.grouping.tables.get(group.root)
    if table is not None and not group.others and is_dense_table(context, table):
        return lower_table(context, group, table)
    codes = dense_codes(context, group)
    launch = None if codes is None else lower_codes(context, group, codes)
    if launch is not None:
        return launch
    w = KernelWriter(context, group)
    memory = w.located(group.root)
    w.prepare_numbers()
    traversed = group.root if memory.block or group.others else _traversed_value(w, group.root)
    memory = dataclasses.replace(memory, shape=shape_of(traversed))
    written = [*((other, w.located(other)) for other in group.others), (traversed, memory)]

    def body(position: list[Index]) -> None:
        at = tuple(position)
        # All elements are read before one is written: a result may be in the memory of an operand.
        elements = [w.reader.element(value, at) for value, _ in written]
        for (_, there), element in zip(written, elements, strict=True):
            w.reader.store(there, at, element)

    work = max(1, operations(group.members) // costs.MAP_UNIT_OPERATIONS)
    return w.launch(write_elements(w, traversed, memory, memory.shape, body, work=work), "map")


def _traversed_value(w: KernelWriter, root: Value) -> Value:
    """Return the value whose axes the nest of a map follows: the root, or the operand before its reshapes.

    The operand is at most as far back as the next value in memory, which the kernel reads.

    A reshape keeps the row-major order, so both write the same memory. The nest follows the operand if its rows are
    not a whole number of vectors: positions of the root would be split by a division in every lane. Rows much shorter
    than a vector are followed only if no blocks transpose them.
    """
    value, lanes = root, w.reader.lanes
    while value.op == "reshape" and (value is root or not w.context.in_memory(value)):
        value = value.operands[0]
    shape = shape_of(value)
    last = next((size for size in reversed(shape) if size != 1), 1)
    if value is root or (isinstance(last, int) and last % lanes == 0):
        return root
    if isinstance(last, int) and last < lanes // 2:
        memory = dataclasses.replace(w.located(root), shape=shape)
        loops = nest_axes(shape, range(len(shape)), lambda a, b: _is_collapsible(w, value, a))

        def body(position: list[Index]) -> None:
            stored(w.reader, value, memory, tuple(position))

        return root if blocks_of(w.reader, value, w.memory, loops, len(shape), body) is None else value
    return value


def write_elements(
    w: KernelWriter, value: Value, memory: Memory, shape: Sequence[Size], body: Body,
    is_dense: Callable[[int], bool] = lambda axis: True, is_collapsible: Callable[[int], bool] | None = None,
    work: int = 1,
) -> Size:  # fmt: skip
    """Write the nest over the elements of a value, in order of the written memory; return the work items.

    Args:
        w: The kernel.
        value: The value computed in the body.
        memory: The written memory.
        shape: Sizes of the nest.
        body: Emits the work for a position.
        is_dense: Returns True if an axis may be merged with the axis before in the written memory.
        is_collapsible: Returns True if all operands index an axis and the next axis alike; by default found from
            ``value``.
        work: Cost of one element.
    """
    rank = len(shape)
    if all(size == 1 for size in shape):
        # A single element: one lane is enough.
        w.reader.lanes = 1
    once = not w.context.in_place.isdisjoint(w.group.roots)  # A second time, an operand would be the result.
    collapses = is_collapsible or (lambda axis: _is_collapsible(w, value, axis))
    if memory.block:
        loops = [Axis((0,), shape[0]), Axis((1,), ceil_div(shape[1], memory.block), memory.block)]
        loops = [axis for axis in loops if axis.block or axis.size != 1]
        spatial = nest_axes(shape, range(2, rank), lambda a, b: collapses(a) and is_dense(b))
        of_block = mask_channels(w, shape[1], body)
        if not once and isinstance(shape[1], int) and reads_rows(w.reader, spatial, rank, body):
            width = max(w.reader.lanes, _TILE_BYTES) if _moves_bytes(w, value, memory) else w.reader.lanes
            return channel_items(w.reader, memory, shape[1], loops, spatial, rank, work, body, of_block, width)
        return work_items(w.reader, [*loops, *spatial], rank, memory.block * work, False, of_block)
    loops = nest_axes(shape, range(rank), lambda a, b: collapses(a) and is_dense(b))
    if not once and (blocks := blocks_of(w.reader, value, w.memory, loops, rank, body)) is not None:
        return block_items(w.reader, loops, blocks, rank, body)
    is_short = bool(loops) and isinstance(loops[-1].size, int) and loops[-1].size <= w.reader.lanes // 2
    if is_short and not operations(w.group.members) and not w.context.target.has_masks:
        # Without masks, storing some lanes of a vector takes longer than storing elements one by one.
        w.reader.lanes = 1
    wide = _BYTES * w.reader.lanes
    is_long = bool(loops) and not (isinstance(loops[-1].size, int) and loops[-1].size < wide)
    if is_long and not once and _moves_bytes(w, value, memory) and moves_rows(w.reader, loops, rank, body):
        w.reader.lanes = wide
    gathers = any(operand.op == "gather" and source is None for operand, source in visit_inlined(value, w.memory))
    before = functools.partial(_load_row_indices, w.reader, loops, body) if loops and gathers else None
    return work_items(w.reader, loops, rank, work, True, body, again=not once, before=before)


def _load_row_indices(reader: Reader, loops: Sequence[Axis], body: Body, position: list[Index]) -> None:
    """Load gather indices constant along a row before the row's loop; LLVM leaves these loads in the loop."""
    here, uniform, bases = list(position), list[tuple[Value, Position]](), {index.base for index in position}

    def record(value: Value, at: Position) -> None:
        if all(index.is_uniform and (index.base in bases or isinstance(index.base, int)) for index in at):
            uniform.append((value, at))

    put(here, loops[-1], Index("%lane", 1, reader.lanes))
    reader.on_gather = record
    with reader.trial():
        body(here)
    reader.on_gather = None
    for value, at in uniform:
        reader.picked(value, at)


def _moves_bytes(w: KernelWriter, value: Value, memory: Memory) -> bool:
    """Return True if a kernel moves the bytes of a value, which it reads from memory, to other memory."""
    codes = (t.UINT8, t.INT8)
    inlined = [operand for operand, source in visit_inlined(value, w.memory) if source is None]
    return {memory.dtype, dtype_of(value)} <= {*codes} and all(
        is_closed(operand) or (dtype_of(operand) in codes and operand.op in (*MOVEMENTS, "gather"))
        for operand in inlined
    )


def mask_channels(w: KernelWriter, channels: Size, body: Body) -> Body:
    """Return the body for a block of channels, with lanes after the last channel masked."""
    if isinstance(channels, int) and channels % w.reader.lanes == 0:
        return body

    def masked_body(position: list[Index]) -> None:
        with masked(w.reader, channel_mask(w.reader, channels, position[1].base)):
            body(position)

    return masked_body


def _is_collapsible(w: KernelWriter, value: Value, axis: int) -> bool:
    return can_collapse(value, axis, w.memory, ())
