"""What the passes over a row share: values that are the same along it, and costly ones that several passes need.

A kernel of rows goes over a row once for each reduction that waits for another, and once for what it writes. What
passes do not change along the row is computed before their loops: the logarithm of a sum. A costly element that more
than one of them needs, such as the exponential of a softmax, is computed in the first, and left in scratch memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from sardonyx.compiler.analysis.primitive_traits import Rows, dtype_of, is_elementwise
from sardonyx.compiler.analysis.strided_views import Memory, shape_of
from sardonyx.compiler.codegen.element_reader import ORIGIN, Element, Place
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.codegen.loop_nest import RowNest
from sardonyx.compiler.lower.context import Writing
from sardonyx.compiler.lower.launch import Scratch
from sardonyx.compiler.schedule.groups import operations
from sardonyx.core.dim import Size, ceil_div
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

_WORTH_KEEPING = 8
"""Operations of an element that take longer than to write it and to read it again."""

_LINE = 64


class RowPasses:
    """The passes of a kernel of rows while they are written, one after the other.

    Args:
        w: The kernel.
        nest: The places of its rows.
        rows: What its reductions share.
        passes: The values whose elements each pass takes, of the sizes of ``rows``.
        keeps: Whether elements may be left in scratch memory: lanes are places of a row, or rows side by side.
    """

    def __init__(
        self, w: Writing, nest: RowNest, rows: Rows, passes: Sequence[Sequence[Value]], keeps: bool = True
    ) -> None:
        self._w, self._nest, self._rows, self._passes = w, nest, rows, passes
        self._first = _shared(w, rows, passes) if keeps else {}
        self._memories = self._located()

    def begin(self, number: int, row: Sequence[Index]) -> None:
        """Prepare a pass over a row, before its loops."""
        reader = self._w.reader
        place = tuple(ORIGIN if axis in self._rows.axes else index for axis, index in enumerate(row))
        for value in self._passes[number]:
            self._compute_narrow(value, place)
        for value, first in self._first.items():
            if number >= first:
                reader.bind(value, self._computing(value) if number == first else self._reading(value))

    def _compute_narrow(self, value: Value, place: Place) -> None:
        """Compute what is the same at all places of a row."""
        if value in self._first:
            return
        if value.op == "broadcast" and t.is_float(dtype_of(value)):
            self._w.reader.element(value, place)
        elif value in self._w.group.members and is_elementwise(value):
            for operand in value.operands:
                self._compute_narrow(operand, place)

    def _located(self) -> dict[Value, Memory]:
        """Where the elements of a row are kept, by value: this worker's part of scratch memory."""
        w, kernel, found = self._w, self._w.kernel, dict[Value, Memory]()
        if not self._first:
            return found
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
            found[value] = Memory(e.address(mine, "i8", kernel.size(offset)), dtype_of(value), shape)
        return found

    def _computing(self, value: Value) -> Callable[[Place], Element]:
        reader = self._w.reader

        def at(place: Place) -> Element:
            found = reader.computed(value, place)
            reader.store(self._memories[value], self._kept(place), found)
            return found

        return at

    def _reading(self, value: Value) -> Callable[[Place], Element]:
        return lambda place: self._w.reader.loaded(self._memories[value], self._kept(place))

    def _kept(self, place: Place) -> Place:
        """Where the element of a place is kept."""
        along = tuple(place[axis] for axis in self._rows.axes)
        return (*along, Index(0, 1)) if self._nest.lane_is_kept else along


def _shared(w: Writing, rows: Rows, passes: Sequence[Sequence[Value]]) -> dict[Value, int]:
    """The costly values that more than one pass needs, and the first of these passes."""
    needed: dict[Value, set[int]] = {}
    for number, values in enumerate(passes):
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if value in w.group.members and is_elementwise(value) and number not in needed.setdefault(value, set()):
                needed[value].add(number)
                waiting += value.operands
    size = math.prod(rows.shape[axis] for axis in rows.axes)
    found: dict[Value, int] = {}
    for number, values in enumerate(passes):
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if value not in needed or value in found:
                continue
            fits = not isinstance(size, int) or size * dtype_of(value).bitwidth // 8 <= w.whole.target.l2 // 2
            if fits and len(needed[value]) > 1 and _is_kept(w, rows, value, needed):
                found[value] = number
            else:
                waiting += value.operands
    return found


def _is_kept(w: Writing, rows: Rows, value: Value, wide: Collection[Value]) -> bool:
    """Whether an element is worth keeping, and only read at its own place."""
    if dtype_of(value) not in (t.FLOAT, t.DOUBLE) or shape_of(value) != rows.shape:
        return False
    below, waiting = dict[Value, None](), [value]
    while waiting:
        each = waiting.pop()
        if each in wide and each not in below:
            below[each] = None
            waiting += each.operands
    users = [user for user in w.group.members if value in user.operands]
    return operations(below) >= _WORTH_KEEPING and all(is_elementwise(user) or user.op == "reduce" for user in users)
