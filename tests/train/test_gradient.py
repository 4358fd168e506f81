"""Gradients of models equal differences, in Sardonyx and in ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import sardonyx
from sardonyx.errors import OptionError, SardonyxError
from tests.train.networks import classifier, regression

IMAGE = np.random.default_rng(2).random((3, 1, 8, 8)).astype(np.float32)


def answers(model: Any, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return outputs by name; Sardonyx and ONNX Runtime agree, and the model passes the full checker."""
    proto = sardonyx.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    names = [output.name for output in proto.graph.output]
    ours = sardonyx.Session(model, compile="wait").run(None, feeds)
    theirs = onnxruntime.InferenceSession(proto.SerializeToString()).run(names, feeds)
    for name, a, b in zip(names, ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5, err_msg=name)
    return dict(zip(names, theirs, strict=True))


def test_gradients_by_inputs_weights_and_inner_tensors_equal_differences() -> None:
    result = answers(sardonyx.gradient(classifier(), "logits", ["image", "conv1.weight", "f"]), {"image": IMAGE})
    assert set(result) == {"logits", "image_gradient", "conv1.weight_gradient", "f_gradient"}
    head = onnx.numpy_helper.to_array(
        next(w for w in onnx.load_model_from_string(classifier()).graph.initializer if w.name == "head.weight")
    )
    np.testing.assert_allclose(result["f_gradient"], np.tile(head.sum(0), (3, 1)), rtol=1e-5)
    direction = np.random.default_rng(1).standard_normal(IMAGE.shape).astype(np.float32)
    session = sardonyx.Session(classifier(), compile="off")
    ahead, behind = (
        session.run(None, {"image": (IMAGE + e * direction).astype(np.float32)})[0].sum(dtype=np.float64)
        for e in (1e-3, -1e-3)
    )
    assert (result["image_gradient"] * direction).sum() == pytest.approx((ahead - behind) / 2e-3, rel=2e-2)


def test_derivatives_keep_the_names_of_parameters() -> None:
    result = sardonyx.gradient(classifier(), "logits", ["image"])
    own = {w.name for w in onnx.load_model_from_string(classifier()).graph.initializer if len(w.dims) > 1}
    assert {"conv1.weight", "head.weight"} <= own <= set(result.graph.initializers)
    again = sardonyx.gradient(result, "image_gradient", ["head.weight"])
    product = sardonyx.gradient(classifier(), "logits", ["head.weight", "image"], kind="hvp")
    head = np.zeros(result.graph.initializers["head.weight"].shape.numpy(), np.float32)
    tangents = {"image_tangent": np.ones_like(IMAGE), "head.weight_tangent": head}
    np.testing.assert_allclose(
        answers(again, {"image": IMAGE})["head.weight_gradient"],
        answers(product, {"image": IMAGE} | tangents)["head.weight_product"],
        rtol=1e-4,
        atol=1e-5,
    )


def test_products_with_the_jacobian_agree_from_both_sides() -> None:
    rng = np.random.default_rng(4)
    v, u = rng.standard_normal(IMAGE.shape).astype(np.float32), rng.standard_normal((3, 3)).astype(np.float32)
    forward = answers(
        sardonyx.gradient(classifier(), "logits", ["image"], kind="jvp"), {"image": IMAGE, "image_tangent": v}
    )
    backward = answers(
        sardonyx.gradient(classifier(), "logits", ["image"], kind="vjp"), {"image": IMAGE, "logits_cotangent": u}
    )
    assert (forward["logits_tangent"] * u).sum() == pytest.approx((backward["image_gradient"] * v).sum(), rel=1e-4)


def test_products_with_the_hessian_are_those_of_a_square() -> None:
    from onnx import TensorProto, helper

    nodes = [helper.make_node("Mul", ["x", "x"], ["s"]), helper.make_node("Mul", ["s", "x"], ["y"])]
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "cube", value[:1], value[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    x, v = np.array([1.0, -2.0, 3.0], np.float32), np.array([1.0, 0.5, -1.0], np.float32)
    result = answers(sardonyx.gradient(model, wrt=["x"], kind="hvp"), {"x": x, "x_tangent": v})
    np.testing.assert_allclose(result["x_product"], 6 * x * v, rtol=1e-5)


def test_gradients_of_samples_sum_to_the_gradient() -> None:
    names = ["head.weight", "conv1.bias"]
    whole = answers(sardonyx.gradient(classifier(), "logits", names), {"image": IMAGE})
    rows = answers(sardonyx.gradient(classifier(), "logits", names, kind="per-sample"), {"image": IMAGE})
    for name in names:
        assert rows[f"{name}_gradient"].shape == (3, *whole[f"{name}_gradient"].shape)
        np.testing.assert_allclose(rows[f"{name}_gradient"].sum(0), whole[f"{name}_gradient"], rtol=1e-4, atol=1e-5)


def test_the_operator_form_answers_as_the_portable_form() -> None:
    x = {"x": np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)}
    portable = answers(sardonyx.gradient(regression(), wrt=["w"]), x)
    node = sardonyx.gradient(regression(), wrt=["w"], form="operator")
    assert [node.op_type for node in node.graph][-1] == "Gradient"
    (actual,) = sardonyx.Session(node, compile="wait").run(["w_gradient"], x)
    np.testing.assert_allclose(actual, portable["w_gradient"], rtol=1e-6)


