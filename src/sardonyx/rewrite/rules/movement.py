"""Data movement without effect: Pad by 0, Tile by 1, Resize to the same size, overwriting Scatters."""

from __future__ import annotations

import numpy as np

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import EXACT, SILENT, A, AnyOf, Match, Refusal, Rewrite, V, guard, rule, where
from sardonyx.rewrite.notation import Pad, ScatterND, Tile
from sardonyx.rewrite.rules.reshapes import have_same_dims

_IDENTITY_MODES = frozenset({"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "align_corners"})
"""Coordinate transformations that map each pixel to itself if no size changes."""


def _pads_nothing(m: Match) -> bool:
    s = m.site
    pads = s.sizes.constant(s.input(1)) if s.opset >= 11 else s.attr("pads") or s.attr("paddings")
    return pads is not None and not any(pads)


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
    if scales is not None and len(scales):
        return all(scale == 1 for scale in scales)
    return have_same_dims(s, m.x, s.output)


@rule("eliminate_nop_resize", exactness=EXACT)
def resize_to_same(x: V) -> Rewrite:
    """Remove a Resize by a scale of 1, or to the size of the image."""
    return AnyOf("Resize", "Upsample")(x, ...) >> x | where(guard(_resizes_nothing, ""))


def overwrites_every_row(m: Match) -> Refusal | None:
    """Guard: the constant indices of a ScatterND are all rows of the data, in order."""
    rows, indices = facts.dim_at(m.data, 0), facts.small_constant(m.indices)
    if m.reduction not in ("none", None) or indices is None or indices.ndim != 2 or indices.shape[1] != 1:
        return SILENT
    if rows is None or not np.array_equal(indices[:, 0], np.arange(rows)):
        return Refusal("the indices are not known to be every row once, in order")
    return None


@rule("eliminate_overwritten_scatter", exactness=EXACT)
def scatter_over_everything(data: V, indices: V, updates: V, reduction: A) -> Rewrite:
    """Replace a ScatterND that writes every row once, in order, by the updates."""
    return ScatterND(data, indices, updates, reduction=reduction) >> updates | where(overwrites_every_row)


def _has_no_indices(m: Match) -> bool:
    shape, updates = facts.static_shape(m.indices), facts.static_shape(m.updates)
    # The last axis of ScatterND's indices enumerates axes, not elements. Updates that are not empty are an error.
    is_empty = shape is not None and 0 in shape[: len(shape) - (m.root.op_type == "ScatterND")]
    return is_empty and (updates is None or 0 in updates)


@rule("eliminate_overwritten_scatter", exactness=EXACT)
def scatter_of_nothing(data: V, indices: V, updates: V) -> Rewrite:
    """Remove a Scatter without indices."""
    scatter = AnyOf("ScatterElements", "ScatterND", "Scatter")(data, indices, updates)
    return scatter >> data | where(guard(_has_no_indices, ""))
