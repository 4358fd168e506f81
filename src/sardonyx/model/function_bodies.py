"""Bodies of operators that the standard defines as functions of other operators, written by onnx for a node."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import defs

from sardonyx.errors import InvalidModelError

_REFUSALS = (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, LookupError, RuntimeError, ValueError)
"""Exceptions of onnx's C++ code at attributes and types that the standard forbids."""


def write_body(
    schema: defs.OpSchema, version: int, node: onnx.NodeProto, types: Sequence[bytes]
) -> onnx.FunctionProto | None:
    """Return the body of an operator whose body depends on the node; None if there is none for these types.

    Args:
        schema: The operator, with a context-dependent function.
        version: The operator set of the body.
        node: The node.
        types: Serialized types of the inputs; empty for an input that is left out.

    Raises:
        InvalidModelError: The node has attributes, operands or types that the standard forbids.
    """
    bodies = [attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH]
    # onnx would read outside of its memory.
    if any(len(body.input) > len(node.input) for body in bodies):
        raise InvalidModelError(f"expected at most {len(node.input)} inputs of the body, one for each operand.")
    if bodies and not all(types):
        raise InvalidModelError("expected operands of known types, for the inputs of the body.")
    try:
        content = schema.get_context_dependent_function_with_opset_version(  # type: ignore[attr-defined]
            version, node.SerializeToString(), list(types)
        )
    except _REFUSALS as error:
        raise InvalidModelError(
            f"{schema.name} has operands or attributes that the standard forbids: {error}"
        ) from error
    return onnx.FunctionProto.FromString(content) if content else None
