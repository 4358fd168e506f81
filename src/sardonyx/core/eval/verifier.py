"""The definition of a legal Core function, as a program: every violation with its location.

A legal function consists of primitives of the list with their parameters; types as the type rules give; inputs in
order; references to enclosing functions only through inputs; symbols that an input binds or an earlier value defines;
and legal nested functions. Values are named as :mod:`sardonyx.core.ir.printer` prints them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from sardonyx.core.dim import Dim, linear_symbol
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import CLOSED, Function, Value, defined_by, symbols_in
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.ir.types import TensorType, TupleType, Type
from sardonyx.core.rules.assumed_sizes import same_type
from sardonyx.core.rules.type_rules import TYPE_RULES
from sardonyx.errors import InvalidModelError, SardonyxError


class Fault(NamedTuple):
    """A violation of the rules for legal functions.

    Attributes:
        location: The value's name in the function's text, after the names of enclosing values.
        problem: Description of the violation.
    """

    location: str
    problem: str

    def __str__(self) -> str:
        return f"{self.location}: {self.problem}"


def check(function: Function) -> None:
    """Check that a function is legal.

    Raises:
        InvalidModelError: The function is not legal; lists every violation.
    """
    violations = list(faults(function))
    if violations:
        raise InvalidModelError("; ".join(map(str, violations)), where=function.name)


def faults(function: Function, outer_symbols: frozenset[str] = frozenset()) -> Iterator[Fault]:
    """Yield all violations; none for a legal function.

    Args:
        function: The function.
        outer_symbols: Size symbols that are defined outside of the function.
    """
    yield from _faults(function, outer_symbols, "")


def _faults(function: Function, outer: frozenset[str], path: str) -> Iterator[Fault]:
    yield from _input_faults(function, path)
    known = set(outer) | _bound_symbols(function)
    count = 0
    for value in function.values:
        if value.op == "input":
            location = f"{path}x{value.params['position']}"
        else:
            location = f"{path}v{count} ({value.op})"
            count += 1
        for problem in _value_problems(value, function):
            yield Fault(location, problem)
        unknown = sorted(_symbols_of(value) - known - set(defined_by(value)))
        if unknown and value.op != "input":
            problem = f"undefined symbol {', '.join(unknown)}: neither bound by an input nor defined before"
            yield Fault(location, problem)
        known.update(defined_by(value))
        for name, param in value.params.items():
            if isinstance(param, Function):
                if param.level <= function.level:
                    yield Fault(location, f"{name} is at level {param.level}, expected more than {function.level}")
                yield from _faults(param, frozenset(known), f"{location}.{name}.")
    for position, value in enumerate(function.results):
        if isinstance(value.type, TupleType):
            yield Fault(f"{path}result {position}", "a tuple is returned; extract each result with `get`")


def _bound_symbols(function: Function) -> set[str]:
    """Return the symbols that sizes of inputs determine: ``N``, or ``2*N + 1``."""
    shapes = [value.type.shape or () for value in function.inputs if isinstance(value.type, TensorType)]
    sizes = [size for shape in shapes for size in shape if isinstance(size, Dim)]
    return {linear[0] for size in sizes if (linear := linear_symbol(size)) is not None}


def _symbols_of(value: Value) -> set[str]:
    """Return the symbols in a value's type and parameters, without the contents of nested functions."""
    params = [param for param in value.params.values() if not isinstance(param, Function)]
    return {symbol for part in (value.type, *params) for symbol in symbols_in(part)}


def _input_faults(function: Function, path: str) -> Iterator[Fault]:
    for position, value in enumerate(function.inputs):
        location = f"{path}x{position}"
        if value.op != "input":
            yield Fault(location, f"expected an input, got {value.op}")
        elif (value.params["level"], value.params["position"]) != (function.level, position):
            actual = f"level {value.params['level']}, position {value.params['position']}"
            yield Fault(location, f"expected the input of level {function.level}, position {position}, got {actual}")
        elif value.type != value.params["type"]:
            yield Fault(location, f"the input has type {value.type}, declared {value.params['type']}")


def _value_problems(value: Value, function: Function) -> Iterator[str]:
    row = PRIMITIVES.get(value.op)
    if row is None:
        yield "unknown primitive"
        return
    if tuple(value.params) != row.params:
        yield f"expected parameters {', '.join(row.params) or 'none'}, got {', '.join(value.params) or 'none'}"
        return
    if value.op == "input":
        if value not in function.inputs:
            yield f"an input of level {value.level} that does not belong to this function"
        return
    if value.level != max([operand.level for operand in value.operands], default=CLOSED):
        yield f"level {value.level} differs from the maximum level of the operands"
    yield from _constant_problems(value) if value.op == "constant" else _type_problems(value)


def _constant_problems(value: Value) -> Iterator[str]:
    type_, known = value.type, value.params["value"]
    if not isinstance(type_, TensorType):
        return
    if not isinstance(known, np.ndarray):
        yield f"the constant is a {type(known).__name__}, declared {type_}"
    elif (t.numpy_dtype(type_.dtype), type_.shape) != (known.dtype, known.shape):
        yield f"the constant is {known.dtype}{list(known.shape)}, declared {type_}"


def _type_problems(value: Value) -> Iterator[str]:
    try:
        expected: Type = TYPE_RULES[value.op](*[operand.type for operand in value.operands], **value.params)
    except SardonyxError as error:
        yield error.problem.rstrip(".")
    except (TypeError, ValueError, IndexError) as error:
        yield f"invalid operands or parameters ({error})"
    else:
        if not same_type(expected, value.type):
            yield f"the result is {expected}, declared {value.type}"
