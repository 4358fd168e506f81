"""Operands of the backward pass computed again from values that stay in memory anyway.

The gradient of a weight reads the other operand of the forward product: the result of an activation or a normalization.
The backward pass of that function reads the function's own operand. Both would stay in memory from the forward to the
backward pass; a few operations an element compute the first from the second when a product reads it.

``stop_gradient`` tells the two computations apart: equal values of one function are one value.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sardonyx.core.eval.run_context import tracing
from sardonyx.core.eval.substitution import Substitution
from sardonyx.core.eval.tensor import apply
from sardonyx.core.ir.graph import Function, Value, dependencies, function
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.ir.types import TensorType

_ELEMENTWISE = frozenset(p.name for p in PRIMITIVES.values() if p.kind in ("unary", "binary", "ternary")) | {"convert"}
_MOVEMENTS = frozenset({"reshape", "permute", "broadcast"})

_FEWEST_ELEMENTS = 1 << 15
"""Fewest elements, by the known sizes, of a value that is computed again."""

_MOST_OPERATIONS = 16
"""Most elementwise primitives of such a computation; the product that reads the value takes hundreds an element."""

_SMALL = 8
"""A value with fewer elements than the recomputed one by this factor, as a mean of each row, may stay in memory."""


def with_recomputed_operands(inner: Function, forward: int) -> Function:
    """Return the function whose backward pass computes some operands of products again.

    Args:
        inner: A function for results of a forward pass and gradients.
        forward: Number of results of the forward pass, which come first.
    """
    plan = _Plan.of(inner, forward)
    if not plan.leaves:
        return inner
    with tracing():
        rebuilt = _Recomputation(plan, inner).rebuild_all(inner.results)
    return function(inner.name, inner.inputs, rebuilt, inner.level, inner.node)


@dataclass(frozen=True)
class _Plan:
    """The values to compute again.

    Attributes:
        ahead: The values of the forward pass.
        leaves: By value to compute again, the values that the computation begins with.
    """

    ahead: frozenset[Value]
    leaves: Mapping[Value, frozenset[Value]]

    @classmethod
    def of(cls, inner: Function, forward: int) -> _Plan:
        ahead = _closure(inner, inner.results[:forward])
        behind: dict[Value, list[Value]] = {}
        for value in inner.values:
            if value not in ahead:
                for operand in value.operands:
                    behind.setdefault(operand, []).append(value)
        leaves: dict[Value, frozenset[Value]] = {}
        for value in inner.values:
            if value in ahead and value in behind and _is_read_by_product(value, behind):
                own = _Search(value, behind).run()
                if own is not None:
                    leaves[value] = own
        # What a computation begins with stays in memory, so that it is read as it is.
        begins = {leaf for own in leaves.values() for leaf in own}
        return cls(frozenset(ahead), {value: own for value, own in leaves.items() if value not in begins})


def _closure(inner: Function, roots: Iterable[Value]) -> set[Value]:
    """Return the values that some results depend on."""
    seen: set[Value] = set()
    waiting = list(roots)
    while waiting:
        value = waiting.pop()
        if value not in seen:
            seen.add(value)
            waiting.extend(dependencies(value, inner.level))
    return seen


def _is_read_by_product(value: Value, behind: Mapping[Value, list[Value]]) -> bool:
    """Return True if a product of the backward pass reads a value, or a movement of the value."""
    waiting = [value]
    while waiting:
        for user in behind.get(waiting.pop(), ()):
            if user.op == "contract":
                return True
            if user.op in _MOVEMENTS:
                waiting.append(user)
    return False


def _elements(value: Value) -> int:
    """Return the number of elements, by the known sizes; 0 for other than tensors."""
    shape = value.type.shape if isinstance(value.type, TensorType) else None
    return 0 if shape is None else math.prod(size for size in shape if isinstance(size, int))


class _Search:
    """The search for the values that a value may be computed again from.

    Args:
        value: The value.
        behind: The readers in the backward pass.
    """

    def __init__(self, value: Value, behind: Mapping[Value, list[Value]]) -> None:
        self.value, self.behind = value, behind
        self.operations = 0

    def run(self) -> frozenset[Value] | None:
        """Return the values; None if the value is small, or is the result of too many operations on others."""
        if _elements(self.value) < _FEWEST_ELEMENTS:
            return None
        leaves = self._of_operands(self.value)
        if leaves is None or not 0 < self.operations <= _MOST_OPERATIONS:
            return None
        return leaves

    def _of_operands(self, value: Value) -> frozenset[Value] | None:
        if value.op not in _ELEMENTWISE and value.op not in _MOVEMENTS:
            return None
        self.operations += value.op in _ELEMENTWISE
        if self.operations > _MOST_OPERATIONS:
            return None
        leaves: set[Value] = set()
        for operand in value.operands:
            own = self._of(operand)
            if own is None:
                return None
            leaves |= own
        return frozenset(leaves)

    def _of(self, value: Value) -> frozenset[Value] | None:
        """Return the values that an operand is computed from: values farther away, if these are in memory too."""
        if value.op in ("constant", "input") or _SMALL * _elements(value) <= _elements(self.value):
            return frozenset({value})
        before = self.operations
        leaves = self._of_operands(value)
        if leaves is None and value in self.behind:
            self.operations = before
            return frozenset({value})
        return leaves


class _Recomputation(Substitution):
    """The function with the copies of a plan."""

    def __init__(self, plan: _Plan, inner: Function) -> None:
        super().__init__({}, {}, inner.level, set(inner.values).__contains__)
        self._plan = plan
        self._copies: dict[tuple[Value, frozenset[Value]], Value] = {}

    def rebuild(self, value: Value) -> Value:
        """Return a value over its rebuilt operands; the backward pass reads copies."""
        if value in self._plan.ahead:
            return super().rebuild(value)
        operands = tuple([self._operand(operand) for operand in value.operands])
        params: dict[str, Any] = {name: self.part(param) for name, param in value.params.items()}
        return self.rebuild_with(value, operands, params)

    def _operand(self, operand: Value) -> Value:
        leaves = self._plan.leaves.get(operand)
        return self.new[operand] if leaves is None else self._copy(operand, leaves)

    def _copy(self, value: Value, leaves: frozenset[Value]) -> Value:
        """Return a copy of a value that is computed from copies up to the leaves."""
        if value in leaves:
            is_constant = value.op == "constant"
            return self.new[value] if is_constant else apply("stop_gradient", self.new[value])
        key = value, leaves
        if key not in self._copies:
            operands = tuple([self._copy(operand, leaves) for operand in value.operands])
            copy = self.record(value, operands, {name: self.part(param) for name, param in value.params.items()})
            copy.origin = copy.origin or value.origin
            self._copies[key] = copy
        return self._copies[key]
