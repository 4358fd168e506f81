"""Random graphs around what ONNX Runtime joins: Gelu with its bias, Gemm with its activation, turned products, sums."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, parser

from sardonyx import model as model_io
from sardonyx.rewrite import pipeline
from sardonyx.rewrite.engine.engine import Engine
from sardonyx.rewrite.rewrite_context import Settings
from tests.rewrite.fuzz import GraphMaker, Unsuitable, generator, run_many
from tests.rewrite.rules.onnxruntime_target import TARGET, operators, settled


def _either(g: GraphMaker, a: str, b: str) -> tuple[str, str]:
    return (a, b) if g.chance() else (b, a)


def _biased(g: GraphMaker, dtype: str) -> str:
    """A tensor, mostly plus a vector."""
    shape = g.shape(g.int(1, 4), zero=0)
    x = g.input(shape, dtype, dims=("N", *shape[1:]) if len(shape) > 1 and g.chance(0.3) else None, dynamic=False)
    if g.chance(0.2):
        return x
    bias = g.weight(g.pick([shape[-1:], shape[-1:], shape[-1:], (1,), (), (1, *shape[-1:])]), dtype)
    total = g.node("Add", *_either(g, x, bias))
    g.read_again(total, 0.1)
    return str(total)


@generator("fuse_gelu/contributed_gelu", "fuse_fast_gelu", "fuse_bias_gelu")
def gelus(g: GraphMaker) -> None:
    g.special = False
    g.opset = g.pick([13, 17, 20, 21])
    dtype = g.pick(["float32"] * 6 + ["float16"])
    x = _biased(g, dtype)
    if g.opset >= 20 and g.chance():
        g.output(g.node("Gelu", x, approximate=g.pick([None, "tanh", "none"])))
        return

    def number(value: float) -> str:
        return g.const(value, dtype)

    if g.chance():
        gate = g.node("Erf", g.node("Div", x, number(np.sqrt(2))))
    else:
        cube = g.node("Mul", g.node("Pow", x, number(3.0)), number(0.044715))
        gate = g.node("Tanh", g.node("Mul", g.node("Add", *_either(g, x, cube)), number(np.sqrt(2 / np.pi))))
    g.read_again(gate, 0.05)
    raised = g.node("Add", *_either(g, gate, number(1.0)))
    if g.chance():
        g.output(g.node("Mul", g.node("Mul", *_either(g, x, raised)), number(0.5)))
    else:
        g.output(g.node("Mul", *_either(g, g.node("Mul", x, number(0.5)), raised)))


@generator("fuse_activation_into_gemm")
def gemms(g: GraphMaker) -> None:
    g.special = False
    dtype = g.pick(["float32"] * 6 + ["float64"])
    m, k, n = (g.int(1, 5) for _ in range(3))
    flags = {"transA": g.maybe(g.int(0, 1)), "transB": g.maybe(g.int(0, 1))}
    a = g.input((k, m) if flags["transA"] else (m, k), dtype)
    b = g.weight((n, k) if flags["transB"] else (k, n), dtype)
    c = g.weight(g.pick([(n,), (1, n), ()]), dtype) if g.chance(0.7) else None
    y = g.node("Gemm", a, b, c, alpha=g.maybe(0.5, 0.3), beta=g.maybe(2.0, 0.3), **flags)
    g.read_again(y, 0.1)
    op = g.pick(["Relu", "Sigmoid", "Tanh", "LeakyRelu", "HardSigmoid", "Elu"])
    attributes = {"LeakyRelu": {"alpha": g.maybe(0.3)}, "HardSigmoid": {"alpha": g.maybe(0.3), "beta": g.maybe(0.4)}}
    g.output(g.node(op, y, **attributes.get(op, {})))


@generator("fuse_matmul_transpose")
def products(g: GraphMaker) -> None:
    g.special = False
    dtype = g.pick(["float32"] * 8 + ["float64"])
    batch = g.shape(g.int(0, 2), zero=0)
    m, k, n = (g.int(1, 4) for _ in range(3))

    def operand(shape: tuple[int, ...]) -> str:
        kind = g.int(0, 3)
        if kind == 0:
            return g.input(shape, dtype)
        rotated = g.input((*shape[:-2], shape[-1], shape[-2]), dtype, dynamic=g.chance(0.2))
        perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        if kind == 1 and len(shape) > 2 and shape[0] == shape[1]:
            perm = g.permutation(len(shape))
        created = g.node("Transpose", rotated, perm=perm)
        g.read_again(created, 0.1)
        return str(created)

    wide = batch if g.chance(0.8) else batch[g.int(0, len(batch)) :]
    try:
        y = g.node("MatMul", operand((*batch, m, k)), operand((*wide, k, n)))
    except ValueError as error:
        raise Unsuitable(str(error)) from error
    g.read_again(y, 0.05)
    if g.chance(0.6):
        factor = g.const(np.full(g.pick([(), (1,), (1, 1)]), g.pick([0.125, -2.0, 0.0])), dtype)
        y = g.node("Mul", *_either(g, y, factor)) if g.chance(0.7) else g.node("Div", y, factor)
    g.output(g.node("Softmax", y) if g.chance(0.1) else y)


@generator("fuse_skip_layer_normalization")
def residuals(g: GraphMaker) -> None:
    g.special, g.opset = False, g.pick([17, 21, 23, 24])
    shape = (g.int(1, 3), g.int(1, 4), g.int(2, 8))
    dims = ("B", "S", shape[2]) if g.chance(0.3) else shape
    width = shape[-1:]
    x = g.input(shape, dims=dims)
    skip = g.input(shape, dims=dims) if g.chance(0.9) else g.input(width, dynamic=False)
    if g.chance():
        x = g.node("Add", *_either(g, x, g.weight(width)))
        g.read_again(x, 0.1)
    total = g.node("Add", *_either(g, x, skip))
    g.read_again(total, 0.5)
    axis = g.pick([None, -1, -1, 2, 1])
    wide = shape[1:] if axis == 1 else width
    if g.opset >= 23 and g.chance():
        g.output(g.node("RMSNormalization", total, g.weight(wide), axis=axis, epsilon=g.maybe(1e-3)))
        return
    bias = g.weight(wide) if g.chance(0.7) else None
    g.output(g.node("LayerNormalization", total, g.weight(wide), bias, axis=axis, epsilon=g.maybe(1e-3)))


@pytest.mark.parametrize(
    "label",
    [
        "fuse_gelu/contributed_gelu",
        "fuse_fast_gelu",
        "fuse_bias_gelu",
        "fuse_activation_into_gemm",
        "fuse_matmul_transpose",
        "fuse_skip_layer_normalization",
        "fuse_skip_layer_normalization/skip_simplified_layer_normalization",
    ],
)
def test_outputs_stay_equal_for_onnxruntime(label: str) -> None:
    run_many(label, 200, target=TARGET)


GELU = """g (float[2, 8] x) => (float[2, 8] y) {
    s = Add(x, b) d = Div(s, root) e = Erf(d) f = Add(e, one) m = Mul(s, f) y = Mul(m, half) }"""
NUMBERS = {"root": np.float32(2**0.5), "one": np.float32(1), "half": np.float32(0.5), "b": np.ones(8, np.float32)}


def test_a_gelu_written_out_takes_its_bias() -> None:
    assert operators(settled(GELU, **NUMBERS)) == ["BiasGelu"]
    assert operators(settled(GELU, 20, **NUMBERS)) == ["BiasGelu"]


@pytest.mark.parametrize("target", ["portable", "native", "openvino", "tensorrt"])
def test_other_targets_get_operators_of_the_standard(target: str) -> None:
    assert {node.domain for node in settled(GELU, 20, target=target, **NUMBERS).model.graph} == {""}


def test_attention_is_left_to_be_found() -> None:
    engine = settled(
        """g (float[2, 3, 4, 8] q, float[2, 3, 4, 8] k, float[2, 1, 4, 4] m) => (float[2, 3, 4, 4] y) {
            t = Transpose<perm = [0, 1, 3, 2]>(k) a = MatMul(q, t) b = Mul(a, c) d = Add(b, m) y = Softmax(d) }""",
        c=np.float32(0.5),
    )
    assert "FusedMatMul" not in operators(engine)
    assert "attention" in engine.refused["fuse_matmul_transpose/turned_operands", "a"]


def _residual(passes: list[str] | None) -> Engine:
    graph = parser.parse_graph(
        """g (float[2, 3, 8] x, float[2, 3, 8] r) => (float[2, 3, 8] y, float[2, 3, 8] s) {
            s = Add(x, r) y = LayerNormalization(s, w) }"""
    )
    graph.initializer.append(onnx.numpy_helper.from_array(np.ones(8, np.float32), "w"))
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return pipeline.transform(
        model_io.from_proto(proto), pipeline.select(TARGET, passes=passes), Settings(target=TARGET)
    )


def test_residuals_are_joined_where_that_is_asked_for() -> None:
    assert operators(_residual(None)) == ["Add", "LayerNormalization"]
    joined = _residual(["fuse_skip_layer_normalization"])
    assert operators(joined) == ["SkipLayerNormalization"]
    assert [value.name for value in joined.model.graph.outputs] == ["y", "s"]
