"""What a legal function of the graph is, as a program: all reasons why one is not, with places.

Legal is: primitives of the list with their parameters; types as the type rules give them; inputs in their positions;
nothing of a function around but through inputs; symbols that an input binds or that something before defines; and
functions inside that are legal themselves. Values are named as :mod:`.text` names them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from sardonyx.core.dim import Dim
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import CLOSED, Function, Value, defined_by, symbols_in
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.ir.types import TensorType, TupleType, Type
from sardonyx.core.rules.type_rules import TYPE_RULES, same_type
from sardonyx.errors import InvalidModelError, SardonyxError


class Fault(NamedTuple):
    """A reason why a function is not legal.

    Attributes:
        place: The value, as it is named in the function's text, with those around it.
        problem: What is wrong with it.
    """

    place: str
    problem: str

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}"


def check(function: Function) -> None:
    """Check that a function is legal.

    Raises:
        InvalidModelError: It is not; lists every reason.
    """
    found = list(faults(function))
    if found:
        raise InvalidModelError("; ".join(map(str, found)), where=function.name)


def faults(function: Function, around: frozenset[str] = frozenset()) -> Iterator[Fault]:
    """All reasons why a function is not legal; none where it is.

    Args:
        function: The function.
        around: Size symbols that are defined outside of the function.
    """
    yield from _faults(function, around, "")


def _faults(function: Function, around: frozenset[str], path: str) -> Iterator[Fault]:
    yield from _input_faults(function, path)
    known = set(around) | _bound_by(function)
    made = 0
    for value in function.values:
        if value.op == "input":
            place = f"{path}x{value.params['position']}"
        else:
            place = f"{path}v{made} ({value.op})"
            made += 1
        for problem in _value_problems(value, function):
            yield Fault(place, problem)
        unknown = sorted(_spoken(value) - known - set(defined_by(value)))
        if unknown and value.op != "input":
            yield Fault(place, f"no input binds {', '.join(unknown)}, and nothing before defines it")
        known.update(defined_by(value))
        for name, param in value.params.items():
            if isinstance(param, Function):
                if param.level <= function.level:
                    yield Fault(place, f"its {name} is at level {param.level}, no deeper than the function around")
                yield from _faults(param, frozenset(known), f"{place}.{name}.")
    for position, value in enumerate(function.results):
        if isinstance(value.type, TupleType):
            yield Fault(f"{path}result {position}", "several results are returned as one; `get` takes them apart")


def _bound_by(function: Function) -> set[str]:
    """The symbols that the sizes of inputs are."""
    shapes = [value.type.shape or () for value in function.inputs if isinstance(value.type, TensorType)]
    sizes = [size for shape in shapes for size in shape if isinstance(size, Dim)]
    return {size.atom.name for size in sizes if size.atom is not None and size.atom.kind == "symbol"}


def _spoken(value: Value) -> set[str]:
    """The symbols that a value speaks of itself; those of functions inside are looked at there."""
    params = [param for param in value.params.values() if not isinstance(param, Function)]
    return {symbol for part in (value.type, *params) for symbol in symbols_in(part)}


def _input_faults(function: Function, path: str) -> Iterator[Fault]:
    for position, value in enumerate(function.inputs):
        place = f"{path}x{position}"
        if value.op != "input":
            yield Fault(place, f"the input is a {value.op}")
        elif (value.params["level"], value.params["position"]) != (function.level, position):
            yield Fault(
                place, f"the input is that of level {value.params['level']}, position {value.params['position']}"
            )
        elif value.type != value.params["type"]:
            yield Fault(place, f"the input is {value.type} and declared as {value.params['type']}")


def _value_problems(value: Value, function: Function) -> Iterator[str]:
    row = PRIMITIVES.get(value.op)
    if row is None:
        yield "there is no such primitive"
        return
    if tuple(value.params) != row.params:
        yield f"its parameters are {', '.join(value.params) or 'none'}, and should be {', '.join(row.params) or 'none'}"
        return
    if value.op == "input":
        if value not in function.inputs:
            yield f"it is an input of level {value.level}, and none of this function"
        return
    if value.level != max([operand.level for operand in value.operands], default=CLOSED):
        yield f"its level {value.level} is not that of its operands"
    yield from _constant_problems(value) if value.op == "constant" else _type_problems(value)


def _constant_problems(value: Value) -> Iterator[str]:
    type_, known = value.type, value.params["value"]
    if not isinstance(type_, TensorType):
        return
    if not isinstance(known, np.ndarray):
        yield f"it holds a {type(known).__name__}, and is declared as {type_}"
    elif (t.numpy_dtype(type_.dtype), type_.shape) != (known.dtype, known.shape):
        yield f"it holds {known.dtype}{list(known.shape)}, and is declared as {type_}"


def _type_problems(value: Value) -> Iterator[str]:
    try:
        told: Type = TYPE_RULES[value.op](*[operand.type for operand in value.operands], **value.params)
    except SardonyxError as error:
        yield error.problem.rstrip(".")
    except (TypeError, ValueError, IndexError) as error:
        yield f"its operands and parameters do not fit ({error})"
    else:
        if not same_type(told, value.type):
            yield f"it is {told}, and declared as {value.type}"
