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
        by_root: The rules by their roots, as :func:`by_roots` gives them, in the order in which they are tried.
        operators: Types of the operators that the model has, to which the caller may add; a rule that needs others
            is left out as long as they are missing.
    """

    def __init__(self, by_root: Mapping[str, Sequence[Rule]], operators: set[str]) -> None:
        self._operators = operators
        self._by_root = by_root
        self._behind: dict[tuple[str, ...], list[Rule]] = {}
        self._chosen: dict[tuple[str, ...], list[Rule]] = {}
        self._chosen_for = len(operators)

    def rules_for(self, node: ir.Node) -> Sequence[Rule]:
        """The rules to try at a node, in order."""
        if len(self._operators) != self._chosen_for:
            self._chosen.clear()
            self._chosen_for = len(self._operators)
        if node.domain in STANDARD:
            # Makers are told right here: this is asked of every node, several times over.
            makers = [
                "" if value is None else _source(value) if (maker := value.producer()) is None else maker.op_type
                for value in node.inputs
            ]
            key = (node.op_type, *makers)
        else:
            key = ("*",)
        chosen = self._chosen.get(key)
        if chosen is None:
            chosen = self._chosen[key] = self._choose(key)
        return chosen

    def _choose(self, key: tuple[str, ...]) -> list[Rule]:
        behind = self._behind.get(key)
        if behind is None:
            root, *makers = key
            rooted = itertools.chain(self._by_root.get(root, ()) if root != "*" else (), self._by_root.get("*", ()))
            behind = self._behind[key] = [
                rule for rule in rooted if not any(wanted.isdisjoint(makers) for wanted in rule.after)
            ]
        return [rule for rule in behind if not any(needed.isdisjoint(self._operators) for needed in rule.among)]


@functools.lru_cache(maxsize=64)
def by_roots(rules: tuple[Rule, ...], target: str, off: frozenset[str]) -> Mapping[str, Sequence[Rule]]:
    """Rules by the operators that they are rooted at; few selections of rules serve many models.

    Args:
        rules: The rules, in order.
        target: The target in force; rules for others are left out.
        off: Labels of rules that must not fire.
    """
    found: dict[str, list[Rule]] = {}
    for rule in rules:
        if rule.label not in off and (not rule.targets or target in rule.targets):
            for root in rule.roots:
                found.setdefault(root, []).append(rule)
    return found


def _source(value: ir.Value) -> str:
    """What stands for the maker of a value that no node makes: the operator of constants for a weight, else nothing."""
    return CONSTANT if value.const_value is not None and facts.is_constant(value) else ""
