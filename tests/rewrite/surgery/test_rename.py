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

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (bool c, float[N, "2*N"] x) => (float[N, "2*N"] y)
<float[1] w = {2.0}>
{
  [first] a = Mul(x, w)
  [choice] y = If (c) <then_branch = t () => (float[N, "2*N"] p) { [inner] p = Relu(a) },
                       else_branch = e () => (float[N, "2*N"] q) { q = Abs(a) }>
}"""


def model() -> ir.Model:
    proto = onnx.parser.parse_model(TEXT.replace('"2*N"', "M"))
    for value in (*proto.graph.input, *proto.graph.output):
        if len(value.type.tensor_type.shape.dim) == 2:
            value.type.tensor_type.shape.dim[1].dim_param = "2*N"
    return sardonyx.load(proto)


def test_inputs_outputs_weights_and_tensors_are_renamed() -> None:
    renamed = sardonyx.rename(model(), {"x": "image", "y": "answer", "w": "scale", "a": "scaled", "p": "left"})
    proto = to_proto(renamed)
    onnx.checker.check_model(proto, full_check=True)
    assert [v.name for v in proto.graph.input] == ["c", "image"]
    assert [v.name for v in proto.graph.initializer] == ["scale"]
    x = np.array([[1.0, -2.0]], np.float32)
    np.testing.assert_array_equal(evaluate(proto, {"c": np.array(True), "image": x})["answer"], [[2.0, 0.0]])


def test_names_may_be_swapped() -> None:
    renamed = sardonyx.rename(model(), {"x": "y", "y": "x"})
    assert renamed.graph.outputs[0].name == "x"
    onnx.checker.check_model(to_proto(renamed), full_check=True)


def test_nodes_in_bodies_are_renamed() -> None:
    renamed = sardonyx.rename(model(), nodes={"first": "scaling", "inner": "clipping"})
    assert {node.name for node in renamed.graph.all_nodes()} >= {"scaling", "clipping", "choice"}


def test_dimensions_within_expressions_are_renamed() -> None:
    renamed = sardonyx.rename(model(), dims={"N": "batch"})
    assert str(renamed.graph.inputs[1].shape) == "[batch,2*batch]"
    assert str(renamed.graph.outputs[0].shape) == "[batch,2*batch]"


def test_quantization_annotations_are_renamed() -> None:
    proto = to_proto(model())
    note = proto.graph.quantization_annotation.add(tensor_name="a")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    renamed = to_proto(sardonyx.rename(sardonyx.load(proto), {"a": "scaled", "w": "scale"}))
    (annotation,) = renamed.graph.quantization_annotation
    assert annotation.tensor_name == "scaled"
    assert annotation.quant_parameter_tensor_names[0].value == "scale"


def test_the_original_is_unchanged() -> None:
    whole = model()
    before = to_proto(whole)
    sardonyx.rename(whole, {"x": "image"}, nodes={"first": "one"}, dims={"N": "batch"})
    assert to_proto(whole) == before


def test_renaming_back_restores_the_model() -> None:
    whole = sardonyx.load(demo.path("digits_detector"))
    there = sardonyx.rename(whole, {"image": "picture"}, dims={"height": "rows"})
    back = sardonyx.rename(there, {"picture": "image"}, dims={"rows": "height"})
    assert to_proto(back) == to_proto(whole)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"values": {"nowhere": "x2"}}, "nowhere"),
        ({"values": {"x": "a"}}, "a"),
        ({"values": {"x": "z", "a": "z"}}, "z"),
        ({"nodes": {"nowhere": "n"}}, "nowhere"),
        ({"nodes": {"first": "choice"}}, "choice"),
        ({"dims": {"K": "L"}}, "K"),
        ({"dims": {"N": "7"}}, "7"),
        ({"dims": {"N": "a+b"}}, "a"),
        ({"values": {"x": ""}}, "x: the new name of the tensor is empty. Give"),
    ],
)
def test_refusals(names: dict[str, dict[str, str]], message: str) -> None:
    with pytest.raises(OptionError, match=message.replace("+", r"\+")):
        sardonyx.rename(model(), **names)
