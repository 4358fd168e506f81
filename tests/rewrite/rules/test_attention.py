"""Random graphs around attention written out, its heads, and rotary embeddings."""

from __future__ import annotations

import numpy as np
import pytest

from tests.rewrite.fuzz import GraphMaker, generator, run_many
from tests.rewrite.rules.test_near_misses import transformed


def _scaled(g: GraphMaker, x: str, p: float = 0.5) -> str:
    if not g.chance(p):
        return x
    number = g.const(np.full(g.pick([(), (), (1,)]), g.pick([0.5, 0.35355339, 0.7, -0.5])), "float32")
    return g.node("Mul", x, number) if g.chance(0.7) else g.node("Div", x, number)


def _probabilities(g: GraphMaker, q: str, turned: str, sizes: tuple[int, int, int, int], masked: float) -> str:
    """The Softmax of q · kᵀ, scaled at any place, and masked now and then."""
    batch, heads, length, keys = sizes
    y = _scaled(g, g.node("MatMul", _scaled(g, q), _scaled(g, turned)), 0.3)
    g.read_again(y, 0.05)
    if g.chance(masked):
        shape = g.pick(
            [(length, keys), (1, 1, length, keys), (batch, 1, length, keys), (batch, heads, length, keys), (1, keys)]
        )
        mask = np.where(g.rng.random(shape) < 0.3, -1e4, 0.0)
        y = g.node("Add", *((y, g.const(mask, "float32")) if g.chance() else (g.const(mask, "float32"), y)))
    p = g.node("Softmax", y, axis=g.pick([-1, -1, 3, None, 2]))
    g.read_again(p, 0.05)
    return p


def _projected(g: GraphMaker, batch: int, length: int, heads: int, width: int) -> tuple[str, str]:
    """An input (batch, length, heads · width), and it with its heads parted."""
    x = g.input((batch, length, heads * width), dynamic=g.chance(0.2))
    return x, g.node("Reshape", x, g.ints(0, 0, heads, width))


@generator("fuse_attention", "fuse_heads_into_attention")
def attentions(g: GraphMaker) -> None:
    g.opset, g.special = g.pick([23, 23, 24, 18]), False
    batch, heads, length, keys, width, wide = (g.int(1, 3) for _ in range(6))
    _, q = _projected(g, batch, length, heads, width)
    _, k = _projected(g, batch, keys, heads, width)
    _, v = _projected(g, batch, keys, heads, wide)
    q, v = (g.node("Transpose", each, perm=[0, 2, 1, 3]) for each in (q, v))
    if g.chance():
        turned = g.node("Transpose", k, perm=[0, 2, 3, 1])
    else:
        turned = g.node("Transpose", g.node("Transpose", k, perm=[0, 2, 1, 3]), perm=[0, 1, 3, 2])
    p = _probabilities(g, q, turned, (batch, heads, length, keys), 0.5)
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
    turned = g.node("Transpose", k, perm=[0, 1, 3, 2])
    if g.chance(0.1):
        turned = g.input((batch, heads, width, keys), dynamic=False)
    v = g.input((batch, heads, keys, width), dynamic=False)
    g.output(g.node("MatMul", _probabilities(g, q, turned, (batch, heads, length, keys), 0.5), v))


@generator("fuse_repeated_heads_into_attention")
def repeated_heads(g: GraphMaker) -> None:
    g.opset, g.special = 23, False
    batch, heads, group, length, keys, width = (g.int(1, 3) for _ in range(6))
    q = g.input((batch, heads * group, length, width), dynamic=False)

    def repeated() -> str:
        x = g.input((batch, heads, keys, width), dynamic=False)
        across = g.pick([2, 2, 2, 1])
        grown = g.node("Unsqueeze", x, g.ints(across))
        sizes = (batch, heads, group, keys, width) if across == 2 else (batch, group, heads, keys, width)
        return g.node("Reshape", g.node("Expand", grown, g.ints(*sizes)), g.ints(batch, heads * group, keys, width))

    k, v = repeated(), repeated()
    g.output(g.node("Attention", q, k, v, scale=g.maybe(0.5)))


@generator("fuse_multi_head_attention")
def multi_head_attentions(g: GraphMaker) -> None:
    g.opset, g.special = g.pick([13, 17, 20]), False
    batch, heads, length, keys, width = (g.int(1, 3) for _ in range(5))
    _, q = _projected(g, batch, length, heads, width)
    _, k = _projected(g, batch, keys, heads, width)
    _, v = _projected(g, batch, keys, heads, width)
    q, v = (g.node("Transpose", each, perm=[0, 2, 1, 3]) for each in (q, v))
    turned = g.node("Transpose", k, perm=[0, 2, 3, 1])
    y = g.node("MatMul", _probabilities(g, q, turned, (batch, heads, length, keys), 0.2), v)
    y = g.node("Transpose", y, perm=[0, 2, 1, 3])
    g.output(g.node("Reshape", y, g.ints(0, 0, heads * width)))


@generator("fuse_rotary_embedding")
def rotary_embeddings(g: GraphMaker) -> None:
    g.opset, g.special = g.pick([23, 23, 24, 21]), False
    batch, heads, length, half = g.int(1, 3), g.int(1, 3), g.int(1, 3), g.int(1, 3)
    x = g.input((batch, heads, length, 2 * half), dynamic=g.chance(0.2))
    if g.chance():
        angles = g.input((g.pick([batch, batch, 1]), length, half), dynamic=False)
        both = g.node("Concat", angles, angles, axis=g.pick([-1, 2]))
        cos, sin = (g.node("Unsqueeze", g.node(op, both), g.ints(1)) for op in ("Cos", "Sin"))
    else:
        table = g.rng.standard_normal((length, half))
        table = np.concatenate([table, table if g.chance(0.8) else -table], axis=1)
        lead = g.pick([(), (1, 1), (1,)])
        cos, sin = (g.const(f(table).reshape(*lead, *table.shape), "float32") for f in (np.cos, np.sin))
    if g.chance():
        first, second = g.node("Split", x, g.ints(half, half), axis=g.pick([-1, 3]), n_outputs=2)
    else:
        first = g.node("Slice", x, g.ints(0), g.ints(half), g.ints(3))
        second = g.node("Slice", x, g.ints(half), g.ints(2**63 - 1), g.ints(-1))
    g.read_again(first, 0.1)
    rotated = g.node("Concat", g.node("Neg", second), first, axis=-1)
    crossed = g.node("Mul", rotated, sin) if g.chance() else g.node("Mul", sin, rotated)
    straight = g.node("Mul", x, cos) if g.chance() else g.node("Mul", cos, x)
    g.output(g.node("Add", *((straight, crossed) if g.chance() else (crossed, straight))))


@pytest.mark.parametrize(
    "label",
    ["fuse_attention", "fuse_heads_into_attention", "fuse_repeated_heads_into_attention", "fuse_rotary_embedding"],
)
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


def test_a_mask_of_keys_only_is_left_outside() -> None:
    text = _SELF_ATTENTION.format(mask=", float[B, 1, 1, L] bias", masked="m = Add(s, bias)")
    engine = transformed(text, opset=23, **_NUMBERS)
    assert "the mask is broadcast along queries or keys" in engine.refused.values()


def test_attention_needs_opset_23() -> None:
    engine = transformed(_SELF_ATTENTION.format(mask="", masked="m = Identity(s)"), opset=22, **_NUMBERS)
    assert "needs opset 23" in engine.refused.values()
