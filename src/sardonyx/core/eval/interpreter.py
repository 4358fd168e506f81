"""The interpreter: a function of the graph, computed value by value with numpy.

Every primitive is applied again, to what is known now and with sizes as numbers, so that all checks of the type rules
hold for the sizes met. A value is dropped after its last reader: memory is bounded by what is alive at a time.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from sardonyx.core.dim import Dim
from sardonyx.core.eval.host_function import HostFunction, actual_type
from sardonyx.core.eval.run_context import current_run
from sardonyx.core.eval.tensor import Tensor, apply, constant, known
from sardonyx.core.eval.trace import loop
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value, bodies_of, symbols_in
from sardonyx.core.ir.types import TensorType, Type
from sardonyx.errors import ExecutionError, FeedError, SardonyxError, ShapeError

Sizes = dict[str, int]
Body = Callable[[Sequence[Value]], Sequence[Value]]


class _Step:
    """A value to compute, and the values that nobody reads after it."""

    __slots__ = ("done_with", "sized", "value")

    def __init__(self, value: Value, done_with: tuple[Value, ...]) -> None:
        self.value = value
        self.done_with = done_with
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
        done: dict[int, list[Value]] = {}
        for value, i in last.items():
            done.setdefault(i, []).append(value)
        plan = [_Step(value, tuple(done.get(i, ()))) for i, value in enumerate(function.values)]
        _plans[function] = plan
    return plan


def evaluate(function: Function, arguments: Sequence[Value], sizes: Mapping[str, int] | None = None) -> list[Value]:
    """Compute a function of known values, inside a run (:func:`.run_context.running`).

    Args:
        function: What to compute.
        arguments: A known value for each input.
        sizes: Numbers for the symbols from outside of the function.

    Raises:
        ShapeError: Sizes do not fit each other, or what an input declares.
        ExecutionError: A primitive has no result for these values.
        ResourceError: A limit of the run is passed.
    """
    if current_run() is None:
        raise ExecutionError("a function is evaluated outside of a run.", remedy="Use `running(RunContext())`.")
    scope: Sizes = dict(sizes or {})
    found: dict[Value, Any] = dict(zip(function.inputs, arguments, strict=True))
    for declared, given in zip(function.inputs, arguments, strict=True):
        match_type(declared.type, given.type, scope, declared.origin or f"input {declared.params['position']}")
    for step in _plan(function):
        value = step.value
        if value not in found:
            try:
                found[value] = _compute(value, [found[operand] for operand in value.operands], step.sized, scope)
            except SardonyxError as error:
                if value.origin and not error.where:
                    raise type(error)(error.problem, where=value.origin, remedy=error.remedy) from error
                raise
        for done in step.done_with:
            found.pop(done, None)
    return [found[value] for value in function.results]


def compute(value: Value, operands: list[Any], sizes: Sizes, bodies: Sequence[Body] | None = None) -> Any:
    """Compute one value of a function inside a run; sizes that it defines are added.

    Args:
        value: What to compute.
        operands: What its operands are.
        sizes: Numbers for the symbols.
        bodies: Of a loop or a choice: each computes the results of one of :func:`.bodies_of` from arguments; by
            default the interpreter does.

    Returns:
        A known value; a tuple of them where the primitive has several results.
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
            bodies = [functools.partial(evaluate, function, sizes=sizes) for function in bodies_of(value)]
            return _controlled(value, operands, sizes, bodies)
        case "host":
            return _host(value, operands, sizes)
        case "dims":
            array = np.array(_numbers(params["sizes"], sizes), np.int64).reshape(params["shape"])
            return constant(array, params["dtype"])
    if sized:
        params = {name: _numbers(param, sizes) if name in sized else param for name, param in params.items()}
    return apply(value.op, *operands, **params)


def _numbers(part: Any, sizes: Sizes) -> Any:
    """A parameter with numbers for sizes."""
    if isinstance(part, Dim):
        return part.evaluate(sizes)
    if isinstance(part, tuple):
        return tuple([_numbers(inner, sizes) for inner in part])
    return part


def _bound(x: Tensor, element: tuple[int, ...]) -> int:
    number = int(x.known[element])
    if number < 0:
        raise ShapeError(f"a size is computed as {number}.", remedy="Sizes are not negative.")
    return number


def _checked(value: Value, found: tuple[Value, ...], sizes: Sizes) -> tuple[Value, ...]:
    """The results of control flow, with the symbols in their types read off them."""
    for declared, one in zip(value.params["results"], found, strict=True):
        match_type(declared, one.type, sizes, value.op)
    return found


def _controlled(value: Value, operands: list[Any], sizes: Sizes, bodies: Sequence[Body]) -> tuple[Value, ...]:
    if value.op == "loop":
        return _loop(value, operands, sizes, *bodies)
    then, otherwise = bodies
    chosen = then if bool(operands[0].known) else otherwise
    return _checked(value, tuple(chosen(operands[1:])), sizes)


