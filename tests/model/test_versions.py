"""The lowest IR version that represents a model follows from the model's features."""

from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from sardonyx import extract, merge, optimize, rename
from sardonyx.compress.float16 import convert_float16
from sardonyx.model import from_proto, lower_ir_version, lowest_ir_version, to_proto
from sardonyx.model.versions import ir_version_of_opset
from sardonyx.rewrite.opset import convert_opset
from tests.model.samples import small, sparse


def plain() -> onnx.ModelProto:
    """Return a model for the oldest version: its initializer is also an input."""
    model = small(3)
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [3]))
    model.opset_import[0].version = 7
    model.ir_version = 3
    return model


def typed(model: onnx.ModelProto, dtype: int) -> None:
    model.graph.input[0].type.tensor_type.elem_type = dtype


def wrapped(model: onnx.ModelProto, wrap: Callable[[onnx.TypeProto], onnx.TypeProto]) -> None:
    inner = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    model.graph.output.append(onnx.ValueInfoProto(name="x", type=wrap(inner)))


def function(model: onnx.ModelProto, **fields: object) -> None:
    nodes = [helper.make_node("Neg", ["a"], ["b"])]
    model.functions.append(helper.make_function("f", "F", ["a"], ["b"], nodes, [helper.make_opsetid("", 7)], **fields))


def annotated(model: onnx.ModelProto) -> None:
    annotation = model.graph.quantization_annotation.add(tensor_name="x")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")


def in_a_body(model: onnx.ModelProto) -> None:
    body = helper.make_graph([], "body", [], [], [TensorProto(name="c", dims=[0], data_type=TensorProto.INT4)])
    model.graph.node.append(helper.make_node("If", ["x"], ["z"], then_branch=body, else_branch=body))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda model: None, 3),
        (lambda model: model.graph.input.pop(), 4),
        (lambda model: typed(model, TensorProto.BFLOAT16), 4),
        (annotated, 5),
        (lambda model: model.graph.sparse_initializer.append(sparse("s")), 6),
        (lambda model: model.graph.node.append(helper.make_node("Constant", [], ["c"], sparse_value=sparse("s"))), 6),
        (lambda model: model.training_info.add(), 7),
        (function, 8),
        (lambda model: wrapped(model, helper.make_optional_type_proto), 8),
        (lambda model: wrapped(model, helper.make_sequence_type_proto), 3),
        (lambda model: function(model, attribute_protos=[helper.make_attribute("a", 1)]), 9),
        (lambda model: typed(model, TensorProto.FLOAT8E4M3FN), 9),
        (lambda model: typed(model, TensorProto.INT4), 10),
        (in_a_body, 10),
        (lambda model: function(model, overload="o"), 10),
        (lambda model: model.graph.node[0].metadata_props.add(key="a", value="b"), 10),
        (lambda model: model.graph.input[0].metadata_props.add(key="a", value="b"), 10),
        (lambda model: model.metadata_props.add(key="a", value="b"), 3),
        (lambda model: model.configuration.add(name="c", num_devices=1), 11),
        (lambda model: typed(model, TensorProto.FLOAT4E2M1), 11),
        (lambda model: typed(model, TensorProto.FLOAT8E8M0), 12),
        (lambda model: typed(model, TensorProto.UINT2), 13),
        (lambda model: typed(model, TensorProto.FLOAT6E2M3), 14),
        (lambda model: model.opset_import.add(domain="ai.onnx.ml", version=4), 9),
        (lambda model: model.opset_import.add(domain="com.example", version=400), 3),
    ],
)
def test_each_feature_needs_the_version_that_introduced_it(
    change: Callable[[onnx.ModelProto], object], expected: int
) -> None:
    model = plain()
    change(model)
    assert lowest_ir_version(from_proto(model)) == expected


def test_every_operator_set_has_the_version_of_its_release() -> None:
    for (domain, version), ir_version in helper.OP_SET_ID_VERSION_MAP.items():
        assert ir_version_of_opset(domain, version) == ir_version
    assert ir_version_of_opset("", 3) == 3
    assert ir_version_of_opset("", 10_000) == onnx.IR_VERSION


def test_a_weight_that_callers_may_override_needs_version_4() -> None:
    """Readers of older versions treat an initializer that is an input as a constant."""
    model = plain()
    model.ir_version = 4
    assert lowest_ir_version(from_proto(model)) == 4


def chain(ir_version: int, opset: int = 13) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f'<ir_version: {ir_version}, opset_import: ["": {opset}]>'
        " g (float[N] x) => (float[N] y) { a = Identity(x) y = Relu(a) }"
    )


TRANSFORMS: dict[str, Callable[[onnx.ModelProto], ir.Model]] = {
    "optimize": lambda proto: optimize(proto, verify=False).model,
    "convert_opset": lambda proto: convert_opset(from_proto(proto), 13),
    "float16": lambda proto: convert_float16(proto).model,
    "extract": lambda proto: extract(from_proto(proto), ["y"], ["a"]),
    "merge": lambda proto: merge([from_proto(proto), rename(from_proto(proto), {"y": "z"})], {"y": "x"}),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("stated", [7, 8, 13])
def test_derived_models_state_the_lowest_possible_version(transform: str, stated: int) -> None:
    assert TRANSFORMS[transform](chain(stated)).ir_version == 7


def test_a_version_below_that_of_the_operator_sets_is_unchanged() -> None:
    model = from_proto(chain(4))
    lower_ir_version(model)
    assert model.ir_version == 4
    assert optimize(chain(4), verify=False).model.ir_version == 4


def test_loading_and_saving_keep_the_version() -> None:
    assert to_proto(from_proto(chain(13))).ir_version == 13
