"""Random graphs around attention to keys and values of earlier runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx import model as model_io
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.rewrite_context import Settings
from tests.rewrite.fuzz import GraphMaker, generator, run_many
from tests.rewrite.models import transformed


def _cached(g: GraphMaker, past: int, new: str, lead: tuple[Any, int], width: int) -> str:
    """New keys or values behind those of an earlier run; the first is a graph output now and then, or read twice."""
    batch, heads = lead
    dims = (f"B{batch}", heads, f"P{past}", width) if g.chance(0.3) else None
    before = g.input((batch, heads, past, width), dims=dims, dynamic=False)
    parts = (before, new) if g.chance(0.95) else (new, before)
    joined = g.node("Concat", *parts, axis=g.pick([2, 2, 2, -2]))
    if g.chance():
        g.output(joined)
    if g.chance(0.1):
        g.output(g.node("Shape", joined))
    return str(joined)


@generator("fuse_cache_into_attention", "fuse_heads_into_attention")
def caches_of_attention(g: GraphMaker) -> None:
    g.opset, g.special = g.pick([23, 24]), False
    batch, heads, length, past, width = (g.int(1, 3) for _ in range(5))
    repeats = g.pick([1, 1, 2])

    def parted(count: int) -> str:
        if g.chance(0.3):
            return g.input((batch, count, length, width), dynamic=False)
        x = g.input((batch, length, count * width), dynamic=g.chance(0.2))
        return str(g.node("Transpose", g.node("Reshape", x, g.ints(0, 0, count, width)), perm=[0, 2, 1, 3]))

    k, v = (_cached(g, past, parted(heads), (batch, heads), width) for _ in range(2))
    mask = None
    if g.chance():
        hidden = g.rng.random((length, past + length)) < 0.3
        hidden[:, 0] = False
        mask = g.const(np.where(hidden, -1e4, 0).astype(np.float32))
    outputs = g.pick([1, 1, 1, 3])
    actual = g.node(
        "Attention",
        *(parted(heads * repeats), k, v, mask),
        n_outputs=outputs,
        scale=g.maybe(0.5),
        is_causal=g.maybe(1, 0.1),
    )
    y = actual if outputs == 1 else actual[0]
    y = g.node("Transpose", y, perm=[0, 2, 1, 3])
    g.output(g.node("Reshape", y, g.ints(0, 0, heads * repeats * width)))


@generator("fuse_group_query_attention/cached_group_query_attention")
def cached_grouped_queries(g: GraphMaker) -> None:
    g.opset, g.special = g.pick([13, 17, 21]), False
    batch, heads, past, width = g.int(1, 2), g.int(1, 2), g.int(1, 3), g.pick([8, 8, 8, 16, 4])
    length, repeats = g.pick([1, 1, 2, 3]), g.pick([1, 1, 2])
    sizes = ("B", "L") if g.chance(0.3) and length > 1 else (batch, length)

    def parted(count: int) -> str:
        x = g.input((batch, length, count * width), dims=(*sizes, count * width))
        return str(g.node("Transpose", g.node("Reshape", x, g.ints(0, 0, count, width)), perm=[0, 2, 1, 3]))

    def cached() -> str:
        before = g.input((batch, heads, past, width), dims=(sizes[0], heads, g.pick(["P", past]), width))
        joined = g.node("Concat", before, parted(heads), axis=g.pick([2, 2, 2, 1] if past == length else [2]))
        if g.chance():
            g.output(joined)
        g.read_again(joined, 0.05)
        if repeats == 1 or joined is None:
            return str(joined)
        grown = g.node("Unsqueeze", joined, g.ints(2))
        grown = g.node("Expand", grown, g.ints(1, 1, repeats, 1, 1))
        shape = g.node("Concat", g.ints(batch, heads * repeats), g.ints(past + length, width), axis=0)
        return str(g.node("Reshape", grown, shape))

    q, k, v = parted(heads * repeats), cached(), cached()
    y = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]))
    y = g.node("Mul", y, g.const(np.float32(0.35)))
    if length > 1 or g.chance(0.3):
        first = past if g.chance(0.9) else past - 1
        table = g.const(np.tril(np.ones((1, 1, 9, 9), np.bool_), k=0 if g.chance(0.9) else 1))
        rows = g.node("Slice", table, g.ints(first), g.ints(first + length), g.ints(2))
        seen = g.node("Slice", rows, g.ints(0), g.ints(past + length), g.ints(3))
        y = g.node("Where", seen, y, g.const(np.float32(-3e38)))
    y = g.node("MatMul", g.node("Softmax", y, axis=-1), v)
    y = g.node("Transpose", y, perm=[0, 2, 1, 3])
    g.output(g.node("Reshape", y, g.ints(0, 0, heads * repeats * width)))


@pytest.mark.parametrize("label", ["fuse_cache_into_attention"])
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 200)


def test_outputs_stay_equal_for_onnxruntime() -> None:
    run_many("fuse_group_query_attention/cached_group_query_attention", 200, target="onnxruntime")


_DECODER = """g (float[B, L, 24] q,
        float[B, L, 24] k, float[B, L, 24] v, float[B, 3, P, 8] pk, float[B, 3, P, 8] pv)
        => (float[B, L, 24] y, float[B, 3, T, 8] nk, float[B, 3, T, 8] nv) {{
    qp = Reshape(q, part)
    qh = Transpose<perm = [0, 2, 1, 3]>(qp)
    kp = Reshape(k, part)
    kh = Transpose<perm = [0, 2, 1, 3]>(kp)
    vp = Reshape(v, part)
    vh = Transpose<perm = [0, 2, 1, 3]>(vp)
    nk = Concat<axis = 2>(pk, kh)
    nv = Concat<axis = 2>(pv, vh)
    turned = Transpose<perm = [0, 1, 3, 2]>(nk)
    d = MatMul(qh, turned)
    s = Mul(d, scale)
    {masked}
    p = Softmax(m)
    o = MatMul(p, nv)
    t = Transpose<perm = [0, 2, 1, 3]>(o)
    y = Reshape(t, join)
}}"""
_NUMBERS = {"part": np.array([0, 0, 3, 8]), "join": np.array([0, 0, 24]), "scale": np.float32(8**-0.5)}


def test_a_step_of_a_decoder_is_one_attention_with_its_cache() -> None:
    (node,) = transformed(_DECODER.format(masked="m = Identity(s)"), opset=23, **_NUMBERS).model.graph
    assert node.op_type == "Attention"
    assert [value and value.name for value in node.inputs] == ["q", "k", "v", None, "pk", "pv"]
    assert [value.name for value in node.outputs] == ["y", "nk", "nv"]


def test_a_step_whose_mask_is_causal_behind_the_cache_is_grouped_queries_for_onnxruntime() -> None:
    masked = """
    before = Shape<start = 2, end = 3>(pk)
    length = Shape<start = 1, end = 2>(q)
    total = Add(before, length)
    rows = Slice(table, before, total, two)
    seen = Slice(rows, zero, total, three)
    m = Where(seen, s, lowest)"""
    numbers = _NUMBERS | {
        "table": np.tril(np.ones((1, 1, 64, 64), np.bool_)),
        "lowest": np.float32(-3e38),
        **{name: np.array([at]) for name, at in (("zero", 0), ("two", 2), ("three", 3))},
    }
    proto = model_io.to_proto(
        transformed(_DECODER.format(masked=masked).replace("[B,", "[1,"), opset=17, **numbers).model
    )
    model = model_io.from_proto(proto)
    pipeline.transform(model, pipeline.select("onnxruntime"), Settings(target="onnxruntime"))
    node = next(node for node in model.graph if node.domain == "com.microsoft")
    assert node.op_type == "GroupQueryAttention"
    assert [value.name for value in node.outputs] == ["y", "nk", "nv"]
    assert not [node for node in model.graph if node.op_type in ("Softmax", "Concat", "Where")]


def test_several_queries_of_several_samples_behind_a_cache_stay() -> None:
    model = transformed(_DECODER.format(masked="m = Identity(s)").replace(" L,", " 1,"), opset=17, **_NUMBERS).model
    engine = pipeline.transform(model, pipeline.select("onnxruntime"), Settings(target="onnxruntime"))
    assert "GroupQueryAttention" in [node.op_type for node in engine.model.graph]
    model = transformed(_DECODER.format(masked="m = Identity(s)"), opset=17, **_NUMBERS).model
    engine = pipeline.transform(model, pipeline.select("onnxruntime"), Settings(target="onnxruntime"))
    assert any("for a single sample only" in reason for reason in engine.refused.values())
