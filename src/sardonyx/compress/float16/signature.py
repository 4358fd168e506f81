"""Type signatures of operators, from ONNX schemas: shared type variables and allowed types.

Types are spelled as in ONNX schemas: ``tensor(float)``, ``seq(tensor(int64))``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from sardonyx.model.schemas import get_schema

FLOAT32 = "tensor(float)"

SEQUENCE_OPERATORS = frozenset(
    (
        "ConcatFromSequence",
        "Optional",
        "OptionalGetElement",
        "SequenceAt",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SplitToSequence",
    )
)
"""Operators between tensors and sequences or optionals of them: one element type for all operands."""

# The attribute with the output's element type, for operators whose inputs do not determine the type.
DTYPE_ATTRIBUTE: Mapping[str, str] = {
    "Bernoulli": "dtype",
    "BitCast": "to",
    "BlackmanWindow": "output_datatype",
    "Cast": "to",
    "DequantizeLinear": "output_dtype",
    "EyeLike": "dtype",
    "HammingWindow": "output_datatype",
    "HannWindow": "output_datatype",
    "MelWeightMatrix": "output_datatype",
    "RandomNormal": "dtype",
    "RandomNormalLike": "dtype",
    "RandomUniform": "dtype",
    "RandomUniformLike": "dtype",
    "SequenceEmpty": "dtype",
}

# The input that determines the output's type if the attribute is absent; without an entry the default is float32.
DTYPE_INPUT: Mapping[str, int] = {
    "Bernoulli": 0,
    "DequantizeLinear": 1,
    "EyeLike": 0,
    "RandomNormalLike": 0,
    "RandomUniformLike": 0,
}


@dataclass(frozen=True)
class Parameter:
    """An input or output of an operator: its type variable, and the allowed types of the variable."""

    variable: str
    allowed: frozenset[str]
    variadic: bool
    homogeneous: bool


@dataclass(frozen=True)
class Signature:
    """The types of an operator at one version."""

    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    attributes: frozenset[str]

    def input(self, index: int) -> Parameter | None:
        """Return the parameter of a node's input ``index``; None if the schema lacks such an input."""
        return _parameter(self.inputs, index)

    def output(self, index: int) -> Parameter | None:
        """Return the parameter of a node's output ``index``; None if the schema lacks such an output."""
        return _parameter(self.outputs, index)


def _parameter(parameters: Sequence[Parameter], index: int) -> Parameter | None:
    if index < len(parameters):
        parameter = parameters[index]
    elif parameters and parameters[-1].variadic:
        parameter = parameters[-1]
    else:
        return None
    if parameter.variadic and not parameter.homogeneous:
        return Parameter(f"{parameter.variable}#{index}", parameter.allowed, True, False)
    return parameter


def signature_of(node: ir.Node, opsets: Mapping[str, int]) -> Signature | None:
    """Return the signature of the node's operator at the imported version; None without a schema."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    version = opsets.get(domain, opsets.get("ai.onnx") if not domain else None)
    return None if version is None else _signature(node.op_type, domain, version)


@functools.cache
def _signature(op_type: str, domain: str, version: int) -> Signature | None:
    try:
        schema = get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None
    constraints = {
        constraint.type_param_str: frozenset(constraint.allowed_type_strs) for constraint in schema.type_constraints
    }

    def parameters(formals: Sequence[onnx.defs.OpSchema.FormalParameter]) -> tuple[Parameter, ...]:
        return tuple(
            Parameter(
                formal.type_str,
                constraints.get(formal.type_str, frozenset((formal.type_str,))),
                formal.option == onnx.defs.OpSchema.FormalParameterOption.Variadic,
                formal.is_homogeneous,
            )
            for formal in formals
        )

    return Signature(parameters(schema.inputs), parameters(schema.outputs), frozenset(schema.attributes))


def holds_float32(type_: str) -> bool:
    """Return True for a sequence or optional of float32 tensors, which no operator can cast."""
    return FLOAT32 in type_ and type_ != FLOAT32


def type_name(type_: ir.TypeProtocol | ir.DataType) -> str:
    """Return a type in the spelling of schemas; an element type stands for a dense tensor."""
    if isinstance(type_, ir.DataType):
        return f"tensor({type_.name.lower()})"
    if isinstance(type_, ir.SequenceType):
        return f"seq({type_name(type_.elem_type)})"
    if isinstance(type_, ir.OptionalType):
        return f"optional({type_name(type_.elem_type)})"
    if isinstance(type_, ir.SparseTensorType):
        return f"sparse_{type_name(type_.dtype)}"
    return type_name(type_.dtype) if isinstance(type_, ir.TensorType) else repr(type_)
