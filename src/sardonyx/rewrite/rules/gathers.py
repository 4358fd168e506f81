"""Gathers that take everything, or one thing that can be told without them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import EXACT, Refusal, Result, rule
from sardonyx.rewrite.notation import Gather, Reshape
from sardonyx.rewrite.rules.signatures import axes, axis_of, normalized, with_axes
from sardonyx.rewrite.site import Site


@rule("eliminate_nop_gather", on="Gather", exactness=EXACT)
def gather_of_everything(s: Site) -> Result:
    """Gather of all the elements along an axis, in order."""
    axis = axis_of(s, s.node)
    size = None if axis is None else facts.dim_at(s.input(0), axis)
    indices = facts.small_constant(s.input(1))
    if size is None or indices is None or indices.shape != (size,):
        return None
    return s.input(0) if np.array_equal(np.where(indices < 0, indices + size, indices), np.arange(size)) else None


@rule("fuse_gather_unsqueeze", on="Unsqueeze", after="Gather", exactness=EXACT)
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


@rule("eliminate_gather_of_concat", on="Gather", after="Concat", exactness=EXACT)
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


@rule("fuse_consecutive_gathers", on="Gather", after="Gather", exactness=EXACT)
def gather_of_gather(s: Site) -> Result:
    """Gather of a Gather by constant indices along one axis is one Gather."""
    inner, between = s.producer(0, "Gather"), s.input(0)
    if inner is None or between is None or inner.inputs[0] is None:
        return None
    first, second = facts.small_constant(inner.inputs[1]), facts.small_constant(s.input(1))
    axis = axis_of(s, inner)
    if first is None or second is None or first.ndim != 1 or axis is None or axis < 0 or axis_of(s, s.node) != axis:
        return None
    if second.size and not (-first.size <= second.min() and second.max() < first.size):
        return Refusal("an index is out of bounds")
    if second.size > first.size and not facts.used_once(between):
        return Refusal("the inner Gather is smaller and has other readers")
    return Gather(inner.inputs[0], np.asarray(first[second]), axis=axis)


@rule("eliminate_transpose_before_gather", on="Gather", after="Reshape", exactness=EXACT, opset=5)
def gather_of_shuffled(s: Site) -> Result:
    """Gather of one index along an axis that a Transpose brought to the front takes it where it was before."""
    shaped = s.producer(0, "Reshape")
    turned = None if shaped is None else _producer(shaped, "Transpose")
    index, value, out = facts.scalar(s.input(1)), s.input(0), facts.static_shape(s.output)
    if turned is None or value is None or out is None or not isinstance(index, int) or s.rank(1) != 0:
        return None
    shape, moved = facts.static_shape(turned.inputs[0]), facts.static_shape(turned.outputs[0])
    perm = s.attr("perm", node=turned)
    if shape is None or moved is None or perm is None or 0 in shape or axis_of(s, s.node) != 0:
        return None
    if facts.dim_at(value, 0) != moved[0] or sorted(perm[1:]) != list(perm[1:]):
        return Refusal("more than the gathered axis is moved")
    if not facts.used_once(turned.outputs[0]) or not all(_takes_one(s, use.node) for use in value.uses()):
        return Refusal("the transposed tensor has other readers")
    before = int(np.prod(shape[: perm[0]], dtype=np.int64))
    axis = next((i for i in range(len(out) + 1) if int(np.prod(out[:i], dtype=np.int64)) == before), None)
    if axis is None:
        return Refusal("the gathered axis lies within one of the result's axes")
    target = (*out[:axis], shape[perm[0]], *out[axis:])
    return Gather(Reshape(turned.inputs[0], np.array(target, np.int64)), s.input(1), axis=axis)


@rule("eliminate_transpose_before_gather", on="Gather", after="Transpose", exactness=EXACT)
def gather_of_turned(s: Site) -> Result:
    """Gather of one index along the axis that alone a Transpose moves takes it where the axis was before."""
    turned, value = s.producer(0, "Transpose"), s.input(0)
    perm = None if turned is None else s.attr("perm", node=turned)
    if turned is None or value is None or perm is None:
        return None
    if value.is_graph_output() or not all(_takes_moved(s, use.node, perm) for use in value.uses()):
        return Refusal("the transposed tensor has other readers, or more than the gathered axis is moved")
    axis = axis_of(s, s.node)
    assert axis is not None
    return Gather(turned.inputs[0], s.input(1), axis=int(perm[axis]))


def _takes_moved(s: Site, node: ir.Node, perm: Sequence[int]) -> bool:
    """Whether a node gathers one index along an axis without which a Transpose by ``perm`` would move nothing."""
    if not facts.is_op(node, "Gather") or facts.rank(node.inputs[1]) != 0 or node.graph is not s.node.graph:
        return False
    axis = axis_of(s, node)
    if axis is None or not 0 <= axis < len(perm):
        return False
    rest = [each for place, each in enumerate(perm) if place != axis]
    return rest == sorted(rest)


def _producer(node: ir.Node, op_type: str) -> ir.Node | None:
    value = node.inputs[0]
    found = None if value is None else value.producer()
    return found if found is not None and found.graph is node.graph and facts.is_op(found, op_type) else None


def _takes_one(s: Site, node: ir.Node) -> bool:
    return facts.is_op(node, "Gather") and axis_of(s, node) == 0 and facts.rank(node.inputs[1]) == 0
