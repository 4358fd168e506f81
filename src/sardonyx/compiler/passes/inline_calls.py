"""Inlining of calls, except calls of functions that have a kernel (tree ensembles)."""

from __future__ import annotations

from sardonyx.compiler.analysis.tree_ensembles import tree_sum
from sardonyx.core.eval.trace import inline
from sardonyx.core.ir.graph import Function, Value
from sardonyx.core.transform.rewriting import Match, RuleSet

INLINING = RuleSet("inline calls")


def inline_calls(inner: Function) -> Function:
    """Return the function without calls that have no kernel; bodies and branches are left unchanged."""
    while any(map(is_open_call, inner.values)):
        inner = INLINING.apply(inner, context={})
    return inner


def is_open_call(value: Value) -> bool:
    """Return True if a value calls a function that has no kernel."""
    return value.op == "call" and tree_sum(value) is None


@INLINING.rule("get")
def result_of_call(m: Match, source: Value, *, index: int) -> Value | None:
    """``get(call(f, x), i)`` is result ``i`` of ``f(x)``, recorded in place."""
    if not is_open_call(source):
        return None
    inlined: dict[Value, list[Value]] = m.context
    if source not in inlined:
        inlined[source] = inline(source.params["function"], source.operands)
    return inlined[source][index]
