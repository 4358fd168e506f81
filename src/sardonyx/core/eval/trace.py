"""Tracing: Python functions of tensors become Core functions, the bodies of control flow included.

Inside a run ``cond``, ``loop`` and ``call`` simply call the Python function. While tracing, the function is called once
on inputs of its own; captured values become operands (closure conversion), constants stay inside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from sardonyx.core.dim import Dim, Size, dim_max
from sardonyx.core.eval.assumptions import find_assumption
from sardonyx.core.eval.run_context import COUNTED, current_run, tracing
from sardonyx.core.eval.substitution import substitute_values
from sardonyx.core.eval.tensor import Tensor, apply, apply_any, constant, function_input, get, level_of, sizes_of
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import (
    CLOSED,
    Function,
    NodeForm,
    Scope,
    Value,
    define,
    definer,
    fresh_symbol,
    function,
    intern_value,
    is_newer,
    scope,
    symbols_in,
)
from sardonyx.core.ir.types import Type
from sardonyx.core.rules.assumed_sizes import recorded_assumptions, same_type
from sardonyx.core.rules.type_rules import TYPE_RULES
from sardonyx.errors import NeedsValueError, RuleError, TypeMismatchError

Traced = Callable[..., "Sequence[Value]"]

LoopBody = Callable[..., "tuple[Tensor | None, Sequence[Value], Sequence[Value]]"]
"""The body of a loop returns the condition (None for true), the carried values, the rows to collect."""


@contextlib.contextmanager
def nested() -> Iterator[int]:
    """Enter the scope of a nested function and return its level."""
    inner = Scope(scope.get())
    token = scope.set(inner)
    try:
        yield inner.level
    finally:
        scope.reset(token)


def trace(name: str, body: Traced, types: Sequence[Type]) -> Function:
    """Call ``body`` on inputs of ``types`` and return the graph of the results.

    Raises:
        RuleError: The body captures an outer value; ``trace_closed`` allows captures.
    """
    traced, captured = trace_closed(name, body, types)
    if captured:
        raise RuleError(f"{name} captures {len(captured)} values from outside.", where=captured[0].origin)
    return traced


def trace_closed(
    name: str, body: Traced, types: Sequence[Type], node: NodeForm | None = None
) -> tuple[Function, tuple[Value, ...]]:
    """Call ``body`` on inputs of ``types``; return the graph and the captured values, its last inputs."""
    with nested() as level:
        inner = scope.get()
        assert inner is not None
        inputs = [function_input(level, position, type) for position, type in enumerate(types)]
        results = body(*inputs)
        captured = _find_captures(results, inner)
        outside = [function_input(level, len(inputs) + i, value.type) for i, value in enumerate(captured)]
        moved = dict(zip(captured, outside, strict=True))
        closed = substitute_values(results, moved, level=level, inside=lambda value: _is_inside(value, inner))
    return function(name, [*inputs, *outside], closed, level, node), tuple(captured)


def inline(inner: Function, arguments: Sequence[Value]) -> list[Value]:
    """Return the results of a function for arguments in the function being traced."""
    sizes: dict[str, Size] = {}
    for declared, argument in zip(inner.inputs, arguments, strict=True):
        if isinstance(declared.type, t.TensorType) and isinstance(argument.type, t.TensorType):
            for old, new in zip(declared.type.shape or (), argument.type.shape or (), strict=True):
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
    """Return True if the value belongs to the function: recorded there, or of constants and sizes alone."""
    return value in inner.values or value.level == CLOSED


def _find_captures(results: Sequence[Value], inner: Scope) -> list[Value]:
    """Return outer values that the function reads or returns, in order."""
    captured: dict[Value, None] = {}
    seen: set[Value] = set()
    stack = list(reversed(results))
    while stack:
        value = stack.pop()
        if value not in seen:
            seen.add(value)
            if _is_inside(value, inner):
                stack.extend(reversed((*value.operands, *(d for d in value.definers if _is_inside(d, inner)))))
            else:
                captured[value] = None
    return list(captured)


def call(name: str, body: Traced, operands: Sequence[Value], node: NodeForm | None = None) -> tuple[Value, ...]:
    """Return the results of a named function of the operands; the compiler may replace the computation.

    Args:
        name: Name of the function.
        body: The function.
        operands: Its arguments.
        node: The ONNX node that the call equals; the body then captures no values.
    """
    if current_run() is not None:
        return tuple(body(*operands))
    traced, captured = trace_closed(name, body, [value.type for value in operands], node)
    results = apply_any("call", *operands, *captured, function=traced)
    return tuple(get(results, i) for i in range(len(traced.results)))


# Control flow.


def cond(condition: Tensor, then: Traced, otherwise: Traced) -> tuple[Value, ...]:
    """Return the results of one of two functions without parameters, selected by a boolean scalar.

    Raises:
        TypeMismatchError: While tracing, the functions return values of different types.
        NeedsValueError: While tracing, the functions return values of different ranks for an unknown condition.
    """
    if condition.is_constant:
        return tuple(then() if bool(condition.known) else otherwise())
    last_symbol = fresh_symbol()
    with recorded_assumptions(None):  # A call executes one branch.
        first, first_captured = trace_closed("then", then, ())
        second, second_captured = trace_closed("else", otherwise, ())
    captured = tuple(dict.fromkeys((*first_captured, *second_captured)))
    branches = [
        _with_inputs(branch, used, captured) for branch, used in ((first, first_captured), (second, second_captured))
    ]
    if len(first.results) != len(second.results):
        raise TypeMismatchError(f"the branches return {len(first.results)} and {len(second.results)} values.")
    results = [[_outside_type(value.type, branch.defined_symbols) for value in branch.results] for branch in branches]
    try:
        types = [join_types(a, b) for a, b in zip(*results, strict=True)]
    except NeedsValueError as error:
        choice = find_assumption(condition)
        if choice is None:
            raise NeedsValueError(error.problem, value=condition) from error
        return tuple(then() if choice.any() else otherwise())
    operands = (condition, *captured)
    params = {"then": branches[0], "otherwise": branches[1]}
    chosen = _record("cond", operands, params, types, last_symbol)
    return tuple(get(chosen, i) for i in range(len(types)))


def join_types(a: Type, b: Type) -> Type:
    """Return a common type of both values, with a fresh symbol for each size that differs.

    Raises:
        NeedsValueError: The ranks differ; the condition must be known.
        TypeMismatchError: Anything else differs.
    """
    if a == b:
        return a
    if not isinstance(a, t.TensorType) or not isinstance(b, t.TensorType) or a.dtype != b.dtype:
        if same_type(a, b):
            return a
        raise TypeMismatchError(f"incompatible types of one value: {a} and {b}.")
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        raise NeedsValueError(f"incompatible ranks of one value: {a} and {b}.")
    return t.TensorType(
        a.dtype, tuple(x if x == y else Dim.symbol(fresh_symbol()) for x, y in zip(a.shape, b.shape, strict=True))
    )


def _record(
    op: str, operands: tuple[Value, ...], params: dict[str, Any], types: Sequence[Type], last_symbol: str
) -> Value:
    """Record control flow with results of ``types``; the value defines the symbols that are newer than another one."""
    new = tuple(s for s in dict.fromkeys(symbols_in(tuple(types))) if is_newer(s, last_symbol) and definer(s) is None)
    full = {**params, "results": tuple(types), "symbols": new}
    type = TYPE_RULES[op](*[operand.type for operand in operands], **full)
    level = level_of(operands)
    value = intern_value(Value, op, operands, full, type, level, tuple(full.values()))
    for symbol in new:
        define(symbol, value)
    return value


def _with_inputs(branch: Function, used: Sequence[Value], captured: Sequence[Value]) -> Function:
    """Return the branch with all of ``captured`` as inputs, of which ``used`` were its own."""
    inputs = [function_input(branch.level, position, value.type) for position, value in enumerate(captured)]
    moved = dict(zip(branch.inputs, (inputs[captured.index(value)] for value in used), strict=True))
    results = substitute_values(branch.results, moved, level=branch.level, inside=set(branch.values).__contains__)
    return function(branch.name, inputs, results, branch.level, branch.node)


def loop(
    count: Tensor | None,
    go: Tensor | None,
    carried: Sequence[Value],
    body: LoopBody,
    rows: Sequence[Type] | None = None,
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Repeat ``body`` while its condition holds, at most ``count`` times.

    Args:
        count: Maximum number of iterations, an int64 scalar; None for no bound.
        go: The condition before the first iteration, a boolean scalar; None for true.
        carried: Values that each iteration receives and updates.
        body: Of the iteration's number (int64 scalar) and the carried values; returns the condition (boolean scalar,
            or None for true), the carried values, and the values to collect.
        rows: Types of the values to collect: for a run without iterations if the body cannot be traced.

    Returns:
        The final carried values, and the collected values, stacked along a new first axis.

    Raises:
        TypeMismatchError: While tracing, an iteration changes the element type of a carried value.
        NeedsValueError: While tracing, an iteration changes the rank of a carried value.
        ResourceError: A run exceeds the limit on iterations, memory or time.
    """
    start = constant(True, t.BOOL) if go is None else go
    most = constant((1 << 63) - 1, t.INT64) if count is None else count
    if current_run() is not None:
        return _run_loop(most, start, carried, body, rows)
    last_symbol = fresh_symbol()

    def whole(i: Tensor, going: Tensor, *state: Value) -> list[Value]:
        again, after, scanned = body(i, *state)
        return [constant(True, t.BOOL) if again is None else again, *after, *scanned]

    with recorded_assumptions(None):  # A loop may have no iteration.
        traced, captured, state, scanned = _trace_loop(whole, most, start, carried)
    trips: Size = Dim.symbol(fresh_symbol())
    if count is not None and start.is_constant and traced.results[0].is_constant and bool(traced.results[0].known):
        trips = dim_max((sizes_of(count) or (trips,))[0], 0) if bool(start.known) else 0
    own = traced.defined_symbols | (set(symbols_in(tuple(state))) - set(symbols_in(tuple(v.type for v in carried))))
    stacked = [_stack_type(_outside_type(row.type, own), trips) for row in scanned]
    final = [join_types(before.type, after) for before, after in zip(carried, state, strict=True)]
    params = {"body": traced, "carried": len(carried)}
    results = _record("loop", (most, start, *carried, *captured), params, [*final, *stacked], last_symbol)
    outputs = [get(results, i) for i in range(len(final) + len(stacked))]
    return tuple(outputs[: len(final)]), tuple(outputs[len(final) :])


