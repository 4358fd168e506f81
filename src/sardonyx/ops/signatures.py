"""Operator signatures: allowed element types of inputs, checked before a definition is called."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import ALL_DTYPES, MapType, OptionalType, SequenceType, TensorType, Type
from sardonyx.errors import TypeMismatchError
from sardonyx.ops.contributed import CONTRIBUTED
from sardonyx.ops.registry import find
from sardonyx.ops.standard_signatures import NEWEST, SIGNATURES, TYPES

if TYPE_CHECKING:
    import onnx


def type_text(type: Type) -> str:
    """Return a type in the notation of the standard: ``tensor(float)``, ``seq(tensor(int64))``."""
    match type:
        case TensorType():
            return f"tensor({type.dtype.name.lower()})"
        case SequenceType():
            return f"seq({type_text(type.element)})"
        case OptionalType():
            return f"optional({type_text(type.element)})"
        case MapType():
            return f"map({type.key.name.lower()},{type_text(type.value)})"
    raise TypeMismatchError(f"expected a type of the ONNX standard, got {type}.")


class Signature:
    """The inputs that one version of an operator accepts.

    Args:
        name: The operator.
        inputs: Name, type variable and allowed types of each input.
        variadic: True if the last input may occur any number of times.
        mixed: True if the variadic inputs may have different types.
        outputs: Type variable and allowed types of each result.

    Attributes:
        name: The operator.
        inputs: Name, type variable and allowed types of each input.
        variadic: True if the last input may occur any number of times.
        mixed: True if the variadic inputs may have different types.
        outputs: Type variable and allowed types of each result.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[tuple[str, str, frozenset[str]]],
        *,
        variadic: bool,
        mixed: bool,
        outputs: Sequence[tuple[str, Sequence[str]]] = (),
    ) -> None:
        self.name = name
        self.inputs = inputs
        self.variadic, self.mixed = variadic, mixed
        self.outputs = outputs
        self._accepted: set[tuple[Type | None, ...]] = set()

    def check(self, inputs: Sequence[Value | None]) -> None:
        """Check the types of a node's inputs.

        Raises:
            TypeMismatchError: An input has a type that the operator does not accept, or two inputs of one type variable
                have different types.
        """
        key = tuple([None if value is None else _sizeless(value.type) for value in inputs])
        if key in self._accepted:
            return
        bound: dict[str, tuple[str, str]] = {}
        for position, type in enumerate(key):
            if type is None or not self.inputs:
                continue
            name, variable, allowed = self.inputs[min(position, len(self.inputs) - 1)]
            text = type_text(type)
            if text not in allowed:
                raise TypeMismatchError(
                    f"{self.name} does not accept {text} as its input {name!r}.",
                    remedy=f"Use one of {', '.join(sorted(allowed))}.",
                )
            free = self.mixed and position >= len(self.inputs) - 1
            first = bound.setdefault(variable, (name, text))
            if first[1] != text and not free:
                raise TypeMismatchError(
                    f"{self.name} expects inputs {first[0]!r} and {name!r} of one type, got {first[1]} and {text}."
                )
        self._accepted.add(key)

    def results(self, inputs: Sequence[Type | None]) -> list[Type | None]:
        """Return the result types that the type variables determine: tensors of unknown shape.

        Args:
            inputs: The types of the inputs; None for an omitted input or an unknown type.
        """
        bound: dict[str, Type] = {}
        if self.inputs and not self.mixed:
            for position, type in enumerate(inputs):
                if type is not None:
                    bound.setdefault(self.inputs[min(position, len(self.inputs) - 1)][1], _sizeless(type))
        return [bound.get(variable) or _only_tensor(allowed) for variable, allowed in self.outputs]


def _only_tensor(allowed: Sequence[str]) -> Type | None:
    """Return the single allowed tensor type; None if several types are allowed."""
    return TensorType(_DTYPES[allowed[0]], None) if len(allowed) == 1 and allowed[0] in _DTYPES else None


_DTYPES = {f"tensor({dtype.name.lower()})": dtype for dtype in ALL_DTYPES}


def _sizeless(type: Type) -> Type:
    return TensorType(type.dtype, None) if isinstance(type, TensorType) else type


@functools.cache
def signature(domain: str, name: str, opset: int) -> Signature | None:
    """Return the signature of an operator at a version of its domain; None if no schema is known.

    The table answers up to the newest version in it of an operator that the standard has changed since; the installed
    onnx answers for other operators, and for operator sets beyond the table.
    """
    if name in CONTRIBUTED.get(domain, ()):
        return _contributed(domain, name)
    entries = SIGNATURES.get(f"{domain}:{name}")
    if entries is not None and opset <= NEWEST.get(domain, 0):
        return _of_entry(name, entries, opset)
    from onnx.defs import SchemaError

    from sardonyx.model.schemas import get_schema

    try:
        return of_schema(get_schema(name, opset, domain))
    except SchemaError:
        return None


def _of_entry(name: str, entries: str, opset: int) -> Signature | None:
    """Return the newest version of an entry of the table that an operator set has."""
    for entry in reversed(entries.split(";")):
        head, _, rest = entry.partition(" ")
        if int(head.rstrip("vm")) <= opset:
            inputs, outputs = ([part.split("|") for part in side.split()] for side in rest.split(">"))
            return Signature(
                name,
                [(part[0], part[1], _allowed(int(part[2]))) for part in inputs],
                variadic="v" in head,
                mixed="m" in head,
                outputs=[(kind, TYPES[int(number)].split()) for kind, number in outputs],
            )
    return None


@functools.cache
def _allowed(number: int) -> frozenset[str]:
    return frozenset(TYPES[number].split())


def of_schema(schema: onnx.defs.OpSchema) -> Signature:
    """Return the signature of a schema of onnx."""
    from onnx.defs import OpSchema

    last = schema.inputs[-1] if schema.inputs else None
    variadic = last is not None and last.option == OpSchema.FormalParameterOption.Variadic
    return Signature(
        schema.name,
        [(i.name, i.type_str.replace(" ", ""), frozenset(t.replace(" ", "") for t in i.types)) for i in schema.inputs],
        variadic=variadic,
        mixed=variadic and last is not None and not last.is_homogeneous,
        outputs=[(o.type_str.replace(" ", ""), sorted(t.replace(" ", "") for t in o.types)) for o in schema.outputs],
    )


def _contributed(domain: str, name: str) -> Signature:
    words, *variables = CONTRIBUTED[domain][name].split("; ")
    types = {variable: allowed.split() for variable, allowed in (text.split(": ") for text in variables)}
    kinds = words.removesuffix("...").split()
    definition = find(domain, name, 1)
    assert definition is not None
    names = definition.inputs if len(kinds) == len(definition.inputs) else (*definition.inputs, "inputs")
    inputs = [
        (input_name, kind, frozenset(f"tensor({dtype})" for dtype in types.get(kind, [kind])))
        for input_name, kind in zip(names, kinds, strict=True)
    ]
    variadic = words.endswith("...")
    return Signature(name, inputs, variadic=variadic, mixed=variadic)
