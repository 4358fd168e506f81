"""The conditions on sizes under which a function has results, where only a run decides them.

Core assumes sizes to be equal, and ordered (a slice within its axis, no negative size), unless the contrary is proven.
The interpreter tests the sizes of every value; compiled code is valid for sizes that satisfy the assumptions, and would
access memory outside of its buffers for others. An order a ≤ b is the pair of min(a, b) and a.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sardonyx.compiler.analysis.bounded_output import has_kernel
from sardonyx.compiler.analysis.control_flow import CONTROL
from sardonyx.core.dim import Size, dim_min, symbols
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.rules.type_rules import sizes_assumed_equal

Equal = tuple[Size, Size]
"""Two sizes that must be equal."""

_UNSEEN = frozenset({*CONTROL, "call", "constant", "dims", "get", "host", "input"})
"""Primitives that assume nothing of their operands, or test them in a run (loops, choices)."""


def required(function: Function) -> list[Equal]:
    """Return the sizes that must be equal, in the function and in its loops; branches of a choice have their own."""
    return list(dict.fromkeys(_required(function, 1)))


def _required(function: Function, executed: Size) -> Iterator[Equal]:
    """Yield the pairs of a function; ``executed`` is 0 if the function is not executed, which only a loop decides."""
    for value in function.values:
        if value.op not in _UNSEEN or has_kernel(value):
            pairs = sizes_assumed_equal(value.op, [operand.type for operand in value.operands], value.params)
            # A loop over an empty axis reads no entry of the axis.
            yield from ((executed * a, executed * b) if value.op == "gather" else (a, b) for a, b in pairs)
        for param in value.params.values():
            if isinstance(param, Function) and value.op != "cond":
                yield from _required(param, executed * _is_executed(value))


def _is_executed(value: Value) -> Size:
    """Return 0 if a loop has no iteration, else 1; 1 also if only data decide."""
    count = value.operands[0] if value.op == "loop" else None
    return dim_min(1, *count.params["sizes"]) if count is not None and count.op == "dims" else 1


def known(pairs: Sequence[Equal], names: frozenset[str]) -> list[Equal]:
    """Return the pairs of which all symbols are in ``names``."""
    return [(a, b) for a, b in pairs if symbols(a) | symbols(b) <= names]
