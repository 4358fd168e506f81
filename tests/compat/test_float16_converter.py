"""The drop-in has the names, signatures and results of onnxconverter_common.float16."""

import inspect
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from sardonyx.compat import float16_converter
from sardonyx.errors import SardonyxError

SIGNATURES = {
    "convert_np_to_float16": "(np_array, min_positive_val=1e-07, max_finite_val=10000.0)",
    "convert_tensor_float_to_float16": "(tensor, min_positive_val=1e-07, max_finite_val=10000.0)",
    "make_value_info_from_tensor": "(tensor)",
    "convert_float_to_float16": "(model, min_positive_val=1e-07, max_finite_val=10000.0, keep_io_types=False, "
    "disable_shape_infer=False, op_block_list=None, node_block_list=None, check_fp16_ready=True)",
    "convert_float_to_float16_model_path": "(model_path, min_positive_val=1e-07, max_finite_val=10000.0, "
    "keep_io_types=False)",
    "check_if_fp16_ready": "(graph_proto)",
}


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')


def plain() -> onnx.ModelProto:
    return model(
        "g (float[3,4] x) => (float[3,4] y) <float[4] w = {1, 2, 3, 4}> { [exp] a = Exp(x) [mul] y = Mul(a, w) }"
    )


def operators(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_equal_the_originals(name):
    signature = inspect.signature(getattr(float16_converter, name))
    bare = signature.replace(
        parameters=[p.replace(annotation=p.empty) for p in signature.parameters.values()],
        return_annotation=signature.empty,
    )
    assert str(bare) == SIGNATURES[name]


def test_conversion_preserves_sign_and_finiteness():
    array = np.float32([0, -0.0, 1e-9, -1e-9, 1e5, -1e5, np.inf, -np.inf, np.nan, 0.1])
    with pytest.warns(UserWarning, match="truncated"):
        result = float16_converter.convert_np_to_float16(array)
    np.testing.assert_array_equal(result, np.float16([0, 0, 1e-7, -1e-7, 1e4, -1e4, np.inf, -np.inf, np.nan, 0.1]))
    assert result.dtype == np.float16


def test_an_array_in_range_causes_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        float16_converter.convert_np_to_float16(np.float32([1e-7, 1e4, 0]))


@pytest.mark.parametrize("raw", [True, False])
def test_a_tensor_is_converted_in_place(raw):
    values = np.float32([[1, 2], [3, 4.5]])
    tensor = numpy_helper.from_array(values, "t") if raw else helper.make_tensor("t", 1, (2, 2), values.ravel())
    assert float16_converter.convert_tensor_float_to_float16(tensor) is tensor
    assert bool(tensor.raw_data) == raw
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), values.astype(np.float16))
    info = float16_converter.make_value_info_from_tensor(tensor)
    assert info == helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT16, [2, 2])


def test_a_tensor_of_another_type_is_unchanged():
    tensor = numpy_helper.from_array(np.arange(3), "t")
    before = tensor.SerializeToString()
    assert float16_converter.convert_tensor_float_to_float16(tensor).SerializeToString() == before


def test_conversion_returns_a_new_model():
    original = plain()
    before = original.SerializeToString()
    result = float16_converter.convert_float_to_float16(original)
    assert isinstance(result, onnx.ModelProto)
    assert original.SerializeToString() == before
    assert result.graph.initializer[0].data_type == onnx.TensorProto.FLOAT16
    onnx.checker.check_model(result, full_check=True)


@pytest.mark.parametrize("keep", [True, ["x", "y"]])
def test_inputs_and_outputs_stay_in_float32_on_request(keep):
    result = float16_converter.convert_float_to_float16(plain(), keep_io_types=keep)
    assert operators(result) == ["Cast", "Exp", "Mul", "Cast"]
    x = np.float32([[1, 2, 3, 4]] * 3)
    session = onnxruntime.InferenceSession(result.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], np.exp(x) * [1, 2, 3, 4], rtol=3e-3)


def test_the_default_block_list_equals_the_originals():
    text = model("g (float[3,4] x) => (float[3,4] y) { a = Max(x, x) y = Exp(a) }")
    assert operators(float16_converter.convert_float_to_float16(text)) == ["Cast", "Max", "Cast", "Exp"]
    assert operators(float16_converter.convert_float_to_float16(text, op_block_list=[])) == ["Max", "Exp"]


def test_nodes_are_blocked_by_name_and_unknown_names_cause_warnings():
    assert operators(float16_converter.convert_float_to_float16(plain(), node_block_list=["exp"])) == [
        "Cast", "Exp", "Cast", "Mul",
    ]  # fmt: skip
    with pytest.warns(UserWarning, match="absent"):
        float16_converter.convert_float_to_float16(plain(), node_block_list=["absent"])


def test_limits_are_applied_and_clipped_tensors_cause_warnings():
    with pytest.warns(UserWarning, match=r"w: .*2 above 2"):
        result = float16_converter.convert_float_to_float16(plain(), max_finite_val=2, min_positive_val=0.5)
    np.testing.assert_array_equal(numpy_helper.to_array(result.graph.initializer[0]), np.float16([1, 2, 2, 2]))


def test_without_inference_only_declared_types_are_used():
    assert "Cast" in operators(float16_converter.convert_float_to_float16(plain(), disable_shape_infer=True))


def test_a_float16_model_is_refused_by_default():
    once = float16_converter.convert_float_to_float16(plain())
    assert float16_converter.check_if_fp16_ready(once.graph)
    assert not float16_converter.check_if_fp16_ready(plain().graph)
    with pytest.raises(ValueError, match="check_fp16_ready"):
        float16_converter.convert_float_to_float16(once)
    again = float16_converter.convert_float_to_float16(once, check_fp16_ready=False)
    assert again.SerializeToString() == once.SerializeToString()


def test_a_model_file_is_converted(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(plain(), path, save_as_external_data=True, location="weights", size_threshold=0)
    result = float16_converter.convert_float_to_float16_model_path(str(path), keep_io_types=True)
    assert (
        result.SerializeToString()
        == float16_converter.convert_float_to_float16(plain(), keep_io_types=True).SerializeToString()
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda: float16_converter.convert_float_to_float16("model.onnx"),
        lambda: float16_converter.convert_tensor_float_to_float16(np.zeros(3)),
    ],
)
def test_wrong_argument_types_are_value_errors_and_sardonyx_errors(call):
    with pytest.raises(ValueError, match=r"expected an onnx\.") as caught:
        call()
    assert isinstance(caught.value, SardonyxError)
