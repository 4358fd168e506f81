"""Values that depend on no input: computed once, when a program is made."""

from __future__ import annotations

import numpy as np

from sardonyx.core.eval.interpreter import evaluate
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.ir.graph import CLOSED, Value, function


def is_closed(value: Value) -> bool:
    """Whether a value is of constants alone, with sizes that are numbers."""
    if value.is_constant:
        return True
    if value.level != CLOSED:
        return False
    made = function("closed", (), [value], 0)
    return not made.free_symbols and all(each.level == CLOSED and each.op != "random" for each in made.values)


def computed(value: Value) -> np.ndarray:
    """The elements of a closed value."""
    if value.is_constant:
        return np.asarray(value.known)
    with running(RunContext()):
        (found,) = evaluate(function("closed", (), [value], 0), [])
    return np.asarray(found.known)
