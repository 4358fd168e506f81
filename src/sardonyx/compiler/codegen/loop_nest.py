"""Loop nests: maps over all elements of a value, and rows with reductions inside.

A nest runs over the axes of a shape; neighbouring axes that every operand indexes alike are merged into one loop. Work
items are runs of rows of about equal work, divided by the sizes alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sardonyx.compiler.analysis.primitive_traits import EXTREMA, Rows, dtype_of
from sardonyx.compiler.analysis.strided_views import Memory
from sardonyx.compiler.codegen import elementwise, load_store
from sardonyx.compiler.codegen.arg_reduction import Extremum
from sardonyx.compiler.codegen.element_reader import Element, Reader
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.codegen.position_arithmetic import ORIGIN, Position
from sardonyx.compiler.llvm.ir_builder import vector
from sardonyx.core.dim import Size, ceil_div, dim_max, dim_min, floor_div
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

CHUNK = 8192
"""Approximate number of elements of a work item."""


@dataclass(frozen=True)
class Axis:
    """A loop of a nest.

    Attributes:
        axes: The merged axes of the shape.
        size: Number of steps.
        block: The channels of one step in a loop over blocks of channels; else 0.
    """

    axes: tuple[int, ...]
    size: Size
    block: int = 0


def nest_axes(shape: Sequence[Size], axes: Sequence[int], together: Callable[[int, int], bool]) -> list[Axis]:
    """Return the loops over some axes of a shape.

    Neighbouring axes for which ``together`` returns True are one loop. Axes of size 1 are omitted.
    """
    loops: list[Axis] = []
    for axis in axes:
        if shape[axis] == 1:
            continue
        if loops and loops[-1].axes[-1] == axis - 1 and together(axis - 1, axis):
            loops[-1] = Axis((*loops[-1].axes, axis), loops[-1].size * shape[axis])
        else:
            loops.append(Axis((axis,), shape[axis]))
    return loops


def put(position: list[Index], axis: Axis, index: Index) -> None:
    """Set the index of a loop in a position: the innermost of the merged axes carries the index."""
    position[axis.axes[-1]] = index


@contextmanager
def masked(reader: Reader, mask: str | None) -> Iterator[None]:
    """Restrict reads and writes to the lanes of a mask; elements read inside are not reused afterwards."""
    around, reader.mask = reader.mask, mask
    with reader.inside():
        yield
    reader.mask = around


def channel_mask(reader: Reader, channels: Size, first: str | int) -> str | None:
    """Return the mask of the channels of a block that exist; None if all blocks are full."""
    block, e = reader.lanes, reader.kernel.emitter
    if isinstance(channels, int) and channels % block == 0:
        return None
    return e.lanes_below(e.least(e.sub(reader.kernel.size(channels), first), block), block)


def over_vectors(
    reader: Reader, start: str | int, end: str | int, known: Size | None, body: Callable[[Index], None],
    again: bool = False,
) -> None:  # fmt: skip
    """Write a loop over an axis by vectors; the last vector is masked, or overlaps the previous vector.

    The remainder of a loop over wide vectors is a loop over narrower vectors.

    Args:
        reader: Reader of the body; its mask is set.
        start: The first position, a multiple of the lanes.
        end: The position after the last.
        known: The number of positions if constant.
        body: Written for a whole vector, and for the remainder.
        again: True if a position may be computed twice.
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
    again: bool = False, before: Callable[[list[Index]], None] | None = None, chunk: int = CHUNK,
) -> Size:  # fmt: skip
    """Write the nest of a kernel over its work items.

    Args:
        reader: Reader of the body.
        loops: The loops, outermost first.
        rank: Axes of the shape.
        work: Cost of one step of the innermost loop, in elements.
        lane: True if the innermost loop runs by vectors.
        body: Written inside, for a position.
        again: True if a position may be computed twice.
        before: Written before an innermost loop by vectors, for a position along the other axes.
        chunk: Approximate cost of a work item, in elements.

    Returns:
        The number of work items.
    """
    e = reader.kernel.emitter
    kernel = reader.kernel
    if not loops:
        position = [ORIGIN] * rank
        with e.loop("%first", "%last"), reader.inside():
            body(position)
        return 1
    *outer, inner = loops
    if not outer:
        step = max(chunk // work, 1) if isinstance(work, int) and work else 64
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
    if not isinstance(inner.size, int):
        count = count * dim_min(1, inner.size)  # A huge number of empty rows is no work.
    rows = dim_max(floor_div(chunk, dim_max(inner.size * work, 1)), 1)
    total, per_item = kernel.size(count), kernel.size(rows)
    with e.loop("%first", "%last") as item:
        begin = e.mul(item, per_item)
        with e.loop(begin, e.least(e.add(begin, per_item), total)) as row, reader.inside():
            position = [ORIGIN] * rank
            at: str | int = row
            for axis in reversed(outer[1:]):
                size = kernel.size(axis.size)
                _step(e_index=e.rem(at, size), axis=axis, position=position, reader=reader)
                at = e.div(at, size)
            _step(e_index=at, axis=outer[0], position=position, reader=reader)
            _innermost(reader, inner, 0, kernel.size(inner.size), inner.size, lane, position, body, again, before)
    return ceil_div(count, rows)


def _sizes(reader: Reader, size: Size, step: int, start: str | int, lane: bool) -> Iterator[int | None]:
    """Yield the step count of a work item if known.

    With wide vectors, the last work item of a partial size is a branch of its own.
    """
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


def _step(e_index: str | int, axis: Axis, position: list[Index], reader: Reader) -> None:
    if axis.block:
        base = reader.kernel.emitter.mul(e_index, axis.block)
        put(position, axis, Index(base, 1, axis.block))
    else:
        put(position, axis, Index(e_index))


def _innermost(
    reader: Reader,
    inner: Axis,
    start: str | int,
    end: str | int,
    known: Size | None,
    lane: bool,
    position: list[Index],
    body: Callable[[list[Index]], None],
    again: bool,
    before: Callable[[list[Index]], None] | None,
) -> None:
    def at(index: Index) -> None:
        here = list(position)
        put(here, inner, index)
        body(here)

    if lane:
        if before is not None:
            before(position)
        over_vectors(reader, start, end, known, at, again)
        return
    with reader.kernel.emitter.loop(start, end) as i, reader.inside():
        here = list(position)
        _step(i, inner, here, reader)
        body(here)


# Reductions.


def across(reader: Reader, kind: str, dtype: t.DType, name: str, params: Mapping[str, Any] | None = None) -> str:
    """Reduce the lanes of a vector to one number, pairwise."""
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
        name = elementwise.emit(e, elementwise.combining(kind, dtype), [dtype, dtype], [low, high], half, params)
        lanes = half
    return name


def merge_row_axes(rows: Rows, together: Callable[[int, int], bool], channels: int) -> tuple[list[Axis], list[Axis]]:
    """Return the loops over the rows, outermost first, and the loops over the elements of a row.

    Args:
        rows: The common shape and axes of the reductions.
        together: Returns True if all operands index two neighbouring axes of the shape alike.
        channels: Channels of a block if lanes are channels of a blocked image, which may be reduced; else 0.
    """
    outer_axes = [axis for axis in range(len(rows.shape)) if axis not in rows.axes]
    inner = nest_axes(rows.shape, rows.axes, together)
    if not channels:
        return nest_axes(rows.shape, outer_axes, together), inner
    if 1 in rows.axes:
        blocks = Axis((1,), ceil_div(rows.shape[1], channels), channels)
        spatial = nest_axes(rows.shape, [axis for axis in rows.axes if axis > 1], together)
        batch = nest_axes(rows.shape, [axis for axis in rows.axes if axis < 1], together)
        return nest_axes(rows.shape, outer_axes, together), [*batch, blocks, *spatial]
    outer = [
        Axis((1,), ceil_div(rows.shape[1], channels), channels) if axis == 1 else Axis((axis,), rows.shape[axis])
        for axis in outer_axes
    ]
    # Blocks of channels are innermost: the lanes of a vector share the position along all other axes.
    outer.sort(key=lambda axis: axis.block)
    return outer, inner


class RowNest:
    """The loops of a row-by-row kernel.

    Args:
        reader: Reader of the kernel.
        rows: The common shape and axes of the reductions.
        outer: The loops over the rows.
        inner: The loops over the elements of a row.
        lane_is_reduced: True if lanes are elements of a row: along its last axis, or channels of a blocked image.
        lane_is_kept: True if lanes are adjacent rows.
        chains: Vectors of independent partial results of a reduction.
        additions: Steps after which partial results are added to the total.
        chunk: Approximate number of elements of a work item.
        without_sign: Extrema whose readers give the same results for zeros of both signs.
    """

    def __init__(
        self, reader: Reader, rows: Rows, outer: Sequence[Axis], inner: Sequence[Axis], *,
        lane_is_reduced: bool, lane_is_kept: bool, chains: int, additions: int, chunk: int,
        without_sign: Collection[Value],
    ) -> None:  # fmt: skip
        self.reader = reader
        self.rows = rows
        self.outer, self.inner = outer, inner
        self.lane_is_reduced, self.lane_is_kept = lane_is_reduced, lane_is_kept
        self._chains, self._additions, self._chunk = chains, additions, chunk
        self.without_sign = without_sign

    @property
    def slots(self) -> int:
        """Number of concurrent partial results: a wide vector is several dependency chains by itself."""
        vectors = max(1, self.reader.lanes // self.reader.kernel.target.lanes(32))
        return max(1, self._chains // vectors)

    def items(self, body: Callable[[list[Index]], None]) -> Size:
        """Write the loops over rows around the body, and return the number of work items.

        The body receives the position of a row.
        """
        work = math.prod(axis.size for axis in self.inner)
        return work_items(
            self.reader, self.outer, len(self.rows.shape), work, self.lane_is_kept, body, chunk=self._chunk
        )

    def elements(self, row: Sequence[Index], body: Callable[[list[Index]], None]) -> None:
        """Write the loops over the elements of a row around the body."""
        self._inner(list(row), 0, lambda position, slot: body(position), None)

    def sums(self, row: Sequence[Index], body: Callable[[list[Index], int], None], gather: Callable[[], None]) -> None:
        """Write the loops over the elements of a row in runs, so that rounding errors of sums stay small.

        Args:
            row: The position of the row.
            body: Written for a position, and for one of :attr:`slots` independent partial results.
            gather: Written after each run: adds the partial results to the total.
        """
        if not self.inner:
            body(list(row), 0)
            gather()
            return
        self._inner(list(row), 0, body, gather)

    def _inner(
        self,
        position: list[Index],
        depth: int,
        body: Callable[[list[Index], int], None],
        gather: Callable[[], None] | None,
    ) -> None:
        if depth == len(self.inner):
            body(position, 0)
            if gather is not None:
                gather()
            return
        axis = self.inner[depth]
        e = self.reader.kernel.emitter
        size = self.reader.kernel.size(axis.size)
        if axis.block:
            with e.loop(0, size) as i, masked(self.reader, None):
                here = list(position)
                _step(i, axis, here, self.reader)
                with masked(self.reader, channel_mask(self.reader, self.rows.shape[1], here[1].base)):
                    self._inner(here, depth + 1, body, gather)
            return

        def at(index: Index, slot: int) -> None:
            here = list(position)
            put(here, axis, index)
            if depth == len(self.inner) - 1:
                body(here, slot)
            else:
                self._inner(here, depth + 1, body, gather)

        if depth < len(self.inner) - 1:
            with e.loop(0, size) as i, self.reader.inside():
                at(Index(i), 0)
            return
        in_blocks = any(loop.block for loop in self.inner)
        lanes = self.reader.lanes if self.lane_is_reduced and not in_blocks else 1
        if gather is None:
            self._steps(0, size, axis.size, lanes, 1, at)
            return
        run = self._additions * lanes * self.slots
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
        """Write the innermost loop: several steps per iteration, then the remaining steps one by one."""
        reader = self.reader
        e = reader.kernel.emitter
        if slots > 1 and not (isinstance(known, int) and known < slots * lanes):
            count = e.sub(end, start)
            whole = e.sub(end, e.rem(count, slots * lanes))
            # Lanes that are rows keep their mask: a lane after the last row exists in no step.
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

    def result_position(self, position: Sequence[Index]) -> Position:
        """Return the position in a reduction's result of the row at a position."""
        return tuple(index for axis, index in enumerate(position) if axis not in self.rows.axes)


def reduce_row(nest: RowNest, row: list[Index], values: Sequence[Value]) -> None:
    """Write the loop that computes reductions of a row, and bind their results.

    Sums are computed in runs: the error grows with the length of a run and the number of runs, not with the number of
    elements.
    """
    reader = nest.reader
    totals = [_Extremum(nest, value) if value.params["kind"] in EXTREMA else _Total(nest, value) for value in values]

    def step(position: list[Index], slot: int) -> None:
        for total in totals:
            total.step(position, slot)

    def gather() -> None:
        for total in totals:
            total.gather()

    nest.sums(row, step, gather)
    here = nest.result_position(row)
    for value, total in zip(values, totals, strict=True):
        reader.bind(value, bound_at(value, here, Element(total.result(), nest.lane_is_reduced or reader.lanes == 1)))


class _Total:
    """A reduction of a row during the loop over its elements.

    Args:
        nest: The loops.
        value: The ``reduce``.
    """

    def __init__(self, nest: RowNest, value: Value) -> None:
        self.nest = nest
        self.source = value.operands[0]
        self.kind = value.params["kind"]
        self.dtype = dtype_of(self.source)
        self.params = elementwise.ANY_ZERO if value in nest.without_sign else None
        reader = nest.reader
        self.start = load_store.constant(self.dtype, elementwise.identity(self.kind, self.dtype), reader.lanes)
        self.type = vector(reader.lanes, load_store.register_type(self.dtype))
        e = reader.kernel.emitter
        self.total = e.variable(self.type, self.start)
        self.parts = [e.variable(self.type, self.start) for _ in range(nest.slots)]

    def step(self, position: list[Index], slot: int) -> None:
        """Accumulate the element at a position in a partial result."""
        reader, part = self.nest.reader, self.parts[slot]
        element = reader.vector(self.source, tuple(position))
        if reader.mask is not None and self.nest.lane_is_reduced:
            mask = vector(reader.lanes, "i1")
            element = reader.kernel.emitter.let(
                f"select {mask} {reader.mask}, {self.type} {element}, {self.type} {self.start}"
            )
        part.set(self._combine(part.get(), element))

    def gather(self) -> None:
        """Add the partial results to the total, and reset the partial results."""
        partials = [part.get() for part in self.parts]
        while len(partials) > 1:
            partials = [self._combine(partials[i], partials[i + 1]) for i in range(0, len(partials), 2)]
        self.total.set(self._combine(self.total.get(), partials[0]))
        for part in self.parts:
            part.set(self.start)

    def _combine(self, a: str, b: str) -> str:
        return self.nest.reader.compute(
            elementwise.combining(self.kind, self.dtype), [self.dtype, self.dtype], [a, b], False, self.params
        )

    def result(self) -> str:
        """Return the reduction of all accumulated elements."""
        name = self.total.get()
        if not self.nest.lane_is_reduced:
            return name
        return across(self.nest.reader, self.kind, self.dtype, name, self.params)


class _Extremum:
    """The index of the greatest or least element of a row during the loop over its elements.

    Args:
        nest: The loops.
        value: The ``reduce``.
    """

    def __init__(self, nest: RowNest, value: Value) -> None:
        self.nest = nest
        self.source = value.operands[0]
        (self.axis,) = value.params["axes"]
        reader = nest.reader
        count = nest.rows.shape[self.axis]
        kind, dtype = value.params["kind"], dtype_of(self.source)
        self.extremum = Extremum(reader, kind, dtype, reader.lanes, count, nest.slots)
        size = reader.kernel.size(count)
        if not isinstance(size, int):
            reader.require(reader.kernel.emitter.let(f"icmp ne i64 {size}, 0"), 1)

    def gather(self) -> None:
        """Do nothing: the partial results are merged at the end."""

    def step(self, position: list[Index], slot: int) -> None:
        """Accumulate the element at a position in a partial result, in ascending order of the index."""
        reader = self.nest.reader
        mask = reader.mask if self.nest.lane_is_reduced else None
        self.extremum.take(
            reader.vector(self.source, tuple(position)), reader.lanes_of(position[self.axis]), mask, slot
        )

    def result(self) -> str:
        """Return the index of the first extremum."""
        return self.extremum.first() if self.nest.lane_is_reduced else self.extremum.indices()


class Unfusable(Exception):
    """Signal that a value computed by a kernel is read at another position: the value must be in memory.

    Args:
        value: The value.
    """

    def __init__(self, value: Value) -> None:
        super().__init__(f"{value.op} is read at other positions")
        self.value = value


def bound_at(value: Value, position: Position, element: Element) -> Callable[[Position], Element]:
    """Return a reader of a value that is known at one position only."""

    def at(requested: Position) -> Element:
        if requested != position:
            raise Unfusable(value)
        return element

    return at


def stored(reader: Reader, root: Value, memory: Memory, position: Position) -> None:
    """Compute an element of a root and store the element."""
    reader.store(memory, position, reader.element(root, position))
