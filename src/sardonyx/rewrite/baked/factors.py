"""Factors of sizes in a Reshape: the operand sizes from which each result size is formed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sardonyx.core.dim import Size, floor_div, product


@dataclass(frozen=True)
class Factor:
    """A factor of a size: its number in the original model and its current size."""

    old: int
    new: Size

    @property
    def changed(self) -> bool:
        """True if the current size differs from the original."""
        return self.new != self.old


Factors = tuple[Factor, ...]


def split(before: Sequence[int], now: Sequence[Size], known: Mapping[Size, Factors]) -> list[Factor]:
    """Return the factors of an operand's sizes in order, splitting sizes merged by an earlier Reshape.

    Args:
        before: The sizes in the original model.
        now: The current sizes.
        known: Merged size → its factors.
    """
    factors: list[Factor] = []
    for old, new in zip(before, now, strict=True):
        parts = known.get(new, ())
        if parts and product([part.old for part in parts]) == old:
            factors.extend(parts)
        else:
            factors.append(Factor(old, new))
    return _merge_unchanged(factor for factor in factors if factor.changed or factor.old != 1)


def _merge_unchanged(factors: Iterable[Factor]) -> list[Factor]:
    """Merge adjacent unchanged factors: the boundary between two constants carries no information."""
    merged: list[Factor] = []
    for factor in factors:
        if merged and not factor.changed and not merged[-1].changed:
            both = merged.pop().old * factor.old
            factor = Factor(both, both)
        merged.append(factor)
    return merged


def distribute(factors: Sequence[Factor], result: Sequence[int]) -> list[Factors] | None:
    """Return the factors of each size of the result, in row-major order; None if not divisible.

    Args:
        factors: The factors of the operand.
        result: The sizes of the result in the original model.
    """
    if 0 in result or any(factor.old == 0 for factor in factors):
        return None
    rest = list(factors)
    groups: list[list[Factor]] = []
    for size in result:
        groups.append([])
        if size == 1 and rest and rest[0].old == 1:
            groups[-1].append(rest.pop(0))
            continue
        while (missing := size // original_size(groups[-1])) > 1:
            if not rest:
                return None
            factor = rest.pop(0)
            if missing % factor.old == 0:
                groups[-1].append(factor)
                continue
            parts = _cut(factor, missing)
            if parts is None:
                return None
            groups[-1].append(parts[0])
            rest.insert(0, parts[1])
    if rest and not groups:
        return None
    if any(factor.old != 1 for factor in rest):
        return None
    if rest:
        groups[-1].extend(rest)
    return [tuple(part) for part in groups]


def original_size(factors: Sequence[Factor]) -> int:
    """Return the product of factors in the original model."""
    total = 1
    for factor in factors:
        total *= factor.old
    return total


def _cut(factor: Factor, left: int) -> tuple[Factor, Factor] | None:
    """Split a factor into two, of which the first was originally ``left``.

    The changed size goes to the side with the smaller constant factor afterwards; in doubt to the left.
    """
    if factor.old % left:
        return None
    right = factor.old // left
    if not factor.changed:
        return Factor(left, left), Factor(right, right)
    head, tail = _exact_quotient(factor.new, right), _exact_quotient(factor.new, left)
    if head is None and tail is None:
        return None
    if tail is None or (head is not None and _multiple(head) <= _multiple(tail)):
        assert head is not None
        return Factor(left, head), Factor(right, right)
    return Factor(left, left), Factor(right, tail)


def _multiple(size: Size) -> int:
    """Return the constant by which a size is divisible for all values of its symbols."""
    return size if isinstance(size, int) else math.gcd(*(factor for _, _, factor in size.terms))


def _exact_quotient(size: Size, divisor: int) -> Size | None:
    share = floor_div(size, divisor)
    return share if share * divisor == size else None


def merged_sizes(parts: Sequence[Factors]) -> Iterator[tuple[Size, Factors]]:
    """Yield the symbolic sizes of a result formed of several factors, with these factors."""
    for factors in parts:
        size = product([factor.new for factor in factors])
        if len(factors) > 1 and not isinstance(size, int):
            yield size, factors
