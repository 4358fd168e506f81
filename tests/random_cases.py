"""The number of random cases that a test draws: one place for the default run and the long form."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")

LONG_FORM = "SARDONYX_TESTS_LONG"
"""The environment variable that is 1 while pytest selects the tests marked ``long``."""

SHARE = 10
"""The default run has one case of so many. Seeds are consecutive, so the long form draws these and further ones."""


def cases(count: int) -> int:
    """Return the number of random cases to draw: ``count`` in the long form, a share of ``count`` by default."""
    return count if os.environ.get(LONG_FORM) == "1" else -(-count // SHARE)


def sampled(identifiers: Sequence[str]) -> set[str]:
    """Return the identifiers of the parametrized cases that the default run has: one of ``SHARE``, or all of five.

    The choice depends on the identifier alone, so it does not change as cases are added.
    """
    if len(identifiers) <= 5:
        return set(identifiers)
    selected = {name for name in identifiers if zlib.crc32(name.encode()) % SHARE == 0}
    return selected or set(identifiers[:1])


def drawn(items: Sequence[Item]) -> Sequence[Item]:
    """Return all items in the long form, and one of ``SHARE`` by default."""
    return items if os.environ.get(LONG_FORM) == "1" else items[::SHARE]


def selects_long(expression: str) -> bool:
    """Return True if a marker expression (``pytest -m``) selects tests marked ``long``."""
    return re.search(r"(?<!\bnot )\blong\b", expression) is not None
