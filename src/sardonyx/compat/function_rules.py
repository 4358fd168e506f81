"""A rewrite stated as two functions: the pattern to find, and what takes its place."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import FunctionProto, NodeProto

from sardonyx.errors import RuleError
from sardonyx.rewrite.language import APPROXIMATES, A, Expr, Rewrite, Rule, V


def rule_from_functions(pattern: FunctionProto, replacement: FunctionProto, *, index: int = 0) -> Rule:
    """A rule from a pattern function and a replacement function of the same inputs.

    The inputs stand for any values. A node attribute that refers to an attribute of the function (``@name``)
    stands for any value of it, in the pattern, and for the value found, in the replacement.

    Args:
        pattern: What to find; it has one output.
        replacement: What to put there.
        index: Tells rules of one run apart.

    Raises:
        RuleError: the functions do not have the same number of inputs, or not one output each.
    """
    where = f"function_rewrite_rules[{index}]"
    if len(pattern.output) != 1 or len(replacement.output) != 1:
        raise RuleError("pattern and replacement need one output each", where=where)
    if len(pattern.input) != len(replacement.input):
        raise RuleError("pattern and replacement have different numbers of inputs", where=where)
    variables = [_named(V(), name) for name in pattern.input]
    attributes: dict[str, A] = {}
    found = _expression(pattern, dict(zip(pattern.input, variables, strict=True)), attributes, where)
    put = _expression(replacement, dict(zip(replacement.input, variables, strict=True)), attributes, where)
    if not isinstance(found, Expr):
        raise RuleError("the pattern has no node that gives its output", where=where)
    rewrite = Rewrite(found, put)
    return Rule(
        name="function_rewrite_rules",
        function=f"{pattern.name or 'pattern'}_{index}",
        roots=frozenset(found.op_types),
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
            raise RuleError(f"'{missing[0]}' is read before it is given", where=f"{where}, {node.op_type}")
        made = Expr(
            (node.op_type,),
            tuple(values[name] for name in node.input),
            _attributes(node, attributes),
            domain="" if node.domain == "ai.onnx" else node.domain,
            n_outputs=len(node.output),
        )
        for i, name in enumerate(node.output):
            values[name] = made if i == 0 else made.out(i)
    result: Expr | V | None = values.get(function.output[0])
    if result is None:
        raise RuleError(f"nothing gives its output '{function.output[0]}'", where=where)
    return result


def _attributes(node: NodeProto, attributes: dict[str, A]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        reference = attribute.ref_attr_name
        if reference:
            found[attribute.name] = attributes.setdefault(reference, _named(A(), f"@{reference}"))
            continue
        value = onnx.helper.get_attribute_value(attribute)
        found[attribute.name] = value.decode() if isinstance(value, bytes) else value
    return found
