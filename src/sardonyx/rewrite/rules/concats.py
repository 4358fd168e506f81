"""Concat and Split: of one part, of each other, and Slices or Gathers that together are a Split."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import (
    CONSTANT,
    EXACT,
    Patch,
    Refusal,
    Replacement,
    Result,
    Rewrite,
    V,
    guard,
    rule,
    where,
)
from sardonyx.rewrite.notation import Concat, Split
from sardonyx.rewrite.rules.signatures import axis_of, build_split, split_sizes
from sardonyx.rewrite.rules.slices import contiguous_range
from sardonyx.rewrite.site import Site

MOST_PARTS = 64
"""Readers of one tensor that are examined as the parts of a Split."""


MOST_REPEATED = 64
"""Parts that a fused Concat takes from one that it reads several times: chains of such Concats double them."""


@rule("eliminate_nop_concat", on="Concat", exactness=EXACT)
def concat_of_little(s: Site) -> Result:
    """Replace Concat of one tensor by the tensor; drop parts that are certainly empty along the axis."""
    axis = axis_of(s, s.node)
    if axis is None:
        return None
    full = [v for v in s.node.inputs if v is not None and facts.dim_at(v, axis) != 0]
    if len(full) == 1:
        return full[0]
    if not full or len(full) == len(s.node.inputs):
        return None
    return Concat(*full, axis=axis)


@rule("fuse_consecutive_concats", on="Concat", after="Concat", exactness=EXACT)
def concat_of_concat(s: Site) -> Result:
    """Fuse Concat(Concat(a, b), c) along one axis into Concat(a, b, c)."""
    axis = axis_of(s, s.node)
    parts: list[ir.Value | None] = []
    merged = False
    for i, value in enumerate(s.node.inputs):
        inner = s.producer(i, "Concat")
        same = inner is not None and axis_of(s, inner) == axis and _same_sign(s, inner, s.node)
        if inner is not None and value is not None and same and _is_read_here_alone(s, value, inner):
            parts.extend(inner.inputs)
            merged = True
        else:
            parts.append(value)
    return Concat(*parts, axis=axis) if merged else None


def _is_read_here_alone(s: Site, value: ir.Value, inner: ir.Node) -> bool:
    """Return True if no node but this one reads the value, once or a few times."""
    if facts.used_once(value):
        return True
    few = len(value.uses()) * len(inner.inputs) <= MOST_REPEATED
    return few and not value.is_graph_output() and all(use.node is s.node for use in value.uses())


def _same_sign(s: Site, one: ir.Node, other: ir.Node) -> bool:
    """Return True if both axes count from the same end, or the rank is known."""
    if facts.rank(one.inputs[0]) is not None and facts.rank(other.inputs[0]) is not None:
        return True
    return bool(s.attr("axis", node=one) == s.attr("axis", node=other))


@rule("eliminate_nop_split", exactness=EXACT)
def split_into_one(x: V) -> Rewrite:
    """Split(x) into one part is x."""
    fits = guard(lambda m: has_fitting_parts(m.site, m.root), "the size of the part is only known in a run")
    return Split(x, ...) >> x | where(guard(lambda m: len(m.root.outputs) == 1, ""), fits)


def has_fitting_parts(s: Site, node: ir.Node) -> bool:
    """Return True if the parts of a Split are known to add up to the axis; a run refuses others."""
    sizes, axis = split_sizes(s, node), s.attr("axis", 0, node=node)
    is_even = "split" not in node.attributes and (len(node.inputs) < 2 or node.inputs[1] is None)
    return is_even or (sizes is not None and sum(sizes) == facts.dim_at(node.inputs[0], axis))


@rule("eliminate_split_concat", on="Concat", after="Split", exactness=EXACT)
def concat_of_all_parts(s: Site) -> Result:
    """Replace Concat of all parts of a Split, in order and along its axis, by the Split's input."""
    node = s.producer(0, "Split")
    if node is None or list(s.node.inputs) != list(node.outputs):
        return None
    if axis_of(s, node) != axis_of(s, s.node) or not _same_sign(s, node, s.node):
        return Refusal("the axes differ")
    return node.inputs[0] if has_fitting_parts(s, node) else Refusal("the sizes of the parts are only known in a run")


@rule("eliminate_split_concat", on="Concat", after="Slice", exactness=EXACT, opset=2)
def concat_of_adjacent_slices(s: Site) -> Result:
    """Replace Concat of adjacent Slices that cover a tensor by the tensor."""
    axis, first = axis_of(s, s.node), s.producer(0, "Slice")
    if first is None or len(s.node.inputs) < 2:
        return None
    source, reached = first.inputs[0], 0
    for i in range(len(s.node.inputs)):
        part = s.producer(i, "Slice")
        if part is None or part.inputs[0] is not source:
            return None
        span = contiguous_range(s, part)
        if span is None or span[0] != axis or span[1] != reached:
            return Refusal("the Slices do not follow one another along the axis")
        reached = span[2]
    if source is None or axis is None or reached != facts.dim_at(source, axis):
        return Refusal("the Slices do not cover the tensor")
    return source


