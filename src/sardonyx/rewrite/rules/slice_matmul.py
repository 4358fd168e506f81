"""A Slice before a product of constants, moved after the product, which then folds once."""

from __future__ import annotations

import numpy as np

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import REASSOCIATES, Match, Refusal, Result, Rewrite, V, rule, unshared, where
from sardonyx.rewrite.notation import MatMul, Slice
from sardonyx.rewrite.rules.signatures import axis_from_front


@rule("adjust_slice_and_matmul", exactness=REASSOCIATES, opset=10, default=False)
def slice_of_constant(data: V, starts: V, ends: V, axes: V, factor: V) -> Rewrite:
    """Move a Slice from an operand of a product of constants to the result, so that the product folds."""

    def move(m: Match) -> Result:
        if not facts.is_constant(m.data) or not facts.is_constant(m.factor):
            return Refusal("an operand of the product is not constant")
        left, right, axes = facts.static_shape(m.data), facts.static_shape(m.factor), facts.constant_ints(m.axes)
        if left is None or right is None or axes is None or len(right) < 2:
            return Refusal("the shapes or the axes are not known")
        cut_axes = [front for axis in axes if (front := axis_from_front(axis, len(left))) is not None]
        if len(cut_axes) < len(axes):
            return Refusal("an axis is out of range")
        if len(left) - 1 in cut_axes:
            return Refusal("the Slice cuts the summed axis")
        rank = max(len(left), len(right))
        moved = [axis + rank - len(left) for axis in cut_axes]
        batch = (1,) * (rank - len(right)) + right[:-2]
        if any(axis < rank - 2 and batch[axis] != 1 for axis in moved):
            return Refusal("the Slice cuts a batch axis that the other operand has too")
        steps = m.nodes[1].inputs[4:]
        return Slice(MatMul(m.data, m.factor), m.starts, m.ends, np.array(moved, np.int64), *steps)

    return Slice(data, starts, ends, axes, ...) @ factor >> move | where(unshared)
