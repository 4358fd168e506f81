from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import sardonyx
from sardonyx import demo
from sardonyx.report.diff import Diff, diff

BASE = """<ir_version: 8, opset_import: ["": 17]>
g (float[N, 3] x) => (float[N, 3] y)
<float[3] w = {1.0, 2.0, 3.0}>
{ [add] a = Add(x, w) [relu] r = Relu(a) [soft] y = Softmax <axis = 1> (r) }"""


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(text)


def against(*replacements: tuple[str, str]) -> Diff:
    text = BASE
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    return diff(model(BASE), model(text))


def test_a_model_is_equal_to_itself() -> None:
    difference = diff(demo.path("digits_detector"), demo.path("digits_detector"))
    assert not difference
    assert difference.same == sardonyx.summary(demo.path("digits_detector")).nodes


def test_a_changed_attribute_is_reported() -> None:
    (change,) = against(("axis = 1", "axis = 0")).changed
    assert change.node == "soft"
    assert change.changes == ("axis: 1 → 0",)


def test_a_rewired_input_is_reported() -> None:
    difference = against(("Relu(a)", "Relu(x)"))
    assert [change.changes for change in difference.changed] == [("input 0: 'a' → 'x'",)]


def test_a_renamed_tensor_does_not_replace_its_node() -> None:
    difference = against(("[relu] r = Relu(a)", "[relu] h = Relu(a)"), ("(r) }", "(h) }"))
    assert not difference.replaced
    assert not difference.changed


def test_nodes_without_names_are_matched_by_structure() -> None:
    left, right = model(BASE), model(BASE.replace("a =", "b =").replace("(a)", "(b)"))
    for proto in (left, right):
        for node in proto.graph.node:
            node.ClearField("name")
    assert not diff(left, right)


def test_nodes_with_equal_outputs_replace_each_other() -> None:
    difference = against(("[relu] r = Relu(a)", "[clip] r = Clip(a)"))
    (group,) = difference.replaced
    assert group.removed == ("Relu relu",)
    assert group.added == ("Clip clip",)


def test_unrelated_replacements_are_separate_groups() -> None:
    difference = against(
        ("[add] a = Add(x, w)", "[sub] a = Sub(x, w)"),
        ("[soft] y = Softmax <axis = 1>", "[log] y = LogSoftmax <axis = 1>"),
    )
    assert {(group.removed, group.added) for group in difference.replaced} == {
        (("Add add",), ("Sub sub",)),
        (("Softmax soft",), ("LogSoftmax log",)),
    }


def test_changed_weights_are_described() -> None:
    assert against(("2.0, 3.0", "2.5, 3.0")).weights == ("'w': other contents, 1 of 3 elements, by 0.5 at most",)
    changed = diff(model(BASE), model(BASE.replace("float[3] w = {1.0, 2.0, 3.0}", "float[1] w = {1.0}")))
    assert changed.weights == ("'w': float [3] → float [1]",)


def test_changes_of_interface_and_versions_are_reported() -> None:
    difference = against(("float[N, 3] x", "float[5, 3] x"), ('"": 17', '"": 18'), ("ir_version: 8", "ir_version: 9"))
    assert difference.interface == ("input 'x': FLOAT [N,3] → FLOAT [5,3]",)
    assert difference.model == ("IR version: 8 → 9", "opset of ai.onnx: 17 → 18")


def test_bodies_are_compared_node_by_node() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (bool c, float[N] x) => (float[N] y) {
      y = If (c) <then_branch = t () => (float[N] a) { [inner] a = Relu(x) },
                  else_branch = e () => (float[N] b) { b = Neg(x) }>
    }"""
    difference = diff(model(text), model(text.replace("Relu", "Abs")))
    (group,) = difference.replaced
    assert "then_branch" in group.removed[0]
    assert not difference.changed


def test_names_of_a_report_join_replacements() -> None:
    left = model(BASE)
    right = model(
        BASE.replace(
            "[relu] r = Relu(a) [soft] y = Softmax <axis = 1> (r)", "[one] z = Elu(a) [two] y = Hardmax <axis = 1> (z)"
        )
    )
    difference = diff(left, right, names={"relu": ["two"]})
    assert any(set(group.removed) >= {"Relu relu"} and "Hardmax two" in group.added for group in difference.replaced)


def test_an_optimized_model_differs_by_its_replaced_nodes() -> None:
    result = sardonyx.optimize(demo.path("digits_classifier"), verify=False)
    difference = diff(demo.path("digits_classifier"), result.model, names=result.report.names)
    removed = sum(len(group.removed) for group in difference.replaced)
    added = sum(len(group.added) for group in difference.replaced)
    assert removed - added == result.report.before.nodes - result.report.after.nodes
    assert any("BatchNormalization" in " ".join(g.removed) and len(g.added) == 1 for g in difference.replaced)


def test_every_kind_of_source_is_accepted() -> None:
    proto = model(BASE)
    assert not diff(proto, proto.SerializeToString())
    loaded = sardonyx.load(proto)
    assert isinstance(loaded, ir.Model)
    assert not diff(loaded, proto)


def test_invalid_bytes_are_refused() -> None:
    with pytest.raises(sardonyx.SardonyxError):
        diff(b"not a model", model(BASE))


def test_sparse_constants_are_compared_by_contents() -> None:
    def sparse(element: float) -> onnx.ModelProto:
        values = onnx.numpy_helper.from_array(np.array([element, 2.0], np.float32), "v")
        indices = onnx.numpy_helper.from_array(np.array([0, 3]))
        constant = onnx.SparseTensorProto(values=values, indices=indices, dims=[4])
        proto = model('<ir_version: 8, opset_import: ["": 17]> g (float[4] x) => (float[4] y) { y = Add(x, c) }')
        proto.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["c"], sparse_value=constant))
        return proto

    assert not diff(sparse(1.0), sparse(1.0))
    assert diff(sparse(1.0), sparse(3.0))


def test_weights_of_bodies_are_compared() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (bool c, float[N] x) => (float[N] y) {
      y = If (c) <then_branch = t () => (float[N] a) <float[1] k = {1.0}> { [inner] a = Add(x, k) },
                  else_branch = e () => (float[N] b) { b = Neg(x) }>
    }"""
    difference = diff(model(text), model(text.replace("{1.0}", "{3.0}")))
    assert difference.weights == ("'If(y).then_branch/k': other contents, 1 of 1 elements, by 2 at most",)


