"""Quantization of models whose weights are of other floats than float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx

TYPES = {TensorProto.FLOAT16: np.float16, TensorProto.DOUBLE: np.float64}


def _network(kind: int) -> bytes:
    """Return a convolution, a constant of the type, a conversion to the type, and a product."""
    rng, array = np.random.default_rng(0), TYPES[kind]
    weights = {
        "w1": rng.standard_normal((8, 3, 3, 3)) / 5,
        "b1": rng.standard_normal(8),
        "w2": rng.standard_normal((8, 4)) / 3,
    }
    half = numpy_helper.from_array(np.array(0.5, array), "half")
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c"], "conv", pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("GlobalAveragePool", ["r"], ["g"], "pool"),
        helper.make_node("Flatten", ["g"], ["f"], "flatten"),
        helper.make_node("Constant", [], ["h"], "constant", value=half),
        helper.make_node("Mul", ["f", "h"], ["m"], "scale"),
        helper.make_node("Cast", ["n"], ["k"], "cast", to=kind),
        helper.make_node("Add", ["m", "k"], ["a"], "sum"),
        helper.make_node("MatMul", ["a", "w2"], ["y"], "product"),
    ]
    inputs = [
        helper.make_tensor_value_info("x", kind, ["N", 3, 8, 8]),
        helper.make_tensor_value_info("n", TensorProto.INT64, ["N", 8]),
    ]
    outputs = [
        helper.make_tensor_value_info("y", kind, ["N", 4]),
        helper.make_tensor_value_info("r", kind, ["N", 8, 8, 8]),
    ]
    tensors = [numpy_helper.from_array(value.astype(array), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def _samples(kind: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    return [
        {"x": rng.standard_normal((1, 3, 8, 8)).astype(TYPES[kind]), "n": rng.integers(0, 2, (1, 8))} for _ in range(8)
    ]


@pytest.mark.parametrize("options", [{}, {"mode": "dynamic"}, {"mode": "weights"}], ids=str)
@pytest.mark.parametrize("kind", TYPES, ids=["float16", "double"])
def test_models_of_other_floats_are_quantized_and_keep_their_interface(kind: int, options: dict[str, Any]) -> None:
    samples = _samples(kind)
    result = sardonyx.quantize(_network(kind), samples, **options)
    data = ir.to_proto(result.model).SerializeToString()
    onnx.checker.check_model(data, full_check=True)
    graph = onnx.load_from_string(data).graph
    assert [value.name for value in (*graph.input, *graph.output)] == ["x", "n", "y", "r"]
    assert {value.type.tensor_type.elem_type for value in (graph.input[0], *graph.output)} == {kind}
    stored = [numpy_helper.to_array(tensor).dtype for tensor in graph.initializer]
    assert np.dtype(np.int8) in stored and np.dtype(TYPES[kind]) not in stored
    assert any("computed in float32" in note for note in result.report.notes)
    assert all(error.sqnr > 25 for error in result.report.outputs)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    native = sardonyx.Session(data, compile="wait")
    for first, second in zip(session.run(None, samples[0]), native.run(None, samples[0]), strict=True):
        assert np.asarray(second).dtype == first.dtype == TYPES[kind]
        np.testing.assert_allclose(np.asarray(second, np.float64), first.astype(np.float64), atol=0.05)
