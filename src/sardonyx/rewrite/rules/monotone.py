"""ArgMax and TopK of a monotone function: the index does not depend on the function, except for ties."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import APPROXIMATES, AnyOf, Match, Refusal, Result, Rewrite, V, rule
from sardonyx.rewrite.notation import ArgMax
from sardonyx.rewrite.rules.signatures import reapply
from sardonyx.rewrite.site import Site

INCREASING = ("Exp", "Log", "Sqrt", "Sigmoid", "Tanh", "Softplus", "Erf")
ALONG_AXIS = ("Softmax", "LogSoftmax")
RARELY_SATURATED = ("Exp", "Softmax", "LogSoftmax")
"""Functions that keep the two largest of usual values apart."""


def _skip_function(m: Match) -> Result:
    s, function = m.site, m.nodes[1]
    if s.node.op_type == "TopK" and not facts.unused(s.output):
        return Refusal("the values of TopK are used")
    if function.op_type in ALONG_AXIS and not _same_axis(s, s.attr("axis", -1 if s.opset >= 13 else 1, node=function)):
        return Refusal("the normalized axis is another one")
    moved = reapply(s.node, m.x, *s.node.inputs[1:])
    return (None, moved.out(1)) if s.node.op_type == "TopK" else moved


@rule("eliminate_nop_monotone_argmax", exactness=APPROXIMATES, default=False)
def place_of_extremum(x: V) -> Rewrite:
    """Take ArgMax, ArgMin, or the indices of TopK before an increasing function instead of after.

    Optional: the function may round different values to equal ones, or give NaN; then the index differs from the
    model's.
    """
    return AnyOf("ArgMax", "ArgMin", "TopK")(AnyOf(*INCREASING, *ALONG_AXIS)(x), ...) >> _skip_function


@rule("eliminate_nop_monotone_argmax", exactness=APPROXIMATES)
def place_of_maximum(x: V) -> Rewrite:
    """Take ArgMax before Exp, Softmax or LogSoftmax, in single precision or better.

    The index differs only if the two largest values differ by less than the function's rounding.
    """

    def skip(m: Match) -> Result:
        is_precise = facts.dtype(m.root.inputs[0]) in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
        return _skip_function(m) if is_precise else None

    return ArgMax(AnyOf(*RARELY_SATURATED)(x)) >> skip


def _same_axis(s: Site, axis: int) -> bool:
    rank = s.rank(0)
    if rank is None:
        return False
    selected = s.attr("axis", -1 if s.node.op_type == "TopK" else 0)
    if s.opset < 13 and axis % rank != rank - 1:
        # Below version 13, the operator normalizes over all axes from this one on.
        return False
    return bool(axis % rank == selected % rank)
