"""Index of rules by root operator, producers of the inputs, and operators present in the model."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.facts import STANDARD
from sardonyx.rewrite.language import CONSTANT, Rule


class RuleIndex:
    """Rules by the context of a node.

    Args:
        by_root: The rules by root operator, from :func:`index_by_root`, in the order of trial.
        operators: Operator types present in the model, extended by the caller; a rule is skipped while an operator
            required by the rule is missing.
    """

    def __init__(self, by_root: Mapping[str, Sequence[Rule]], operators: set[str]) -> None:
        self._operators = operators
        self._by_root = by_root
        self._by_producers: dict[tuple[str, ...], list[Rule]] = {}
        self._chosen: dict[tuple[str, ...], list[Rule]] = {}
        self._chosen_for = len(operators)

    def rules_for(self, node: ir.Node) -> Sequence[Rule]:
        """Return the rules to try at a node, in order."""
        if len(self._operators) != self._chosen_for:
            self._chosen.clear()
            self._chosen_for = len(self._operators)
        if node.domain in STANDARD:
            # Inlined: this runs several times per node.
            producers = [
                "" if value is None else _source(value) if (producer := value.producer()) is None else producer.op_type
                for value in node.inputs
            ]
            key = (node.op_type, *producers)
        else:
            key = ("*",)
        chosen = self._chosen.get(key)
        if chosen is None:
            chosen = self._chosen[key] = self._choose(key)
        return chosen

    def _choose(self, key: tuple[str, ...]) -> list[Rule]:
        candidates = self._by_producers.get(key)
        if candidates is None:
            root, *operands = key
            rooted = itertools.chain(self._by_root.get(root, ()) if root != "*" else (), self._by_root.get("*", ()))
            candidates = self._by_producers[key] = [
                rule for rule in rooted if not any(producers.isdisjoint(operands) for producers in rule.after)
            ]
        return [rule for rule in candidates if not any(needed.isdisjoint(self._operators) for needed in rule.among)]


@functools.lru_cache(maxsize=64)
def index_by_root(rules: tuple[Rule, ...], target: str, off: frozenset[str]) -> Mapping[str, Sequence[Rule]]:
    """Return the rules by root operator, cached: few selections of rules serve many models.

    Args:
        rules: The rules, in order.
        target: The current target; rules for other targets are left out.
        off: Labels of rules that must not fire.
    """
    index: dict[str, list[Rule]] = {}
    for rule in rules:
        if rule.label not in off and (not rule.targets or target in rule.targets):
            for root in rule.roots:
                index.setdefault(root, []).append(rule)
    return index


def _source(value: ir.Value) -> str:
    """Return the index key of a value without a producer: the operator of constants for a weight, else ""."""
    return CONSTANT if value.const_value is not None and facts.is_constant(value) else ""
