"""Tracing: Python functions of tensors become functions of the graph, and control flow takes them.

Inside a run ``cond``, ``loop`` and ``call`` just call the Python function. While tracing, the function is called once
on inputs of its own; what it uses from outside becomes an operand (closure conversion), constants stay inside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from sardonyx.core.dim import Dim, Size, dim_max
from sardonyx.core.eval.assumptions import assumed
from sardonyx.core.eval.run_context import COUNTED, current_run, tracing
from sardonyx.core.eval.substitution import substitute_values
from sardonyx.core.eval.tensor import Tensor, apply, apply_any, constant, function_input, get, level_of, sizes_of
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import (
    CLOSED,
    DEFINED,
    Function,
    Scope,
    Value,
    define,
    definer,
    fresh_symbol,
    function,
    interned,
    scope,
    symbols_in,
)
from sardonyx.core.ir.types import Type
from sardonyx.core.rules.type_rules import TYPE_RULES, same_type
from sardonyx.errors import NeedsValueError, RuleError, TypeMismatchError

Traced = Callable[..., "Sequence[Value]"]

LoopBody = Callable[..., "tuple[Tensor | None, Sequence[Value], Sequence[Value]]"]
"""The body of a loop: whether to go on (None for yes), the carried values, the values to collect."""


@contextlib.contextmanager
def nested() -> Iterator[int]:
    """Enter the scope of one more function: its level."""
    inner = Scope(scope.get())
    token = scope.set(inner)
    try:
        yield inner.level
    finally:
        scope.reset(token)


def trace(name: str, body: Traced, types: Sequence[Type]) -> Function:
    """Call ``body`` on inputs of ``types`` and return the graph of what it gives.

    Raises:
        RuleError: It uses a value from outside; ``trace_closed`` takes those in.
    """
    traced, captured = trace_closed(name, body, types)
    if captured:
        raise RuleError(f"{name} uses {len(captured)} values from outside of it.", where=captured[0].origin)
    return traced


def trace_closed(name: str, body: Traced, types: Sequence[Type]) -> tuple[Function, tuple[Value, ...]]:
    """Call ``body`` on inputs of ``types``; returns its graph and what it uses from outside, its last inputs."""
    with nested() as level:
        inner = scope.get()
        assert inner is not None
        inputs = [function_input(level, position, type) for position, type in enumerate(types)]
        results = body(*inputs)
        captured = _captures(results, inner)
        outside = [function_input(level, len(inputs) + i, value.type) for i, value in enumerate(captured)]
        moved = dict(zip(captured, outside, strict=True))
        closed = substitute_values(results, moved, level=level, inside=lambda value: _is_inside(value, inner))
    return function(name, [*inputs, *outside], closed, level), tuple(captured)


def inline(inner: Function, arguments: Sequence[Value]) -> list[Value]:
    """The results of a function as values of the function being traced, of arguments of the types it takes."""
    sizes: dict[str, Size] = {}
    for declared, given in zip(inner.inputs, arguments, strict=True):
        if isinstance(declared.type, t.TensorType) and isinstance(given.type, t.TensorType):
            for old, new in zip(declared.type.shape or (), given.type.shape or (), strict=True):
                if isinstance(old, Dim) and old.atom is not None and old.atom.kind == "symbol":
                    sizes.setdefault(old.atom.name, new)
    around = scope.get()
    return substitute_values(
        inner.results,
        dict(zip(inner.inputs, arguments, strict=True)),
        {name: size for name, size in sizes.items() if size is not Dim.symbol(name)},
        level=CLOSED if around is None else around.level,
        inside=set(inner.values).__contains__,
    )


def _is_inside(value: Value, inner: Scope) -> bool:
    """Whether the value belongs to the function: made there, or of constants and sizes alone."""
    return value in inner.values or value.level == CLOSED


def _captures(results: Sequence[Value], inner: Scope) -> list[Value]:
    """Values from outside that the function reads, and results that are such themselves, in order."""
    found: dict[Value, None] = {}
    seen: set[Value] = set()
    waiting = list(reversed(results))
    while waiting:
        value = waiting.pop()
        if value not in seen:
            seen.add(value)
            if _is_inside(value, inner):
                waiting.extend(reversed((*value.operands, *(d for d in value.definers if _is_inside(d, inner)))))
            else:
                found[value] = None
    return list(found)


def call(name: str, body: Traced, operands: Sequence[Value]) -> tuple[Value, ...]:
    """Results of a function of the operands; whoever knows its name may compute it in a way of their own.

    Args:
        name: What it computes.
        body: The function.
        operands: What it is called with.
    """
    if current_run() is not None:
        return tuple(body(*operands))
    traced, captured = trace_closed(name, body, [value.type for value in operands])
    found = apply_any("call", *operands, *captured, function=traced)
    return tuple(get(found, i) for i in range(len(traced.results)))


# Control flow.


def cond(condition: Tensor, then: Traced, otherwise: Traced) -> tuple[Value, ...]:
    """Results of one of two functions without parameters, chosen by a boolean scalar.

    Raises:
        TypeMismatchError: While tracing, the functions give values of different types.
        NeedsValueError: While tracing, they give values of different ranks, and the condition is not known.
    """
    if condition.is_constant:
        return tuple(then() if bool(condition.known) else otherwise())
    first, first_captured = trace_closed("then", then, ())
    second, second_captured = trace_closed("else", otherwise, ())
    captured = tuple(dict.fromkeys((*first_captured, *second_captured)))
    branches = [
        _with_inputs(branch, used, captured) for branch, used in ((first, first_captured), (second, second_captured))
    ]
    if len(first.results) != len(second.results):
        raise TypeMismatchError(f"the branches give {len(first.results)} and {len(second.results)} values.")
    given = [[_outside(value.type, branch.defined_symbols) for value in branch.results] for branch in branches]
    try:
        types = [joined_type(a, b) for a, b in zip(*given, strict=True)]
    except NeedsValueError as error:
        choice = assumed(condition)
        if choice is None:
            raise NeedsValueError(error.problem, value=condition) from error
        return tuple(then() if choice.any() else otherwise())
    operands = (condition, *captured)
    params = {"then": branches[0], "otherwise": branches[1]}
    chosen = _recorded("cond", operands, params, types)
    return tuple(get(chosen, i) for i in range(len(types)))


def joined_type(a: Type, b: Type) -> Type:
    """A type that both values have: a fresh symbol where their sizes differ.

    Raises:
        NeedsValueError: The ranks differ; which it is must be known.
        TypeMismatchError: Anything else differs.
    """
    if a == b:
        return a
    if not isinstance(a, t.TensorType) or not isinstance(b, t.TensorType) or a.dtype != b.dtype:
        if same_type(a, b):
            return a
        raise TypeMismatchError(f"values of {a} and of {b} stand for one another.")
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        raise NeedsValueError(f"{a} and {b} stand for one another: their ranks differ.")
    return t.TensorType(
        a.dtype, tuple(x if x == y else Dim.symbol(fresh_symbol()) for x, y in zip(a.shape, b.shape, strict=True))
    )


def _recorded(op: str, operands: tuple[Value, ...], params: dict[str, Any], types: Sequence[Type]) -> Value:
    """Record control flow with results of ``types``; it defines the symbols in them that are new."""
    known = {symbol for operand in operands for symbol in symbols_in(operand.type)}
    new = tuple(s for s in dict.fromkeys(symbols_in(tuple(types))) if s.startswith(DEFINED) and s not in known)
    new = tuple(symbol for symbol in new if definer(symbol) is None)
    full = {**params, "results": tuple(types), "symbols": new}
    type = TYPE_RULES[op](*[operand.type for operand in operands], **full)
    level = level_of(operands)
    value = interned(Value, op, operands, full, type, level, tuple(full.values()))
    for symbol in new:
        define(symbol, value)
    return value


def _with_inputs(branch: Function, used: Sequence[Value], captured: Sequence[Value]) -> Function:
    """The function taking all of ``captured``, of which it used ``used``."""
    inputs = [function_input(branch.level, position, value.type) for position, value in enumerate(captured)]
    moved = dict(zip(branch.inputs, (inputs[captured.index(value)] for value in used), strict=True))
    results = substitute_values(branch.results, moved, level=branch.level, inside=set(branch.values).__contains__)
    return function(branch.name, inputs, results, branch.level)


def loop(
    count: Tensor | None,
    go: Tensor | None,
    carried: Sequence[Value],
    body: LoopBody,
    rows: Sequence[Type] | None = None,
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Repeat ``body`` while it asks for more and the count lasts.

    Args:
        count: Most iterations, an int64 scalar; None for no bound.
        go: Whether to begin, a boolean scalar; None for yes.
        carried: Values that every iteration takes and gives anew.
        body: Of the iteration's number (int64 scalar) and the carried values; gives whether to go on (boolean scalar,
            or None for yes), the carried values, and the values to collect.
        rows: Types of the values to collect: what a run without iterations gives if the body cannot be traced.

    Returns:
        The carried values at the end, and what was collected, stacked along a new first axis.

    Raises:
        TypeMismatchError: While tracing, a carried value changes its element type from one iteration to the next.
        NeedsValueError: While tracing, it changes its rank.
        ResourceError: In a run, it passes the limit on iterations, memory or time.
    """
    start = constant(True, t.BOOL) if go is None else go
    most = constant((1 << 63) - 1, t.INT64) if count is None else count
    if current_run() is not None:
        return _looped(most, start, carried, body, rows)

    def whole(i: Tensor, going: Tensor, *state: Value) -> list[Value]:
        again, after, scanned = body(i, *state)
        return [constant(True, t.BOOL) if again is None else again, *after, *scanned]

    traced, captured, state, scanned = _traced_loop(whole, most, start, carried)
    trips: Size = Dim.symbol(fresh_symbol())
    if count is not None and start.is_constant and traced.results[0].is_constant and bool(traced.results[0].known):
        trips = dim_max((sizes_of(count) or (trips,))[0], 0) if bool(start.known) else 0
    own = traced.defined_symbols | (set(symbols_in(tuple(state))) - set(symbols_in(tuple(v.type for v in carried))))
    stacked = [_stacked(_outside(row.type, own), trips) for row in scanned]
    final = [joined_type(before.type, after) for before, after in zip(carried, state, strict=True)]
    params = {"body": traced, "carried": len(carried)}
    results = _recorded("loop", (most, start, *carried, *captured), params, [*final, *stacked])
    found = [get(results, i) for i in range(len(final) + len(stacked))]
    return tuple(found[: len(final)]), tuple(found[len(final) :])


