"""Quantized models keep the limits of their target, and load in it where it is installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.compress.quantization.scheme import Scheme
from sardonyx.errors import UnsupportedError

RNG = np.random.default_rng(0)


def product(depth: int) -> ir.Model:
    """Return a model of one product by a matrix of so many rows."""
    weight = numpy_helper.from_array(RNG.normal(size=(depth, 16)).astype(np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", depth])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 16])], [weight],
    )  # fmt: skip
    return sardonyx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


def recurrent() -> ir.Model:
    """Return a model of a GRU and a product."""
    arrays = {"w": (1, 24, 6), "r": (1, 24, 8), "p": (8, 5)}
    weights = [numpy_helper.from_array(RNG.normal(size=s).astype(np.float32), n) for n, s in arrays.items()]
    nodes = [
        helper.make_node("GRU", ["x", "w", "r"], ["", "h"], name="layer", hidden_size=8),
        helper.make_node("MatMul", ["h", "p"], ["y"], name="product"),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [7, 1, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 5])], weights,
    )  # fmt: skip
    return sardonyx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10))


def convolutions(channels: int, filters: int) -> ir.Model:
    """Return a model of two convolutions, the first with so many channels and filters."""
    shapes = {"w": (filters, channels, 3, 3), "v": (4, filters, 1, 1)}
    weights = [numpy_helper.from_array(RNG.normal(size=s).astype(np.float32), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="first"), helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "v"], ["y"], name="second"),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 6, 6])], weights,
    )  # fmt: skip
    return sardonyx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10))


def dequantized(model: ir.Model) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Return the size of blocks and the shape of the stored weights, by the operator that reads them."""
    return {
        node.outputs[0].uses()[0].node.op_type: (
            node.attributes["block_size"].as_int() if "block_size" in node.attributes else 0,
            tuple(node.inputs[0].const_value.shape),
        )
        for node in model.graph
        if node.op_type == "DequantizeLinear" and node.inputs[0].const_value is not None
    }


def compiled(model: ir.Model, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """Return the result of OpenVINO."""
    openvino = pytest.importorskip("openvino")
    program = openvino.Core().compile_model(openvino.Core().read_model(_bytes(model)), "CPU")
    return np.asarray(next(iter(program(feeds).values())))


def _bytes(model: ir.Model) -> Any:
    import io

    return io.BytesIO(ir.to_proto(model).SerializeToString())


@pytest.mark.parametrize(("depth", "block"), [(64, 32), (48, 24), (40, 20), (37, 0), (32, 0)])
def test_blocks_are_whole_where_the_target_needs_it(depth: int, block: int) -> None:
    model = product(depth)
    for target in ("openvino", "tensorrt"):
        result = sardonyx.quantize(model, weights="int4", target=target, symmetric=True).model
        assert dequantized(result)["MatMul"] == (block, (depth, 16))
    x = RNG.normal(size=(3, depth)).astype(np.float32)
    result = sardonyx.quantize(model, [x], weights="int4", target="openvino").model
    assert dequantized(result)["MatMul"][0] == block
    (expected,) = sardonyx.Session(result).run(None, {"x": x})
    np.testing.assert_allclose(compiled(result, {"x": x}), expected, rtol=0, atol=0.02 * np.abs(expected).max())


def test_other_targets_have_a_short_last_block() -> None:
    result = sardonyx.quantize(product(48), weights="int4").model
    assert dequantized(result)["MatMul"][0] == 32
    assert Scheme(granularity="block", block=32).block_along(48) == 32


def test_openvino_reads_no_integers_of_2_bits() -> None:
    with pytest.raises(UnsupportedError, match="openvino does not dequantize"):
        sardonyx.quantize(product(64), weights="int2", target="openvino")


@pytest.mark.parametrize(("channels", "filters"), [(6, 10), (8, 8)], ids=["other", "as many filters"])
def test_integer_convolutions_for_openvino_have_one_scale(channels: int, filters: int) -> None:
    model = convolutions(channels, filters)
    samples = [RNG.normal(size=(1, channels, 8, 8)).astype(np.float32) for _ in range(8)]
    options: dict[str, Any] = {"form": "qoperator", "target": "openvino"}
    result = sardonyx.quantize(model, samples, **options).model
    assert "QLinearConv" not in [node.op_type for node in result.graph]
    (expected,) = sardonyx.Session(model).run(None, {"x": samples[0]})
    largest = np.abs(expected).max()
    np.testing.assert_allclose(compiled(result, {"x": samples[0]}), expected, rtol=0, atol=0.05 * largest)
    one = sardonyx.quantize(model, samples, granularity="tensor", **options).model
    assert "QLinearConv" in [node.op_type for node in one.graph]
    np.testing.assert_allclose(compiled(one, {"x": samples[0]}), expected, rtol=0, atol=0.05 * largest)


def test_recurrent_weights_beside_static_ranges_follow_the_target() -> None:
    model, samples = recurrent(), [RNG.normal(size=(7, 1, 6)).astype(np.float32) for _ in range(8)]
    static = sardonyx.quantize(model, samples, target="openvino")
    assert set(dequantized(static.model)) == {"MatMul"}
    assert any("openvino reads no integers as weights of recurrent layers" in note for note in static.report.notes)
    assert compiled(static.model, {"x": samples[0]}).shape == (1, 1, 5)
    alone = sardonyx.quantize(model, mode="weights", target="openvino")
    assert "GRU" in dequantized(alone.model)
    assert compiled(alone.model, {"x": samples[0]}).shape == (1, 1, 5)
    assert "GRU" in dequantized(sardonyx.quantize(model, samples).model)
