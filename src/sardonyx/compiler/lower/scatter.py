"""Lowering of ``scatter``: updates are stored, or combined with stored elements, in their order.

Updates of the same element differ only along the axes of the indices. These axes are one sequential loop, and work is
shared along the other axes, so that results do not depend on the number of threads.
"""

from __future__ import annotations

import math

from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.codegen.element_reader import Element
from sardonyx.compiler.codegen.elementwise import combining
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.codegen.loop_nest import masked, nest_axes, work_items
from sardonyx.compiler.llvm.ir_builder import vector
from sardonyx.compiler.lower.context import KernelWriter
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value


def write_updates(writer: KernelWriter, value: Value) -> Size:
    """Write the updates of a ``scatter`` into the memory of the group's root; return the work items."""
    indices, updates = value.operands[1:]
    batch, index_axes = value.params["batch"], len(shape_of(indices)) - 1
    shape = shape_of(updates)
    rank = len(shape)
    e, kernel = writer.kernel.emitter, writer.kernel

    def body(position: list[Index]) -> None:
        def write_axis(axis: int) -> None:
            if axis == index_axes:
                _write_update(writer, value, list(position))
                return
            with e.loop(0, kernel.size(shape[axis])) as i, writer.reader.inside():
                position[axis] = Index(i)
                write_axis(axis + 1)

        write_axis(batch)

    free = [*range(batch), *range(index_axes, rank)]
    loops = nest_axes(shape, free, lambda a, b: False)
    return work_items(writer.reader, loops, rank, math.prod(shape[batch:index_axes]), True, body)


def _write_update(w: KernelWriter, value: Value, position: list[Index]) -> None:
    """Write one vector of updates; an index out of range sets the fault flag and updates nothing."""
    reader, e = w.reader, w.kernel.emitter
    _, indices, updates = value.operands
    batch, index_axes, kind = value.params["batch"], len(shape_of(indices)) - 1, value.params["kind"]
    memory, dtype = w.located(w.group.root), dtype_of(value)
    depth = shape_of(indices)[-1]
    assert isinstance(depth, int)
    target = position[:batch]
    good: Element | None = None
    for component in range(depth):
        at = reader.element(indices, (*position[:index_axes], Index(component)))
        lanes = 1 if at.uniform else reader.lanes
        wide = reader.converted(dtype_of(indices), t.INT64, at.name, at.uniform)
        size = e.spread(str(w.kernel.size(shape_of(value)[batch + component])), lanes, "i64")
        fits = Element(e.let(f"icmp ult {vector(lanes, 'i64')} {wide}, {size}"), at.uniform)
        reader.require(fits.name, lanes)
        good = fits if good is None else _conjunction(w, good, fits)
        target.append(Index(wide) if at.uniform else Index(0, vector=wide))
    target += position[index_axes:]

    def write() -> None:
        new = reader.element(updates, tuple(position))
        if kind != "set":
            old = reader.loaded(memory, tuple(target))
            uniform = old.uniform and new.uniform
            names = [old.name, new.name] if uniform else [reader.spread(element, value) for element in (old, new)]
            new = Element(reader.compute(combining(kind, dtype), [dtype, dtype], names, uniform), uniform)
        reader.store(memory, tuple(target), new)

    if good is None:
        write()
    elif good.uniform:
        with e.when(good.name), reader.inside():
            write()
    else:
        flags = vector(reader.lanes, "i1")
        mask = good.name if reader.mask is None else e.let(f"and {flags} {good.name}, {reader.mask}")
        with masked(reader, mask):
            write()


def _conjunction(w: KernelWriter, a: Element, b: Element) -> Element:
    """Return the conjunction of two conditions."""
    e, lanes = w.kernel.emitter, w.reader.lanes
    if a.uniform and b.uniform:
        return Element(e.let(f"and i1 {a.name}, {b.name}"), True)
    names = [e.spread(flag.name, lanes, "i1") if flag.uniform else flag.name for flag in (a, b)]
    return Element(e.let(f"and {vector(lanes, 'i1')} {names[0]}, {names[1]}"), False)
