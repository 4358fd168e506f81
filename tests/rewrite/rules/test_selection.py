"""Random graphs for Where."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rewrite.fuzz import GraphMaker, generator, run_many


def smaller(g: GraphMaker, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts with ``shape``."""
    return tuple(1 if g.chance(0.4) else size for size in shape[g.int(0, len(shape)) :])


@generator("eliminate_where/known_condition", "eliminate_where/equal_branches", "rewrite_where")
def choices(g: GraphMaker) -> None:
    shape = g.shape()
    dtype = g.pick(["float32", "int64", "bool"])
    yes = g.input(shape, dtype)
    no = yes if g.chance(0.3) else g.input(smaller(g, shape), dtype)
    match g.pick(["known", "open", "not"]):
        case "known":
            array = np.full(smaller(g, shape), g.chance())
            if g.chance(0.2) and array.size > 1:
                array.reshape(-1)[0] ^= True
            condition = g.const(array)
        case "open":
            condition = g.input(smaller(g, shape), "bool")
        case _:
            condition = g.node("Not", g.input(smaller(g, shape), "bool"))
            g.read_again(condition)
    y = g.node("Where", condition, *((yes, no) if g.chance() else (no, yes)))
    g.read_again(y)
    g.output(g.node("Identity", y))


@generator("rewrite_bool_where")
def boolean_choices(g: GraphMaker) -> None:
    shape = g.shape()
    condition = g.input(shape if g.chance(0.7) else smaller(g, shape), "bool")
    branches = [
        g.const(np.full(smaller(g, shape), g.chance())) if g.chance(0.7) else g.input(smaller(g, shape), "bool")
        for _ in range(2)
    ]
    y = g.node("Where", condition, *branches)
    g.read_again(y)
    g.output(g.node("Not", y))


@pytest.mark.parametrize(
    "label",
    ["eliminate_where/known_condition", "eliminate_where/equal_branches", "rewrite_where", "rewrite_bool_where"],
)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 60)
