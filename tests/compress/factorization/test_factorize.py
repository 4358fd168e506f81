"""Factors of low rank have the products of the layer, fewer weights, and the least error on the inputs seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.compiler.target.description import host
from sardonyx.compress.factorization.low_rank import Spectrum
from sardonyx.errors import OptionError, UnsupportedError

X = {"x": np.random.default_rng(1).standard_normal((3, 24, 9, 9)).astype(np.float32)}
SAMPLES = [
    {"x": np.random.default_rng(seed).standard_normal((2, 24, 9, 9)).astype(np.float32)} for seed in range(2, 10)
]


def network(rank: int) -> bytes:
    """Return a convolution, a Gemm of a transposed weight and a MatMul, each of a rank."""
    rng = np.random.default_rng(0)

    def low(*shape: int) -> np.ndarray:
        product = rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, int(np.prod(shape[1:]))))
        return (product / rank / 8).reshape(shape).astype(np.float32)

    weights = {"w1": low(40, 24, 3, 3), "w2": low(48, 40), "w3": low(48, 32),
               "b1": low(40, 1).reshape(-1), "b2": low(48, 1).reshape(-1)}  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c"], "conv", pads=[1, 1, 0, 0], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["h"], "gemm", transB=1),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("MatMul", ["t", "w3"], ["y"], "product"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 24, "H", "W"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 32])
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "net", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


@pytest.mark.parametrize("data", [None, SAMPLES], ids=["no data", "data"])
def test_layers_of_low_rank_are_two_with_equal_products(data: Any) -> None:
    result = sardonyx.factorize(network(6), data, energy=0.999999)
    lanes = host().lanes(32)
    aligned = -(-6 // lanes) * lanes  # Ranks are whole vectors.
    assert all(not layer.reason and layer.rank == aligned < layer.full for layer in result.report.layers)
    assert result.report.weight_bytes[1] < 0.85 * result.report.weight_bytes[0]
    proto = sardonyx.to_proto(result.model)
    onnx.checker.check_model(proto, full_check=True)
    model = proto.SerializeToString()
    theirs = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, X)[0]
    expected = sardonyx.Session(network(6), compile="wait").run(None, X)[0]
    np.testing.assert_allclose(theirs, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(sardonyx.Session(model, compile="wait").run(None, X)[0], expected, rtol=1e-3, atol=1e-4)


def test_second_moments_choose_the_directions_of_the_inputs() -> None:
    rng = np.random.default_rng(0)
    scales = np.geomspace(1, 1e-3, 20)
    x = rng.standard_normal((500, 20)) * scales[::-1]
    matrix = rng.standard_normal((30, 20)).astype(np.float32)
    errors = []
    for moment in (None, x.T @ x / len(x)):
        left, right = Spectrum.of(matrix, moment).factors(8)
        errors.append(np.square(x @ (matrix - left @ right).T).sum())
    assert errors[1] < 0.05 * errors[0]


def test_a_weight_of_several_layers_stays_whole() -> None:
    """Factors of each of nine layers took four times the bytes of the weight that they share."""
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal((64, 8)) @ rng.standard_normal((8, 64)) / 24).astype(np.float32)
    other = (rng.standard_normal((64, 8)) @ rng.standard_normal((8, 64)) / 24).astype(np.float32)
    nodes = [helper.make_node("MatMul", [f"h{i}", "shared"], [f"h{i + 1}"], f"layer{i}") for i in range(9)]
    nodes.append(helper.make_node("MatMul", ["h9", "own"], ["y"], "last"))
    x = helper.make_tensor_value_info("h0", TensorProto.FLOAT, ["N", 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 64])
    tensors = [numpy_helper.from_array(weight, "shared"), numpy_helper.from_array(other, "own")]
    graph = helper.make_graph(nodes, "net", [x], [y], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    report = sardonyx.factorize(model).report
    assert [layer.name for layer in report.layers if not layer.reason] == ["last"]
    before, after = report.weight_bytes
    assert after < before


def test_a_layer_that_gains_nothing_stays_with_the_reason() -> None:
    with pytest.raises(UnsupportedError, match="no fewer weights"):
        sardonyx.factorize(network(400), energy=0.9999)
    result = sardonyx.factorize(network(6), rank=0.4, exclude=["conv", "gemm"])
    assert [layer.name for layer in result.report.layers] == ["product"]


@pytest.mark.parametrize(
    "options", [{"rank": 0}, {"rank": 1.5}, {"energy": float("nan")}, {"rank": 0.5, "energy": 0.5}]
)
def test_impossible_options_are_named(options: dict[str, float]) -> None:
    with pytest.raises(OptionError, match="expected"):
        sardonyx.factorize(network(6), **options)  # type: ignore[arg-type]
