"""Products that share their first operand, as one: a product with the columns of all, which readers see slices of.

The queries, keys and values of an attention are such products. As one kernel they read the shared operand once, and
have more columns for the threads to share.

Behind each product may stand additions and multiplications by constants of a column. Products need not have the same
ones: a step that another has is made with -0 or with 1, which changes no bit. Only products that are written to memory
anyway are joined, those that others read through movements or in another shape: what could follow a product in its own
kernel stays there. A product that is one more gate beside another's joins that too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sardonyx.compiler.analysis.constant_values import computed, is_closed
from sardonyx.compiler.analysis.multi_gate_matmul import MOST_GATES
from sardonyx.compiler.analysis.primitive_traits import dtype_of, is_elementwise
from sardonyx.compiler.analysis.strided_views import MOVEMENTS, shape_of
from sardonyx.core.eval.substitution import Substitution
from sardonyx.core.eval.tensor import apply, constant
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value, function

_NEUTRAL = {"add": -0.0, "mul": 1.0}
"""Steps behind a product that may be joined, with the constant that leaves every number as it is."""

Users = Mapping[Value, Sequence[Value]]


@dataclass(frozen=True)
class Branch:
    """A product, and what is done to it column by column.

    Attributes:
        product: The ``contract``.
        steps: Primitives with a constant for each column.
        last: The value after these.
    """

    product: Value
    steps: tuple[tuple[str, np.ndarray], ...]
    last: Value

    @property
    def columns(self) -> int:
        """How many columns it has."""
        size = shape_of(self.product)[-1]
        assert isinstance(size, int)
        return size


def joined(inner: Function) -> Function:
    """The function with products of one operand joined."""
    users: dict[Value, list[Value]] = {}
    for value in inner.values:
        for operand in dict.fromkeys(value.operands):
            users.setdefault(operand, []).append(value)
    families: dict[tuple[Value, object, object], list[Branch]] = {}
    gates: dict[tuple[Value, object, object], list[Branch]] = {}
    for value in inner.values:
        if _is_candidate(value):
            branch = _branch(value, users)
            key = (value.operands[0], value.params["left"], value.params["right"])
            kept = _is_in_memory(branch, users, set(inner.results))
            (families if kept else gates).setdefault(key, []).append(branch)
    for key, others in gates.items():
        if len(wide := families.get(key, [])) == 1 and _are_gates(wide[0], others, users):
            wide += others
    several = [branches for branches in families.values() if len(branches) > 1]
    if not several:
        return inner
    return function(inner.name, inner.inputs, _Joined(inner, several).values_of(inner.results), inner.level)


def _is_candidate(value: Value) -> bool:
    """Whether a value is a product of a matrix of constants."""
    return (
        value.op == "contract"
        and not value.params["batch"]
        and dtype_of(value) in (t.FLOAT, t.DOUBLE)
        and len(shape_of(value.operands[1])) == 2
        and len(value.params["right"]) == 1
        and not is_closed(value.operands[0])
        and is_closed(value.operands[1])
    )


def _branch(product: Value, users: Users) -> Branch:
    steps = []
    last = product
    while len(users.get(last, ())) == 1:
        (user,) = users[last]
        if user.op not in _NEUTRAL or shape_of(user) != shape_of(product) or user.operands.count(last) != 1:
            break
        (other,) = (operand for operand in user.operands if operand is not last)
        columns = _columns(other)
        if columns is None:
            break
        steps.append((user.op, columns))
        last = user
    return Branch(product, tuple(steps), last)


def _columns(value: Value) -> np.ndarray | None:
    """The elements of a value along its last axis, where they are constant and the same along all others."""
    width = shape_of(value)[-1]
    source = value
    while source.op == "broadcast":
        source = source.operands[0]
    if not is_closed(source):
        return None
    found = computed(source)
    rows = np.broadcast_to(found, (*found.shape[:-1], width)).reshape(-1, width)  # type: ignore[arg-type]
    return rows[0] if len(rows) and (rows == rows[:1]).all() else None


def _is_in_memory(branch: Branch, users: Users, results: set[Value]) -> bool:
    """Whether what a product gives is written to memory, and read from there with other steps between places."""
    waiting = [branch.last]
    while waiting:
        value = waiting.pop()
        if value in results:
            return False
        for user in users.get(value, ()):
            if user.op in MOVEMENTS:
                waiting.append(user)
            elif is_elementwise(user) and shape_of(user) == shape_of(branch.product):
                return False
    return True


def _are_gates(wide: Branch, others: Sequence[Branch], users: Users) -> bool:
    """Whether products are further gates to one whose columns are read gate by gate, see :mod:`.gates`."""
    units = others[0].columns
    parts = users.get(wide.last, ())
    return (
        all(branch.columns == units for branch in others)
        and wide.columns % units == 0
        and wide.columns // units + len(others) <= MOST_GATES
        and all(part.op == "slice" and shape_of(part)[-1] == units for part in parts)
        and all(is_elementwise(user) for part in parts for user in users.get(part, ()))
    )


def _merged(branches: Sequence[Branch]) -> list[tuple[str, list[np.ndarray | None]]] | None:
    """The steps of all branches as one row, with the constants of each; None where they do not fit one another."""
    longest = max(branches, key=lambda branch: len(branch.steps))
    found: list[tuple[str, list[np.ndarray | None]]] = [(op, []) for op, _ in longest.steps]
    for branch in branches:
        left = list(branch.steps)
        for op, constants in found:
            constants.append(left.pop(0)[1] if left and left[0][0] == op else None)
        if left:
            return None
    return found


class _Joined(Substitution):
    """One pass over a function."""

    def __init__(self, inner: Function, families: Sequence[Sequence[Branch]]) -> None:
        super().__init__({}, {}, inner.level, set(inner.values).__contains__)
        self._places: dict[Value, tuple[Sequence[Branch], int]] = {}
        for branches in families:
            if _merged(branches) is not None:
                starts = itertools.accumulate((branch.columns for branch in branches), initial=0)
                self._places |= {b.last: (branches, start) for b, start in zip(branches, starts, strict=False)}
        self._whole: dict[Value, Value] = {}

    def made(self, value: Value) -> Value:
        """The value of what its operands have become."""
        if value.op == "slice" and value.operands[0] in self._places:
            branches, start = self._places[value.operands[0]]
            starts, limits = (
                (*value.params[name][:-1], value.params[name][-1] + start) for name in ("starts", "limits")
            )
            return self.recorded(
                value, (self._whole[branches[0].product],), {**value.params, "starts": starts, "limits": limits}
            )
        if value not in self._places:
            return super().made(value)
        branches, start = self._places[value]
        first = branches[0].product
        if first not in self._whole:
            self._whole[first] = self._product(branches)
        whole, shape = self._whole[first], shape_of(value)
        starts = (*(0 for _ in shape[:-1]), start)
        limits = (*shape[:-1], start + shape[-1])
        found = apply("slice", whole, starts=starts, limits=limits, strides=(1,) * len(shape))
        found.origin = found.origin or value.origin
        return found

    def _product(self, branches: Sequence[Branch]) -> Value:
        first = branches[0].product
        axis = 1 - first.params["right"][0]
        weights = apply("concat", *(branch.product.operands[1] for branch in branches), axis=axis)
        found: Value = apply("contract", self.new[first.operands[0]], weights, **first.params)
        found.origin = first.origin
        for op, constants in _merged(branches) or ():
            found = apply(op, found, self._spread(found, list(self._filled(op, constants, branches))))
            found.origin = first.origin
        return found

    @staticmethod
    def _filled(op: str, constants: Sequence[np.ndarray | None], branches: Sequence[Branch]) -> Iterator[np.ndarray]:
        for found, branch in zip(constants, branches, strict=True):
            dtype = t.numpy_dtype(dtype_of(branch.product))
            yield np.full(branch.columns, _NEUTRAL[op], dtype) if found is None else found

    @staticmethod
    def _spread(like: Value, columns: Sequence[np.ndarray]) -> Value:
        shape = shape_of(like)
        row = constant(np.concatenate(columns).reshape(*(1,) * (len(shape) - 1), -1), dtype_of(like))
        return apply("broadcast", row, shape=shape)
