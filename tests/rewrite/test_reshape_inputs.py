from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import sardonyx
from sardonyx import demo
from sardonyx.errors import ShapeError
from sardonyx.model import to_proto
from sardonyx.rewrite.evaluate import evaluate

BODY = {
    "reshape": "(float[1, 4, 6] x) => (float[1, 24] y) <int64[2] s = {1, 24}> { y = Reshape(x, s) }",
    "reshape with -1 in the wrong place": (
        "(float[1, 4, 6] x) => (float[1, 24] y) <int64[2] s = {1, -1}> { y = Reshape(x, s) }"
    ),
    "there and back": (
        "(float[1, 4, 6] x) => (float[1, 4, 6] y) <int64[2] s = {4, 6}, int64[3] t = {1, 4, 6}>"
        " { f = Reshape(x, s) g = Exp(f) y = Reshape(g, t) }"
    ),
    "expand beside": (
        "(float[1, 4, 6] x) => (float[1, 5, 6] y) <float[1, 1, 6] c = {1, 2, 3, 4, 5, 6}, int64[3] s = {1, 1, 6}>"
        " { e = Expand(c, s) y = Concat <axis = 1> (x, e) }"
    ),
    "constant of shape": (
        "(float[1, 4, 6] x) => (float[1, 5, 6] y) <int64[3] s = {1, 1, 6}>"
        " { z = ConstantOfShape(s) y = Concat <axis = 1> (z, x) }"
    ),
    "weight beside": (
        "(float[1, 4, 6] x) => (float[1, 5, 6] y) <float[1, 1, 6] c = {1, 2, 3, 4, 5, 6}>"
        " { y = Concat <axis = 1> (c, x) }"
    ),
    "slice to the end": (
        "(float[1, 4, 6] x) => (float[1, 4, 6] y) <int64[1] a = {0}, int64[1] b = {1}> { y = Slice(x, a, b, a) }"
    ),
    "initial state": (
        "(float[1, 4, 6] x) => (float[4, 1, 1, 1] y) <float[1, 3, 6] w = {"
        + ", ".join(str(n / 10) for n in range(18))
        + "}, float[1, 3, 1] r = {0.1, 0.2, 0.3}, float[1, 1, 1] h = {0.5}>"
        " { t = Transpose <perm = [1, 0, 2]> (x) y, u = GRU <hidden_size = 1> (t, w, r, , , h) }"
    ),
    "computed shape with a baked part": (
        "(float[1, 4, 6] x) => (float[1, 6, 4] y) <int64[1] one = {1}, int64[1] k = {2}, int64[1] m = {1}>"
        " { s = Shape(x) a = Gather(s, k) b = Gather(s, m) t = Concat <axis = 0> (one, a, b) y = Reshape(x, t) }"
    ),
}
"""Models with a baked batch of 1."""


