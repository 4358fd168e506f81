"""Gathers of a whole axis, of Concat, of Gather, and after Transpose."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import EXACT, A, Match, Refusal, Result, Rewrite, V, guard, rule, where
from sardonyx.rewrite.notation import Concat, Gather, Reshape, Transpose, Unsqueeze
from sardonyx.rewrite.rules.signatures import apply_along, axes_of, axis_of, normalize_axes
from sardonyx.rewrite.site import Site


def _is_whole_axis(m: Match) -> bool:
    axis = axis_of(m.site, m.root)
    size = None if axis is None else facts.dim_at(m.x, axis)
    indices = facts.small_constant(m.indices)
    if size is None or indices is None or indices.shape != (size,):
        return False
    return np.array_equal(np.where(indices < 0, indices + size, indices), np.arange(size))


@rule("eliminate_nop_gather", exactness=EXACT)
def gather_of_everything(x: V, indices: V) -> Rewrite:
    """Remove a Gather of all elements along an axis in order."""
    return Gather(x, indices) >> x | where(guard(_is_whole_axis, ""))


@rule("fuse_gather_unsqueeze", exactness=EXACT)
def unsqueeze_of_gathered(x: V, index: V) -> Rewrite:
    """Fuse Unsqueeze of the axis that a Gather of one element dropped: the Gather keeps the axis."""

    def keep_axis(m: Match) -> Result:
        s, gather = m.site, m.nodes[1]
        number, axis = facts.scalar(m.index), axis_of(s, gather)
        if (
            not facts.used_once(gather.outputs[0])
            or number is None
            or facts.rank(m.index) != 0
            or axis is None
            or axis < 0
        ):
            return None
        if normalize_axes(axes_of(s, s.node) or (), facts.rank(s.output)) != (axis,):
            return None
        return Gather(m.x, np.array([number], np.int64), axis=axis)

    return Unsqueeze(Gather(x, index), ...) >> keep_axis


@rule("eliminate_gather_of_concat", exactness=EXACT)
def gather_of_concat(index: V) -> Rewrite:
    """Replace a Gather of one element of a Concat by the operand that is this element, squeezed."""

    def operand(m: Match) -> Result:
        s, concat = m.site, m.nodes[1]
        number, axis = facts.scalar(m.index), axis_of(s, concat)
        if not isinstance(number, int) or facts.rank(m.index) != 0:
            return None
        if axis is None or axis < 0 or axis_of(s, s.node) != axis:
            return None
        part = _part_at([facts.dim_at(part, axis) for part in concat.inputs], number)
        if part is None:
            return Refusal("the operand with this element is not known to have size 1 along the axis")
        return apply_along(s, "Squeeze", _value(concat, part), [axis])

    return Gather(Concat(...), index) >> operand


def _value(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value


def _part_at(sizes: list[int | None], index: int) -> int | None:
    """Return the operand of size 1 that holds element ``index``; None if a size before is not known.

    A negative index counts from the end.
    """
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


@rule("fuse_consecutive_gathers", exactness=EXACT)
def gather_of_gather(x: V, inner: V, outer: V) -> Rewrite:
    """Fuse two Gathers by constant indices along one axis."""

    def compose(m: Match) -> Result:
        s, gather = m.site, m.nodes[1]
        first, second, axis = facts.small_constant(m.inner), facts.small_constant(m.outer), axis_of(s, gather)
        if first is None or second is None or first.ndim != 1 or axis is None or axis < 0 or axis_of(s, s.node) != axis:
            return None
        if second.size and not (-first.size <= second.min() and second.max() < first.size):
            return Refusal("an index is out of bounds")
        if second.size > first.size and not facts.used_once(gather.outputs[0]):
            return Refusal("the inner Gather is smaller and has other readers")
        return Gather(m.x, np.asarray(first[second]), axis=axis)

    return Gather(Gather(x, inner), outer) >> compose


@rule("eliminate_transpose_before_gather", exactness=EXACT, opset=5)
def gather_of_shuffled(x: V, perm: A, index: V) -> Rewrite:
    """Gather before Transpose and Reshape, if the Transpose only moves the gathered axis to the front."""

    def gather_first(m: Match) -> Result:
        s, reshaped, transposed = m.site, m.nodes[1].outputs[0], m.nodes[2].outputs[0]
        out, shape, transposed_shape = (facts.static_shape(v) for v in (s.output, m.x, transposed))
        if out is None or not isinstance(facts.scalar(m.index), int) or facts.rank(m.index) != 0:
            return None
        if shape is None or transposed_shape is None or m.perm is None or 0 in shape or axis_of(s, s.node) != 0:
            return None
        if facts.dim_at(reshaped, 0) != transposed_shape[0] or sorted(m.perm[1:]) != list(m.perm[1:]):
            return Refusal("the Transpose moves more than the gathered axis")
        if not facts.used_once(transposed) or not all(_gathers_first_axis(s, use.node) for use in reshaped.uses()):
            return Refusal("the transposed tensor has other readers")
        size = shape[m.perm[0]]
        before = math.prod(shape[: m.perm[0]])
        axis = next((i for i in range(len(out) + 1) if math.prod(out[:i]) == before), None)
        if axis is None:
            return Refusal("the gathered axis splits an axis of the result")
        target = np.array((*out[:axis], size, *out[axis:]), np.int64)
        return Gather(Reshape(m.x, target), m.index, axis=axis)

    return Gather(Reshape(Transpose(x, perm=perm), ...), index) >> gather_first


@rule("eliminate_transpose_before_gather", exactness=EXACT)
def gather_of_turned(x: V, perm: A, index: V) -> Rewrite:
    """Gather before a Transpose that only moves the gathered axis."""

    def gather_first(m: Match) -> Result:
        s, transposed = m.site, m.nodes[1].outputs[0]
        if m.perm is None:
            return None
        if transposed.is_graph_output() or not all(
            _gathers_moved_axis(s, use.node, m.perm) for use in transposed.uses()
        ):
            return Refusal(
                "the transposed tensor has other readers, or the Transpose moves more than the gathered axis"
            )
        return Gather(m.x, m.index, axis=int(m.perm[axis_of(s, s.node) or 0]))

    return Gather(Transpose(x, perm=perm), index) >> gather_first


def _gathers_moved_axis(s: Site, node: ir.Node, perm: Sequence[int]) -> bool:
    """Return True if the node gathers one index along the only axis that a Transpose by ``perm`` moves."""
    if not facts.is_op(node, "Gather") or facts.rank(node.inputs[1]) != 0 or node.graph is not s.node.graph:
        return False
    axis = axis_of(s, node)
    if axis is None or not 0 <= axis < len(perm):
        return False
    rest = [source for target, source in enumerate(perm) if target != axis]
    return rest == sorted(rest)


def _gathers_first_axis(s: Site, node: ir.Node) -> bool:
    return facts.is_op(node, "Gather") and axis_of(s, node) == 0 and facts.rank(node.inputs[1]) == 0
