"""Random graphs for the rules that remove operators without effect."""

from __future__ import annotations

import pytest

from tests.rewrite.fuzz import GraphMaker, generator, run_many


@generator("eliminate_identity")
def identities(g: GraphMaker) -> None:
    x = g.input(g.shape())
    y = g.node("Identity", x)
    g.read_again(y)
    g.output(g.node("Identity", g.node("Relu", y)) if g.chance() else y)


@generator("eliminate_nop_dropout")
def dropouts(g: GraphMaker) -> None:
    x = g.input(g.shape())
    ratio = g.const(0.5, "float32") if g.chance() else None
    training = g.const(False) if g.chance() else None
    if g.chance(0.3):  # in training, or maybe: what is drawn at random is not compared, so that nothing is dropped
        ratio = g.const(0.0, "float32")
        training = g.const(True) if g.chance() else g.input((), "bool")
    y, mask = g.node("Dropout", x, ratio, training, n_outputs=2)
    if g.chance(0.2):
        g.output(mask)
    g.output(g.node("Relu", y))


@generator("eliminate_nop_cast")
def casts(g: GraphMaker) -> None:
    x = g.input(g.shape(), g.pick(["float32", "int64", "bool"]))
    y = g.node("Cast", x, to=g.pick([1, 1, 7, 9]))
    g.read_again(y)
    g.output(g.node("Identity", y))


@generator("eliminate_nop_transpose", "fuse_consecutive_transposes")
def transposes(g: GraphMaker) -> None:
    x = g.input(g.shape())
    n = g.rank(x)
    y = g.node("Transpose", x, perm=g.maybe(g.permutation(n)))
    g.read_again(y)
    g.output(g.node("Transpose", y, perm=g.maybe(g.permutation(n))))


@pytest.mark.parametrize(
    "label",
    [
        "eliminate_identity",
        "eliminate_nop_dropout",
        "eliminate_nop_cast",
        "eliminate_nop_transpose",
        "fuse_consecutive_transposes",
    ],
)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 200)