@pytest.mark.parametrize(
    "arguments, match",
    [
        ({"of": "logit"}, "Did you mean logits"),
        ({"wrt": ["imag"]}, "Did you mean image"),
        ({"wrt": []}, "at least one"),
        ({"kind": "jvp", "wrt": ["f"]}, "inner tensor"),
        ({"kind": "vjp", "form": "operator"}, "form"),
    ],
)
def test_impossible_derivatives_are_refused(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises((OptionError, SardonyxError), match=match):
        sardonyx.gradient(classifier(), **arguments)


def test_gradients_flow_through_sequences_of_known_tensors() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17]> g (float[4] x) => (float y) {
      i = Constant <value = int64 {1}> ()
      squared = Mul (x, x)
      parts = SequenceConstruct (x, squared)
      one = SequenceAt (parts, i)
      doubled = Add (one, one)
      longer = SequenceInsert (parts, doubled)
      all = ConcatFromSequence <axis = 0> (longer)
      y = ReduceSum <keepdims = 0> (all)
    }""")
    x = np.array([1.0, -2.0, 3.0, 0.5], np.float32)
    result = answers(sardonyx.gradient(model, wrt=["x"]), {"x": x})
    np.testing.assert_allclose(result["x_gradient"], 1 + 6 * x)


def test_a_sequence_of_unknown_content_is_refused_by_name() -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17]> g (float[N] x, int64 i) => (float y) {
      k = Constant <value = int64 {2}> ()
      parts = SplitToSequence (x, k)
      fewer = SequenceErase (parts, i)
      all = ConcatFromSequence <axis = 0> (fewer)
      y = ReduceSum <keepdims = 0> (all)
    }""")
    with pytest.raises(SardonyxError, match="all"):
        sardonyx.gradient(model, wrt=["x"])


@pytest.mark.parametrize("attributes", ["strides = [2, 2]", "strides = [2, 2], pads = [1, 1, 1, 1]"])
def test_the_gradient_of_a_convolution_of_unnamed_sizes_is_compiled(attributes: str) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        net (float[?, ?, ?, ?] x, float[?, ?, ?, ?] w) => (float[?, ?, ?, ?] y) {{ y = Conv <{attributes}> (x, w) }}"""
    )
    session = sardonyx.Session(sardonyx.gradient(model, of="y", wrt=["w"]), compile="wait")
    assert [note.name for note in session.answerers if note.answers] == ["native"]


@pytest.mark.parametrize("operator", ["ReduceMax", "ReduceMin"])
def test_extrema_of_no_elements_have_an_empty_gradient(operator: str) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 18]> net (float[N, M] x) => (float[N] y)
        {{ a = Constant <value_ints = [1]> () y = {operator} <keepdims = 0> (x, a) }}"""
    )
    session = sardonyx.Session(sardonyx.gradient(model, of="y", wrt=["x"]))
    assert session.run(["x_gradient"], {"x": np.zeros((3, 0), np.float32)})[0].shape == (3, 0)
    x = np.array([[1, 5, 5], [2, 1, 2]], np.float32) * (1 if operator == "ReduceMax" else -1)
    assert session.run(["x_gradient"], {"x": x})[0].tolist() == [[0, 1, 0], [1, 0, 0]]
    x[0, 1:] = np.nan  # The first of several.
    assert session.run(["x_gradient"], {"x": x})[0].tolist() == [[0, 1, 0], [1, 0, 0]]


_EXTREMES = np.array([-1e5, -200, -89, -20, 0, 20, 89, 200, 1e5], np.float32)


def _logistic(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x.astype(np.float64)))


