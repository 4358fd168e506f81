"""Values of a program that the interpreter computes: from what a run has, an array or a plain value for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from sardonyx.compiler.analysis.element_types import MOVED_DTYPES
from sardonyx.core.eval.interpreter import Sizes, call_host_function, compute, match_type
from sardonyx.core.eval.tensor import constant, known
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import TensorType, TupleType
from sardonyx.errors import ResourceError, SardonyxError

Values = dict[Value, Any]
"""What a run has: arrays; of other types what host functions take and give, or a known value."""

_Found = TypeVar("_Found")

Body = Callable[[Sequence[Value]], Sequence[Value]]
"""Computes the results of a loop's body, or of a branch."""


def interpret(value: Value, env: Values, sizes: Sizes, bodies: Sequence[Body] | None) -> None:
    """Compute a value, and the sizes that it tells, from the values that there are; it joins them.

    Args:
        value: What to compute.
        env: The values that there are.
        sizes: Numbers for the symbols.
        bodies: Of control flow: its compiled bodies; None where the interpreter computes them too.

    Raises:
        ExecutionError: It has no result for these values.
        ResourceError: The machine has no memory left for it.
        SardonyxError: What a host function raises as such.
    """
    located(value, _interpret, value, env, sizes, bodies)


def located(value: Value, compute: Callable[..., _Found], *arguments: Any) -> _Found:
    """What ``compute`` gives; what it raises says that it is of a value.

    Raises:
        ResourceError: The machine has no memory left for it.
        SardonyxError: What ``compute`` raises as such.
    """
    try:
        return compute(*arguments)
    except SardonyxError as error:
        if error.where or not value.origin:
            raise
        raise type(error)(error.problem, where=value.origin, remedy=error.remedy) from error
    except MemoryError as error:
        raise ResourceError("the machine has no memory left for it.", where=value.origin) from error


def _interpret(value: Value, env: Values, sizes: Sizes, bodies: Sequence[Body] | None) -> None:
    if value.op == "bind" and value.operands[0] in env and _bound(value, env, sizes):
        return
    if value.op == "get" and value.operands[0].op == "host":
        env[value] = env[value.operands[0]][value.params["index"]]
        return
    if value.op == "host":
        env[value] = call_host_function(value, [as_given(operand, env, sizes) for operand in value.operands], sizes)
        return
    operands = [as_value(operand, env, sizes) for operand in value.operands]
    found = compute(value, operands, sizes, bodies)
    env[value] = np.asarray(found.known, order="C") if is_tensor(value) else found


def _bound(value: Value, env: Values, sizes: Sizes) -> bool:
    """Read a size from a tensor in memory; False where it is none."""
    number = int(env[value.operands[0]][value.params["element"]])
    if number < 0:
        return False
    sizes[value.params["symbol"]], env[value] = number, env[value.operands[0]]
    return True


def as_given(value: Value, env: Values, sizes: Sizes) -> Any:
    """A value as host functions take it."""
    found = env.get(value)
    if found is None or isinstance(found, Value):
        return as_value(value, env, sizes).known
    return found


def as_value(value: Value, env: Values, sizes: Sizes) -> Any:
    """A value as the interpreter has it."""
    if value.is_constant:
        return value
    found = env.get(value)
    if found is None and value not in env:
        return compute(value, [as_value(operand, env, sizes) for operand in value.operands], sizes)
    if isinstance(found, Value) or isinstance(value.type, TupleType):
        return found
    return constant(found, value.type.dtype) if isinstance(value.type, TensorType) else known(found, value.type)


def result(value: Value, env: Values, sizes: Sizes) -> Any:
    """A value as a run gives it; nobody else has its memory."""
    if value.op == "input" and isinstance(value.type, TensorType):
        return np.array(env[value])
    found = as_given(value, env, sizes)
    return np.array(found) if value.is_constant else found


def sizes_in(inputs: Sequence[Value], arrays: Sequence[Any], around: Mapping[str, int] | None = None) -> Sizes:
    """The open sizes in inputs, by name, and those from outside of the function.

    Args:
        inputs: What is declared.
        arrays: What is given.
        around: Those from outside.

    Raises:
        ShapeError: Sizes do not fit.
    """
    sizes: Sizes = dict(around or {})
    for declared, array in zip(inputs, arrays, strict=True):
        if isinstance(declared.type, TensorType):
            given = TensorType(declared.type.dtype, tuple(array.shape))
            match_type(declared.type, given, sizes, declared.origin or f"input {declared.params['position']}")
    return sizes


def is_tensor(value: Value) -> bool:
    """Whether kernels can read and write the value."""
    return isinstance(value.type, TensorType) and value.type.dtype in MOVED_DTYPES
