"""Softmax and its successors."""

from __future__ import annotations

from sardonyx.rewrite.language import APPROXIMATES, A, Rewrite, V, rule, unshared, where
from sardonyx.rewrite.notation import Log, LogSoftmax, Softmax


@rule("fuse_consecutive_log_softmax", exactness=APPROXIMATES)
def log_of_softmax(x: V, axis: A) -> Rewrite:
    """Fuse Log of Softmax into LogSoftmax, which stays finite if Softmax rounds to zero."""
    return Log(Softmax(x, axis=axis)) >> LogSoftmax(x, axis=axis) | where(unshared)
