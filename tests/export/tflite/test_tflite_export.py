"""Models as TensorFlow Lite files: our own reader and the LiteRT interpreter (if installed) give the same answers."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, parser

import sardonyx
from sardonyx import model as model_io
from sardonyx.convert.tflite import translate
from sardonyx.convert.tflite.file import parse
from sardonyx.errors import UnsupportedError
from sardonyx.export.tflite.writer import written
from sardonyx.rewrite.analysis import inference
from sardonyx.rewrite.evaluate import ReferenceRunner

LITERT = importlib.util.find_spec("ai_edge_litert") is not None

GRAPHS = {
    "elementwise": "agraph (float[N,4] x, float[4] y) => (float[N,4] z) {"
    " a = Add(x, y) b = Sigmoid(a) c = Mul(b, x) d = Softplus(c) e = Erf(d) f = Atan(e) g = Asinh(x) h = Sub(f, g)"
    " z = Elu <alpha: float = 0.5> (h) }",
    "softmax over channels": "agraph (float[N,3,5,5] x) => (float[N,3,5,5] z) { z = Softmax <axis: int = 1> (x) }",
    "shape arithmetic": "agraph (float[N,T,6] x) => (float[N,T,2,3] z) <int64[1] zero = {0}, int64[1] one = {1},"
    " int64[2] heads = {2, 3}> { s = Shape(x) n = Gather(s, zero) t = Gather(s, one) r = Concat <axis: int = 0>"
    " (n, t, heads) z = Reshape(x, r) }",
    "slices": "agraph (float[N,8,6] x) => (float[N,3,6] z) <int64[1] start = {7}, int64[1] end = {1},"
    " int64[1] axis = {1}, int64[1] step = {-2}> { z = Slice(x, start, end, axis, step) }",
    "gather below zero": "agraph (float[N,5] x, int64[3] i) => (float[N,3] z) { z = Gather <axis: int = 1> (x, i) }",
    "scatter": "agraph (float[4,3] x, int64[2,1] i, float[2,3] u) => (float[4,3] z) { z = ScatterND(x, i, u) }",
    "top": "agraph (float[N,7] x, int64[1] k) => (float[N,K] v, int64[N,K] i) {"
    " v, i = TopK <largest: int = 0> (x, k) }",
    "branches": "agraph (float[N,3] x, bool c) => (float[N,3] z) { y = Relu(x) z = If (c) <then_branch = t () =>"
    " (float[N,3] a) { a = Add(x, y) }, else_branch = e () => (float[N,3] b) { b = Neg(x) }> }",
    "loop": "agraph (float[N,3] x, int64 n) => (float[N,3] z, float[K,N,3] rows) <bool yes = {1}> { z, rows = Loop (n,"
    " yes, x) <body = b (int64 i, bool going, float[N,3] s) => (bool on, float[N,3] next, float[N,3] row) {"
    " on = Identity(going) next = Add(s, x) row = Mul(s, s) }> }",
    "recurrence": "agraph (float[T,N,3] x) => (float[T,1,N,2] z) <float[1,8,3] w = {1, -1, 0.5, 0.2, 0.1, -0.4, 1, 1,"
    " -1, 0.3, 0.3, 0.3, 0, 0.7, 0.7, -0.2, 0.1, 0.9, 0.5, 0.4, 0.3, 0.2, 0.1, 0.6}, float[1,8,2] r = {0.1, 0.2, 0.3,"
    " 0.4, 0.5, 0.6, 0.7, 0.8, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8}> { z, h, c = LSTM <hidden_size: int = 2>"
    " (x, w, r) }",
    "positions": "agraph (float[N,6] x) => (int64[N] z) { z = ArgMax <axis: int = 1, keepdims: int = 0> (x) }",
    "layer norm": "agraph (float[N,T,4] x, float[4] s, float[4] b) => (float[N,T,4] z)"
    " { z = LayerNormalization (x, s, b) }",
    "attention product": "agraph (float[N,2,5,4] q, float[N,2,4,5] k) => (float[N,2,5,5] z) { z = MatMul(q, k) }",
    "channels to pixels": "agraph (float[N,8,3,3] x) => (float[N,2,6,6] z)"
    ' { z = DepthToSpace <blocksize: int = 2, mode: string = "CRD"> (x) }',
    "whole division": "agraph (float[N,T] x) => (float[N,M] z) <int64 two = {2}, int64 one = {1}, int64[1] zero = {0},"
    " int64[1] axis = {1}, int64[1] unit = {1}> { s = Shape <start: int = 1> (x) h = Div(s, unit) q = Div(s, two)"
    " z = Slice(x, zero, q, axis) }",
}
"""Graphs in the text form of ONNX, by the law that each shows."""

SIZES = {"N": (2, 1), "T": (3, 5), "K": (2, 4), "M": (1, 2)}


def model_of(name: str) -> onnx.ModelProto:
    model = helper.make_model(parser.parse_graph(GRAPHS[name]), opset_imports=[helper.make_opsetid("", 21)])
    model.ir_version = 10
    return model


def feeds_for(model: onnx.ModelProto, number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    feeds: dict[str, Any] = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [d.dim_value or SIZES[d.dim_param][number] for d in kind.shape.dim]
        if kind.elem_type == TensorProto.FLOAT:
            feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
        elif kind.elem_type == TensorProto.BOOL:
            feeds[value.name] = np.asarray(number == 0)
        else:
            numbers = rng.permutation(4)[: int(np.prod(shape))].reshape(shape)
            feeds[value.name] = np.asarray(numbers % 3 + 1 if value.name in "nk" else numbers - 2, np.int64)
    return feeds


def file_of(model: onnx.ModelProto) -> bytes:
    loaded = model_io.load(model)
    inference.infer_shapes(loaded, strict=False)
    result = written(loaded)
    assert not result.refused, result.refused
    return result.data


def read_back(data: bytes, folder: Path) -> ReferenceRunner:
    model_io.save(translate(data).model(), folder / "back.onnx")
    return ReferenceRunner(folder / "back.onnx")


@pytest.mark.parametrize("name", GRAPHS)
def test_a_file_read_back_gives_the_same_answers_at_other_sizes(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    source, back = ReferenceRunner(model), read_back(file_of(model), tmp_path)
    for number in (0, 1):
        feeds = feeds_for(model, number)
        expected, actual = source.run(feeds), back.run(feeds)
        for output in expected:
            assert expected[output].dtype == actual[output].dtype
            np.testing.assert_allclose(actual[output], expected[output], rtol=2e-5, atol=2e-6, err_msg=output)


@pytest.mark.skipif(not LITERT, reason="needs ai-edge-litert (sardonyx[tflite])")
@pytest.mark.parametrize("name", GRAPHS)
def test_the_interpreter_proves_a_file(name: str) -> None:
    model = model_of(name)
    report = sardonyx.convert_to(model, "tflite", inputs=feeds_for(model, 0)).report
    assert report.verdict.status == "proved", report.verdict


def convolution(rng: np.random.Generator, **attributes: Any) -> onnx.ModelProto:
    groups, rank = attributes["group"], len(attributes["strides"])
    channels, out = 2 * groups, 3 * groups
    w = rng.standard_normal((out, channels // groups, *[3] * rank)).astype(np.float32)
    sizes = ["N", channels, *[9] * rank]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], **attributes), helper.make_node("Relu", ["y"], ["z"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_every_padding_of_a_convolution_is_the_same(data: Any) -> None:
    rank = data.draw(st.sampled_from([1, 2]))
    integers = st.integers(1, 2)
    attributes = {
        "group": data.draw(st.sampled_from([1, 2])),
        "strides": data.draw(st.lists(integers, min_size=rank, max_size=rank)),
        "dilations": data.draw(st.lists(integers, min_size=rank, max_size=rank)),
        "pads": data.draw(st.lists(st.integers(0, 2), min_size=2 * rank, max_size=2 * rank)),
    }
    model = convolution(np.random.default_rng(0), **attributes)
    x = np.random.default_rng(1).standard_normal((2, 2 * attributes["group"], *[9] * rank)).astype(np.float32)
    back = translate(file_of(model)).model()
    expected = ReferenceRunner(model).run({"x": x})["z"]
    actual = ReferenceRunner(model_io.to_proto(back)).run({"x": x})["z"]
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_neighbouring_convolutions_share_their_layout() -> None:
    model = convolution(np.random.default_rng(0), group=1, strides=[1, 1], dilations=[1, 1], pads=[1] * 4)
    second = numpy_helper.from_array(np.ones((3, 3, 3, 3), np.float32), "v")
    model.graph.initializer.append(second)
    model.graph.node.append(helper.make_node("Conv", ["z", "v"], ["u"], pads=[1] * 4))
    model.graph.output[0].name = "u"
    names = [operator.name for operator in parse(file_of(model)).subgraphs[0].operators]
    assert names == ["TRANSPOSE", "CONV_2D", "CONV_2D", "TRANSPOSE"]


def quantized_layer() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    constants = {
        "s": np.float32(0.05), "z": np.uint8(120), "w": rng.integers(-90, 90, (4, 3, 3, 3)).astype(np.int8),
        "ws": rng.uniform(0.01, 0.02, 4).astype(np.float32), "wz": np.zeros(4, np.int8),
        "b": rng.integers(-900, 900, 4).astype(np.int32), "os": np.float32(0.1), "oz": np.uint8(3),
    }  # fmt: skip
    constants["bs"] = constants["ws"] * constants["s"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xr"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wr"], axis=0),
        helper.make_node("DequantizeLinear", ["b", "bs"], ["br"], axis=0),
        helper.make_node("Conv", ["xr", "wr", "br"], ["y"], pads=[1] * 4),
        helper.make_node("Relu", ["y"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "os", "oz"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "os", "oz"], ["u"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 6, 6])],
        [helper.make_tensor_value_info("u", TensorProto.FLOAT, ["N", 4, 6, 6])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_a_quantized_convolution_is_one_operator_over_codes(tmp_path: Path) -> None:
    model = quantized_layer()
    data = file_of(model)
    (layer,) = [op for op in parse(data).subgraphs[0].operators if op.name == "CONV_2D"]
    tensors = parse(data).subgraphs[0].tensors
    assert [tensors[i].type for i in (*layer.inputs, *layer.outputs)] == ["INT8", "INT8", "INT32", "INT8"]
    x = np.random.default_rng(1).uniform(-5, 6, (2, 3, 6, 6)).astype(np.float32)
    expected = ReferenceRunner(model).run({"x": x})["u"]
    actual = read_back(data, tmp_path).run({"x": x})["u"]
    assert np.abs(actual - expected).max() <= 0.1001  # One code of the result.


def test_a_refusal_names_the_operator_and_the_rule() -> None:
    text = "agraph (double[3,3] x, string[2] s) => (double[3,3] y, string[2] u) { y = Exp(x) u = StringConcat(s, s) }"
    model = helper.make_model(parser.parse_graph(text), opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    loaded = model_io.load(model)
    inference.infer_shapes(loaded, strict=False)
    rules = " | ".join(f"{one.node} {one.operator} {one.rule}" for one in written(loaded).refused)
    assert "'x' " in rules and "double" in rules and "StringConcat" in rules
    with pytest.raises(UnsupportedError, match="StringConcat"):
        sardonyx.convert_to(model, "tflite")


def test_an_operator_newer_than_the_format_is_refused_beforehand() -> None:
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["": 26]> net (float[2,3] x) => (int32[2,3] y) { y = BitCast <to = 6> (x) }'
    )
    with pytest.raises(UnsupportedError, match="not convertible to tflite: BitCast"):
        sardonyx.convert_to(model, "tflite")
    (finding,) = sardonyx.check(model, target="tflite")
    assert (finding.code, finding.where.op_type) == ("target-form", "BitCast")


def test_a_tflite_file_survives_two_conversions(tmp_path: Path) -> None:
    from tests.convert.tflite.tflite_files import convolution as tflite_convolution

    data = tflite_convolution(np.random.default_rng(0))
    first = translate(data).model()
    inference.infer_shapes(first, strict=False)
    again = written(first)
    assert not again.refused
    x = np.random.default_rng(2).standard_normal((2, 5, 6, 3)).astype(np.float32)
    name = str(first.graph.inputs[0].name)
    model_io.save(first, tmp_path / "first.onnx")
    (expected,) = ReferenceRunner(tmp_path / "first.onnx").run({name: x}).values()
    (actual,) = read_back(again.data, tmp_path).run({name: x}).values()
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
