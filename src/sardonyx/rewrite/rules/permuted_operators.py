"""Products, pooling and resampling of operands with permuted axes. This module has no rule."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.language import REASSOCIATES
from sardonyx.rewrite.rules.axis_permutations import Order, Reordered, has_rank, invert_order, rebuild_reordered
from sardonyx.rewrite.site import Site


def matmul(s: Site, order: Order) -> Reordered | None:
    """Permute batch axes and rows; a product of two transposed matrices swaps its operands."""
    rank, ranks = len(order), [facts.rank(value) for value in s.node.inputs]
    if rank < 2 or facts.rank(s.output) != rank or rank not in ranks or None in ranks or min(r or 0 for r in ranks) < 2:
        return None
    rows, columns = order[-2:]
    if ranks[0] == rank and ranks[1] == 2 and rank > 2:
        # All axes but the last are rows of one matrix.
        return Reordered((0,), order, rebuild_reordered(s), REASSOCIATES) if columns == rank - 1 else None
    straight = (rows, columns) == (rank - 2, rank - 1)
    if straight and ranks[0] == 2 < rank:
        return Reordered((1,), order, rebuild_reordered(s), REASSOCIATES)
    if ranks != [rank, rank] or {rows, columns} != {rank - 2, rank - 1}:
        return None
    build = rebuild_reordered(s)
    return Reordered((0, 1), order, build if straight else lambda operands: build(operands[1::-1]), REASSOCIATES)


_WINDOWED = ("dilations", "kernel_shape", "strides")


def pooling(s: Site, order: Order) -> Reordered | None:
    """Swap batch and channels, and permute the axes of the image.

    ONNX Runtime's MaxPool propagates a NaN or not depending on its position in the window, which changes.
    """
    rank = len(order)
    if not has_rank(s, order) or rank < 3 or {order[0], order[1]} != {0, 1}:
        return None
    if not s.unused_outputs_from(1):
        return None
    sources = [axis - 2 for axis in invert_order(order)[2:]]
    attributes: dict[str, Any] = {}
    for name in _WINDOWED:
        written = s.attr(name)
        if written is not None:
            attributes[name] = [written[source] for source in sources]
    pads = s.attr("pads")
    if pads is not None:
        attributes["pads"] = [pads[source + side] for side in (0, rank - 2) for source in sources]
    return Reordered((0,), order, rebuild_reordered(s, **attributes), REASSOCIATES)


def resize(s: Site, order: Order) -> Reordered | None:
    """Keep the resized axes, or for mode nearest make them the last axes, where kernels are fastest."""
    rank = len(order)
    if s.opset < 11 or not has_rank(s, order):
        return None
    roi, on = s.input(1), s.attr("axes")
    if s.attr("coordinate_transformation_mode") == "tf_crop_and_resize" or (roi is not None and not _empty(roi)):
        return None
    if on is not None:
        along = {axis % rank for axis in on}
        build = rebuild_reordered(s, axes=[order[axis % rank] for axis in on])
    else:
        scales = s.input(2)
        at = 3 if scales is None or _empty(scales) else 2
        numbers = facts.small_constant(s.input(at))
        if numbers is None or numbers.shape != (rank,):
            return None
        sizes = [1 if at == 2 else facts.dim_at(s.input(0), axis) for axis in range(rank)]
        if None in sizes:
            return None
        along = {axis for axis in range(rank) if numbers[axis] != sizes[axis]}
        build = rebuild_reordered(s, {at: np.ascontiguousarray(numbers[list(invert_order(order))])})
    moved = {order[axis] for axis in along}
    if s.attr("mode", "nearest") == "nearest":
        last = set(range(rank - len(along), rank))
        return Reordered((0,), order, build) if moved in (along, last) else None
    return Reordered((0,), order, build, REASSOCIATES) if moved == along else None


def _empty(value: ir.Value) -> bool:
    return facts.static_shape(value) == (0,)
