"""Normalizations over axes other than the last, such as channels: normalized between two Transposes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import (
    EXACT,
    REASSOCIATES,
    A,
    AnyOf,
    C,
    Match,
    Op,
    Refusal,
    Result,
    Rewrite,
    V,
    guard,
    rule,
    unshared,
    where,
)
from sardonyx.rewrite.notation import Transpose
from sardonyx.rewrite.rules.broadcasting import keeps_shape
from sardonyx.rewrite.rules.normalization import count_trailing, match_centered, match_division_by_rms
from sardonyx.rewrite.rules.polynomials import find_shared_value
from sardonyx.rewrite.rules.signatures import axis_from_front
from sardonyx.rewrite.site import Site

INVERSES = ("Sqrt", "Pow", "Reciprocal", "Div")
"""Producers of the divisor, or the factor, of a normalization."""

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)


def _between_transposes(s: Site, op_type: str, x: ir.Value, axes: tuple[int, ...], epsilon: float) -> Result:
    """Apply ``op_type`` to ``x`` along these axes, moved to the end by a Transpose and back by another."""
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
    """Fuse (x − mean) / √(variance + ε) over other axes into LayerNormalization between Transposes."""
    quotient = match_division_by_rms(s)
    middle = None if quotient is None else match_centered(s, quotient.deviation)
    if quotient is None or middle is None or middle.axes != quotient.axes or _is_other(middle.x, quotient.axes):
        return None
    outside = find_shared_value({**quotient.nodes, **middle.nodes}, s.node)
    if outside is not None:
        return Refusal(f"'{outside}' in between has other readers")
    return _between_transposes(s, "LayerNormalization", middle.x, quotient.axes, quotient.epsilon)


@rule("fuse_rms_normalization", on=("Div", "Mul"), after=INVERSES, exactness=REASSOCIATES, opset=23)
def rms_normalization_of_channels(s: Site) -> Result:
    """Fuse x / √(mean(x²) + ε) over other axes than the last into RMSNormalization between Transposes."""
    quotient = match_division_by_rms(s)
    if (
        quotient is None
        or match_centered(s, quotient.deviation) is not None
        or _is_other(quotient.deviation, quotient.axes)
    ):
        return None
    outside = find_shared_value(quotient.nodes, s.node)
    if outside is not None:
        return Refusal(f"'{outside}' in between has other readers")
    return _between_transposes(s, "RMSNormalization", quotient.deviation, quotient.axes, quotient.epsilon)


def _is_other(x: ir.Value, axes: tuple[int, ...]) -> bool:
    """Return True if the axes are the last, so that no Transpose is needed, or the rank is unknown."""
    rank = facts.rank(x)
    return rank is None or count_trailing(axes, rank) is not None


@rule("fuse_scale_into_normalization", exactness=EXACT, opset=17)
def parameter_behind_transpose(x: V, c: C, perm: A) -> Rewrite:
    """Move c before the Transpose in Transpose(LayerNormalization(x)) * c, as a parameter; + c likewise."""
    normalization = AnyOf("LayerNormalization", "RMSNormalization")(x, ...)
    transposed = Transpose(normalization, perm=perm)

    def moved(m: Match) -> Result:
        node, value = m.nodes[2], m.nodes[1].outputs[0]
        rank, array = facts.rank(m.root.outputs[0]), facts.constant(m.c)
        if array is None or m.perm is None or rank != len(m.perm) or not keeps_shape(m.site, value, [m.c]):
            return Refusal("the constant may broadcast the result to another shape")
        before = array.reshape((1,) * (rank - array.ndim) + array.shape).transpose(np.argsort(m.perm))
        axis = axis_from_front(int(m.site.attr("axis", -1, node=node)), rank)
        if axis is None or any(size != 1 for size in before.shape[:axis]):
            return Refusal("the constant is not one number for each normalized element")
        return Transpose(Op((m.root.op_type,))(node.outputs[0], np.ascontiguousarray(before)), perm=list(m.perm))

    others = guard(lambda m: unshared(m) is None, "the normalization has other readers")
    return AnyOf("Mul", "Add")(transposed, c) >> moved | where(others)
