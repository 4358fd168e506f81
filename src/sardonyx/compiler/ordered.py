"""What takes a row as a whole: cumulative reductions, sorts, determinants, transforms. Each row is one worker's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sardonyx.compiler import storage
from sardonyx.compiler.emitter import vector
from sardonyx.compiler.kernels import determinant, fourier, sorting
from sardonyx.compiler.kernels.fourier import Fourier
from sardonyx.compiler.kernels.kernel import Index
from sardonyx.compiler.launch import Scratch, Stage
from sardonyx.compiler.loops import bound_at, combining, identity, nest_axes, stored, work_items
from sardonyx.compiler.reader import Element, dtype_of
from sardonyx.compiler.vectors import Vector
from sardonyx.compiler.views import shape_of
from sardonyx.compiler.writing import Writing
from sardonyx.core import types as t
from sardonyx.core.dim import Size
from sardonyx.core.graph import Value

FEW = 32
"""Most elements that are chosen one by one; for more of them the row is sorted."""


def ordered(writing: Writing, value: Value) -> Size:
    """Write the kernel of a ``scan``, ``sort``, ``top_k``, ``determinant`` or ``fft``; returns its work items."""
    return _WAYS[value.op](writing, value)


def lanes_for(value: Value, lanes: int) -> int:
    """The lanes of the kernel: those of a vector where rows lie side by side and are walked together."""
    return lanes if value.op == "scan" and value.params["axis"] != len(shape_of(value)) - 1 else 1


def _scan(w: Writing, value: Value) -> Size:
    source, axis, kind = value.operands[0], value.params["axis"], value.params["kind"]
    reader, e, dtype = w.reader, w.kernel.emitter, dtype_of(value)
    memory = w.located(w.group.root)
    count = w.kernel.size(shape_of(value)[axis])

    def row(place: list[Index]) -> None:
        start = storage.constant(dtype, identity(kind, dtype), reader.lanes)
        total = e.variable(vector(reader.lanes, storage.register_type(dtype)), start)
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
    length = shape_of(source)[axis]
    n, k = w.kernel.size(length), w.kernel.size(shape_of(value)[axis])
    few = k if value.op == "top_k" and isinstance(k, int) and 1 <= k <= FEW else None
    scratch, bytes_ = _scratch(w, sorting.scratch_bytes(few or length))
    descending = value.params["descending" if value.op == "sort" else "largest"]

    def row(place: list[Index]) -> None:
        if value.op == "top_k":
            reader.require(e.let(f"icmp sle i64 {k}, {n}"), 1)

        def key(i: str) -> str:
            with reader.inside():
                return reader.element(source, (*place[:axis], Index(i), *place[axis + 1 :])).name

        mine = e.address(scratch, "i8", e.mul("%worker", bytes_))
        dtype = dtype_of(source)
        if few:
            indices = sorting.first_of_row(e, n, few, mine, dtype, descending, key)
        else:
            indices = sorting.sort_row(e, n, mine, dtype, descending, key)
        with e.loop(0, e.least(k, n)) as i, reader.inside():
            here = (*place[:axis], Index(i), *place[axis + 1 :])
            found = storage.load(e, t.INT64, indices, Index(i), 1)
            reader.bind(value, bound_at(value, here, Element(found, True)))
            stored(reader, w.group.root, memory, here)

    return _rows(w, shape_of(source), (axis,), False, row)


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
        element = storage.register_type(dtype_of(source))
        found = determinant.determinant(e, w.kernel.size(shape[-1]), mine, element, entry)
        here = tuple(place[:-2])
        reader.bind(value, bound_at(value, here, Element(found, True)))
        stored(reader, w.group.root, memory, here)

    return _rows(w, shape, (rank - 2, rank - 1), False, matrix)


def _tables(value: Value) -> Stage:
    return Stage(value, fourier.table_bytes(shape_of(value)[-1]))


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
    scratch, bytes_ = _scratch(w, fourier.scratch_bytes(shape[-1]))
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


_WAYS: dict[str, Callable[[Writing, Value], Size]] = {
    "scan": _scan,
    "sort": _sort,
    "top_k": _sort,
    "determinant": _determinant,
    "fft": _fft,
}
