"""What a Reshape does to sizes: which sizes of the result are made of which sizes of the operand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sardonyx.core.dim import Size
from sardonyx.rewrite.sizes import product, quotient


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
    return [factor for factor in found if factor.changed or factor.old != 1]


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
    """A factor as two, of which the first was ``left``; what has changed goes to the left one if it can."""
    if factor.old % left:
        return None
    right = factor.old // left
    if not factor.changed:
        return Factor(left, left), Factor(right, right)
    if (share := _exact_quotient(factor.new, right)) is not None:
        return Factor(left, share), Factor(right, right)
    if (share := _exact_quotient(factor.new, left)) is not None:
        return Factor(left, left), Factor(right, share)
    return None


def _exact_quotient(size: Size, divisor: int) -> Size | None:
    share = quotient(size, divisor)
    return share if share * divisor == size else None


def merged(parts: Sequence[Factors]) -> Iterator[tuple[Size, Factors]]:
    """The sizes of a result that are made of several factors with an open one among them."""
    for factors in parts:
        size = product([factor.new for factor in factors])
        if len(factors) > 1 and not isinstance(size, int):
            yield size, factors
