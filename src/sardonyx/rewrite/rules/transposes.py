"""Transposes between shape changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.core.dim import Size, product
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.sizes import equal
from sardonyx.rewrite.language import EXACT, A, AnyOf, Match, Refusal, Result, Rewrite, V, rule
from sardonyx.rewrite.notation import Reshape, Transpose
from sardonyx.rewrite.rules.reshapes import FAMILY
from sardonyx.rewrite.rules.shape_arithmetic import constant_target

SHAPE = AnyOf(*FAMILY)
"""Operators that only change the shape."""


def group_merged_axes(before: Sequence[Size], after: Sequence[Size]) -> list[list[int]] | None:
    """Return the axes of ``before`` that each axis of ``after`` merges.

    Returns:
        A list of axes for each axis of ``after``, empty for a new axis of size 1; None if an axis is split.
    """
    groups: list[list[int]] = []
    at = 0
    for size in after:
        group: list[int] = []
        while equal(product([before[axis] for axis in group]), size) is not True:
            if at == len(before):
                return None
            group.append(at)
            at += 1
        if not group and at < len(before) and before[at] == 1:
            group.append(at)
            at += 1
        groups.append(group)
    while at < len(before) and before[at] == 1 and groups:
        groups[-1].append(at)
        at += 1
    return groups if at == len(before) else None


@rule("fuse_reshapes_around_transpose", exactness=EXACT)
def transpose_of_merged_axes(x: V, perm: A) -> Rewrite:
    """Fuse a Transpose between the merge and the split of the same axes: transpose the axes themselves."""

    def fuse(m: Match) -> Result:
        s, (_, transpose, merge) = m.site, m.nodes
        before, between, after = (s.sizes.dims(v) for v in (m.x, merge.outputs[0], s.output))
        if before is None or between is None or after is None or len(before) != len(after):
            return None
        if not facts.used_once(merge.outputs[0]) or not facts.used_once(transpose.outputs[0]):
            return Refusal("an intermediate tensor has other readers")
        groups = group_merged_axes(before, between)
        if groups is None:
            return Refusal("the shape change before the Transpose splits axes")
        order = [axis for group in m.perm or reversed(range(len(between))) for axis in groups[group]]
        if not all(equal(before[axis], size) is True for axis, size in zip(order, after, strict=True)):
            return Refusal("the axes split after the Transpose are not the axes merged before")
        return m.x if order == sorted(order) else Transpose(m.x, perm=order)

    return SHAPE(Transpose(SHAPE(x, ...), perm=perm), ...) >> fuse


@rule("fuse_reshapes_around_transpose", exactness=EXACT, opset=5)
def transpose_before_split(x: V, perm: A) -> Rewrite:
    """Split axes before a Transpose instead of after, if another shape change is there."""

    def fuse(m: Match) -> Result:
        s, (_, transpose, reshape) = m.site, m.nodes
        before, between, after = (s.sizes.dims(v) for v in (m.x, transpose.outputs[0], s.output))
        if before is None or between is None or after is None:
            return None
        if not facts.used_once(reshape.outputs[0]) or not facts.used_once(transpose.outputs[0]):
            return Refusal("an intermediate tensor has other readers")
        groups = group_merged_axes(after, between)
        if groups is None:
            return Refusal("the shape change after the Transpose merges axes")
        if not any(sum(after[axis] != 1 for axis in group) > 1 for group in groups):
            return None
        perm = m.perm or tuple(reversed(range(len(between))))
        order = [axis for group in range(len(perm)) for axis in groups[perm.index(group)]]
        target = constant_target([after[axis] for axis in order], before)
        if target is None:
            return Refusal("more than one size of the shape before the Transpose is open")
        split = Reshape(m.x, np.array(target, np.int64))
        return Transpose(split, perm=[order.index(axis) for axis in range(len(after))])

    return SHAPE(Transpose(SHAPE(x, ...), perm=perm), ...) >> fuse
