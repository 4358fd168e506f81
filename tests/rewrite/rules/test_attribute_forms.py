"""The same rules at operator sets where axes, ranges, sizes and bounds are attributes."""

from __future__ import annotations

import pytest

from tests.rewrite.fuzz import GraphMaker, generator, run_many


@generator("fuse_consecutive_slices", "eliminate_nop_slice", "fuse_slices_into_split")
def slices_by_attribute(g: GraphMaker) -> None:
    g.opset = 9
    shape = (g.int(2, 4), g.int(2, 4))
    x = g.input(shape, dynamic=False)
    cut = g.int(0, shape[0] - 1)
    y = g.node("Slice", x, starts=[0], ends=[cut or 2**63 - 1], axes=g.maybe([0]))
    if g.chance():
        g.output(g.node("Slice", y, starts=[g.int(-1, 1)], ends=[2**31], axes=[g.int(0, 1)]))
    else:
        g.output(g.node("Relu", y), g.node("Neg", g.node("Slice", x, starts=[cut], ends=[shape[0]], axes=[-2])))


@generator(
    "fuse_consecutive_squeezes",
    "fuse_consecutive_unsqueezes",
    "fuse_consecutive_squeeze_unsqueeze",
    "fuse_consecutive_reshapes",
    "fuse_consecutive_reduce_unsqueeze",
    "fuse_consecutive_reduces",
)
def axes_by_attribute(g: GraphMaker) -> None:
    g.opset = g.pick([9, 11])
    x = g.input((1, g.int(2, 3), 1, g.int(2, 3)))
    match g.pick(["Squeeze", "Unsqueeze", "both", "reduce", "reduces"]):
        case "Squeeze":
            g.output(g.node("Squeeze", g.node("Squeeze", x, axes=[g.pick([0, 2])]), axes=g.maybe([g.int(0, 1)])))
        case "Unsqueeze":
            g.output(g.node("Unsqueeze", g.node("Unsqueeze", x, axes=[g.int(0, 4)]), axes=[g.int(0, 5)]))
        case "both":
            g.output(g.node("Unsqueeze", g.node("Squeeze", x, axes=[0, 2]), axes=g.pick([[0, 2], [0, 1], [0]])))
        case "reduce":
            y = g.node("ReduceSum", x, axes=[g.pick([1, 3])], keepdims=0)
            g.output(g.node("Unsqueeze", y, axes=[g.pick([1, 3])]))
        case _:
            g.output(g.node("ReduceMean", g.node("ReduceMean", x, axes=[1]), axes=[3]))


@generator("fuse_consecutive_clips", "eliminate_nop_pad", "eliminate_split_concat")
def bounds_by_attribute(g: GraphMaker) -> None:
    g.opset = g.pick([9, 10])
    x = g.input((2, 3))
    match g.pick(["Clip", "Pad", "Split"]):
        case "Clip":
            y = g.node("Clip", x, min=g.maybe(-1.0), max=g.maybe(1.0))
            g.output(g.node("Relu", y) if g.chance() else g.node("Clip", y, min=g.maybe(0.0), max=g.maybe(0.5)))
        case "Pad":
            g.output(g.node("Relu", g.node("Pad", x, pads=[0, 0, 0, g.int(0, 1)])))
        case _:
            first, second = g.node("Split", x, axis=1, split=[1, 2], n_outputs=2)
            g.output(g.node("Concat", first, second, axis=g.pick([1, -1])))


LABELS = (
    "fuse_consecutive_slices",
    "eliminate_nop_slice",
    "fuse_slices_into_split",
    "fuse_consecutive_squeezes",
    "fuse_consecutive_unsqueezes",
    "fuse_consecutive_squeeze_unsqueeze",
    "fuse_consecutive_reshapes",
    "fuse_consecutive_reduce_unsqueeze",
    "fuse_consecutive_reduces",
    "fuse_consecutive_clips",
    "eliminate_nop_pad",
    "eliminate_split_concat",
)


@pytest.mark.parametrize("label", LABELS)
def test_outputs_stay_equal(label: str) -> None:
    checked, fired = run_many(label, 40)
    assert checked and fired
