"""Random graphs around the heads of attention: repeated, packed, rotated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.rewrite.fuzz import GraphMaker, generator, run_many
from tests.rewrite.models import transformed


@generator("fuse_repeated_heads_into_attention")
def repeated_heads(g: GraphMaker) -> None:
    g.opset, g.special = 23, False
    batch, heads, group, length, keys, width = (g.int(1, 3) for _ in range(6))
    q = g.input((batch, heads * group, length, width), dynamic=False)

    def repeated() -> Any:
        x = g.input((batch, heads, keys, width), dynamic=False)
        across = g.pick([2, 2, 2, 1])
        grown = g.node("Unsqueeze", x, g.ints(across))
        sizes = (batch, heads, group, keys, width) if across == 2 else (batch, group, heads, keys, width)
        return g.node("Reshape", g.node("Expand", grown, g.ints(*sizes)), g.ints(batch, heads * group, keys, width))

    k, v = repeated(), repeated()
    g.output(g.node("Attention", q, k, v, scale=g.maybe(0.5)))


@generator("fuse_heads_into_attention")
def packed_heads(g: GraphMaker) -> None:
    """The queries, keys and values of one product, as vision models make them."""
    g.opset, g.special = g.pick([23, 23, 24, 21]), False
    batch, heads, length, width, parts = g.int(1, 3), g.int(1, 3), g.int(1, 3), g.int(1, 3), g.pick([3, 3, 3, 4])
    shape = (batch, length, parts * heads * width)
    x = g.input(shape, dims=("B", "L", shape[2]) if g.chance(0.4) and batch != length else shape)
    apart = g.node("Reshape", x, g.ints(0, 0, parts, heads, width))
    rotated = g.node("Transpose", apart, perm=g.pick([[2, 0, 3, 1, 4], [2, 0, 3, 1, 4], [2, 1, 3, 0, 4]]))
    if g.chance():
        split = g.node("Split", rotated, g.ints(*[1] * parts), axis=g.maybe(0), n_outputs=parts)
        q, k, v = (g.node("Squeeze", item, g.ints(0)) for item in split[:3])
    else:
        indices = [0, 1, 2] if g.chance(0.8) else [int(i) for i in g.rng.integers(-parts, parts, 3)]
        q, k, v = (g.node("Gather", rotated, g.const(np.array(i)), axis=g.maybe(0)) for i in indices)
    g.read_again(k, 0.1)
    y = g.node("Attention", q, k, v, scale=g.maybe(0.5))
    y = g.node("Transpose", y, perm=[0, 2, 1, 3])
    g.output(g.node("Reshape", y, g.ints(0, 0, heads * width)))


@generator("fuse_heads_into_attention")
def rotated_heads(g: GraphMaker) -> None:
    g.opset, g.special = g.pick([23, 24]), False
    batch, heads, length, half = g.int(1, 3), g.int(1, 3), g.int(1, 3), g.int(1, 3)
    angles = g.input((batch, length, half), dynamic=False)
    cos, sin = g.node("Cos", angles), g.node("Sin", angles)

    def transposed(*, rotated: bool) -> Any:
        x = g.input((batch, length, 2 * heads * half), dynamic=False)
        y = g.node("Transpose", g.node("Reshape", x, g.ints(0, 0, heads, 2 * half)), perm=[0, 2, 1, 3])
        if not rotated:
            return y
        y = g.node("RotaryEmbedding", y, cos, sin, interleaved=g.maybe(g.int(0, 1)))
        g.read_again(y, 0.1)
        return y

    y = g.node(
        "Attention", transposed(rotated=g.chance(0.8)), transposed(rotated=g.chance(0.8)), transposed(rotated=False)
    )
    y = g.node("Transpose", y, perm=[0, 2, 1, 3])
    g.output(g.node("Reshape", y, g.ints(0, 0, 2 * heads * half)))


@pytest.mark.parametrize("label", ["fuse_heads_into_attention", "fuse_repeated_heads_into_attention"])
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 200)


def test_packed_heads_are_a_split_and_an_attention() -> None:
    text = """g (float[B, L, 72] x) => (float[B, L, 24] y) {
        apart = Reshape(x, five)
        turned = Transpose<perm = [2, 0, 3, 1, 4]>(apart)
        a, b, c = Split<axis = 0>(turned, ones)
        q = Squeeze(a, first)
        k = Squeeze(b, first)
        v = Squeeze(c, first)
        o = Attention<scale = 0.5>(q, k, v)
        t = Transpose<perm = [0, 2, 1, 3]>(o)
        y = Reshape(t, join)
    }"""
    numbers = {"five": np.array([0, 0, 3, 3, 8]), "ones": np.ones(3, np.int64), "first": np.array([0])}
    engine = transformed(text, opset=23, join=np.array([0, 0, 24]), **numbers)
    assert [node.op_type for node in engine.model.graph] == ["Split", "Attention"]


def test_keys_of_an_earlier_run_keep_their_heads() -> None:
    text = """g (float[B, L, 24] x, float[B, 3, P, 8] pk, float[B, 3, P, 8] pv)
        => (float[B, L, 24] y, float[B, 3, T, 8] nk) {
        apart = Reshape(x, four)
        h = Transpose<perm = [0, 2, 1, 3]>(apart)
        o, nk, nv = Attention(h, h, h, "", pk, pv)
        t = Transpose<perm = [0, 2, 1, 3]>(o)
        y = Reshape(t, join)
    }"""
    engine = transformed(text, opset=23, four=np.array([0, 0, 3, 8]), join=np.array([0, 0, 24]))
    (node,) = engine.model.graph
    assert [value and value.name for value in node.inputs] == ["x", "x", "x", None, "pk", "pv"]
    assert [value.name for value in node.outputs[:2]] == ["y", "nk"]
