"""What sizes must be for a function to have results, where only a run tells them.

Core takes sizes for equal that are not proven different. The interpreter looks again at those it meets; compiled code
is made for sizes that are equal, and would read beyond the end of what it is given where they are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sardonyx.compiler.analysis.control_flow import CONTROL
from sardonyx.core.dim import Size, symbols
from sardonyx.core.ir.graph import Function
from sardonyx.core.rules.type_rules import sizes_assumed_equal

Equal = tuple[Size, Size]
"""Two sizes that must be equal."""

_UNSEEN = frozenset({*CONTROL, "call", "constant", "dims", "get", "host", "input"})
"""Primitives whose operands say nothing of each other, or that look at them in a run (loops, choices)."""


def required(function: Function) -> list[Equal]:
    """The sizes that must be equal, in the function and in its loops; branches of a choice have their own."""
    return list(dict.fromkeys(_required(function)))


def _required(function: Function) -> Iterator[Equal]:
    for value in function.values:
        if value.op not in _UNSEEN:
            yield from sizes_assumed_equal(value.op, [operand.type for operand in value.operands], value.params)
        for param in value.params.values():
            if isinstance(param, Function) and value.op != "cond":
                yield from _required(param)


def known(pairs: Sequence[Equal], names: frozenset[str]) -> list[Equal]:
    """Those of which all symbols are among some."""
    return [(a, b) for a, b in pairs if symbols(a) | symbols(b) <= names]
