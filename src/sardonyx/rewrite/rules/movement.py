"""Data movement without effect: Pad by 0, Tile by 1, Resize to the same size, overwriting Scatters."""

from __future__ import annotations

import numpy as np

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.sizes import equal
from sardonyx.rewrite.language import EXACT, SILENT, A, AnyOf, Match, Refusal, Rewrite, V, guard, rule, where
from sardonyx.rewrite.notation import Pad, ScatterND, Tile
from sardonyx.rewrite.rules.reshapes import output_has_dims

_IDENTITY_MODES = frozenset({"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "align_corners"})
"""Coordinate transformations that map each pixel to itself if no size changes."""


def _pads_nothing(m: Match) -> bool:
    s = m.site
    pads = s.sizes.constant(s.input(1)) if s.opset >= 11 else s.attr("pads") or s.attr("paddings")
    has_open_axes = s.input(3) is not None and facts.small_constant(s.input(3)) is None
    return pads is not None and not any(pads) and not has_open_axes


@rule("eliminate_nop_pad", exactness=EXACT)
def pad_by_nothing(x: V) -> Rewrite:
    """Remove a Pad of 0 everywhere."""
    return Pad(x, ...) >> x | where(guard(_pads_nothing, ""))


def _repeats_once(m: Match) -> bool:
    repeats = m.site.sizes.constant(m.repeats)
    return repeats is not None and set(repeats) <= {1}


@rule("eliminate_nop_tile", exactness=EXACT)
def tile_by_one(x: V, repeats: V) -> Rewrite:
    """Remove a Tile of one repeat along every axis."""
    return Tile(x, repeats) >> x | where(guard(_repeats_once, ""))


def _resizes_nothing(m: Match) -> bool:
    s = m.site
    if s.attr("coordinate_transformation_mode", "asymmetric") not in _IDENTITY_MODES or s.attr("antialias", 0):
        return False
    at = 2 if s.node.op_type == "Resize" and s.opset >= 11 else 1
    scales = s.attr("scales") if s.node.op_type == "Upsample" and s.opset < 9 else facts.small_constant(s.input(at))
    if scales is not None and np.size(scales):
        return np.ndim(scales) == 1 and bool(np.all(np.asarray(scales) == 1))
    # Their number may be wrong, which inference detects only if it is known.
    is_counted = all(facts.static_shape(value) is not None for value in s.node.inputs[at:] if value is not None)
    return is_counted and output_has_dims(s, m.x)


@rule("eliminate_nop_resize", exactness=EXACT)
def resize_to_same(x: V) -> Rewrite:
    """Remove a Resize by a scale of 1, or to the size of the image."""
    return AnyOf("Resize", "Upsample")(x, ...) >> x | where(guard(_resizes_nothing, ""))


def overwrites_every_row(m: Match) -> Refusal | None:
    """Guard: the indices of a ScatterND are all rows of the data in order, as numbers or as a range over an axis."""
    if m.reduction not in ("none", None):
        return SILENT
    rows, indices = facts.dim_at(m.data, 0), facts.small_constant(m.indices)
    if indices is None:
        return None if _is_range_over_rows(m) else SILENT
    if indices.ndim != 2 or indices.shape[1] != 1:
        return SILENT
    if rows is None or not np.array_equal(indices[:, 0], np.arange(rows)):
        return Refusal("the indices are not known to be every row once, in order")
    return None


def _is_range_over_rows(m: Match) -> bool:
    """Return True if the indices are a column of ``Range(0, rows of data, 1)``."""
    sizes, dims, column = m.site.sizes, m.site.sizes.dims(m.data), m.site.sizes.dims(m.indices)
    node = m.indices.producer()
    if node is None or not facts.is_op(node, "Unsqueeze", "Reshape") or node.inputs[0] is None:
        return False
    source = node.inputs[0].producer()
    if source is None or not facts.is_op(source, "Range") or not dims or column is None or len(column) != 2:
        return False
    start, limit, delta = source.inputs
    rows = sizes.elements(limit)
    return (
        column[1] == 1
        and sizes.constant(start) == (0,)
        and sizes.constant(delta) == (1,)
        and rows is not None
        and equal(rows[1][0], dims[0]) is True
    )


@rule("eliminate_overwritten_scatter", exactness=EXACT)
def scatter_over_everything(data: V, indices: V, updates: V, reduction: A) -> Rewrite:
    """Replace a ScatterND that writes every row once, in order, by the updates."""
    return ScatterND(data, indices, updates, reduction=reduction) >> updates | where(overwrites_every_row)


def _has_no_indices(m: Match) -> bool:
    shape, updates = facts.static_shape(m.indices), facts.static_shape(m.updates)
    # The last axis of ScatterND's indices enumerates axes, not elements. Updates that are not empty are an error,
    # which a call with an open number of updates may meet.
    is_empty = shape is not None and 0 in shape[: len(shape) - (m.root.op_type == "ScatterND")]
    return is_empty and updates is not None and 0 in updates


@rule("eliminate_overwritten_scatter", exactness=EXACT)
def scatter_of_nothing(data: V, indices: V, updates: V) -> Rewrite:
    """Remove a Scatter without indices."""
    scatter = AnyOf("ScatterElements", "ScatterND", "Scatter")(data, indices, updates)
    return scatter >> data | where(guard(_has_no_indices, ""))
