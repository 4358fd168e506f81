"""Reductions with the element-wise operators beside them, as the one reduction that they are."""

from __future__ import annotations

import math

import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import APPROXIMATES, REASSOCIATES, Refusal, Result, rule
from sardonyx.rewrite.rules.activations import BESIDE_ONNXRUNTIME
from sardonyx.rewrite.rules.normalization import made_by
from sardonyx.rewrite.rules.polynomials import number_of
from sardonyx.rewrite.rules.reductions import reduced_axes
from sardonyx.rewrite.rules.signatures import with_axes
from sardonyx.rewrite.site import Site

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)

_OF_ELEMENTS = {"Abs": "ReduceL1", "Mul": "ReduceSumSquare", "Pow": "ReduceSumSquare"}


def _reduced(s: Site, node: ir.Node, op_type: str, x: ir.Value | None) -> Result:
    """``op_type`` of ``x`` along the axes of ``node``."""
    along = reduced_axes(s, node)
    if not along or x is None or facts.dtype(x) not in FLOATS:
        return Refusal("the axes are not known, or the type is no float")
    if not facts.used_once(node.outputs[0]) and node is not s.node:
        return Refusal("the sum has other readers")
    return with_axes(s, op_type, x, along, keepdims=int(s.attr("keepdims", 1, node=node)))


@rule("fuse_reduce_mean", on=("Div", "Mul"), after="ReduceSum", exactness=REASSOCIATES)
def sum_by_count(s: Site) -> Result:
    """A sum divided by the number of elements that it takes is ReduceMean."""
    for index in (0, 1) if s.node.op_type == "Mul" else (0,):
        total, number = s.producer(index, "ReduceSum"), number_of(s.input(1 - index))
        if total is None or not number:
            continue
        along = reduced_axes(s, total) or ()
        sizes = [facts.dim_at(total.inputs[0], axis) for axis in along]
        count = math.prod(size for size in sizes if size is not None)
        if not along or None in sizes or not count or facts.rank(s.output) != facts.rank(total.outputs[0]):
            return Refusal("the number of elements is not known")
        if not math.isclose(number if s.node.op_type == "Div" else 1 / number, count, rel_tol=1e-6):
            return Refusal("the sum is divided by another number than that of its elements")
        return _reduced(s, total, "ReduceMean", total.inputs[0])
    return None


@rule("fuse_reduce_norm", on="Sqrt", after="ReduceSumSquare", exactness=REASSOCIATES)
def root_of_squares(s: Site) -> Result:
    """The root of ReduceSumSquare is ReduceL2."""
    total = s.producer(0, "ReduceSumSquare")
    return None if total is None else _reduced(s, total, "ReduceL2", total.inputs[0])


@rule("fuse_reduce_norm", on="ReduceSum", after=_OF_ELEMENTS, exactness=REASSOCIATES, targets=BESIDE_ONNXRUNTIME)
def sum_of_magnitudes(s: Site) -> Result:
    """A sum of magnitudes or squares is ReduceL1 or ReduceSumSquare."""
    node = s.producer(0, *_OF_ELEMENTS)
    if node is None:
        return None
    x = node.inputs[0]
    if node.op_type != "Abs" and not (
        node.inputs[1] is x or (node.op_type == "Pow" and number_of(node.inputs[1]) == 2)
    ):
        return None
    if not facts.used_once(node.outputs[0]):
        return Refusal("the magnitudes have other readers")
    return _reduced(s, s.node, _OF_ELEMENTS[node.op_type], x)


@rule("fuse_reduce_norm", on="Log", after="ReduceSum", exactness=APPROXIMATES, targets=BESIDE_ONNXRUNTIME)
def logarithm_of_sum(s: Site) -> Result:
    """The logarithm of a sum is ReduceLogSum; of exponentials ReduceLogSumExp, which stays finite where they do not."""
    total = s.producer(0, "ReduceSum")
    if total is None:
        return None
    grown = made_by(s, total.inputs[0], "Exp")
    if grown is not None and facts.used_once(grown.outputs[0]):
        return _reduced(s, total, "ReduceLogSumExp", grown.inputs[0])
    return _reduced(s, total, "ReduceLogSum", total.inputs[0])
