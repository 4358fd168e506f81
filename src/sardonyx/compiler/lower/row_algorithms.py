"""Row algorithms, one worker per row: cumulative reductions, sorts, determinants, Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.element_reader import Element
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
from sardonyx.compiler.codegen.position_arithmetic import ORIGIN
from sardonyx.compiler.kernels import determinant, fft, sort_top_k
from sardonyx.compiler.kernels.fft import Fourier
from sardonyx.compiler.kernels.sort_top_k import Sorting
from sardonyx.compiler.llvm.ir_builder import vector
from sardonyx.compiler.llvm.vector_value import Vector
from sardonyx.compiler.lower.context import KernelWriter
from sardonyx.compiler.lower.launch import Scratch, Stage
from sardonyx.core.dim import Size, ceil_div, dim_max, floor_div
from sardonyx.core.ir.graph import Value

_SORT_COST = 4
"""Cost of a sorted element, in elements loaded and stored."""


def lower_row_algorithm(writer: KernelWriter, value: Value) -> Size:
    """Emit the kernel of a ``scan``, ``sort``, ``top_k``, ``determinant`` or ``fft``; return work items."""
    # A value without elements has no vectors to store, whatever its rows are.
    return 0 if 0 in shape_of(value) else _LOWERINGS[value.op](writer, value)


def lanes_for(value: Value, lanes: int) -> int:
    """Return the lanes of the kernel; 1 if a row is computed element by element.

    A sort uses vectors within a row; a scan computes adjacent rows in the lanes of a vector.
    """
    is_across_rows = value.op == "scan" and _has_rows_beside(shape_of(value), value.params["axis"])
    return lanes if is_across_rows or value.op in ("sort", "top_k") else 1


def _has_rows_beside(shape: Sequence[Size], axis: int) -> bool:
    """Return True if the rows along an axis are several, and adjacent rows are adjacent in memory."""
    return axis != len(shape) - 1 and any(size != 1 for other, size in enumerate(shape) if other != axis)


def _scan(w: KernelWriter, value: Value) -> Size:
    source, axis, kind = value.operands[0], value.params["axis"], value.params["kind"]
    reader, e, dtype = w.reader, w.kernel.emitter, dtype_of(value)
    memory = w.located(w.group.root)
    count = w.kernel.size(shape_of(value)[axis])

    def row(position: list[Index]) -> None:
        start = load_store.constant(dtype, identity(kind, dtype), reader.lanes)
        total = e.variable(vector(reader.lanes, load_store.register_type(dtype)), start)
        with e.loop(0, count) as i, reader.inside():
            here = (*position[:axis], Index(i), *position[axis + 1 :])
            element = reader.vector(source, here)
            total.set(reader.compute(combining(kind, dtype), [dtype, dtype], [total.get(), element], False))
            reader.bind(value, bound_at(value, here, Element(total.get(), reader.lanes == 1)))
            stored(reader, w.group.root, memory, here)

    return _over_rows(w, shape_of(value), (axis,), reader.lanes > 1, row)


def _sort(w: KernelWriter, value: Value) -> Size:
    source, axis = value.operands[0], value.params["axis"]
    reader, e = w.reader, w.kernel.emitter
    memory = w.located(w.group.root)
    length, count = shape_of(source)[axis], shape_of(value)[axis]
    descending = value.params["descending" if value.op == "sort" else "largest"]
    words = w.kernel.target.lanes(8 * sort_top_k.WORD)
    sort = Sorting(e, dtype_of(source), descending, length, count, reader.lanes, words)
    n, room = w.kernel.size(length), w.kernel.size(sort.room)
    k = e.least(w.kernel.size(count), n)
    scratch, bytes_ = _scratch(w, sort.bytes)

    def row(position: list[Index]) -> None:
        if value.op == "top_k":
            reader.require(e.let(f"icmp sle i64 {w.kernel.size(count)}, {n}"), 1)
        if not isinstance(n, int) or n > sort_top_k.MOST:
            reader.require(e.let(f"icmp sle i64 {n}, {sort_top_k.MOST}"), 1)

        def at(index: Index) -> tuple[Index, ...]:
            return (*position[:axis], index, *position[axis + 1 :])

        def read(first: str, mask: str | None) -> str:
            with masked(reader, mask):
                return reader.vector(source, at(Index(first, 1, reader.lanes)))

        def write(index: Index) -> None:
            reader.bind(value, bound_at(value, at(index), Element(sort.index(str(index.base)), False)))
            stored(reader, w.group.root, memory, at(index))

        sort.first(n, k, room, e.address(scratch, "i8", e.mul("%worker", bytes_)), read)
        over_vectors(reader, 0, k, k if isinstance(k, int) else None, write)

    return _over_costly_rows(w, shape_of(source), axis, row)


def _determinant(w: KernelWriter, value: Value) -> Size:
    source = value.operands[0]
    reader, e = w.reader, w.kernel.emitter
    memory = w.located(w.group.root)
    shape = shape_of(source)
    rank = len(shape)
    scratch, bytes_ = _scratch(w, determinant.scratch_bytes(shape[-1]))

    def matrix(position: list[Index]) -> None:
        def entry(i: str, j: str) -> str:
            with reader.inside():
                return reader.element(source, (*position[:-2], Index(i), Index(j))).name

        mine = e.address(scratch, "i8", e.mul("%worker", bytes_))
        element = load_store.register_type(dtype_of(source))
        result = determinant.determinant(e, w.kernel.size(shape[-1]), mine, element, entry)
        here = tuple(position[:-2])
        reader.bind(value, bound_at(value, here, Element(result, True)))
        stored(reader, w.group.root, memory, here)

    return _over_rows(w, shape, (rank - 2, rank - 1), False, matrix)


def _tables(value: Value) -> Stage:
    return Stage(value, fft.table_bytes(shape_of(value)[-1]))


def write_fourier_tables(w: KernelWriter, value: Value) -> Size:
    """Emit the kernel of the tables that all rows of an ``fft`` share; return the work items."""
    with w.kernel.emitter.loop("%first", "%last"):
        Fourier(w.kernel.emitter, w.kernel.size(shape_of(value)[-1]), w.pointer(_tables(value))).write_tables()
    return 1


def _fft(w: KernelWriter, value: Value) -> Size:
    source = value.operands[0]
    reader, e = w.reader, w.kernel.emitter
    memory = w.located(w.group.root)
    shape = shape_of(value)
    scratch, bytes_ = _scratch(w, fft.scratch_bytes(shape[-1]))
    tables = w.pointer(_tables(value))

    def row(position: list[Index]) -> None:
        def load(k: str) -> tuple[str, str]:
            with reader.inside():
                number = Vector(e, reader.element(source, (*position[:-1], Index(k))).name, "i64", 1)
            parts = [number.to("trunc", "i32"), number.lshr(32).to("trunc", "i32")]
            re, im = (part.number().to("fpext", "double").name for part in parts)
            return re, im

        def store(k: str, re: str, im: str) -> None:
            parts = [Vector(e, name, "double", 1).to("fptrunc", "float").bits().to("zext", "i64") for name in (re, im)]
            here = (*position[:-1], Index(k))
            with reader.inside():
                reader.bind(value, bound_at(value, here, Element((parts[0] | (parts[1] << 32)).name, True)))
                stored(reader, w.group.root, memory, here)

        mine = e.address(scratch, "i8", e.mul("%worker", bytes_))
        transform = Fourier(e, w.kernel.size(shape[-1]), tables)
        transform.transform(mine, value.params["inverse"], load, store)

    return _over_rows(w, shape, (len(shape) - 1,), False, row)


def _scratch(w: KernelWriter, bytes_: Size) -> tuple[str, str | int]:
    """Return scratch memory for all workers, and the bytes of one worker."""
    rounded = -(-bytes_ // 64) * 64 if isinstance(bytes_, int) else (bytes_ + 63) // 64 * 64
    return w.pointer(Scratch(rounded)), w.kernel.size(rounded)


def _over_rows(
    w: KernelWriter, shape: Sequence[Size], axes: tuple[int, ...], lane: bool, body: Callable[[list[Index]], None]
) -> Size:
    """Write the nest over all axes except the axes of a row."""
    loops = nest_axes(shape, [axis for axis in range(len(shape)) if axis not in axes], lambda a, b: False)
    work = math.prod(shape[axis] for axis in axes)
    return work_items(w.reader, loops, len(shape), work, lane, body)


def _over_costly_rows(w: KernelWriter, shape: Sequence[Size], axis: int, body: Callable[[list[Index]], None]) -> Size:
    """Write the nest over all axes except the sorted axis.

    Sorting makes a row costly, so a work item has fewer rows than elsewhere.
    """
    e = w.kernel.emitter
    others = [other for other in range(len(shape)) if other != axis and shape[other] != 1]
    count = math.prod(shape[other] for other in others)
    rows = dim_max(floor_div(CHUNK, dim_max(shape[axis] * _SORT_COST, 1)), 1)
    total, step = w.kernel.size(count), w.kernel.size(rows)
    with e.loop("%first", "%last") as item:
        begin = e.mul(item, step)
        with e.loop(begin, e.least(e.add(begin, step), total)) as row, w.reader.inside():
            position = [ORIGIN] * len(shape)
            at: str | int = row
            for other in reversed(others):
                size = w.kernel.size(shape[other])
                position[other] = Index(at if other == others[0] else e.rem(at, size))
                at = at if other == others[0] else e.div(at, size)
            body(position)
    return ceil_div(count, rows)


_LOWERINGS: dict[str, Callable[[KernelWriter, Value], Size]] = {
    "scan": _scan,
    "sort": _sort,
    "top_k": _sort,
    "determinant": _determinant,
    "fft": _fft,
}
