"""A slice of a matrix before a product, moved behind it, so that the whole product of constants can be taken once."""

from __future__ import annotations

import numpy as np

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import REASSOCIATES, Refusal, Result, rule
from sardonyx.rewrite.notation import MatMul, Slice
from sardonyx.rewrite.site import Site


@rule("adjust_slice_and_matmul", on="MatMul", after="Slice", exactness=REASSOCIATES, opset=10, default=False)
def slice_of_constant(s: Site) -> Result:
    """MatMul of a slice of a constant with a constant is a slice of the product of the constants."""
    cut = s.producer(0, "Slice")
    if cut is None or len(cut.inputs) < 4 or not facts.used_once(cut.outputs[0]):
        return None
    data, factor = cut.inputs[0], s.input(1)
    if not facts.is_constant(data) or not facts.is_constant(factor):
        return Refusal("both factors must be constant")
    left, right, axes = facts.static_shape(data), facts.static_shape(factor), facts.constant_ints(cut.inputs[3])
    if left is None or right is None or axes is None or len(right) < 2:
        return Refusal("shapes or axes are not known")
    cut_axes = [axis % len(left) for axis in axes]
    if len(left) - 1 in cut_axes:
        return Refusal("it cuts the axis that is summed over")
    rank = max(len(left), len(right))
    moved = [axis + rank - len(left) for axis in cut_axes]
    batch = (1,) * (rank - len(right)) + right[:-2]
    if any(axis < rank - 2 and batch[axis] != 1 for axis in moved):
        return Refusal("it cuts a batch axis along which the other factor has a size too")
    return Slice(MatMul(data, factor), cut.inputs[1], cut.inputs[2], np.array(moved, np.int64), *cut.inputs[4:])
