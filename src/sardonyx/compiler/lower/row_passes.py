"""Passes over a row: hoisting of values constant along the row, and reuse of costly elements.

A row-by-row kernel passes over a row once for each reduction that depends on another, and once for the result. Values
constant along the row, e.g. the logarithm of a sum, are computed before the loops of a pass. A costly element used by
several passes, e.g. the exponential of a softmax, is computed in the first pass and stored in scratch memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from sardonyx.compiler.analysis.primitive_traits import Rows, dtype_of, is_elementwise
from sardonyx.compiler.analysis.strided_views import Memory, shape_of
from sardonyx.compiler.codegen.element_reader import ORIGIN, Element, Position
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.codegen.loop_nest import RowNest
from sardonyx.compiler.lower.context import KernelWriter
from sardonyx.compiler.lower.launch import Scratch
from sardonyx.compiler.schedule.groups import operations
from sardonyx.core.dim import Size, ceil_div
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

_STORE_AND_LOAD = 8
"""Operations of an element that take longer than a store and a load of the element."""

_LINE = 64


class RowPasses:
    """The passes of a row-by-row kernel, emitted one after the other.

    Args:
        w: The kernel.
        nest: The loops over the rows.
        rows: The common shape and axes of the reductions.
        passes: The values whose elements each pass reads, of shape ``rows.shape``.
        keeps: True if elements may be stored in scratch memory: lanes are elements of a row, or adjacent rows.
    """

    def __init__(
        self, w: KernelWriter, nest: RowNest, rows: Rows, passes: Sequence[Sequence[Value]], keeps: bool = True
    ) -> None:
        self._w, self._nest, self._rows, self._passes = w, nest, rows, passes
        self._first = _shared_values(w, rows, passes) if keeps else {}
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


def _shared_values(w: KernelWriter, rows: Rows, passes: Sequence[Sequence[Value]]) -> dict[Value, int]:
    """Return the costly values that several passes read, each with the first of these passes."""
    needed: dict[Value, set[int]] = {}
    for number, values in enumerate(passes):
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if value in w.group.members and is_elementwise(value) and number not in needed.setdefault(value, set()):
                needed[value].add(number)
                waiting += value.operands
    size = math.prod(rows.shape[axis] for axis in rows.axes)
    first: dict[Value, int] = {}
    for number, values in enumerate(passes):
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if value not in needed or value in first:
                continue
            fits = not isinstance(size, int) or size * dtype_of(value).bitwidth // 8 <= w.context.target.l2 // 2
            if fits and len(needed[value]) > 1 and _is_worth_storing(w, rows, value, needed):
                first[value] = number
            else:
                waiting += value.operands
    return first


def _is_worth_storing(w: KernelWriter, rows: Rows, value: Value, wide: Collection[Value]) -> bool:
    """Return True if an element is costly, and read only at the position where the element is computed."""
    if dtype_of(value) not in (t.FLOAT, t.DOUBLE) or shape_of(value) != rows.shape:
        return False
    below, waiting = dict[Value, None](), [value]
    while waiting:
        operand = waiting.pop()
        if operand in wide and operand not in below:
            below[operand] = None
            waiting += operand.operands
    users = [user for user in w.group.members if value in user.operands]
    return operations(below) >= _STORE_AND_LOAD and all(is_elementwise(user) or user.op == "reduce" for user in users)