def _stacked(row: Type, trips: Size) -> Type:
    """The type of rows on a new first axis."""
    if not isinstance(row, t.TensorType):
        raise TypeMismatchError(f"a loop collects tensors, not {row}.")
    if row.shape is None:
        raise NeedsValueError("a rank of what a loop collects is only known at run time.")
    return t.TensorType(row.dtype, (trips, *row.shape))


def _traced_loop(
    whole: Traced, most: Tensor, start: Tensor, carried: Sequence[Value]
) -> tuple[Function, tuple[Value, ...], list[Type], tuple[Value, ...]]:
    """The body, what it captures, the types of what it carries, and the values that it collects.

    A size that changes from one iteration to the next is a symbol of the body's own.
    """
    types = [value.type for value in carried]
    while True:
        traced, captured = trace_closed("body", whole, [most.type, start.type, *types])
        after = [value.type for value in traced.results[1 : 1 + len(types)]]
        wider = [_widened(old, new, first.type) for old, new, first in zip(types, after, carried, strict=True)]
        if wider == types:
            return traced, captured, types, traced.results[1 + len(types) :]
        types = wider


def _widened(before: Type, after: Type, first: Type) -> Type:
    """The type of a carried value, with a fresh symbol for every size that an iteration changes."""
    if before == after or not isinstance(before, t.TensorType) or not isinstance(first, t.TensorType):
        if not same_type(before, after):
            raise TypeMismatchError(f"a loop carries {before}, and its body turns it into {after}.")
        return before
    joined = joined_type(before, after)
    assert isinstance(joined, t.TensorType) and joined.shape and before.shape and first.shape
    # A symbol that is the body's own already may stand for another number in the next iteration.
    sizes = [
        old if old == new or old != given else new
        for old, new, given in zip(before.shape, joined.shape, first.shape, strict=True)
    ]
    return t.TensorType(before.dtype, tuple(sizes))


