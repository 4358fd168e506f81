"""Which rules are worth trying at a node: told by its operator, by what made its inputs, and by what the model has."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.facts import STANDARD
from sardonyx.rewrite.language import CONSTANT, Rule


class RuleIndex:
    """Rules by the surroundings in which they can fire.

    Args:
        rules: The rules, in the order in which they are tried.
        operators: Types of the operators that the model has, to which the caller may add; a rule that needs others
            is left out as long as they are missing.
    """

    def __init__(self, rules: Sequence[Rule], operators: set[str]) -> None:
        self._operators = operators
        self._by_root = _by_root(tuple(rules))
        self._chosen: dict[tuple[str, ...], list[Rule]] = {}
        self._chosen_for = len(operators)

    def rules_for(self, node: ir.Node) -> Sequence[Rule]:
        """The rules to try at a node, in order."""
        if len(self._operators) != self._chosen_for:
            self._chosen.clear()
            self._chosen_for = len(self._operators)
        # Not by `map`: this is asked of every node, several times over.
        key = (node.op_type, *[_maker(value) for value in node.inputs]) if node.domain in STANDARD else ("*",)
        chosen = self._chosen.get(key)
        if chosen is None:
            chosen = self._chosen[key] = self._choose(key)
        return chosen

    def _choose(self, key: tuple[str, ...]) -> list[Rule]:
        root, *makers = key
        chosen = []
        for rule in itertools.chain(self._by_root.get(root, ()) if root != "*" else (), self._by_root.get("*", ())):
            behind = not rule.after or not any(wanted.isdisjoint(makers) for wanted in rule.after)
            if behind and (not rule.among or not any(needed.isdisjoint(self._operators) for needed in rule.among)):
                chosen.append(rule)
        return chosen


@functools.lru_cache(maxsize=64)
def _by_root(rules: tuple[Rule, ...]) -> Mapping[str, Sequence[Rule]]:
    """Rules by the operators that they are rooted at; few selections of rules serve many models."""
    found: dict[str, list[Rule]] = {}
    for rule in rules:
        for root in rule.roots:
            found.setdefault(root, []).append(rule)
    return found


def _maker(value: ir.Value | None) -> str:
    """The operator that makes a value; that of constants for a weight, and nothing for an input."""
    if value is None:
        return ""
    node = value.producer()
    if node is not None:
        return node.op_type
    return CONSTANT if value.const_value is not None and facts.is_constant(value) else ""
