"""Checks of a program as guards of its model: inputs that fail a check make the model fail.

A guard is a ``Reshape`` of a result whose first size is a value: the result's own size if the check holds, else a
number below -1, which ONNX does not admit. The value is named after the line of the check.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from sardonyx.convert.torch.operators.promotion import tensor_of
from sardonyx.convert.torch.sources import line_of
from sardonyx.core import language as L
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t
from sardonyx.errors import ConversionError

ASSERTIONS = frozenset(
    (
        "aten._assert_async.default",
        "aten._assert_async.msg",
        "aten._assert_scalar.default",
        "aten._functional_assert_async.msg",
        "aten._functional_assert_scalar.default",
    )
)
"""Operators whose first operand has to be true."""

PREFIX = "guard: "
"""Begin of the names of guards."""

REFUSED = -3
"""A size that ONNX does not admit; -1 and 0 have meanings."""

MOST_LABELS = 4
"""Maximum number of lines in the name of a guard."""


@dataclass(frozen=True)
class Guard:
    """A condition that the inputs of a model satisfy.

    Attributes:
        condition: A boolean scalar.
        label: The user's line, or torch's words.
    """

    condition: Tensor
    label: str


def guard_of(node: Any, condition: Any) -> Guard | None:
    """Return the guard of an assertion; None if the condition is known to hold.

    Raises:
        ConversionError: The condition is known to fail.
    """
    message = str(node.args[1]) if len(node.args) > 1 else "an assertion"
    label = _origin(node) or message
    if isinstance(condition, Tensor):
        elements = L.elements(L.reshape(condition, ()))
        if elements is None:
            return None if _is_implied(node) else Guard(_truth(condition), label)
        condition = elements[0]
    if not condition:
        raise ConversionError(f"the program's check fails for all inputs: {message}", where=label)
    return None


def _origin(node: Any) -> str:
    """Return the user's line of a check, or of the nearest call whose result is checked."""
    rows, seen = [node], {node}
    while rows:
        for one in rows:
            line = line_of(one)
            if line and not line.startswith("torch/"):
                return line
        rows = [operand for one in rows for operand in one.all_input_nodes if operand not in seen]
        seen.update(rows)
    return ""


def guarded(results: Sequence[Any], guards: Sequence[Guard], lines: Sequence[str] = ()) -> list[Any]:
    """Return results that cannot be computed unless all guards hold.

    Args:
        results: Tensors, and values that are left as they are.
        guards: The guards.
        lines: The user's lines, where they are known better than from the guards.
    """
    if not guards:
        return list(results)
    condition = guards[0].condition
    for guard in guards[1:]:
        condition = condition & guard.condition
    labels = list(dict.fromkeys(lines or (guard.label for guard in guards)))
    more = f"; {len(labels) - MOST_LABELS} more" if len(labels) > MOST_LABELS else ""
    name = PREFIX + "; ".join(labels[:MOST_LABELS]) + more
    return [
        _guarded(result, condition, name) if isinstance(result, Tensor) and result.dtype != t.STRING else result
        for result in results
    ]


def _guarded(x: Tensor, condition: Tensor, name: str) -> Tensor:
    value = L.reshape(x, (1,)) if x.rank == 0 else x
    size = L.where(condition, L.size_tensor([value.shape[0]], ()), L.constant(REFUSED, t.INT64))
    size.origin = name
    value = L.reshape(value, (L.one_size(size, "the size of a guarded result"), *value.shape[1:]))
    return L.take(value, L.constant(0, t.INT64), 0) if x.rank == 0 else value


def name_guards(nodes: Iterable[ir.Node]) -> None:
    """Name the nodes that compute guarded results after their guards, for the messages of runtimes."""
    sizes: dict[ir.Value, str] = {}
    count = 0
    for node in nodes:
        name = next((sizes[value] for value in node.inputs if value in sizes), "")
        data = node.inputs[0] if node.inputs else None
        output = node.outputs[0]
        if str(output.name).startswith(PREFIX):
            sizes[output] = str(output.name)
            node.name = f"{output.name}: condition"
        elif name and node.op_type == "Reshape" and data not in sizes:
            count += 1
            node.name = name if count == 1 else f"{name} ({count})"
        elif name and node.op_type in ("Reshape", "Concat", "Unsqueeze"):
            sizes[output] = name


def _truth(condition: Tensor) -> Tensor:
    scalar = L.reshape(condition, ())
    return scalar if scalar.dtype == t.BOOL else ~L.equal(scalar, tensor_of(0, scalar.dtype))


def _is_implied(node: Any) -> bool:
    """Return True for a bound of a number whose equality with the bound is asserted too."""
    bound = node.args[0]
    if getattr(bound, "target", None) not in (operator.ge, operator.le):
        return False
    return any(
        user.target is operator.eq
        and user.args == bound.args
        and any("_assert_scalar" in str(check.target) for check in user.users)
        for user in bound.args[0].users
    )
