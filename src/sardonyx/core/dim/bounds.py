"""Assumptions on the symbols in sizes, and the bounds on expressions that follow.

Two methods are combined. Interval arithmetic bounds each term by itself. Relaxation removes one composite atom ``q``
from the expression ``P`` by an inequality that is linear in ``q``, and bounds the remaining expression, so that terms
cancel:

- ``n - d + 1 <= d*q <= n`` for ``q = n//d``: the minimum of ``c*d*q + P'`` is the minimum of ``c*(n - d + 1) + P'``
  for ``c > 0`` and of ``c*n + P'`` for ``c < 0``;
- a maximum, minimum or broadcast is one of its operands: the minimum is the least over the operands, and for
  ``c*max(...)`` with ``c > 0`` (``c*min(...)`` with ``c < 0``) the greatest over the operands.

This proves ``0 <= x - 8*(x//8) <= 7``, ``H - (H + 1)//2 >= 0`` or ``x//2 + (x + 1)//2 == x``.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import TYPE_CHECKING, TypeAlias

from sardonyx.errors import ShapeError

if TYPE_CHECKING:
    from sardonyx.core.dim.polynomial import Atom, Dim, Size

Interval: TypeAlias = "tuple[int | None, int | None]"
"""Minimum and maximum, both inclusive; ``None`` is unbounded or unknown."""

_RELAXATIONS = 48
"""Maximum number of relaxations tried for one bound; each removes one atom."""
_CACHED = 1 << 16


class Bounds:
    """Assumptions on symbols: an interval of values for each.

    Args:
        symbols: ``(least, greatest)`` by name; ``None`` as greatest is unbounded.
        default: The interval of every other symbol. Sizes are ≥ 0; ``(1, None)`` excludes empty axes.

    Raises:
        ShapeError: A least value is negative (write a number that may be negative as a difference of two symbols),
            or above the greatest.
    """

    def __init__(
        self,
        symbols: Mapping[str, tuple[int, int | None]] | None = None,
        *,
        default: tuple[int, int | None] = (0, None),
    ) -> None:
        self.default = default
        self.symbols = dict(symbols or {})
        for name, (least, greatest) in [("every size", default), *self.symbols.items()]:
            if least < 0 or (greatest is not None and greatest < least):
                raise ShapeError(
                    f"the bounds {least}..{'' if greatest is None else greatest} are empty or include negative sizes.",
                    where=name,
                    remedy="Give 0 <= least <= greatest.",
                )
        self._intervals: dict[Atom, Interval] = {}
        self.results: dict[tuple[str, tuple[Size, ...]], Size] = {}
        """Memoized operations under these assumptions, by name and operands."""
        self._proved: dict[Dim, int | None] = {}

    def lower(self, size: Size) -> int | None:
        """Return a proven lower bound on ``size``, ``None`` without proof."""
        if isinstance(size, int):
            return size
        if not size.depth:
            return self.interval(size)[0]
        if size in self._proved:
            return self._proved[size]
        if len(self._proved) >= _CACHED:
            self._proved, self._intervals = {}, {}
        least = self._search(size, [_RELAXATIONS])
        self._proved[size] = least
        return least

    def upper(self, size: Size) -> int | None:
        """Return a proven upper bound on ``size``, ``None`` without proof."""
        least = self.lower(-size)
        return None if least is None else -least

    def range(self, size: Size) -> Interval:
        """Return ``(lower(size), upper(size))``."""
        if isinstance(size, int):
            return size, size
        return (self.lower(size), self.upper(size)) if size.depth else self.interval(size)

    def difference(self, a: Size, b: Size) -> Interval:
        """Return the bounds on ``a - b``; none if the difference exceeds the limits on an expression."""
        try:
            return self.range(a - b)
        except ShapeError:
            return None, None

    def equal(self, a: Size, b: Size) -> bool | None:
        """Return True if the sizes are equal for all values, False if different for all, else None."""
        try:
            difference = a - b
        except ShapeError:
            return None  # The difference exceeds the limits on the size of an expression: no proof.
        if isinstance(difference, int):
            return difference == 0
        # Every term but the constant is a multiple of the common divisor of their coefficients.
        if difference.constant % gcd(*(factor for _, atoms, factor in difference.terms if atoms)):
            return False
        least, greatest = self.range(difference)
        if (least is not None and least > 0) or (greatest is not None and greatest < 0):
            return False
        return True if least == greatest == 0 else None

    def interval(self, dim: Dim) -> Interval:
        """Return the bounds by interval arithmetic alone: cheaper and weaker than ``lower`` and ``upper``."""
        least: int | None = 0
        greatest: int | None = 0
        for _, atoms, factor in dim.terms:
            low, high = self._product(atoms) if len(atoms) != 1 else self._atom(atoms[0])
            if factor < 0:
                low, high = high, low
            least = None if least is None or low is None else least + low * factor
            greatest = None if greatest is None or high is None else greatest + high * factor
            if least is None and greatest is None:
                break
        return least, greatest

    def _product(self, atoms: tuple[Atom, ...]) -> Interval:
        low, high = 1, 1
        known = True
        for atom in atoms:
            least, greatest = self._atom(atom)
            if least is None or least < 0:
                return None, None
            low *= least
            if greatest == 0:
                return 0, 0
            known = known and greatest is not None
            high *= greatest or 0
        return low, high if known else None

    def _atom(self, atom: Atom) -> Interval:
        if atom.kind == "symbol":
            return self.symbols.get(atom.name, self.default)
        interval = self._intervals.get(atom)
        if interval is None:
            args = [self.range(arg) for arg in atom.args]
            if atom.kind == "//":
                interval = _bound_quotient(*args)
            else:
                interval = _bound_extremum(atom.kind, args)
            self._intervals[atom] = interval
        return interval

    def _search(self, size: Size, budget: list[int]) -> int | None:
        """Return a lower bound by intervals and by relaxing each composite atom, within a shared budget."""
        if isinstance(size, int):
            return size
        best = self.interval(size)[0]
        for index, (_, atoms, _) in enumerate(size.terms):
            for atom in atoms:
                if atom.depth and budget[0]:
                    budget[0] -= 1
                    best = _optional_max(best, self._relax(size, index, atom, budget))
        return best

    def _relax(self, dim: Dim, index: int, atom: Atom, budget: list[int]) -> int | None:
        _, atoms, factor = dim.terms[index]
        try:
            rest = dim.without(index)
            if atom.kind == "//":
                return self._relax_quotient(rest, atoms, atom, factor, budget)
            if len(atoms) > 1:
                return None
            cases = [self._search(rest + factor * arg, budget) for arg in atom.args]
        except ShapeError:
            return None  # The relaxed expression exceeds the limits on size: no proof this way.
        if atom.kind == ("max" if factor > 0 else "min"):
            return max((case for case in cases if case is not None), default=None)
        return _min_if_all_known(cases)

    def _relax_quotient(
        self, rest: Size, atoms: tuple[Atom, ...], atom: Atom, factor: int, budget: list[int]
    ) -> int | None:
        numerator, divisor = atom.args
        least = self.lower(divisor)
        if least is None or least < 0:
            return None
        scale, expected = (divisor, ()) if isinstance(divisor, int) else _single_term(divisor)
        others = list(atoms)
        others.remove(atom)
        if tuple(others) != expected or scale < 1:
            return None
        replaced = numerator if factor < 0 else numerator - divisor + 1
        least = self._search(scale * rest + factor * replaced, budget)
        return None if least is None else -(-least // scale)


Assumptions: TypeAlias = Bounds | Mapping[str, tuple[int, "int | None"]] | None
"""Bounds, or a mapping from symbol to ``(least, greatest)``; ``None``: every symbol is ≥ 0."""

NON_NEGATIVE = Bounds()
"""The assumption of canonical forms: sizes are ≥ 0."""
POSITIVE = Bounds(default=(1, None))
"""No size is empty."""


def as_bounds(assumptions: Assumptions) -> Bounds:
    """Return ``assumptions`` as a :class:`Bounds`."""
    if assumptions is None:
        return NON_NEGATIVE
    return assumptions if isinstance(assumptions, Bounds) else Bounds(assumptions)


def _single_term(dim: Dim) -> tuple[int, tuple[Atom, ...]]:
    """Return the coefficient and atoms of a Dim of one term; coefficient 0 for a longer one."""
    _, atoms, factor = dim.terms[0]
    return (factor, atoms) if len(dim.terms) == 1 else (0, ())


def _optional_max(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)


def _min_if_all_known(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return min(known) if len(known) == len(values) else None


def _max_if_all_known(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def _bound_extremum(kind: str, args: list[Interval]) -> Interval:
    """Return bounds on a minimum, maximum or broadcast from the bounds on its operands."""
    lows, highs = [arg[0] for arg in args], [arg[1] for arg in args]
    if kind == "max":
        return max((low for low in lows if low is not None), default=None), _max_if_all_known(highs)
    if kind == "min":
        return _min_if_all_known(lows), min((high for high in highs if high is not None), default=None)
    return _min_if_all_known(lows), _max_if_all_known(highs)


def _bound_quotient(numerator: Interval, divisor: Interval) -> Interval:
    """Return bounds on a floor division; a divisor ≥ 0 is ≥ 1 wherever the division is defined."""
    (low, high), (least, greatest) = numerator, divisor
    if least is None or least < 0:
        return None, None
    least = max(least, 1)
    if low is not None:
        # A negative numerator is least over the least divisor, any other over the greatest (0 if unbounded).
        low = low // least if low < 0 else 0 if greatest is None else low // max(greatest, 1)
    if high is not None:
        high = high // least if high >= 0 else -1 if greatest is None else high // max(greatest, 1)
    return low, high