def _stack_type(row: Type, trips: Size) -> Type:
    """Return the type of rows stacked on a new first axis."""
    if not isinstance(row, t.TensorType):
        raise TypeMismatchError(f"a loop collects tensors, got {row}.")
    if row.shape is None:
        raise NeedsValueError("the rank of a collected value is only known at run time.")
    return t.TensorType(row.dtype, (trips, *row.shape))


def _trace_loop(
    whole: Traced, most: Tensor, start: Tensor, carried: Sequence[Value]
) -> tuple[Function, tuple[Value, ...], list[Type], tuple[Value, ...]]:
    """Return the traced body, its captures, the types of the carried values, and the collected values.

    A size that an iteration changes is a symbol of the body.
    """
    types = [value.type for value in carried]
    while True:
        traced, captured = trace_closed("body", whole, [most.type, start.type, *types])
        after = [value.type for value in traced.results[1 : 1 + len(types)]]
        wider = [_widen_type(old, new, first.type) for old, new, first in zip(types, after, carried, strict=True)]
        if wider == types:
            return traced, captured, types, traced.results[1 + len(types) :]
        types = wider


def _widen_type(before: Type, after: Type, first: Type) -> Type:
    """Return the type of a carried value, with a fresh symbol for every size that an iteration changes."""
    if before == after or not isinstance(before, t.TensorType) or not isinstance(first, t.TensorType):
        if not same_type(before, after):
            raise TypeMismatchError(f"the loop body changes the type of a carried value from {before} to {after}.")
        return before
    joined = join_types(before, after)
    assert isinstance(joined, t.TensorType) and joined.shape and before.shape and first.shape
    # A symbol of the body may have another value in the next iteration.
    sizes = [
        old if old == new or old != initial else new
        for old, new, initial in zip(before.shape, joined.shape, first.shape, strict=True)
    ]
    return t.TensorType(before.dtype, tuple(sizes))


