"""Gradients that the authors of host functions wrote over Core."""

from __future__ import annotations

from collections.abc import Sequence

from sardonyx.core.dim import equal
from sardonyx.core.eval.host_function import HostFunction
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import TensorType
from sardonyx.core.language import Tensor
from sardonyx.errors import RuleError, SardonyxError


def registered_cotangents(
    value: Value, results: Sequence[Value], cotangents: Sequence[Tensor | None], positions: Sequence[int]
) -> list[Tensor | None]:
    """Return the cotangents of operands by the gradient of a host function, None for operands without one.

    Args:
        value: A call of a host function with a gradient.
        results: The results of the call.
        cotangents: The cotangents of the results; None for results that are not floating-point tensors.
        positions: The operands.

    Raises:
        RuleError: The gradient raises an error, or returns other cotangents than those of the operands.
    """
    function: HostFunction = value.params["function"]
    assert function.gradient is not None
    present = function.present or (True,) * len(value.operands)
    operands = iter(value.operands)
    inputs = [next(operands) if is_operand else None for is_operand in present]
    ends = (results[0], cotangents[0]) if len(results) == 1 else (tuple(results), tuple(cotangents))
    attributes = {k: v for k, v in value.params["attributes"] if k not in function.context_parameters}
    try:
        returned = function.gradient(*ends, *inputs, **attributes)
    except SardonyxError:
        raise
    except Exception as error:
        raise RuleError(
            f"the gradient of {function.name} raised {type(error).__name__}: {error}", where=value.origin
        ) from error
    every = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    while len(every) > len(inputs) and every[-1] is None:
        every.pop()  # Of an omitted input at the end.
    if len(every) != len(inputs):
        raise RuleError(
            f"expected {len(inputs)} cotangents from the gradient of {function.name}, got {len(every)}.",
            where=value.origin,
            remedy="Return one for each input, None for inputs without gradient.",
        )
    of_operands = [i for i, is_operand in enumerate(present) if is_operand]
    for position in positions:
        name = f"input {of_operands[position]} of {function.name}"
        _require_type(every[of_operands[position]], value.operands[position].type, name, value.origin)
    return [every[of_operands[position]] for position in positions]


def _require_type(cotangent: object, declared: object, name: str, where: str) -> None:
    """Raise an error unless a cotangent is None, or a tensor of the type and sizes of its operand."""
    assert isinstance(declared, TensorType) and declared.shape is not None
    if cotangent is None:
        return
    if not isinstance(cotangent, Tensor):
        raise RuleError(
            f"expected a tensor or None as cotangent of {name}, got {type(cotangent).__name__}.", where=where
        )
    is_same = cotangent.dtype == declared.dtype and cotangent.rank == len(declared.shape)
    if not is_same or any(equal(*sizes) is False for sizes in zip(cotangent.shape, declared.shape, strict=True)):
        raise RuleError(f"expected {declared} as cotangent of {name}, got {cotangent.type}.", where=where)
