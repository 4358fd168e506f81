"""The first value of a forward pass that is not finite."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.core.eval.interpreter import evaluate
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.eval.tensor import Tensor, constant
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Function, Value, function
from sardonyx.core.ir.types import TensorType


def first_non_finite(forward: Function, arguments: Sequence[np.ndarray]) -> str | None:
    """Return the name of the first value with NaN or infinity, None if all are finite.

    Args:
        forward: The function.
        arguments: Its arguments; an argument with such values is named itself.
    """
    values: list[Value] = [value for value in forward.values if _is_float(value)]
    names = {value: value.origin for value in values}
    probe = function("probe", list(forward.inputs), values, forward.level)
    with running(RunContext()):
        known = [
            constant(array, value.type.dtype)  # type: ignore[union-attr]
            for array, value in zip(arguments, forward.inputs, strict=True)
        ]
        results = evaluate(probe, known)
    for value, result in zip(values, results, strict=True):
        if isinstance(result, Tensor) and not np.isfinite(np.asarray(result.known, np.float64)).all():
            return names[value] or _reader(forward, value) or value.op
    return None


def _is_float(value: Value) -> bool:
    return isinstance(value.type, TensorType) and t.kind(value.type.dtype) == "float"


def _reader(forward: Function, value: Value) -> str | None:
    """Return the name of the first named value that depends on a value: the node that the value is part of."""
    reached = {value}
    for other in forward.values:
        if not reached.isdisjoint(other.operands):
            if other.origin:
                return other.origin
            reached.add(other)
    return None
