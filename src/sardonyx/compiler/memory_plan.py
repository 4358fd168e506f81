"""Memory planning: where in one arena each buffer lies, so that those alive together do not overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector."""


class Lifetime(NamedTuple):
    """A buffer's size and when it is needed.

    Attributes:
        size: Bytes.
        first: The step that writes it.
        last: The last step that reads it.
    """

    size: int
    first: int
    last: int


def offsets(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Place buffers, the largest first, each in the lowest gap among those alive with it.

    Returns:
        The offset of each, and the bytes of the arena.
    """
    found = [0] * len(lifetimes)
    placed: list[tuple[int, int, Lifetime]] = []
    total = 0
    for number in sorted(range(len(lifetimes)), key=lambda i: -lifetimes[i].size):
        one = lifetimes[number]
        size = -(-one.size // ALIGNMENT) * ALIGNMENT
        at = 0
        for start, end, other in placed:
            if other.first <= one.last and one.first <= other.last:
                if at + size <= start:
                    break
                at = max(at, end)
        found[number] = at
        total = max(total, at + size)
        placed.append((at, at + size, one))
        placed.sort()
    return found, total
