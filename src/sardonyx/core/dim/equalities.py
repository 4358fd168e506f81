"""Sizes found equal: which symbols stand for what, from which places, and where two places contradict each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sardonyx.core.dim.bounds import Assumptions, as_bounds
from sardonyx.core.dim.polynomial import Dim, Size
from sardonyx.errors import ShapeError


class Equality(NamedTuple):
    """Two sizes that are equal, and the places that say so."""

    left: Size
    right: Size
    places: tuple[str, ...]


class DimSystem:
    """Equalities between sizes, solved as they are told.

    ``unify`` solves an equality for a symbol where one has the coefficient that allows it (``N + 1 == M`` gives
    ``M = N + 1``, ``2*N == 8`` gives ``N = 4``); what cannot be solved is kept and looked at again after each solution.
    ``resolve`` writes any size in the symbols that are left. Between two symbols the one told first is kept.

    Args:
        assumptions: Bounds on the symbols, for proving that sizes differ.
    """

    def __init__(self, assumptions: Assumptions = None) -> None:
        self._proof = as_bounds(assumptions)
        self._solved: dict[str, Size] = {}
        self._places: dict[str, tuple[str, ...]] = {}
        self._order: dict[str, int] = {}
        self._pending: list[Equality] = []

    @property
    def solutions(self) -> Mapping[str, Size]:
        """What each solved symbol is, in the symbols that are left."""
        return dict(self._solved)

    @property
    def pending(self) -> tuple[Equality, ...]:
        """Equalities that are neither proven nor solved, with what is known put in."""
        return tuple(self._pending)

    def resolve(self, size: Size) -> Size:
        """Return the size with every solved symbol replaced."""
        return size.substitute(self._solved) if isinstance(size, Dim) else size

    def unify(self, left: Size, right: Size, *, left_place: str = "", right_place: str = "") -> Size:
        """Record that two sizes are equal and return the size that both are.

        Args:
            left: A size.
            right: The size that it equals.
            left_place: Where ``left`` is written (node, tensor, axis, file), for messages.
            right_place: The same for ``right``.

        Raises:
            ShapeError: The sizes differ, with what was told before, for all values; names both places and those
                that earlier solutions came from. The system is then as it was before the call.
        """
        for size in (left, right):
            for name in sorted(size.symbols()) if isinstance(size, Dim) else ():
                self._order.setdefault(name, len(self._order))
        places = tuple(dict.fromkeys(place for place in (left_place, right_place) if place))
        saved = dict(self._solved), dict(self._places), list(self._pending)
        try:
            self._add(Equality(left, right, places + self._origins(left, right)))
        except ShapeError:
            self._solved, self._places, self._pending = saved
            raise
        return self.resolve(left)

    def _origins(self, *sizes: Size) -> tuple[str, ...]:
        """Places that the solutions of the symbols in these sizes came from."""
        names = [name for size in sizes if isinstance(size, Dim) for name in sorted(size.symbols())]
        return tuple(dict.fromkeys(place for name in names for place in self._places.get(name, ())))

    def _add(self, told: Equality) -> None:
        """Settle one equality, then all that its solution makes decidable."""
        waiting = [told]
        while waiting:
            equality = waiting.pop()
            left, right = [_placed(size, self._solved, equality.places) for size in (equality.left, equality.right)]
            same = self._proof.equal(left, right)
            if same is False:
                raise self._contradiction(equality, left, right)
            if same:
                continue
            solution = self._solve(left, right)
            if solution is None:
                self._pending.append(Equality(left, right, equality.places))
                continue
            self._adopt(*solution, equality.places)
            waiting += [Equality(e.left, e.right, (*e.places, *self._origins(e.left, e.right))) for e in self._pending]
            self._pending = []

    def _solve(self, left: Size, right: Size) -> tuple[str, Size] | None:
        """The symbol to replace and its value. Sizes proven not negative are taken first, then symbols told last."""
        difference = left - right
        if isinstance(difference, int):
            return None
        found: list[tuple[bool, int, str, Size]] = []
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
            found.append((least is not None and least >= 0, self._order.get(name, 0), name, value))
        if not found:
            return None
        _, _, name, value = max(found, key=lambda choice: choice[:2])
        return name, value

    def _adopt(self, name: str, value: Size, places: tuple[str, ...]) -> None:
        symbol = Dim.symbol(name)
        lower, upper = symbol.bounds(self._proof)
        least, greatest = self._proof.lower(value), self._proof.upper(value)
        if (lower is not None and greatest is not None and greatest < lower) or (
            upper is not None and least is not None and least > upper
        ):
            raise self._contradiction(Equality(symbol, value, places), symbol, value)
        for other, known in self._solved.items():
            if isinstance(known, Dim) and name in known.symbols():
                self._solved[other] = _placed(known, {name: value}, self._places[other] + places)
                self._places[other] = tuple(dict.fromkeys((*self._places[other], *places)))
        self._solved[name] = value
        self._places[name] = tuple(dict.fromkeys(places))

    def _contradiction(self, told: Equality, left: Size, right: Size) -> ShapeError:
        def written(size: Size, resolved: Size) -> str:
            return str(size) if size is resolved or size == resolved else f"{size} (= {resolved})"

        return ShapeError(
            f"sizes {written(told.left, left)} and {written(told.right, right)} must be equal and differ.",
            where=" and ".join(dict.fromkeys(told.places)),
            remedy="Correct one of these places.",
        )


def _placed(size: Size, values: Mapping[str, Size], places: tuple[str, ...]) -> Size:
    """Substitute, and name the places where that shows a division by zero or sizes that do not broadcast."""
    try:
        return size.substitute(values) if isinstance(size, Dim) else size
    except ShapeError as error:
        where = " and ".join(dict.fromkeys(places)) or error.where
        raise ShapeError(f"{size} cannot be: {error.problem}", where=where, remedy=error.remedy) from error
