"""Random graphs around masks known before a run, and guards against rows that are masked as a whole."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rewrite.fuzz import GraphMaker, generator, run_many
from tests.rewrite.models import transformed


@generator("eliminate_nan_guard")
def guards(g: GraphMaker) -> None:
    g.special = False
    g.opset = g.pick([13, 17, 18, 21])
    rows, keys, width = g.int(1, 3), g.int(1, 4), g.int(1, 3)
    scores = g.node("MatMul", g.input((2, rows, width)), g.input((2, width, keys), dynamic=False))
    if g.chance():
        scores = g.node(g.pick(["Mul", "Div"]), scores, g.const(0.5, "float32"))
    if g.chance(0.7):
        shape = g.pick([(rows, keys), (1, keys), (2, rows, keys), (1, 1, 1), (keys,)])
        hidden = g.rng.random(shape) < 0.4
        if g.chance(0.7):
            hidden[..., 0] = False
        low = g.pick([-np.inf, -np.inf, -3e38])
        mask = np.where(hidden, low, 0).astype(np.float32)
        if g.chance(0.3):
            at = g.input(shape, values=hidden, dynamic=False)
            added = g.node("Where", at, g.const(low, "float32"), g.const(0, "float32"))
        else:
            added = g.const(mask) if g.chance(0.8) else g.input(shape, values=mask, dynamic=False)
        scores = g.node("Add", scores, added)
    elif g.chance():
        positions = g.node("Range", *(g.const(np.array(n)) for n in (g.pick([0, 0, -1]), keys, 1)))
        seen = g.node(g.pick(["GreaterOrEqual", "Greater"]), positions, g.const(np.array(g.pick([0, -1]))))
        seen = g.node("Expand", seen, g.node("Shape", scores)) if g.chance() else g.node("Unsqueeze", seen, g.ints(0))
        scores = g.node(
            "Add", scores, g.node("Where", seen, g.const(0, "float32"), g.const(g.pick([-np.inf, -3e38]), "float32"))
        )
    p = g.node("Softmax", scores, axis=g.pick([-1, -1, -1, 2, 1]))
    g.read_again(p, 0.1)
    nan = g.node("IsNaN", p)
    g.read_again(nan, 0.1)
    g.output(g.node("Where", nan, g.const(np.full(g.pick([(), (1,), (1, 1)]), g.pick([0.0, 0.0, 1.0])), "float32"), p))


@generator("fuse_causal_mask_into_attention")
def causal_masks(g: GraphMaker) -> None:
    g.opset, g.special = g.pick([23, 23, 24]), False
    batch, heads, width = g.int(1, 2), g.int(1, 3), g.int(1, 3)
    length = g.int(2, 4)
    keys = length if g.chance(0.7) else g.int(2, 4)
    open_sizes = g.chance(0.4)
    q = g.input((batch, heads, length, width), dims=(batch, heads, "L", width) if open_sizes else None, dynamic=False)
    k, v = (
        g.input(
            (batch, heads, keys, width),
            dims=(batch, heads, "L" if keys == length else "K", width) if open_sizes else None,
            dynamic=False,
        )
        for _ in range(2)
    )
    shape = g.node("Concat", *(g.node("Shape", x, start=2, end=3) for x in (q, k)), axis=0)
    low = g.pick([-np.inf, -1e4, -3e38, -1.0])
    match g.int(0, 3):
        case 0:
            full = g.node("Expand", g.const(low, "float32"), shape)
            mask = g.node("Trilu", full, g.const(np.array(g.pick([1, 1, 0, 2]))), upper=g.maybe(1))
        case 1:
            ones = g.node("Expand", g.const(g.pick([1.0, 1.0, 0.5]), "float32"), shape)
            seen = g.node("Trilu", ones, upper=g.pick([0, 0, 0, 1]))
            hidden = g.node("Equal", seen, g.const(0.0, "float32"))
            numbers = [g.const(low, "float32"), g.const(g.pick([0.0, 0.0, 0.0, 1.0]), "float32")]
            mask = g.node("Where", hidden, *(numbers if g.chance(0.9) else numbers[::-1]))
        case 2:
            ones = g.node("Expand", g.const(np.array(True)), shape)
            mask = g.node("Trilu", ones, upper=0)
            if g.chance(0.2):
                mask = g.node("Trilu", ones, g.const(np.array(1)), upper=1)
                mask = g.node("Not", mask)
        case _:
            above = np.triu(np.ones((length, keys), np.bool_), 1 if g.chance(0.9) else 0)
            mask = g.const(np.where(above, low, 0.0).reshape(g.pick([(1, 1), ()]) + above.shape), "float32")
    if g.chance(0.3):
        mask = g.node("Unsqueeze", mask, g.ints(0))
    g.output(g.node("Attention", q, k, v, mask, scale=g.maybe(0.5)))


@pytest.mark.parametrize("label", ["eliminate_nan_guard", "fuse_causal_mask_into_attention"])
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 200)


_GUARDED = """g (float[5, 2, 3] x, float[3, 4] w{mask}) => (float[5, 2, 4] y) {{
    scores = MatMul(x, w)
    masked = Add(scores, mask)
    p = Softmax(masked)
    nan = IsNaN(p)
    y = Where(nan, zero, p)
}}"""
_TABLE = np.array([[0, -np.inf, 0, 0], [-np.inf, -np.inf, 0, 0]], np.float32)


def test_a_guard_goes_where_each_row_keeps_a_score() -> None:
    engine = transformed(_GUARDED.format(mask=""), mask=_TABLE, zero=np.float32(0))
    assert [node.op_type for node in engine.model.graph][-1] == "Softmax"


@pytest.mark.parametrize("is_input", [True, False])
def test_a_guard_stays_where_a_row_may_lose_all(is_input: bool) -> None:
    text = _GUARDED.format(mask=", float[2, 4] mask" if is_input else "")
    table = _TABLE.copy()
    table[1] = -np.inf
    engine = transformed(text, zero=np.float32(0), **({} if is_input else {"mask": table}))
    assert "a mask may mask a whole row, whose NaN the guard replaces by 0" in engine.refused.values()
    assert [node.op_type for node in engine.model.graph][-1] == "Where"


@pytest.mark.parametrize(("first", "goes"), [(0, True), (-1, False)])
def test_a_mask_that_hides_no_place_goes(first: int, goes: bool) -> None:
    text = """g (float[B, N, 8] q, float[B, 8, N] k) => (float[B, N, N] y) {
        n = Shape<start = 1, end = 2>(q)
        last = Squeeze(n)
        places = Range(first, last, one)
        seen = GreaterOrEqual(places, zero)
        wide = Unsqueeze(seen, axis)
        mask = Where(wide, nothing, low)
        d = MatMul(q, k)
        s = Add(d, mask)
        p = Softmax(s)
        nan = IsNaN(p)
        y = Where(nan, nothing, p)
    }"""
    numbers = {"first": np.int64(first), "one": np.int64(1), "zero": np.int64(0), "axis": np.array([0])}
    engine = transformed(text, nothing=np.float32(0), low=np.float32(-np.inf), **numbers)
    operators = [node.op_type for node in engine.model.graph]
    assert ("GreaterOrEqual" not in operators and "IsNaN" not in operators) == goes
