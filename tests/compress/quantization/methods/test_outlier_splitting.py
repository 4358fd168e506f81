"""Splitting of outlier channels keeps the float function, and gives the other channels their bits back."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx.compress.quantization.methods.outlier_splitting import split_outliers
from sardonyx.compress.quantization.steps import Preview
from sardonyx.model.copying import copy_model
from sardonyx.rewrite.analysis.inference import infer_shapes
from sardonyx.runtime.session import Session

CHANNELS = 32


def network(operator: str) -> onnx.ModelProto:
    """Return a gate, and two products or convolutions that read its channels."""
    rng = np.random.default_rng(3)
    shape: list[str | int]
    if operator == "Conv":
        shape, weights = ["N", CHANNELS, 5, 5], [rng.standard_normal((8, CHANNELS, 3, 3)) for _ in range(2)]
    elif operator == "Gemm":
        shape, weights = ["N", CHANNELS], [rng.standard_normal((8, CHANNELS)) for _ in range(2)]
    else:
        shape, weights = ["N", 64, CHANNELS], [rng.standard_normal((CHANNELS, 8)) for _ in range(2)]
    attributes: dict[str, Any] = {"transB": 1} if operator == "Gemm" else {}
    nodes = [helper.make_node("Sigmoid", ["x"], ["g"]), helper.make_node("Mul", ["x", "g"], ["t"])]
    nodes += [helper.make_node(operator, ["t", f"w{i}"], [f"y{i}"], f"site{i}", **attributes) for i in range(2)]
    tensors = [onnx.numpy_helper.from_array(w.astype(np.float32), f"w{i}") for i, w in enumerate(weights)]
    outputs = [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, None) for i in range(2)]
    graph = helper.make_graph(
        nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)], outputs, tensors
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def samples(operator: str, outlier: float) -> list[dict[str, np.ndarray]]:
    batches = {"Conv": (1, CHANNELS, 5, 5), "Gemm": (16, CHANNELS), "MatMul": (1, 64, CHANNELS)}
    sizes: tuple[int, ...] = batches[operator]
    factors = np.ones(CHANNELS, np.float32)
    factors[5] = outlier
    factors = factors.reshape(-1, *[1] * (len(sizes) - 2)) if operator == "Conv" else factors
    rng = np.random.default_rng(0)
    return [{"x": (rng.standard_normal(sizes) * factors).astype(np.float32)} for _ in range(8)]


@pytest.mark.parametrize("operator", ["Conv", "Gemm", "MatMul"])
def test_the_float_function_stays_and_copies_are_few(operator: str) -> None:
    model = sardonyx.load(network(operator))
    infer_shapes(model)
    feeds = samples(operator, 8.0)
    before = [Session(copy_model(model), compile="off").run(None, one) for one in feeds]
    (note,) = split_outliers(model, Preview(iter(feeds)))
    assert note.startswith("1 large channels of 1 activations were split")
    (gather,) = [node for node in model.graph if node.op_type == "Gather"]
    channels = (gather.outputs[0].shape or ())[1 if operator == "Conv" else -1]
    assert isinstance(channels, int)
    assert CHANNELS < channels <= CHANNELS * 1.25
    after = [Session(copy_model(model), compile="off").run(None, one) for one in feeds]
    for first, second in zip(before, after, strict=True):
        np.testing.assert_allclose(np.stack(first), np.stack(second), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("operator", ["Conv", "MatMul"])
def test_split_outliers_lower_the_error_of_static_integers(operator: str) -> None:
    feeds = samples(operator, 8.0)
    worst = {
        method: min(
            error.sqnr for error in sardonyx.quantize(network(operator), feeds, method=method).report.evidence.outputs
        )
        for method in ("nearest", "outlier-split")
    }
    assert worst["outlier-split"] > worst["nearest"] + 3


def test_even_channels_and_models_without_data_are_not_split() -> None:
    model = sardonyx.load(network("MatMul"))
    infer_shapes(model)
    assert split_outliers(model, Preview(iter(samples("MatMul", 1.0))))[0].startswith("No channel is so much larger")
    assert split_outliers(model, Preview(iter(()))) == ["Without data no channel was split."]
    assert not [node for node in model.graph if node.op_type == "Gather"]
