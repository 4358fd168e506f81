"""Where: with a known condition, equal branches, or branches that are true and false."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import EXACT, REASSOCIATES, Refusal, Result, Rewrite, V, rule
from sardonyx.rewrite.notation import And, Not, Or, Where
from sardonyx.rewrite.rules.broadcasting import keeps_shape, repeated
from sardonyx.rewrite.site import Site


@rule("eliminate_where", on="Where", exactness=REASSOCIATES)
def known_condition(s: Site) -> Result:
    """Where with a condition that is true, or false, everywhere: one branch; zeros keep their sign."""
    condition = repeated(s, s.input(0))
    if condition is None:
        return None
    chosen, other = (s.input(1), s.input(2)) if condition else (s.input(2), s.input(1))
    if not keeps_shape(s, chosen, [other, s.input(0)]):
        return Refusal("the other branch, or the condition, may broadcast the one chosen to another shape")
    return chosen


@rule("eliminate_where", on="Where", exactness=REASSOCIATES)
def equal_branches(s: Site) -> Result:
    """Where of a value and the same value; zeros keep their sign."""
    if s.input(1) is not s.input(2):
        return None
    if not keeps_shape(s, s.input(1), [s.input(0)]):
        return Refusal("the condition may broadcast the branches to another shape")
    return s.input(1)


@rule("rewrite_where", exactness=REASSOCIATES)
def negated_condition(condition: V, yes: V, no: V) -> Rewrite:
    """Where of Not has its branches changed over; ONNX Runtime may give a zero the other sign."""
    return Where(Not(condition), yes, no) >> Where(condition, no, yes)


@rule("rewrite_bool_where", on="Where", exactness=EXACT, opset=9)
def boolean_where(s: Site) -> Result:
    """Where with true or false for a branch is the condition, Not, And, or Or."""
    condition = s.input(0)
    if condition is None or facts.dtype(s.output) != ir.DataType.BOOL:
        return None
    yes, no = repeated(s, s.input(1)), repeated(s, s.input(2))
    if yes is None and no is None:
        return None
    if yes is not None and no is not None:
        if yes == no or not keeps_shape(s, condition, [s.input(1), s.input(2)]):
            return None
        return condition if yes else Not(condition)
    other = s.input(2) if no is None else s.input(1)
    number = s.input(1) if no is None else s.input(2)
    if other is None or not (keeps_shape(s, condition, [number]) or keeps_shape(s, other, [number])):
        return Refusal("the constant branch decides the shape of the result")
    if yes:
        return Or(condition, other)
    return And(condition, other) if no is not None and not no else None
