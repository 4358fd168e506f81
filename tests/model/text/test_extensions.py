"""Fields outside the syntax are written next to their element and survive a round trip."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper

from sardonyx.errors import TextFormatError
from sardonyx.model import text

pytestmark = pytest.mark.sampled


def model_of(*nodes: onnx.NodeProto, **fields: object) -> ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])
    graph = helper.make_graph(list(nodes) or [helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], **fields)


def attribute_of(attribute: AttributeProto) -> ModelProto:
    model = model_of()
    model.graph.node[0].attribute.append(attribute)
    return model


def with_change(change: Callable[[ModelProto], object]) -> ModelProto:
    model = model_of()
    change(model)
    return model


def round_trip(model: ModelProto) -> str:
    printed = text.print_model(model)
    again = text.parse(printed)
    assert again.SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True), printed
    return printed


def test_plain_model_needs_no_annotation() -> None:
    assert round_trip(model_of()) == (
        "#@ defaults unset(NodeProto.domain)\n"
        "<\n"
        f"   ir_version: {onnx.IR_VERSION},\n"
        '   opset_import: ["" : 17]\n'
        ">\n"
        "g (float[N,3] x) => (float[N,3] y) {\n"
        "   y = Relu (x)\n"
        "}\n"
    )


DESCRIPTIONS: dict[str, Callable[[ModelProto], object]] = {
    "doc string of a node": lambda model: setattr(model.graph.node[0], "doc_string", 'line 1\nline "2"'),
    "metadata of a node": lambda model: model.graph.node[0].metadata_props.add(key="k", value="v"),
    "doc string of a value": lambda model: setattr(model.graph.input[0], "doc_string", "pixels"),
    "metadata of a value": lambda model: model.graph.output[0].metadata_props.add(key="k", value=""),
    "metadata of the graph": lambda model: model.graph.metadata_props.add(key="k", value="v"),
    "doc string of the graph": lambda model: setattr(model.graph, "doc_string", "a\nb"),
    "denotation of a type": lambda model: setattr(model.graph.input[0].type, "denotation", "IMAGE"),
    "denotation of a size": lambda model: setattr(
        model.graph.input[0].type.tensor_type.shape.dim[0], "denotation", "DATA_BATCH"
    ),
    "doc string of a tensor": lambda model: model.graph.initializer.add(name="w", data_type=1, doc_string="d"),
    "empty overload": lambda model: setattr(model.graph.node[0], "overload", ""),
    "empty domain in one node": lambda model: setattr(model.graph.node.add(op_type="F"), "domain", ""),
}


@pytest.mark.parametrize("change", DESCRIPTIONS.values(), ids=DESCRIPTIONS.keys())
def test_descriptions_are_comments_to_onnx(change: Callable[[ModelProto], object]) -> None:
    model = with_change(change)
    printed = round_trip(model)
    assert "#@" in printed
    theirs = onnx.parser.parse_model(printed)
    assert [node.op_type for node in theirs.graph.node] == [node.op_type for node in model.graph.node]


def sparse() -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.array([1.5], np.float32), "s")
    return helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([2], np.int64), "i"), [4])


MEANINGS: dict[str, Callable[[ModelProto], object]] = {
    "training": lambda model: model.training_info.add().initialization_binding.add(key="a", value="b"),
    "devices": lambda model: model.configuration.add(name="pair", num_devices=2, device=["a", "b"]),
    "devices of a node": lambda model: model.graph.node[0].device_configurations.add(configuration_id="pair"),
    "quantization": lambda model: model.graph.quantization_annotation.add(tensor_name="x"),
    "sparse initializer": lambda model: model.graph.sparse_initializer.append(sparse()),
    "sparse attribute": lambda model: model.graph.node[0].attribute.append(
        AttributeProto(name="v", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=sparse())
    ),
    "unknown field": lambda model: model.graph.node[0].MergeFromString(bytes.fromhex("f8073a")),
    "unknown element type": lambda model: setattr(model.graph.input[0].type.tensor_type, "elem_type", 99),
    "unknown attribute type": lambda model: (
        model.graph.node[0].attribute.add(name="v").MergeFromString(b"\xa0\x01\x63")
    ),
    "segment": lambda model: model.graph.initializer.add(name="w", data_type=1).segment.MergeFromString(b"\x08\x01"),
    "both storages": lambda model: model.graph.initializer.add(
        name="w", data_type=1, dims=[1], raw_data=b"1234", float_data=[1]
    ),
    "operator outside identifiers": lambda model: setattr(model.graph.node[0], "op_type", "a-b.c"),
    "domain outside identifiers": lambda model: setattr(model.graph.node[0], "domain", "a::b"),
    "attribute outside identifiers": lambda model: model.graph.node[0].attribute.append(
        helper.make_attribute("a/b", 1)
    ),
    "bytes that are not UTF-8": lambda model: model.graph.node[0].attribute.append(
        helper.make_attribute("v", b"\xff\x00a\n")
    ),
    "type of nothing": lambda model: model.graph.input[0].type.sequence_type.elem_type.SetInParent(),
    "attribute without value": lambda model: model.graph.node[0].attribute.add(name="v", type=AttributeProto.TENSOR),
}


@pytest.mark.parametrize("change", MEANINGS.values(), ids=MEANINGS.keys())
def test_onnx_refuses_text_with_fields_that_onnx_would_lose(change: Callable[[ModelProto], object]) -> None:
    printed = round_trip(with_change(change))
    with pytest.raises(onnx.parser.ParseError):
        onnx.parser.parse_model(printed)


@pytest.mark.parametrize("name", ["torch-jit-export", "float", "a b", "", 'q"', "b", "inf", "é"])
def test_names_of_any_kind(name: str) -> None:
    inner = helper.make_graph([helper.make_node(name or "F", [name], [name], name=name)], name, [], [])
    model = model_of(helper.make_node("If", [name], [name], name=name, then_branch=inner))
    model.graph.name = name
    model.graph.input.add(name=name)
    model.graph.value_info.append(helper.make_tensor_value_info(name, 1, [name]))
    round_trip(model)


@pytest.mark.parametrize("kind", sorted(TensorProto.DataType.values()))
@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("bytes_", [b"", b"12345678" * 2, bytes(range(256)) * 64, b"\xff" * 16, b"123"])
def test_tensors_of_every_type(kind: int, raw: bool, bytes_: bytes) -> None:
    model = model_of()
    tensor = model.graph.initializer.add(name="w", data_type=kind, dims=[3, 5])
    if raw:
        tensor.raw_data = bytes_
    elif kind == TensorProto.STRING:
        tensor.string_data.extend([bytes_, b"a"])
    else:
        tensor.int32_data.extend(bytes_)
        tensor.double_data.extend(np.frombuffer(bytes_[: len(bytes_) // 8 * 8]))
    round_trip(model)


def test_small_tensors_are_numbers_and_large_ones_base64() -> None:
    small = numpy_helper.from_array(np.array([0.1, 1e-05, -0.0, np.inf, 2**24], np.float32), "small")
    large = numpy_helper.from_array(np.arange(2000, dtype=np.int8), "large")
    model = model_of()
    model.graph.initializer.extend([small, large])
    printed = round_trip(model)
    assert "float[5] small = {0.1, 1e-05, -0.0, inf, 1.6777216e+07}" in printed
    assert 'int8[2000] large = base64"' in printed
    assert "defaults raw" in printed.partition("\n")[0]


def test_payload_of_a_nan_survives() -> None:
    model = model_of()
    model.graph.initializer.add(name="w", data_type=1, dims=[2], raw_data=bytes.fromhex("010080ff0000c0ff"))
    round_trip(model)


def test_external_data_is_written_as_its_entries() -> None:
    model = model_of()
    tensor = model.graph.initializer.add(name="w", data_type=1, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    printed = round_trip(model)
    assert 'w = ["location": "w.bin"]' in printed
    assert onnx.parser.parse_model(printed).graph.initializer[0] == tensor


def test_order_of_initializers_and_attributes_is_kept() -> None:
    model = model_of()
    for name in "bac":
        model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), name))
        model.graph.node[0].attribute.append(helper.make_attribute(name, 1))
    again = text.parse(text.print_model(model))
    assert [tensor.name for tensor in again.graph.initializer] == list("bac")
    assert [attribute.name for attribute in again.graph.node[0].attribute] == list("bac")


@pytest.mark.parametrize("kind", ["INTS", "FLOATS", "STRINGS", "TENSORS", "GRAPHS", "TYPE_PROTOS", "SPARSE_TENSORS"])
def test_empty_list_keeps_its_type(kind: str) -> None:
    round_trip(attribute_of(AttributeProto(name="v", type=AttributeProto.AttributeType.Value(kind))))


@pytest.mark.parametrize("kind", AttributeProto.AttributeType.keys())
@pytest.mark.parametrize("reference", [None, "", "alpha", "a b"])
def test_attribute_without_value_or_with_a_reference(kind: str, reference: str | None) -> None:
    attribute = AttributeProto(name="v", type=AttributeProto.AttributeType.Value(kind))
    if reference is not None:
        attribute.ref_attr_name = reference
    round_trip(attribute_of(attribute))


def test_function_with_everything() -> None:
    function = helper.make_function(
        "my.domain",
        "F",
        ["x", "float"],
        ["y"],
        [helper.make_node("Scale", ["x"], ["y"], domain="other", overload="fast")],
        [helper.make_opsetid("", 17)],
        attributes=["alpha"],
        attribute_protos=[helper.make_attribute("beta", 1.5), helper.make_attribute("gamma", [1, 2])],
        doc_string='says "hello"',
        overload="v2",
        value_info=[helper.make_tensor_value_info("y", 1, [3])],
    )
    function.metadata_props.add(key="k", value="v")
    function.node[0].attribute.add(name="a", ref_attr_name="alpha", type=AttributeProto.FLOAT)
    model = model_of()
    model.functions.append(function)
    theirs = onnx.parser.parse_model(round_trip(model)).functions[0]
    assert (theirs.overload, theirs.doc_string, list(theirs.attribute)) == ("v2", 'says "hello"', ["alpha"])
    assert theirs.attribute_proto == function.attribute_proto
    assert theirs.value_info == function.value_info


def test_name_that_is_not_utf8_is_refused_by_name() -> None:
    model = model_of()
    model.graph.node[0].MergeFromString(b"\x1a\x02\xff\xfe")
    with pytest.raises(TextFormatError, match="expected a UTF-8 string"):
        text.print_model(model)


def test_printing_beyond_protobuf_nesting_limit_is_refused() -> None:
    model = model_of()
    graph = model.graph
    for _ in range(200):
        graph = graph.node.add(op_type="If").attribute.add(name="b", type=AttributeProto.GRAPH).g
    with pytest.raises(TextFormatError, match="deeper"):
        text.print_model(model)
