"""Pixels sorted into channels by strided Slices, and repeated by Expand, as the operators that images have for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite import facts
from sardonyx.rewrite.language import EXACT, REASSOCIATES, Op, Refusal, Result, rule
from sardonyx.rewrite.notation import Resize, SpaceToDepth
from sardonyx.rewrite.rules.normalization import made_by
from sardonyx.rewrite.rules.signatures import axis_of, slice_ranges
from sardonyx.rewrite.site import Site
from sardonyx.rewrite.sizes import equal

_KINDS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""Types that engines move pixels of between depth and space."""

_LARGEST_BLOCK = 8


def _corner(s: Site, value: ir.Value | None) -> tuple[ir.Value, int, tuple[int, int]] | None:
    """The image, the stride and the first row and column, of which a Slice takes every so many rows and columns."""
    node = made_by(s, value, "Slice")
    ranges = None if node is None else slice_ranges(s, node)
    x = None if node is None else node.inputs[0]
    sizes = [facts.dim_at(x, axis) for axis in (2, 3)]
    if x is None or ranges is None or facts.rank(x) != 4 or ranges.keys() != {2, 3}:
        return None
    spans = [ranges[axis] for axis in (2, 3)]
    stride = spans[0][2]
    if spans[1][2] != stride or not 2 <= stride <= _LARGEST_BLOCK:
        return None
    for (start, end, _), size in zip(spans, sizes, strict=True):
        if size is None or size % stride or not 0 <= start < stride or not (end >= size or -stride + start < end < 0):
            return None
    return x, stride, (spans[0][0], spans[1][0])


def _blocks(s: Site, concat: ir.Node) -> tuple[ir.Value, int, list[int]] | None:
    """The image whose blocks of pixels a Concat of Slices sorts into channels, their size, and the order of places."""
    found = [_corner(s, value) for value in concat.inputs]
    if axis_of(s, concat) != 1 or not found or found[0] is None:
        return None
    x, block, _ = found[0]
    places: list[int] = []
    for each in found:
        if each is None or each[0] is not x or each[1] != block:
            return None
        places.append(each[2][0] * block + each[2][1])
    return (x, block, places) if sorted(places) == list(range(block**2)) and facts.dtype(x) in _KINDS else None


@rule("fuse_space_to_depth", on="Concat", after="Slice", exactness=EXACT)
def slices_of_blocks(s: Site) -> Result:
    """A Concat of every so many rows and columns of an image, each place of a block once, in order, is SpaceToDepth."""
    found = _blocks(s, s.node)
    if found is None:
        return None
    x, block, places = found
    if places != sorted(places):
        return Refusal("the places of a block stand in another order than SpaceToDepth has them in")
    return SpaceToDepth(x, blocksize=block)


@rule("fuse_space_to_depth", on="Conv", after="Concat", exactness=REASSOCIATES)
def slices_of_blocks_before_convolution(s: Site) -> Result:
    """The same in any order before a convolution is SpaceToDepth, with the channels of the weights in its order."""
    concat = s.producer(0, "Concat")
    found = None if concat is None else _blocks(s, concat)
    if concat is None or found is None:
        return None
    x, block, places = found
    channels, weight = facts.dim_at(x, 1), facts.constant(s.input(1))
    if s.attr("group", 1) != 1 or channels is None or weight is None or not facts.used_once(concat.outputs[0]):
        return Refusal("the weights are not constant or in groups, or the channels have other readers")
    parts: Sequence[np.ndarray] = np.split(weight, block**2, axis=1)
    ordered = np.concatenate([parts[places.index(place)] for place in range(block**2)], axis=1)
    image = SpaceToDepth(x, blocksize=block)
    return Op(("Conv",))(image, ordered, *s.node.inputs[2:], **dict[str, Any](s.node.attributes))


@rule("fuse_expand_into_resize", on="Reshape", after="Expand", exactness=EXACT, opset=13)
def repeated_pixels(s: Site) -> Result:
    """Pixels that Expand repeats along rows and columns of their own, and Reshape joins, are Resize to the nearest."""
    grown = s.producer(0, "Expand")
    apart = None if grown is None else made_by(s, grown.inputs[0], "Unsqueeze", "Reshape")
    x = None if apart is None else apart.inputs[0]
    if grown is None or apart is None or x is None:
        return None
    before, single, wide, after = (s.sizes.dims(v) for v in (x, apart.outputs[0], grown.outputs[0], s.output))
    if before is None or single is None or wide is None or after is None or (len(before), len(wide)) != (4, 6):
        return None
    (n, c, h, w), rows, columns = before, wide[3], wide[5]
    if single != (n, c, h, 1, w, 1) or wide[:3] != (n, c, h) or wide[4] != w:
        return None
    if 0 in before:
        return Refusal("engines refuse to resize what has no elements")
    if not isinstance(rows, int) or not isinstance(columns, int) or rows < 1 or columns < 1:
        return Refusal("how often the pixels are repeated is not known")
    if not all(equal(size, want) is True for size, want in zip(after, (n, c, h * rows, w * columns), strict=True)):
        return Refusal("the repeated pixels are joined otherwise")
    if facts.dtype(x) != ir.DataType.FLOAT or not facts.used_once(grown.outputs[0]):
        return Refusal("engines have no kernel for the type, or the repeated pixels have other readers")
    scales = np.array([1, 1, rows, columns], np.float32)
    return Resize(x, None, scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
