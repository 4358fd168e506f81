"""What tracing takes for granted: values that must be known, where a call has told what they are.

Some graphs can only be traced when a value is known: an axis, which of two branches gives the rank of a result, whether
a size is 1. Traced with :func:`assuming`, they are: what is asked for is noted, in order, and answered as far as there
are answers. The function that comes out holds where the values that were asked for are as assumed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

import numpy as np

from sardonyx.core.ir.graph import Value, topological


class Assumptions:
    """What is asked while a function is traced, and the answers.

    Args:
        given: The answers, in the order of the questions.

    Attributes:
        asked: The values that were asked for, of the function that is traced itself and not of one inside.
    """

    def __init__(self, given: Sequence[np.ndarray]) -> None:
        self._given = list(given)
        self.asked: list[Value] = []

    @property
    def unanswered(self) -> Value | None:
        """The first question without an answer."""
        return self.asked[len(self._given)] if len(self.asked) > len(self._given) else None

    def answer(self, value: Value) -> np.ndarray | None:
        """What a value is; None where that is not known."""
        if value not in self.asked:
            if any(each.level > 0 for each in topological([value])):
                return None
            self.asked.append(value)
        number = self.asked.index(value)
        return self._given[number] if number < len(self._given) else None


_assumptions: ContextVar[Assumptions | None] = ContextVar("sardonyx_assumptions", default=None)


@contextlib.contextmanager
def assuming(given: Sequence[np.ndarray]) -> Iterator[Assumptions]:
    """Answer questions of :func:`assumed` in this context.

    Args:
        given: The answers, in the order of the questions.
    """
    found = Assumptions(given)
    token = _assumptions.set(found)
    try:
        yield found
    finally:
        _assumptions.reset(token)


def assumed(value: Value) -> np.ndarray | None:
    """What a value is taken for that is only known at run time; None where that must be known first."""
    found = _assumptions.get()
    return None if found is None else found.answer(value)
