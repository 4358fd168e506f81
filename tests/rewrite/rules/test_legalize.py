"""Legalized operators: random graphs, and refusals with their reasons."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from sardonyx import model as model_io
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.evaluate import evaluate
from sardonyx.rewrite.rewrite_context import Settings
from tests.rewrite.fuzz import GENERATORS, GraphMaker, generator, run_many


@generator("legalize_einsum")
def einsums(g: GraphMaker) -> None:
    g.special = False
    equation = g.pick(
        [
            "ij,jk->ik", "bij,bkj->bik", "bhid,bhjd->bhij", "ij->ji", "ii->i", "ij->i", "ij->", "i,j->ij", "i,i->",
            "bi,ij,bj->b", "ij,ij->ij", "bij,bij->b", "abc,cd->abd", "...ij,...jk->...ik", "...i->...", "ij,jk",
        ]
    )  # fmt: skip
    sizes = {letter: g.int(1, 3) for letter in "abcdhijk"}
    batch = [g.int(1, 3) for _ in range(g.int(0, 2))]
    dtype = g.pick(["float32", "float32", "float64"])
    terms = equation.split("->")[0].split(",")
    # A letter's size is open under one name, or under a name for each operand: then it may be 1 in one of them.
    opened = {letter: g.chance() for letter in sizes if g.chance(0.2)}
    inputs = []
    for i, (letters, leading) in enumerate((t.replace("...", ""), batch if "..." in t else []) for t in terms):
        dims = [*leading, *((f"{c}{i}" if opened[c] else c) if c in opened else sizes[c] for c in letters)]
        inputs.append(g.input([*leading, *(sizes[c] for c in letters)], dtype, dims=dims))
    y = g.node("Einsum", *inputs, equation=equation)
    g.read_again(y)
    g.output(y)


@generator(
    "legalize_gelu", "legalize_hard_swish", "legalize_mish", "legalize_swish", "legalize_celu",
    "legalize_thresholded_relu", "legalize_shrink",
)  # fmt: skip
def activations(g: GraphMaker) -> None:
    g.special = False
    op = g.pick(["Gelu", "HardSwish", "Mish", "Swish", "Celu", "ThresholdedRelu", "Shrink"])
    g.opset = {"Gelu": 20, "HardSwish": 18, "Mish": 18, "Swish": 24}.get(op, g.opset)
    attributes = {
        "Gelu": {"approximate": g.pick([None, "none", "tanh"])},
        "Celu": {"alpha": g.maybe(0.7)},
        "Swish": {"alpha": g.maybe(1.7)},
        "ThresholdedRelu": {"alpha": g.maybe(0.3)},
        "Shrink": {"lambd": g.maybe(0.4), "bias": g.maybe(0.1)},
    }
    y = g.node(op, g.input(g.shape()), **attributes.get(op, {}))
    g.read_again(y)
    g.output(y)


@generator("legalize_layer_normalization", "legalize_rms_normalization")
def layer_norms(g: GraphMaker) -> None:
    g.special = False
    op = g.pick(["LayerNormalization", "RMSNormalization"])
    g.opset = g.pick([17, 18, 21]) if op == "LayerNormalization" else 23
    shape = g.shape(rank=g.int(1, 4), zero=0)
    axis = g.axis(len(shape))
    scale = g.weight(shape[axis:])
    bias = g.weight(shape[axis:]) if g.chance() and op == "LayerNormalization" else None
    y = g.node(op, g.input(shape), scale, bias, axis=axis, epsilon=g.maybe(1e-3))
    g.read_again(y)
    g.output(y)


@generator("legalize_attention", "legalize_rotary_embedding")
def attentions(g: GraphMaker) -> None:
    g.special = False
    g.opset = 23
    batch, heads, length, size = g.int(1, 2), g.int(1, 2), g.int(1, 3), 2 * g.int(1, 2)
    q, k, v = (g.input([batch, heads, length, size], dynamic=False) for _ in range(3))
    if g.chance():
        g.output(g.node("Attention", q, k, v, is_causal=g.maybe(g.int(0, 1)), scale=g.maybe(0.3)))
    else:
        cos, sin = (g.weight([length, size // 2]) for _ in range(2))
        positions = g.const(np.tile(np.arange(length), (batch, 1)), "int64")
        g.output(g.node("RotaryEmbedding", q, cos, sin, positions, interleaved=g.maybe(g.int(0, 1))))


@generator("legalize_mean_variance_normalization")
def mean_variance(g: GraphMaker) -> None:
    g.special = False
    # Only the channels are open: of a mean over one element ONNX Runtime divides 0 by 0, and the definition by ε.
    x = g.input([2, 3, 2, 3], dims=[2, g.pick([3, "c"]), 2, 3])
    g.output(g.node("MeanVarianceNormalization", x, axes=g.maybe([0, 2, 3])))


@generator("legalize_matmul_integer")
def integer_products(g: GraphMaker) -> None:
    a, b = g.input([2, 3], "uint8"), g.weight([3, 2], "uint8")
    zero = g.const(3, "uint8") if g.chance() else None
    g.output(g.node("MatMulInteger", a, b, zero))


@generator("legalize_center_crop_pad")
def crops(g: GraphMaker) -> None:
    g.opset = g.pick([18, 21])
    shape = g.shape(rank=2, zero=0)
    g.output(g.node("CenterCropPad", g.input(shape), g.ints(g.int(1, 5), g.int(1, 5))))


@generator("legalize_gemm")
def gemms(g: GraphMaker) -> None:
    g.special = False
    m, k, n = (g.int(1, 3) for _ in range(3))
    ta, tb = g.int(0, 1), g.int(0, 1)
    dtype = g.pick(["float32", "float64"])
    a = g.input([k, m] if ta else [m, k], dtype)
    b = g.weight([n, k] if tb else [k, n], dtype)
    c = g.weight(g.pick([[n], [m, n], [1, n], [m, 1], [1]]), dtype) if g.chance(0.7) else None
    y = g.node("Gemm", a, b, c, transA=ta if ta else g.maybe(ta), transB=tb, alpha=g.maybe(0.5), beta=g.maybe(2.0))
    g.read_again(y)
    g.output(y)


@generator("legalize_batch_normalization")
def batch_norms(g: GraphMaker) -> None:
    g.special = False
    shape = [g.int(1, 2), g.int(1, 3), *g.shape(rank=g.int(0, 2), zero=0)]
    channels = [g.weight([shape[1]]) for _ in range(3)]
    variance = g.const(np.abs(g.array([shape[1]], special=False)) + 0.1, "float32")
    if g.chance(0.1):
        channels[0] = g.input([shape[1]])
    g.output(g.node("BatchNormalization", g.input(shape), *channels, variance, epsilon=g.maybe(1e-3)))


@generator("legalize_reciprocal")
def reciprocals(g: GraphMaker) -> None:
    g.special = False
    shape = g.shape()
    r = g.node("Reciprocal", g.node("Exp", g.input(shape)))
    g.read_again(r)
    x = g.input(shape)
    g.output(g.node("Mul", *((x, r) if g.chance() else (r, x))))


@generator("legalize_neg")
def negations(g: GraphMaker) -> None:
    y = g.node("Neg", g.input(g.shape(), g.pick(["float32", "float64", "int64", "int32", "int8"])))
    g.read_again(y)
    g.output(y)


@generator("legalize_auto_pad")
def chosen_pads(g: GraphMaker) -> None:
    spatial = g.int(1, 2)
    x = g.input([1, 2, *[g.int(3, 6) for _ in range(spatial)]], dynamic=g.chance(0.2))
    mode = g.pick(["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
    kernel = [g.int(1, 3) for _ in range(spatial)]
    strides = g.maybe([g.int(1, 3) for _ in range(spatial)])
    if g.chance():
        g.special = False
        y = g.node("Conv", x, g.weight([2, 2, *kernel]), auto_pad=mode, strides=strides)
    else:
        y = g.node(g.pick(["MaxPool", "AveragePool"]), x, kernel_shape=kernel, auto_pad=mode, strides=strides)
    g.output(y)


LABELS = sorted(label for label in GENERATORS if label.startswith("legalize_"))


@pytest.mark.parametrize("label", LABELS)
def test_outputs_stay_equal(label: str) -> None:
    run_many(label, 200)


def legalized(text: str, *passes: str) -> tuple[list[str], Engine]:
    model = model_io.from_proto(parser.parse_model(text))
    engine = pipeline.transform(model, pipeline.select(passes=passes), Settings())
    return [node.op_type for node in model.graph], engine


def test_no_pass_that_legalizes_runs_by_default() -> None:
    assert not [r.name for r in pipeline.select().rules if r.name.startswith("legalize_")]


def test_an_einsum_of_unknown_rank_is_refused() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float x, float[] z) => (float[] y) { y = Einsum<equation = "...->...">(z) }"""
    model = parser.parse_model(text)
    model.graph.input[1].type.tensor_type.ClearField("shape")
    loaded = model_io.from_proto(model)
    engine = pipeline.transform(loaded, pipeline.select(passes=["legalize_einsum"]), Settings())
    assert list(engine.refused.values()) == ["the type or rank of an input is not known"]


