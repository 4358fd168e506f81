"""Records of unrepresentable fields follow edits of the graph."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from sardonyx.model import MapType, OpaqueType, SparseTensor, from_proto, to_proto
from tests.model.samples import serialize


def infos(proto: onnx.ModelProto) -> list[str]:
    return [info.name for info in proto.graph.value_info]


def test_types_missing_in_onnx_ir_are_part_of_the_graph(everything: onnx.ModelProto) -> None:
    graph = from_proto(everything).graph
    maps = graph.node("zip").outputs[0].type
    assert isinstance(maps, ir.SequenceType)
    assert maps.elem_type == MapType(ir.DataType.INT64, ir.TensorType(ir.DataType.FLOAT))
    assert graph.node("custom").outputs[2].type == OpaqueType("my.domain", "handle")
    assert isinstance(graph.initializers["sparse_weight"].const_value, SparseTensor)
    assert graph.opset_imports[""] == 21


def test_a_renamed_value_keeps_its_index_and_form(everything: onnx.ModelProto) -> None:
    before = infos(everything)
    model = from_proto(everything)
    values = {"sum": model.graph.node("add").outputs[0], "sparse_weight": model.graph.initializers["sparse_weight"]}
    for name, value in values.items():
        value.name = f"new_{name}"
    proto = to_proto(model)
    assert infos(proto) == [f"new_{name}" if name in values else name for name in before]
    assert {sparse.values.name for sparse in proto.graph.sparse_initializer} == {
        "new_sparse_weight",
        "large_sparse_weight",
    }
    assert proto.graph.quantization_annotation[0].tensor_name == "new_sum"
    assert proto.graph.node[2].device_configurations[0].sharding_spec[0].tensor_name == "new_sum"


def test_a_removed_value_is_not_listed(everything: onnx.ModelProto) -> None:
    model = from_proto(everything)
    chosen, add = model.graph.node("branch").outputs[0], model.graph.node("add")
    chosen.replace_all_uses_with(model.graph.inputs[0])
    model.graph.remove(model.graph.node("branch"), safe=True)
    add.replace_input_with(1, model.graph.inputs[0])
    del model.graph.initializers["weight"]
    proto = to_proto(model)
    assert infos(proto) == [name for name in infos(everything) if name not in ("chosen", "weight")]
    assert [annotation.tensor_name for annotation in proto.graph.quantization_annotation] == ["sum", "x", "gone"]


def test_an_unmatched_entry_is_replaced_by_a_value_of_its_name(everything: onnx.ModelProto) -> None:
    model = from_proto(everything)
    name = "my.functions::Twice/inner"
    output = ir.Value(name=name, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([1]))
    model.graph.append(ir.Node("", "Shape", [model.graph.inputs[0]], outputs=[output]))
    listed = [info for info in to_proto(model).graph.value_info if info.name == name]
    assert [info.type.tensor_type.elem_type for info in listed] == [TensorProto.INT64]


def test_a_changed_type_is_written_as_changed(everything: onnx.ModelProto) -> None:
    model = from_proto(everything)
    for value in (model.graph.inputs[0], model.graph.node("twice").outputs[0], model.graph.initializers["weight"]):
        value.type = ir.TensorType(ir.DataType.FLOAT16)
    graph = to_proto(model).graph
    described = [info for info in (*graph.input, *graph.output, *graph.value_info) if info.name in ("x", "y", "weight")]
    assert len(described) == 5
    assert {info.type.tensor_type.elem_type for info in described} == {TensorProto.FLOAT16}


def test_new_types_are_listed_after_the_entries_of_the_file(everything: onnx.ModelProto) -> None:
    model = from_proto(everything)
    model.graph.append(ir.Node("", "Neg", [model.graph.inputs[0]], name="neg"))
    value = model.graph.node("neg").outputs[0]
    value.name, value.type = "new", ir.TensorType(ir.DataType.FLOAT)
    assert infos(to_proto(model)) == [*infos(everything), "new"]


def test_initializers_are_not_listed_unless_the_file_did(small: onnx.ModelProto) -> None:
    assert not to_proto(from_proto(small)).graph.value_info


def test_new_nodes_follow_the_files_convention_for_empty_fields(small: onnx.ModelProto) -> None:
    small.graph.node[0].domain = ""
    model = from_proto(small)
    model.graph.append(ir.Node("", "Neg", [model.graph.outputs[0]], name="neg"))
    assert all(node.HasField("domain") for node in to_proto(model).graph.node)


def test_a_changed_opset_replaces_the_files_list(everything: onnx.ModelProto) -> None:
    model = from_proto(everything)
    model.graph.opset_imports[""] = 22
    model.metadata_props["z"] = "3"
    proto = to_proto(model)
    assert {entry.domain: entry.version for entry in proto.opset_import} == {
        "": 22,
        "ai.onnx.ml": 5,
        "my.domain": 1,
        "my.functions": 1,
    }
    assert {entry.key: entry.value for entry in proto.metadata_props} == {"z": "3", "a": "2"}
    assert proto.HasField("producer_name")


def test_unknown_fields_survive_an_edit_of_their_node(small: onnx.ModelProto) -> None:
    unknown = bytes([0xF8, 0x3F, 0x05])
    small.graph.node[0].MergeFromString(unknown)
    model = from_proto(small)
    model.graph[0].name = "renamed"
    node = to_proto(model).graph.node[0]
    assert node.name == "renamed"
    assert node.SerializeToString().endswith(unknown)


def test_functions_before_ir_version_10_have_no_value_info() -> None:
    function = helper.make_function(
        "f", "F", ["a"], ["b"], [helper.make_node("Neg", ["a"], ["b"])], [helper.make_opsetid("", 15)]
    )
    graph = helper.make_graph([], "g", [], [])
    proto = helper.make_model(graph, functions=[function], ir_version=8)
    model = from_proto(proto)
    value = model.functions["f", "F", ""].outputs[0]
    value.type = ir.TensorType(ir.DataType.FLOAT)
    assert serialize(to_proto(model)) == serialize(proto)
    model.ir_version = 10
    assert [info.name for info in to_proto(model).functions[0].value_info] == ["b"]
