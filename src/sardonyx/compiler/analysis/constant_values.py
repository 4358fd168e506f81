"""Values that depend on no input: evaluated once, at compile time."""

from __future__ import annotations

import numpy as np

from sardonyx.core.eval.interpreter import evaluate
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.ir.graph import CLOSED, Value, function


def is_closed(value: Value) -> bool:
    """Return True if a value depends on constants alone and all its sizes are integers."""
    if value.is_constant:
        return True
    if value.level != CLOSED:
        return False
    graph = function("closed", (), [value], 0)
    return not graph.free_symbols and all(member.level == CLOSED and member.op != "random" for member in graph.values)


def evaluate_closed(value: Value) -> np.ndarray:
    """Return the elements of a closed value."""
    if value.is_constant:
        return np.asarray(value.known)
    with running(RunContext()):
        (result,) = evaluate(function("closed", (), [value], 0), [])
    return np.asarray(result.known)