def _outside_type(type: Type, own: frozenset[str]) -> Type:
    """Return the type as seen from outside of a function: fresh symbols for sizes local to the function."""
    if not isinstance(type, t.TensorType) or type.shape is None or own.isdisjoint(symbols_in(type)):
        return type
    sizes = [Dim.symbol(fresh_symbol()) if isinstance(s, Dim) and s.symbols() & own else s for s in type.shape]
    return t.TensorType(type.dtype, tuple(sizes))


def _uncounted_bytes(value: Value) -> int:
    """Estimate the memory of a value that is too small to be tracked; a loop may collect many."""
    nbytes = value.type.nbytes if isinstance(value.type, t.TensorType) else None
    return 512 + (nbytes if nbytes is not None and nbytes < COUNTED else 0)


def _run_loop(
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
        run.reserve(held, "a loop's collected values")
        going = True if again is None else bool(again.known)
        done += 1
    if not collected:
        return state, tuple(map(_no_rows, _row_types(carried, body, rows)))
    return state, tuple(stack([scanned[i] for scanned in collected]) for i in range(len(collected[0])))


def _row_types(carried: Sequence[Value], body: LoopBody, rows: Sequence[Type] | None) -> Sequence[Type]:
    """Return the types that the body of a loop without iterations would collect."""
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
    """Return an empty stack of rows of a type; sizes known only in iterations are 0."""
    if not isinstance(row, t.TensorType) or row.shape is None:
        raise TypeMismatchError(f"a loop collects tensors of known rank, got {row}.")
    sizes = [0 if isinstance(size, Dim) else size for size in row.shape]
    return constant(np.empty((0, *sizes), t.numpy_dtype(row.dtype)), row.dtype)


def stack(values: Sequence[Value]) -> Tensor:
    """Stack tensors of one type along a new first axis."""
    tensors: list[Tensor] = list(values)  # type: ignore[arg-type]
    return apply("concat", *[apply("reshape", x, shape=(1, *x.shape)) for x in tensors], axis=0)
