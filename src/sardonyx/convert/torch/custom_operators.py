"""Operators of a user's own library in torch: as the Sardonyx operator of that name, or as an opaque node.

``torch.ops.my_ops.scale`` is the operator ``scale`` of the domain ``my_ops``, if the user defines one
(``@sardonyx.operator("scale", domain="my_ops", since=1)``). Its tensors are inputs, all other arguments are attributes
by the names of torch's schema. An operator that the caller declares as opaque becomes a node of the same form, whose
meaning no engine knows: the types of its results are torch's, and the model cannot be proved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from sardonyx.convert.torch.operators.promotion import core_dtype
from sardonyx.convert.torch.operators.registry import site
from sardonyx.convert.torch.operators.sizes import predicted_shape
from sardonyx.core.eval.host_function import HostFunction, host, unknown_size
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir.types import TensorType
from sardonyx.errors import ExecutionError, UnsupportedError
from sardonyx.ops import registry
from sardonyx.ops.nodes import node

Translation = Callable[..., Any]

VERSION = 1
"""Version of the domains of opaque operators."""


def custom_translation(target: Any, opaque: Collection[str] = ()) -> Translation | None:
    """Return the translation of a user's operator; None without a definition or a declaration as opaque.

    Args:
        target: The called operator of torch.
        opaque: Names of opaque operators, ``my_ops::scale``.
    """
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return None
    domain, name = target.namespace, target._schema.name.partition("::")[2]
    versions = registry.user_operators().get((domain, name))
    if versions:
        return _defined(target, domain, name, versions[-1].since)
    return _opaque(target, domain, name) if is_opaque(target, opaque) else None


def is_opaque(target: Any, opaque: Collection[str]) -> bool:
    """Return True if the caller declares an operator, or all of its library, as opaque."""
    name = target._schema.name if isinstance(target, torch._ops.OpOverload) else ""
    return name in opaque or name.partition("::")[0] in opaque


def _defined(target: Any, domain: str, name: str, version: int) -> Translation:
    def translation(*args: Any, **kwargs: Any) -> Any:
        inputs, attributes = _operands(target, args, kwargs)
        count = len(target._schema.returns)
        return node(name, *inputs, outputs=count, domain=domain, version=version, **attributes)

    return translation


def _opaque(target: Any, domain: str, name: str) -> Translation:
    def translation(*args: Any, **kwargs: Any) -> Any:
        inputs, attributes = _operands(target, args, kwargs)
        while inputs and inputs[-1] is None:
            inputs.pop()
        types = _result_types()
        function = HostFunction(
            name,
            lambda *_, **__: types,
            _without_meaning(f"{domain}.{name}"),
            domain=domain,
            since=VERSION,
            present=tuple(value is not None for value in inputs),
        )
        results = host(function, *[value for value in inputs if value is not None], **attributes)
        return results[0] if isinstance(site.get().result, torch.Tensor) else list(results)

    return translation


def _operands(target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Tensor | None], dict[str, Any]]:
    """Return the tensors of a call, and its other arguments by name."""
    schema = target._schema.arguments
    values = {argument.name: value for argument, value in zip(schema, args, strict=False)} | kwargs
    inputs: list[Tensor | None] = []
    attributes: dict[str, Any] = {}
    for argument in schema:
        value = values.get(argument.name, argument.default_value)
        kind = str(argument.type)
        if "Tensor" not in kind:
            if value is not None:
                attributes[argument.name] = _attribute(argument.name, value)
        elif isinstance(value, (list, tuple)):
            inputs.extend(value)
        else:
            inputs.append(value)
    return inputs, attributes


def _attribute(name: str, value: Any) -> Any:
    """Return an argument as an attribute of a node.

    Raises:
        UnsupportedError: The argument is a size or a value of the program, or an object of torch.
    """
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, (int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_attribute(name, part) for part in value)
    raise UnsupportedError(f"expected a number or a text for the argument '{name}', got {type(value).__name__}.")


def _result_types() -> tuple[TensorType, ...]:
    """Return the types that torch has for the results of the current call."""
    result = site.get().result
    values = [result] if isinstance(result, torch.Tensor) else list(result)
    return tuple(
        TensorType(
            core_dtype(value.dtype),
            tuple(unknown_size() if size is None else size for size in predicted_shape(value) or ()),
        )
        for value in values
    )


def _without_meaning(name: str) -> Callable[..., tuple[Any, ...]]:
    def compute(*_: Any, **__: Any) -> tuple[Any, ...]:
        raise ExecutionError(f"the operator {name} is opaque: it has no definition.")

    return compute
