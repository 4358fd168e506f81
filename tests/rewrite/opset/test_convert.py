"""Properties of ``convert_opset`` as a whole: names, types, scopes, errors."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from sardonyx import model as model_io
from sardonyx.errors import InvalidModelError, OpsetConversionError, OptionError
from sardonyx.rewrite.opset import convert_opset, decompose
from tests.rewrite.opset.models import BRANCHES, FUNCTION, SOFTMAX
from tests.rewrite.opset.running import assert_same_answers, convert, draw, parse


def test_the_original_is_unchanged() -> None:
    model = model_io.from_proto(parse(SOFTMAX))
    before = model_io.to_proto(model).SerializeToString(deterministic=True)
    convert_opset(model, 9)
    assert model_io.to_proto(model).SerializeToString(deterministic=True) == before


def test_the_same_operator_set_changes_nothing() -> None:
    proto = model_io.to_proto(model_io.from_proto(parse(SOFTMAX)))
    proto.ir_version = 7
    assert convert(proto, 13) == proto


@pytest.mark.parametrize("opset", [1, 5, 6, 8, 11, 12, 14, 21, 26])
def test_softmax_over_a_middle_axis_means_the_same_everywhere(opset: int) -> None:
    proto = parse(SOFTMAX)
    converted = convert(proto, opset)
    assert converted.opset_import[0].version == opset
    assert_same_answers(proto, converted, draw(proto))


@pytest.mark.parametrize("opset", [17, 12, 10, 21])
@pytest.mark.parametrize("condition", [True, False])
def test_bodies_are_converted(opset: int, condition: bool) -> None:
    proto = parse(BRANCHES)
    assert_same_answers(proto, convert(proto, opset), draw(proto) | {"c": np.asarray(condition)})


@pytest.mark.parametrize("opset", [17, 12, 21])
def test_functions_are_converted_without_inlining(opset: int) -> None:
    proto = parse(FUNCTION)
    converted = convert(proto, opset)
    assert [f.name for f in converted.functions] == ["center"]
    assert {entry.version for entry in converted.functions[0].opset_import if not entry.domain} == {opset}
    assert_same_answers(proto, converted, draw(proto))


def test_a_function_is_converted_with_the_types_common_to_its_callers() -> None:
    proto = parse(FUNCTION)
    converted = convert(proto, 10)
    assert_same_answers(proto, converted, draw(proto))


def test_names_of_an_inlined_function_yield_to_names_of_bodies() -> None:
    proto = parse("""
        <ir_version: 8, opset_import: ["" : 9, "own" : 1]>
        agraph (bool c, float[2, 6] x, float[2, 3, 4] z) => (float[2, 6] y, float[2, 3, 4] u) {
          k = own.larger(x)
          u = own.larger(z)
          y = If (c) <then_branch = yes () => (float[2, 6] p) { s = Exp(k) p = Mul(k, s) },
                      else_branch = no () => (float[2, 6] q) { q = Neg(k) }>
        }
        <domain: "own", opset_import: ["" : 9]> larger (a) => (b) { s = Exp(a) m = Greater(s, a) b = Where(m, s, a) }
    """)
    converted = convert(proto, 8)
    assert not converted.functions, "Where has no equal that fits both callers"
    onnx.checker.check_model(converted, full_check=True)
    assert_same_answers(proto, converted, draw(proto) | {"c": np.asarray(True)})


@pytest.mark.parametrize("opset", [21, 9])
def test_the_ir_version_suffices_for_the_operator_set(opset: int) -> None:
    needed = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", opset)])
    assert convert(parse(SOFTMAX), opset).ir_version == needed


def test_a_constant_subgraph_may_become_an_attribute() -> None:
    proto = parse("""
    <ir_version: 8, opset_import: ["" : 13]>
    agraph (float[2, 3] x) => (float[2, 1, 3] y)
    <int64[1] zero = {0}, int64[1] one = {1}>
    { axes = Add(zero, one)  y = Unsqueeze(x, axes) }
    """)
    converted = convert(proto, 11)
    assert [node.op_type for node in converted.graph.node] == ["Unsqueeze"]
    assert_same_answers(proto, converted, draw(proto))


def test_a_run_time_value_cannot_become_an_attribute() -> None:
    proto = parse("""
    <ir_version: 8, opset_import: ["" : 13]>
    agraph (float[2, 3] x, int64[1] axes) => (float[] y) { y = Unsqueeze(x, axes) }
    """)
    with pytest.raises(OpsetConversionError, match=r"Unsqueeze node with output 'y'.*axes.*run time"):
        convert(proto, 11)


def test_an_operator_without_a_decomposition_is_refused_by_name() -> None:
    proto = parse("""
    <ir_version: 8, opset_import: ["" : 20]>
    agraph (string[2] x) => (string[2] y) { [joined] y = StringConcat(x, x) }
    """)
    with pytest.raises(OpsetConversionError, match="StringConcat node 'joined'") as refusal:
        convert(proto, 19)
    assert refusal.value.where == "StringConcat node 'joined'"


@pytest.mark.parametrize("opset", [0, -3, 10_000])
def test_unknown_operator_sets_are_refused(opset: int) -> None:
    with pytest.raises(OptionError, match="does not exist"):
        convert(parse(SOFTMAX), opset)


def test_a_domain_without_import_is_refused() -> None:
    with pytest.raises(OptionError, match=r"ai\.onnx\.ml"):
        convert_opset(model_io.from_proto(parse(SOFTMAX)), 3, domain="ai.onnx.ml")


def test_an_undefined_graph_output_is_refused() -> None:
    proto = parse(SOFTMAX)
    proto.graph.output[0].name = "nowhere"
    with pytest.raises(InvalidModelError, match="nowhere"):
        convert(proto, 12)


def test_an_undefined_input_is_refused() -> None:
    proto = parse(SOFTMAX)
    proto.graph.node[0].input[0] = "nowhere"
    with pytest.raises(OpsetConversionError, match="nowhere"):
        convert(proto, 12)


def test_an_operator_missing_in_its_own_set_is_refused() -> None:
    proto = parse('<ir_version: 8, opset_import: ["" : 13]> agraph (float[2] x) => (float[2] y) { y = Gelu(x) }')
    with pytest.raises(OpsetConversionError, match="unknown operator"):
        convert(proto, 12)


def test_another_domain_leaves_the_default_one_alone() -> None:
    proto = parse("""
    <ir_version: 8, opset_import: ["" : 13, "ai.onnx.ml" : 1]>
    agraph (string[3] x) => (int64[3] y)
    { y = ai.onnx.ml.LabelEncoder<classes_strings = ["a", "b"], default_int64 = -7>(x) }
    """)
    converted = model_io.to_proto(convert_opset(model_io.from_proto(proto), 3, domain="ai.onnx.ml"))
    assert {e.domain: e.version for e in converted.opset_import} == {"": 13, "ai.onnx.ml": 3}
    feeds = {"x": np.asarray(["b", "a", "c"], dtype=object)}
    assert_same_answers(proto, converted, feeds)
    back = model_io.to_proto(convert_opset(model_io.from_proto(converted), 1, domain="ai.onnx.ml"))
    assert_same_answers(proto, back, feeds)


def test_the_default_domain_has_a_long_name() -> None:
    model = model_io.from_proto(parse(SOFTMAX.replace('"" :', '"ai.onnx" :')))
    assert list(convert_opset(model, 12, domain="ai.onnx").opset_imports.values()) == [12]


@pytest.mark.parametrize("op_type", ["Gelu", "Mish", "HardSwish", "LayerNormalization"])
def test_decompose_removes_an_operator_at_the_same_operator_set(op_type: str) -> None:
    inputs = "x, s" if op_type == "LayerNormalization" else "x"
    proto = parse(f"""
    <ir_version: 9, opset_import: ["" : 20]>
    agraph (float[2, 4] x, float[4] s) => (float[2, 4] y) {{ h = {op_type}({inputs})  y = Identity(h) }}
    """)
    result = decompose(model_io.from_proto(proto), {op_type})
    assert result.opset_imports[""] == 20
    assert op_type not in {node.op_type for node in ir.traversal.RecursiveGraphIterator(result.graph)}
    assert_same_answers(proto, model_io.to_proto(result), draw(proto))


@pytest.mark.parametrize("op_type", ["Celu", "Gelu", "HardSwish", "Mish", "Swish", "ThresholdedRelu"])
def test_a_scalar_stays_a_scalar(op_type: str) -> None:
    proto = parse(f'<ir_version: 8, opset_import: ["": 24]> scalar (float x) => (float y) {{ y = {op_type} (x) }}')
    feeds = {"x": np.array(-1.5, np.float32)}
    assert_same_answers(proto, model_io.to_proto(decompose(model_io.from_proto(proto), {op_type})), feeds)


def test_texts_of_a_constant_are_converted() -> None:
    proto = parse(
        '<ir_version: 8, opset_import: ["": 9]> g (int64[2] n) => (string[A, B] y) { y = ConstantOfShape (n) }'
    )
    text = onnx.helper.make_attribute("value", onnx.numpy_helper.from_array(np.array(["a"], object)))
    proto.graph.node[0].attribute.append(text)
    assert convert(proto, 8).opset_import[0].version == 8


def test_decompose_refuses_the_oldest_operators() -> None:
    proto = parse('<ir_version: 8, opset_import: ["" : 13]> agraph (float[2] x) => (float[2] y) { y = Exp(x) }')
    with pytest.raises(OpsetConversionError, match="Exp"):
        decompose(model_io.from_proto(proto), {"Exp"})


@pytest.mark.parametrize(
    ("op_type", "text"),
    [
        ("Resize", "agraph (float[1,2,4,4] x) => (float[1,2,8,8] y) <float[4] s = {1, 1, 2, 2}> { y = Resize"
         " <mode = \"nearest\", coordinate_transformation_mode = \"asymmetric\", nearest_mode = \"floor\"> (x, , s) }"),
        ("ScatterElements", "agraph (float[4] x, int64[2] i, float[2] u) => (float[4] y)"
         " { y = ScatterElements <axis = 0> (x, i, u) }"),
    ],
)  # fmt: skip
def test_an_operator_with_an_older_name_has_no_decomposition(op_type: str, text: str) -> None:
    proto = parse(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    with pytest.raises(OpsetConversionError, match="under another name"):
        decompose(model_io.from_proto(proto), {op_type})


def test_constants_are_computed_without_any_other_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    model = parse(
        """<ir_version: 8, opset_import: ["" : 9]> g (float[1, 1, 2, 2] x) => (float[1, 1, 4, 6] y)
        <float[2] ones = {1.0, 1.0}, float[2] half = {1.0, 1.5}> {
            twice = Add(half, half)
            scales = Concat<axis = 0>(ones, twice)
            y = Upsample(x, scales)
        }"""
    )
    (node,) = convert_opset(model_io.from_proto(model), 8).graph
    assert node.op_type == "Upsample"
    assert node.attributes["scales"].as_floats() == (1.0, 1.0, 2.0, 3.0)


def test_a_body_that_refuses_the_types_is_not_written() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 18]>
        g (float[2, 3] x, int32[2] k) => (float[A, B] y) { y = CenterCropPad (x, k) }""")
    with pytest.raises(OpsetConversionError, match="does not accept the types"):
        convert_opset(model_io.load(model), 17)
