"""Bodies that read outer values, loop states, and functions called with different types."""

import numpy as np
import onnx
import pytest

from sardonyx import model as model_io
from sardonyx.compress.float16 import convert_bfloat16, convert_float16
from sardonyx.errors import InvalidModelError

from .loading import converted, operators, parse, run

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)

IF = """
g (float[3,4] x, bool c) => (float[3,4] y) <float[4] w = {1, 2, 3, 4}> {
    a = Exp(x)
    b = If (c) <
        then_branch = t () => (float[3,4] p) { [inner] e = Mul(a, w) p = Tanh(e) },
        else_branch = f () => (float[3,4] q) { [kept] q = Add(x, w) }
    >
    y = Relu(b)
}
"""

LOOP = """
g (float[3,4] x) => (float[3,4] y, float[T,3,4] all) <int64 n = {3}, bool t = {1}, float[4] w = {0.1, 0.2, 0.3, 0.4}> {
    s = Exp(x)
    y, all = Loop (n, t, s) <
        body = b (int64 i, bool c, float[3,4] state) => (bool again, float[3,4] next, float[3,4] step) {
            again = Identity(c)
            h = Mul(x, w)
            [add] next = Add(state, h)
            step = Tanh(next)
        }
    >
}
"""

SCAN = """
g (float[4] first, float[3,4] x) => (float[4] last, float[3,4] y) <float[4] w = {0.1, 0.2, 0.3, 0.4}> {
    last, y = Scan (first, x) <
        num_scan_inputs = 1,
        body = b (float[4] state, float[4] row) => (float[4] next, float[4] out) {
            a = Mul(row, w)
            [add] next = Add(state, a)
            out = Tanh(next)
        }
    >
}
"""


@pytest.mark.parametrize("blocked", [[], ["inner"], ["kept"], ["inner", "kept"]])
@pytest.mark.parametrize("condition", [True, False])
def test_both_branches_have_the_same_type(blocked, condition):
    model = parse(IF)
    proto, _ = converted(model, node_block_list=blocked)
    feeds = {"x": X, "c": np.array(condition)}
    np.testing.assert_allclose(run(proto, feeds)[0].astype(np.float32), run(model, feeds)[0], rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("blocked", [[], ["add"]])
@pytest.mark.parametrize("operators_blocked", [[], ["Tanh"], ["Loop"], ["Scan"], ["Tanh", "Add"]])
@pytest.mark.parametrize("text", [LOOP, SCAN], ids=["Loop", "Scan"])
def test_a_carried_state_has_one_type(text, blocked, operators_blocked):
    model = parse(text)
    proto, _ = converted(model, node_block_list=blocked, op_block_list=operators_blocked)
    feeds = {"x": X, "first": X[0]} if text is SCAN else {"x": X}
    for expected, actual in zip(run(model, feeds), run(proto, feeds), strict=True):
        np.testing.assert_allclose(actual.astype(np.float32), expected, rtol=4e-3, atol=1e-2)


@pytest.mark.parametrize("change", [convert_float16, convert_bfloat16])
def test_a_body_with_too_few_outputs_is_refused_by_name(change):
    model = parse(LOOP)
    body = next(node for node in model.graph.node if node.op_type == "Loop").attribute[0].g
    del body.output[1:]
    with pytest.raises(InvalidModelError, match="its body has 3 inputs and 1 outputs"):
        change(model_io.load(model))


@pytest.mark.parametrize("change", [convert_float16, convert_bfloat16])
def test_an_element_type_that_does_not_exist_is_unknown(change):
    model = parse("g (float[3] x) => (float[3] y) { r = RandomNormal<shape = [3], dtype = 100>() y = Add(x, r) }")
    assert change(model_io.load(model)).model.graph


def test_the_body_of_a_blocked_loop_stays_in_float32():
    _, report = converted(parse(LOOP), op_block_list=["Loop"])
    assert {"Loop", "Mul", "Add", "Tanh"} <= {node.op_type for node in report.float32_nodes}


def test_the_inputs_of_scan_8_have_an_offset_of_one():
    text = SCAN.replace("Scan (first, x)", "Scan (, first, x)").replace(
        "float[4] first, float[3,4] x", "float[1,4] first, float[1,3,4] x"
    )
    text = text.replace("(float[4] last, float[3,4] y)", "(float[1,4] last, float[1,3,4] y)")
    model = parse(text, opset=8)
    proto, _ = converted(model, node_block_list=["add"])
    feeds = {"first": X[:1], "x": X[None]}
    for expected, actual in zip(run(model, feeds), run(proto, feeds), strict=True):
        np.testing.assert_allclose(actual.astype(np.float32), expected, rtol=4e-3, atol=4e-3)


FUNCTION = """
g (float[3,4] x, int64[3,4] n) => (float[3,4] y, int64[3,4] m) { y = local.twice(x) m = local.twice(n) }
<domain: "local", opset_import: ["": 17]> twice (a) => (b) { b = Add(a, a) }
"""


def test_a_function_called_with_two_types_has_a_copy_for_each():
    model = parse(FUNCTION)
    proto, _ = converted(model)
    feeds = {"x": X, "n": np.arange(12).reshape(3, 4)}
    for expected, actual in zip(run(model, feeds), run(proto, feeds), strict=True):
        np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=2e-3)
    assert sorted(function.name for function in proto.functions) == ["twice", "twice_2"]


