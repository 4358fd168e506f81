"""Rules on Core graphs: the one form that simplification and the compiler's passes share.

A rule is a function of a :class:`Match`, the rewritten operands and the parameters of one primitive. A rule returns an
equal value, or None if inapplicable. A :class:`RuleSet` is a pass: rules in the order of their registration; the first
applicable rule wins.

    SIMPLIFY = RuleSet("simplify")

    @SIMPLIFY.rule("neg", "not")
    def cancel_double_sign(m, x):
        return x.operands[0] if x.op == m.op else None
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sardonyx.core.dim import Size
from sardonyx.core.eval.substitution import Substitution
from sardonyx.core.ir.graph import Function, Value, defined_by, function
from sardonyx.core.ir.primitives import PRIMITIVES
from sardonyx.core.ir.types import Type

Rewrite = Callable[..., "Value | None"]
"""``rewrite(match, *operands, **params)``."""


class Rule(NamedTuple):
    """A rule on Core graphs.

    Attributes:
        name: Name for tests and dumps.
        rewrite: The rewrite.
        exact: True if the result has the same bits for all operands.
    """

    name: str
    rewrite: Rewrite
    exact: bool


class Match(NamedTuple):
    """One primitive of a function during rewriting.

    Attributes:
        value: The primitive before rewriting.
        type: The type of the result, with rewritten sizes.
        params: The parameters, with rewritten sizes.
        rewriter: The rewriter, for rules with further primitives to record.
        context: State and facts of the whole pass over this function: the target, analyses, results to reuse.
    """

    value: Value
    type: Any
    params: Mapping[str, Any]
    rewriter: Rewriter
    context: Any

    @property
    def op(self) -> str:
        """The name of the primitive."""
        return self.value.op


@dataclass
class RuleSet:
    """A pass over Core graphs: named rules, by primitive.

    Attributes:
        name: Name of the pass.
        table: The rules of each primitive, in order of registration.
    """

    name: str
    table: dict[str, list[Rule]] = field(default_factory=lambda: {name: [] for name in PRIMITIVES})

    def rule(self, *primitives: str, exact: bool = True) -> Callable[[Rewrite], Rewrite]:
        """Register a rule for primitives.

        Args:
            primitives: Names of primitives.
            exact: True if the result has the same bits for all operands.
        """

        def register(rewrite: Rewrite) -> Rewrite:
            for primitive in primitives:
                self.table[primitive].append(Rule(rewrite.__name__.strip("_"), rewrite, exact))
            return rewrite

        return register

    def __iter__(self) -> Iterator[Rule]:
        for rules in self.table.values():
            yield from rules

    def apply(self, inner: Function, context: Any = None) -> Function:
        """Return the function after one pass over its values; bodies and branches are left unchanged.

        Args:
            inner: The function to rewrite.
            context: See :class:`Match`.
        """
        return Rewriter(inner, self, context).rewrite(inner)


class Rewriter(Substitution):
    """One pass of a rule set over a function.

    Args:
        inner: The function to rewrite.
        rules: The rules.
        context: See :class:`Match`.
        exact: Leave out rules that change bits.
        sizes: Sizes that replace symbols.
    """

    def __init__(
        self,
        inner: Function,
        rules: RuleSet,
        context: Any = None,
        *,
        exact: bool = False,
        sizes: Mapping[str, Size] | None = None,
    ) -> None:
        super().__init__({}, sizes or {}, inner.level, set(inner.values).__contains__)
        self._rules = rules
        self._context = context
        self._exact = exact

    def rewrite(self, inner: Function) -> Function:
        """Return the function over the rewritten results."""
        return function(inner.name, inner.inputs, self.rebuild_all(inner.results), inner.level)

    def rebuild(self, value: Value) -> Value:
        """Return the result of the first rule that applies, or the value over rewritten operands."""
        if not self._rules.table[value.op]:
            return super().rebuild(value)
        operands = tuple([self.new[operand] for operand in value.operands])
        params = {name: self.part(param) for name, param in value.params.items()}
        replacement = self.first_match(value, operands, params, self.part(value.type))
        if replacement is None:
            return self.rebuild_with(value, operands, params)
        replacement.origin = replacement.origin or value.origin
        return replacement

    def first_match(
        self, value: Value, operands: tuple[Value, ...], params: Mapping[str, Any], type: Type
    ) -> Value | None:
        """Return the result of the first rule that applies and keeps the type; None if no rule does.

        Results of primitives that define symbols get symbols of their own, so that their types differ by these.
        """
        match = Match(value, type, params, self, self._context)
        for rule in self._rules.table[value.op]:
            if rule.exact or not self._exact:
                replacement = rule.rewrite(match, *operands, **params)
                if replacement is not None and (replacement.type == type or defined_by(value)):
                    return replacement
        return None
