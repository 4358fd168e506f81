"""Attribute values at which onnx's inference reads outside of its memory, or never ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import onnx

from sardonyx.model.check.codes import finding
from sardonyx.model.check.findings import Finding
from sardonyx.model.check.scopes import canonical_domain, scopes

_EQUATION = re.compile(rb"[A-Za-z.,\->\s]*")
_INT32 = 2**31


def _batch_dims(attribute: onnx.AttributeProto, node: onnx.NodeProto) -> str:
    return "" if 0 <= attribute.i < _INT32 else f"expected a number of axes, got {attribute.i}."


def _axis(attribute: onnx.AttributeProto, node: onnx.NodeProto) -> str:
    return "" if -_INT32 <= attribute.i < _INT32 else f"expected an axis, got {attribute.i}."


def _equation(attribute: onnx.AttributeProto, node: onnx.NodeProto) -> str:
    if _EQUATION.fullmatch(attribute.s):
        return ""
    return f"expected letters, commas, dots and an arrow, got {attribute.s.decode(errors='replace')[:80]!r}."


def _num_outputs(attribute: onnx.AttributeProto, node: onnx.NodeProto) -> str:
    count = len(node.output)
    return "" if attribute.i == count else f"expected {count}, the number of outputs, got {attribute.i}."


_RANGES: Mapping[tuple[str, str], Callable[[onnx.AttributeProto, onnx.NodeProto], str]] = {
    ("GatherND", "batch_dims"): _batch_dims,
    ("LayerNormalization", "axis"): _axis,
    ("Einsum", "equation"): _equation,
    ("Split", "num_outputs"): _num_outputs,
}
"""Functions to the problem of an attribute, by operator and name.

Source: `tests/fuzz/test_onnx_inference.py`, which draws values for all operators.
"""


def check_attribute_ranges(model: onnx.ModelProto) -> Iterator[Finding]:
    """Report attribute values that onnx's inference must not get.

    A value that a function's caller supplies is looked up by its name in all nodes and functions.
    """
    supplied: dict[str, list[onnx.AttributeProto]] | None = None
    for scope in scopes(model):
        for node in scope.graph.node:
            if canonical_domain(node.domain):
                continue
            for attribute in node.attribute:
                problem_of = _RANGES.get((node.op_type, attribute.name))
                if problem_of is None:
                    continue
                values = [attribute]
                if attribute.ref_attr_name:
                    supplied = _supplied(model) if supplied is None else supplied
                    values = supplied.get(attribute.ref_attr_name, [])
                problem = next(filter(None, (problem_of(value, node) for value in values)), "")
                if problem:
                    yield finding("attribute-range", f"the attribute {attribute.name!r}: {problem}", scope.at(node))


def _supplied(model: onnx.ModelProto) -> dict[str, list[onnx.AttributeProto]]:
    """Return all attributes with a value, of nodes and of functions' defaults, by name."""
    values: dict[str, list[onnx.AttributeProto]] = {}
    for scope in scopes(model):
        for node in scope.graph.node:
            for attribute in node.attribute:
                values.setdefault(attribute.name, []).append(attribute)
    for function in model.functions:
        for attribute in function.attribute_proto:
            values.setdefault(attribute.name, []).append(attribute)
    return values
