"""Slices that take everything, and Slices of Slices."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import EXACT, Refusal, Result, rule
from sardonyx.rewrite.rules.reshapes import same_dims
from sardonyx.rewrite.rules.signatures import END, Range, read_only_by, slice_ranges, sliced, whole
from sardonyx.rewrite.site import Site


@rule("eliminate_nop_slice", on="Slice", exactness=EXACT)
def slice_of_everything(s: Site) -> Result:
    """Slice that takes all of every axis."""
    steps = s.input(4)
    if steps is not None and set(s.sizes.constant(steps) or (0,)) != {1}:
        return None
    if same_dims(s, s.input(0), s.output):
        return s.input(0)
    ranges = slice_ranges(s, s.node)
    if ranges is None:
        return None
    return s.input(0) if all(whole(span, facts.dim_at(s.input(0), axis)) for axis, span in ranges.items()) else None


@rule("fuse_consecutive_slices", on="Slice", after="Slice", exactness=EXACT)
def slice_of_slice(s: Site) -> Result:
    """Slice of a Slice is one Slice: of several axes, or of one axis by the composed range."""
    inner, between = s.producer(0, "Slice"), s.input(0)
    if inner is None or between is None or inner.inputs[0] is None:
        return None
    if not read_only_by(between, "Slice"):
        return Refusal(f"'{between.name}' is read by other operators too")
    first, second = slice_ranges(s, inner), slice_ranges(s, s.node)
    if first is None or second is None:
        return Refusal("a range is not constant")
    merged = dict(first)
    for axis, span in second.items():
        if axis not in merged:
            merged[axis] = span
            continue
        composed = _composed(merged[axis], span, facts.dim_at(inner.inputs[0], axis))
        if composed is None:
            return Refusal(f"the ranges along axis {axis} cannot be composed without its size")
        merged[axis] = composed
    return sliced(s, inner.inputs[0], merged)


def _composed(first: Range, second: Range, size: int | None) -> Range | None:
    """The range that takes ``second`` of what ``first`` takes, or None where that needs the size."""
    if size is not None:
        if min(first[2], second[2]) < 0 and min(first[0], second[0]) < -size:
            return None
        taken = _indices(first, size)
        return _as_range(taken[_as_slice(second, len(taken))])
    (start, end, step), (more, until, stride) = first, second
    if min(start, end, more, until) < 0 or step < 1 or stride < 1:
        return None
    last = END if until >= np.iinfo(np.int32).max else start + until * step
    return start + more * step, min(end, last), step * stride


def _as_slice(span: Range, size: int) -> slice:
    """The Python slice that ONNX means: a negative step's end before the front is written as None."""
    start, end, step = span
    if step < 0 and end < -size:
        return slice(start, None, step)
    return slice(start, end, step)


def _indices(span: Range, size: int) -> range:
    return range(size)[_as_slice(span, size)]


def _as_range(taken: range) -> Range:
    stop = taken.stop if taken.stop >= 0 else -END
    return (taken.start, stop, taken.step) if len(taken) else (0, 0, 1)


def contiguous(s: Site, node: ir.Node) -> tuple[int, int, int] | None:
    """Axis, start and end of a Slice of one axis with step 1, when its numbers are known."""
    ranges = slice_ranges(s, node)
    if ranges is None or len(ranges) != 1:
        return None
    ((axis, span),) = ranges.items()
    size = facts.dim_at(node.inputs[0], axis)
    if size is None or span[2] != 1:
        return None
    taken = _indices(span, size)
    return axis, taken.start, max(taken.stop, taken.start)
