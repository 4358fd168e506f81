"""The parameters of a forward pass that a gradient of the loss reaches."""

from __future__ import annotations

from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value, sort_topologically
from sardonyx.core.ir.types import TensorType
from sardonyx.core.transform.differentiation import FLAT
from sardonyx.errors import OptionError
from sardonyx.train.step.forward import Forward


def unreached_parameters(forward: Forward) -> tuple[str, ...]:
    """Return the names of parameters whose gradient is zero because no path to the loss is differentiable.

    Raises:
        OptionError: No parameter reaches the loss.
    """
    inputs = forward.function.inputs[: len(forward.parameters)]
    marks: dict[Value, int] = {value: 1 << i for i, value in enumerate(inputs)}
    total = forward.function.results[0]
    for value in sort_topologically([total]):
        if value not in marks and value.op not in FLAT and not _is_discrete(value):
            mark = 0
            for operand in value.operands:
                mark |= marks.get(operand, 0)
            marks[value] = mark
    reached = marks.get(total, 0)
    if not reached:
        raise OptionError(
            "no trained parameter reaches the loss by a gradient.",
            where="trainable",
            remedy="Train parameters before the output that the loss reads, or name another output: `loss=...`.",
        )
    return tuple(name for i, name in enumerate(forward.parameters) if not reached >> i & 1)


def _is_discrete(value: Value) -> bool:
    """Return True for a tensor without a gradient, such as the indices of the largest elements."""
    return isinstance(value.type, TensorType) and t.kind(value.type.dtype) not in ("float", "complex")
