"""Old ONNX files are lifted, and their weights stop being inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.errors import OptionError


def old_model() -> onnx.ModelProto:
    """Return a model of opset 6 and IR 3: broadcasting by attribute, sizes by attribute, weights as inputs."""
    w = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    b = np.array([1, -2, 0.5], np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"], broadcast=1, axis=1),
        helper.make_node("Clip", ["s"], ["y"], min=-1.0, max=2.0),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4]),
        helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 3]),
        helper.make_tensor_value_info("b", TensorProto.FLOAT, [3]),
    ]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])]
    weights = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")]
    graph = helper.make_graph(nodes, "old", inputs, outputs, weights)
    return helper.make_model(graph, ir_version=3, opset_imports=[helper.make_opsetid("", 6)])


def test_an_old_file_is_lifted_and_proved(tmp_path: Path) -> None:
    path = tmp_path / "old.onnx"
    onnx.save(old_model(), path)
    converted = sardonyx.convert(str(path))
    assert converted.report.verdict.status == "proved", converted.report.verdict.reason
    assert [value.name for value in converted.model.graph.inputs] == ["x"]
    assert converted.model.graph.opset_imports[""] == 21
    assert len(converted.report.sizes["N"]) > 1
    assert "2 weights" in converted.report.notes[0]


def test_an_example_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
    )
    path = tmp_path / "old.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)], ir_version=3), path)
    with pytest.raises(OptionError, match="got float32"):
        sardonyx.convert(path, [np.zeros((2, 4), np.float32)])
