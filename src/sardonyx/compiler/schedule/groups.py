"""Groups: the values of one kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sardonyx.compiler.analysis.primitive_traits import ELEMENTWISE, REGIONS, WHOLE, Rows
from sardonyx.compiler.tiling import costs
from sardonyx.core.ir.graph import Value

_DIVISIONS = frozenset({"div", "sqrt", "rem"})
_FUNCTIONS = frozenset(
    ("exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh")
) | {"erf", "pow"}


def operations(values: Iterable[Value]) -> int:
    """Return the cost of an element of elementwise values, in additions."""
    return sum(_operations_of(value.op) for value in values if value.op in ELEMENTWISE)


def _operations_of(primitive: str) -> int:
    if primitive in _FUNCTIONS:
        return costs.FUNCTION_OPERATIONS
    return costs.DIVISION_OPERATIONS if primitive in _DIVISIONS else 1


@dataclass(eq=False)
class Group:
    """The values of one kernel.

    Attributes:
        root: The value written to memory last.
        others: Other values written to memory.
        members: All computed values, with the root; movements and sources are not listed.
        rows: The shape and axes of the group's reductions; None without reductions.
        anchor: The contraction around which the kernel is built; None without one.
        reason: The reason why the group ends at the root.
    """

    root: Value
    reason: str
    members: set[Value] = field(default_factory=set)
    rows: Rows | None = None
    anchor: Value | None = None
    others: tuple[Value, ...] = ()

    @property
    def roots(self) -> tuple[Value, ...]:
        """All values that the kernel writes to memory."""
        return (*self.others, self.root)

    @property
    def kind(self) -> str:
        """The primitive around which the kernel is built, ``map`` or ``rows``."""
        if self.anchor is not None:
            return self.anchor.op
        if self.root.op in REGIONS | WHOLE:
            return self.root.op
        return "map" if self.rows is None else "rows"
