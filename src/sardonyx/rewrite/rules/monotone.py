"""ArgMax and TopK of a growing function of the values: the place is found without it, but for ties."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import APPROXIMATES, Refusal, Result, rule
from sardonyx.rewrite.rules.signatures import again
from sardonyx.rewrite.site import Site

GROWING = ("Exp", "Log", "Sqrt", "Sigmoid", "Tanh", "Softplus", "Erf")
ALONG_AXIS = ("Softmax", "LogSoftmax")
HARDLY_SATURATED = ("Exp", "Softmax", "LogSoftmax")
"""Functions whose largest value among common numbers is still told from the second."""


@rule("eliminate_nop_monotone_argmax", on=("ArgMax", "ArgMin", "TopK"), exactness=APPROXIMATES, default=False)
def place_of_extremum(s: Site) -> Result:
    """ArgMax, ArgMin, or the indices of TopK, taken before a growing function instead of after it.

    Only asked for: the function may round different values to equal ones, or
    give NaN, and then another place is found than the model as written finds.
    """
    return _place(s, *GROWING, *ALONG_AXIS)


@rule("eliminate_nop_monotone_argmax", on="ArgMax", exactness=APPROXIMATES)
def place_of_maximum(s: Site) -> Result:
    """ArgMax of Exp, Softmax or LogSoftmax in single precision or better is ArgMax of what these are given.

    Another place is found only where the two largest values differ by less than the function's rounding.
    """
    kind = facts.dtype(s.input(0))
    if kind not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return None
    return _place(s, *HARDLY_SATURATED)


def _place(s: Site, *functions: str) -> Result:
    inner, between = s.producer(0, *functions), s.input(0)
    if inner is None or between is None or inner.inputs[0] is None:
        return None
    if s.node.op_type == "TopK" and not facts.unused(s.output):
        return Refusal("the values of TopK are read")
    if inner.op_type in ALONG_AXIS and not _same_axis(s, s.attr("axis", -1 if s.opset >= 13 else 1, node=inner)):
        return Refusal("it is normalized along another axis")
    moved = again(s.node, inner.inputs[0], *s.node.inputs[1:])
    return (None, moved.out(1)) if s.node.op_type == "TopK" else moved


def _same_axis(s: Site, axis: int) -> bool:
    rank = s.rank(0)
    if rank is None:
        return False
    wanted = s.attr("axis", -1 if s.node.op_type == "TopK" else 0)
    if s.opset < 13 and axis % rank != rank - 1:
        # Below 13, the operator normalizes over all the axes from this one on.
        return False
    return bool(axis % rank == wanted % rank)
