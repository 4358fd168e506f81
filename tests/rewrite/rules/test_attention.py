"""Random graphs around attention written out, and its heads."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from tests.rewrite.fuzz import GraphMaker, generator, run_many
from tests.rewrite.models import transformed


def _scaled(g: GraphMaker, x: str, p: float = 0.5) -> str:
    if not g.chance(p):
        return x
    number = g.const(np.full(g.pick([(), (), (1,)]), g.pick([0.5, 0.35355339, 0.7, -0.5])), "float32")
    return g.node("Mul", x, number) if g.chance(0.7) else g.node("Div", x, number)


def _probabilities(g: GraphMaker, q: str, rotated: str, sizes: tuple[int, int, int, int], masked: float) -> str:
    """The Softmax of q · kᵀ, scaled at any place, and masked now and then."""
    batch, heads, length, keys = sizes
    y = _scaled(g, g.node("MatMul", _scaled(g, q), _scaled(g, rotated)), 0.3)
    g.read_again(y, 0.05)
    if g.chance(masked):
        rows, columns = g.pick([(length, keys)] * 3 + [(1, keys), (1, keys), (length, 1)])
        shape = (*g.pick([(), (1, 1), (batch, 1), (batch, heads)]), *g.pick([(rows, columns)] * 5 + [(columns,)]))
        y = _masked(g, y, g.rng.random(shape) < 0.3)
    p = g.node("Softmax", y, axis=g.pick([-1, -1, 3, None, 2]))
    g.read_again(p, 0.05)
    return p


def _masked(g: GraphMaker, scores: str, hidden: np.ndarray) -> str:
    """Scores of which some are hidden: by a number added to them, or by another in their place."""
    if g.chance(0.7) and hidden.shape[-1] > 1:
        hidden[..., 0] = False
    if g.chance(0.4):
        number = g.const(np.full(g.pick([(), (1,)]), g.pick([-1e4, -3e38, -np.inf, -1.0])), "float32")
        cond = g.const(~hidden) if g.chance(0.7) else g.input(hidden.shape, values=~hidden, dynamic=False)
        return g.node("Where", cond, scores, number)
    # Rows hidden wholly by -inf are NaN, and engines differ in what they make of them as one operator.
    number = -np.inf if not hidden.all(-1).any() and g.chance(0.3) else -1e4
    mask = np.where(hidden, number, 0).astype(np.float32)
    if g.chance(0.2):
        table = np.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, 2)])
        added = g.node("Slice", g.const(table), g.ints(0), g.ints(mask.shape[-1]), g.ints(-1))
    else:
        added = g.const(mask) if g.chance(0.6) else g.input(mask.shape, values=mask, dynamic=False)
    return g.node("Add", *((scores, added) if g.chance() else (added, scores)))


def _projected(g: GraphMaker, batch: int, length: int, heads: int, width: int) -> tuple[str, str]:
    """An input (batch, length, heads · width), and it with its heads parted."""
    shape = (batch, length, heads * width)
    x = g.input(shape, dims=("B", f"L{length}", heads * width) if g.chance(0.4) else shape)
    return x, g.node("Reshape", x, g.ints(0, 0, heads, width))


@generator("fuse_attention", "fuse_heads_into_attention")
def attentions(g: GraphMaker) -> None:
    g.opset, g.special = g.pick([23, 23, 24, 18]), False
    batch, heads, length, keys, width, wide = (g.int(1, 3) for _ in range(6))
    _, q = _projected(g, batch, length, heads, width)
    _, k = _projected(g, batch, keys, heads, width)
    _, v = _projected(g, batch, keys, heads, wide)
    q, v = (g.node("Transpose", item, perm=[0, 2, 1, 3]) for item in (q, v))
    if g.chance():
        rotated = g.node("Transpose", k, perm=[0, 2, 3, 1])
    else:
        rotated = g.node("Transpose", g.node("Transpose", k, perm=[0, 2, 1, 3]), perm=[0, 1, 3, 2])
    p = _probabilities(g, q, rotated, (batch, heads, length, keys), 0.5)
    y = g.node("MatMul", p, v)
    g.read_again(y, 0.05)
    y = g.node("Transpose", y, perm=g.pick([[0, 2, 1, 3], [0, 2, 1, 3], [0, 2, 1, 3], [0, 1, 3, 2]]))
    g.output(g.node("Reshape", y, g.ints(*g.pick([(0, 0, -1), (0, 0, -1), (batch, length, heads * wide), (-1, 1)]))))


@generator("fuse_attention")
def attentions_of_four_axes(g: GraphMaker) -> None:
    g.opset, g.special = g.pick([23, 23, 24]), False
    batch, heads, length, keys, width = (g.int(1, 3) for _ in range(5))
    q = g.input((batch, heads, length, width), dynamic=g.chance(0.2))
    k = g.input((g.pick([batch, batch, 1]), g.pick([heads, heads, 1]), keys, width), dynamic=False)
    rotated = g.node("Transpose", k, perm=[0, 1, 3, 2])
    if g.chance(0.1):
        rotated = g.input((batch, heads, width, keys), dynamic=False)
    v = g.input((batch, heads, keys, width), dynamic=False)
    g.output(g.node("MatMul", _probabilities(g, q, rotated, (batch, heads, length, keys), 0.5), v))


@generator("fuse_scale_into_attention")
def scaled_operands(g: GraphMaker) -> None:
    g.opset, g.special = g.pick([23, 24]), False
    batch, heads, length, keys, width = (g.int(1, 3) for _ in range(5))
    q = _scaled(g, g.input((batch, heads, length, width)))
    k = _scaled(g, g.input((batch, heads, keys, width)))
    v = _scaled(g, g.input((batch, heads, keys, width)))
    g.read_again(q, 0.1)
    g.output(g.node("Attention", q, k, v, scale=g.maybe(0.5), is_causal=g.maybe(1, 0.3)))


@generator("fuse_multi_head_attention")
def multi_head_attentions(g: GraphMaker) -> None:
    g.opset, g.special = g.pick([13, 17, 20]), False
    batch, heads, length, keys, width = (g.int(1, 3) for _ in range(5))
    _, q = _projected(g, batch, length, heads, width)
    _, k = _projected(g, batch, keys, heads, width)
    _, v = _projected(g, batch, keys, heads, width)
    q, v = (g.node("Transpose", item, perm=[0, 2, 1, 3]) for item in (q, v))
    rotated = g.node("Transpose", k, perm=[0, 2, 3, 1])
    y = g.node("MatMul", _probabilities(g, q, rotated, (batch, heads, length, keys), 0.2), v)
    y = g.node("Transpose", y, perm=[0, 2, 1, 3])
    g.output(g.node("Reshape", y, g.ints(0, 0, heads * width)))


@pytest.mark.parametrize("label", ["fuse_attention", "fuse_scale_into_attention"])
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 200)


def test_outputs_stay_equal_for_onnxruntime() -> None:
    run_many("fuse_multi_head_attention", 200, target="onnxruntime")


_SELF_ATTENTION = """g (float[B, L, 24] q, float[B, L, 24] k, float[B, L, 24] v{mask}) => (float[B, L, 24] y) {{
    qp = Reshape(q, part)
    qh = Transpose<perm = [0, 2, 1, 3]>(qp)
    kp = Reshape(k, part)
    kh = Transpose<perm = [0, 2, 3, 1]>(kp)
    vp = Reshape(v, part)
    vh = Transpose<perm = [0, 2, 1, 3]>(vp)
    d = MatMul(qh, kh)
    s = Mul(d, scale)
    {masked}
    p = Softmax(m)
    o = MatMul(p, vh)
    t = Transpose<perm = [0, 2, 1, 3]>(o)
    y = Reshape(t, join)
}}"""
_NUMBERS = {"part": np.array([0, 0, 3, 8]), "join": np.array([0, 0, 24]), "scale": np.float32(8**-0.5)}


def test_attention_with_its_heads_is_one_node() -> None:
    text = _SELF_ATTENTION.format(mask=", float[1, 1, L, L] bias", masked="m = Add(s, bias)")
    (node,) = transformed(text, opset=23, **_NUMBERS).model.graph
    assert node.op_type == "Attention"
    assert (node.attributes["q_num_heads"].value, node.attributes["kv_num_heads"].value) == (3, 3)
    assert node.attributes["scale"].value == pytest.approx(8**-0.5)
    assert [v.name for v in node.inputs if v is not None] == ["q", "k", "v", "bias"]


def test_a_mask_of_keys_gets_a_row_for_each_query() -> None:
    text = _SELF_ATTENTION.format(mask=", float[B, 1, 1, L] bias", masked="m = Add(s, bias)")
    engine = transformed(text, opset=23, **_NUMBERS)
    assert [node.op_type for node in engine.model.graph] == ["Shape", "Concat", "Expand", "Attention"]


def test_a_mask_of_keys_stays_where_queries_are_others() -> None:
    text = _SELF_ATTENTION.format(mask=", float[B, 1, 1, K] bias", masked="m = Add(s, bias)")
    text = text.replace("float[B, L, 24] k, float[B, L, 24] v", "float[B, K, 24] k, float[B, K, 24] v")
    engine = transformed(text, opset=23, **_NUMBERS)
    reason = "the mask is broadcast along queries, whose number differs from the number of keys"
    assert reason in engine.refused.values()


def test_a_mask_that_may_hide_every_key_stays() -> None:
    masked = "a = Where(hidden, low, zero)\n    m = Add(s, a)"
    text = _SELF_ATTENTION.format(mask=", bool[B, 1, L, L] hidden", masked=masked)
    engine = transformed(text, opset=23, low=np.float32(-np.inf), zero=np.float32(0), **_NUMBERS)
    reason = "the mask may hide all keys from a query, for which engines differ"
    assert engine.refused["fuse_attention/attention", "o"] == reason


def test_a_table_of_which_scores_count_is_the_mask() -> None:
    """GPT-2's causal mask: the first so many rows and columns of a table, by the length."""
    masked = """n = Shape<start = 1, end = 2>(q)
    rows = Slice(table, from, n, second)
    some = Slice(rows, from, n, third)
    m = Where(some, s, low)"""
    table = np.tril(np.ones((1, 1, 64, 64), np.bool_))
    numbers = {"from": np.array([0]), "second": np.array([2]), "third": np.array([3]), "low": np.float32(-1e4)}
    text = _SELF_ATTENTION.format(mask="", masked=masked)
    engine = transformed(text, opset=23, table=table, **numbers, **_NUMBERS)
    (node,) = (node for node in engine.model.graph if node.op_type == "Attention")
    assert node.inputs[3] is not None and node.inputs[3].dtype == ir.DataType.BOOL
    table[..., 5, :] = False
    engine = transformed(text, opset=23, table=table, **numbers, **_NUMBERS)
    assert "Attention" not in [node.op_type for node in engine.model.graph]


