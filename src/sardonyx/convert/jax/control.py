"""Branches, loops and scans."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.convert.jax.translation import (
    COMPLEX_RULES,
    RULES,
    Context,
    dtype_of,
    is_pair,
    part_count,
    part_type,
    rule,
)


def _identities(c: Context, values: list[ir.Value]) -> list[ir.Value]:
    return [c.node("Identity", value) for value in values]


@rule("cond")
def _cond(c: Context, e: Any, index: ir.Value, *operands: ir.Value) -> list[ir.Value]:
    branches = e.params["branches"]
    if len(branches) == 2 and dtype_of(e.invars[0]) == np.bool_:
        condition = index
    else:
        condition = c.node("Greater", index, c.scalar(0, dtype_of(e.invars[0])))
    return _chosen(c, list(branches), index, condition, e, list(operands))


def _chosen(
    c: Context, branches: list[Any], index: ir.Value, condition: ir.Value, e: Any, operands: list[ir.Value]
) -> list[ir.Value]:
    """Return the results of the first branch if the condition fails, else of the rest."""
    graphs = []
    for rest in (branches[1:], branches[:1]):
        inner = c.inner()
        if len(rest) == 1:
            results = inner.call(rest[0].jaxpr, rest[0].consts, operands)
        else:
            number = len(e.params["branches"]) - len(rest)
            more = inner.node("Greater", index, inner.scalar(number, dtype_of(e.invars[0])))
            results = _chosen(inner, rest, index, more, e, operands)
        graphs.append(inner.graph([], _identities(inner, results), "branch"))
    return c.nodes_of("If", len(e.outvars), condition, then_branch=graphs[0], else_branch=graphs[1])


def _typed(c: Context, name: str, variable: Any, rank: int | None = None) -> ir.Value:
    sizes = [n if isinstance(n, int) else None for n in variable.aval.shape]
    sizes += [part_count(variable)] if is_pair(variable) else []
    kind = ir.DataType.from_numpy(part_type(variable))
    return ir.Value(name=c.names.fresh(name), type=ir.TensorType(kind), shape=ir.Shape(sizes))


def _counter(c: Context) -> list[ir.Value]:
    kinds = (("step", ir.DataType.INT64), ("going", ir.DataType.BOOL))
    return [ir.Value(name=c.names.fresh(n), type=ir.TensorType(k), shape=ir.Shape([])) for n, k in kinds]


@rule("while")
def _while(c: Context, e: Any, *operands: ir.Value) -> list[ir.Value]:
    p = e.params
    first, second = int(p["cond_nconsts"]), int(p["cond_nconsts"]) + int(p["body_nconsts"])
    cond_constants, body_constants, states = (
        list(operands[:first]),
        list(operands[first:second]),
        list(operands[second:]),
    )
    condition, body = p["cond_jaxpr"], p["body_jaxpr"]
    (begins,) = c.call(condition.jaxpr, condition.consts, [*cond_constants, *states])
    inner = c.inner()
    carried = [_typed(inner, "state", variable) for variable in e.outvars]
    results = inner.call(body.jaxpr, body.consts, [*body_constants, *carried])
    lanes = condition.out_avals[0].shape
    if not lanes:
        (again,) = inner.call(condition.jaxpr, condition.consts, [*cond_constants, *results])
        graph = inner.graph([*_counter(inner), *carried], _identities(inner, [again, *results]), "body")
        return c.nodes_of("Loop", len(states), None, begins, *states, body=graph)
    # A loop under vmap: states of elements whose condition fails stay, until all fail.
    going = ir.Value(
        name=inner.names.fresh("lanes"),
        type=ir.TensorType(ir.DataType.BOOL),
        shape=ir.Shape([n if isinstance(n, int) else None for n in lanes]),
    )
    states_after = []
    for variable, new, old in zip(e.outvars, results, carried, strict=True):
        axes = list(range(len(lanes), len(variable.aval.shape) + is_pair(variable)))
        states_after.append(
            inner.node("Where", inner.node("Unsqueeze", going, inner.ints(axes)) if axes else going, new, old)
        )
    (again,) = inner.call(condition.jaxpr, condition.consts, [*cond_constants, *states_after])
    body_results = _identities(inner, [_any(inner, again), again, *states_after])
    graph = inner.graph([*_counter(inner), going, *carried], body_results, "body")
    return c.nodes_of("Loop", len(states) + 1, None, _any(c, begins), begins, *states, body=graph)[1:]


def _any(c: Context, x: ir.Value) -> ir.Value:
    """Return whether one element holds, as a scalar."""
    count = c.node("ReduceSum", c.node("Cast", x, to=ir.DataType.INT64), keepdims=0)
    return c.node("Greater", count, c.scalar(0, np.dtype(np.int64)))


@rule("scan")
def _scan(c: Context, e: Any, *operands: ir.Value) -> list[ir.Value]:
    p = e.params
    first, second = int(p["num_consts"]), int(p["num_consts"]) + int(p["num_carry"])
    constants, states, sequences = list(operands[:first]), list(operands[first:second]), list(operands[second:])
    closed, length = p["jaxpr"], c.size_value(p["length"])
    inner = c.inner()
    counter = _counter(inner)
    carried = [_typed(inner, "state", variable) for variable in closed.jaxpr.invars[first:second]]
    position = counter[0]
    if p["reverse"]:
        last = inner.node("Sub", length, inner.constant(1, np.int64))
        position = inner.node("Sub", last, position)
    elements = [inner.node("Gather", sequence, position, axis=0) for sequence in sequences]
    results = inner.call(closed.jaxpr, closed.consts, [*constants, *carried, *elements])
    graph = inner.graph([*counter, *carried], _identities(inner, [counter[1], *results]), "body")
    count = len(e.outvars)
    values = c.nodes_of("Loop", count, length, c.constant(True), *states, body=graph)
    if p["reverse"]:
        minus = c.ints([-1])
        end = c.ints([-np.iinfo(np.int64).max])
        stacked = [c.node("Slice", value, minus, end, c.ints([0]), minus) for value in values[len(states) :]]
        values = [*values[: len(states)], *stacked]
    return values


# Branches and loops have pairs among their operands without a change.
COMPLEX_RULES.update({name: RULES[name] for name in ("cond", "while", "scan")})
