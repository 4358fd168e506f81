"""Bodies of composed operators: what onnx's C++ code refuses, or would read outside of its memory."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper

from sardonyx import check, convert_opset, load
from sardonyx.errors import InvalidModelError, OpsetConversionError
from sardonyx.model.function_bodies import write_body


def sequence_map(inputs: int, parameters: int, results: int) -> onnx.NodeProto:
    """Return a SequenceMap of one output over a body with such numbers of inputs and outputs."""

    def declared(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2])

    body = helper.make_graph(
        [helper.make_node("Identity", ["b0"], [f"r{i}"]) for i in range(results)], "body",
        [declared(f"b{i}") for i in range(parameters)], [declared(f"r{i}") for i in range(results)],
    )  # fmt: skip
    return helper.make_node("SequenceMap", [f"x{i}" for i in range(inputs)], ["y"], body=body)


def model(node: onnx.NodeProto) -> onnx.ModelProto:
    values = [helper.make_tensor_sequence_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in (*node.input, "y")]
    graph = helper.make_graph([node], "g", values[:-1], values[-1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize("numbers", [(1, 1, 3), (3, 3, 2), (1, 3, 1), (1, 2, 2)])
def test_a_body_that_does_not_fit_its_node_is_refused(numbers: tuple[int, int, int]) -> None:
    node = sequence_map(*numbers)
    schema = onnx.defs.get_schema("SequenceMap", 17)
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2]))
    for types in ([sequence.SerializeToString()] * numbers[0], [b""] * numbers[0]):
        with pytest.raises(InvalidModelError):
            write_body(schema, 17, node, types)
    with pytest.raises(OpsetConversionError):
        convert_opset(load(model(node)), 16)
    assert [finding.code for finding in check(model(node), target="onnxruntime")].count("inference") == 1


def test_a_body_is_written_for_a_node_that_fits() -> None:
    converted = convert_opset(load(model(sequence_map(2, 2, 1))), 16)
    assert "SequenceMap" not in [node.op_type for node in converted.graph]
