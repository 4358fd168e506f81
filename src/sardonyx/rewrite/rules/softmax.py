"""Softmax with what follows it."""

from __future__ import annotations

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import APPROXIMATES, Refusal, Result, rule
from sardonyx.rewrite.notation import LogSoftmax
from sardonyx.rewrite.site import Site


@rule("fuse_consecutive_log_softmax", on="Log", after="Softmax", exactness=APPROXIMATES)
def log_of_softmax(s: Site) -> Result:
    """Log of Softmax is LogSoftmax, which stays finite where Softmax is rounded to zero."""
    softmax = s.producer(0, "Softmax")
    if softmax is None or softmax.inputs[0] is None or facts.refers_to_function_attribute(softmax):
        return None
    if not facts.used_once(softmax.outputs[0]):
        return Refusal("the Softmax has other readers")
    # Both operators have the same versions: an axis left out means the same axis for both.
    return LogSoftmax(softmax.inputs[0], axis=softmax.attributes.get("axis"))
