"""The interpreter: evaluates a Core function value by value with numpy.

Every primitive is applied again, to known operands and with sizes as numbers, so that all checks of the type rules
apply to the actual sizes. A value is dropped after its last reader, which bounds memory by the live values.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from sardonyx.core.dim import Dim, linear_symbol
from sardonyx.core.eval.host_function import HostFunction, actual_type
from sardonyx.core.eval.run_context import current_run
from sardonyx.core.eval.tensor import Tensor, apply, constant, known
from sardonyx.core.eval.trace import loop
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value, bodies_of, symbols_in
from sardonyx.core.ir.types import TensorType, Type
from sardonyx.errors import ExecutionError, FeedError, SardonyxError, ShapeError, SizeLimitError

Sizes = dict[str, int]

_GREATEST = (1 << 63) - 1
"""The greatest element of an integer tensor."""


class Body(NamedTuple):
    """A body of control flow.

    Attributes:
        function: The function, of which the types of inputs and results are read.
        compute: Computes the results from arguments.
    """

    function: Function
    compute: Callable[[Sequence[Value]], Sequence[Value]]


class _Step:
    """A value to compute, and the values that are dead afterwards."""

    __slots__ = ("dead", "sized", "value")

    def __init__(self, value: Value, dead: tuple[Value, ...]) -> None:
        self.value = value
        self.dead = dead
        self.sized = tuple(name for name, param in value.params.items() if any(True for _ in symbols_in(param)))


_plans: weakref.WeakKeyDictionary[Function, list[_Step]] = weakref.WeakKeyDictionary()


def _plan(function: Function) -> list[_Step]:
    plan = _plans.get(function)
    if plan is None:
        last: dict[Value, int] = {}
        for i, value in enumerate(function.values):
            last.update(dict.fromkeys(value.operands, i))
        for value in function.results:
            last.pop(value, None)
        dead_after: dict[int, list[Value]] = {}
        for value, i in last.items():
            dead_after.setdefault(i, []).append(value)
        plan = [_Step(value, tuple(dead_after.get(i, ()))) for i, value in enumerate(function.values)]
        _plans[function] = plan
    return plan


def evaluate(function: Function, arguments: Sequence[Value], sizes: Mapping[str, int] | None = None) -> list[Value]:
    """Compute a function of known values, inside a run (:func:`.run_context.running`).

    Args:
        function: The function.
        arguments: A known value for each input.
        sizes: Numbers for the symbols from outside of the function.

    Raises:
        ShapeError: Sizes do not match each other, or the declarations of the inputs.
        ExecutionError: A primitive is undefined for these values.
        ResourceError: A limit of the run is exceeded.
    """
    if current_run() is None:
        raise ExecutionError("a function is evaluated outside of a run.", remedy="Use `running(RunContext())`.")
    scope: Sizes = dict(sizes or {})
    values: dict[Value, Any] = dict(zip(function.inputs, arguments, strict=True))
    for declared, argument in zip(function.inputs, arguments, strict=True):
        match_type(declared.type, argument.type, scope, declared.origin or f"input {declared.params['position']}")
    for step in _plan(function):
        value = step.value
        if value not in values:
            try:
                values[value] = _compute(value, [values[operand] for operand in value.operands], step.sized, scope)
            except SardonyxError as error:
                if value.origin and not error.where:
                    raise type(error)(error.problem, where=value.origin, remedy=error.remedy) from error
                raise
        for dead in step.dead:
            values.pop(dead, None)
    return [values[value] for value in function.results]


def compute(value: Value, operands: list[Any], sizes: Sizes, bodies: Sequence[Body] | None = None) -> Any:
    """Compute one value of a function inside a run and add the sizes that the value defines.

    Args:
        value: The value to compute.
        operands: Its known operands.
        sizes: Numbers for the symbols.
        bodies: The bodies of a loop or a ``cond``, in the order of :func:`.bodies_of`; computed by the interpreter by
            default.

    Returns:
        A known value; a tuple if the primitive has several results.
    """
    if bodies is not None:
        return _controlled(value, operands, sizes, bodies)
    sized = tuple(name for name, param in value.params.items() if any(True for _ in symbols_in(param)))
    return _compute(value, operands, sized, sizes)


def _compute(value: Value, operands: list[Any], sized: tuple[str, ...], sizes: Sizes) -> Any:
    params = value.params
    match value.op:
        case "constant":
            return value
        case "get":
            return operands[0][params["index"]]
        case "bind":
            sizes[params["symbol"]] = _bound(operands[0], params["element"])
            return operands[0]
        case "call":
            return tuple(evaluate(params["function"], operands, sizes))
        case "cond" | "loop":
            bodies = [
                Body(function, functools.partial(evaluate, function, sizes=sizes)) for function in bodies_of(value)
            ]
            return _controlled(value, operands, sizes, bodies)
        case "host":
            return _host(value, operands, sizes)
        case "dims":
            numbers = _numbers(params["sizes"], sizes)
            if any(abs(number) > _GREATEST for number in numbers):
                raise SizeLimitError("arithmetic on sizes exceeds 64 bits.", remedy="Give smaller sizes.")
            array = np.array(numbers, np.int64).reshape(params["shape"])
            return constant(array, params["dtype"])
    if sized:
        params = {name: _numbers(param, sizes) if name in sized else param for name, param in params.items()}
    return apply(value.op, *operands, **params)


def _numbers(part: Any, sizes: Sizes) -> Any:
    """Return a parameter with numbers for sizes."""
    if isinstance(part, Dim):
        return part.evaluate(sizes)
    if isinstance(part, tuple):
        return tuple([_numbers(inner, sizes) for inner in part])
    return part


def _bound(x: Tensor, element: tuple[int, ...]) -> int:
    number = int(x.known[element])
    if number < 0:
        raise ShapeError(f"expected a size ≥ 0, computed {number}.", remedy="Give inputs that make this size positive.")
    return number


def _checked(value: Value, results: tuple[Value, ...], sizes: Sizes) -> tuple[Value, ...]:
    """Bind the symbols in the types of control flow results, and return the results."""
    for declared, result in zip(value.params["results"], results, strict=True):
        match_type(declared, result.type, sizes, value.op)
    return results


def _controlled(value: Value, operands: list[Any], sizes: Sizes, bodies: Sequence[Body]) -> tuple[Value, ...]:
    if value.op == "loop":
        return _loop(value, operands, sizes, *bodies)
    then, otherwise = bodies
    chosen = then if bool(operands[0].known) else otherwise
    return _checked(value, tuple(chosen.compute(operands[1:])), sizes)


def _loop(value: Value, operands: list[Any], sizes: Sizes, body: Body) -> tuple[Value, ...]:
    carried = value.params["carried"]
    captured = operands[2 + carried :]

    def once(i: Tensor, *state: Value) -> Any:
        going, *rest = body.compute([i, constant(True, t.BOOL), *state, *captured])
        return going, rest[:carried], rest[carried:]

    if int(operands[0].known) > 0 and bool(operands[1].known):
        state, scanned = loop(operands[0], operands[1], operands[2 : 2 + carried], once)
    else:
        state = tuple(operands[2 : 2 + carried])
        scanned = _no_rows(value, body.function, operands, sizes)
    return _checked(value, (*state, *scanned), sizes)


def _no_rows(loop: Value, body: Function, operands: Sequence[Value], sizes: Sizes) -> tuple[Tensor, ...]:
    """Return the empty stacks of a loop without iterations, with the sizes that the rows of iteration 0 would have.

    Sizes known only in iterations are 0.
    """
    carried, first = loop.params["carried"], dict(sizes)
    for declared, operand in zip(body.inputs[2:], operands[2:], strict=True):
        match_type(declared.type, operand.type, first, loop.op)
    return tuple(_nothing(cast(TensorType, row.type), first) for row in body.results[1 + carried :])


def _nothing(row: TensorType, sizes: Sizes) -> Tensor:
    shape = [
        0 if isinstance(size, Dim) and not size.symbols() <= sizes.keys() else _numbers(size, sizes)
        for size in row.shape or ()
    ]
    return constant(np.empty((0, *shape), t.numpy_dtype(row.dtype)), row.dtype)


def _host(value: Value, operands: list[Any], sizes: Sizes) -> tuple[Value, ...]:
    results = call_host_function(value, [operand.known for operand in operands], sizes)
    types: tuple[Type, ...] = value.type.results  # type: ignore[union-attr]
    return tuple(known(result, actual_type(result, type)) for result, type in zip(results, types, strict=True))


def call_host_function(value: Value, operands: Sequence[Any], sizes: Sizes) -> tuple[Any, ...]:
    """Return the results of a ``host`` for plain values; data-dependent sizes are added.

    Args:
        value: The ``host``.
        operands: Arrays; lists for sequences; None or a value for optionals; dicts for maps.
        sizes: Numbers for the symbols.

    Raises:
        ShapeError: Sizes of the operands do not fit, or those of two results contradict each other.
        ExecutionError: The function raises an error, or its results do not have the declared types.
        SardonyxError: Raised by the function as such.
    """
    function: HostFunction = value.params["function"]
    types = value.type.results  # type: ignore[union-attr]
    attributes = dict(value.params["attributes"])
    declared = [operand.type for operand in value.operands]
    # Tracing assumed that open sizes fit.
    function.type_rule(*map(actual_type, operands, declared), **attributes)
    results = function.results(operands, attributes, types)
    for result, type in zip(results, types, strict=True):
        if isinstance(type, TensorType):
            match_type(type, actual_type(result, type), sizes, function.name)
    return results


def match_type(declared: Type, actual: Type, sizes: Sizes, where: str) -> None:
    """Bind the symbols of a declared type to the sizes of a value, and check the rest.

    Raises:
        FeedError: The kind of value, element type or rank differs.
        ShapeError: A size differs.
    """
    if not isinstance(declared, TensorType):
        if type(declared) is not type(actual):
            raise FeedError(f"expected {declared}, got {actual}.", where=where)
        return
    if not isinstance(actual, TensorType) or actual.dtype != declared.dtype:
        raise FeedError(f"expected {declared}, got {actual}.", where=where)
    if declared.shape is None or actual.shape is None:
        return
    if len(declared.shape) != len(actual.shape):
        raise FeedError(f"expected rank {len(declared.shape)} ({declared}), got {len(actual.shape)}.", where=where)
    later: list[tuple[int, Dim, int]] = []
    for axis, (size, number) in enumerate(zip(declared.shape, actual.shape, strict=True)):
        if isinstance(size, Dim) and size.atom is not None and size.atom.kind == "symbol":
            size = sizes.setdefault(size.atom.name, number)  # type: ignore[arg-type]
        if isinstance(size, Dim):
            later.append((axis, size, cast(int, number)))
        elif size != number:
            raise ShapeError(
                f"axis {axis} has size {number}, expected {declared.shape[axis]}"
                + (f" = {size}" if isinstance(declared.shape[axis], Dim) else "")
                + f" ({declared}).",
                where=where,
                remedy="Give an input of this size.",
            )
    for axis, size, number in later:
        if not size.symbols() <= sizes.keys():
            sizes.update(solve_for_symbol(size, number))
        if size.symbols() <= sizes.keys() and size.evaluate(sizes) != number:
            raise ShapeError(f"axis {axis} has size {number}, expected {size} = {size.evaluate(sizes)}.", where=where)


def solve_for_symbol(size: Dim, number: int) -> Sizes:
    """Solve a size for its symbol, if there is exactly one, to the first power; else return nothing.

    A number that the size cannot equal (7 for ``2*N``) gives the nearest value below: the caller's comparison fails.
    """
    linear = linear_symbol(size)
    if linear is None:
        return {}
    name, factor, constant = linear
    return {name: max((number - constant) // factor, 0)}
