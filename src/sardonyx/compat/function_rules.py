"""Rules from two functions: a pattern and its replacement."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import FunctionProto, NodeProto

from sardonyx.errors import RuleError
from sardonyx.rewrite.language import APPROXIMATES, A, Expr, Rewrite, Rule, V


def rule_from_functions(pattern: FunctionProto, replacement: FunctionProto, *, index: int = 0) -> Rule:
    """Return the rule of a pattern function and a replacement function with the same inputs.

    The inputs match any values. A node attribute that refers to an attribute of the function (``@name``) matches any
    value in the pattern, and has the matched value in the replacement.

    Args:
        pattern: The pattern, with one output.
        replacement: The replacement.
        index: Number of the rule, to distinguish rules of one run.

    Raises:
        RuleError: The functions have different numbers of inputs, or not one output each.
    """
    where = f"function_rewrite_rules[{index}]"
    if len(pattern.output) != 1 or len(replacement.output) != 1:
        raise RuleError("expected one output each of pattern and replacement", where=where)
    if len(pattern.input) != len(replacement.input):
        raise RuleError("pattern and replacement have different numbers of inputs", where=where)
    variables = [_named(V(), name) for name in pattern.input]
    attributes: dict[str, A] = {}
    matched = _expression(pattern, dict(zip(pattern.input, variables, strict=True)), attributes, where)
    result = _expression(replacement, dict(zip(replacement.input, variables, strict=True)), attributes, where)
    if not isinstance(matched, Expr):
        raise RuleError("expected a node that computes the pattern's output", where=where)
    rewrite = Rewrite(matched, result)
    return Rule(
        name="function_rewrite_rules",
        function=f"{pattern.name or 'pattern'}_{index}",
        roots=frozenset(matched.op_types),
        apply=rewrite.apply,
        exactness=APPROXIMATES,
        emits=tuple({node.domain or "ai.onnx" for node in replacement.node}),
        opset=1,
        default=True,
        targets=frozenset(),
        description=replacement.doc_string or f"{pattern.name} becomes {replacement.name}.",
    )


def _named(variable: Any, name: str) -> Any:
    variable.name = name
    return variable


def _expression(function: FunctionProto, values: dict[str, Any], attributes: dict[str, A], where: str) -> Expr | V:
    values[""] = None
    for node in function.node:
        missing = [name for name in node.input if name not in values]
        if missing:
            raise RuleError(f"'{missing[0]}' is read before its definition", where=f"{where}, {node.op_type}")
        expression = Expr(
            (node.op_type,),
            tuple(values[name] for name in node.input),
            _attributes(node, attributes),
            domain="" if node.domain == "ai.onnx" else node.domain,
            n_outputs=len(node.output),
        )
        for i, name in enumerate(node.output):
            values[name] = expression if i == 0 else expression.out(i)
    result: Expr | V | None = values.get(function.output[0])
    if result is None:
        raise RuleError(f"the output '{function.output[0]}' is undefined", where=where)
    return result


def _attributes(node: NodeProto, attributes: dict[str, A]) -> dict[str, Any]:
    matched: dict[str, Any] = {}
    for attribute in node.attribute:
        reference = attribute.ref_attr_name
        if reference:
            matched[attribute.name] = attributes.setdefault(reference, _named(A(), f"@{reference}"))
            continue
        value = onnx.helper.get_attribute_value(attribute)
        matched[attribute.name] = value.decode() if isinstance(value, bytes) else value
    return matched
