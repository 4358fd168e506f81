"""Random graphs for Expands that broadcasting makes needless."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rewrite.fuzz import GraphMaker, generator, run_many


@generator("eliminate_nop_expand/expand_before_broadcast", "eliminate_nop_expand/expand_before_choice")
def expands_before_broadcasting(g: GraphMaker) -> None:
    shape = g.shape(rank=g.int(1, 3))
    stored = g.int(0, len(shape))
    source = tuple(1 if g.chance(0.4) else size for size in shape[len(shape) - stored :])
    x = g.input(shape)
    y = g.input(source) if g.chance() else g.weight(source)
    target = g.node("Shape", x) if g.chance(0.4) else g.ints(*shape)
    expanded = g.node("Expand", y, target)
    g.read_again(expanded)
    other = x if g.chance(0.7) else g.input(tuple(1 if g.chance() else size for size in shape))
    operands = (expanded, other) if g.chance() else (other, expanded)
    match g.pick(["Add", "Mul", "Max", "Where", "both"]):
        case "Where":
            g.output(g.node("Where", g.const(np.array(g.chance())), *operands))
        case "both":
            g.output(g.node("Sub", expanded, g.node("Expand", g.input(source), target)))
        case op:
            g.output(g.node(op, *operands))


@pytest.mark.parametrize(
    "label", ["eliminate_nop_expand/expand_before_broadcast", "eliminate_nop_expand/expand_before_choice"]
)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 60)
