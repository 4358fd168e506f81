"""Tracing: Python functions of tensors become functions of the graph, and control flow takes them.

Inside a run ``cond``, ``loop`` and ``call`` just call the Python function. While tracing, the function is called once
on inputs of its own; what it uses from outside becomes an operand (closure conversion), constants stay inside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar

from sardonyx.core import types as t
from sardonyx.core.dim import Dim
from sardonyx.core.graph import CLOSED, Function, Value, define, fresh_symbol, function, interned
from sardonyx.core.run_context import current_run
from sardonyx.core.tensor import Tensor, apply, apply_any, constant, function_input, get
from sardonyx.core.type_rules import TYPE_RULES, same_type
from sardonyx.core.types import Type
from sardonyx.errors import RuleError, ShapeError, TypeMismatchError

Traced = Callable[..., "Sequence[Value]"]

_level: ContextVar[int] = ContextVar("sardonyx_level", default=CLOSED)


@contextlib.contextmanager
def nested() -> Iterator[int]:
    """Enter one more level of function: the number of the level."""
    level = _level.get() + 1
    token = _level.set(level)
    try:
        yield level
    finally:
        _level.reset(token)


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
        inputs = [function_input(level, position, type) for position, type in enumerate(types)]
        results = body(*inputs)
    captured = _captures(results, level)
    outside = {
        value: function_input(level, len(inputs) + position, value.type) for position, value in enumerate(captured)
    }
    return function(name, [*inputs, *outside.values()], replaced(results, outside, level)), tuple(captured)


def _captures(results: Sequence[Value], level: int) -> list[Value]:
    """Values of outer levels that values of this one read, and results that are such themselves."""
    found: dict[Value, None] = {}
    seen: set[Value] = set()
    waiting = list(reversed(results))
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        if CLOSED < value.level < level and not (value.op == "dims"):
            found[value] = None
        elif value.level == level:
            waiting.extend(reversed(value.operands))
    return list(found)


def replaced(results: Sequence[Value], by: dict[Value, Value], level: int) -> list[Value]:
    """The values with others in place of some, rebuilt where they depend on them."""
    if not by:
        return list(results)
    new: dict[Value, Value] = dict(by)
    waiting = [(value, False) for value in reversed(results)]
    while waiting:
        value, ready = waiting.pop()
        if value in new:
            continue
        if value.level != level or not value.operands:
            new[value] = value
        elif not ready:
            waiting.append((value, True))
            waiting.extend((operand, False) for operand in value.operands if operand not in new)
        else:
            operands = tuple([new[operand] for operand in value.operands])
            new[value] = value if operands == value.operands else _rebuilt(value, operands)
    return [new[value] for value in results]


def _rebuilt(value: Value, operands: tuple[Value, ...]) -> Value:
    rebuilt = interned(
        type(value), value.op, operands, value.params, value.type, value.level, tuple(value.params.values())
    )
    for symbol in defined_by(rebuilt):
        define(symbol, rebuilt)
    return rebuilt


def defined_by(value: Value) -> Iterator[str]:
    """The symbols that a value gives their numbers."""
    if value.op == "bind":
        yield value.params["symbol"]
    elif value.op == "loop":
        yield value.params["trips"]
    elif value.op == "host":
        yield from value.params["symbols"]


# Control flow.


def cond(condition: Tensor, then: Traced, otherwise: Traced) -> tuple[Value, ...]:
    """Results of one of two functions without parameters, chosen by a boolean scalar.

    Raises:
        TypeMismatchError: While tracing, the functions give values of different types.
    """
    if condition.is_constant:
        return tuple(then() if bool(condition.known) else otherwise())
    first, first_captured = trace_closed("then", then, ())
    second, second_captured = trace_closed("else", otherwise, ())
    captured = tuple(dict.fromkeys((*first_captured, *second_captured)))
    branches = [
        _with_inputs(branch, used, captured) for branch, used in ((first, first_captured), (second, second_captured))
    ]
    chosen = apply_any("cond", condition, *captured, then=branches[0], otherwise=branches[1])
    return tuple(get(chosen, i) for i in range(len(first.results)))


def _with_inputs(branch: Function, used: Sequence[Value], captured: Sequence[Value]) -> Function:
    """The function taking all of ``captured``, of which it used ``used``."""
    with nested() as level:
        inputs = [function_input(level, position, value.type) for position, value in enumerate(captured)]
    moved = dict(zip(branch.inputs, (inputs[captured.index(value)] for value in used), strict=True))
    return function(branch.name, inputs, replaced(branch.results, moved, level))


def loop(
    count: Tensor | None, go: Tensor | None, carried: Sequence[Value], body: Traced
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """Repeat ``body`` while it asks for more and the count lasts.

    Args:
        count: Most iterations, an int64 scalar; None for no bound.
        go: Whether to begin, a boolean scalar; None for yes.
        carried: Values that every iteration takes and gives anew.
        body: Of the iteration's number (int64 scalar) and the carried values; gives whether to go on (boolean scalar,
            or None for yes), the carried values, and the values to collect.

    Returns:
        The carried values at the end, and what was collected, stacked along a new first axis.

    Raises:
        ShapeError: While tracing, a carried value changes its type from one iteration to the next.
        ResourceError: In a run, it passes the limit on iterations, memory or time.
    """
    start = constant(True, t.BOOL) if go is None else go
    most = constant((1 << 63) - 1, t.INT64) if count is None else count
    if current_run() is not None:
        return _looped(most, start, carried, body)
    collected = 0

    def whole(i: Tensor, going: Tensor, *state: Value) -> list[Value]:
        nonlocal collected
        again, after, scanned = body(i, *state)
        collected = len(scanned)  # type: ignore[arg-type]
        return [constant(True, t.BOOL) if again is None else again, *after, *scanned]  # type: ignore[list-item,misc]

    types = [most.type, start.type, *(value.type for value in carried)]
    traced, captured = trace_closed("body", whole, types)
    for before, after in zip(carried, traced.results[1:], strict=False):
        if not same_type(before.type, after.type):
            raise ShapeError(f"a loop carries {before.type}, and its body turns it into {after.type}.")
    results = _recorded_loop(most, start, (*carried, *captured), traced, len(carried))
    found = [get(results, i) for i in range(len(carried) + collected)]
    return tuple(found[: len(carried)]), tuple(found[len(carried) :])


def _recorded_loop(most: Tensor, start: Tensor, operands: Sequence[Value], body: Function, carried: int) -> Value:
    symbol = fresh_symbol()
    params = {"body": body, "carried": carried, "trips": symbol}
    all_operands = (most, start, *operands)
    type = TYPE_RULES["loop"](*[value.type for value in all_operands], **params)
    level = max(value.level for value in all_operands)
    value = interned(Value, "loop", all_operands, params, type, level, (body, carried))
    define(value.params["trips"], value)
    return value


def _looped(
    count: Tensor, go: Tensor, carried: Sequence[Value], body: Traced
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    run = current_run()
    assert run is not None
    state, collected = tuple(carried), []
    going, most, done = bool(go.known), int(count.known), 0
    while going and done < most:
        run.check_iterations(done)
        again, state, scanned = body(constant(done, t.INT64), *state)  # type: ignore[assignment,misc]
        collected.append(scanned)
        going = True if again is None else bool(again.known)
        done += 1
    if not collected:
        return state, _nothing_collected(carried, body)
    return state, tuple(stack([scanned[i] for scanned in collected]) for i in range(len(collected[0])))


def _nothing_collected(carried: Sequence[Value], body: Traced) -> tuple[Value, ...]:
    """What a loop of no iterations collects: tensors of no rows, of the type that the body would give."""
    from sardonyx.core.run_context import tracing

    with tracing():
        traced, _ = trace_closed(
            "body", lambda i, *state: list(body(i, *state)[2]), [t.TensorType(t.INT64, ()), *(v.type for v in carried)]
        )
    found = []
    for value in traced.results:
        if not isinstance(value.type, t.TensorType) or value.type.shape is None:
            raise TypeMismatchError(f"a loop collects tensors, not {value.type}.")
        sizes = [0 if isinstance(size, Dim) else size for size in value.type.shape]
        found.append(apply("iota", shape=(0, *sizes), axis=0, dtype=t.INT64))
        found[-1] = apply("convert", found[-1], dtype=value.type.dtype, saturate=True, rounding="up")
    return tuple(found)


def stack(values: Sequence[Value]) -> Tensor:
    """Tensors of one type, stacked along a new first axis."""
    tensors: list[Tensor] = list(values)  # type: ignore[arg-type]
    return apply("concat", *[apply("reshape", x, shape=(1, *x.shape)) for x in tensors], axis=0)
