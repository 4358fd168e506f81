"""Values that depend on no input: evaluated once, at compile time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from sardonyx.core.eval.interpreter import evaluate
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.eval.tensor import Tensor, record
from sardonyx.core.ir.graph import CLOSED, Value, function


def is_closed(value: Value) -> bool:
    """Return True if a value depends on constants alone and all its sizes are integers."""
    if value.is_constant:
        return True
    if value.level != CLOSED:
        return False
    graph = function("closed", (), [value], 0)
    return not graph.free_symbols and all(member.level == CLOSED and member.op != "random" for member in graph.values)


def evaluate_closed(value: Value) -> np.ndarray:
    """Return the elements of a closed value."""
    if value.is_constant:
        return np.asarray(value.known)
    with running(RunContext()):
        (result,) = evaluate(function("closed", (), [value], 0), [])
    return np.asarray(result.known)


class _Computed(np.ndarray):
    """The elements of a constant, with the closed value that they were computed from.

    Attributes:
        source: The closed value; None for other views of the elements.
    """

    source: Value | None = None


def computed_constant(source: Value) -> Value:
    """Return the constant of a closed value's elements; :func:`source_of` returns the closed value.

    The constant is not interned, even if it is small: constants with the same elements may have other sources.
    """
    elements = np.array(evaluate_closed(source)).view(_Computed)
    elements.source = source
    return Tensor("constant", (), {"value": elements}, source.type)


def source_of(value: Value) -> Value | None:
    """Return the closed value that a constant was computed from, if known."""
    known = value.known
    return known.source if isinstance(known, _Computed) else None


def leaves_of(source: Value) -> Iterator[Value]:
    """Yield the constants that a closed value depends on, always in the same order."""
    return (member for member in function("closed", (), [source], 0).values if member.is_constant)


def over_leaves(source: Value, leaves: Mapping[Value, Value]) -> Value:
    """Return a closed value with other constants."""
    new = dict[Value, Value]()
    for member in function("closed", (), [source], 0).values:
        operands = tuple(new[operand] for operand in member.operands)
        new[member] = record(member.op, operands, dict(member.params), member.type) if operands else member
        new[member] = leaves.get(member, new[member])
    return new[source]