def test_same_padding_of_an_open_size_is_refused() -> None:
    operators, engine = legalized(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1, 1, n] x) => (float[1, 1, m] y) { y = MaxPool<kernel_shape = [3], auto_pad = "SAME_UPPER">(x) }""",
        "legalize_auto_pad",
    )
    assert operators == ["MaxPool"]
    assert list(engine.refused.values()) == ["the padding depends on an open size"]


def test_what_a_decomposition_is_made_of() -> None:
    operators, _ = legalized(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 3] x, float[4, 3] z) => (float[2, 4] y) { y = Einsum<equation = "ij,kj->ik">(x, z) }""",
        "legalize_einsum",
    )
    assert operators == ["Transpose", "MatMul"]
    operators, _ = legalized(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, n] x, float[m, 3] z) => (float[2, 3] y) { y = Einsum<equation = "ij,jk->ik">(x, z) }""",
        "legalize_einsum",
    )
    assert "MatMul" not in operators, "a size of 1 in one operand is repeated"


@pytest.mark.parametrize("call", ["QuickGelu(x)", "QuickGelu<alpha = 1.2>(x)", "Gelu(x)", "BiasGelu(x, b)"])
def test_contributed_activations_are_standard_ones(call: str) -> None:
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[2, 3] x, float[3] b) => (float[2, 3] y) {{ y = com.microsoft.{call} }}"""
    )
    feeds = {"x": np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 3), "b": np.array([0.5, -1, 2], np.float32)}
    loaded = model_io.from_proto(model)
    pipeline.transform(loaded, pipeline.select(passes=["legalize_microsoft"]), Settings())
    assert {node.domain for node in loaded.graph} == {""}
    actual = evaluate(model_io.to_proto(loaded), feeds)["y"]
    np.testing.assert_allclose(actual, evaluate(model, feeds)["y"], rtol=1e-5, atol=1e-6)


def test_group_normalization_is_written_out() -> None:
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (float[2, 4, 3] x, float[4] s, float[4] b) => (float[2, 4, 3] y) {
            y = GroupNormalization<num_groups = 2>(x, s, b)
        }"""
    )
    generator = np.random.default_rng(0)
    feeds = {n: generator.standard_normal(d).astype(np.float32) for n, d in (("x", (2, 4, 3)), ("s", 4), ("b", 4))}
    loaded = model_io.from_proto(model)
    engine = pipeline.transform(loaded, pipeline.select(passes=["legalize_group_normalization"]), Settings())
    assert "GroupNormalization" not in {node.op_type for node in loaded.graph}, engine.refused
    actual = evaluate(model_io.to_proto(loaded), feeds)["y"]
    groups = feeds["x"].reshape(2, 2, -1)
    unit = (groups - groups.mean(-1, keepdims=True)) / np.sqrt(groups.var(-1, keepdims=True) + 1e-5)
    expected = unit.reshape(2, 4, 3) * feeds["s"][:, None] + feeds["b"][:, None]
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
