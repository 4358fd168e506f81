"""Operators on lists of tensors (``torch._foreach_add``) as operators on their elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_PREFIX = "_foreach_"

_NAMES = {
    "norm": "linalg_vector_norm",
    "maximum.Scalar": "clamp_min",
    "maximum.ScalarList": "clamp_min",
    "minimum.Scalar": "clamp_max",
    "minimum.ScalarList": "clamp_max",
    "clamp_min.List": "maximum",
    "clamp_max.List": "minimum",
}
"""Operators on elements that have another name, by name or by name and overload."""

_ARGUMENTS = {"scalars": "value"}
"""Arguments of operators on elements that have another name."""


def rule_of_lists(target: Any) -> Callable[..., list[Any]] | None:
    """Return the decomposition of an operator on lists of tensors; None for other operators."""
    name = target._schema.name.partition("::")[2]
    if target.namespace != "aten" or not name.startswith(_PREFIX) or target._schema.is_mutable:
        return None
    short = name.removeprefix(_PREFIX)
    element = getattr(torch.ops.aten, _NAMES.get(f"{short}.{target._overloadname}", _NAMES.get(short, short)), None)
    if element is None:
        return None

    named = {
        argument.name
        for overload in element.overloads()
        for argument in getattr(element, overload)._schema.arguments
        if argument.kwarg_only
    }
    names = [_ARGUMENTS.get(argument.name, argument.name) for argument in target._schema.arguments]

    def rule(*args: Any, **options: Any) -> list[Any]:
        options |= {name: value for name, value in zip(names, args, strict=False) if name in named}
        operands = [value for name, value in zip(names, args, strict=False) if name not in named]

        def at(index: int, value: Any) -> Any:
            return value[index] if isinstance(value, (list, tuple)) else value

        return [
            element(*(at(i, value) for value in operands), **{name: at(i, value) for name, value in options.items()})
            for i in range(len(args[0]))
        ]

    return rule
