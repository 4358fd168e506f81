"""Random graphs for data movement without effect."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rewrite.fuzz import GraphMaker, generator, run_many


@generator("eliminate_nop_pad", "eliminate_nop_tile")
def pads_and_tiles(g: GraphMaker) -> None:
    shape = g.shape(rank=g.int(1, 3))
    x = g.input(shape)
    if g.chance():
        pads = [0] * (2 * len(shape))
        if g.chance(0.3):
            pads[g.int(0, len(pads) - 1)] = 1
        value = g.weight(()) if g.chance() else None
        y = g.node("Pad", x, g.ints(*pads), value, mode=g.maybe("constant"))
    else:
        y = g.node("Tile", x, g.ints(*(g.pick([1, 1, 1, 1, 2]) for _ in shape)))
    g.read_again(y)
    g.output(g.node("Relu", y) if g.chance() else y)


@generator("eliminate_nop_resize")
def resizes(g: GraphMaker) -> None:
    shape = g.shape(rank=4, zero=0)
    x = g.input(shape)
    how = g.pick(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
    mode = g.pick(["nearest", "linear", "cubic"])
    if g.chance():
        scales = np.ones(4, np.float32)
        if g.chance(0.3):
            scales[g.int(2, 3)] = 2
        y = g.node("Resize", x, None, g.const(scales), coordinate_transformation_mode=how, mode=mode)
    else:
        sizes = [*shape[:2], *(size if g.chance(0.8) else size + 1 for size in shape[2:])]
        y = g.node("Resize", x, None, None, g.ints(*sizes), coordinate_transformation_mode=how, mode=mode)
    g.read_again(y)
    g.output(g.node("Relu", y))


@generator("eliminate_overwritten_scatter/scatter_over_everything", "eliminate_overwritten_scatter/scatter_of_nothing")
def scatters(g: GraphMaker) -> None:
    shape = g.shape(rank=g.int(1, 3), zero=0)
    x = g.input(shape)
    rows = np.arange(shape[0])
    if g.chance(0.3):
        rows = rows[:-1] if g.chance() else rows[::-1].copy()
    if g.chance(0.3):
        rows = rows[:0]
    if g.opset >= 15 and g.chance(0.3):
        limit = g.node("Squeeze", g.node("Shape", x, start=0, end=1))
        indices = g.node("Range", g.const(np.array(0)), limit, g.const(np.array(1)))
        y = g.node("ScatterND", x, g.node("Reshape", indices, g.ints(-1, 1)), g.node("Neg", x))
        g.output(g.node("Relu", y))
        return
    updates = g.input((len(rows), *shape[1:]))
    if g.chance():
        reduction = g.pick(["add", "none"]) if g.opset >= 16 and g.chance(0.3) else None
        y = g.node("ScatterND", x, g.const(rows.reshape(-1, 1)), updates, reduction=reduction)
    else:
        indices = np.broadcast_to(rows.reshape(-1, *[1] * (len(shape) - 1)), (len(rows), *shape[1:]))
        y = g.node("ScatterElements", x, g.const(indices.copy()), updates, axis=0)
    g.read_again(y)
    g.output(g.node("Relu", y))


LABELS = [
    "eliminate_nop_pad",
    "eliminate_nop_tile",
    "eliminate_nop_resize",
    "eliminate_overwritten_scatter/scatter_over_everything",
    "eliminate_overwritten_scatter/scatter_of_nothing",
]


@pytest.mark.parametrize("label", LABELS)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 60)
