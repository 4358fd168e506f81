"""Equations between sizes: solutions for symbols, their locations, and contradictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sardonyx.core.dim.bounds import Assumptions, as_bounds
from sardonyx.core.dim.polynomial import Dim, Size
from sardonyx.errors import ShapeError


class Equality(NamedTuple):
    """Two equal sizes, and the locations of the evidence."""

    left: Size
    right: Size
    locations: tuple[str, ...]


class DimSystem:
    """Equalities between sizes, solved incrementally.

    ``unify`` solves an equality for a symbol if a coefficient allows the division (``N + 1 == M`` gives ``M = N + 1``,
    ``2*N == 8`` gives ``N = 4``); an unsolved equality stays pending and is retried after each solution. ``resolve``
    writes any size in the unsolved symbols. Between two symbols, the one recorded first remains.

    Args:
        assumptions: Bounds on the symbols, for proving sizes different.
    """

    def __init__(self, assumptions: Assumptions = None) -> None:
        self._proof = as_bounds(assumptions)
        self._solved: dict[str, Size] = {}
        self._locations: dict[str, tuple[str, ...]] = {}
        self._order: dict[str, int] = {}
        self._pending: list[Equality] = []

    @property
    def solutions(self) -> Mapping[str, Size]:
        """The value of each solved symbol, in the unsolved symbols."""
        return dict(self._solved)

    @property
    def pending(self) -> tuple[Equality, ...]:
        """Equalities that are neither proven nor solved, with the solutions substitute_symbols."""
        return tuple(self._pending)

    def resolve(self, size: Size) -> Size:
        """Return the size with every solved symbol replaced."""
        return size.substitute(self._solved) if isinstance(size, Dim) else size

    def unify(self, left: Size, right: Size, *, left_location: str = "", right_location: str = "") -> Size:
        """Record that two sizes are equal and return their common value.

        Args:
            left: A size.
            right: The equal size.
            left_location: Location of ``left`` (node, tensor, axis, file), for messages.
            right_location: The same for ``right``.

        Raises:
            ShapeError: The sizes differ for all values, given the earlier equalities; names both locations and the
                locations of the solutions used. The system is then as before the call.
        """
        for size in (left, right):
            for name in sorted(size.symbols()) if isinstance(size, Dim) else ():
                self._order.setdefault(name, len(self._order))
        locations = tuple(dict.fromkeys(location for location in (left_location, right_location) if location))
        saved = dict(self._solved), dict(self._locations), list(self._pending)
        try:
            self._add(Equality(left, right, locations + self._origins(left, right)))
        except ShapeError:
            self._solved, self._locations, self._pending = saved
            raise
        return self.resolve(left)

    def _origins(self, *sizes: Size) -> tuple[str, ...]:
        """Return the locations of the solutions of the symbols in these sizes."""
        names = [name for size in sizes if isinstance(size, Dim) for name in sorted(size.symbols())]
        return tuple(dict.fromkeys(location for name in names for location in self._locations.get(name, ())))

    def _add(self, first: Equality) -> None:
        """Solve one equality, then all pending ones that become decidable."""
        queue = [first]
        while queue:
            equality = queue.pop()
            left, right = [
                _substitute_at(size, self._solved, equality.locations) for size in (equality.left, equality.right)
            ]
            same = self._proof.equal(left, right)
            if same is False:
                raise self._contradiction(equality, left, right)
            if same:
                continue
            solution = self._solve(left, right)
            if solution is None:
                self._pending.append(Equality(left, right, equality.locations))
                continue
            self._adopt(*solution, equality.locations)
            queue += [Equality(e.left, e.right, (*e.locations, *self._origins(e.left, e.right))) for e in self._pending]
            self._pending = []

    def _solve(self, left: Size, right: Size) -> tuple[str, Size] | None:
        """Return the symbol to replace and its value; values proven ≥ 0 first, then symbols recorded last."""
        difference = left - right
        if isinstance(difference, int):
            return None
        candidates: list[tuple[bool, int, str, Size]] = []
        for index, (_, atoms, factor) in enumerate(difference.terms):
            if len(atoms) != 1 or atoms[0].kind != "symbol":
                continue
            name, rest = atoms[0].name, difference.without(index)
            if isinstance(rest, Dim) and name in rest.symbols():
                continue
            value = -rest // factor
            if value * factor != -rest:
                continue
            least = self._proof.lower(value)
            candidates.append((least is not None and least >= 0, self._order.get(name, 0), name, value))
        if not candidates:
            return None
        _, _, name, value = max(candidates, key=lambda candidate: candidate[:2])
        return name, value

    def _adopt(self, name: str, value: Size, locations: tuple[str, ...]) -> None:
        symbol = Dim.symbol(name)
        lower, upper = symbol.bounds(self._proof)
        least, greatest = self._proof.lower(value), self._proof.upper(value)
        if (lower is not None and greatest is not None and greatest < lower) or (
            upper is not None and least is not None and least > upper
        ):
            raise self._contradiction(Equality(symbol, value, locations), symbol, value)
        for other, known in self._solved.items():
            if isinstance(known, Dim) and name in known.symbols():
                self._solved[other] = _substitute_at(known, {name: value}, self._locations[other] + locations)
                self._locations[other] = tuple(dict.fromkeys((*self._locations[other], *locations)))
        self._solved[name] = value
        self._locations[name] = tuple(dict.fromkeys(locations))

    def _contradiction(self, equality: Equality, left: Size, right: Size) -> ShapeError:
        def with_value(size: Size, resolved: Size) -> str:
            return str(size) if size is resolved or size == resolved else f"{size} (= {resolved})"

        sizes = f"{with_value(equality.left, left)} and {with_value(equality.right, right)}"
        return ShapeError(
            f"sizes {sizes} must be equal and differ.",
            where=" and ".join(dict.fromkeys(equality.locations)),
            remedy="Correct one of these locations.",
        )


def _substitute_at(size: Size, values: Mapping[str, Size], locations: tuple[str, ...]) -> Size:
    """Substitute; an error (division by zero, sizes that do not broadcast) names the locations."""
    try:
        return size.substitute(values) if isinstance(size, Dim) else size
    except ShapeError as error:
        where = " and ".join(dict.fromkeys(locations)) or error.where
        raise ShapeError(f"{size} is undefined: {error.problem}", where=where, remedy=error.remedy) from error
