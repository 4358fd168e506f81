"""Reductions combined with adjacent elementwise operators: mean, norms, logarithm of a sum."""

from __future__ import annotations

import math

import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import APPROXIMATES, REASSOCIATES, AnyOf, Match, Refusal, Result, Rewrite, V, rule
from sardonyx.rewrite.notation import Log, ReduceSum, ReduceSumSquare, Sqrt
from sardonyx.rewrite.rules.activations import BESIDE_ONNXRUNTIME
from sardonyx.rewrite.rules.normalization import producer_of
from sardonyx.rewrite.rules.polynomials import number_of
from sardonyx.rewrite.rules.reductions import reduced_axes
from sardonyx.rewrite.rules.signatures import apply_along
from sardonyx.rewrite.site import Site

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)

_OF_ELEMENTS = {"Abs": "ReduceL1", "Mul": "ReduceSumSquare", "Pow": "ReduceSumSquare"}


def _reduce_like(s: Site, node: ir.Node, op_type: str, x: ir.Value | None) -> Result:
    """Reduce ``x`` by ``op_type`` along the axes of ``node``."""
    along = reduced_axes(s, node)
    if not along or x is None or facts.dtype(x) not in FLOATS:
        return Refusal("the axes are not known, or the type is not a float")
    if not facts.used_once(node.outputs[0]) and node is not s.node:
        return Refusal("the sum has other readers")
    return apply_along(s, op_type, x, along, keepdims=int(s.attr("keepdims", 1, node=node)))


@rule("fuse_reduce_mean", exactness=REASSOCIATES)
def sum_by_count(x: V, count: V) -> Rewrite:
    """Fuse a sum divided by the number of its elements into ReduceMean."""

    def mean(m: Match) -> Result:
        s, total, number = m.site, m.nodes[1], number_of(m.count)
        if not number:
            return None
        along = reduced_axes(s, total) or ()
        sizes = [facts.dim_at(m.x, axis) for axis in along]
        elements = math.prod(size for size in sizes if size is not None)
        if not along or None in sizes or not elements or facts.rank(s.output) != facts.rank(total.outputs[0]):
            return Refusal("the number of summed elements is not known")
        if not math.isclose(number if s.node.op_type == "Div" else 1 / number, elements, rel_tol=1e-6):
            return Refusal("the divisor is not the number of summed elements")
        return _reduce_like(s, total, "ReduceMean", m.x)

    return AnyOf("Div", "Mul")(ReduceSum(x, ...), count) >> mean


@rule("fuse_reduce_norm", exactness=REASSOCIATES)
def root_of_squares(x: V) -> Rewrite:
    """Fuse the root of ReduceSumSquare into ReduceL2."""
    return Sqrt(ReduceSumSquare(x, ...)) >> (lambda m: _reduce_like(m.site, m.nodes[1], "ReduceL2", m.x))


@rule("fuse_reduce_norm", on="ReduceSum", after=_OF_ELEMENTS, exactness=REASSOCIATES, targets=BESIDE_ONNXRUNTIME)
def sum_of_magnitudes(s: Site) -> Result:
    """Fuse a sum of magnitudes or squares into ReduceL1 or ReduceSumSquare."""
    node = s.producer(0, *_OF_ELEMENTS)
    if node is None:
        return None
    x = node.inputs[0]
    if node.op_type != "Abs" and not (
        node.inputs[1] is x or (node.op_type == "Pow" and number_of(node.inputs[1]) == 2)
    ):
        return None
    if not facts.used_once(node.outputs[0]):
        return Refusal("the magnitudes or squares have other readers")
    return _reduce_like(s, s.node, _OF_ELEMENTS[node.op_type], x)


@rule("fuse_reduce_norm", exactness=APPROXIMATES, targets=BESIDE_ONNXRUNTIME)
def logarithm_of_sum(x: V) -> Rewrite:
    """Fuse Log of a sum into ReduceLogSum, of exponentials into ReduceLogSumExp, which does not overflow."""

    def fuse(m: Match) -> Result:
        s, total = m.site, m.nodes[1]
        exponential = producer_of(s, m.x, "Exp")
        if exponential is not None and facts.used_once(exponential.outputs[0]):
            return _reduce_like(s, total, "ReduceLogSumExp", exponential.inputs[0])
        return _reduce_like(s, total, "ReduceLogSum", m.x)

    return Log(ReduceSum(x, ...)) >> fuse
