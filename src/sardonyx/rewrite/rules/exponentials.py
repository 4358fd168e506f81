"""Softmax and LogSoftmax written out as exponentials, sums and quotients."""

from __future__ import annotations

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import (
    APPROXIMATES,
    REASSOCIATES,
    SILENT,
    Fact,
    Guard,
    Match,
    Refusal,
    Rewrite,
    V,
    guard,
    rule,
    unshared,
    where,
)
from sardonyx.rewrite.notation import Exp, LogSoftmax, ReduceLogSumExp, ReduceMax, ReduceSum, Softmax
from sardonyx.rewrite.rules.polynomials import find_shared_value
from sardonyx.rewrite.rules.reductions import reduced_axes
from sardonyx.rewrite.site import Site

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)


def _axis(s: Site, reduction: ir.Node) -> int | None:
    """Return the single kept axis of a reduction, if Softmax at this opset is computed along it alone."""
    along, rank = reduced_axes(s, reduction), facts.rank(reduction.inputs[0])
    if along is None or len(along) != 1 or not s.attr("keepdims", 1, node=reduction):
        return None
    # Below opset 13, Softmax is computed over all axes from its axis on.
    return along[0] if s.opset >= 13 or (rank is not None and along[0] == rank - 1) else None


AXIS = Fact("axis", lambda m: _axis(m.site, m.node("ReduceSum", "ReduceLogSumExp")))
"""The axis of the sum."""


def _summed_along_one_axis(x: V) -> Guard:
    """Guard: the sum is one of floats, along one axis that Softmax accepts."""
    return guard(
        lambda m: AXIS(m) is not None and facts.dtype(m.bound[x.name]) in FLOATS,
        "the sum is not along one kept axis that Softmax supports, or the type is not floating point",
    )


def _exponentials_unshared(m: Match) -> Refusal | None:
    """Guard: nothing else reads the exponentials and their sum; the maximum may have other readers."""
    outside = find_shared_value({node: None for node in m.nodes if node.op_type != "ReduceMax"}, m.root)
    return None if outside is None else Refusal(f"'{outside}' in between has other readers")


def _maximum_along_same_axis(m: Match) -> Refusal | None:
    return None if _axis(m.site, m.node("ReduceMax")) == AXIS(m) else SILENT


@rule("fuse_softmax", exactness=APPROXIMATES)
def quotient_of_lowered_exponentials(x: V) -> Rewrite:
    """E / sum(e) with e = exp(x - max(x)) is Softmax(x), which subtracts the maximum by itself."""
    e = Exp(x - ReduceMax(x, ...))
    return e / ReduceSum(e, ...) >> Softmax(x, axis=AXIS) | where(
        _summed_along_one_axis(x), _maximum_along_same_axis, _exponentials_unshared
    )


@rule("fuse_softmax", exactness=APPROXIMATES)
def quotient_of_exponentials(x: V) -> Rewrite:
    """E / sum(e) with e = exp(x) is Softmax(x)."""
    e = Exp(x)
    return e / ReduceSum(e, ...) >> Softmax(x, axis=AXIS) | where(_summed_along_one_axis(x), _exponentials_unshared)


@rule("fuse_softmax", exactness=REASSOCIATES)
def less_the_logarithm_of_the_sum(x: V) -> Rewrite:
    """X - log(sum(exp(x))) is LogSoftmax(x)."""
    return x - ReduceLogSumExp(x, ...) >> LogSoftmax(x, axis=AXIS) | where(_summed_along_one_axis(x), unshared)


@rule("fuse_softmax", exactness=REASSOCIATES)
def exponential_of_log_softmax(x: V) -> Rewrite:
    """exp(LogSoftmax(x)) is Softmax(x)."""
    # Both operators have the same versions: an omitted axis means the same axis for both.
    axis = Fact("axis", lambda m: m.node("LogSoftmax").attributes.get("axis"))
    return Exp(LogSoftmax(x)) >> Softmax(x, axis=axis) | where(unshared)
