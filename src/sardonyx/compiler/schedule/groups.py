"""Groups: the values of one kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sardonyx.compiler.analysis.primitive_traits import ELEMENTWISE, REGIONS, WHOLE, Rows
from sardonyx.core.ir.graph import Value

_COSTLY = "exp log sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf pow"
_COSTS = {**dict.fromkeys(("div", "sqrt", "rem"), 4), **dict.fromkeys(_COSTLY.split(), 12)}


def operations(values: Iterable[Value]) -> int:
    """Return the cost of an element of elementwise values, in additions."""
    return sum(_COSTS.get(value.op, 1) for value in values if value.op in ELEMENTWISE)


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
