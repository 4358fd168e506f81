"""Gathers that take everything, or one thing that can be told without them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.engine import Site
from sardonyx.rewrite.language import EXACT, Refusal, Result, rule
from sardonyx.rewrite.notation import Gather
from sardonyx.rewrite.rules.signatures import axes, axis_of, normalized, with_axes


@rule("eliminate_nop_gather", on="Gather", exactness=EXACT)
def gather_of_everything(s: Site) -> Result:
    """Gather of all the elements along an axis, in order."""
    axis = axis_of(s, s.node)
    size = None if axis is None else facts.dim_at(s.input(0), axis)
    indices = facts.small_constant(s.input(1))
    if size is None or indices is None or indices.shape != (size,):
        return None
    return s.input(0) if np.array_equal(np.where(indices < 0, indices + size, indices), np.arange(size)) else None


@rule("fuse_gather_unsqueeze", on="Unsqueeze", exactness=EXACT)
def unsqueeze_of_gathered(s: Site) -> Result:
    """Gather of one element whose axis an Unsqueeze puts back is a Gather that keeps the axis."""
    gather, picked = s.producer(0, "Gather"), s.input(0)
    if gather is None or picked is None or not facts.used_once(picked):
        return None
    index = facts.scalar(gather.inputs[1])
    if index is None or facts.rank(gather.inputs[1]) != 0:
        return None
    axis, given = axis_of(s, gather), normalized(axes(s, s.node) or (), facts.rank(s.output))
    if axis is None or axis < 0 or given != (axis,):
        return None
    return Gather(gather.inputs[0], np.array([index], np.int64), axis=axis)


@rule("eliminate_gather_of_concat", on="Gather", exactness=EXACT)
def gather_of_concat(s: Site) -> Result:
    """Gather of one element that is a whole part of a Concat is that part, without the axis."""
    concat, index = s.producer(0, "Concat"), facts.scalar(s.input(1))
    if concat is None or not isinstance(index, int) or s.rank(1) != 0:
        return None
    axis = axis_of(s, concat)
    if axis is None or axis < 0 or axis_of(s, s.node) != axis:
        return None
    sizes = [facts.dim_at(part, axis) for part in concat.inputs]
    part = _part_at(sizes, index)
    if part is None:
        return Refusal("the part that the element stands in is not known to be that element alone")
    return with_axes(s, "Squeeze", _value(concat, part), [axis])


def _value(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value


def _part_at(sizes: list[int | None], index: int) -> int | None:
    """The part of size 1 at which ``index`` (from the end where negative) stands, when the sizes up to it are known."""
    order = range(len(sizes)) if index >= 0 else range(len(sizes) - 1, -1, -1)
    left = index if index >= 0 else -1 - index
    for part in order:
        size = sizes[part]
        if size is None:
            return None
        if left < size:
            return part if size == 1 else None
        left -= size
    return None
