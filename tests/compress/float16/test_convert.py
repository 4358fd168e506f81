"""Guarantees of the conversion, one small model per case."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from sardonyx import model as model_io
from sardonyx.compress.float16 import convert_bfloat16, convert_float16
from sardonyx.errors import OptionError, UnsupportedError

from .loading import converted, element_type, operators, parse, run

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


def same_outputs(model: onnx.ModelProto, feeds: dict[str, np.ndarray], **options: object) -> onnx.ModelProto:
    proto, _ = converted(model, **options)
    for expected, actual in zip(run(model, feeds), run(proto, feeds), strict=True):
        np.testing.assert_allclose(
            np.asarray(actual, np.float64), np.asarray(expected, np.float64), rtol=4e-3, atol=4e-3
        )
    return proto


def test_a_simple_model_has_no_cast_and_unchanged_names():
    model = parse("g (float[3,4] x) => (float[3,4] y) { a = Exp(x) y = Tanh(a) }")
    proto = same_outputs(model, {"x": X})
    assert operators(proto) == ["Exp", "Tanh"]
    assert (element_type(proto, "x"), element_type(proto, "y")) == ("FLOAT16", "FLOAT16")


def test_the_source_model_is_not_changed():
    model = parse("g (float[3,4] x) => (float[3,4] y) <float[4] w = {1, 2, 3, 4}> { y = Mul(x, w) }")
    before = model.SerializeToString()
    graph = model_io.load(model)
    convert_float16(model)
    convert_float16(graph)
    assert model.SerializeToString() == before
    assert model_io.to_proto(graph).SerializeToString() == before


def test_inputs_and_outputs_stay_in_float32_on_request():
    model = parse("g (float[3,4] x, float[3,4] z) => (float[3,4] y, float[3,4] a) { a = Add(x, z) y = Exp(a) }")
    feeds = {"x": X, "z": X}
    proto = same_outputs(model, feeds, keep_io_types=True)
    assert [element_type(proto, name) for name in "xzya"] == ["FLOAT"] * 4
    proto = same_outputs(model, feeds, keep_io_types=["x", "y"])
    assert [element_type(proto, name) for name in "xzya"] == ["FLOAT", "FLOAT16", "FLOAT", "FLOAT16"]


def test_adjacent_float32_nodes_share_values_without_casts():
    model = parse("g (float[3,4] x) => (float[3,4] y) { a = Exp(x) b = Log(a) c = Exp(b) y = Tanh(c) }")
    proto = same_outputs(model, {"x": X}, op_block_list=["Exp", "Log"])
    assert operators(proto) == ["Cast", "Exp", "Log", "Exp", "Cast", "Tanh"]


def test_one_cast_serves_all_readers_of_a_value():
    model = parse("g (float[3,4] x) => (float[3,4] y) { a = Exp(x) b = Tanh(x) y = Add(a, b) }")
    assert operators(same_outputs(model, {"x": X}, op_block_list=["Exp", "Tanh"])).count("Cast") == 3


def test_movement_between_float32_nodes_is_not_rounded():
    model = parse("g (float[3,4] x) => (float[4,3] y) { a = Exp(x) b = Transpose<perm = [1, 0]>(a) y = Log(b) }")
    proto = same_outputs(model, {"x": X}, op_block_list=["Exp", "Log"])
    assert operators(proto) == ["Cast", "Exp", "Transpose", "Log", "Cast"]


def test_a_node_is_blocked_by_its_name_or_first_output():
    model = parse("g (float[3,4] x) => (float[3,4] y) { [first] a = Exp(x) y = Tanh(a) }")
    _, report = converted(model, node_block_list=["first", "y"])
    assert [(node.name, node.op_type) for node in report.float32_nodes] == [("first", "Exp"), ("y", "Tanh")]


@pytest.mark.parametrize("option", ["node_block_list", "keep_io_types"])
def test_an_unknown_name_is_refused(option):
    model = parse("g (float[3,4] x) => (float[3,4] y) { y = Exp(x) }")
    with pytest.raises(OptionError, match=f"{option}.*absent"):
        convert_float16(model, **{option: ["absent"]})
    with pytest.raises(OptionError, match=option):
        convert_float16(model, **{option: "x"})


def test_a_weight_read_in_both_types_is_duplicated_and_unrounded():
    model = parse(
        "g (float[3,4] x) => (float[3,4] y) <float[4] w = {0.1, 0.2, 0.3, 0.4}> { [a] a = Mul(x, w) y = Add(a, w) }"
    )
    proto = same_outputs(model, {"x": X}, node_block_list=["a"])
    assert [element_type(proto, name) for name in ("w", "w_float16")] == ["FLOAT", "FLOAT16"]
    np.testing.assert_array_equal(numpy_helper.to_array(proto.graph.initializer[0]), np.float32([0.1, 0.2, 0.3, 0.4]))


def test_an_overridable_weight_is_not_duplicated():
    model = parse("g (float[3,4] x, float[4] w) => (float[3,4] y) { [a] a = Mul(x, w) y = Add(a, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "w"))
    proto, _ = converted(model, node_block_list=["a"])
    assert [tensor.name for tensor in proto.graph.initializer] == ["w"]
    feeds = {"x": X, "w": np.float32([1, 2, 3, 4])}
    np.testing.assert_allclose(run(proto, feeds)[0].astype(np.float32), run(model, feeds)[0], rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize(
    "constant",
    ["value = float[2] {1.5, 2.5}", "value_floats = [1.5, 2.5]", "value_float = 1.5"],
)
def test_constants_are_converted_in_every_form(constant):
    model = parse(f"g (float[3,2] x) => (float[3,2] y) {{ c = Constant<{constant}>() y = Mul(x, c) }}")
    assert operators(same_outputs(model, {"x": X.reshape(3, 4)[:, :2].copy()})) == ["Constant", "Mul"]


def test_clipped_tensors_are_reported_by_name():
    model = parse(
        "g (float[3,4] x) => (float[3,4] y) <float[4] w = {1e-20, -1e30, 0, 1}> "
        "{ c = Constant<value = float[1] {70000}>() a = Mul(x, w) y = Add(a, c) }"
    )
    proto, report = converted(model)
    assert [(c.name, c.raised, c.lowered) for c in report.clipped] == [("w", 1, 1), ("c", 0, 1)]
    np.testing.assert_array_equal(numpy_helper.to_array(proto.graph.initializer[0]), np.float16([1e-7, -1e4, 0, 1]))


def test_type_attributes_are_rewritten():
    model = parse(
        "g (float[3,4] x, int64[2] s) => (float[3,4] y) "
        "{ a = ConstantOfShape(s) b = RandomNormalLike<scale = 0.0001>(x)"
        " c = RandomUniform<shape = [3, 4], high = 0.0001>()"
        " i = Cast<to = 7>(x) d = Cast<to = 1>(i) y = Sum(x, a, b, c, d) }"
    )
    proto = same_outputs(model, {"x": X, "s": np.array([3, 4])}, op_block_list=["RandomNormalLike", "RandomUniform"])
    assert operators(proto).count("Cast") == 5


@pytest.mark.parametrize(
    "generator",
    [
        "a = RandomNormal<shape = [3, 4]>()",
        "a = RandomUniform<shape = [3, 4]>()",
        "a = RandomNormalLike(x)",
        "a = Bernoulli(p)",
        "a = EyeLike(x)",
        "a = MeanVarianceNormalization<axes = [0]>(x)",
        "four = Size(p) a = HannWindow(four)",
        "four = Size(p) a = HammingWindow(four)",
        "four = Size(p) a = BlackmanWindow(four)",
        "four = Size(p) a = MelWeightMatrix(four, four, rate, low, high)",
    ],
)
def test_generators_of_floats_are_converted(generator):
    model = parse(
        "g (float[3,4] x, float[4] p) => (float[N,M] y) "
        "<int64 rate = {8000}, float low = {100}, float high = {2000}> "
        f"{{ {generator} b = Add(x, a) c = Add(b, p) y = Tanh(c) }}",
        opset=17,
    )
    converted(model)


def test_a_redundant_cast_is_removed():
    model = parse(
        "g (float[3,4] x) => (float[3,4] y) { a = Cast<to = 10>(x) b = Tanh(a) c = Cast<to = 1>(b) y = Exp(c) }"
    )
    assert operators(same_outputs(model, {"x": X})) == ["Tanh", "Exp"]


def test_resize_converts_its_image_and_not_its_scales():
    model = parse(
        'g (float[1,1,3,4] x) => (float[1,1,6,8] y) <float[4] s = {1, 1, 2, 2}> { y = Resize<mode = "linear">(x, , s) }'
    )
    proto = same_outputs(model, {"x": X.reshape(1, 1, 3, 4)})
    assert operators(proto) == ["Resize"]
    assert element_type(proto, "s") == "FLOAT"


@pytest.mark.parametrize(
    "body",
    [
        "v, i = TopK(x, k) y = Identity(v)",
        "y = CumSum(x, axis)",
        "y = Max(x, x, x)",
        "y, i = Dropout(x)",
        "a = LayerNormalization(x, w) y = Add(a, w)",
        "y, m, s = LayerNormalization(x, w)",
        "q = Cast<to = 1>(k) y = Mul(x, q)",
        "e = EyeLike(x) y = Add(x, e)",
        "y = MeanVarianceNormalization<axes = [0]>(x)",
        'u = Unsqueeze(k, axis) y = ScatterElements<reduction = "add">(x, j, z)',
    ],
)
def test_operators_with_special_type_rules_are_converted(body):
    model = parse(
        "g (float[3,4] x) => (float[N,M] y) "
        "<int64[1] k = {2}, int64 axis = {0}, float[4] w = {1, 2, 3, 4}, int64[1,1] j = {2}, float[1,1] z = {0.5}> "
        f"{{ {body} }}"
    )
    same_outputs(model, {"x": X})


def test_a_size_computed_in_float_stays_exact():
    model = parse(
        "g (float[1,N] x) => (float[M] y) <int64[1] one = {1}, float[1] f = {0.5}> "
        "{ s = Shape(x) n = Gather(s, one) a = Cast<to = 1>(n) b = Mul(a, f) c = Floor(b) d = Cast<to = 7>(c)"
        " y = ConstantOfShape(d) }"
    )
    proto, report = converted(model)
    assert run(proto, {"x": np.zeros((1, 5001), np.float32)})[0].shape == (2500,)
    assert {node.op_type for node in report.float32_nodes} == {"Cast", "Mul", "Floor"}


def test_quantized_regions_stay_in_float32():
    model = parse(
        "g (float[3,4] x) => (float[3,4] y) <float s = {0.00001}, uint8 z = {128}> "
        "{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) r = Relu(d) p = QuantizeLinear(r, s, z)"
        " e = DequantizeLinear(p, s, z) y = Tanh(e) }",
        opset=19,
    )
    proto, _ = converted(model)
    assert operators(proto) == [
        "Cast", "QuantizeLinear", "DequantizeLinear", "Relu", "QuantizeLinear", "DequantizeLinear", "Cast", "Tanh",
    ]  # fmt: skip


def test_scales_of_quantized_weights_are_converted_if_representable():
    text = (
        "g (float[3,2] x) => (float[3,2] y) <int8[2,2] q = {1, 2, 3, 4}, float s = {%s}> "
        "{ w = DequantizeLinear(q, s) y = MatMul(x, w) }"
    )
    assert operators(converted(parse(text % "0.01", opset=21))[0]) == ["DequantizeLinear", "MatMul"]
    assert operators(converted(parse(text % "0.000001", opset=21))[0]) == ["DequantizeLinear", "Cast", "MatMul"]


def test_sequences_are_converted_if_all_elements_can_be():
    text = (
        "g (float[3,4] x) => (float[3,2] y) <int64 two = {2}, int64 one = {1}> "
        "{ s = SplitToSequence<axis = 1>(x, two) y = SequenceAt(s, one) }"
    )
    assert operators(same_outputs(parse(text), {"x": X})) == ["SplitToSequence", "SequenceAt"]
    blocked = same_outputs(parse(text), {"x": X}, op_block_list=["SequenceAt"])
    assert operators(blocked) == ["Cast", "SplitToSequence", "SequenceAt", "Cast"]


def test_an_operator_without_a_schema_stays_in_float32_between_casts():
    model = parse("g (float[3,4] x) => (float[3,4] y) { a = Exp(x) b = local.Unknown(a) y = Tanh(b) }", opset=17)
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [3, 4]))
    proto = model_io.to_proto(convert_float16(model).model)
    assert operators(proto) == ["Exp", "Cast", "Unknown", "Cast", "Tanh"]


def test_without_inference_nodes_of_unknown_type_stay_in_float32():
    model = parse("g (float[3,4] x) => (float[3,4] y) { a = Exp(x) b = Log(a) y = Tanh(b) }")
    proto, _ = converted(model, disable_shape_infer=True)
    assert operators(proto) == ["Cast", "Exp", "Log", "Tanh", "Cast"]
    assert operators(converted(onnx.shape_inference.infer_shapes(model), disable_shape_infer=True)[0]) == [
        "Exp", "Log", "Tanh",
    ]  # fmt: skip


def test_a_model_without_standard_operators_imports_them_for_casts():
    node = onnx.helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[0.5], scale=[2.0])
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3, 4]) for name in "xy"]
    graph = onnx.helper.make_graph([node], "g", value[:1], value[1:])
    imports = [onnx.helper.make_opsetid("ai.onnx.ml", 1)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=6)
    assert operators(same_outputs(model, {"x": X})) == ["Cast", "Scaler", "Cast"]


def test_a_sparse_weight_is_cast():
    model = parse("g (float[3,4] x) => (float[3,4] y) { y = Mul(x, w) }")
    values = numpy_helper.from_array(np.float32([3]), "w")
    sparse = onnx.helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1])), [4])
    model.graph.sparse_initializer.append(sparse)
    proto = model_io.to_proto(convert_float16(model).model)
    assert operators(proto) == ["Cast", "Mul"]
    assert proto.graph.sparse_initializer[0].values.data_type == onnx.TensorProto.FLOAT


def test_bfloat16_converts_the_same_values():
    model = parse(
        "g (float[3,4] x) => (float[3,4] y) <float[4] w = {1e-30, 3.4e38, 1, 2}> { a = Exp(x) y = Mul(a, w) }"
    )
    conversion = convert_bfloat16(model, op_block_list=["Exp"])
    proto = model_io.to_proto(conversion.model)
    onnx.checker.check_model(proto, full_check=True)
    assert operators(proto) == ["Cast", "Exp", "Cast", "Mul"]
    assert element_type(proto, "w") == element_type(proto, "y") == "BFLOAT16"
    assert [(c.raised, c.lowered) for c in conversion.clipped] == [(0, 1)]


def test_bfloat16_requires_operator_set_13():
    with pytest.raises(UnsupportedError, match="13"):
        convert_bfloat16(parse("g (float[3,4] x) => (float[3,4] y) { y = Exp(x) }", opset=12))


def test_weights_are_converted_on_first_access():
    model = parse("g (float[3,4] x) => (float[3,4] y) <float[4] w = {1, 2, 3, 4}> { y = Mul(x, w) }")
    weight = convert_float16(model).model.graph.initializers["w"].const_value
    assert isinstance(weight, ir.LazyTensor)
    assert weight.numpy().dtype == np.float16
