from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import sardonyx
from sardonyx import demo
from sardonyx.errors import OptionError
from sardonyx.model import to_proto
from sardonyx.rewrite.evaluate import evaluate

TEXT = """<ir_version: 8, opset_import: ["": 17, "local": 1]>
g (float[N, 4] x, float[N, 4] z) => (float[N, 4] y, float[N, 4] u)
<float[4] w = {1.0, 2.0, 3.0, 4.0}, float[4] v = {5.0, 6.0, 7.0, 8.0}>
{ a = Add(x, w) b = Mul(a, v) y = local.twice(b) u = Sub(z, v) }
<opset_import: ["": 17], domain: "local"> twice (h) => (r) { r = Add(h, h) }"""

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def model(text: str = TEXT) -> ir.Model:
    return sardonyx.load(onnx.parser.parse_model(text))


def names(values: object) -> list[str | None]:
    return [value.name for value in values]  # type: ignore[attr-defined]


def test_extract_from_the_inputs_to_an_inner_tensor() -> None:
    part = sardonyx.extract(model(), ["b"])
    assert names(part.graph.inputs) == ["x"]
    assert names(part.graph.outputs) == ["b"]
    assert set(part.graph.initializers) == {"w", "v"}
    assert not part.functions
    proto = to_proto(part)
    onnx.checker.check_model(proto, full_check=True)
    np.testing.assert_array_equal(evaluate(proto, {"x": X})["b"], (X + np.arange(1, 5)) * np.arange(5, 9))


def test_extract_between_tensors_preserves_the_order() -> None:
    part = sardonyx.extract(model(), ["y", "b"], ["a"])
    assert names(part.graph.inputs) == ["a"]
    assert names(part.graph.outputs) == ["y", "b"]
    assert [node.op_type for node in part.graph] == ["Mul", "twice"]
    assert set(part.graph.initializers) == {"v"}
    assert len(part.functions) == 1
    assert str(part.graph.inputs[0].shape) == "[N,4]"


def test_a_weight_may_be_an_input() -> None:
    part = sardonyx.extract(model(), ["a"], ["x", "w"])
    assert not part.graph.initializers
    got = evaluate(to_proto(part), {"x": X, "w": np.ones(4, np.float32)})
    np.testing.assert_array_equal(got["a"], X + 1)


def test_the_original_is_unchanged() -> None:
    whole = model()
    before = to_proto(whole)
    sardonyx.extract(whole, ["y"], ["a"])
    assert to_proto(whole) == before


def test_tensors_are_shared_not_copied() -> None:
    whole = sardonyx.load(demo.path("digits_classifier"))
    part = sardonyx.extract(whole, ["probabilities"])
    for name, value in part.graph.initializers.items():
        assert value.const_value is whole.graph.initializers[name].const_value


def test_captures_of_bodies_are_extracted() -> None:
    whole = model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (bool c, float[N] x, float[N] idle) => (float[N] y, float[N] other)
        {
          a = Neg(x)
          y = If (c) <then_branch = t () => (float[N] p) { p = Relu(a) },
                      else_branch = e () => (float[N] q) { q = Abs(a) }>
          other = Exp(idle)
        }"""
    )
    part = sardonyx.extract(whole, ["y"])
    assert names(part.graph.inputs) == ["c", "x"]
    onnx.checker.check_model(to_proto(part), full_check=True)
    assert names(sardonyx.extract(whole, ["y"], ["c", "a"]).graph.inputs) == ["c", "a"]


def test_an_input_may_be_an_output() -> None:
    part = sardonyx.extract(model(), ["a"], ["a"])
    assert names(part.graph.inputs) == names(part.graph.outputs) == ["a"]
    assert len(part.graph) == 0


@pytest.mark.parametrize(
    ("outputs", "inputs", "message"),
    [
        (["nowhere"], None, "nowhere"),
        (["y"], ["nowhere"], "nowhere"),
        (["y", "u"], ["a"], "'z'"),
        (["y", "y"], None, "repeated names: y"),
        ([], None, "outputs"),
        (["yy"], None, "Did you mean y"),
        ("yu", None, "not a list"),
    ],
)
def test_refusals_name_the_fault(outputs: list[str] | str, inputs: list[str] | None, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        sardonyx.extract(model(), outputs, inputs)


def test_a_tensor_of_a_body_is_refused() -> None:
    whole = model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (bool c, float[N] x) => (float[N] y) {
          y = If (c) <then_branch = t () => (float[N] p) { p = Relu(x) },
                      else_branch = e () => (float[N] q) { q = Abs(x) }>
        }"""
    )
    with pytest.raises(OptionError, match="body"):
        sardonyx.extract(whole, ["p"])


@pytest.mark.parametrize(("outputs", "inputs"), [(["u"], None), (["y"], ["u"])])
def test_a_tensor_of_unknown_type_is_refused_with_its_node(outputs: list[str], inputs: list[str] | None) -> None:
    whole = model(
        """<ir_version: 8, opset_import: ["": 17, "mine": 1]>
        g (float[N] x) => (float[N] y) { u = mine.Op(x) y = mine.Op(u) }"""
    )
    with pytest.raises(OptionError, match=r"type of 'u' is not known.*Op\(u\) \(mine\)"):
        sardonyx.extract(whole, outputs, inputs)


def test_a_model_may_be_given_as_it_is_loaded() -> None:
    proto = onnx.parser.parse_model(TEXT)
    assert names(sardonyx.extract(proto, ["b"]).graph.inputs) == ["x"]
    assert names(sardonyx.rename(proto.SerializeToString(), {"x": "image"}).graph.inputs) == ["image", "z"]
