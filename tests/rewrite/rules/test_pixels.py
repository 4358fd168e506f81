"""Random graphs around pixels that Slices sort into channels, and that Expand repeats."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rewrite.fuzz import GraphMaker, generator, run_many
from tests.rewrite.models import transformed

END = 2**63 - 1


@generator("fuse_space_to_depth")
def sorted_pixels(g: GraphMaker) -> None:
    g.opset = g.pick([10, 11, 13, 17, 18, 21])
    block, channels = g.pick([2, 2, 2, 3]), g.int(1, 3)
    rows, columns = (block * g.int(1, 3) + (g.int(0, block - 1) if g.chance(0.1) else 0) for _ in range(2))
    x = g.input((g.int(1, 2), channels, rows, columns), dynamic=False)
    positions = list(range(block**2))
    if g.chance():
        positions = [int(position) for position in g.rng.permutation(block**2)]
    if g.chance(0.1):
        positions[0] = positions[-1]
    parts = []
    for position in positions:
        first = (position // block, position % block)
        if g.chance(0.8):
            end = [g.pick([END, size]) for size in (rows, columns)]
            part = g.node("Slice", x, g.ints(*first), g.ints(*end), g.ints(2, 3), g.ints(block, block))
        else:
            part = g.node("Slice", x, g.ints(first[0]), g.ints(END), g.ints(-2), g.ints(block))
            part = g.node("Slice", part, g.ints(first[1]), g.ints(END), g.ints(-1), g.ints(block))
        g.read_again(part, 0.02)
        parts.append(part)
    y = g.node("Concat", *parts, axis=g.pick([1, 1, 1, 1, -3, 2 if rows == columns else 1]))
    if g.chance(0.6):
        g.special = False
        g.read_again(y, 0.1)
        groups = g.pick([1, 1, 1, block])
        weight = g.weight((2 * groups, channels * block**2 // groups, 1, 1))
        y = g.node("Conv", y, weight, g.weight((2 * groups,)) if g.chance() else None, group=g.maybe(groups, 1.0))
    g.output(y)


@generator("fuse_expand_into_resize")
def repeated_pixels(g: GraphMaker) -> None:
    g.opset = g.pick([13, 17, 18, 21])
    n, c, h, w = (g.int(1, 3) for _ in range(4))
    rows, columns = g.int(1, 4), g.int(1, 4)
    dims = ("N", c, h, w) if g.chance(0.3) else None
    x = g.input((n, c, h, w), g.pick(["float32"] * 4 + ["int64"]), dims=dims, dynamic=False)
    if g.chance():
        apart = g.node("Unsqueeze", x, g.ints(*g.pick([(3, 5), (3, 5), (5, 3), (3, -1), (2, 4)])))
    else:
        apart = g.node("Reshape", x, g.ints(0, c, h, 1, w, 1))
    g.read_again(apart, 0.1)
    target = [1 if dims else n, c, h, rows, w, columns]
    if g.chance(0.1):
        target = [1, 1, 1, rows, 1, columns]
    grown = g.node("Expand", apart, g.ints(*target))
    g.read_again(grown, 0.05)
    g.output(g.node("Reshape", grown, g.ints(0, *g.pick([(c, h * rows, w * columns)] * 4 + [(-1, rows, columns)]))))


@pytest.mark.parametrize("label", ["fuse_space_to_depth", "fuse_expand_into_resize"])
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 200)


def test_the_first_layer_of_a_detector_sorts_its_channels_in_the_weights() -> None:
    """YOLO's focus: the positions of a block by columns, where SpaceToDepth has them by rows."""
    text = """g (float[N, 3, 8, 8] x) => (float[N, 4, 4, 4] y) {
        a = Slice(x, at00, ends, axes, steps)
        b = Slice(x, at10, ends, axes, steps)
        c = Slice(x, at01, ends, axes, steps)
        d = Slice(x, at11, ends, axes, steps)
        p = Concat<axis = 1>(a, b, c, d)
        y = Conv(p, w)
    }"""
    positions = {f"at{row}{column}": np.array([row, column]) for row in (0, 1) for column in (0, 1)}
    numbers = {"ends": np.array([END, END]), "axes": np.array([2, 3]), "steps": np.array([2, 2])}
    weight = np.arange(48, dtype=np.float32).reshape(4, 12, 1, 1)
    engine = transformed(text, w=weight, **positions, **numbers)
    assert [node.op_type for node in engine.model.graph] == ["SpaceToDepth", "Conv"]
    assert "the Slices are not in the order of SpaceToDepth" in engine.refused.values()
