"""Merge products with a common first operand into one product; readers slice its columns.

The queries, keys and values of an attention are such products. One kernel reads the shared operand once, and has more
columns to distribute over threads.

A product may be followed by additions of and multiplications by constants, one per column. The steps of the products
may differ: a missing step is filled with -0 or 1, which changes no bit. Only products written to memory anyway are
merged, i.e. products read through movements or in another shape; a product with a fusible epilogue is not merged. A
product that is a further gate of a multi-gate product is merged too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.compiler.analysis.constant_values import computed_constant, evaluate_closed, is_closed
from sardonyx.compiler.analysis.low_bit_weights import match_low_bits
from sardonyx.compiler.analysis.multi_gate_matmul import MOST_GATES
from sardonyx.compiler.analysis.primitive_traits import dtype_of, is_elementwise
from sardonyx.compiler.analysis.strided_views import MOVEMENTS, shape_of
from sardonyx.core.eval.tensor import apply, constant, record
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.rules.type_rules import TYPE_RULES
from sardonyx.core.transform.rewriting import Match, Rewriter, RuleSet

_NEUTRAL = {"add": -0.0, "mul": 1.0}
"""Steps after a product that may be merged, with their neutral constant."""

Users = Mapping[Value, Sequence[Value]]


@dataclass(frozen=True)
class Branch:
    """A product and its column-wise epilogue.

    Attributes:
        product: The ``contract``.
        steps: Primitives with a closed value for each column, shape [columns].
        last: The value after the steps.
    """

    product: Value
    steps: tuple[tuple[str, Value], ...]
    last: Value

    @property
    def columns(self) -> int:
        """The number of columns."""
        size = shape_of(self.product)[-1]
        assert isinstance(size, int)
        return size


def merge_matmuls(inner: Function) -> Function:
    """Return the function with products that share the first operand merged."""
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
            is_stored = _is_in_memory(branch, users, set(inner.results))
            (families if is_stored else gates).setdefault(key, []).append(branch)
    for key, others in gates.items():
        if len(wide := families.get(key, [])) == 1 and _are_gates(wide[0], others, users):
            wide += others
    merged = [branches for branches in families.values() if len(branches) > 1]
    return MERGES.apply(inner, _Merges.of(merged)) if merged else inner


def _is_candidate(value: Value) -> bool:
    """Return True if a value is a product by a constant matrix."""
    return (
        value.op == "contract"
        and not value.params["batch"]
        and dtype_of(value) in (t.FLOAT, t.DOUBLE)
        and len(shape_of(value.operands[1])) == 2
        and len(value.params["right"]) == 1
        and not is_closed(value.operands[0])
        and is_closed(value.operands[1])
        and match_low_bits(value.operands[1]) is None
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


def _columns(value: Value) -> Value | None:
    """Return the elements along the last axis if constant and equal along all other axes, or None."""
    width = shape_of(value)[-1]
    source = value
    while source.op == "broadcast":
        source = source.operands[0]
    if not is_closed(source):
        return None
    shape = shape_of(source)
    if shape and shape[-1] == width and all(size == 1 for size in shape[:-1]):
        return _recorded("reshape", source, shape=(width,))
    array = evaluate_closed(source)
    rows = np.broadcast_to(array, (*array.shape[:-1], width)).reshape(-1, width)  # type: ignore[arg-type]
    # A copy, which is no view of a weight: later weights may have rows that differ.
    return constant(rows[0].copy()) if len(rows) and (rows == rows[:1]).all() else None


def _is_in_memory(branch: Branch, users: Users, results: set[Value]) -> bool:
    """Return True if the product is written to memory, because all readers use other strides."""
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
    """Return True if products are further gates of a product whose columns are read gate by gate.

    See :mod:`sardonyx.compiler.analysis.multi_gate_matmul`.
    """
    units = others[0].columns
    parts = users.get(wide.last, ())
    return (
        all(branch.columns == units for branch in others)
        and wide.columns % units == 0
        and wide.columns // units + len(others) <= MOST_GATES
        and all(part.op == "slice" and shape_of(part)[-1] == units for part in parts)
        and all(is_elementwise(user) for part in parts for user in users.get(part, ()))
    )


def _merge_steps(branches: Sequence[Branch]) -> list[tuple[str, list[Value | None]]] | None:
    """Return the aligned steps of all branches, with the constants of each; None if the orders conflict."""
    longest = max(branches, key=lambda branch: len(branch.steps))
    steps: list[tuple[str, list[Value | None]]] = [(op, []) for op, _ in longest.steps]
    for branch in branches:
        left = list(branch.steps)
        for op, constants in steps:
            constants.append(left.pop(0)[1] if left and left[0][0] == op else None)
        if left:
            return None
    return steps


MERGES = RuleSet("merge matmuls")


@dataclass
class _Merges:
    """State of one pass.

    Attributes:
        locations: By the last value of a branch: all branches of the merged product, and the first column of this one.
        whole: The merged products, by the first product of each.
    """

    locations: dict[Value, tuple[Sequence[Branch], int]]
    whole: dict[Value, Value]

    @classmethod
    def of(cls, families: Sequence[Sequence[Branch]]) -> _Merges:
        """Return the state for products to merge, without those whose steps conflict."""
        locations: dict[Value, tuple[Sequence[Branch], int]] = {}
        for branches in families:
            if _merge_steps(branches) is not None:
                starts = itertools.accumulate((branch.columns for branch in branches), initial=0)
                locations |= {b.last: (branches, start) for b, start in zip(branches, starts, strict=False)}
        return cls(locations, {})


@MERGES.rule("slice")
def slice_of_branch(m: Match, x: Value, **params: Any) -> Value | None:
    """A slice of a branch is a slice of the merged product."""
    location = m.context.locations.get(m.value.operands[0])
    if location is None:
        return None
    branches, start = location
    starts, limits = ((*params[name][:-1], params[name][-1] + start) for name in ("starts", "limits"))
    whole = m.context.whole[branches[0].product]
    return m.rewriter.record(m.value, (whole,), {**params, "starts": starts, "limits": limits})


@MERGES.rule("contract", *_NEUTRAL)
def branch_of_product(m: Match, *operands: Value, **params: Any) -> Value | None:
    """The last value of a branch is a slice of the columns of the merged product."""
    location = m.context.locations.get(m.value)
    if location is None:
        return None
    branches, start = location
    first = branches[0].product
    if first not in m.context.whole:
        m.context.whole[first] = _merged_product(branches, m.rewriter)
    whole, shape = m.context.whole[first], m.type.shape
    starts = (*(0 for _ in shape[:-1]), start)
    limits = (*shape[:-1], start + shape[-1])
    return apply("slice", whole, starts=starts, limits=limits, strides=(1,) * len(shape))


def _merged_product(branches: Sequence[Branch], rewriter: Rewriter) -> Value:
    first = branches[0].product
    axis = 1 - first.params["right"][0]
    # No constant even for few elements, so that other weights can replace the matrices.
    weights = _recorded("concat", *(branch.product.operands[1] for branch in branches), axis=axis)
    whole: Value = apply("contract", rewriter.new[first.operands[0]], weights, **first.params)
    whole.origin = first.origin
    for op, constants in _merge_steps(branches) or ():
        whole = apply(op, whole, _broadcast_columns(whole, list(_fill_missing(op, constants, branches))))
        whole.origin = first.origin
    return whole


def _recorded(op: str, *operands: Value, **params: Any) -> Value:
    return record(op, operands, params, TYPE_RULES[op](*[operand.type for operand in operands], **params))


def _fill_missing(op: str, constants: Sequence[Value | None], branches: Sequence[Branch]) -> Iterator[Value]:
    for columns, branch in zip(constants, branches, strict=True):
        dtype = dtype_of(branch.product)
        missing = np.full(branch.columns, _NEUTRAL[op], t.numpy_dtype(dtype))
        yield constant(missing, dtype) if columns is None else columns


def _broadcast_columns(like: Value, columns: Sequence[Value]) -> Value:
    shape = shape_of(like)
    row = _recorded("reshape", _recorded("concat", *columns, axis=0), shape=(*(1,) * (len(shape) - 1), shape[-1]))
    return apply("broadcast", computed_constant(row), shape=shape)
