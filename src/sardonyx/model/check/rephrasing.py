"""Texts of onnx in the words of this package, with the names and types of the node's inputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import onnx

from sardonyx.model.check.tensors import type_name

_COUNT = re.compile(r"Node with schema\([^()]*\) has (input|output) size (\d+) not in range \[min=(\d+), max=(\d+)\]")
_UNSUPPORTED = re.compile(r"(\w+) typestr: [^,]+, has unsupported type: ([\w()]+)")
_INCONSISTENT = re.compile(r"(\w+) has inconsistent type ([\w()]+)")
_RANK = re.compile(r"Inferred shape and existing shape differ in rank: \((\d+)\) vs \((\d+)\)")
_SIZE = re.compile(
    r"Can't merge shape info\. Both inferred and declared dimension have values but they differ\. "
    r"Inferred=(\d+) Declared=(\d+) Dimension=(\d+)"
)
_NUMBERED = re.compile(r"\b[Ii]nputs? (\d+)\b")
_UNBOUNDED = 2**31 - 1
"""The number of inputs of a variadic operator in onnx's texts."""


def rephrase(reason: str, node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto] | None = None) -> str:
    """Return onnx's reason for refusing a node, with names instead of positions.

    Args:
        reason: A sentence.
        node: The node.
        types: Declared and inferred types by name, for a list of the node's inputs; None for no list.
    """
    text = _COUNT.sub(_expected_count, reason)
    text = _UNSUPPORTED.sub(lambda m: f"{m[1]} has the type {m[2]}, which the operator does not accept", text)
    text = _INCONSISTENT.sub(
        lambda m: f"{m[1]} has the type {m[2]}, unlike other inputs of the same type variable", text
    )
    text = _RANK.sub(lambda m: f"the inferred shape has rank {m[1]}, the declared shape has rank {m[2]}", text)
    text = _SIZE.sub(lambda m: f"axis {m[3]} has the sizes {m[1]} and {m[2]}", text)
    text = _NUMBERED.sub(_named(node), text)
    if types is None:
        return text
    described = [f"{name} {_type_words(types.get(name))}".strip() for name in node.input if name]
    return f"{text} Inputs: {', '.join(described)}." if described else text


def _expected_count(match: re.Match[str]) -> str:
    least, most = int(match[3]), int(match[4])
    expected = f"at least {least}" if most >= _UNBOUNDED else str(least) if least == most else f"{least} to {most}"
    return f"expected {expected} {match[1]}s, got {match[2]}"


def _named(node: onnx.NodeProto) -> Callable[[re.Match[str]], str]:
    def name(match: re.Match[str]) -> str:
        position = int(match[1])
        return f"input '{node.input[position]}'" if position < len(node.input) and node.input[position] else match[0]

    return name


def _type_words(kind: onnx.TypeProto | None) -> str:
    """Return the element type and the sizes of a tensor; empty for other types and unknown ones."""
    if kind is None or not kind.HasField("tensor_type") or not kind.tensor_type.elem_type:
        return ""
    words = type_name(kind.tensor_type.elem_type).lower()
    if not kind.tensor_type.HasField("shape"):
        return words
    sizes = [
        str(dim.dim_value) if dim.HasField("dim_value") else dim.dim_param or "?" for dim in kind.tensor_type.shape.dim
    ]
    return f"{words}[{', '.join(sizes)}]"
