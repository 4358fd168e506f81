"""Rearranged pixels: strided Slices as SpaceToDepth, Expand of pixels as Resize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.sizes import equal
from sardonyx.rewrite.language import EXACT, REASSOCIATES, AnyOf, Match, Refusal, Result, Rewrite, V, rule
from sardonyx.rewrite.notation import Concat, Conv, Expand, Reshape, Resize, SpaceToDepth
from sardonyx.rewrite.rules.normalization import producer_of
from sardonyx.rewrite.rules.signatures import axis_of, slice_ranges
from sardonyx.rewrite.site import Site

_KINDS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""Element types for which engines have kernels of SpaceToDepth."""

_LARGEST_BLOCK = 8


def _corner(s: Site, value: ir.Value | None) -> tuple[ir.Value, int, tuple[int, int]] | None:
    """Return the image, the stride, and the first row and column of a Slice with equal strides along both."""
    node = producer_of(s, value, "Slice")
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
    """Return the image, block size and order of positions of a Concat of strided Slices into channels."""
    corners = [_corner(s, value) for value in concat.inputs]
    if axis_of(s, concat) != 1 or not corners or corners[0] is None:
        return None
    x, block, _ = corners[0]
    positions: list[int] = []
    for corner in corners:
        if corner is None or corner[0] is not x or corner[1] != block:
            return None
        positions.append(corner[2][0] * block + corner[2][1])
    return (x, block, positions) if sorted(positions) == list(range(block**2)) and facts.dtype(x) in _KINDS else None


@rule("fuse_space_to_depth", on="Concat", after="Slice", exactness=EXACT)
def slices_of_blocks(s: Site) -> Result:
    """Fuse a Concat of strided Slices, one per position of a block in order, into SpaceToDepth."""
    blocks = _blocks(s, s.node)
    if blocks is None:
        return None
    x, block, positions = blocks
    if positions != sorted(positions):
        return Refusal("the Slices are not in the order of SpaceToDepth")
    return SpaceToDepth(x, blocksize=block)


@rule("fuse_space_to_depth", exactness=REASSOCIATES)
def slices_of_blocks_before_convolution(w: V) -> Rewrite:
    """Fuse strided Slices in any order into SpaceToDepth before a Conv, whose weights are permuted."""

    def fuse(m: Match) -> Result:
        s, concat = m.site, m.nodes[1]
        blocks = _blocks(s, concat)
        if blocks is None:
            return None
        x, block, positions = blocks
        channels, weight = facts.dim_at(x, 1), facts.constant(m.w)
        if s.attr("group", 1) != 1 or channels is None or weight is None or not facts.used_once(concat.outputs[0]):
            return Refusal("expected constant weights, one group, and no other reader of the concatenated channels")
        parts: Sequence[np.ndarray] = np.split(weight, block**2, axis=1)
        ordered = np.concatenate([parts[positions.index(position)] for position in range(block**2)], axis=1)
        image = SpaceToDepth(x, blocksize=block)
        return Conv(image, ordered, *s.node.inputs[2:], **dict[str, Any](s.node.attributes))

    return Conv(Concat(...), w, ...) >> fuse


@rule("fuse_expand_into_resize", exactness=EXACT, opset=13)
def repeated_pixels(x: V) -> Rewrite:
    """Fuse Expand of each pixel to a block and Reshape into Resize to the nearest."""

    def fuse(m: Match) -> Result:
        s, (_, expand, unsqueeze) = m.site, m.nodes
        values = (m.x, unsqueeze.outputs[0], expand.outputs[0], s.output)
        before, single, expanded, after = (s.sizes.dims(value) for value in values)
        if before is None or single is None or expanded is None or after is None:
            return None
        if (len(before), len(expanded)) != (4, 6):
            return None
        (n, c, h, w), rows, columns = before, expanded[3], expanded[5]
        if single != (n, c, h, 1, w, 1) or expanded[:3] != (n, c, h) or expanded[4] != w:
            return None
        if 0 in before:
            return Refusal("engines reject a Resize of an empty tensor")
        if not isinstance(rows, int) or not isinstance(columns, int) or rows < 1 or columns < 1:
            return Refusal("the number of repetitions is not known")
        expected = (n, c, h * rows, w * columns)
        if not all(equal(a, b) is True for a, b in zip(after, expected, strict=True)):
            return Refusal("the Reshape does not merge the repeated rows and columns")
        if facts.dtype(m.x) != ir.DataType.FLOAT or not facts.used_once(expand.outputs[0]):
            return Refusal("engines lack a kernel for the type, or the repeated pixels have other readers")
        scales = np.array([1, 1, rows, columns], np.float32)
        return Resize(
            m.x, None, scales, mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
        )

    return Reshape(Expand(AnyOf("Unsqueeze", "Reshape")(x, ...), ...), ...) >> fuse
