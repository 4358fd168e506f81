"""Lowering of groups with reductions: row-by-row kernels, with several passes for chained reductions."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.compiler.analysis.axis_collapsing import can_collapse
from sardonyx.compiler.analysis.primitive_traits import EXTREMA, Rows
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.codegen.loop_nest import RowNest, reduce_row, stored
from sardonyx.compiler.lower.context import FunctionContext, KernelWriter, storage_bits
from sardonyx.compiler.lower.launch import Launch
from sardonyx.compiler.lower.maps import mask_channels
from sardonyx.compiler.lower.row_passes import RowPasses
from sardonyx.compiler.schedule.groups import Group, operations
from sardonyx.compiler.schedule.layout_assignment import row_channels
from sardonyx.core.ir.graph import Value

_CHEAP_ROWS = 8
"""Operations of a row-by-row kernel that leave registers for several vectors of sums."""

_REORDERING = frozenset({"permute", "reverse", "slice", "gather"})
"""Movements after which adjacent elements may not be adjacent in memory."""

_ADJACENT_ROWS = 8
"""Vectors of 32 bits reduced in one pass, if lanes are adjacent rows."""


def lower_rows(context: FunctionContext, group: Group) -> Launch:
    """Emit the row-by-row kernel of a group with reductions."""
    assert group.rows is not None
    rows = group.rows
    order = context.schedule.order
    reductions = [value for value in order if value in group.members and value.op == "reduce"]
    channels = row_channels(group, context.blocks)
    w = KernelWriter(context, group, None if channels else _row_lanes(context, group, rows, reductions))
    reader, root = w.reader, group.root
    memory = w.located(root)
    elementwise = shape_of(root) == rows.shape and root not in reductions

    def is_collapsible(axis: int, following: int) -> bool:
        if (axis in rows.axes) != (following in rows.axes):
            return False
        read = [value.operands[0] for value in reductions] + ([root] if elementwise else [])
        fits = not memory.block or axis >= 2
        return fits and all(can_collapse(value, axis, w.memory, reductions) for value in read)

    nest = RowNest(reader, rows, is_collapsible, channels)
    if not elementwise and len(nest.outer) > 0:
        # The position of a row in the root needs the index along every outer axis.
        nest = RowNest(reader, rows, lambda a, b: is_collapsible(a, b) if a in rows.axes else False, channels)

    levels = _levels(order, reductions)
    operands = [[value.operands[0] for value in level] for level in levels]
    passes = RowPasses(w, nest, rows, [*operands, [root]] if elementwise else operands, keeps=not channels)

    def row(position: list[Index]) -> None:
        for number, level in enumerate(levels):
            passes.begin(number, position)
            reduce_row(nest, position, level)
        if elementwise:
            passes.begin(len(levels), position)
            nest.elements(position, lambda here: stored(reader, root, memory, tuple(here)))
        else:
            at = reader.reshaped(nest.result_position(position), rows.result_shape, shape_of(root))
            stored(reader, root, memory, at)

    body = mask_channels(w, rows.shape[1], row) if channels and 1 not in rows.axes else row
    return w.launch(nest.items(body), "rows")


def _row_lanes(context: FunctionContext, group: Group, rows: Rows, reductions: Sequence[Value]) -> int | None:
    """Return the number of adjacent rows reduced in parallel lanes; None for the lanes of one vector.

    Several vectors of rows read whole cache lines. With a single vector, the rest of a line would be read only after
    all further elements of the rows, and the line would be evicted before: L1 holds few lines at strides of a power of
    two.
    """
    outer = [axis for axis, size in enumerate(rows.shape) if size != 1]
    if not outer or outer[-1] in rows.axes or operations(group.members) > _CHEAP_ROWS:
        return None
    read = {operand for member in group.members for operand in (member, *member.operands)}
    if any(value.op in _REORDERING or value in context.blocks for value in read):
        return None
    if any(value.params["kind"] in EXTREMA for value in reductions):
        return None
    lanes, width, bits = context.target.lanes(32), rows.shape[outer[-1]], max(map(storage_bits, group.members))
    vectors = 1 << (_ADJACENT_ROWS * 32 // max(bits, 32) // len(reductions) or 1).bit_length() - 1
    while vectors > 1 and isinstance(width, int) and width < vectors * lanes:
        vectors //= 2
    return vectors * lanes


def _levels(order: Sequence[Value], reductions: Sequence[Value]) -> list[list[Value]]:
    """Return the reductions by pass: a reduction depends only on reductions of earlier passes."""
    depth: dict[Value, int] = {}
    needed: dict[Value, int] = {}
    members = set(reductions)
    for value in order:
        below = max((needed.get(operand, 0) for operand in value.operands), default=0)
        if value in members:
            depth[value] = below
            needed[value] = below + 1
        else:
            needed[value] = below
    return [[value for value in reductions if depth[value] == level] for level in range(max(depth.values()) + 1)]
