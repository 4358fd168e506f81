"""Guards: the conditions of a rewrite, ``pattern >> replacement | where(rank(x) == 2, unshared)``.

A guard is a function of the match that gives None where the condition holds, else the refusal. Guards on shapes with
symbols are in ``rules/broadcasting.py``, next to the functions of the same purpose for node rules.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.patterns import A, Guard, Match, Refusal, V

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Fact:
    """A property of a match, None if unknown; a comparison (``rank(x) == 2``) is a guard.

    In a replacement, a fact is an attribute or operand computed from the match: ``LeakyRelu(x, alpha=number(a))``.
    """

    def __init__(self, name: str, of: Callable[[Match], Any]) -> None:
        self._name = name
        self._of = of

    def __call__(self, match: Match) -> Any:
        """Return the value for this match."""
        return self._of(match)

    def __eq__(self, other: object) -> Guard:  # type: ignore[override]
        return self._compared("==", other)

    def __ne__(self, other: object) -> Guard:  # type: ignore[override]
        return self._compared("!=", other)

    def __lt__(self, other: object) -> Guard:
        return self._compared("<", other)

    def __le__(self, other: object) -> Guard:
        return self._compared("<=", other)

    def __gt__(self, other: object) -> Guard:
        return self._compared(">", other)

    def __ge__(self, other: object) -> Guard:
        return self._compared(">=", other)

    __hash__ = object.__hash__

    def _compared(self, symbol: str, other: object) -> Guard:
        compare = _COMPARISONS[symbol]
        if not isinstance(other, Fact):
            return self._guard(lambda value: compare(value, other), f"{symbol} {other}")

        def objection(match: Match) -> Refusal | None:
            left, right = self(match), other(match)
            if left is not None and right is not None and compare(left, right):
                return None
            return Refusal(f"expected {self._name} {symbol} {other._name}, got {_shown(left)} and {_shown(right)}")

        return objection

    def _guard(self, holds: Callable[[Any], bool], expected: str) -> Guard:
        def objection(match: Match) -> Refusal | None:
            value = self(match)
            if value is not None and holds(value):
                return None
            return Refusal(f"{self._name} is {_shown(value)}, expected {expected}")

        return objection


def _shown(value: object) -> str:
    return "unknown" if value is None else str(value)


def guard(holds: Callable[[Match], bool], otherwise: str) -> Guard:
    """Make a guard of a predicate.

    Args:
        holds: The predicate of a match.
        otherwise: The reason for refusing matches for which the predicate is false; "" refuses silently.
    """
    refusal = Refusal(otherwise)
    return lambda match: None if holds(match) else refusal


def rank(x: V) -> Fact:
    """The rank of a value."""
    return Fact(f"rank({x.name})", lambda m: facts.rank(m.bound[x.name]))


def dtype(x: V) -> Fact:
    """The element type of a value."""
    return Fact(f"dtype({x.name})", lambda m: facts.dtype(m.bound[x.name]))


def number(x: V) -> Fact:
    """The element of a constant of one element, as a Python number."""
    return Fact(f"number({x.name})", lambda m: facts.scalar(m.bound[x.name]))


def constant(x: V) -> Fact:
    """The elements of a constant of at most ``facts.SMALL`` elements, as an array."""
    return Fact(f"constant({x.name})", lambda m: facts.small_constant(m.bound[x.name]))


def attribute(a: A) -> Fact:
    """The value of an attribute."""
    return Fact(a.name, lambda m: m.bound[a.name])


def has_type(x: V, *types: ir.DataType) -> Guard:
    """Guard: the element type is one of these."""

    def objection(match: Match) -> Refusal | None:
        kind = facts.dtype(match.bound[x.name])
        if kind in types:
            return None
        actual = "unknown" if kind is None else kind.name
        return Refusal(f"the element type of {x.name} is {actual}, expected {' or '.join(t.name for t in types)}")

    return objection


def is_float(x: V) -> Guard:
    """Guard: the element type is a floating-point type."""

    def objection(match: Match) -> Refusal | None:
        kind = facts.dtype(match.bound[x.name])
        if kind is not None and kind.is_floating_point():
            return None
        return Refusal(f"the element type of {x.name} is {_shown(kind and kind.name)}, expected floating point")

    return objection


def same_shape(x: V, y: V) -> Guard:
    """Guard: both values have the same shape, symbols included."""
    return guard(
        lambda m: facts.same_shape(m.bound[x.name], m.bound[y.name]), f"{x.name} and {y.name} may differ in shape"
    )


def unshared(match: Match) -> Refusal | None:
    """Guard: only nodes of the match read the values between its operators."""
    nodes = match.nodes
    for node in nodes:
        if node is nodes[0]:
            continue
        for value in node.outputs:
            if value.is_graph_output() or any(use.node not in nodes for use in value.uses()):
                return Refusal(f"{node.op_type} '{value.name}' has other readers")
    return None