def _loop(value: Value, operands: list[Any], sizes: Sizes, body: Body) -> tuple[Value, ...]:
    carried = value.params["carried"]
    captured = operands[2 + carried :]

    def once(i: Tensor, *state: Value) -> Any:
        going, *rest = body([i, constant(True, t.BOOL), *state, *captured])
        return going, rest[:carried], rest[carried:]

    if int(operands[0].known) > 0 and bool(operands[1].known):
        state, scanned = loop(operands[0], operands[1], operands[2 : 2 + carried], once)
    else:
        state = tuple(operands[2 : 2 + carried])
        scanned = tuple(_nothing(type, sizes) for type in value.params["results"][carried:])
    return _checked(value, (*state, *scanned), sizes)


def _nothing(type: TensorType, sizes: Sizes) -> Tensor:
    """What a loop without iterations collects; a size that only iterations tell is 0."""
    shape = [
        0 if axis == 0 or (isinstance(size, Dim) and not size.symbols() <= sizes.keys()) else _numbers(size, sizes)
        for axis, size in enumerate(type.shape or ())
    ]
    return constant(np.empty(shape, t.numpy_dtype(type.dtype)), type.dtype)


def _host(value: Value, operands: list[Any], sizes: Sizes) -> tuple[Value, ...]:
    found = called(value, [operand.known for operand in operands], sizes)
    return tuple(known(one, actual_type(one, type)) for one, type in zip(found, value.type.results, strict=True))  # type: ignore[union-attr]


def called(value: Value, operands: Sequence[Any], sizes: Sizes) -> tuple[Any, ...]:
    """What the function of a ``host`` gives for plain values; sizes that it counts are added.

    Args:
        value: The ``host``.
        operands: Arrays; lists for sequences; None or a value for optionals; dicts for maps.
        sizes: Numbers for the symbols.

    Raises:
        ShapeError: A result has a size that another one contradicts.
        ExecutionError: The function raises an error, or gives something else than it must.
        SardonyxError: What the function raises as such.
    """
    function: HostFunction = value.params["function"]
    types = value.type.results  # type: ignore[union-attr]
    found = function.results(operands, dict(value.params["attributes"]), types)
    for one, type in zip(found, types, strict=True):
        if isinstance(type, TensorType):
            match_type(type, actual_type(one, type), sizes, function.name)
    return found


def match_type(declared: Type, given: Type, sizes: Sizes, where: str) -> None:
    """Read the sizes of symbols off a value, and check the rest.

    Raises:
        FeedError: The kind of value, element type or rank is another.
        ShapeError: A size is another.
    """
    if not isinstance(declared, TensorType):
        if type(declared) is not type(given):
            raise FeedError(f"{given} was given, and {declared} is needed.", where=where)
        return
    if not isinstance(given, TensorType) or given.dtype != declared.dtype:
        raise FeedError(f"{given} was given, and {declared} is needed.", where=where)
    if declared.shape is None or given.shape is None:
        return
    if len(declared.shape) != len(given.shape):
        raise FeedError(f"has rank {len(given.shape)}, and {len(declared.shape)} is needed ({declared}).", where=where)
    later: list[tuple[int, Dim, int]] = []
    for axis, (size, number) in enumerate(zip(declared.shape, given.shape, strict=True)):
        if isinstance(size, Dim) and size.atom is not None and size.atom.kind == "symbol":
            size = sizes.setdefault(size.atom.name, number)  # type: ignore[arg-type]
        if isinstance(size, Dim):
            later.append((axis, size, cast(int, number)))
        elif size != number:
            raise ShapeError(
                f"axis {axis} has size {number}, and {declared.shape[axis]}"
                + (f" = {size}" if isinstance(declared.shape[axis], Dim) else "")
                + f" is needed ({declared}).",
                where=where,
                remedy="Give an input of that size.",
            )
    for axis, size, number in later:
        if not size.symbols() <= sizes.keys():
            sizes.update(solved(size, number))
        if size.symbols() <= sizes.keys() and size.evaluate(sizes) != number:
            raise ShapeError(
                f"axis {axis} has size {number}, and {size} = {size.evaluate(sizes)} is needed.", where=where
            )


def solved(size: Dim, number: int) -> Sizes:
    """The symbol of a size that has one, to the first power, from the size's number; else nothing.

    A number that no whole size gives (7 for ``2*N``) gives the nearest one below: whoever compares sees the difference.
    """
    constant, unknown = 0, None
    for _, atoms, factor in size.terms:
        if not atoms:
            constant = factor
        elif len(atoms) == 1 and atoms[0].kind == "symbol" and unknown is None:
            unknown = atoms[0].name, factor
        else:
            return {}
    if unknown is None:
        return {}
    name, factor = unknown
    return {str(name): max((number - constant) // factor, 0)}
