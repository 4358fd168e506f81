"""Interpretation of single values of a program, from the values of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from sardonyx.compiler.analysis.element_types import MOVED_DTYPES
from sardonyx.core.eval.interpreter import Body, Sizes, call_host_function, compute, match_type
from sardonyx.core.eval.tensor import constant, known
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import TensorType, TupleType
from sardonyx.errors import ResourceError, SardonyxError

Values = dict[Value, Any]
"""Values of a run: arrays; for other types, arguments and results of host functions, or a known value."""

_T = TypeVar("_T")

"""A function that computes the results of a loop's body or of a branch."""


def interpret(value: Value, env: Values, sizes: Sizes, bodies: Sequence[Body] | None) -> None:
    """Compute a value and the sizes defined by the value, and add both to the run.

    Args:
        value: The value to compute.
        env: Values of the run.
        sizes: Values of the size symbols.
        bodies: Compiled bodies of control flow; None if the interpreter computes the bodies too.

    Raises:
        ExecutionError: The value has no result for these operands.
        ResourceError: The machine has too little memory.
        SardonyxError: An error of a host function.
    """
    located(value, _interpret, value, env, sizes, bodies)


def located(value: Value, compute: Callable[..., _T], *arguments: Any) -> _T:
    """Call ``compute``; its errors name the value.

    Raises:
        ResourceError: The machine has too little memory.
        SardonyxError: An error of ``compute``.
    """
    try:
        return compute(*arguments)
    except SardonyxError as error:
        if error.where or not value.origin:
            raise
        raise type(error)(error.problem, where=value.origin, remedy=error.remedy) from error
    except MemoryError as error:
        raise ResourceError("the machine has too little memory for this value.", where=value.origin) from error


def _interpret(value: Value, env: Values, sizes: Sizes, bodies: Sequence[Body] | None) -> None:
    if value.op == "bind" and value.operands[0] in env and _bind_size(value, env, sizes):
        return
    if value.op == "get" and value.operands[0].op == "host":
        env[value] = env[value.operands[0]][value.params["index"]]
        return
    if value.op == "host":
        env[value] = call_host_function(value, [as_argument(operand, env, sizes) for operand in value.operands], sizes)
        return
    operands = [as_value(operand, env, sizes) for operand in value.operands]
    result = compute(value, operands, sizes, bodies)
    env[value] = np.asarray(result.known, order="C") if is_tensor(value) else result


def _bind_size(value: Value, env: Values, sizes: Sizes) -> bool:
    """Read a size from a tensor in memory; return False if the number is negative."""
    number = int(env[value.operands[0]][value.params["element"]])
    if number < 0:
        return False
    sizes[value.params["symbol"]], env[value] = number, env[value.operands[0]]
    return True


def as_argument(value: Value, env: Values, sizes: Sizes) -> Any:
    """Return a value as an argument of host functions."""
    stored = env.get(value)
    if stored is None or isinstance(stored, Value):
        return as_value(value, env, sizes).known
    return stored


def as_value(value: Value, env: Values, sizes: Sizes) -> Any:
    """Return a value as the interpreter represents it."""
    if value.is_constant:
        return value
    stored = env.get(value)
    if stored is None and value not in env:
        return compute(value, [as_value(operand, env, sizes) for operand in value.operands], sizes)
    if isinstance(stored, Value) or isinstance(value.type, TupleType):
        return stored
    return constant(stored, value.type.dtype) if isinstance(value.type, TensorType) else known(stored, value.type)


def result(value: Value, env: Values, sizes: Sizes) -> Any:
    """Return a value as a result of the run, in memory without other references."""
    if value.op == "input" and isinstance(value.type, TensorType):
        return np.array(env[value])
    stored = as_argument(value, env, sizes)
    return np.array(stored) if value.is_constant else stored


def sizes_in(inputs: Sequence[Value], arrays: Sequence[Any], around: Mapping[str, int] | None = None) -> Sizes:
    """Return the open sizes of inputs, by symbol, with those of the enclosing function.

    Args:
        inputs: The declared inputs.
        arrays: The arrays of the call.
        around: Sizes of the enclosing function.

    Raises:
        ShapeError: Sizes contradict the declared ones.
    """
    sizes: Sizes = dict(around or {})
    for declared, array in zip(inputs, arrays, strict=True):
        if isinstance(declared.type, TensorType):
            actual = TensorType(declared.type.dtype, tuple(array.shape))
            match_type(declared.type, actual, sizes, declared.origin or f"input {declared.params['position']}")
    return sizes


def is_tensor(value: Value) -> bool:
    """Return True if kernels can read and write the value."""
    return isinstance(value.type, TensorType) and value.type.dtype in MOVED_DTYPES
