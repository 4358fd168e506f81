"""Lowering of ``concat``, ``pad`` and ``scatter``: one kernel for each region of the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sardonyx.compiler.analysis.slice_scatter import written_box
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.lower.context import FunctionContext, KernelWriter
from sardonyx.compiler.lower.launch import Launch
from sardonyx.compiler.lower.maps import write_elements
from sardonyx.compiler.lower.scatter import write_updates
from sardonyx.compiler.schedule.groups import Group
from sardonyx.core.dim import Size, at_least, ceil_div, dim_max, dim_min, floor_div
from sardonyx.core.ir.graph import Value


def lower_concat(context: FunctionContext, group: Group) -> list[Launch]:
    """Emit one kernel for each operand of a ``concat``."""
    root, axis = group.root, group.root.params["axis"]
    start: Size = 0
    launches = []
    for operand in root.operands:
        shape = shape_of(operand)
        launches.append(_write_region(context, group, operand, shape, {axis: (start, 1)}, {}))
        start = start + shape[axis]
    return launches


def lower_pad(context: FunctionContext, group: Group) -> list[Launch]:
    """Emit the kernels that fill the result of a ``pad`` and copy the operand into the result."""
    root = group.root
    source, filling = root.operands
    low, high, interior = (root.params[name] for name in ("low", "high", "interior"))
    sizes: list[Size] = []
    targets: dict[int, tuple[Size, int]] = {}
    firsts: dict[int, Size] = {}
    for axis, size in enumerate(shape_of(source)):
        step, start = interior[axis] + 1, low[axis]
        if not (at_least(low[axis], 0) and at_least(high[axis], 0)):
            first = ceil_div(dim_max(-low[axis], 0), step)
            start = low[axis] + first * step
            last = floor_div(shape_of(root)[axis] - 1 - start, step)
            size = dim_max(dim_min(size - first, last + 1), 0)
            firsts[axis] = first
        sizes.append(size)
        if start != 0 or step != 1:
            targets[axis] = (start, step)
    w = KernelWriter(context, group)
    memory = w.located(root)

    def fill(position: list[Index]) -> None:
        w.reader.store(memory, tuple(position), w.reader.element(filling, ()))

    items = write_elements(w, filling, memory, shape_of(root), fill, is_collapsible=lambda axis: True)
    return [w.launch(items, "fill"), _write_region(context, group, source, tuple(sizes), targets, firsts)]


def lower_scatter(context: FunctionContext, group: Group) -> list[Launch]:
    """Emit the copy of the first operand, then the updates of each ``scatter`` of a chain, in order."""
    chain = [group.root]
    while chain[0].operands[0].op == "scatter" and chain[0].operands[0] in group.members:
        chain.insert(0, chain[0].operands[0])
    launches = [_write_region(context, group, chain[0].operands[0], shape_of(group.root), {}, {})]
    for value in chain:
        part = written_box(value)
        if part is not None:
            lines = enumerate(zip(part.starts, part.steps, strict=True))
            targets = {axis: line for axis, line in lines if line != (0, 1)}
            updates = value.operands[2]
            launches.append(_write_region(context, group, updates, shape_of(updates), targets, {}))
            continue
        w = KernelWriter(context, group)
        launches.append(w.launch(write_updates(w, value), "scatter"))
    return launches


def _write_region(
    context: FunctionContext,
    group: Group,
    value: Value,
    sizes: Sequence[Size],
    targets: Mapping[int, tuple[Size, int]],
    firsts: Mapping[int, Size],
) -> Launch:
    """Emit the kernel that writes elements of a value into a region of the root.

    Args:
        context: Facts about the function.
        group: The group of the root.
        value: The value, an operand of the root.
        sizes: Sizes of the region.
        targets: Start and step of the region in the root, by axis; 0 and 1 for other axes.
        firsts: First element of the value, by axis; 0 for other axes.
    """
    w = KernelWriter(context, group)
    memory = w.located(group.root)
    reader = w.reader

    def body(position: list[Index]) -> None:
        source, target = list(position), list(position)
        for axis, first in firsts.items():
            source[axis] = reader.shifted(position[axis], w.kernel.size(first))
        for axis, (start, step) in targets.items():
            # The parts of a concatenation often differ in their start alone; blocks of channels depend on it.
            offset = w.kernel.size(start) if memory.block else w.kernel.argument(start)
            target[axis] = reader.shifted(reader.times(position[axis], step), offset)
        reader.store(memory, tuple(target), reader.element(value, tuple(source)))

    full = shape_of(group.root)
    complete = [sizes[axis] == full[axis] and axis not in {**targets, **firsts} for axis in range(len(sizes))]
    unit_step = [targets.get(axis, (0, 1))[1] == 1 for axis in range(len(sizes))]
    items = write_elements(w, value, memory, sizes, body, lambda axis: complete[axis] and unit_step[axis - 1])
    return w.launch(items, f"part of {group.root.op}")
