"""What a Reshape does to sizes: which sizes of the result are made of which sizes of the operand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sardonyx.core.dim import Size, product
from sardonyx.rewrite.sizes import quotient


@dataclass(frozen=True)
class Factor:
    """A part of a size: what it was when the model was written, and what it is now."""

    old: int
    new: Size

    @property
    def changed(self) -> bool:
        """Whether it is another size now."""
        return self.new != self.old


Factors = tuple[Factor, ...]


def split(before: Sequence[int], now: Sequence[Size], known: Mapping[Size, Factors]) -> list[Factor]:
    """The factors of an operand's sizes in order; a size that a Reshape merged is taken apart again.

    Args:
        before: The sizes as the model was written for.
        now: The sizes now.
        known: Merged size → the factors it was merged from.
    """
    found: list[Factor] = []
    for old, new in zip(before, now, strict=True):
        parts = known.get(new, ())
        if parts and product([part.old for part in parts]) == old:
            found.extend(parts)
        else:
            found.append(Factor(old, new))
    return _joined(factor for factor in found if factor.changed or factor.old != 1)


def _joined(factors: Iterable[Factor]) -> list[Factor]:
    """The factors with neighbours that did not change as one: where one ends and the next begins says nothing."""
    found: list[Factor] = []
    for factor in factors:
        if found and not factor.changed and not found[-1].changed:
            both = found.pop().old * factor.old
            factor = Factor(both, both)
        found.append(factor)
    return found


def distribute(factors: Sequence[Factor], result: Sequence[int]) -> list[Factors] | None:
    """Which factors each size of the result takes, in row-major order; None where they do not come out even.

    Args:
        factors: The operand's.
        result: The result's sizes as the model was written for.
    """
    if 0 in result or any(factor.old == 0 for factor in factors):
        return None
    rest = list(factors)
    taken: list[list[Factor]] = []
    for size in result:
        taken.append([])
        if size == 1 and rest and rest[0].old == 1:
            taken[-1].append(rest.pop(0))
            continue
        while (missing := size // product_of_old(taken[-1])) > 1:
            if not rest:
                return None
            factor = rest.pop(0)
            if missing % factor.old == 0:
                taken[-1].append(factor)
                continue
            parts = _cut(factor, missing)
            if parts is None:
                return None
            taken[-1].append(parts[0])
            rest.insert(0, parts[1])
    if rest and not taken:
        return None
    if any(factor.old != 1 for factor in rest):
        return None
    if rest:
        taken[-1].extend(rest)
    return [tuple(part) for part in taken]


def product_of_old(factors: Sequence[Factor]) -> int:
    """The size that factors make as the model was written."""
    total = 1
    for factor in factors:
        total *= factor.old
    return total


def _cut(factor: Factor, left: int) -> tuple[Factor, Factor] | None:
    """A factor as two, of which the first was ``left``.

    What has changed goes to the one that is then a plain size, not a multiple of one; in doubt to the left.
    """
    if factor.old % left:
        return None
    right = factor.old // left
    if not factor.changed:
        return Factor(left, left), Factor(right, right)
    in_front, behind = _exact_quotient(factor.new, right), _exact_quotient(factor.new, left)
    if in_front is None and behind is None:
        return None
    if behind is None or (in_front is not None and _multiple(in_front) <= _multiple(behind)):
        assert in_front is not None
        return Factor(left, in_front), Factor(right, right)
    return Factor(left, left), Factor(right, behind)


def _multiple(size: Size) -> int:
    """The number that a size is a multiple of, whatever its symbols are."""
    return size if isinstance(size, int) else math.gcd(*(factor for _, _, factor in size.terms))


def _exact_quotient(size: Size, divisor: int) -> Size | None:
    share = quotient(size, divisor)
    return share if share * divisor == size else None


def merged(parts: Sequence[Factors]) -> Iterator[tuple[Size, Factors]]:
    """The sizes of a result that are made of several factors with an open one among them."""
    for factors in parts:
        size = product([factor.new for factor in factors])
        if len(factors) > 1 and not isinstance(size, int):
            yield size, factors
