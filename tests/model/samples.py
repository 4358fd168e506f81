"""Models for these tests, as messages."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT


def serialize(proto: onnx.ModelProto) -> bytes:
    """Serialize a message for comparison: NaN equals NaN, and absent differs from empty."""
    content: bytes = proto.SerializeToString(deterministic=True)
    return content


def small(weights: int = 3000) -> onnx.ModelProto:
    """Return ``y = x + w`` with ``w`` large enough to stay in the file."""
    w = np.arange(weights, dtype=np.float32)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"], name="add")],
        "small",
        [helper.make_tensor_value_info("x", FLOAT, ["batch", weights])],
        [helper.make_tensor_value_info("y", FLOAT, ["batch", weights])],
        [numpy_helper.from_array(w, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _map_type() -> onnx.TypeProto:
    kind = onnx.TypeProto()
    kind.sequence_type.elem_type.map_type.key_type = TensorProto.INT64
    kind.sequence_type.elem_type.map_type.value_type.tensor_type.elem_type = FLOAT
    kind.sequence_type.elem_type.map_type.value_type.tensor_type.shape.SetInParent()
    return kind


def sparse(name: str, elements: int = 2) -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.arange(1, elements + 1, dtype=np.float32), name)
    indices = numpy_helper.from_array(np.arange(elements, dtype=np.int64) * 2, "")
    return helper.make_sparse_tensor(values, indices, [2, elements])


def _body(name: str, output: str) -> onnx.GraphProto:
    """Return a body that reads the outer value ``x`` and a weight of its own."""
    weight = numpy_helper.from_array(np.full((5000,), 2, dtype=np.float32), f"{name}_w")
    node = helper.make_node("Mul", ["x", f"{name}_w"], [output])
    body = helper.make_graph([node], name, [], [helper.make_tensor_value_info(output, FLOAT, None)], [weight])
    body.value_info.append(helper.make_tensor_value_info("x", FLOAT, ["batch", 5000]))
    return body


def everything() -> onnx.ModelProto:
    """Return a meaningless model with every field of the format."""
    x = helper.make_tensor_value_info("x", FLOAT, ["batch", 5000])
    x.type.denotation = "TENSOR"
    x.type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    x.doc_string = "the input"
    x.metadata_props.add(key="k", value="v")
    typed = TensorProto(name="typed", dims=[2], data_type=FLOAT, float_data=[1.0, 2.0], doc_string="in float_data")
    typed.metadata_props.add(key="origin", value="typed")
    half = TensorProto(name="half", dims=[3], data_type=TensorProto.FLOAT16, int32_data=[1, 2, 3])
    big_typed = TensorProto(name="big_typed", dims=[3000], data_type=FLOAT, float_data=range(3000))
    big_ints = TensorProto(name="big_ints", dims=[3000], data_type=TensorProto.INT64, int64_data=range(3000))
    text = TensorProto(name="text", dims=[2], data_type=TensorProto.STRING, string_data=[b"a\0", b"\xff"])
    nibbles = TensorProto(name="nibbles", dims=[9001], data_type=TensorProto.INT4, raw_data=bytes(4501))
    weight = numpy_helper.from_array(np.arange(5000, dtype=np.float32), "weight")
    weight.segment.begin = 0
    weight.data_location = TensorProto.DEFAULT
    branches = {"then_branch": _body("then", "t"), "else_branch": _body("else", "e")}
    nodes = [
        helper.make_node("If", ["cond"], ["chosen"], "branch", **branches),
        helper.make_node("Custom", ["x", "", "scale"], ["first", "", "third", ""], "custom", domain="my.domain"),
        helper.make_node("Add", ["chosen", "weight"], ["sum"], "add", domain="ai.onnx"),
        helper.make_node("Twice", ["sum"], ["y"], "twice", domain="my.functions", factor=3.0),
        helper.make_node("ZipMap", ["y"], ["maps"], "zip", domain="ai.onnx.ml"),
        helper.make_node("Constant", [], ["sparse_constant"], "sparse", sparse_value=sparse("sparse_value", 2000)),
        helper.make_node("Optional", [], ["nothing"], "optional", type=helper.make_optional_type_proto(_map_type())),
    ]
    nodes[1].attribute.extend(
        [
            helper.make_attribute("strings", ["a", b"\xff\xfe"]),
            helper.make_attribute("binary", b"\xff\x00"),
            helper.make_attribute("empty", [], attr_type=onnx.AttributeProto.INTS),
            helper.make_attribute("types", [_map_type(), helper.make_tensor_type_proto(FLOAT, None)]),
            helper.make_attribute("tensors", [weight, typed]),
            helper.make_attribute("sparse_tensors", [sparse("s1"), sparse("s2")]),
            onnx.AttributeProto(name="zero_is_absent", type=onnx.AttributeProto.INT),
            onnx.AttributeProto(name="no_type", i=3),
            onnx.AttributeProto(name="two_values", type=onnx.AttributeProto.INT, i=3, f=2.0, doc_string=""),
        ]
    )
    nodes[1].doc_string = ""
    nodes[1].overload = "o"
    for key in ("z", "a"):
        nodes[1].metadata_props.add(key=key, value=key)
    nodes[2].metadata_props.add(key="twice", value="1")
    nodes[2].metadata_props.add(key="twice", value="2")
    device = nodes[2].device_configurations.add(configuration_id="two", pipeline_stage=1)
    device.sharding_spec.add(tensor_name="sum", device=[0, 1]).sharded_dim.add(axis=0).simple_sharding.add(
        dim_param="batch", num_shards=2
    )
    outputs = [
        helper.make_tensor_value_info("y", FLOAT, ["batch", 5000]),
        onnx.ValueInfoProto(name="maps", type=_map_type()),
        onnx.ValueInfoProto(name="nothing", type=helper.make_optional_type_proto(_map_type())),
        helper.make_tensor_value_info("sparse_constant", FLOAT, [2, 2000]),
        x,
    ]
    outputs[4] = helper.make_tensor_value_info("x", FLOAT, [None, 5000])
    opaque = onnx.ValueInfoProto(name="third")
    opaque.type.opaque_type.domain, opaque.type.opaque_type.name = "my.domain", "handle"
    cond = helper.make_tensor_value_info("cond", TensorProto.BOOL, [])
    graph = helper.make_graph(
        nodes,
        "everything",
        [x, cond, helper.make_tensor_value_info("typed", FLOAT, [2])],
        outputs,
        [typed, half, big_typed, big_ints, text, nibbles, weight, numpy_helper.from_array(np.float32(2), "scale")],
        doc_string="",
        sparse_initializer=[sparse("sparse_weight"), sparse("large_sparse_weight", 4000)],
    )
    graph.value_info.extend(
        [
            opaque,
            helper.make_tensor_value_info("sum", FLOAT, ["batch", 5000]),
            helper.make_tensor_value_info("my.functions::Twice/inner", FLOAT, None),
            helper.make_tensor_value_info("chosen", FLOAT, ["batch", 5000]),
            helper.make_tensor_value_info("weight", FLOAT, [5000]),
            helper.make_tensor_value_info("y", FLOAT, None),
            onnx.ValueInfoProto(name="first"),
            helper.make_sparse_tensor_value_info("sparse_weight", FLOAT, [2, 2]),
        ]
    )
    for name in ("sum", "x", "gone", "weight"):
        annotation = graph.quantization_annotation.add(tensor_name=name)
        annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
    graph.metadata_props.add(key="b", value="")
    graph.metadata_props.add(key="a", value="1")
    function = helper.make_function(
        "my.functions",
        "Twice",
        ["a"],
        ["b"],
        [
            helper.make_node("Constant", [], ["inner"]),
            helper.make_node("Mul", ["a", "inner"], ["b"]),
        ],
        [helper.make_opsetid("", 21)],
        attributes=["required"],
        attribute_protos=[helper.make_attribute("factor", 2.0)],
        doc_string="",
        value_info=[helper.make_tensor_value_info("b", FLOAT, None), helper.make_tensor_value_info("a", FLOAT, None)],
    )
    reference = function.node[0].attribute.add(name="value_float", type=onnx.AttributeProto.FLOAT)
    reference.ref_attr_name = "factor"
    function.metadata_props.add(key="f", value="g")
    model = helper.make_model(graph, functions=[function], producer_name="", doc_string="all", ir_version=11)
    del model.opset_import[:]
    for domain, version in (("ai.onnx", 21), ("ai.onnx.ml", 5), ("my.domain", 1), ("my.functions", 1), ("ai.onnx", 20)):
        model.opset_import.add(domain=domain, version=version)
    model.metadata_props.add(key="z", value="1")
    model.metadata_props.add(key="a", value="2")
    model.configuration.add(name="two", num_devices=2, device=["a", "b"])
    training = model.training_info.add()
    training.algorithm.CopyFrom(_body("algorithm", "step"))
    training.update_binding.add(key="weight", value="step")
    return model
