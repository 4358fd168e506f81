"""Lowering of groups with reductions: row-by-row kernels, with several passes for chained reductions."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.compiler.analysis.axis_collapsing import can_collapse
from sardonyx.compiler.analysis.primitive_traits import EXTREMA, dtype_of
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.codegen.loop_nest import RowNest, merge_row_axes, reduce_row, stored
from sardonyx.compiler.lower.context import FunctionContext, KernelWriter, storage_bits
from sardonyx.compiler.lower.launch import Launch
from sardonyx.compiler.lower.maps import mask_channels
from sardonyx.compiler.lower.row_passes import RowPasses, shared_values
from sardonyx.compiler.schedule.groups import Group, operations
from sardonyx.compiler.schedule.layout_assignment import reduced_channels, row_channels
from sardonyx.compiler.tiling.rows import RowProblem, choose_rows
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

_REORDERING = frozenset({"permute", "reverse", "slice", "gather"})
"""Movements after which adjacent elements may not be adjacent in memory."""


def lower_rows(context: FunctionContext, group: Group) -> Launch:
    """Emit the row-by-row kernel of a group with reductions."""
    assert group.rows is not None
    rows = group.rows
    order = context.grouping.order
    reductions = [value for value in order if value in group.members and value.op == "reduce"]
    channels = row_channels(group, context.blocks)
    reduced = 0 if _gives_indices(reductions) else reduced_channels(group, context.blocks)
    channels = channels or reduced
    w = KernelWriter(context, group)
    reader, root = w.reader, group.root
    memory = w.located(root)
    # In rows of one element, every result has the shape of the rows; the other roots are written as results.
    elementwise = shape_of(root) == rows.shape and root not in reductions and not group.others

    def is_collapsible(axis: int, following: int) -> bool:
        if (axis in rows.axes) != (following in rows.axes):
            return False
        read = [value.operands[0] for value in reductions] + ([root] if elementwise else [])
        fits = not memory.block or axis >= 2
        return fits and all(can_collapse(value, axis, w.memory, reductions) for value in read)

    outer, inner = merge_row_axes(rows, is_collapsible, channels)
    if not elementwise and len(outer) > 0:
        # The position of a row in the root needs the index along every outer axis.
        outer, inner = merge_row_axes(rows, lambda a, b: is_collapsible(a, b) if a in rows.axes else False, channels)

    levels = _levels(order, reductions)
    operands = [[value.operands[0] for value in level] for level in levels]
    values = [*operands, [root]] if elementwise else operands
    shared = {} if channels else shared_values(w, rows, values)
    problem = RowProblem(
        rows.shape, tuple(rows.axes), outer[-1].size if outer else 1, max(map(storage_bits, group.members)),
        len(reductions), operations(group.members), _has_contiguous_rows(context, group, reductions), channels,
        tuple(value.operations for value in shared.values()),
    )  # fmt: skip
    choice = w.choice = choose_rows(problem, context.target)
    schedule = choice.schedule
    reader.lanes = schedule.lanes
    nest = RowNest(
        reader, rows, outer, inner, lane_is_reduced=schedule.lane_axis == "row" or reduced > 0,
        lane_is_kept=schedule.lane_axis == "rows", chains=schedule.chains, additions=schedule.additions,
        chunk=schedule.item_elements,
        without_sign=[value for value in reductions if _is_subtracted_in_exponents(group, value)],
    )  # fmt: skip
    least = schedule.store_operations
    stored_values = {value: note.first for value, note in shared.items() if 0 < least <= note.operations}
    passes = RowPasses(w, nest, rows, values, stored_values)

    def row(position: list[Index]) -> None:
        for number, level in enumerate(levels):
            passes.begin(number, position)
            reduce_row(nest, position, level)
        if elementwise:
            passes.begin(len(levels), position)
            nest.elements(position, lambda here: stored(reader, root, memory, tuple(here)))
        else:
            here = nest.result_position(position)
            at = {value: reader.reshaped(here, rows.result_shape, shape_of(value)) for value in group.roots}
            # All elements are read before one is written: a result may be in the memory of an operand.
            elements = {value: reader.element(value, there) for value, there in at.items()}
            for value, element in elements.items():
                reader.store(w.located(value), at[value], element)

    body = mask_channels(w, rows.shape[1], row) if channels and 1 not in rows.axes else row
    return w.launch(nest.items(body), "rows")


def _is_subtracted_in_exponents(group: Group, value: Value) -> bool:
    """Return True for the maximum of a softmax: the power of a difference does not depend on the sign of a zero."""
    if value in group.roots or value.params["kind"] not in ("max", "min") or not t.is_float(dtype_of(value)):
        return False
    differences = _readers(group, value)
    return bool(differences) and all(
        reader.op == "sub"
        and _source(reader.operands[0]) is not value
        and reader not in group.roots
        and all(power.op == "exp" for power in _readers(group, reader))
        for reader in differences
    )


def _readers(group: Group, value: Value) -> list[Value]:
    """Return the members of a group that read a value, moved or not."""
    return [member for member in group.members if any(_source(operand) is value for operand in member.operands)]


def _source(value: Value) -> Value:
    while value.op in ("broadcast", "reshape", "permute", "stop_gradient"):
        value = value.operands[0]
    return value


def _has_contiguous_rows(context: FunctionContext, group: Group, reductions: Sequence[Value]) -> bool:
    """Return True if adjacent rows of all operands are adjacent in memory, and no reduction gives indices."""
    read = {operand for member in group.members for operand in (member, *member.operands)}
    if any(value.op in _REORDERING or value in context.blocks for value in read):
        return False
    return not _gives_indices(reductions)


def _gives_indices(reductions: Sequence[Value]) -> bool:
    return any(value.params["kind"] in EXTREMA for value in reductions)


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
