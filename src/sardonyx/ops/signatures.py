"""What the standard lets an operator take: element types of inputs, checked before a definition is called."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import onnx

from sardonyx.core.graph import Value
from sardonyx.core.types import MapType, OptionalType, SequenceType, TensorType, Type
from sardonyx.errors import TypeMismatchError


def type_text(type: Type) -> str:
    """A type as the standard's type strings write it: ``tensor(float)``, ``seq(tensor(int64))``."""
    match type:
        case TensorType():
            return f"tensor({type.dtype.name.lower()})"
        case SequenceType():
            return f"seq({type_text(type.element)})"
        case OptionalType():
            return f"optional({type_text(type.element)})"
        case MapType():
            return f"map({type.key.name.lower()},{type_text(type.value)})"
    raise TypeMismatchError(f"{type} is no type of the standard.")


class Signature:
    """The inputs that one version of an operator takes.

    Args:
        schema: The standard's description.
    """

    def __init__(self, schema: onnx.defs.OpSchema) -> None:
        self.name = schema.name
        self._inputs = [(i.name, i.type_str, frozenset(t.replace(" ", "") for t in i.types)) for i in schema.inputs]
        last = schema.inputs[-1] if schema.inputs else None
        self._variadic = last is not None and last.option == onnx.defs.OpSchema.FormalParameterOption.Variadic
        self._mixed = self._variadic and last is not None and not last.is_homogeneous
        self._accepted: set[tuple[Type | None, ...]] = set()

    def check(self, inputs: Sequence[Value | None]) -> None:
        """Check the types of a node's inputs.

        Raises:
            TypeMismatchError: The operator does not take one of them, or two that must be of one type are not.
        """
        key = tuple([None if value is None else _sizeless(value.type) for value in inputs])
        if key in self._accepted:
            return
        bound: dict[str, tuple[str, str]] = {}
        for position, type in enumerate(key):
            if type is None or not self._inputs:
                continue
            name, variable, allowed = self._inputs[min(position, len(self._inputs) - 1)]
            text = type_text(type)
            if text not in allowed:
                raise TypeMismatchError(
                    f"{self.name} does not take {text} as its input {name!r}.",
                    remedy=f"It takes {', '.join(sorted(allowed))}.",
                )
            free = self._mixed and position >= len(self._inputs) - 1
            first = bound.setdefault(variable, (name, text))
            if first[1] != text and not free:
                raise TypeMismatchError(
                    f"{self.name} takes its inputs {first[0]!r} and {name!r} of one type, not {first[1]} and {text}."
                )
        self._accepted.add(key)


def _sizeless(type: Type) -> Type:
    return TensorType(type.dtype, None) if isinstance(type, TensorType) else type


@functools.cache
def signature(domain: str, name: str, opset: int) -> Signature | None:
    """The signature of an operator at a version of its domain; None where the standard does not know it."""
    try:
        return Signature(onnx.defs.get_schema(name, opset, domain))
    except onnx.defs.SchemaError:
        return None
