"""Data movement that moves nothing: Pad by zero, Tile by one, Resize to the same size, overwritten Scatters."""

from __future__ import annotations

import numpy as np

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import EXACT, Refusal, Result, rule
from sardonyx.rewrite.rules.reshapes import same_dims
from sardonyx.rewrite.site import Site

_SAME_PLACES = frozenset({"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "align_corners"})
"""Coordinate transformations that map every pixel to itself where no size changes."""


@rule("eliminate_nop_pad", on="Pad", exactness=EXACT)
def pad_by_nothing(s: Site) -> Result:
    """Pad by zero everywhere."""
    if s.opset < 11:
        pads = s.attr("pads") or s.attr("paddings")
    else:
        pads = s.sizes.constant(s.input(1))
    return s.input(0) if pads is not None and not any(pads) else None


@rule("eliminate_nop_tile", on="Tile", exactness=EXACT)
def tile_by_one(s: Site) -> Result:
    """Tile with one repeat along every axis."""
    if s.opset < 6:
        return None
    repeats = s.sizes.constant(s.input(1))
    return s.input(0) if repeats is not None and set(repeats) <= {1} else None


@rule("eliminate_nop_resize", on=("Resize", "Upsample"), exactness=EXACT)
def resize_to_same(s: Site) -> Result:
    """Resize by a scale of 1, or to the size that the image has."""
    if s.attr("coordinate_transformation_mode", "asymmetric") not in _SAME_PLACES or s.attr("antialias", 0):
        return None
    at = 2 if s.node.op_type == "Resize" and s.opset >= 11 else 1
    scales = s.attr("scales") if s.node.op_type == "Upsample" and s.opset < 9 else facts.small_constant(s.input(at))
    if scales is not None and len(scales):
        return s.input(0) if all(scale == 1 for scale in scales) else None
    return s.input(0) if same_dims(s, s.input(0), s.output) else None


@rule("eliminate_overwritten_scatter", on="ScatterND", exactness=EXACT)
def scatter_over_everything(s: Site) -> Result:
    """ScatterND that writes every row once, in order, is what it writes."""
    if s.attr("reduction", "none") not in ("none", None):
        return None
    rows, indices = facts.dim_at(s.input(0), 0), facts.small_constant(s.input(1))
    if indices is None or indices.ndim != 2 or indices.shape[1] != 1:
        return None
    if rows is None or not np.array_equal(indices[:, 0], np.arange(rows)):
        return Refusal("it is not known to write every row once, in order")
    return s.input(2)


@rule("eliminate_overwritten_scatter", on=("ScatterElements", "ScatterND", "Scatter"), exactness=EXACT)
def scatter_of_nothing(s: Site) -> Result:
    """A Scatter without indices leaves its data as it is."""
    shape = facts.static_shape(s.input(1))
    return s.input(0) if shape is not None and 0 in shape[: len(shape) - (s.node.op_type == "ScatterND")] else None
