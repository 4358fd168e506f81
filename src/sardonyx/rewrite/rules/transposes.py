"""Transposes between changes of shape, and products that a factor can be moved through."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.core.dim import Size, product
from sardonyx.rewrite import facts
from sardonyx.rewrite.language import EXACT, Refusal, Result, rule
from sardonyx.rewrite.notation import Reshape, Transpose
from sardonyx.rewrite.rules.reshapes import FAMILY
from sardonyx.rewrite.rules.shape_arithmetic import constant_target
from sardonyx.rewrite.site import Site
from sardonyx.rewrite.sizes import equal


def merged_axes(before: Sequence[Size], after: Sequence[Size]) -> list[list[int]] | None:
    """The axes of ``before`` that each axis of ``after`` holds, where a change of shape only merges neighbours.

    Returns:
        A list of axes for each axis of ``after``, empty for a new axis of size 1; None where axes are split.
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


@rule("fuse_reshapes_around_transpose", on=FAMILY, after="Transpose", exactness=EXACT)
def transpose_of_merged_axes(s: Site) -> Result:
    """A Transpose of axes merged before it and split again after it is a Transpose of the axes themselves."""
    turned = s.producer(0, "Transpose")
    merging = None if turned is None or turned.inputs[0] is None else turned.inputs[0].producer()
    if turned is None or merging is None or merging.graph is not s.node.graph or not facts.is_op(merging, *FAMILY):
        return None
    source, merged = merging.inputs[0], merging.outputs[0]
    before, between, after = s.sizes.dims(source), s.sizes.dims(merged), s.sizes.dims(s.output)
    if source is None or before is None or between is None or after is None or len(before) != len(after):
        return None
    if not facts.used_once(merged) or not facts.used_once(turned.outputs[0]):
        return Refusal("a tensor in between has other readers")
    groups = merged_axes(before, between)
    if groups is None:
        return Refusal("the axes are not only merged before the Transpose")
    perm = s.attr("perm", node=turned) or tuple(reversed(range(len(between))))
    order = [axis for place in perm for axis in groups[place]]
    if not all(equal(before[axis], size) is True for axis, size in zip(order, after, strict=True)):
        return Refusal("the axes are split otherwise than they were merged")
    return source if order == sorted(order) else Transpose(source, perm=order)


@rule("fuse_reshapes_around_transpose", on=FAMILY, after="Transpose", exactness=EXACT, opset=5)
def transpose_before_split(s: Site) -> Result:
    """Axes that a change of shape splits behind a Transpose are split before it, where another shape is made anyway."""
    turned = s.producer(0, "Transpose")
    earlier = None if turned is None else turned.inputs[0]
    maker = None if earlier is None else earlier.producer()
    if turned is None or earlier is None or maker is None:
        return None
    if maker.graph is not s.node.graph or not facts.is_op(maker, *FAMILY):
        return None
    source = maker.inputs[0]
    before, between, after = s.sizes.dims(source), s.sizes.dims(turned.outputs[0]), s.sizes.dims(s.output)
    if source is None or before is None or between is None or after is None:
        return None
    if not facts.used_once(earlier) or not facts.used_once(turned.outputs[0]):
        return Refusal("a tensor in between has other readers")
    groups = merged_axes(after, between)
    if groups is None:
        return Refusal("the axes are not only split behind the Transpose")
    if not any(sum(after[axis] != 1 for axis in group) > 1 for group in groups):
        return None
    perm = s.attr("perm", node=turned) or tuple(reversed(range(len(between))))
    order = [axis for place in range(len(perm)) for axis in groups[perm.index(place)]]
    target = constant_target([after[axis] for axis in order], before)
    if target is None:
        return Refusal("more than one size of the shape before the Transpose is open")
    return Transpose(
        Reshape(source, np.array(target, np.int64)), perm=[order.index(axis) for axis in range(len(after))]
    )
