"""What the operator schemas say about types: which inputs and outputs share one, and which types it may take.

Types are written the way ONNX schemas write them: ``tensor(float)``, ``seq(tensor(int64))``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

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
"""Operators between tensors and the sequences or optionals that hold them: one element type for all."""

# The attribute that states an output's element type, of operators whose inputs do not determine it.
STATING_ATTRIBUTE: Mapping[str, str] = {
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

# Of those, the input whose type the output takes where the attribute is absent; the others default to float32.
FOLLOWED_INPUT: Mapping[str, int] = {
    "Bernoulli": 0,
    "DequantizeLinear": 1,
    "EyeLike": 0,
    "RandomNormalLike": 0,
    "RandomUniformLike": 0,
}


@dataclass(frozen=True)
class Parameter:
    """An input or output of an operator: its type variable, and the types that variable may take."""

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
        """The parameter that input ``index`` of a node belongs to; None where the schema has no such input."""
        return _parameter(self.inputs, index)

    def output(self, index: int) -> Parameter | None:
        """The parameter that output ``index`` of a node belongs to; None where the schema has no such output."""
        return _parameter(self.outputs, index)


def _parameter(parameters: Sequence[Parameter], index: int) -> Parameter | None:
    if index < len(parameters):
        found = parameters[index]
    elif parameters and parameters[-1].variadic:
        found = parameters[-1]
    else:
        return None
    if found.variadic and not found.homogeneous:
        return Parameter(f"{found.variable}#{index}", found.allowed, True, False)
    return found


def signature_of(node: ir.Node, opsets: Mapping[str, int]) -> Signature | None:
    """The signature of the node's operator at the version imported; None where no schema is known for it."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    version = opsets.get(domain, opsets.get("ai.onnx") if not domain else None)
    return None if version is None else _signature(node.op_type, domain, version)


@functools.cache
def _signature(op_type: str, domain: str, version: int) -> Signature | None:
    try:
        schema = onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None
    constraints = {each.type_param_str: frozenset(each.allowed_type_strs) for each in schema.type_constraints}

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
    """Whether a type is a sequence or optional of float32 tensors, which no operator can cast."""
    return FLOAT32 in type_ and type_ != FLOAT32


def type_name(type_: ir.TypeProtocol | ir.DataType) -> str:
    """A type as schemas write it; of an element type, the dense tensor of it."""
    if isinstance(type_, ir.DataType):
        return f"tensor({type_.name.lower()})"
    if isinstance(type_, ir.SequenceType):
        return f"seq({type_name(type_.elem_type)})"
    if isinstance(type_, ir.OptionalType):
        return f"optional({type_name(type_.elem_type)})"
    if isinstance(type_, ir.SparseTensorType):
        return f"sparse_{type_name(type_.dtype)}"
    return type_name(type_.dtype) if isinstance(type_, ir.TensorType) else repr(type_)