@rule("eliminate_split_concat", on="Split", after="Concat", exactness=EXACT)
def split_of_concat(s: Site) -> Result:
    """Replace Split of a Concat into the Concat's own parts by the parts."""
    concat = s.producer(0, "Concat")
    if concat is None or len(concat.inputs) != len(s.node.outputs):
        return None
    axis, sizes = axis_of(s, s.node), split_sizes(s, s.node)
    if axis is None or sizes is None or axis_of(s, concat) != axis or not _same_sign(s, concat, s.node):
        return Refusal("the axes differ, or the sizes are not known")
    if [facts.dim_at(v, axis) for v in concat.inputs] != list(sizes):
        return Refusal("the parts have other sizes than were concatenated")
    return tuple(concat.inputs)


@rule("eliminate_slice_of_concat", on="Slice", after="Concat", exactness=EXACT)
def slice_of_concat(s: Site) -> Result:
    """Replace a Slice that selects exactly one part of a Concat by the part."""
    concat = s.producer(0, "Concat")
    if concat is None:
        return None
    span, axis = contiguous_range(s, s.node), axis_of(s, concat)
    if span is None or span[0] != axis:
        return None
    start = 0
    for part in concat.inputs:
        size = facts.dim_at(part, axis)
        if part is None or size is None or start > span[1]:
            break
        if start == span[1] and size == span[2] - span[1] and size > 0:
            return part
        start += size
    return Refusal("the range is not exactly one part of the Concat")


@rule("fuse_slices_into_split", on="Slice", exactness=EXACT, opset=2)
def slices_that_partition(s: Site) -> Result:
    """Fuse Slices that partition a tensor into one Split."""
    return _as_split(s)


@rule("fuse_gathers_into_split", on="Gather", after=CONSTANT, exactness=EXACT, opset=2)
def gathers_that_partition(s: Site) -> Result:
    """Fuse Gathers of consecutive constant indices that partition a tensor into one Split."""
    return _as_split(s)


def _as_split(s: Site) -> Result:
    source, span = s.input(0), _span(s, s.node)
    if source is None or span is None or span[1] != 0 or len(source.uses()) > MOST_PARTS:
        return None
    parts = _parts(s, source, span[0])
    chosen = _partition(parts, facts.dim_at(source, span[0]) or 0)
    if chosen is None:
        return Refusal(f"no set of {s.node.op_type}s reads each element once")
    split_node = build_split(s, source, [end - start for start, end in chosen], span[0])
    replace: dict[ir.Value, Replacement] = {}
    for i, bounds in enumerate(chosen):
        replace.update((value, split_node if i == 0 else split_node.out(i)) for value in parts[bounds])
    if any(value.is_graph_output() for value in replace) and len(replace) != len(chosen):
        return Refusal("two values are the same part")
    return Patch(replace, after=source)


def _span(s: Site, node: ir.Node) -> tuple[int, int, int] | None:
    """Return axis, start and end of a Slice, or of a Gather of consecutive indices along a kept axis."""
    if facts.is_op(node, "Slice"):
        return contiguous_range(s, node)
    if not facts.is_op(node, "Gather"):
        return None
    axis, indices = axis_of(s, node), facts.small_constant(node.inputs[1])
    size = None if axis is None else facts.dim_at(node.inputs[0], axis)
    if axis is None or size is None or indices is None or indices.ndim != 1 or not indices.size:
        return None
    start = int(indices[0]) + size * bool(indices[0] < 0)
    indices_from_start = np.where(indices < 0, indices + size, indices)
    follow = (
        np.array_equal(indices_from_start, np.arange(start, start + indices.size)) and 0 <= start <= size - indices.size
    )
    return (axis, start, start + indices.size) if follow else None


def _parts(s: Site, source: ir.Value, axis: int) -> dict[tuple[int, int], list[ir.Value]]:
    """Return the parts of ``source`` along one axis, read in its graph, by start and end."""
    parts: dict[tuple[int, int], list[ir.Value]] = {}
    for use in source.uses():
        if use.idx == 0 and use.node.graph is s.node.graph:
            span = _span(s, use.node)
            if span is not None and span[0] == axis and span[2] > span[1]:
                parts.setdefault(span[1:], []).append(use.node.outputs[0])
    return parts


def _partition(parts: Collection[tuple[int, int]], size: int) -> list[tuple[int, int]] | None:
    """Return at least two adjacent parts from 0 to ``size``, if at most one part begins at each start."""
    by_start = {start: (start, end) for start, end in parts}
    if len(by_start) != len(parts):
        return None
    chosen: list[tuple[int, int]] = []
    reached = 0
    while reached < size and reached in by_start:
        chosen.append(by_start[reached])
        reached = chosen[-1][1]
    return chosen if reached == size and len(chosen) > 1 else None