def test_attention_needs_opset_23() -> None:
    engine = transformed(_SELF_ATTENTION.format(mask="", masked="m = Identity(s)"), opset=22, **_NUMBERS)
    assert "needs opset 23" in engine.refused.values()


def test_rotated_queries_and_grouped_keys_are_one_attention() -> None:
    """A LLaMA's block: keys and values of 2 heads, repeated for 4 heads of queries, with what is rotated."""
    text = """g (float[1, L, 32] q, float[1, L, 16] k, float[1, L, 16] v, float[1, L, 4] angle) => (float[1, L, 32] y) {
        cos = Cos(angle)
        sin = Sin(angle)
        qp = Reshape(q, four)
        qh = Transpose<perm = [0, 2, 1, 3]>(qp)
        qr = RotaryEmbedding(qh, cos, sin)
        kp = Reshape(k, two)
        kh = Transpose<perm = [0, 2, 1, 3]>(kp)
        kr = RotaryEmbedding(kh, cos, sin)
        ku = Unsqueeze(kr, axis)
        ke = Expand(ku, twice)
        kn = Reshape(ke, joined)
        kt = Transpose<perm = [0, 1, 3, 2]>(kn)
        vp = Reshape(v, two)
        vh = Transpose<perm = [0, 2, 1, 3]>(vp)
        vu = Unsqueeze(vh, axis)
        ve = Expand(vu, twice)
        vn = Reshape(ve, joined)
        d = MatMul(qr, kt)
        s = Mul(d, scale)
        p = Softmax(s)
        o = MatMul(p, vn)
        t = Transpose<perm = [0, 2, 1, 3]>(o)
        y = Reshape(t, join)
    }"""
    numbers = {
        "four": np.array([0, 0, 4, 8]),
        "two": np.array([0, 0, 2, 8]),
        "axis": np.array([2]),
        "twice": np.array([1, 2, 2, 1, 8]),
        "joined": np.array([0, 4, -1, 8]),
        "scale": np.float32(8**-0.5),
        "join": np.array([0, 0, 32]),
    }
    engine = transformed(text, opset=23, **numbers)
    operators = [node.op_type for node in engine.model.graph]
    assert sorted(operators) == ["Attention", "Cos", "RotaryEmbedding", "RotaryEmbedding", "Sin"]
    (node,) = (node for node in engine.model.graph if node.op_type == "Attention")
    assert (node.attributes["q_num_heads"].value, node.attributes["kv_num_heads"].value) == (4, 2)