def test_a_float32_call_and_a_converted_call_have_separate_functions():
    text = """
    g (float[3,4] x) => (float[3,4] y) { [one] a = local.outer(x) [two] y = local.outer(a) }
    <domain: "local", opset_import: ["": 17, "local": 1]> outer (p) => (q) { r = local.inner(p) q = Tanh(r) }
    <domain: "local", opset_import: ["": 17]> inner (s) => (t) { t = Exp(s) }
    """
    model = parse(text)
    proto, report = converted(model, node_block_list=["two"])
    np.testing.assert_allclose(run(proto, {"x": X})[0].astype(np.float32), run(model, {"x": X})[0], rtol=4e-3)
    assert len(proto.functions) == 4
    assert {node.op_type for node in report.float32_nodes} == {"Exp", "Tanh"}


def test_an_attribute_of_the_call_may_determine_the_type():
    text = """
    g (int64[3,4] n) => (float[3,4] y, double[3,4] z) { y = local.as<to = 1>(n) z = local.as<to = 11>(n) }
    <domain: "local", opset_import: ["": 17]> as <to> (a) => (b) { b = Cast<to: int = @to>(a) }
    """
    model = parse(text)
    proto, _ = converted(model)
    feeds = {"n": np.arange(12).reshape(3, 4)}
    for expected, actual in zip(run(model, feeds), run(proto, feeds), strict=True):
        np.testing.assert_array_equal(actual.astype(np.float64), expected)


def test_a_function_with_a_blocked_operator_casts_inside():
    text = """
    g (float[3,4] x) => (float[3,4] y) { a = local.f(x) y = local.f(a) }
    <domain: "local", opset_import: ["": 17]> f (p) => (q) { r = Exp(p) s = Log(r) q = Tanh(s) }
    """
    model = parse(text)
    proto, _ = converted(model, op_block_list=["Log"])
    np.testing.assert_allclose(run(proto, {"x": X})[0].astype(np.float32), run(model, {"x": X})[0], rtol=4e-3)
    assert operators(proto) == ["f", "f"]
    assert [node.op_type for node in proto.functions[0].node] == ["Exp", "Cast", "Log", "Cast", "Tanh"]


def test_a_function_that_calls_itself_is_refused():
    text = """
    g (float[3,4] x) => (float[3,4] y) { y = local.f(x) }
    <domain: "local", opset_import: ["": 17, "local": 1]> f (p) => (q) { q = local.f(p) }
    """
    with pytest.raises(InvalidModelError, match="calls itself"):
        convert_float16(parse(text))


def test_conversion_is_idempotent():
    once, _ = converted(parse(IF), node_block_list=["inner"])
    again = model_io.to_proto(convert_float16(once, node_block_list=["inner"]).model)
    assert again.SerializeToString() == once.SerializeToString()


def test_an_if_older_than_bfloat16_stays_in_float32():
    for opset, types in ((13, {onnx.TensorProto.FLOAT}), (16, {onnx.TensorProto.BFLOAT16})):
        proto = model_io.to_proto(convert_bfloat16(parse(IF, opset=opset)).model)
        onnx.checker.check_model(proto, full_check=True)
        node = next(node for node in proto.graph.node if node.op_type == "If")
        assert {a.g.output[0].type.tensor_type.elem_type for a in node.attribute} == types
