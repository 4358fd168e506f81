"""Slices without effect, and Slices of Slices."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import EXACT, Match, Refusal, Result, Rewrite, V, guard, rule, where
from sardonyx.rewrite.notation import Slice
from sardonyx.rewrite.rules.reshapes import output_has_dims
from sardonyx.rewrite.rules.signatures import END, Range, build_slice, covers_axis, is_read_only_by, slice_ranges
from sardonyx.rewrite.site import Site


def _selects_everything(m: Match) -> bool:
    s, steps = m.site, m.site.input(4)
    if steps is not None and set(s.sizes.constant(steps) or (0,)) != {1}:
        return False
    axes = s.input(3)
    if axes is not None and s.sizes.constant(axes) is None:
        # An axis out of range is an error, also where nothing can be cut off.
        return False
    if output_has_dims(s, m.x):
        return True
    ranges = slice_ranges(s, s.node)
    return ranges is not None and all(covers_axis(span, facts.dim_at(m.x, axis)) for axis, span in ranges.items())


@rule("eliminate_nop_slice", exactness=EXACT)
def slice_of_everything(x: V) -> Rewrite:
    """Remove a Slice of all elements of every axis."""
    return Slice(x, ...) >> x | where(guard(_selects_everything, ""))


@rule("fuse_consecutive_slices", exactness=EXACT)
def slice_of_slice(x: V) -> Rewrite:
    """Fuse two Slices: along several axes, or by the composed range along one axis."""

    def compose(m: Match) -> Result:
        s, inner = m.site, m.nodes[1]
        if not is_read_only_by(inner.outputs[0], "Slice"):
            return Refusal(f"'{inner.outputs[0].name}' has other readers")
        first, second = slice_ranges(s, inner), slice_ranges(s, s.node)
        if first is None or second is None:
            return Refusal("a range is not constant")
        merged = dict(first)
        for axis, span in second.items():
            if axis not in merged:
                merged[axis] = span
                continue
            composed = _compose(merged[axis], span, facts.dim_at(m.x, axis))
            if composed is None:
                return Refusal(f"the ranges along axis {axis} cannot be composed without its size")
            merged[axis] = composed
        return build_slice(s, m.x, merged)

    return Slice(Slice(x, ...), ...) >> compose


def _compose(first: Range, second: Range, size: int | None) -> Range | None:
    """Return the range that selects ``second`` of the result of ``first``; None without the size."""
    if size is not None:
        if min(first[2], second[2]) < 0 and min(first[0], second[0]) < -size:
            return None
        indices = _indices(first, size)
        return _as_range(indices[_as_slice(second, len(indices))])
    (start, end, step), (more, until, stride) = first, second
    if min(start, end, more, until) < 0 or step < 1 or stride < 1:
        return None
    last = END if until >= np.iinfo(np.int32).max else start + until * step
    return start + more * step, min(end, last), step * stride


def _as_slice(span: Range, size: int) -> slice:
    """Return the Python slice with the meaning of the ONNX range: None for an end before the front."""
    start, end, step = span
    if step < 0 and end < -size:
        return slice(start, None, step)
    return slice(start, end, step)


def _indices(span: Range, size: int) -> range:
    return range(size)[_as_slice(span, size)]


def _as_range(indices: range) -> Range:
    stop = indices.stop if indices.stop >= 0 else -END
    return (indices.start, stop, indices.step) if len(indices) else (0, 0, 1)


def contiguous_range(s: Site, node: ir.Node) -> tuple[int, int, int] | None:
    """Return axis, start and end of a Slice of one axis with step 1, if known."""
    ranges = slice_ranges(s, node)
    if ranges is None or len(ranges) != 1:
        return None
    ((axis, span),) = ranges.items()
    size = facts.dim_at(node.inputs[0], axis)
    if size is None or span[2] != 1:
        return None
    indices = _indices(span, size)
    return axis, indices.start, max(indices.stop, indices.start)
