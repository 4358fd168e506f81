"""What takes a row as a whole: cumulative reductions, sorts, determinants, transforms. Each row is one worker's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.element_reader import ORIGIN, Element
from sardonyx.compiler.codegen.elementwise import combining, identity
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.codegen.loop_nest import (  # fmt: skip
    CHUNK,
    bound_at,
    masked,
    nest_axes,
    over_vectors,
    stored,
    work_items,
)
from sardonyx.compiler.kernels import determinant, fft, sort_top_k
from sardonyx.compiler.kernels.fft import Fourier
from sardonyx.compiler.kernels.sort_top_k import Sorting
from sardonyx.compiler.llvm.ir_builder import vector
from sardonyx.compiler.llvm.vector_value import Vector
from sardonyx.compiler.lower.context import Writing
from sardonyx.compiler.lower.launch import Scratch, Stage
from sardonyx.core.dim import Size, ceil_div, dim_max, floor_div
from sardonyx.core.ir.graph import Value

EFFORT = 4
"""What an element that is sorted takes, in elements that are read and written."""


def ordered(writing: Writing, value: Value) -> Size:
    """Write the kernel of a ``scan``, ``sort``, ``top_k``, ``determinant`` or ``fft``; returns its work items."""
    return _WAYS[value.op](writing, value)


def lanes_for(value: Value, lanes: int) -> int:
    """The lanes of the kernel: 1 where a row is taken element by element.

    A row is sorted by vectors; the rows of a scan are walked together where they lie side by side.
    """
    side_by_side = value.op == "scan" and value.params["axis"] != len(shape_of(value)) - 1
    return lanes if side_by_side or value.op in ("sort", "top_k") else 1


def _scan(w: Writing, value: Value) -> Size:
    source, axis, kind = value.operands[0], value.params["axis"], value.params["kind"]
    reader, e, dtype = w.reader, w.kernel.emitter, dtype_of(value)
    memory = w.located(w.group.root)
    count = w.kernel.size(shape_of(value)[axis])

    def row(place: list[Index]) -> None:
        start = load_store.constant(dtype, identity(kind, dtype), reader.lanes)
        total = e.variable(vector(reader.lanes, load_store.register_type(dtype)), start)
        with e.loop(0, count) as i, reader.inside():
            here = (*place[:axis], Index(i), *place[axis + 1 :])
            found = reader.vector(source, here)
            total.set(reader.compute(combining(kind, dtype), [dtype, dtype], [total.get(), found], False))
            reader.bind(value, bound_at(value, here, Element(total.get(), reader.lanes == 1)))
            stored(reader, w.group.root, memory, here)

    return _rows(w, shape_of(value), (axis,), reader.lanes > 1, row)


def _sort(w: Writing, value: Value) -> Size:
    source, axis = value.operands[0], value.params["axis"]
    reader, e = w.reader, w.kernel.emitter
    memory = w.located(w.group.root)
    length, wanted = shape_of(source)[axis], shape_of(value)[axis]
    descending = value.params["descending" if value.op == "sort" else "largest"]
    words = w.kernel.target.lanes(8 * sort_top_k.WORD)
    sort = Sorting(e, dtype_of(source), descending, length, wanted, reader.lanes, words)
    n, room = w.kernel.size(length), w.kernel.size(sort.room)
    k = e.least(w.kernel.size(wanted), n)
    scratch, bytes_ = _scratch(w, sort.bytes)

    def row(place: list[Index]) -> None:
        if value.op == "top_k":
            reader.require(e.let(f"icmp sle i64 {w.kernel.size(wanted)}, {n}"), 1)
        if not isinstance(n, int) or n > sort_top_k.MOST:
            reader.require(e.let(f"icmp sle i64 {n}, {sort_top_k.MOST}"), 1)

        def at(index: Index) -> tuple[Index, ...]:
            return (*place[:axis], index, *place[axis + 1 :])

        def read(first: str, mask: str | None) -> str:
            with masked(reader, mask):
                return reader.vector(source, at(Index(first, 1, reader.lanes)))

        def write(index: Index) -> None:
            reader.bind(value, bound_at(value, at(index), Element(sort.index(str(index.base)), False)))
            stored(reader, w.group.root, memory, at(index))

        sort.first(n, k, room, e.address(scratch, "i8", e.mul("%worker", bytes_)), read)
        over_vectors(reader, 0, k, k if isinstance(k, int) else None, write)

    return _rows_apart(w, shape_of(source), axis, row)


def _determinant(w: Writing, value: Value) -> Size:
    source = value.operands[0]
    reader, e = w.reader, w.kernel.emitter
    memory = w.located(w.group.root)
    shape = shape_of(source)
    rank = len(shape)
    scratch, bytes_ = _scratch(w, determinant.scratch_bytes(shape[-1]))

    def matrix(place: list[Index]) -> None:
        def entry(i: str, j: str) -> str:
            with reader.inside():
                return reader.element(source, (*place[:-2], Index(i), Index(j))).name

        mine = e.address(scratch, "i8", e.mul("%worker", bytes_))
        element = load_store.register_type(dtype_of(source))
        found = determinant.determinant(e, w.kernel.size(shape[-1]), mine, element, entry)
        here = tuple(place[:-2])
        reader.bind(value, bound_at(value, here, Element(found, True)))
        stored(reader, w.group.root, memory, here)

    return _rows(w, shape, (rank - 2, rank - 1), False, matrix)


def _tables(value: Value) -> Stage:
    return Stage(value, fft.table_bytes(shape_of(value)[-1]))


def fourier_tables(w: Writing, value: Value) -> Size:
    """Write the kernel of what the rows of an ``fft`` share; returns its work items."""
    with w.kernel.emitter.loop("%first", "%last"):
        Fourier(w.kernel.emitter, w.kernel.size(shape_of(value)[-1]), w.pointer(_tables(value))).write_tables()
    return 1


def _fft(w: Writing, value: Value) -> Size:
    source = value.operands[0]
    reader, e = w.reader, w.kernel.emitter
    memory = w.located(w.group.root)
    shape = shape_of(value)
    scratch, bytes_ = _scratch(w, fft.scratch_bytes(shape[-1]))
    tables = w.pointer(_tables(value))

    def row(place: list[Index]) -> None:
        def load(k: str) -> tuple[str, str]:
            with reader.inside():
                found = Vector(e, reader.element(source, (*place[:-1], Index(k))).name, "i64", 1)
            parts = [found.to("trunc", "i32"), found.lshr(32).to("trunc", "i32")]
            re, im = (part.number().to("fpext", "double").name for part in parts)
            return re, im

        def store(k: str, re: str, im: str) -> None:
            parts = [Vector(e, name, "double", 1).to("fptrunc", "float").bits().to("zext", "i64") for name in (re, im)]
            here = (*place[:-1], Index(k))
            with reader.inside():
                reader.bind(value, bound_at(value, here, Element((parts[0] | (parts[1] << 32)).name, True)))
                stored(reader, w.group.root, memory, here)

        mine = e.address(scratch, "i8", e.mul("%worker", bytes_))
        transform = Fourier(e, w.kernel.size(shape[-1]), tables)
        transform.transform(mine, value.params["inverse"], load, store)

    return _rows(w, shape, (len(shape) - 1,), False, row)


def _scratch(w: Writing, bytes_: Size) -> tuple[str, str | int]:
    """Memory of every worker's own, and the bytes of each."""
    rounded = -(-bytes_ // 64) * 64 if isinstance(bytes_, int) else (bytes_ + 63) // 64 * 64
    return w.pointer(Scratch(rounded)), w.kernel.size(rounded)


def _rows(
    w: Writing, shape: Sequence[Size], axes: tuple[int, ...], lane: bool, body: Callable[[list[Index]], None]
) -> Size:
    """Write the nest over all axes but those of a row."""
    loops = nest_axes(shape, [axis for axis in range(len(shape)) if axis not in axes], lambda a, b: False)
    work = math.prod(shape[axis] for axis in axes)
    return work_items(w.reader, loops, len(shape), work, lane, body)


def _rows_apart(w: Writing, shape: Sequence[Size], axis: int, body: Callable[[list[Index]], None]) -> Size:
    """Write the nest over all axes but that of a row, where a row takes so long that few of them are a work item."""
    e = w.kernel.emitter
    others = [each for each in range(len(shape)) if each != axis and shape[each] != 1]
    count = math.prod(shape[each] for each in others)
    rows = dim_max(floor_div(CHUNK, dim_max(shape[axis] * EFFORT, 1)), 1)
    total, step = w.kernel.size(count), w.kernel.size(rows)
    with e.loop("%first", "%last") as item:
        begin = e.mul(item, step)
        with e.loop(begin, e.least(e.add(begin, step), total)) as row, w.reader.inside():
            place = [ORIGIN] * len(shape)
            at: str | int = row
            for each in reversed(others):
                size = w.kernel.size(shape[each])
                place[each] = Index(at if each == others[0] else e.rem(at, size))
                at = at if each == others[0] else e.div(at, size)
            body(place)
    return ceil_div(count, rows)


_WAYS: dict[str, Callable[[Writing, Value], Size]] = {
    "scan": _scan,
    "sort": _sort,
    "top_k": _sort,
    "determinant": _determinant,
    "fft": _fft,
}
