"""Asking for memory ahead: what a reader will read at a place, without waiting for it or computing anything.

A product computes for some microseconds in registers, and then what is fused behind it wants operands of its own: a row
of each, in lines that lie far apart, which processors do not foresee. A chain of functions between them is longer than
what a core looks ahead, so that each line would be waited for. Asked for before the product, all have come by then.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sardonyx.compiler.analysis.primitive_traits import dtype_of, is_elementwise
from sardonyx.compiler.analysis.strided_views import Memory, shape_of
from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.element_reader import Element, Place, Reader
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

_UNKNOWN = Element("poison", False)


@dataclass
class Ahead(Reader):
    """A reader that asks for the cache lines it would load vectors from.

    Its elements are no values. Numbers that all lanes share stay where they are, and so do places that data tell lane
    by lane.

    Args:
        reading: The reader that will read; it gives the indices that tell where lines are.
    """

    reading: Reader = field(kw_only=True)

    def _found(self, value: Value, place: Place, shape: tuple[Size, ...] | None) -> Element:
        here = value not in self._bound and self.memory(value) is None and shape is None
        if not here or value.op not in ("gather", "bitcast", "dims"):
            return super()._found(value, place, shape)
        if value.op == "gather" and self._is_told(value.operands[1]):
            self._picked(value, place)
        return _UNKNOWN

    def _is_told(self, value: Value) -> bool:
        """Whether a value is computed of what is in memory, and of nothing that the kernel has still to compute."""
        if value in self._bound:
            return False
        at_hand = value.is_constant or self.memory(value) is not None
        computed = is_elementwise(value) or value.op in ("broadcast", "reshape", "slice", "iota")
        return at_hand or (computed and all(map(self._is_told, value.operands)))

    def computed(self, value: Value, place: Place, shape: tuple[Size, ...] | None = None) -> Element:
        """Ask for what an elementwise value is computed of."""
        for operand in value.operands:
            self.element(operand, place, shape)
        return _UNKNOWN

    def loaded(self, memory: Memory, place: Place) -> Element:
        """Ask for the line that a vector begins in."""
        at = self.offset(memory, place)
        if at.lane and not at.vector and self._is_large(memory):
            e = self.kernel.emitter
            e.prefetch(e.address(memory.pointer, load_store.memory_type(memory.dtype), at.base))
        return _UNKNOWN

    def _is_large(self, memory: Memory) -> bool:
        """Whether it is more than the first-level cache holds, so that it is elsewhere when it is read."""
        elements = math.prod(memory.shape)
        return not isinstance(elements, int) or elements * memory.dtype.bitwidth > 8 * self.kernel.target.l1

    def _picked(self, value: Value, place: Place) -> None:
        """Ask for what a gather reads where all lanes have the same indices; of those out of range, for the first."""
        source, indices = value.operands
        batch = value.params["batch"]
        depth = shape_of(indices)[-1]
        assert isinstance(depth, int)
        kept = len(shape_of(indices)) - 1
        if not all(index.is_uniform for index in place[:kept]):
            return
        e = self.kernel.emitter
        found = list(place[:batch])
        for component in range(depth):
            with self.reading.inside():
                at = self.reading.element(indices, (*place[:kept], Index(component)))
            size = self.kernel.size(shape_of(source)[batch + component])
            wide = self.reading.converted(dtype_of(indices), t.INT64, at.name, at.uniform)
            good = e.let(f"icmp ult i64 {wide}, {size}")
            found.append(Index(e.let(f"select i1 {good}, i64 {wide}, i64 0")))
        self.element(source, (*found, *place[kept:]))
