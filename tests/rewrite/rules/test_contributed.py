"""Random graphs around what ONNX Runtime has operators of its own for, and near misses."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from sardonyx.rewrite.engine.engine import Engine
from tests.rewrite.fuzz import GraphMaker, generator, run_many
from tests.rewrite.rules.onnxruntime_target import TARGET, operators, settled


@generator("fuse_activation_into_conv")
def convolutions(g: GraphMaker) -> None:
    g.special = False
    dtype = g.pick(["float32"] * 6 + ["float16"])
    axes, groups = g.int(1, 3), g.pick([1, 1, 2])
    per_group, created = g.int(1, 2), groups * g.int(1, 3)
    x = g.input((g.int(1, 2), groups * per_group, *[g.int(3, 5)] * axes), dtype, dynamic=g.chance(0.2))
    if g.chance(0.1):
        scale, zero = g.const(np.float32(0.1)), g.const(np.uint8(3))
        x = (
            g.node("DequantizeLinear", g.node("QuantizeLinear", x, scale, zero), scale, zero)
            if dtype == "float32"
            else x
        )
    shape = (created, per_group, *[g.int(1, 3)] * axes)
    weight = g.weight(shape, dtype) if g.chance(0.8) else g.input(shape, dtype, dynamic=False)
    arguments = [g.weight((created,), dtype)] if g.chance() else []
    attributes = {
        "strides": g.maybe([g.int(1, 2)] * axes, 0.4),
        "dilations": g.maybe([1] * axes, 0.3),
        "auto_pad": g.maybe(g.pick(["SAME_UPPER", "VALID"]), 0.3),
        "group": groups if groups > 1 else g.maybe(1),
        "kernel_shape": g.maybe(list(shape[2:]), 0.5),
    }
    if attributes["auto_pad"] is None:
        attributes["pads"] = g.maybe([g.int(0, 1) for _ in range(2 * axes)])
    y = g.node("Conv", x, weight, *arguments, **attributes)
    g.read_again(y, 0.1)
    g.output(_activation(g, y, dtype))


def _activation(g: GraphMaker, y: str, dtype: str) -> str:
    op = g.pick(["Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Clip", "Clip", "Elu"])
    if op == "LeakyRelu":
        return g.node(op, y, alpha=g.maybe(g.pick([0.3, -0.2])))
    if op == "HardSigmoid":
        return g.node(op, y, alpha=g.maybe(0.3), beta=g.maybe(0.4))
    if op == "Clip":
        low, high = g.maybe(g.pick([-0.5, 0.0, 2.0])), g.maybe(g.pick([0.5, 6.0]))
        bounds = [None if number is None else g.const(number, dtype) for number in (low, high)]
        if g.chance(0.1):
            bounds[0] = g.input((), dtype)
        return g.node(op, y, *bounds)
    return g.node(op, y)


@generator("fuse_quick_gelu")
def quick_gelus(g: GraphMaker) -> None:
    g.special = False
    dtype = g.pick(["float32"] * 5 + ["float16", "float64"])
    x = g.input(g.shape(g.int(0, 4), zero=0), dtype)
    slope = g.pick([1.702, 1.702, 0.5, -1.0])
    inner = x if g.chance(0.3) else g.node("Mul", x, g.const(np.full(g.pick([(), (1,)]), slope), dtype))
    if g.chance(0.1):
        inner = g.node("Add", inner, g.const(0.5, dtype))
    gate = g.node("Sigmoid", inner)
    g.read_again(gate, 0.1)
    other = x if g.chance(0.9) else g.input((), dtype)
    g.output(g.node("Mul", *((other, gate) if g.chance() else (gate, other))))


@generator("fuse_embed_layer_normalization")
def embeddings(g: GraphMaker) -> None:
    g.special, g.opset = False, g.pick([17, 18, 21])
    batch, length, width, rows = g.int(1, 3), g.int(1, 4), 2 * g.int(1, 4), g.int(4, 6)
    dims = ("B", "S") if g.chance(0.3) else (batch, length)

    def looked_up(shape: tuple[int, int], kind: str, declared: tuple[int | str, ...]) -> str:
        values = g.rng.integers(0, rows, shape).astype(kind)
        indices = g.input(shape, kind, values=values, dims=declared)
        table = g.weight((rows, width)) if g.chance(0.95) else g.input((rows, width), dynamic=False)
        return g.node("Gather", table, indices, axis=g.maybe(0))

    kind = g.pick(["int64", "int32"])
    terms = [looked_up((batch, length), kind, dims)]
    position = g.int(0, 3)
    if position == 0:
        terms.append(looked_up((1, length), "int64", (1, dims[1])))
    elif position == 1:
        terms.append(looked_up((batch, length), kind, dims))
    elif position == 2 and dims[0] == batch:
        terms.append(g.weight((length, width) if g.chance() else (1, length, width)))
    else:
        terms.append(g.weight((width,)))
    if g.chance():
        terms.insert(g.int(0, 2), looked_up((batch, length), kind, dims))
    g.rng.shuffle(terms)
    total = g.node("Add", terms[0], terms[1])
    g.read_again(total, 0.05)
    if len(terms) > 2:
        total = g.node("Add", *((total, terms[2]) if g.chance() else (terms[2], total)))
    bias = g.weight((width,)) if g.chance(0.8) else None
    axis = g.maybe(g.pick([-1, 2, 2, 1]) if width == length else g.pick([-1, 2]))
    g.output(g.node("LayerNormalization", total, g.weight((width,)), bias, axis=axis, epsilon=g.maybe(1e-3)))


@generator("fuse_group_query_attention")
def grouped_queries(g: GraphMaker) -> None:
    g.special, g.opset = False, g.pick([13, 17, 21])
    batch, length, groups, repeats = g.int(1, 2), g.int(2, 5), g.int(1, 2), g.int(1, 3)
    heads, width = groups * repeats, g.pick([8, 8, 8, 16, 4])
    dims = ("B", "S") if g.chance(0.3) else (batch, length)

    def with_heads(count: int) -> str:
        x = g.input((batch, length, count * width), dims=(*dims, count * width))
        parted = g.node("Reshape", x, g.ints(0, 0, count, width))
        return g.node("Transpose", parted, perm=[0, 2, 1, 3])

    def repeated(x: str) -> str:
        if repeats == 1 and g.chance(0.8):
            return x
        wide = g.node("Expand", g.node("Unsqueeze", x, g.ints(2)), g.ints(1, 1, repeats, 1, 1))
        return g.node("Reshape", wide, g.ints(0, heads, -1, width))

    q, k, v = with_heads(heads), repeated(with_heads(groups)), repeated(with_heads(groups))
    product = g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2]))
    if g.chance(0.8):
        product = g.node("Mul", product, g.const(np.float32(g.pick([0.25, 0.5]))))
    p = g.node("Softmax", _causal(g, product, length, dims), axis=g.maybe(3))
    y = g.node("Transpose", g.node("MatMul", p, v), perm=[0, 2, 1, 3])
    g.read_again(y, 0.05)
    g.output(g.node("Reshape", y, g.ints(0, 0, heads * width)))


def _causal(g: GraphMaker, product: str, length: int, dims: tuple[int | str, ...]) -> str:
    """Scores with a causal mask, or with another."""
    lower = np.tril(np.ones((length, length), np.bool_), 0 if g.chance(0.9) else 1)
    lead = g.pick([(), (1,), (1, 1)])
    if dims[1] != length:
        ones = g.node(
            "Expand", g.const(np.array(True)), g.node("Slice", g.node("Shape", product), g.ints(2), g.ints(4))
        )
        triangle = g.node("Trilu", ones, g.const(np.int64(0)), upper=0)
        triangle = g.node("Cast", triangle, to=onnx.TensorProto.BOOL)
        return g.node("Where", triangle, product, g.const(np.float32(-np.inf)))
    if g.chance():
        return g.node("Where", g.const(lower.reshape(*lead, length, length)), product, g.const(np.float32(-1e9)))
    mask = np.where(lower, 0, g.pick([-1e4, -np.inf, -3e38])).astype(np.float32)
    return g.node("Add", product, g.const(mask.reshape(*lead, length, length)))


@pytest.mark.parametrize(
    "label",
    [
        "fuse_activation_into_conv",
        "fuse_quick_gelu",
        "fuse_embed_layer_normalization",
        "fuse_group_query_attention",
    ],
)
def test_outputs_stay_equal_for_onnxruntime(label: str) -> None:
    run_many(label, 200, target=TARGET)


FILTER = np.ones((2, 1, 3, 3), np.float32)
CONV = "g (float[1, 1, 5, 5] x) => (float[1, 2, 3, 3] y) { c = Conv(x, w) y = Relu(c) }"


def test_a_convolution_takes_its_activation() -> None:
    assert operators(settled(CONV, w=FILTER)) == ["FusedConv"]


@pytest.mark.parametrize("target", ["portable", "native", "openvino"])
def test_no_operator_of_one_engine_is_made_for_another(target: str) -> None:
    assert operators(settled(CONV, target=target, w=FILTER)) == ["Conv", "Relu"]


def test_a_quantized_convolution_stays_as_it_is_found() -> None:
    engine = settled(
        """g (uint8[1, 1, 5, 5] q) => (uint8[1, 2, 3, 3] y) {
            x = DequantizeLinear(q, s, z) c = Conv(x, w) r = Relu(c) y = QuantizeLinear(r, s, z) }""",
        w=FILTER,
        s=np.float32(0.1),
        z=np.uint8(10),
    )
    assert "FusedConv" not in operators(engine)
    assert "quantized convolution" in engine.refused["fuse_activation_into_conv/activation_of_conv", "r"]


def test_rows_of_no_table_are_told() -> None:
    engine = settled(
        """g (int64[2, 3] i, float[2, 3, 4] e) => (float[2, 3, 4] y) {
            a = Gather(t, i) b = Add(a, e) y = LayerNormalization(b, scale) }""",
        t=np.ones((5, 4), np.float32),
        scale=np.ones(4, np.float32),
    )
    assert operators(engine) == ["Gather", "Add", "LayerNormalization"]
    messages = engine.refused["fuse_embed_layer_normalization/embed_layer_normalization", "y"]
    assert "neither looked up" in messages


_CAUSAL = """g (float[1, 3, 16] q, float[1, 3, {n}] k, float[1, 3, {n}] v) => (float[1, 3, 16] y) {{
    qp = Reshape(q, two) qh = Transpose<perm = [0, 2, 1, 3]>(qp)
    kp = Reshape(k, some) kh = Transpose<perm = [0, 2, 3, 1]>(kp)
    vp = Reshape(v, some) vh = Transpose<perm = [0, 2, 1, 3]>(vp)
    a = MatMul(qh, kh) b = Add(a, mask) p = Softmax<axis = -1>(b)
    c = MatMul(p, vh) d = Transpose<perm = [0, 2, 1, 3]>(c) y = Reshape(d, whole) }}"""


def _causal_model(seen: int, width: int = 8) -> Engine:
    lower = np.tril(np.ones((3, 3), np.bool_), seen)
    heads = 16 // width
    return settled(
        _CAUSAL.format(n=16),
        two=np.array([0, 0, heads, width]),
        some=np.array([0, 0, heads, width]),
        whole=np.array([0, 0, 16]),
        mask=np.where(lower, 0, -np.inf).astype(np.float32),
    )


def test_causal_attention_is_one_operator() -> None:
    assert operators(_causal_model(0)) == ["GroupQueryAttention"]


@pytest.mark.parametrize(
    ("seen", "width", "reason"), [(1, 8, "not known to be causal"), (0, 4, "multiple of 8")], ids=["mask", "width"]
)
def test_other_attention_stays(seen: int, width: int, reason: str) -> None:
    engine = _causal_model(seen, width)
    assert "GroupQueryAttention" not in operators(engine)
    assert reason in engine.refused["fuse_group_query_attention/group_query_attention", "y"]
