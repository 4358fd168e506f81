"""Tracing under assumptions about run-time values.

Some graphs can only be traced if a value is known: an axis, which of two branches gives the rank of a result, a size
that may be 1. Under :func:`assuming`, tracing records each such value, in order, and uses the assumed answers as far
as supplied. The resulting function is valid for calls in which the recorded values equal the answers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

import numpy as np

from sardonyx.core.ir.graph import Value, sort_topologically


class Assumptions:
    """The values required while a function is traced, and the answers.

    Args:
        answers: Assumed values, in the order of the questions.

    Attributes:
        questions: The required values, from the traced function itself and not from nested ones.
    """

    def __init__(self, answers: Sequence[np.ndarray]) -> None:
        self._answers = list(answers)
        self.questions: list[Value] = []

    @property
    def unanswered(self) -> Value | None:
        """The first question without an answer."""
        return self.questions[len(self._answers)] if len(self.questions) > len(self._answers) else None

    def answer(self, value: Value) -> np.ndarray | None:
        """Return the assumed value; None if unknown."""
        if value not in self.questions:
            if any(dependency.level > 0 for dependency in sort_topologically([value])):
                return None
            self.questions.append(value)
        number = self.questions.index(value)
        return self._answers[number] if number < len(self._answers) else None


_assumptions: ContextVar[Assumptions | None] = ContextVar("sardonyx_assumptions", default=None)


@contextlib.contextmanager
def assuming(answers: Sequence[np.ndarray]) -> Iterator[Assumptions]:
    """Answer questions of :func:`find_assumption` in this context.

    Args:
        answers: Assumed values, in the order of the questions.
    """
    assumptions = Assumptions(answers)
    token = _assumptions.set(assumptions)
    try:
        yield assumptions
    finally:
        _assumptions.reset(token)


def find_assumption(value: Value) -> np.ndarray | None:
    """Return the assumed value of a value unknown until run time; None without an assumption."""
    assumptions = _assumptions.get()
    return None if assumptions is None else assumptions.answer(value)
