"""Attention and integer products for ONNX Runtime: random graphs, and whole models that it runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, parser

import sardonyx
from tests.rewrite.fuzz import GraphMaker, generator, run_many
from tests.rewrite.rules.onnxruntime_target import TARGET


def _either(g: GraphMaker, a: str, b: str) -> tuple[str, str]:
    return (a, b) if g.chance() else (b, a)


def _projection(g: GraphMaker, x: str, width: int, size: int) -> str:
    y = g.node("MatMul", x, g.weight((width, size)))
    g.read_again(y, 0.03)
    return g.node("Add", *_either(g, y, g.weight((size,)))) if g.chance(0.7) else y


@generator("fuse_projected_attention")
def projected_attentions(g: GraphMaker) -> None:
    g.opset, g.special = g.pick([12, 13, 17, 20, 22]), False
    batch, heads, length, size, wide, width = (g.int(1, 3) for _ in range(6))
    shape = (batch, length, width)
    x = g.input(shape, dims=("B", "L", width) if g.chance(0.5) else shape)
    other = g.input(shape, dims=("B", "L", width)) if g.chance(0.1) else x
    wide = size if g.chance(0.6) else wide
    parts = [_projection(g, x, width, heads * size), _projection(g, other, width, heads * size)]
    parts.append(_projection(g, x, width, heads * wide))
    q, k, v = (g.node("Reshape", part, g.ints(0, 0, heads, -1)) for part in parts)
    scores = g.node("MatMul", g.node("Transpose", q, perm=[0, 2, 1, 3]), g.node("Transpose", k, perm=[0, 2, 3, 1]))
    if g.chance():
        scores = g.node("Mul", scores, g.const(0.5, "float32"))
    if g.chance():
        lead = g.pick([(), (1,), (heads,), (1, 1), (batch, 1), (batch, heads)])
        mask = np.where(g.rng.random((*lead, g.pick([1, length]), length)) < 0.3, -1e4, 0).astype(np.float32)
        added = g.const(mask) if g.chance() else g.input(mask.shape, values=mask, dynamic=False)
        scores = g.node("Add", *_either(g, scores, added))
    p = g.node("Softmax", scores, axis=-1) if g.opset >= 13 else g.node("Softmax", scores, axis=3)
    g.read_again(p, 0.03)
    y = g.node("MatMul", p, g.node("Transpose", v, perm=[0, 2, 1, 3]))
    g.output(g.node("Reshape", g.node("Transpose", y, perm=[0, 2, 1, 3]), g.ints(0, 0, heads * wide)))


@generator("fuse_integer_product")
def integer_products(g: GraphMaker) -> None:
    g.opset, g.special = g.pick([11, 13, 17, 21]), False
    rows, inner, columns = (g.int(1, 4) for _ in range(3))
    shape = (*g.pick([(), (2,)]), rows, inner)
    x = g.input(shape, dims=("N", *shape[1:]) if g.chance(0.4) else shape)
    quantized, scale, zero = g.node("DynamicQuantizeLinear", x, n_outputs=3)
    if g.chance(0.15):
        g.output(quantized)
    kind = g.pick(["int8", "uint8"])
    w = g.const(g.rng.integers(0, 100, (inner, columns)), kind)
    w_zero = g.const(g.rng.integers(0, 5, g.pick([(), (1,), (columns,)])), kind) if g.chance(0.6) else None
    w_scale = g.const(g.rng.uniform(0.01, 0.1, g.pick([(), (1,), (columns,), (1, columns)])), "float32")
    product = g.node("MatMulInteger", quantized, w, zero, w_zero)
    real = g.node("Cast", product, to=onnx.TensorProto.FLOAT)
    g.read_again(real, 0.05)
    if g.chance(0.6):
        y = g.node("Mul", *_either(g, real, g.node("Mul", *_either(g, scale, w_scale))))
    else:
        first, second = _either(g, scale, w_scale)
        y = g.node("Mul", *_either(g, g.node("Mul", *_either(g, real, first)), second))
    g.read_again(y, 0.1)
    bias = g.weight(g.pick([(columns,), (columns,), (1, columns), ()]))
    g.output(g.node("Add", *_either(g, y, bias)) if g.chance(0.7) else y)


@pytest.mark.parametrize("label", ["fuse_projected_attention", "fuse_integer_product"])
def test_outputs_stay_equal_for_onnxruntime(label: str) -> None:
    run_many(label, 200, target=TARGET)


_ATTENTION = """g (float[B, L, 24] x{inputs}) => (float[B, L, 24] y) {{
    {before}
    mq = MatMul(x, wq) aq = Add(mq, bq) rq = Reshape(aq, part) q = Transpose<perm = [0, 2, 1, 3]>(rq)
    mk = MatMul(x, wk) ak = Add(mk, bk) rk = Reshape(ak, part) k = Transpose<perm = [0, 2, 3, 1]>(rk)
    mv = MatMul(x, wv) av = Add(mv, bv) rv = Reshape(av, part) v = Transpose<perm = [0, 2, 1, 3]>(rv)
    d = MatMul(q, k) s = Mul(d, scale) {masked} p = Softmax<axis = -1>(m)
    o = MatMul(p, v) t = Transpose<perm = [0, 2, 1, 3]>(o) y = Reshape(t, join) }}"""
_RNG = np.random.default_rng(0)
_NUMBERS = {
    "part": np.array([0, 0, 3, 8]),
    "join": np.array([0, 0, 24]),
    "scale": np.float32(8**-0.5),
    "axes": np.array([1, 2]),
    "one": np.float32(1),
    "low": np.float32(-10000),
    **{f"w{name}": _RNG.standard_normal((24, 24)).astype(np.float32) / 5 for name in "qkv"},
    **{f"b{name}": _RNG.standard_normal(24).astype(np.float32) for name in "qkv"},
}
_BERT_MASK = "u = Unsqueeze(mask, axes) c = Cast<to = 1>(u) h = Sub(one, c) z = Mul(h, low)"
_LAYER = """g (float[N, 24] x) => (float[N, 24] y) {
    q, qs, qz = DynamicQuantizeLinear(x) i = MatMulInteger(q, w, qz, wz) f = Cast<to = 1>(i)
    p = Mul(qs, ws) m = Mul(f, p) y = Add(m, b) }"""
_SHARED = """g (float[N, 24] x) => (float[N, 24] y, float[N, 24] z) {
    q, qs, qz = DynamicQuantizeLinear(x) i = MatMulInteger(q, w, qz, wz) f = Cast<to = 1>(i)
    p = Mul(qs, ws) m = Mul(f, p) y = Add(m, b)
    j = MatMulInteger(q, w, qz, wz) g = Cast<to = 1>(j) r = Mul(qs, b) z = Mul(g, r) }"""
_RMS = """g (float[N, 24] x) => (float[N, 24] y) {
    s = Pow(x, two) m = ReduceMean<axes = [-1]>(s) a = Add(m, low) r = Sqrt(a) d = Div(x, r) y = Mul(d, b) }"""
_INTEGERS = {
    "w": _RNG.integers(0, 255, (24, 24)).astype(np.uint8),
    "ws": np.float32(0.01),
    "wz": np.uint8(120),
    "b": _RNG.standard_normal(24).astype(np.float32),
}


@pytest.mark.parametrize(
    ("text", "constants", "left"),
    [
        (_ATTENTION.format(inputs="", before="", masked="m = Identity(s)"), _NUMBERS, ["Attention"]),
        (
            _ATTENTION.format(inputs=", int64[B, L] mask", before=_BERT_MASK, masked="m = Add(s, z)"),
            _NUMBERS,
            ["Unsqueeze", "Cast", "Sub", "Mul", "Shape", "Concat", "Expand", "Attention"],
        ),
        (_LAYER, _INTEGERS, ["DynamicQuantizeMatMul"]),
        (_SHARED, _INTEGERS, ["DynamicQuantizeLinear", "MatMulIntegerToFloat", "MatMulIntegerToFloat"]),
    ],
    ids=["attention", "masked attention", "dynamic product", "shared quantization"],
)
def test_onnxruntime_runs_the_proved_result(text: str, constants: dict[str, np.ndarray], left: list[str]) -> None:
    graph = parser.parse_graph(text)
    read = {name for node in graph.node for name in node.input}
    tensors = [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph.initializer.extend(tensor for tensor in tensors if tensor.name in read)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    result = sardonyx.optimize(proto, target=TARGET)
    assert result.report.verdict.status == "proved"
    written = result.proto
    onnx.checker.check_model(written, full_check=True)
    assert [node.op_type for node in written.graph.node] == left
    rng = np.random.default_rng(1)
    feeds = {"x": rng.standard_normal([2, 5, 24][-len(graph.input[0].type.tensor_type.shape.dim) :]).astype(np.float32)}
    if len(graph.input) > 1:
        feeds["mask"] = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, feeds)
    actual = onnxruntime.InferenceSession(written.SerializeToString()).run(None, feeds)
    for before, after in zip(expected, actual, strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-5)


def test_onnxruntime_fuses_the_root_mean_square_that_is_left(tmp_path: Path) -> None:
    # SimplifiedLayerNormalization is in the domain of the standard, whose checker refuses the operator: below operator
    # set 23 the written form stays, in a form that the engine fuses when it loads the model.
    graph = parser.parse_graph(_RMS)
    numbers = {"two": np.float32(2), "low": np.float32(1e-5), "b": _INTEGERS["b"]}
    graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in numbers.items())
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    result = sardonyx.optimize(proto, target=TARGET)
    onnx.checker.check_model(result.proto, full_check=True)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    onnxruntime.InferenceSession(result.proto.SerializeToString(), options)
    loaded = onnx.load(options.optimized_model_filepath)
    assert [node.op_type for node in loaded.graph.node] == ["SimplifiedLayerNormalization"]
