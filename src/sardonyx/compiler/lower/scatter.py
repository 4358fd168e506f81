"""``scatter``: updates written, or combined with what is there, at indices from data, in their order.

Updates that may meet differ along the axes of the indices alone. Those are one loop, and work is shared along the
others, so that results are the same however many threads there are.
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
from sardonyx.compiler.lower.context import Writing
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value


def updated(writing: Writing, value: Value) -> Size:
    """Write the updates of a ``scatter`` into the memory of its group's root; returns the work items."""
    indices, updates = value.operands[1:]
    batch, kept = value.params["batch"], len(shape_of(indices)) - 1
    shape = shape_of(updates)
    rank = len(shape)
    e, kernel = writing.kernel.emitter, writing.kernel

    def body(place: list[Index]) -> None:
        def over(axis: int) -> None:
            if axis == kept:
                _update(writing, value, list(place))
                return
            with e.loop(0, kernel.size(shape[axis])) as i, writing.reader.inside():
                place[axis] = Index(i)
                over(axis + 1)

        over(batch)

    free = [*range(batch), *range(kept, rank)]
    loops = nest_axes(shape, free, lambda a, b: False)
    return work_items(writing.reader, loops, rank, math.prod(shape[batch:kept]), True, body)


def _update(w: Writing, value: Value, place: list[Index]) -> None:
    """One vector of updates; an index that is out of range sets the fault flag, and updates nothing."""
    reader, e = w.reader, w.kernel.emitter
    _, indices, updates = value.operands
    batch, kept, kind = value.params["batch"], len(shape_of(indices)) - 1, value.params["kind"]
    memory, dtype = w.located(w.group.root), dtype_of(value)
    depth = shape_of(indices)[-1]
    assert isinstance(depth, int)
    goal = place[:batch]
    good: Element | None = None
    for component in range(depth):
        at = reader.element(indices, (*place[:kept], Index(component)))
        lanes = 1 if at.uniform else reader.lanes
        wide = reader.converted(dtype_of(indices), t.INT64, at.name, at.uniform)
        size = e.spread(str(w.kernel.size(shape_of(value)[batch + component])), lanes, "i64")
        fits = Element(e.let(f"icmp ult {vector(lanes, 'i64')} {wide}, {size}"), at.uniform)
        reader.require(fits.name, lanes)
        good = fits if good is None else _both(w, good, fits)
        goal.append(Index(wide) if at.uniform else Index(0, vector=wide))
    goal += place[kept:]

    def write() -> None:
        new = reader.element(updates, tuple(place))
        if kind != "set":
            old = reader.loaded(memory, tuple(goal))
            uniform = old.uniform and new.uniform
            names = [old.name, new.name] if uniform else [reader.spread(each, value) for each in (old, new)]
            new = Element(reader.compute(combining(kind, dtype), [dtype, dtype], names, uniform), uniform)
        reader.store(memory, tuple(goal), new)

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


def _both(w: Writing, a: Element, b: Element) -> Element:
    """Where two conditions hold."""
    e, lanes = w.kernel.emitter, w.reader.lanes
    if a.uniform and b.uniform:
        return Element(e.let(f"and i1 {a.name}, {b.name}"), True)
    names = [e.spread(each.name, lanes, "i1") if each.uniform else each.name for each in (a, b)]
    return Element(e.let(f"and {vector(lanes, 'i1')} {names[0]}, {names[1]}"), False)
