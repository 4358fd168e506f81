"""Groups: the values that one kernel computes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sardonyx.compiler.analysis.primitive_traits import ELEMENTWISE, REGIONS, WHOLE, Rows
from sardonyx.core.ir.graph import Value

_COSTLY = "exp log sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf pow"
_COSTS = {**dict.fromkeys(("div", "sqrt", "rem"), 4), **dict.fromkeys(_COSTLY.split(), 12)}


def operations(values: Iterable[Value]) -> int:
    """What an element of elementwise values costs together, in additions."""
    return sum(_COSTS.get(value.op, 1) for value in values if value.op in ELEMENTWISE)


@dataclass(eq=False)
class Group:
    """Values that one kernel computes.

    Attributes:
        root: What it writes to memory, the last of all that it does.
        others: What else it writes.
        members: All that it computes, the root among them; movements and sources are not listed.
        rows: What its reductions share; None without any.
        anchor: The contraction that it is built around; None without one.
        reason: Why it ended at the root.
    """

    root: Value
    reason: str
    members: set[Value] = field(default_factory=set)
    rows: Rows | None = None
    anchor: Value | None = None
    others: tuple[Value, ...] = ()

    @property
    def roots(self) -> tuple[Value, ...]:
        """All that it writes to memory."""
        return (*self.others, self.root)

    @property
    def kind(self) -> str:
        """What it is built around, in a word."""
        if self.anchor is not None:
            return self.anchor.op
        if self.root.op in REGIONS | WHOLE:
            return self.root.op
        return "map" if self.rows is None else "rows"
