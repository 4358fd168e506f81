"""Operator versions from ``onnx.defs``: boundaries of definitions and admitted types."""

from __future__ import annotations

from functools import cache

import onnx
import onnx_ir as ir
from onnx.defs import OpSchema

from sardonyx.model.schemas import get_schema

HINTS = frozenset({"consumed_inputs"})
"""Attributes of early operators for in-place execution, without effect on results."""


def canonical(domain: str) -> str:
    """Return the domain as spelled by ``onnx.defs``: the default domain is the empty string."""
    return "" if domain == "ai.onnx" else domain


@cache
def schema_at(domain: str, op_type: str, opset: int) -> OpSchema | None:
    """Return the schema of an operator in an operator set; None if absent or removed.

    A removed operator has a last, deprecated definition. An operator whose only definition was deprecated
    afterwards (``GroupNormalization`` of set 18) is a real operator.
    """
    try:
        schema = get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated and since_version(domain, op_type, schema.since_version - 1) else schema


@cache
def since_version(domain: str, op_type: str, opset: int) -> int:
    """Return the operator set of the definition valid at ``opset``; 0 if there is none."""
    try:
        return get_schema(op_type, opset, domain).since_version
    except onnx.defs.SchemaError:
        return 0


@cache
def newest(domain: str) -> int:
    """Return the newest operator set of a domain in the installed ``onnx``; 0 for an unknown domain."""
    return max((s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain), default=0)


@cache
def changed_in(domain: str, opset: int) -> frozenset[str]:
    """Return the operators whose definition is new, changed or deprecated in exactly this operator set."""
    return frozenset(
        s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain and s.since_version == opset
    )


def parameter(parameters: list[OpSchema.FormalParameter], index: int) -> OpSchema.FormalParameter | None:
    """Return the formal parameter of the argument ``index``; a variadic last parameter repeats."""
    if index < len(parameters):
        return parameters[index]
    if parameters and parameters[-1].option == OpSchema.FormalParameterOption.Variadic:
        return parameters[-1]
    return None


@cache
def _admitted(domain: str, op_type: str, since: int, output: bool, index: int) -> frozenset[str]:
    schema = get_schema(op_type, since, domain)
    formal = parameter(list(schema.outputs if output else schema.inputs), index)
    return frozenset(formal.types) if formal is not None else frozenset()


def admits(schema: OpSchema, index: int, type_text: str, *, output: bool = False) -> bool:
    """Return True if an argument of the schema may have a type, e.g. ``tensor(float)``."""
    return type_text in _admitted(schema.domain, schema.name, schema.since_version, output, index)


def type_text(value: ir.Value) -> str | None:
    """Return a value's type in schema notation, e.g. ``seq(tensor(int64))``; None if unknown."""
    return None if value.type is None else _type_text(value.type)


def _type_text(kind: ir.TypeProtocol) -> str | None:
    if isinstance(kind, ir.TensorType):
        return None if kind.dtype == ir.DataType.UNDEFINED else f"tensor({element_text(kind.dtype)})"
    if isinstance(kind, ir.SequenceType):
        return None if (inner := _type_text(kind.elem_type)) is None else f"seq({inner})"
    if isinstance(kind, ir.OptionalType):
        return None if (inner := _type_text(kind.elem_type)) is None else f"optional({inner})"
    return f"sparse_tensor({element_text(kind.dtype)})"


def element_text(dtype: ir.DataType) -> str:
    """Return an element type in schema notation: ``float``, ``int64``, ``bfloat16``."""
    return dtype.name.lower()


def default_of(schema: OpSchema, attribute: str) -> object:
    """Return the default of an attribute; None if the schema has none."""
    declared = schema.attributes.get(attribute)
    if declared is None or not declared.default_value.name:
        return None
    value = onnx.helper.get_attribute_value(declared.default_value)
    return value.decode() if isinstance(value, bytes) else value
