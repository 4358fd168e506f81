"""Sums and products moved out of loops: many small products of iterations become one product of stacked rows.

The gradient of a loop adds a product of each iteration to the gradient of a weight, and computes the forward products
of saved rows again. Both depend on other iterations in no other way:

- A carried sum of products, reductions or scatters that nothing else reads is one product, reduction or scatter of
  collected operands.
- A product of a row ``x[i]`` by a value that all iterations share is a row of the product of ``x``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from sardonyx.core import language as L
from sardonyx.core.dim import Size, equal
from sardonyx.core.eval.substitution import substitute_values
from sardonyx.core.eval.tensor import apply, get, sizes_of
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import CLOSED, Value, scope
from sardonyx.core.ir.types import TensorType
from sardonyx.core.language import Tensor
from sardonyx.core.transform.simplify import simplify

_MOVEMENTS = ("permute", "reshape")
"""Linear primitives of one operand that may be applied to the sum instead of its terms."""


@dataclass(frozen=True)
class _Term:
    """One summand of a carried sum.

    Attributes:
        value: The ``contract``, ``reduce`` or ``scatter``.
        movements: Movements from the value to the summand, in order.
        collected: Operands of the value that each iteration gives.
        order: 1 if iterations write the rows of a scatter one after the other, -1 from the last to the first; else 0.
    """

    value: Value
    movements: tuple[Value, ...]
    collected: tuple[Value, ...]
    order: int = 0

    def total(self, stacked: Sequence[Tensor], initial: Tensor) -> Tensor:
        """Return the sum over all iterations.

        Args:
            stacked: The operands of all iterations, stacked along a new first axis.
            initial: The initial value of the sum, whose type a scatter has.
        """
        params = self.value.params
        result: Tensor
        if self.value.op == "contract":
            batch = [(a + 1, b + 1) for a, b in params["batch"]]
            left, right = ([0, *(axis + 1 for axis in params[side])] for side in ("left", "right"))
            result = L.contract(*stacked, batch=batch, left=left, right=right, dtype=params["dtype"])
        elif self.value.op == "reduce":
            result = apply("reduce", stacked[0], kind="add", axes=(0, *(axis + 1 for axis in params["axes"])))
        elif self.order == 0:
            result = apply("scatter", L.zeros_like(initial), *stacked, kind="add", batch=0)
        else:  # Each iteration writes another row.
            result = stacked[-1] if self.order > 0 else L.reverse(stacked[-1], [0])
            result = L.reshape(result, initial.shape)
        for movement in self.movements:
            result = apply(movement.op, result, **movement.params)
        return result


def move_sums_out(loop: Value) -> list[Value]:
    """Return the results of a loop while tracing, with sums and products of iterations moved out of the loop.

    Args:
        loop: A ``loop``; unchanged if nothing can be moved.
    """
    return _Loop(loop).results()


class _Loop:
    def __init__(self, loop: Value) -> None:
        self.loop = loop
        self.carried: int = loop.params["carried"]
        self.body = simplify(loop.params["body"])
        self.users = Counter(operand for value in self.body.values for operand in value.operands)
        self.users.update(self.body.results)
        self.number, _, *rest = self.body.inputs
        self.states, self.shared = rest[: self.carried], rest[self.carried :]
        self.invariant = self._invariant()

    def _invariant(self) -> set[Value]:
        """Return the values that are equal in all iterations."""
        varying = {self.number, *self.states}
        for value in self.body.values:
            if value in varying or not varying.isdisjoint(value.operands) or value.op in ("random", "host"):
                varying.add(value)
        return {value for value in self.body.values if value not in varying}

    def results(self) -> list[Value]:
        """Return the results of the loop, or of a smaller loop and values after it."""
        old = [get(self.loop, i) for i in range(len(self.loop.type.results))]  # type: ignore[union-attr]
        if self.body.defined_symbols or len(self.states) != self.carried:
            return list(old)
        sums = {i: terms for i in range(self.carried) if (terms := self._terms(i)) is not None}
        rows = self._rows()
        if not sums and not rows:
            return list(old)
        return self._rebuilt(sums, rows)

    # Carried sums.

    def _terms(self, index: int) -> list[_Term] | None:
        """Return the summands that iterations add to a carried value; None if it is no such sum."""
        state, result = self.states[index], self.body.results[1 + index]
        declared = state.type
        if not isinstance(declared, TensorType) or t.kind(declared.dtype) != "float" or result is state:
            return None
        if self.users[state] != 1 or self.users[result] != 1 or self.loop.operands[2 + index].type != declared:
            return None
        leaves: list[Value] = []
        waiting = [result]
        while waiting:
            value = waiting.pop()
            if value.op == "add" and self.users[value] == 1 and value is not state:
                waiting += value.operands
            else:
                leaves.append(value)
        if leaves.count(state) != 1:
            return None
        terms = [self._term(leaf) for leaf in leaves if leaf is not state]
        return None if any(term is None for term in terms) else cast("list[_Term]", terms)

    def _term(self, value: Value) -> _Term | None:
        movements: list[Value] = []
        while value.op in _MOVEMENTS:
            movements.insert(0, value)
            value = value.operands[0]
        operands = value.operands
        if value.op == "scatter":
            if movements or value.params["kind"] != "add" or value.params["batch"] or not _is_zero(operands[0]):
                return None
            order = self._order(value)
            return _Term(value, (), operands[2:] if order else operands[1:], order)
        if value.op != "contract" and not (value.op == "reduce" and value.params["kind"] == "add"):
            return None
        if any(operand in self.invariant for operand in operands):
            return None
        return _Term(value, tuple(movements), operands)

    def _order(self, scatter: Value) -> int:
        """Return the order in which iterations write each row of a target once; 0 if this is not known."""
        target, index = (operand.type for operand in scatter.operands[:2])
        count = sizes_of(cast("Tensor", self.loop.operands[0]))
        if not isinstance(target, TensorType) or not isinstance(index, TensorType) or index.shape != (1,):
            return 0
        if count is None or not target.shape or equal(target.shape[0], count[0]) is not True:
            return 0
        return self._step(scatter.operands[1], count[0])

    def _step(self, index: Value, count: Size) -> int:
        """Return 1 if an index is the iteration number, -1 if it is the last number minus that, else 0."""
        if index is self.number:
            return 1
        if index.op == "reshape":
            return self._step(index.operands[0], count)
        if index.op == "select":  # Numbers below 0 would count from the end; there are none.
            condition, _, otherwise = index.operands
            is_negative = (
                condition.op == "less" and condition.operands[0] is otherwise and _is_zero(condition.operands[1])
            )
            return self._step(otherwise, count) if is_negative else 0
        if index.op == "sub":
            first, second = index.operands
            last = sizes_of(cast("Tensor", first))
            is_last = last is not None and len(last) == 1 and equal(last[0], count - 1) is True
            return -self._step(second, count) if is_last else 0
        return 0

    # Products of rows.

    def _rows(self) -> dict[Value, tuple[Value, int]]:
        """Return the products of a row by a shared value: the ``gather`` of the row, and its operand's position."""
        count = sizes_of(cast("Tensor", self.loop.operands[0]))
        products: dict[Value, tuple[Value, int]] = {}
        for value in self.body.values:
            if value.op != "contract" or value.params["batch"] or count is None:
                continue
            for position in (0, 1):
                row, other = value.operands[position], value.operands[1 - position]
                if other in self.invariant and self._is_row(row, count[0]) and not other.is_constant:
                    products[value] = row, position
        return products

    def _is_row(self, row: Value, count: object) -> bool:
        if row.op != "gather" or row.params["batch"] or row.operands[0] not in self.shared:
            return False
        source, index = (operand.type for operand in row.operands)
        if not isinstance(source, TensorType) or not isinstance(index, TensorType):
            return False
        return index.shape == (1,) and bool(source.shape) and equal(source.shape[0], count) is True  # type: ignore[index,arg-type]

    # The new loop.

    def _rebuilt(self, sums: Mapping[int, list[_Term]], rows: Mapping[Value, tuple[Value, int]]) -> list[Value]:
        count, go, *operands = self.loop.operands
        initial, shared = operands[: self.carried], operands[self.carried :]
        remaining = [i for i in range(self.carried) if i not in sums]
        outside = dict(zip(self.shared, shared, strict=True))
        lifted = {product: self._lifted(product, *row, outside) for product, row in rows.items()}
        collected = list(dict.fromkeys(x for terms in sums.values() for term in terms for x in term.collected))

        def once(i: Tensor, *state: Value) -> tuple[Tensor, Sequence[Value], Sequence[Value]]:
            arguments = {self.number: cast("Value", i), self.body.inputs[1]: L.constant(True, t.BOOL), **outside}
            arguments |= dict(zip(self.states, initial, strict=True))
            arguments |= {self.states[index]: value for index, value in zip(remaining, state, strict=True)}
            for product, (row, _) in rows.items():
                (at,) = self._inside([row.operands[1]], arguments)
                arguments[product] = apply("gather", lifted[product], at, batch=0)
            results = self.body.results
            selected = [results[0], *(results[1 + i] for i in remaining), *results[1 + self.carried :], *collected]
            again, *after = self._inside(selected, arguments)
            return cast("Tensor", again), after[: len(remaining)], after[len(remaining) :]

        final, stacked = L.loop(cast("Tensor", count), cast("Tensor", go), [initial[i] for i in remaining], once)
        old_rows = len(self.body.results) - 1 - self.carried
        by_value = dict(zip(collected, stacked[old_rows:], strict=True))
        states: dict[int, Value] = dict(zip(remaining, final, strict=True))
        for index, terms in sums.items():
            total = cast("Tensor", initial[index])
            for term in terms:
                added = term.total([by_value[x] for x in term.collected], cast("Tensor", initial[index]))
                total = added if _is_zero(total) else total + added
            states[index] = total
        return [*(states[i] for i in range(self.carried)), *stacked[:old_rows]]

    def _inside(self, values: Sequence[Value], arguments: Mapping[Value, Value]) -> list[Value]:
        around = scope.get()
        level = CLOSED if around is None else around.level
        return substitute_values(values, arguments, level=level, inside=set(self.body.values).__contains__)

    def _lifted(self, product: Value, row: Value, position: int, outside: Mapping[Value, Value]) -> Tensor:
        """Return the product of all rows: the axis of the rows is the first of the result."""
        whole = outside[row.operands[0]]
        (other,) = self._inside([product.operands[1 - position]], outside)
        params = product.params
        own, others = (params["left"], params["right"]) if position == 0 else (params["right"], params["left"])
        shifted = [axis + 1 for axis in own]
        tensors = cast("list[Tensor]", [whole, other])
        result: Tensor = L.contract(*tensors, batch=[], left=shifted, right=list(others), dtype=params["dtype"])
        if position == 1:  # The free axes of the other operand are first in the product.
            rank = len(cast("TensorType", row.type).shape or ()) - len(own)
            last = result.rank - 1 - rank
            result = L.permute(result, [0, *range(1 + rank, 1 + rank + last), *range(1, 1 + rank)])
        return result


def _is_zero(value: Value) -> bool:
    while value.op in ("broadcast", "reshape"):
        value = value.operands[0]
    return value.is_constant and isinstance(value.type, TensorType) and not np.any(np.asarray(value.known))
