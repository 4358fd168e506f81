"""Where the greatest or least element is: the best so far and its index, kept together in every lane."""

from __future__ import annotations

from sardonyx.compiler.codegen import load_store
from sardonyx.compiler.codegen.element_reader import Reader
from sardonyx.compiler.llvm.ir_builder import splat, vector
from sardonyx.compiler.llvm.vector_value import Vector
from sardonyx.core.dim import Size
from sardonyx.core.ir import types as t


class Extremum:
    """The first of the greatest or least elements that were taken; NaN goes before every number.

    Args:
        reader: Its kernel is written; its lanes are counted each for itself.
        kind: ``argmax`` or ``argmin``.
        dtype: The type of the elements.
        lanes: How many lanes.
        count: How many elements there are.
        slots: Parts of them that do not wait for each other.
    """

    def __init__(self, reader: Reader, kind: str, dtype: t.DType, lanes: int, count: Size, slots: int = 1) -> None:
        e = reader.kernel.emitter
        self._greatest = kind == "argmax"
        self._dtype = dtype
        self._emitter = e
        self._lanes = lanes
        self._element = load_store.register_type(dtype)
        # Places that are known to be few are counted in as many bits as most elements have.
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
        """Look at an element in each lane, after those of lower index of the same part.

        Args:
            value: The elements.
            index: Their indices, ``i64``.
            mask: The lanes that have one; None for all.
            slot: The part.
        """
        best, index_of_best = self._found(slot)
        new, at = (
            Vector(self._emitter, name, type, self._lanes) for name, type in ((value, self._element), (index, "i64"))
        )
        if self._number != "i64":
            at = at.to("trunc", self._number)
        better = (index_of_best < 0) | self._beats(new, best)
        if mask is not None:
            better = better & Vector(self._emitter, mask, "i1", self._lanes)
        kept_best, kept_index = self._parts[slot]
        kept_best.set(better.where(new, best).name)
        kept_index.set(better.where(at, index_of_best).name)

    def indices(self) -> str:
        """The index in every lane, ``i64``; -1 where none was taken."""
        return self._wide(self._whole()[1])

    def first(self) -> str:
        """The index of the first of the best of all lanes; -1 where none was taken."""
        (best, index), lanes = self._whole(), self._lanes
        while lanes > 1:
            lanes //= 2
            (a, b), (i, j) = _halves(best, lanes), _halves(index, lanes)
            best, index = self._better((a, i), (b, j))
        return self._wide(index)

    def _found(self, slot: int) -> tuple[Vector, Vector]:
        """The best of a part in every lane, and its index."""
        best, index = (variable.get() for variable in self._parts[slot])
        return (
            Vector(self._emitter, best, self._element, self._lanes),
            Vector(self._emitter, index, self._number, self._lanes),
        )

    def _whole(self) -> tuple[Vector, Vector]:
        """The best of all parts in every lane, and its index."""
        found = self._found(0)
        for slot in range(1, len(self._parts)):
            found = self._better(found, self._found(slot))
        return found

    def _better(self, first: tuple[Vector, Vector], second: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
        """The better of two, and its index; of equals that of the lower one."""
        (a, i), (b, j) = first, second
        tie = ~self._beats(a, b) & (j < i)
        better = ~(j < 0) & ((i < 0) | self._beats(b, a) | tie)
        return better.where(b, a), better.where(j, i)

    def _wide(self, index: Vector) -> str:
        return index.name if self._number == "i64" else index.to("sext", "i64").name

    def _beats(self, a: Vector, b: Vector) -> Vector:
        """Where ``a`` goes before ``b`` whatever their indices."""
        if not a.is_float:
            sign = "s" if t.kind(self._dtype) == "int" else "u"
            return a.compare(f"{sign}{'gt' if self._greatest else 'lt'}", b)
        # Not ordered: one of them is NaN, and it must be the first.
        return a.compare("ugt" if self._greatest else "ult", b) & b.compare("ord", b)


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
