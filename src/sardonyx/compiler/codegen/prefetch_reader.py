"""Prefetching: a reader that prefetches the operands of a value instead of loading or computing.

A matrix product computes in registers for some microseconds; then its epilogue loads one row of each operand, from
distant cache lines, which hardware prefetchers do not predict. The chain of functions between these loads is longer
than the out-of-order window: without prefetches, the core would wait for each line. Prefetched before the product, all
lines have arrived when the epilogue starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sardonyx.compiler.analysis.primitive_traits import dtype_of, is_elementwise
from sardonyx.compiler.analysis.strided_views import Memory, shape_of
from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.element_reader import Element, Reader
from sardonyx.compiler.codegen.kernel_builder import Index
from sardonyx.compiler.codegen.position_arithmetic import Position
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

_UNKNOWN = Element("poison", False)


@dataclass
class Ahead(Reader):
    """Reader that prefetches the cache lines of vectors instead of loading.

    Its elements are placeholders, not values. Uniform scalars are not prefetched, nor are data-dependent positions of
    single lanes.

    Args:
        reading: The reader of the actual loads; computes the indices on which addresses depend.
    """

    reading: Reader = field(kw_only=True)

    def _compute_element(self, value: Value, position: Position, shape: tuple[Size, ...] | None) -> Element:
        here = value not in self._bound and self.memory(value) is None and shape is None
        if not here or value.op not in ("gather", "bitcast", "dims"):
            return super()._compute_element(value, position, shape)
        if value.op == "gather" and self._is_available(value.operands[1]):
            self._prefetch_gather(value, position)
        return _UNKNOWN

    def _is_available(self, value: Value) -> bool:
        """Return True if a value depends only on values in memory, not on pending results of the kernel."""
        if value in self._bound:
            return False
        at_hand = value.is_constant or self.memory(value) is not None
        computed = is_elementwise(value) or value.op in ("broadcast", "reshape", "slice", "iota")
        return at_hand or (computed and all(map(self._is_available, value.operands)))

    def computed(self, value: Value, position: Position, shape: tuple[Size, ...] | None = None) -> Element:
        """Prefetch the operands of an elementwise value."""
        for operand in value.operands:
            self.element(operand, position, shape)
        return _UNKNOWN

    def loaded(self, memory: Memory, position: Position) -> Element:
        """Prefetch the cache line in which a vector begins."""
        at = self.offset(memory, position)
        if at.lane and not at.vector and self._is_large(memory):
            e = self.kernel.emitter
            e.prefetch(e.address(memory.pointer, load_store.memory_type(memory.dtype), at.base))
        return _UNKNOWN

    def _is_large(self, memory: Memory) -> bool:
        """Return True if the buffer exceeds L1, so that the elements are probably not in L1 when needed."""
        elements = math.prod(memory.shape)
        return not isinstance(elements, int) or elements * memory.dtype.bitwidth > 8 * self.kernel.target.l1

    def _prefetch_gather(self, value: Value, position: Position) -> None:
        """Prefetch the operand of a gather if all lanes have the same indices.

        Position 0 replaces indices out of range.
        """
        source, indices = value.operands
        batch = value.params["batch"]
        depth = shape_of(indices)[-1]
        assert isinstance(depth, int)
        rank = len(shape_of(indices)) - 1
        if not all(index.is_uniform for index in position[:rank]):
            return
        e = self.kernel.emitter
        source_position = list(position[:batch])
        for component in range(depth):
            with self.reading.inside():
                at = self.reading.element(indices, (*position[:rank], Index(component)))
            size = self.kernel.size(shape_of(source)[batch + component])
            wide = self.reading.converted(dtype_of(indices), t.INT64, at.name, at.uniform)
            good = e.let(f"icmp ult i64 {wide}, {size}")
            source_position.append(Index(e.let(f"select i1 {good}, i64 {wide}, i64 0")))
        self.element(source, (*source_position, *position[rank:]))