@pytest.mark.parametrize("compile", ["off", "wait"])
@pytest.mark.parametrize(
    ("operator", "derivative"),
    [
        ("Sigmoid", lambda x: _logistic(x) * _logistic(-x)),
        ("Swish", lambda x: _logistic(x) * (1 + x * _logistic(-x))),
        ("Softplus", _logistic),
        ("Celu", lambda x: np.exp(np.minimum(x, 0))),
    ],
)
def test_saturated_activations_have_finite_gradients(operator: str, derivative: Any, compile: Any) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 11, opset_import: ["": 24]> net (float[N] x) => (float[N] y) {{ y = {operator} (x) }}"""
    )
    session = sardonyx.Session(sardonyx.gradient(model, of="y", wrt=["x"]), compile=compile)
    (actual,) = session.run(["x_gradient"], {"x": _EXTREMES})
    np.testing.assert_allclose(actual, derivative(_EXTREMES), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("compile", ["off", "wait"])
def test_gradients_of_saturated_logistics_have_all_digits(compile: Any) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 11, opset_import: ["": 24]> net (float[N] x) => (float[N] y) { y = Sigmoid (x) }"""
    )
    session = sardonyx.Session(sardonyx.gradient(model, of="y", wrt=["x"]), compile=compile)
    x = np.linspace(-80, 80, 321, dtype=np.float32)
    (actual,) = session.run(["x_gradient"], {"x": x})
    np.testing.assert_allclose(actual, _logistic(x) * _logistic(-x), rtol=2e-6)


@pytest.mark.parametrize("compile", ["off", "wait"])
@pytest.mark.parametrize(
    "node",
    ["ReduceL2 (x, axes)", "LpNormalization <axis = 1, p = 1> (x)", "LpNormalization <axis = 1, p = 2> (x)",
     "LpPool <kernel_shape = [3]> (u)", "GlobalLpPool <p = 3> (u)", "MeanVarianceNormalization <axes = [1]> (x)"],
)  # fmt: skip
def test_norms_of_zeros_have_zero_gradients(node: str, compile: Any) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 11, opset_import: ["": 24]> net (float[2, 3] x) => (y) {{
            axes = Constant <value_ints = [1]> ()
            u = Unsqueeze (x, axes)
            y = {node}
        }}"""
    )
    gradient = sardonyx.gradient(model, of="y", wrt=["x"])
    x = np.array([[0, 0, 0], [1, -2, 2]], np.float32)
    (actual,) = sardonyx.Session(gradient, compile=compile).run(["x_gradient"], {"x": x})
    assert np.isfinite(actual).all()
    np.testing.assert_array_equal(actual[0], 0)
    tangents = sardonyx.gradient(model, of="y", wrt=["x"], kind="jvp")
    (moved,) = sardonyx.Session(tangents, compile=compile).run(["y_tangent"], {"x": x, "x_tangent": np.ones_like(x)})
    assert np.isfinite(moved).all()
    assert np.any(actual[1]) or node[:4] in ("LpNo", "Mean")


@pytest.mark.parametrize("size", [0, 1, 2])
def test_second_derivatives_of_small_determinants(size: int) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 11, opset_import: ["": 24]> net (float[N, N] x) => (float y) { y = Det (x) }"""
    )
    rng = np.random.default_rng(size)
    x, v = (rng.standard_normal((size, size)).astype(np.float32) for _ in range(2))
    curved = sardonyx.gradient(model, of="y", wrt=["x"], kind="hvp")
    (actual,) = sardonyx.Session(curved).run(["x_product"], {"x": x, "x_tangent": v})
    expected = np.zeros_like(v)
    if size == 2:  # The Hessian of ad - bc.
        expected = np.array([[v[1, 1], -v[1, 0]], [-v[0, 1], v[0, 0]]])
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


@pytest.mark.parametrize("compile", ["off", "wait"])
def test_a_row_of_zeros_that_is_normalized_has_a_gradient(compile: Any) -> None:
    """The row stays as it is, so its slope is 1."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21, "ai.onnx.ml": 3]> net (float[2, 3] x) => (y) {
            y = ai.onnx.ml.Normalizer <norm = "L2"> (x)
        }"""
    )
    gradient = sardonyx.gradient(model, of="y", wrt=["x"])
    x = np.array([[0, 0, 0], [1, -2, 2]], np.float32)
    (actual,) = sardonyx.Session(gradient, compile=compile).run(["x_gradient"], {"x": x})
    np.testing.assert_array_equal(actual[0], 1)
    assert np.isfinite(actual).all()
