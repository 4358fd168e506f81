"""Passes over a row: hoisting of values constant along the row, and reuse of costly elements.

A row-by-row kernel passes over a row once for each reduction that depends on another, and once for the result. Values
constant along the row, e.g. the logarithm of a sum, are computed before the loops of a pass. A costly element used by
several passes, e.g. the exponential of a softmax, is computed in the first pass and stored in scratch memory; the
schedule (:mod:`sardonyx.compiler.tiling.rows`) says from which cost on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from sardonyx.compiler.analysis.primitive_traits import Rows, dtype_of, is_elementwise
from sardonyx.compiler.analysis.strided_views import Memory, shape_of
from sardonyx.compiler.codegen.element_reader import Element
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.codegen.loop_nest import RowNest
from sardonyx.compiler.codegen.position_arithmetic import ORIGIN, Position
from sardonyx.compiler.lower.context import KernelWriter
from sardonyx.compiler.lower.launch import Scratch
from sardonyx.compiler.schedule.groups import operations
from sardonyx.core.dim import Size, ceil_div
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

_LINE = 64


class RowPasses:
    """The passes of a row-by-row kernel, emitted one after the other.

    Args:
        w: The kernel.
        nest: The loops over the rows.
        rows: The common shape and axes of the reductions.
        passes: The values whose elements each pass reads, of shape ``rows.shape``.
        stored: The values whose elements are stored in scratch memory, each with the pass that stores the elements.
    """

    def __init__(
        self, w: KernelWriter, nest: RowNest, rows: Rows, passes: Sequence[Sequence[Value]], stored: Mapping[Value, int]
    ) -> None:
        self._w, self._nest, self._rows, self._passes = w, nest, rows, passes
        self._first = stored
        self._memories = self._allocate()

    def begin(self, number: int, row: Sequence[Index]) -> None:
        """Prepare a pass over a row, before its loops."""
        reader = self._w.reader
        position = tuple(ORIGIN if axis in self._rows.axes else index for axis, index in enumerate(row))
        for value in self._passes[number]:
            self._compute_row_constants(value, position)
        for value, first in self._first.items():
            if number >= first:
                reader.bind(value, self._compute_and_store(value) if number == first else self._load(value))

    def _compute_row_constants(self, value: Value, position: Position) -> None:
        """Compute the operands that are constant along the row."""
        if value in self._first:
            return
        if value.op == "broadcast" and t.is_float(dtype_of(value)):
            self._w.reader.element(value, position)
        elif value in self._w.group.members and is_elementwise(value):
            for operand in value.operands:
                self._compute_row_constants(operand, position)

    def _allocate(self) -> dict[Value, Memory]:
        """Return the scratch memory of this worker for the elements of a row, by value."""
        w, kernel, memories = self._w, self._w.kernel, dict[Value, Memory]()
        if not self._first:
            return memories
        e = kernel.emitter
        shape = tuple(self._rows.shape[axis] for axis in self._rows.axes)
        if self._nest.lane_is_kept:
            shape = (*shape, w.reader.lanes)
        offsets: list[Size] = [0]
        for value in self._first:
            size = math.prod(shape) * (dtype_of(value).bitwidth // 8)
            offsets.append(offsets[-1] + ceil_div(size, _LINE) * _LINE)
        mine = e.address(w.pointer(Scratch(offsets[-1])), "i8", e.mul("%worker", kernel.size(offsets[-1])))
        for value, offset in zip(self._first, offsets, strict=False):
            memories[value] = Memory(e.address(mine, "i8", kernel.size(offset)), dtype_of(value), shape)
        return memories

    def _compute_and_store(self, value: Value) -> Callable[[Position], Element]:
        reader = self._w.reader

        def at(position: Position) -> Element:
            element = reader.computed(value, position)
            reader.store(self._memories[value], self._scratch_position(position), element)
            return element

        return at

    def _load(self, value: Value) -> Callable[[Position], Element]:
        return lambda position: self._w.reader.loaded(self._memories[value], self._scratch_position(position))

    def _scratch_position(self, position: Position) -> Position:
        """Return the position in scratch memory of an element of the row."""
        along = tuple(position[axis] for axis in self._rows.axes)
        return (*along, Index(0, 1)) if self._nest.lane_is_kept else along


@dataclass(frozen=True)
class SharedValue:
    """A value read by several passes, a candidate for scratch memory.

    Attributes:
        first: The first pass that reads the value.
        operations: Operations for an element, from values in memory and values constant along the row.
    """

    first: int
    operations: int


def shared_values(w: KernelWriter, rows: Rows, passes: Sequence[Sequence[Value]]) -> dict[Value, SharedValue]:
    """Return the values that several passes read, in the order of the passes.

    Operands of such values are left out, and values whose row does not fit half of L2.
    """
    needed: dict[Value, set[int]] = {}
    for number, values in enumerate(passes):
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if value in w.group.members and is_elementwise(value) and number not in needed.setdefault(value, set()):
                needed[value].add(number)
                waiting += value.operands
    size = math.prod(rows.shape[axis] for axis in rows.axes)
    shared: dict[Value, SharedValue] = {}
    for number, values in enumerate(passes):
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if value not in needed or value in shared:
                continue
            fits = not isinstance(size, int) or size * dtype_of(value).bitwidth // 8 <= w.context.target.l2 // 2
            if fits and len(needed[value]) > 1 and _is_storable(w, rows, value):
                shared[value] = SharedValue(number, operations(_computed_below(value, needed)))
            else:
                waiting += value.operands
    return shared


def _is_storable(w: KernelWriter, rows: Rows, value: Value) -> bool:
    """Return True if elements are floats, read only at the position where each element is computed."""
    if dtype_of(value) not in (t.FLOAT, t.DOUBLE) or shape_of(value) != rows.shape:
        return False
    users = [user for user in w.group.members if value in user.operands]
    return all(is_elementwise(user) or user.op == "reduce" for user in users)


def _computed_below(value: Value, computed: Collection[Value]) -> dict[Value, None]:
    """Return a value and the computed values that the value depends on."""
    below, waiting = dict[Value, None](), [value]
    while waiting:
        operand = waiting.pop()
        if operand in computed and operand not in below:
            below[operand] = None
            waiting += operand.operands
    return below
