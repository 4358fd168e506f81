"""Shared weights: a smaller file, the same results on two engines, and palettes of small error."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sardonyx
from sardonyx import demo
from sardonyx.compress.clustering.palette import nearest, palette_of
from sardonyx.errors import OptionError, UnsupportedError

CLASSIFIER = demo.path("digits_classifier")


def images() -> np.ndarray:
    with np.load(CLASSIFIER.with_suffix(".npz")) as stored:
        return np.asarray(stored["in::image"])


@pytest.mark.parametrize("bits, share, least", [(4, 0.35, 12.0), (8, 0.5, 30.0)])
def test_the_file_shrinks_and_engines_agree(bits: int, share: float, least: float) -> None:
    pixels = images()
    result = sardonyx.cluster(CLASSIFIER, [{"image": pixels[i : i + 4]} for i in range(0, 48, 4)], bits=bits)
    before, after = result.report.file_bytes
    proto = sardonyx.to_proto(result.model)
    onnx.checker.check_model(proto, full_check=True)
    assert after < share * before
    assert before == CLASSIFIER.stat().st_size and after == len(proto.SerializeToString())
    assert result.report.evidence.judged == "held out"
    assert min(error.sqnr for error in result.report.evidence.outputs) > least
    theirs = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    ours = sardonyx.Session(result.model, compile="wait")
    for expected, actual in zip(
        theirs.run(None, {"image": pixels[:5]}), ours.run(None, {"image": pixels[:5]}), strict=True
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)


def drawn(*shape: int, seed: int = 0) -> onnx.TensorProto:
    values = 0.15 * np.random.default_rng(seed).standard_normal(shape)
    return onnx.numpy_helper.from_array(values.astype(np.float32))


def test_a_file_that_would_grow_by_the_report_is_refused() -> None:
    """A palette of 256 values saves 544 bytes of a weight of 20 x 28, which the nodes and the report take."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 17]>
        net (float[n, 20] x) => (float[n, 28] y) { y = MatMul(x, w) }""")
    tensor = drawn(20, 28)
    tensor.name = "w"
    model.graph.initializer.append(tensor)
    assert sardonyx.cluster(model, bits=4).report.file_bytes[1] < len(model.SerializeToString())
    with pytest.raises(UnsupportedError, match="no file is smaller by palettes"):
        sardonyx.cluster(model, bits=8)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("operator, gates", [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers_and_embeddings_share_weights(operator: str, gates: int, bits: int) -> None:
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 17]>
        net (int64[s, b] tokens) => (float[s, 2, b, 32] y) {{
            x = Gather(table, tokens)
            [cell] y = {operator}<hidden_size = 32, direction = "bidirectional">(x, w, r) }}""")
    weights = {"table": drawn(500, 48), "w": drawn(2, gates * 32, 48), "r": drawn(2, gates * 32, 32)}
    for name, tensor in weights.items():
        tensor.name = name
        model.graph.initializer.append(tensor)
    result = sardonyx.cluster(model, bits=bits)
    assert {layer.name for layer in result.report.layers} >= {"cell[W]", "cell[R]"}
    assert not any(layer.reason for layer in result.report.layers)
    before, after = result.report.file_bytes
    assert after < (0.3 if bits == 4 else 0.45) * before
    feeds = {"tokens": np.random.default_rng(0).integers(0, 500, (7, 3))}
    proto = sardonyx.to_proto(result.model)
    onnx.checker.check_model(proto, full_check=True)
    theirs = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    actual = sardonyx.Session(result.model, compile="wait").run(None, feeds)[0]
    np.testing.assert_allclose(actual, theirs.run(None, feeds)[0], rtol=1e-3, atol=1e-4)
    original = sardonyx.Session(model, compile="wait").run(None, feeds)[0]
    assert np.square(actual - original).mean() < (0.1 if bits == 4 else 1e-3) * np.square(original).mean()


def test_layers_with_one_weight_share_a_palette() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 17]>
        net (float[b, 64] x) => (float[b, 64] y) {
            [first] a = MatMul(x, w) b = Tanh(a) [second] y = MatMul(b, w) }""")
    model.graph.initializer.append(drawn(64, 64))
    model.graph.initializer[0].name = "w"
    result = sardonyx.cluster(model, bits=4)
    assert [(layer.name, layer.values, layer.reason) for layer in result.report.layers] == [
        ("first", 16, ""), ("second", 16, ""),
    ]  # fmt: skip
    onnx.checker.check_model(sardonyx.to_proto(result.model), full_check=True)


def test_weights_of_bodies_are_shared() -> None:
    branch = """{ w = Constant<value = float[1, 1] {1}>() h = MatMul(x, w) }"""
    model = onnx.parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 17]>
        net (bool c, float[b, 64] x) => (float[b, 64] y) {{
            y = If(c) <then_branch = first () => (float[b, 64] h) {branch},
                       else_branch = second () => (float[b, 64] k) {{ k = MatMul(x, v) }}> }}""")
    then, other = (attribute.g for attribute in model.graph.node[0].attribute)
    then.node[0].attribute[0].t.CopyFrom(drawn(64, 64))
    other.initializer.append(drawn(64, 64, seed=1))
    other.initializer[0].name = "v"
    result = sardonyx.cluster(model, bits=4)
    assert [layer.reason for layer in result.report.layers] == ["", ""]
    proto = sardonyx.to_proto(result.model)
    onnx.checker.check_model(proto, full_check=True)
    assert result.report.file_bytes[1] < 0.35 * result.report.file_bytes[0]
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    theirs = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    ours = sardonyx.Session(result.model, compile="wait")
    for condition in (True, False):
        feeds = {"c": np.array(condition), "x": x}
        np.testing.assert_allclose(ours.run(None, feeds)[0], theirs.run(None, feeds)[0], rtol=1e-4, atol=1e-5)


def test_options_and_models_without_gain_are_refused() -> None:
    with pytest.raises(OptionError, match="4 or 8"):
        sardonyx.cluster(CLASSIFIER, bits=3)
    operators = {node.op_type for node in sardonyx.load(CLASSIFIER).graph} & {"Conv", "Gemm", "MatMul"}
    with pytest.raises(UnsupportedError, match="no weight is smaller"):
        sardonyx.cluster(CLASSIFIER, exclude=sorted(operators))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([2, 4, 16, 256]))
def test_a_palette_is_no_worse_than_equal_steps(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(500) * rng.choice([0.1, 1.0, 3.0], 500)
    palette = palette_of(values, np.ones(500), count)
    assert len(palette) <= count and (np.diff(palette) > 0).all()
    steps = np.linspace(values.min(), values.max(), count).astype(np.float32)
    errors = [np.square(values - one[nearest(values, one)]).sum() for one in (palette, steps)]
    assert errors[0] <= errors[1] * 1.02 + 1e-6


def test_few_distinct_elements_are_exact() -> None:
    values = np.repeat([-1.0, 0.5, 2.0], 10)
    palette = palette_of(values, np.ones(30), 4)
    np.testing.assert_array_equal(palette[nearest(values, palette)], values)
    assert palette_of(np.full(5, 3.0), np.ones(5), 16).tolist() == [3.0]


def test_inputs_of_zeros_weigh_the_elements_of_a_weight_equally() -> None:
    values = np.linspace(-1, 1, 64)
    expected = palette_of(values, np.ones(64), 4)
    for weights in (np.zeros(64), np.full(64, np.inf)):
        np.testing.assert_array_equal(palette_of(values, weights, 4), expected)
