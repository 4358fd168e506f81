"""Where the greatest or least element is: the best so far and its index, kept together in every lane."""

from __future__ import annotations

from sardonyx.compiler import storage
from sardonyx.compiler.emitter import vector
from sardonyx.compiler.reader import Reader
from sardonyx.compiler.vectors import Vector
from sardonyx.core import types as t


class Extremum:
    """The first of the greatest or least elements that were taken; NaN goes before every number.

    Args:
        reader: Its kernel is written; its lanes are counted each for itself.
        kind: ``argmax`` or ``argmin``.
        dtype: The type of the elements.
        lanes: How many lanes.
    """

    def __init__(self, reader: Reader, kind: str, dtype: t.DType, lanes: int) -> None:
        e = reader.kernel.emitter
        self._greatest = kind == "argmax"
        self._dtype = dtype
        self._emitter = e
        self._lanes = lanes
        self._element = storage.register_type(dtype)
        self._best = e.variable(vector(lanes, self._element), storage.constant(dtype, 0, lanes))
        self._index = e.variable(vector(lanes, "i64"), storage.constant(t.INT64, -1, lanes))

    def take(self, value: str, index: str, mask: str | None) -> None:
        """Look at an element in each lane, after those of lower index.

        Args:
            value: The elements.
            index: Their indices, ``i64``.
            mask: The lanes that have one; None for all.
        """
        new, best = (Vector(self._emitter, name, self._element, self._lanes) for name in (value, self._best.get()))
        at, index_of_best = self._indices(index), self._indices(self._index.get())
        better = (index_of_best < 0) | self._beats(new, best)
        if mask is not None:
            better = better & Vector(self._emitter, mask, "i1", self._lanes)
        self._best.set(better.where(new, best).name)
        self._index.set(better.where(at, index_of_best).name)

    def indices(self) -> str:
        """The index in every lane; -1 where none was taken."""
        return self._index.get()

    def first(self) -> str:
        """The index of the first of the best of all lanes; -1 where none was taken."""
        e, lanes = self._emitter, self._lanes
        best, index = Vector(e, self._best.get(), self._element, lanes), self._indices(self._index.get())
        while lanes > 1:
            lanes //= 2
            (a, b), (i, j) = _halves(best, lanes), _halves(index, lanes)
            tie = ~self._beats(a, b) & (j < i)
            better = ~(j < 0) & ((i < 0) | self._beats(b, a) | tie)
            best, index = better.where(b, a), better.where(j, i)
        return index.name

    def _indices(self, name: str) -> Vector:
        return Vector(self._emitter, name, "i64", self._lanes)

    def _beats(self, a: Vector, b: Vector) -> Vector:
        """Where ``a`` goes before ``b`` whatever their indices."""
        if not a.is_float:
            sign = "s" if t.kind(self._dtype) == "int" else "u"
            return a.compare(f"{sign}{'gt' if self._greatest else 'lt'}", b)
        return (a > b if self._greatest else a < b) | (a.is_nan() & ~b.is_nan())


def _halves(x: Vector, half: int) -> tuple[Vector, Vector]:
    """The lower and the upper lanes."""
    found = []
    for first in (0, half):
        lanes = ", ".join(f"i32 {first + lane}" for lane in range(half))
        name = x.emitter.let(f"shufflevector {x}, {x.type} poison, <{half} x i32> <{lanes}>")
        if half == 1:
            name = x.emitter.let(f"extractelement <1 x {x.element}> {name}, i64 0")
        found.append(Vector(x.emitter, name, x.element, half))
    return found[0], found[1]
