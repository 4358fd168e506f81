"""Softmax and LogSoftmax written out as exponentials, sums and quotients."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import APPROXIMATES, REASSOCIATES, Match, Refusal, Result, Rewrite, V, rule
from sardonyx.rewrite.notation import Exp, LogSoftmax, Softmax
from sardonyx.rewrite.rules.normalization import producer_of
from sardonyx.rewrite.rules.polynomials import find_shared_value
from sardonyx.rewrite.rules.reductions import reduced_axes
from sardonyx.rewrite.site import Site

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)


def _axis(s: Site, reduction: ir.Node) -> int | None:
    """The one axis that a reduction takes and keeps, if Softmax at this opset is taken along it alone."""
    along, rank = reduced_axes(s, reduction), facts.rank(reduction.inputs[0])
    if along is None or len(along) != 1 or not s.attr("keepdims", 1, node=reduction):
        return None
    # Below opset 13, Softmax is taken over all the axes from the given one on.
    return along[0] if s.opset >= 13 or (rank is not None and along[0] == rank - 1) else None


@rule("fuse_softmax", on="Div", after="ReduceSum", exactness=APPROXIMATES)
def quotient_of_exponentials(s: Site) -> Result:
    """The quotient exp(x) / Σ exp(x) is Softmax, which takes the largest x off by itself."""
    grown, total = s.producer(0, "Exp"), s.producer(1, "ReduceSum")
    if grown is None or total is None or total.inputs[0] is not grown.outputs[0]:
        return None
    axis, x = _axis(s, total), grown.inputs[0]
    if axis is None or x is None or facts.dtype(x) not in FLOATS:
        return Refusal("the sum is not kept along one axis that Softmax can be taken along, or the type is no float")
    nodes: dict[ir.Node, None] = {grown: None, total: None}
    outside = find_shared_value(nodes, s.node)
    if outside is not None:
        return Refusal(f"'{outside}' in between has other readers")
    lowered = producer_of(s, x, "Sub")
    largest = None if lowered is None else producer_of(s, lowered.inputs[1], "ReduceMax")
    if lowered is not None and largest is not None and largest.inputs[0] is lowered.inputs[0]:
        x = lowered.inputs[0] if _axis(s, largest) == axis and facts.used_once(x) else x
    return Softmax(x, axis=axis)


@rule("fuse_softmax", on="Sub", after="ReduceLogSumExp", exactness=REASSOCIATES)
def less_the_logarithm_of_the_sum(s: Site) -> Result:
    """The difference x − log Σ exp(x) is LogSoftmax."""
    total = s.producer(1, "ReduceLogSumExp")
    if total is None or total.inputs[0] is not s.input(0):
        return None
    axis = _axis(s, total)
    if axis is None or facts.dtype(s.output) not in FLOATS or not facts.used_once(total.outputs[0]):
        return Refusal("the sum is read by others, or not kept along one axis that LogSoftmax can be taken along")
    return LogSoftmax(s.input(0), axis=axis)


@rule("fuse_softmax", exactness=REASSOCIATES)
def exponential_of_log_softmax(x: V) -> Rewrite:
    """The exponential of LogSoftmax is Softmax."""

    def softmax(m: Match) -> Result:
        # Both operators have the same versions: an axis left out means the same axis for both.
        return Softmax(m.x, axis=m.nodes[1].attributes.get("axis"))

    return Exp(LogSoftmax(x).once) >> softmax