def test_renamed_weights_are_recognized() -> None:
    difference = against(("float[3] w =", "float[3] scale ="), ("Add(x, w)", "Add(x, scale)"))
    assert difference.weights == ("'w' is named 'scale'",)
    assert not difference.changed


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([1, 2, 3], [1, np.nan, 3], "1 of 3 elements, one of the two is NaN"),
        ([1, 2, np.nan], [1, 4, np.nan], "1 of 3 elements, by 2 at most"),
        ([0, 2, 3], [-0.0, 2, 3], "other bits for equal numbers"),
        ([1, np.inf, np.inf], [1, np.inf, -np.inf], "1 of 3 elements, by inf at most"),
    ],
)
def test_weights_with_special_numbers_are_compared(before: list[float], after: list[float], expected: str) -> None:
    sides = []
    for numbers in (before, after):
        proto = model(BASE)
        proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.array(numbers, np.float32), "w"))
        sides.append(proto)
    (line,) = diff(*sides).weights
    assert line.endswith(expected)


def test_swapped_outputs_are_reported() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[N] x) => (float[N] y, float[N] z) { y = Neg(x) z = Abs(x) }"""
    difference = diff(model(text), model(text.replace("y = Neg(x) z = Abs(x)", "z = Neg(x) y = Abs(x)")))
    assert difference
    assert difference.interface == ("output 'y': made by Neg(y) → Abs(y)", "output 'z': made by Abs(z) → Neg(z)")


def test_swapped_outputs_of_functions_and_bodies_are_reported() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "f": 1]>
    g (bool c, float[N] x) => (float[N] y, float[N] z) {
      p, q = f.both(x)
      y, z = If (c) <then_branch = t () => (float[N] a, float[N] b) { a = Exp(p) b = Log(q) },
                     else_branch = e () => (float[N] d, float[N] e) { d = Neg(x) e = Abs(x) }>
    }
    <domain: "f", opset_import: ["": 17]> both (u) => (v, w) { v = Sin(u) w = Cos(u) }"""
    swapped = text.replace("(v, w)", "(w, v)").replace("(float[N] a, float[N] b)", "(float[N] b, float[N] a)")
    lines = diff(model(text), model(swapped)).interface
    assert "function f.both: output 0: made by Sin(v) → Cos(w)" in lines
    assert "If(y).then_branch: output 1: made by Log(b) → Exp(a)" in lines


def test_changed_metadata_of_functions_and_model_is_reported() -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "f": 1], model_version: 1>
    g (float[N] x) => (float[N] y) { y = f.one(x) }
    <domain: "f", opset_import: ["": 17]> one <alpha> (u) => (v) { v = Relu(u) }"""
    other = text.replace('domain: "f", opset_import: ["": 17]', 'domain: "f", opset_import: ["": 18]')
    other = other.replace("one <alpha>", "one <beta>").replace("model_version: 1", "model_version: 2")
    assert diff(model(text), model(other)).model == (
        "model version: 1 → 2",
        "function f.one: opset of ai.onnx: 17 → 18",
        "function f.one: attribute 'alpha': without a default → none",
        "function f.one: attribute 'beta': none → without a default",
    )


def test_an_operator_is_not_repeated_before_a_name_that_begins_with_it() -> None:
    named = model(BASE.replace("[soft]", "[Softmax_3]"))
    (group,) = diff(named, model(BASE.replace("Softmax <axis = 1> (r)", "Tanh(r)"))).replaced
    assert group.removed == ("Softmax_3",)
    assert group.added == ("Tanh soft",)
