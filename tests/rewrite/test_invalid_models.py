"""Rules and opset conversion on nodes that no run reaches: they refuse by name, or leave the node as it is."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from sardonyx import Session, optimize
from sardonyx.errors import InvalidModelError, SardonyxError

TWICE = "{ s = Slice (x, zero, one, %s)  y = Slice (s, zero, one, zero) }"
INVALID = {
    "slices of a scalar": "g (float x) => (float y) <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}>"
    + TWICE % "two",
    "a slice along axis 2 of 2": "g (float[2, 2] x) => (float y)"
    "<int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}>" + TWICE % "two",
    "a padded convolution, axis 4 of 4": "g (float[1, 1, 4, 4] x, float[1, 1, 2, 2] w) => (float y)"
    "<int64[2] pads = {1, 1}, int64[1] axes = {4}> { p = Pad (x, pads, , axes)  y = Conv (p, w) }",
    "a split and joined scalar": "g (float x) => (float y) { a, b = Split (x)  y = Concat <axis = 0> (a, b) }",
    "a crop of three borders": "g (float[1, 1, 4, 4] x) => (float y) { y = Crop <border = [1, 2, 1]> (x) }",
    "crops of a scalar": "g (float x) => (float y) { y = Crop <border = [1, 2, 1, 3]> (x) }",
}


@pytest.mark.parametrize("text", INVALID.values(), ids=INVALID)
def test_no_rule_fails_at_an_axis_out_of_range(text: str) -> None:
    opset = 1 if "Crop" in text else 18 if "axes)" in text else 13
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
    optimized = optimize(model, verify=False)
    assert [drop.reason for drop in optimized.report.dropped] == []
    feeds = {
        value.name: np.zeros([dim.dim_value for dim in value.type.tensor_type.shape.dim], np.float32)
        for value in model.graph.input
    }
    for proto in (model, optimized.proto):
        with pytest.raises(SardonyxError) as raised:
            Session(proto, compile="off").run(None, feeds)
        assert not isinstance(raised.value.__cause__, (IndexError, ZeroDivisionError))


def test_a_cast_to_an_unknown_type_is_refused_by_name() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 1]> g (float[2] x) => (float[2] y) { y = Cast <to = "decimal"> (x) }'
    )
    with pytest.raises(InvalidModelError, match="unknown element type 'decimal'"):
        optimize(model, opset=13, verify=False)


@pytest.mark.parametrize("values", ["x, x", "x, c"])
def test_an_if_refuses_a_condition_of_several_elements(values: str) -> None:
    yes, no = values.split(", ")
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g (bool[N] k, float[4] x) => (float[4] y)
        <float[4] c = {{1, 2, 3, 4}}> {{
        y = If (k) <then_branch = yes () => (float[4] a) {{ a = Identity ({yes}) }},
                    else_branch = no () => (float[4] b) {{ b = Identity ({no}) }}>
        }}"""
    )
    for proto in (model, optimize(model, verify=False).proto):
        for mode in ("off", "wait"):
            with pytest.raises(SardonyxError):
                Session(proto, compile=mode).run(None, {"k": np.ones(4, bool), "x": np.ones(4, np.float32)})


def test_an_optional_whose_type_is_another_attribute_is_refused_by_name() -> None:
    node = onnx.helper.make_node("Optional", [], ["y"], type=onnx.numpy_helper.from_array(np.ones(2, bool)))
    graph = onnx.helper.make_graph([node], "g", [], [onnx.helper.make_empty_tensor_value_info("y")])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 15)], ir_version=8)
    optimize(model, verify=False)
    with pytest.raises(InvalidModelError, match="expected a type"):
        Session(model, compile="off").run(None, {})


def test_a_block_beyond_all_sizes_is_no_error_of_onnx() -> None:
    text = "(int32[A, B, C, D] x) => (int32[E, F, G, H] y) { y = DepthToSpace <blocksize = 1000000000000> (x) }"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 28]> g {text}')
    for target in ("portable", "onnxruntime"):
        optimize(model, verify=False, target=target)


