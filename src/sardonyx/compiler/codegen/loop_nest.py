"""Loop nests: maps over all elements of a value, and rows with reductions inside.

A nest runs over the axes of a shape; axes that every operand walks alike are one loop. Work items are runs of rows of
about equal work, cut by the sizes alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from sardonyx.compiler.analysis.primitive_traits import EXTREMA, Rows, dtype_of
from sardonyx.compiler.analysis.strided_views import Memory
from sardonyx.compiler.codegen import elementwise, load_store
from sardonyx.compiler.codegen.arg_reduction import Extremum
from sardonyx.compiler.codegen.element_reader import ORIGIN, Element, Place, Reader
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.llvm.ir_builder import vector
from sardonyx.core.dim import Size, ceil_div, dim_max, floor_div
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

CHUNK = 8192
"""Elements that a work item has about."""

RUN = 256
"""Steps that a reduction takes before its parts are put to the whole."""

SLOTS = 4
"""Parts of a reduction that are computed side by side: an addition takes as many cycles."""


@dataclass(frozen=True)
class Axis:
    """A loop of a nest.

    Attributes:
        axes: The axes of the shape that it runs over, as one.
        size: How many steps.
        block: The channels of a step, where it runs over blocks of channels; else 0.
    """

    axes: tuple[int, ...]
    size: Size
    block: int = 0


def nest_axes(shape: Sequence[Size], axes: Sequence[int], together: Callable[[int, int], bool]) -> list[Axis]:
    """The loops over some axes of a shape: neighbours that can be walked together are one, those of size 1 none."""
    found: list[Axis] = []
    for axis in axes:
        if shape[axis] == 1:
            continue
        if found and found[-1].axes[-1] == axis - 1 and together(axis - 1, axis):
            found[-1] = Axis((*found[-1].axes, axis), found[-1].size * shape[axis])
        else:
            found.append(Axis((axis,), shape[axis]))
    return found


def put(place: list[Index], axis: Axis, index: Index) -> None:
    """Set the places of the axes that a loop runs over: the innermost of them counts for all."""
    place[axis.axes[-1]] = index


@contextmanager
def masked(reader: Reader, mask: str | None) -> Iterator[None]:
    """Read and write only the lanes of a mask, and forget what was read."""
    around, reader.mask = reader.mask, mask
    with reader.inside():
        yield
    reader.mask = around


def over_vectors(
    reader: Reader, start: str | int, end: str | int, known: Size | None, body: Callable[[Index], None],
    again: bool = False,
) -> None:  # fmt: skip
    """Run over an axis a vector at a time; the last one is masked, or begins before the end of the one before.

    Behind wide vectors there are narrower ones.

    Args:
        reader: Reads in the body; its mask is set.
        start: The first place, a multiple of the lanes.
        end: The place after the last.
        known: How many there are, where that is a number.
        body: Written for a whole vector, and for the rest.
        again: Whether the same places may be gone over twice.
    """
    e, lanes = reader.kernel.emitter, reader.lanes
    if lanes == 1:
        with e.loop(start, end) as i, reader.inside():
            body(Index(i))
        return
    count = e.sub(end, start)
    rest: str | int = known % lanes if isinstance(known, int) else e.let(f"and i64 {count}, {lanes - 1}")
    whole = e.sub(end, rest)
    if not isinstance(known, int) or known >= lanes:
        with e.loop(start, whole, lanes) as i, masked(reader, None):
            body(Index(i, 1, lanes))
    narrower = reader.kernel.target.lanes(32)
    if lanes > narrower and not (isinstance(rest, int) and rest <= narrower):
        while isinstance(rest, int) and narrower * 2 <= rest:
            narrower *= 2
        reader.lanes = narrower
        over_vectors(reader, whole, end, rest if isinstance(rest, int) else None, body, again)
        reader.lanes = lanes
        return
    if rest == 0:
        return
    if again and isinstance(known, int) and known > lanes and not reader.kernel.target.has_masks:
        with reader.inside():
            body(Index(e.sub(end, lanes), 1, math.gcd(known, lanes)))
        return
    some = "true" if isinstance(rest, int) else e.let(f"icmp ne i64 {rest}, 0")
    with e.when(some), masked(reader, e.lanes_below(rest, lanes)):
        body(Index(whole, 1, lanes))


def work_items(
    reader: Reader, loops: Sequence[Axis], rank: int, work: Size, lane: bool, body: Callable[[list[Index]], None],
    again: bool = False, before: Callable[[list[Index]], None] | None = None,
) -> Size:  # fmt: skip
    """Write the nest of a kernel over its work items.

    Args:
        reader: Reads in the body.
        loops: The loops, outermost first.
        rank: Axes of the shape.
        work: Elements that one step of the innermost loop is worth.
        lane: Whether the innermost loop goes by vectors.
        body: Written inside, for a place.
        again: Whether the same places may be gone over twice.
        before: Written before an innermost loop by vectors, for a place along the others.

    Returns:
        How many work items there are.
    """
    e = reader.kernel.emitter
    kernel = reader.kernel
    if not loops:
        place = [ORIGIN] * rank
        with e.loop("%first", "%last"), reader.inside():
            body(place)
        return 1
    *outer, inner = loops
    if not outer:
        step = max(CHUNK // work, 1) if isinstance(work, int) and work else 64
        if lane:  # Whole vectors.
            step = -(-step // 64) * 64
        size = kernel.size(inner.size)
        with e.loop("%first", "%last") as item:
            start = e.mul(item, step)
            end = e.least(e.add(start, step), size)
            for known in _sizes(reader, inner.size, step, start, lane):
                _innermost(reader, inner, start, end, known, lane, [ORIGIN] * rank, body, again, before)
        return ceil_div(inner.size, step)
    count = math.prod(axis.size for axis in outer)
    rows = dim_max(floor_div(CHUNK, dim_max(inner.size * work, 1)), 1)
    total, each = kernel.size(count), kernel.size(rows)
    with e.loop("%first", "%last") as item:
        begin = e.mul(item, each)
        with e.loop(begin, e.least(e.add(begin, each), total)) as row, reader.inside():
            place = [ORIGIN] * rank
            at: str | int = row
            for axis in reversed(outer[1:]):
                size = kernel.size(axis.size)
                _step(e_index=e.rem(at, size), axis=axis, place=place, reader=reader)
                at = e.div(at, size)
            _step(e_index=at, axis=outer[0], place=place, reader=reader)
            _innermost(reader, inner, 0, kernel.size(inner.size), inner.size, lane, place, body, again, before)
    return ceil_div(count, rows)


def _sizes(reader: Reader, size: Size, step: int, start: str | int, lane: bool) -> Iterator[int | None]:
    """How many steps a work item has, where that is known; wide vectors have a way for the last one of its own."""
    if not isinstance(size, int) or size <= step:
        yield size if isinstance(size, int) else None
    elif size % step == 0:
        yield step
    elif not lane or reader.lanes <= reader.kernel.target.lanes(32):
        yield None
    else:
        e = reader.kernel.emitter
        with e.either(e.let(f"icmp slt i64 {start}, {size - size % step}")) as branches:
            for is_last, _ in enumerate(branches):
                yield size % step if is_last else step


def _step(e_index: str | int, axis: Axis, place: list[Index], reader: Reader) -> None:
    if axis.block:
        base = reader.kernel.emitter.mul(e_index, axis.block)
        put(place, axis, Index(base, 1, axis.block))
    else:
        put(place, axis, Index(e_index))


def _innermost(
    reader: Reader,
    inner: Axis,
    start: str | int,
    end: str | int,
    known: Size | None,
    lane: bool,
    place: list[Index],
    body: Callable[[list[Index]], None],
    again: bool,
    before: Callable[[list[Index]], None] | None,
) -> None:
    def at(index: Index) -> None:
        here = list(place)
        put(here, inner, index)
        body(here)

    if lane:
        if before is not None:
            before(place)
        over_vectors(reader, start, end, known, at, again)
        return
    with reader.kernel.emitter.loop(start, end) as i, reader.inside():
        here = list(place)
        _step(i, inner, here, reader)
        body(here)


# Reductions.


def across(reader: Reader, kind: str, dtype: t.DType, name: str) -> str:
    """The lanes of a vector put together, pairwise."""
    e = reader.kernel.emitter
    lanes, element = reader.lanes, load_store.register_type(dtype)
    while lanes > 1:
        half = lanes // 2
        type = vector(lanes, element)
        low, high = (
            e.let(
                f"shufflevector {type} {name}, {type} poison, <{half} x i32> "
                f"<{', '.join(f'i32 {first + lane}' for lane in range(half))}>"
            )
            for first in (0, half)
        )
        if half == 1:
            low, high = (e.let(f"extractelement <1 x {element}> {part}, i64 0") for part in (low, high))
        name = elementwise.emit(e, elementwise.combining(kind, dtype), [dtype, dtype], [low, high], half)
        lanes = half
    return name


class RowNest:
    """The places of a kernel that goes row by row.

    Args:
        reader: Reads in the kernel.
        rows: What the reductions share.
        together: Whether two neighbouring axes of it are walked alike by everything.
        channels: Channels in a block, where lanes are channels of a blocked image; else 0.
    """

    def __init__(self, reader: Reader, rows: Rows, together: Callable[[int, int], bool], channels: int) -> None:
        self.reader = reader
        self.rows = rows
        rank = len(rows.shape)
        kept = [axis for axis in range(rank) if axis not in rows.axes]
        self.inner = nest_axes(rows.shape, rows.axes, together)
        if channels:
            self.outer = [
                Axis((1,), ceil_div(rows.shape[1], channels), channels)
                if axis == 1
                else Axis((axis,), rows.shape[axis])
                for axis in kept
            ]
        else:
            self.outer = nest_axes(rows.shape, kept, together)
        wide = [axis for axis in range(rank) if rows.shape[axis] != 1]
        last = wide[-1] if wide else None
        if last is None:
            # There is one element: nothing to share out among lanes.
            reader.lanes = 1
        self.lane_is_reduced = not channels and last in rows.axes and not self._is_short()
        self.lane_is_kept = not channels and not self.lane_is_reduced and bool(self.outer)
        if channels:
            # Blocks of channels go last: a vector of them is at one place of all others.
            self.outer.sort(key=lambda axis: axis.block)

    def _is_short(self) -> bool:
        """Whether a row is known to be so short that lanes are of better use for rows side by side."""
        lanes, elements = self.reader.lanes, math.prod(axis.size for axis in self.inner)
        if not self.outer or not isinstance(elements, int) or elements > lanes // 2:
            return False
        beside = self.outer[-1].size
        return not isinstance(beside, int) or beside >= lanes

    @property
    def slots(self) -> int:
        """How many parts of a reduction are computed side by side: a wide vector is several chains by itself."""
        vectors = max(1, self.reader.lanes // self.reader.kernel.target.lanes(32))
        return max(1, SLOTS // vectors)

    def items(self, body: Callable[[list[Index]], None]) -> Size:
        """Write the loops over rows around the body, which is given the place of a row; returns the work items."""
        work = math.prod(axis.size for axis in self.inner)
        return work_items(self.reader, self.outer, len(self.rows.shape), work, self.lane_is_kept, body)

    def elements(self, row: Sequence[Index], body: Callable[[list[Index]], None]) -> None:
        """Write the loops over the elements of a row around the body."""
        self._inner(list(row), 0, lambda place, slot: body(place), None)

    def sums(self, row: Sequence[Index], body: Callable[[list[Index], int], None], gather: Callable[[], None]) -> None:
        """Write the loops over the elements of a row in runs, for sums that stay exact.

        Args:
            row: The place of the row.
            body: Written for a place, and for one of ``SLOTS`` parts that do not wait for each other.
            gather: Written after each run: it takes the parts together.
        """
        if not self.inner:
            body(list(row), 0)
            gather()
            return
        self._inner(list(row), 0, body, gather)

    def _inner(
        self,
        place: list[Index],
        depth: int,
        body: Callable[[list[Index], int], None],
        gather: Callable[[], None] | None,
    ) -> None:
        if depth == len(self.inner):
            body(place, 0)
            return
        axis = self.inner[depth]
        e = self.reader.kernel.emitter
        size = self.reader.kernel.size(axis.size)

        def at(index: Index, slot: int) -> None:
            here = list(place)
            put(here, axis, index)
            if depth == len(self.inner) - 1:
                body(here, slot)
            else:
                self._inner(here, depth + 1, body, gather)

        if depth < len(self.inner) - 1:
            with e.loop(0, size) as i, self.reader.inside():
                at(Index(i), 0)
            return
        lanes = self.reader.lanes if self.lane_is_reduced else 1
        if gather is None:
            self._steps(0, size, axis.size, lanes, 1, at)
            return
        run = RUN * lanes * self.slots // SLOTS
        if isinstance(axis.size, int) and axis.size <= run:
            self._steps(0, size, axis.size, lanes, self.slots, at)
            gather()
        else:
            with e.loop(0, size, run) as start, self.reader.inside():
                self._steps(start, e.least(e.add(start, run), size), None, lanes, self.slots, at)
                gather()

    def _steps(
        self, start: str | int, end: str | int, known: Size | None, lanes: int, slots: int,
        at: Callable[[Index, int], None],
    ) -> None:  # fmt: skip
        """The innermost loop: several steps at once while there are as many, then one by one."""
        reader = self.reader
        e = reader.kernel.emitter
        if slots > 1 and not (isinstance(known, int) and known < slots * lanes):
            count = e.sub(end, start)
            whole = e.sub(end, e.rem(count, slots * lanes))
            # Lanes that are rows keep their mask: those behind the last row do not exist in any step.
            with e.loop(start, whole, slots * lanes) as i, reader.inside():
                for slot in range(slots):
                    at(Index(e.add(i, slot * lanes), 1 if lanes > 1 else 0, lanes), slot)
            start = whole
            known = known % (slots * lanes) if isinstance(known, int) else None
        if known == 0:
            return
        if lanes > 1:
            over_vectors(reader, start, end, known, lambda index: at(index, 0))
            return
        with e.loop(start, end) as i, reader.inside():
            at(Index(i), 0)

    def kept(self, place: Sequence[Index]) -> Place:
        """The place of a row in what its reductions give."""
        return tuple(index for axis, index in enumerate(place) if axis not in self.rows.axes)


def reduce_row(nest: RowNest, row: list[Index], values: Sequence[Value]) -> None:
    """Write the loop that computes reductions of a row, and bind them.

    Sums are made of runs: the error of one grows with the elements of a run and the number of runs, not of elements.
    """
    reader = nest.reader
    totals = [_Extremum(nest, value) if value.params["kind"] in EXTREMA else _Total(nest, value) for value in values]

    def step(place: list[Index], slot: int) -> None:
        for total in totals:
            total.step(place, slot)

    def gather() -> None:
        for total in totals:
            total.gather()

    nest.sums(row, step, gather)
    here = nest.kept(row)
    for value, total in zip(values, totals, strict=True):
        reader.bind(value, bound_at(value, here, Element(total.result(), nest.lane_is_reduced or reader.lanes == 1)))


class _Total:
    """A reduction of a row while its elements come.

    Args:
        nest: The places.
        value: The ``reduce``.
    """

    def __init__(self, nest: RowNest, value: Value) -> None:
        self.nest = nest
        self.source = value.operands[0]
        self.kind = value.params["kind"]
        self.dtype = dtype_of(self.source)
        reader = nest.reader
        self.start = load_store.constant(self.dtype, elementwise.identity(self.kind, self.dtype), reader.lanes)
        self.type = vector(reader.lanes, load_store.register_type(self.dtype))
        e = reader.kernel.emitter
        self.total = e.variable(self.type, self.start)
        self.parts = [e.variable(self.type, self.start) for _ in range(nest.slots)]

    def step(self, place: list[Index], slot: int) -> None:
        """Take the element at a place into a part."""
        reader, part = self.nest.reader, self.parts[slot]
        found = reader.vector(self.source, tuple(place))
        if reader.mask is not None and self.nest.lane_is_reduced:
            mask = vector(reader.lanes, "i1")
            found = reader.kernel.emitter.let(
                f"select {mask} {reader.mask}, {self.type} {found}, {self.type} {self.start}"
            )
        part.set(self._combined(part.get(), found))

    def gather(self) -> None:
        """Put the parts to the whole, and begin them again."""
        found = [part.get() for part in self.parts]
        while len(found) > 1:
            found = [self._combined(found[i], found[i + 1]) for i in range(0, len(found), 2)]
        self.total.set(self._combined(self.total.get(), found[0]))
        for part in self.parts:
            part.set(self.start)

    def _combined(self, a: str, b: str) -> str:
        return self.nest.reader.compute(
            elementwise.combining(self.kind, self.dtype), [self.dtype, self.dtype], [a, b], False
        )

    def result(self) -> str:
        """The reduction of all that was taken."""
        name = self.total.get()
        return across(self.nest.reader, self.kind, self.dtype, name) if self.nest.lane_is_reduced else name


class _Extremum:
    """Where the greatest or least element of a row is, while its elements come.

    Args:
        nest: The places.
        value: The ``reduce``.
    """

    def __init__(self, nest: RowNest, value: Value) -> None:
        self.nest = nest
        self.source = value.operands[0]
        (self.axis,) = value.params["axes"]
        reader = nest.reader
        count = nest.rows.shape[self.axis]
        kind, dtype = value.params["kind"], dtype_of(self.source)
        self.found = Extremum(reader, kind, dtype, reader.lanes, count, nest.slots)
        size = reader.kernel.size(count)
        if not isinstance(size, int):
            reader.require(reader.kernel.emitter.let(f"icmp ne i64 {size}, 0"), 1)

    def gather(self) -> None:
        """Nothing: parts are kept to the end."""

    def step(self, place: list[Index], slot: int) -> None:
        """Take the element at a place into a part; those of each part come in order."""
        reader = self.nest.reader
        mask = reader.mask if self.nest.lane_is_reduced else None
        self.found.take(reader.vector(self.source, tuple(place)), reader.lanes_of(place[self.axis]), mask, slot)

    def result(self) -> str:
        """The index of the first."""
        return self.found.first() if self.nest.lane_is_reduced else self.found.indices()


class Unfusable(Exception):
    """A value that a kernel computes is wanted elsewhere than where it is computed: it must be in memory.

    Args:
        value: The value.
    """

    def __init__(self, value: Value) -> None:
        super().__init__(f"{value.op} is read at other places")
        self.value = value


def bound_at(value: Value, place: Place, found: Element) -> Callable[[Place], Element]:
    """A value that is known at one place only."""

    def at(wanted: Place) -> Element:
        if wanted != place:
            raise Unfusable(value)
        return found

    return at


def stored(reader: Reader, root: Value, memory: Memory, place: Place) -> None:
    """Compute an element of a root and write it."""
    reader.store(memory, place, reader.element(root, place))
