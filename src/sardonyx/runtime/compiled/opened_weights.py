"""Functions of a model with weights as inputs: which weights the model's function reads, whatever their elements are.

A function that was traced with weights as inputs cannot depend on their elements. If the model's function leaves views
of weights alone, or equals the opened one with constants in place of the weights, other weights give the same function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.compiler.analysis.strided_views import MOVEMENTS, view
from sardonyx.core.ir.graph import Function, Value, bodies_of, functions_of


def read_by_views(opened: Function, weights: Mapping[Value, int]) -> frozenset[int] | None:
    """Return the weights that a function reads; None if it computes more than views from one weight alone.

    Args:
        opened: The function with weights as inputs.
        weights: The index of each weight.
    """
    views, read = dict(weights), {weights[value] for value in opened.results if value in weights}
    for member in opened.values:
        if member.op in ("loop", "cond", "call", "host"):
            return None
        sources = {views[operand] for operand in member.operands if operand in views}
        read |= sources
        if sources and all(operand in views or operand.is_constant for operand in member.operands):
            # A movement that is no view is a copy, which the plan cannot trace back to its weight.
            if member.op not in MOVEMENTS or view(member).base not in weights:
                return None
            (views[member],) = sources
    return frozenset(read)


def read_by_comparison(opened: Function, weights: Mapping[Value, int], traced: Function) -> frozenset[int] | None:
    """Return the weights that a function reads; None unless the traced function equals it but for the weights.

    A weight is a constant of the traced function, or a constant there is a view of it. Values that the traced function
    computes from weights alone stay in it as primitives, also in the bodies of control flow.

    Args:
        opened: The function with weights as inputs.
        weights: The index of each weight.
        traced: The function of the model.
    """
    inputs = [value for value in opened.inputs if value not in weights]
    if len(inputs) != len(traced.inputs):
        return None
    scopes = _Scope(_numbered(inputs), {}), _Scope(_numbered(traced.inputs), {})
    comparison = _Comparison(weights)
    return frozenset(comparison.read) if comparison.holds(opened, traced, scopes) else None


@dataclass(frozen=True, eq=False)
class _Scope:
    """The inputs of a function in a comparison.

    Attributes:
        own: The numbers of inputs that correspond to those of the other function.
        captured: Other inputs, with the values outside, each in its scope.
    """

    own: Mapping[Value, int]
    captured: Mapping[Value, _Member]


_Member = tuple[Value, "_Scope"]
_Scopes = tuple[_Scope, _Scope]


class _Comparison:
    """A comparison of two functions, value by value from the results.

    Args:
        weights: Inputs of the first function that are constants of the second one.

    Attributes:
        read: The weights that were met.
    """

    def __init__(self, weights: Mapping[Value, int]) -> None:
        self._weights, self.read = weights, set[int]()
        self._done = set[tuple[_Member, _Member]]()
        self._open: list[tuple[_Member, _Member]] = []

    def holds(self, first: Function, second: Function, scopes: _Scopes) -> bool:
        """Return True if the results of both functions are equal."""
        if not self._add(first.results, second.results, scopes):
            return False
        while self._open:
            pair = self._open.pop()
            if pair not in self._done:
                self._done.add(pair)
                if not self._corresponds(*map(_resolved, pair)):
                    return False
        return True

    def _add(self, first: Sequence[Value], second: Sequence[Value], scopes: _Scopes) -> bool:
        if len(first) != len(second):
            return False
        self._open += [((a, scopes[0]), (b, scopes[1])) for a, b in zip(first, second, strict=True)]
        return True

    def _corresponds(self, one: _Member, other: _Member) -> bool:
        (a, outer), (b, around) = one, other
        if b.is_constant:
            return _is_same_constant(a, b) if a.is_constant else self._is_view(one)
        if a.op != b.op or a.type != b.type:
            return False
        if a.op == "input":
            number = outer.own.get(a)
            return number is not None and number == around.own.get(b)
        if list(_parameters(a)) != list(_parameters(b)):
            return False
        if a.op not in ("loop", "cond", "call"):
            return next(functions_of(a), None) is None and self._add(a.operands, b.operands, (outer, around))
        return self._has_same_bodies(one, other)

    def _has_same_bodies(self, one: _Member, other: _Member) -> bool:
        """Compare the functions of two values; inputs that only one of the functions has are captured weights."""
        (a, outer), (b, around) = one, other
        if a.op == "call":
            bodies = [(a.params["function"], b.params["function"])]
            before, own = 0, min(len(a.operands), len(b.operands))
            if len(a.operands) != len(b.operands) and bodies[0][0].node is not None:
                return False
        else:
            bodies = list(zip(bodies_of(a), bodies_of(b), strict=True))
            before, own = (0, 2 + a.params["carried"]) if a.op == "loop" else (1, 0)
        for body, twin in bodies:
            scopes = _inside(body, a.operands[before:], own, outer), _inside(twin, b.operands[before:], own, around)
            if not self._add(body.results, twin.results, scopes):
                return False
        shared = before + own
        return self._add(a.operands[:shared], b.operands[:shared], (outer, around))

    def _is_view(self, member: _Member) -> bool:
        """Return True if a value is a view of a weight, which is then read."""
        value, scope = member
        while value not in self._weights:
            if value.op not in MOVEMENTS and value not in scope.captured:
                return False
            base = view(value).base
            if base is value and value not in scope.captured:
                return False  # A movement that copies.
            value, scope = _resolved((base, scope))
        self.read.add(self._weights[value])
        return True


def _resolved(member: _Member) -> _Member:
    """Return the value outside of all functions that capture it."""
    value, scope = member
    while value in scope.captured:
        value, scope = scope.captured[value]
    return value, scope


def _inside(body: Function, operands: Sequence[Value], own: int, outer: _Scope) -> _Scope:
    pairs = zip(body.inputs[own:], operands[own:], strict=True)
    return _Scope(_numbered(body.inputs[:own]), {value: (operand, outer) for value, operand in pairs})


def _numbered(values: Sequence[Value]) -> dict[Value, int]:
    return {value: i for i, value in enumerate(values)}


def _parameters(value: Value) -> Iterator[tuple[str, Any]]:
    """Yield the parameters but functions."""
    functions = set(map(id, functions_of(value)))
    return ((name, param) for name, param in value.params.items() if id(param) not in functions)


def _is_same_constant(a: Value, b: Value) -> bool:
    if a is b:
        return True
    one, other = a.known, b.known
    if not isinstance(one, np.ndarray) or not isinstance(other, np.ndarray):
        return one is other
    same = one.dtype == other.dtype and one.shape == other.shape and one.dtype != object
    return same and one.tobytes() == other.tobytes()
