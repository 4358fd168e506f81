"""Normalizations over other than the last axes, as of channels that come second: turned, normalized, turned back."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import EXACT, REASSOCIATES, Op, Refusal, Result, rule
from sardonyx.rewrite.notation import Transpose
from sardonyx.rewrite.rules.broadcasting import keeps_shape
from sardonyx.rewrite.rules.normalization import count_trailing, match_centered, match_division_by_rms, producer_of
from sardonyx.rewrite.rules.polynomials import find_shared_value
from sardonyx.rewrite.site import Site

INVERSES = ("Sqrt", "Pow", "Reciprocal", "Div")
"""What makes the divisor, or the factor, of a normalization."""

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)


def _turned(s: Site, op_type: str, x: ir.Value, axes: tuple[int, ...], epsilon: float) -> Result:
    """``op_type`` of ``x`` along these axes, which a Transpose brings to the end and another one back."""
    rank, kind = facts.rank(x), facts.dtype(x)
    sizes = [facts.dim_at(x, axis) for axis in axes]
    if rank is None or kind is None or kind not in FLOATS:
        return Refusal("the rank is not known, or the type is no float")
    if not all(sizes):
        return Refusal("a size of the axes is not known, or is 0")
    order = [axis for axis in range(rank) if axis not in axes] + list(axes)
    ones = np.ones([size for size in sizes if size], kind.numpy())
    normalized = Op((op_type,))(Transpose(x, perm=order), ones, axis=-len(axes), epsilon=epsilon)
    return Transpose(normalized, perm=[order.index(axis) for axis in range(rank)])


@rule("fuse_layer_normalization", on=("Div", "Mul"), after=INVERSES, exactness=REASSOCIATES, opset=17)
def layer_normalization_of_channels(s: Site) -> Result:
    """(x − mean) / √(variance + ε) over axes that are not the last is LayerNormalization between two Transposes."""
    found = match_division_by_rms(s)
    middle = None if found is None else match_centered(s, found.deviation)
    if found is None or middle is None or middle.axes != found.axes or _is_other(middle.x, found.axes):
        return None
    outside = find_shared_value({**found.nodes, **middle.nodes}, s.node)
    if outside is not None:
        return Refusal(f"'{outside}' in between has other readers")
    return _turned(s, "LayerNormalization", middle.x, found.axes, found.epsilon)


@rule("fuse_rms_normalization", on=("Div", "Mul"), after=INVERSES, exactness=REASSOCIATES, opset=23)
def rms_normalization_of_channels(s: Site) -> Result:
    """The quotient x / √(mean(x²) + ε) over axes that are not the last is RMSNormalization between two Transposes."""
    found = match_division_by_rms(s)
    if found is None or match_centered(s, found.deviation) is not None or _is_other(found.deviation, found.axes):
        return None
    outside = find_shared_value(found.nodes, s.node)
    if outside is not None:
        return Refusal(f"'{outside}' in between has other readers")
    return _turned(s, "RMSNormalization", found.deviation, found.axes, found.epsilon)


def _is_other(x: ir.Value, axes: tuple[int, ...]) -> bool:
    """Whether the axes are the last, for which no Transpose is needed, or not known."""
    rank = facts.rank(x)
    return rank is None or count_trailing(axes, rank) is not None


@rule("fuse_scale_into_normalization", on=("Mul", "Add"), after="Transpose", exactness=EXACT, opset=17)
def parameter_behind_transpose(s: Site) -> Result:
    """A factor or term behind the Transpose of a normalization moves before it, where it becomes a parameter."""
    for index in (0, 1):
        turned, constant = s.producer(index, "Transpose"), s.input(1 - index)
        node = None if turned is None else producer_of(s, turned.inputs[0], "LayerNormalization", "RMSNormalization")
        if turned is None or node is None or not facts.is_constant(constant):
            continue
        perm, rank = s.attr("perm", node=turned), facts.rank(s.output)
        if not facts.used_once(turned.outputs[0]) or not facts.used_once(node.outputs[0]):
            return Refusal("the normalization has other readers")
        array = facts.constant(constant)
        if array is None or perm is None or rank != len(perm) or not keeps_shape(s, turned.outputs[0], [constant]):
            return Refusal("the constant may broadcast the result to another shape")
        moved = array.reshape((1,) * (rank - array.ndim) + array.shape).transpose(np.argsort(perm))
        axis = int(s.attr("axis", -1, node=node)) % rank
        if any(size != 1 for size in moved.shape[:axis]):
            return Refusal("the constant is not one number for each normalized element")
        return Transpose(Op((s.node.op_type,))(node.outputs[0], np.ascontiguousarray(moved)), perm=list(perm))
    return None
