"""Which rules are worth trying at a node: told by its operator, by what made its inputs, and by what the model has."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.facts import STANDARD
from sardonyx.rewrite.language import CONSTANT, Rule


class RuleIndex:
    """Rules by the surroundings in which they can fire.

    Args:
        rules: The rules, in the order in which they are tried.
        operators: Types of the operators that the model has; a rule that needs others is left out.
    """

    def __init__(self, rules: Sequence[Rule], operators: set[str]) -> None:
        self._operators = len(operators)
        self._by_root: dict[str, list[Rule]] = {}
        self._everywhere: list[Rule] = []
        for rule in rules:
            if any(operators.isdisjoint(needed) for needed in rule.among):
                continue
            for root in rule.roots:
                if root == "*":
                    self._everywhere.append(rule)
                elif root in operators:
                    self._by_root.setdefault(root, []).append(rule)
        self._chosen: dict[tuple[str, ...], tuple[Rule, ...]] = {}

    def outdated(self, operators: set[str]) -> bool:
        """Whether the model has got operators that it had not: none are ever struck off."""
        return len(operators) != self._operators

    def rules_for(self, node: ir.Node) -> Sequence[Rule]:
        """The rules to try at a node, in order."""
        if node.domain not in STANDARD:
            return self._everywhere
        key = (node.op_type, *map(_maker, node.inputs))
        chosen = self._chosen.get(key)
        if chosen is None:
            makers = set(key[1:])
            chosen = self._chosen[key] = tuple(
                rule
                for rule in (*self._by_root.get(node.op_type, ()), *self._everywhere)
                if not any(makers.isdisjoint(wanted) for wanted in rule.after)
            )
        return chosen


def _maker(value: ir.Value | None) -> str:
    """The operator that makes a value; that of constants for a weight, and nothing for an input."""
    if value is None:
        return ""
    node = value.producer()
    if node is not None:
        return node.op_type
    return CONSTANT if facts.is_constant(value) else ""
