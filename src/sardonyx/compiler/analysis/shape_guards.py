"""Shape guards: relations of sizes that a function needs and only a run can check.

Core assumes sizes to be equal, and ordered (a slice within its axis, no negative size), unless the contrary is proven.
The interpreter checks the sizes of every value; compiled code is valid for sizes that satisfy the assumptions, and
would access memory outside of its buffers for others. An order a ≤ b is the pair of min(a, b) and a. Products of two
computed operands of 8-bit codes have so few terms that 32 bits hold their sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sardonyx.compiler.analysis.bounded_output import has_kernel
from sardonyx.compiler.analysis.control_flow import CONTROL
from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.core.dim import Dim, Size, dim_min, product, symbols
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.rules.type_rules import sizes_assumed_equal

Equal = tuple[Size, Size]
"""Two sizes that must be equal."""

WIDEST = 255
"""Largest difference of two 8-bit integers."""

MOST_TERMS = ((1 << 31) - 1) // WIDEST**2
"""Largest number of products of differences of two 8-bit integers whose sum fits 32 bits."""

_UNGUARDED = frozenset({*CONTROL, "call", "constant", "dims", "get", "host", "input"})
"""Primitives that assume no relation of operand sizes, or check the sizes in a run (loops, choices)."""


def collect_guards(function: Function) -> list[Equal]:
    """Return the pairs of sizes that must be equal in the function and its loops.

    Branches of a choice have guards of their own.
    """
    return list(dict.fromkeys(_guards(function, 1)))


def _guards(function: Function, executed: Size) -> Iterator[Equal]:
    """Yield the pairs of a function; ``executed`` is 0 if an enclosing loop has no iteration, else 1."""
    for value in function.values:
        if value.op not in _UNGUARDED or has_kernel(value):
            pairs = sizes_assumed_equal(value.op, [operand.type for operand in value.operands], value.params)
            # A loop over an empty axis reads no entry of the axis.
            yield from ((executed * a, executed * b) if value.op == "gather" else (a, b) for a, b in pairs)
        if value.op == "contract" and {dtype_of(x) for x in value.operands} == {t.UINT8, t.INT8}:
            terms = product(shape_of(value.operands[0])[axis] for axis in value.params["left"])
            if isinstance(terms, Dim):
                yield dim_min(terms, MOST_TERMS), terms
        for param in value.params.values():
            if isinstance(param, Function) and value.op != "cond":
                yield from _guards(param, executed * _is_executed(value))


def _is_executed(value: Value) -> Size:
    """Return 0 if a loop has no iteration, else 1; also 1 if the number of iterations depends on data."""
    count = value.operands[0] if value.op == "loop" else None
    return dim_min(1, *count.params["sizes"]) if count is not None and count.op == "dims" else 1


def select_known(pairs: Sequence[Equal], names: frozenset[str]) -> list[Equal]:
    """Return the pairs whose symbols are all in ``names``."""
    return [(a, b) for a, b in pairs if symbols(a) | symbols(b) <= names]
