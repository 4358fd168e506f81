"""Softmax and its successors."""

from __future__ import annotations

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import APPROXIMATES, Match, Result, Rewrite, V, rule, unshared, where
from sardonyx.rewrite.notation import Log, LogSoftmax, Softmax


@rule("fuse_consecutive_log_softmax", exactness=APPROXIMATES)
def log_of_softmax(x: V) -> Rewrite:
    """Fuse Log of Softmax into LogSoftmax, which stays finite if Softmax rounds to zero."""

    def fuse(m: Match) -> Result:
        softmax = m.nodes[1]
        if facts.refers_to_function_attribute(softmax):
            return None
        # Both operators have the same versions, so that their default axes agree.
        return LogSoftmax(m.x, axis=softmax.attributes.get("axis"))

    return Log(Softmax(x)) >> fuse | where(unshared)
