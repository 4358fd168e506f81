"""Index of the greatest or least element: each lane stores its best element so far and the index."""

from __future__ import annotations

from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.element_reader import Reader
from sardonyx.compiler.llvm.ir_builder import splat, vector
from sardonyx.compiler.llvm.vector_value import Vector
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t


class Extremum:
    """Index of the first greatest or least element among the accumulated ones; NaN wins over every number.

    Args:
        reader: Reader of the kernel being written.
        kind: ``argmax`` or ``argmin``.
        dtype: The element type.
        lanes: Number of lanes; each lane has its own extremum.
        count: Number of elements, an upper bound of the indices.
        slots: Number of independent parts, so that consecutive comparisons do not wait for each other.
    """

    def __init__(self, reader: Reader, kind: str, dtype: t.DType, lanes: int, count: Size, slots: int = 1) -> None:
        e = reader.kernel.emitter
        self._greatest = kind == "argmax"
        self._dtype = dtype
        self._emitter = e
        self._lanes = lanes
        self._element = load_store.register_type(dtype)
        # A known small count fits 32 bits, the width of most elements: no conversion between widths is needed.
        self._number = "i32" if isinstance(count, int) and count < 1 << 31 else "i64"
        none = splat("-1", lanes, self._number)
        self._parts = [
            (
                e.variable(vector(lanes, self._element), load_store.constant(dtype, 0, lanes)),
                e.variable(vector(lanes, self._number), none),
            )
            for _ in range(slots)
        ]

    def take(self, value: str, index: str, mask: str | None, slot: int = 0) -> None:
        """Compare one element in each lane with the best so far.

        Indices of one part must be passed in ascending order.

        Args:
            value: The elements.
            index: The indices of the elements, ``i64``.
            mask: The lanes that have an element; None for all.
            slot: The part.
        """
        best, index_of_best = self._part(slot)
        new, at = (
            Vector(self._emitter, name, type, self._lanes) for name, type in ((value, self._element), (index, "i64"))
        )
        if self._number != "i64":
            at = at.to("trunc", self._number)
        better = (index_of_best < 0) | self._beats(new, best)
        if mask is not None:
            better = better & Vector(self._emitter, mask, "i1", self._lanes)
        best_variable, index_variable = self._parts[slot]
        best_variable.set(better.where(new, best).name)
        index_variable.set(better.where(at, index_of_best).name)

    def indices(self) -> str:
        """Return the index in every lane, ``i64``; -1 in lanes without elements."""
        return self._wide(self._merge_parts()[1])

    def first(self) -> str:
        """Return the index of the first extremum over all lanes; -1 without elements."""
        (best, index), lanes = self._merge_parts(), self._lanes
        while lanes > 1:
            lanes //= 2
            (a, b), (i, j) = _split_lanes(best, lanes), _split_lanes(index, lanes)
            best, index = self._better((a, i), (b, j))
        return self._wide(index)

    def _part(self, slot: int) -> tuple[Vector, Vector]:
        """Return the best element of a part in every lane, and its index."""
        best, index = (variable.get() for variable in self._parts[slot])
        return (
            Vector(self._emitter, best, self._element, self._lanes),
            Vector(self._emitter, index, self._number, self._lanes),
        )

    def _merge_parts(self) -> tuple[Vector, Vector]:
        """Return the best element of all parts in every lane, and its index."""
        merged = self._part(0)
        for slot in range(1, len(self._parts)):
            merged = self._better(merged, self._part(slot))
        return merged

    def _better(self, first: tuple[Vector, Vector], second: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
        """Return the better of two pairs (element, index); of equal elements, the pair of the lower index."""
        (a, i), (b, j) = first, second
        tie = ~self._beats(a, b) & (j < i)
        better = ~(j < 0) & ((i < 0) | self._beats(b, a) | tie)
        return better.where(b, a), better.where(j, i)

    def _wide(self, index: Vector) -> str:
        return index.name if self._number == "i64" else index.to("sext", "i64").name

    def _beats(self, a: Vector, b: Vector) -> Vector:
        """Return the lanes in which ``a`` precedes ``b`` regardless of the indices."""
        if not a.is_float:
            sign = "s" if t.kind(self._dtype) == "int" else "u"
            return a.compare(f"{sign}{'gt' if self._greatest else 'lt'}", b)
        # An unordered comparison is true if `a` is NaN: NaN wins unless `b` is NaN already.
        return a.compare("ugt" if self._greatest else "ult", b) & b.compare("ord", b)


def _split_lanes(x: Vector, half: int) -> tuple[Vector, Vector]:
    """Return the lower and the upper lanes."""
    halves = []
    for first in (0, half):
        lanes = ", ".join(f"i32 {first + lane}" for lane in range(half))
        name = x.emitter.let(f"shufflevector {x}, {x.type} poison, <{half} x i32> <{lanes}>")
        if half == 1:
            name = x.emitter.let(f"extractelement <1 x {x.element}> {name}, i64 0")
        halves.append(Vector(x.emitter, name, x.element, half))
    return halves[0], halves[1]