@pytest.mark.parametrize("text", [
    "(int8[N] x) => (int8[N] y) <float s = {0.5}> { y = DequantizeLinear (x, s) }",
    "(uint8[1, 1, 3] x, uint8[1, 1, 2] w) => (uint8[1, 1, 2] y) { y = ConvInteger (x, w) }",
])  # fmt: skip
def test_an_output_declared_with_another_element_type_stays(text: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g {text}')
    declared = model.graph.output[0].type.tensor_type.elem_type
    for target in ("portable", "onnxruntime"):
        output = optimize(model, verify=False, target=target).proto.graph.output[0]
        assert output.type.tensor_type.elem_type == declared


def test_a_declared_element_type_inside_a_model_determines_nothing() -> None:
    text = "(float[2] x, int64[K] k) => (int64[L] y) <int32[4] r> { r = Reshape (x, k)  y = Shape (r) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')
    feeds = {"x": np.ones(2, np.float32), "k": np.array([1, 2])}
    for mode in ("off", "wait"):
        assert Session(model, compile=mode, log_severity=4).run(None, feeds)[0].tolist() == [1, 2]


DECLARED = {
    "slice": ("(float[5] x, int64[1] k) => (float[5] y) <int64[1] s = {0}> { y = Slice (x, s, k) }", [2]),
    "slice and layer": (
        "(float[5] x, int64[1] k) => (float[5] y) <int64[1] s = {0}, float[5] r> { r = Slice (x, s, k)  y = Relu (r) }",
        [2],
    ),
    "number of slices": ("(float[2] x, int64[K] k) => (float[2] y) { y = Slice (x, k, k) }", [1]),
    "resize": ("(float[1, 1, 2, 2] x, float[4] k) => (float[1, 1, 2, 2] y) { y = Resize (x, , k) }", [1, 1, 2, 2]),
    "resize of a scalar": ("(float x, float[K] k) => (float y) { y = Resize (x, , k) }", [2]),
    "reshape": ("(float[2, 3] x, int64[K] k) => (float[2, 3] y) { y = Reshape (x, k) }", [3, 2]),
    "reshape of a scalar": ("(float x, int64[K] k) => (float y) { y = Reshape (x, k) }", [1, 1]),
    "sizes of a result": (
        "(float[2] x, int64[K] k) => (int64[K] y) <int64[1, 3] r> { r = NonZero (k)  y = Shape (r) }",
        [5, 7],
    ),
    "sizes of a reshape": (
        "(float[6] x, int64[K] k) => (int64[L] y) <float[2, 3] r> { r = Reshape (x, k)  y = Shape (r) }",
        [3, 2],
    ),
    "rank of a reshape": (
        "(float[6] x, int64[K] k) => (int64[L] y) <float[2, 3] r> { r = Reshape (x, k)  y = Shape (r) }",
        [1, 2, 3],
    ),
    "squeeze": ("(float x, int64[K] k) => (float y) { y = Squeeze (x, k) }", [0]),
}


@pytest.mark.parametrize(("text", "data"), DECLARED.values(), ids=DECLARED)
def test_a_wrong_declaration_of_a_size_that_depends_on_data_changes_no_answer(text: str, data: list[int]) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    is_float = model.graph.input[1].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    feeds = {"x": np.ones(shape, np.float32), "k": np.array(data, np.float32 if is_float else np.int64)}
    sessions = [
        lambda: Session(model, compile="off"),
        lambda: Session(model, compile="wait"),
        lambda: Session(optimize(model, verify=False).proto, compile="off"),
    ]
    answers = []
    for make in sessions:
        try:
            answers.append(make().run(None, feeds)[0].tolist())
        except SardonyxError as error:
            answers.append(type(error))
    assert answers[1:] == answers[:1] * 2