def model(body: str, opset: int = 17) -> ir.Model:
    return sardonyx.load(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g {body}'))


def answers(changed: ir.Model, **feeds: np.ndarray) -> dict[str, np.ndarray]:
    proto = to_proto(changed)
    onnx.checker.check_model(proto, full_check=True)
    return evaluate(proto, feeds)


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("body", BODY.values(), ids=BODY)
@pytest.mark.parametrize("size", ["batch", 3])
def test_a_batch_agrees_with_its_samples(body: str, size: int | str) -> None:
    original, changed = model(body), model(body)
    sardonyx.set_batch(changed, size)
    x = drawn(3, 4, 6)
    alone = [answers(original, x=x[i : i + 1])["y"] for i in range(3)]
    together = answers(changed, x=x)["y"]
    axis = next(axis for axis in range(together.ndim) if together.shape[axis] == 3 and alone[0].shape[axis] == 1)
    np.testing.assert_allclose(together, np.concatenate(alone, axis=axis), rtol=1e-6)


@pytest.mark.parametrize("body", BODY.values(), ids=BODY)
def test_replacing_a_number_by_a_number_adds_no_arithmetic(body: str) -> None:
    changed = model(body)
    before = len(changed.graph)
    sardonyx.set_batch(changed, 2)
    assert len(changed.graph) <= before + 1, "an Expand of a weight is all that may be added"


def test_the_output_declares_the_new_size() -> None:
    changed = model(BODY["there and back"])
    sardonyx.set_batch(changed, "batch")
    assert str(changed.graph.outputs[0].shape) == "[batch,4,6]"


def test_height_and_width_are_opened() -> None:
    body = (
        "(float[1, 2, 4, 4] x) => (float[1, 2, 8, 8] y) <int64[3] s = {1, 2, 16}, int64[4] t = {1, 2, 4, 4},"
        " int64[4] u = {1, 2, 8, 8}> { f = Reshape(x, s) g = Relu(f) h = Reshape(g, t)"
        ' y = Resize <mode = "nearest"> (h, , , u) }'
    )
    changed = model(body)
    sardonyx.set_input_shapes(changed, {"x": [1, 2, "H", "W"]})
    x = drawn(1, 2, 3, 5)
    expected = np.maximum(x, 0).repeat(2, axis=2).repeat(2, axis=3)
    np.testing.assert_array_equal(answers(changed, x=x)["y"], expected)
    sardonyx.set_input_shapes(changed, {"x": [1, 2, 6, 2]})
    assert str(changed.graph.inputs[0].shape) == "[1,2,6,2]"


def test_an_open_size_may_have_no_name() -> None:
    changed = model(BODY["reshape"])
    sardonyx.set_input_shapes(changed, {"x": [None, 4, 6]})
    dim = to_proto(changed).graph.input[0].type.tensor_type.shape.dim[0]
    assert dim.WhichOneof("value") is None
    assert answers(changed, x=drawn(5, 4, 6))["y"].shape == (5, 24)


def test_bodies_are_repaired_too() -> None:
    body = (
        "(bool c, float[1, 4] x) => (float[1, 2, 2] y) <int64[3] s = {1, 2, 2}>"
        " { y = If (c) <then_branch = t () => (float[1, 2, 2] p) { p = Reshape(x, s) },"
        " else_branch = e () => (float[1, 2, 2] q) { n = Neg(x) q = Reshape(n, s) }> }"
    )
    changed = model(body)
    sardonyx.set_input_shapes(changed, {"x": ["N", 4]})
    assert answers(changed, x=drawn(3, 4), c=np.array(True))["y"].shape == (3, 2, 2)


def test_a_size_fixed_by_weights_is_refused_with_the_node() -> None:
    body = "(float[1, 4] x) => (float[1, 2] y) <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> { [dense] y = MatMul(x, w) }"
    with pytest.raises(ShapeError, match="dense"):
        sardonyx.set_input_shapes(model(body), {"x": [1, 5]})


def test_learned_positions_are_refused_with_the_node_and_the_weight() -> None:
    body = "(float[1, 3] x) => (float[1, 3] y) <float[1, 3] positions = {1, 2, 3}> { [place] y = Add(x, positions) }"
    with pytest.raises(ShapeError, match=r"place.*positions"):
        sardonyx.set_input_shapes(model(body), {"x": [1, "length"]})


def test_a_model_that_mixes_samples_is_refused() -> None:
    body = "(float[1, 3] x) => (float[1, 3] y) { y = Softmax <axis = 0> (x) }"
    with pytest.raises(ShapeError, match="mixes the samples"):
        sardonyx.set_batch(model(body), "batch")


def test_an_input_that_must_change_too_is_named() -> None:
    body = "(float[2, 3] x, float[2, 3] z) => (float[2, 3] y) { y = Add(x, z) }"
    with pytest.raises(ShapeError, match="input 'z'"):
        sardonyx.set_input_shapes(model(body), {"x": ["N", 3]})
    changed = model(body)
    sardonyx.set_input_shapes(changed, {"x": ["N", 3], "z": ["N", 3]})
    assert answers(changed, x=drawn(4, 3), z=drawn(4, 3))["y"].shape == (4, 3)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"nowhere": [1]}, "nowhere: unknown graph input"),
        ({"x": [1, 4]}, "x: expected 3 sizes, got 2"),
        ({"x": [-2, 4, 6]}, "expected sizes, got -2"),
        ({"x": ["", 4, 6]}, "expected sizes, got ''"),
        ({"x": ["2.5", 4, 6]}, "expected sizes, got '2.5'"),
        ({"x": [2.5, 4, 6]}, "expected sizes, got 2.5"),
    ],
)
def test_invalid_inputs_ranks_and_sizes_are_refused(shapes: dict[str, list[int | str | None]], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        sardonyx.set_input_shapes(model(BODY["reshape"]), shapes)


def test_a_refusal_leaves_the_model_unchanged() -> None:
    whole = model("(float[1, 3] x) => (float[1, 3] y) <float[1, 3] p = {1, 2, 3}> { y = Add(x, p) }")
    before = to_proto(whole)
    with pytest.raises(ShapeError):
        sardonyx.set_input_shapes(whole, {"x": [1, "length"]})
    assert to_proto(whole) == before


def test_different_first_sizes_are_refused_as_batch() -> None:
    body = "(float[1, 3] x, float[2, 3] z) => (float[2, 3] y) { y = Add(x, z) }"
    with pytest.raises(ShapeError, match="same first size"):
        sardonyx.set_batch(model(body), "batch")


def test_make_dynamic_opens_only_free_sizes() -> None:
    body = (
        "(float[1, 3, 8, 8] image) => (float[1, 2, 8, 8] y) <float[2, 3, 1, 1] w = {1, 2, 3, 4, 5, 6}>"
        " { y = Conv(image, w) }"
    )
    changed = model(body)
    assert sardonyx.make_dynamic(changed) == {"image": ["batch", 3, "height", "width"]}
    assert answers(changed, image=drawn(2, 3, 5, 7))["y"].shape == (2, 2, 5, 7)


def test_make_dynamic_opens_only_the_named_axes() -> None:
    body = "(float[1, 3, 8] x) => (float[1, 3, 8] y) <float[3, 1] p = {1, 2, 3}> { [place] y = Add(x, p) }"
    changed = model(body)
    assert sardonyx.make_dynamic(changed, {"x": [-1]}) == {"x": [1, 3, "x_2"]}
    for axes, message in (([0, 1], "place"), ([3], "expected axes of rank 3, got 3")):
        with pytest.raises(ShapeError, match=message):
            sardonyx.make_dynamic(model(body), {"x": axes})


def test_sizes_baked_into_functions_are_repaired() -> None:
    changed = sardonyx.load(
        onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "f": 1]>
        g (bool c, float[1, 6] x) => (float[1, 2, 3] y) {
          k = f.flat(x)
          y = If (c) <then_branch = t () => (float[1, 2, 3] p) { s = Constant <value_ints = [1, 2, 3]> ()
                                                                p = Reshape(k, s) },
                      else_branch = e () => (float[1, 2, 3] q) { q = f.cube(k) }>
        }
        <domain: "f", opset_import: ["": 17]> flat (a) => (b) {
          s = Constant <value_ints = [1, 6]> () b = Reshape(a, s) }
        <domain: "f", opset_import: ["": 17]> cube (a) => (b) {
          s = Constant <value_ints = [1, 2, 3]> () n = Neg(a) b = Reshape(n, s) }""")
    )
    sardonyx.set_input_shapes(changed, {"x": ["N", 6]})
    x = drawn(4, 6)
    for c, sign in ((True, 1), (False, -1)):
        np.testing.assert_array_equal(answers(changed, c=np.array(c), x=x)["y"], sign * x.reshape(4, 2, 3))


def test_make_dynamic_reports_why_no_size_can_be_opened() -> None:
    body = "(float[3] x) => (float[3] y) <float[3] p = {1, 2, 3}> { [place] y = Add(x, p) }"
    with pytest.raises(ShapeError, match="place"):
        sardonyx.make_dynamic(model(body))


def test_optimize_accepts_input_shapes() -> None:
    result = sardonyx.optimize(to_proto(model(BODY["reshape"])), input_shapes={"x": ["N", 4, 6]})
    assert result.report.verdict.status == "proved"
    assert answers(result.model, x=drawn(7, 4, 6))["y"].shape == (7, 24)


def test_sizes_without_baked_constants_are_set() -> None:
    changed = sardonyx.load(demo.path("digits_detector"))
    nodes = len(changed.graph)
    sardonyx.set_input_shapes(changed, {"image": [1, 1, 96, 128]})
    assert len(changed.graph) == nodes
    feeds = {"image": demo.inputs("digits_detector")["image"][:1]}
    expected = evaluate(demo.path("digits_detector"), feeds)
    for name, value in answers(changed, **feeds).items():
        np.testing.assert_array_equal(value, expected[name])


@pytest.mark.parametrize("name", ["sinet", "fastestdet", "ultraface_rfb320_simplified", "dtln_1", "yolox_nano"])
def test_public_models_of_batch_one_are_opened(name: str) -> None:
    folder = os.environ.get("SARDONYX_SUITES")
    if not folder:
        pytest.skip("SARDONYX_SUITES does not name the folder of public test models")
    changed = sardonyx.load(Path(folder) / "real" / f"{name}.onnx")
    sardonyx.set_batch(changed, "batch")
    assert all(value.shape is not None and value.shape[0] == "batch" for value in changed.graph.outputs)


def test_an_unknown_size_written_as_a_negative_number_gets_a_name() -> None:
    changed = model("(float[1, 6] x) => (float[1, 6] y) { y = Relu(x) }")
    for value in (changed.graph.inputs[0], changed.graph.outputs[0]):
        value.shape = ir.Shape([-1, 6])
    sardonyx.set_input_shapes(changed, {"x": ["N", 6]})
    assert answers(changed, x=drawn(3, 6))["y"].shape == (3, 6)


def test_outputs_of_operators_that_inference_does_not_know_keep_their_rank() -> None:
    changed = model("(float[1, 6] x) => (float[1, 6] y) { y = own.Sharpen(x) }")
    changed.graph.opset_imports["own"] = 1
    sardonyx.set_batch(changed, "N")
    shape = changed.graph.outputs[0].shape
    assert shape is not None and len(shape) == 2
