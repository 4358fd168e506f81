"""A limit of the conditions on sizes that torch decides while it captures a program.

Sizes that a program rounds up again and again (windows of images, merged patches) are expressions that grow from layer
to layer; torch decides thousands of conditions on them, for minutes. The limit counts terms, not time, so a program is
captured with the same open sizes on every machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from sardonyx.base.replaced_attributes import replaced
from sardonyx.errors import ConversionError

MOST_TERMS = 600_000
"""Maximum number of terms of all conditions: a Mask R-CNN with open images has 553,000, in 38 s of one Zen 3 core."""

LONG = 200
"""Number of terms from which a condition counts more than its terms: detectors have at most 190, windows above 500."""


@dataclass
class Limit:
    """The terms of the conditions that torch decided.

    Attributes:
        most: Maximum number of terms.
        terms: Number of terms, those of long conditions several times.
    """

    most: int
    terms: int = 0

    @property
    def is_exceeded(self) -> bool:
        """True if torch asked for more."""
        return self.terms > self.most

    @property
    def reason(self) -> str:
        """The limit in words."""
        return f"the conditions on all sizes have more than {self.most} terms"


@contextlib.contextmanager
def limited_conditions(most: int = MOST_TERMS) -> Iterator[Limit]:
    """Raise a ConversionError inside of the ``with`` statement once conditions have more terms than the limit."""
    own, limit = ShapeEnv.evaluate_expr, Limit(most)

    def evaluate(self: Any, expression: Any, *args: Any, **options: Any) -> Any:
        limit.terms += _weight(_terms(expression))
        if limit.is_exceeded:
            raise ConversionError(limit.reason)
        return own(self, expression, *args, **options)

    # torch takes the innermost frame outside of these files for the line that asks for a condition.
    files = symbolic_shapes.uninteresting_files() | {evaluate.__code__.co_filename}
    with (
        replaced(ShapeEnv, "evaluate_expr", evaluate),
        replaced(symbolic_shapes, "uninteresting_files", lambda: files),
    ):
        yield limit


def _weight(terms: int) -> int:
    """Return the cost of a condition in terms; from `LONG` on the cost is quadratic."""
    return max(terms, terms * terms // LONG)


@lru_cache(1 << 16)
def _terms(expression: Any) -> int:
    """Return the number of operators, symbols and numbers of an expression."""
    return 1 + sum(map(_terms, getattr(expression, "args", ())))
