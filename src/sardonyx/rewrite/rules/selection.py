"""Selections (Where) with a constant condition, equal branches, or constant boolean branches."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import EXACT, REASSOCIATES, Match, Refusal, Result, Rewrite, V, rule, where
from sardonyx.rewrite.notation import And, Not, Or, Where
from sardonyx.rewrite.rules.broadcasting import broadcasts_into, keeps_shape, repeated_number


@rule("eliminate_where", exactness=REASSOCIATES)
def known_condition(condition: V, yes: V, no: V) -> Rewrite:
    """Replace Where with a constant condition by the selected branch; zeros keep their sign."""

    def select(m: Match) -> Result:
        truth = repeated_number(m.site, m.condition)
        if truth is None:
            return None
        branches: tuple[ir.Value, ir.Value] = (m.yes, m.no) if truth else (m.no, m.yes)
        if not keeps_shape(m.site, branches[0], [branches[1], m.condition]):
            return Refusal("the other branch or the condition may broadcast the selected branch")
        return branches[0]

    return Where(condition, yes, no) >> select


@rule("eliminate_where", exactness=REASSOCIATES)
def equal_branches(condition: V, x: V) -> Rewrite:
    """Replace Where of two equal branches by the branch; zeros keep their sign."""
    return Where(condition, x, x) >> x | where(broadcasts_into(x, condition))


@rule("rewrite_where", exactness=REASSOCIATES)
def negated_condition(condition: V, yes: V, no: V) -> Rewrite:
    """Swap the branches of Where(Not(condition)); ONNX Runtime may change the sign of a zero."""
    return Where(Not(condition), yes, no) >> Where(condition, no, yes)


@rule("rewrite_bool_where", exactness=EXACT, opset=9)
def boolean_where(condition: V, yes: V, no: V) -> Rewrite:
    """Replace Where with a constant boolean branch by the condition, Not, And, or Or."""

    def logical(m: Match) -> Result:
        s, condition = m.site, m.condition
        if facts.dtype(s.output) != ir.DataType.BOOL:
            return None
        yes, no = repeated_number(s, m.yes), repeated_number(s, m.no)
        if yes is None and no is None:
            return None
        if yes is not None and no is not None:
            if yes == no or not keeps_shape(s, condition, [m.yes, m.no]):
                return None
            return condition if yes else Not(condition)
        other, number = (m.no, m.yes) if no is None else (m.yes, m.no)
        if not (keeps_shape(s, condition, [number]) or keeps_shape(s, other, [number])):
            return Refusal("the constant branch may broadcast the result")
        if yes:
            return Or(condition, other)
        return And(condition, other) if no is not None and not no else None

    return Where(condition, yes, no) >> logical