def _outside(type: Type, own: frozenset[str]) -> Type:
    """The type as it is seen from outside of a function: fresh symbols for sizes that only the function knows."""
    if not isinstance(type, t.TensorType) or type.shape is None or own.isdisjoint(symbols_in(type)):
        return type
    sizes = [Dim.symbol(fresh_symbol()) if isinstance(s, Dim) and s.symbols() & own else s for s in type.shape]
    return t.TensorType(type.dtype, tuple(sizes))


def _uncounted_bytes(value: Value) -> int:
    """About what a value takes that is too small to count by itself: there may be many of them."""
    nbytes = value.type.nbytes if isinstance(value.type, t.TensorType) else None
    return 512 + (nbytes if nbytes is not None and nbytes < COUNTED else 0)


def _looped(
    count: Tensor, go: Tensor, carried: Sequence[Value], body: LoopBody, rows: Sequence[Type] | None
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    run = current_run()
    assert run is not None
    state: tuple[Value, ...] = tuple(carried)
    collected: list[Sequence[Value]] = []
    going, most, done, held = bool(go.known), int(count.known), 0, 0
    while going and done < most:
        run.check_iterations(done)
        again, after, scanned = body(constant(done, t.INT64), *state)
        state = tuple(after)
        collected.append(scanned)
        held += sum(map(_uncounted_bytes, scanned))
        run.reserve(held, "what a loop collects")
        going = True if again is None else bool(again.known)
        done += 1
    if not collected:
        return state, tuple(map(_no_rows, _row_types(carried, body, rows)))
    return state, tuple(stack([scanned[i] for scanned in collected]) for i in range(len(collected[0])))


def _row_types(carried: Sequence[Value], body: LoopBody, rows: Sequence[Type] | None) -> Sequence[Type]:
    """The types of what the body of a loop of no iterations would collect."""
    types = [t.TensorType(t.INT64, ()), *(value.type for value in carried)]
    try:
        with tracing():
            traced, _ = trace_closed("body", lambda i, *state: list(body(i, *state)[2]), types)
    except NeedsValueError:
        if rows is None:
            raise
        return rows
    return [value.type for value in traced.results]


def _no_rows(row: Type) -> Tensor:
    """No rows of a type; a size that only iterations tell is 0."""
    if not isinstance(row, t.TensorType) or row.shape is None:
        raise TypeMismatchError(f"a loop collects tensors of known rank, not {row}.")
    sizes = [0 if isinstance(size, Dim) else size for size in row.shape]
    return constant(np.empty((0, *sizes), t.numpy_dtype(row.dtype)), row.dtype)


def stack(values: Sequence[Value]) -> Tensor:
    """Tensors of one type, stacked along a new first axis."""
    tensors: list[Tensor] = list(values)  # type: ignore[arg-type]
    return apply("concat", *[apply("reshape", x, shape=(1, *x.shape)) for x in tensors], axis=0)
