"""Rescaled channels keep the function of a float model, and even out the ranges that integers have to span."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import sardonyx
from sardonyx.compress.quantization.methods.awq import scale_by_activation
from sardonyx.compress.quantization.methods.channel_groups import (
    find_channel_groups,
    largest_per_channel,
    largest_per_parameter,
    rescale,
)
from sardonyx.compress.quantization.methods.equalization import equalize
from sardonyx.compress.quantization.methods.smoothing import smooth
from sardonyx.compress.quantization.steps import Preview
from sardonyx.rewrite.analysis.inference import infer_shapes

UNEVEN = np.exp(np.random.default_rng(9).uniform(-3, 3, 8))


def model_of(nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], shape: list[Any], rank: int) -> ir.Model:
    tensors = [onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)
    graph = helper.make_graph(nodes, "net", [x], [y], tensors)
    model = sardonyx.load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    infer_shapes(model)
    return model


def convolutions() -> ir.Model:
    """Return a convolution, a depthwise one, a squeeze and excitation, and a product after a pool."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.standard_normal((8, 3, 3, 3)) * UNEVEN[:, None, None, None], "b1": rng.standard_normal(8) * UNEVEN,
        "w2": rng.standard_normal((8, 1, 3, 3)) / UNEVEN[:, None, None, None], "b2": rng.standard_normal(8),
        "ws": rng.standard_normal((8, 8, 1, 1)), "w3": rng.standard_normal((8, 6)), "b3": rng.standard_normal(6),
        "w4": rng.standard_normal((6, 2)),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["m1"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["m1", "w2", "b2"], ["c2"], "depthwise", group=8, pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c2"], ["s1"]),
        helper.make_node("Conv", ["s1", "ws"], ["s2"], "squeeze"),
        helper.make_node("Sigmoid", ["s2"], ["s3"]),
        helper.make_node("Mul", ["c2", "s3"], ["e"]),
        helper.make_node("GlobalAveragePool", ["e"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["g"], "gemm"),
        helper.make_node("Relu", ["g"], ["r2"]),
        helper.make_node("MatMul", ["r2", "w4"], ["y"], "head"),
    ]
    return model_of(nodes, weights, ["N", 3, 12, 12], 2)


def transformer() -> ir.Model:
    """Return a normalization that two products read, gated, with a bias as a sum."""
    rng = np.random.default_rng(0)
    weights = {
        "g": UNEVEN, "b": rng.standard_normal(8), "up": rng.standard_normal((8, 8)), "ub": rng.standard_normal(8),
        "gate": rng.standard_normal((8, 8)), "down": rng.standard_normal((8, 8)) / UNEVEN[:, None],
    }  # fmt: skip
    nodes = [
        helper.make_node("LayerNormalization", ["x", "g", "b"], ["n"], "norm", axis=-1),
        helper.make_node("MatMul", ["n", "up"], ["u1"], "up_product"),
        helper.make_node("Add", ["u1", "ub"], ["u2"]),
        helper.make_node("MatMul", ["n", "gate"], ["v1"], "gate_product"),
        helper.make_node("Sigmoid", ["v1"], ["v2"]),
        helper.make_node("Mul", ["v2", "u2"], ["h"]),
        helper.make_node("MatMul", ["h", "down"], ["d"], "down_product"),
        helper.make_node("Add", ["d", "x"], ["y"]),
    ]
    return model_of(nodes, weights, ["N", 5, 8], 3)


MODELS = {"convolutions": (convolutions, (2, 3, 12, 12)), "transformer": (transformer, (2, 5, 8))}


def feeds(shape: tuple[int, ...], seed: int = 1) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}


def output(model: ir.Model, sample: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(sardonyx.Session(model, compile="wait").run(None, sample)[0])


def assert_same(model: ir.Model, before: np.ndarray, sample: dict[str, np.ndarray]) -> None:
    onnx.checker.check_model(sardonyx.to_proto(model), full_check=True)
    after = output(model, sample)
    assert np.abs(after - before).max() <= 2e-5 * np.abs(before).max()


def groups_of(model: ir.Model) -> set[str]:
    return {", ".join(sorted(group.label.split(", "))) for group in find_channel_groups(model)}


def test_groups_pass_operators_that_commute_with_factors() -> None:
    assert groups_of(convolutions()) == {"depthwise", "gemm, squeeze", "head"}
    assert groups_of(transformer()) == {"gate_product, up_product", "down_product"}


@pytest.mark.parametrize("name", MODELS)
def test_any_factors_keep_the_function(name: str) -> None:
    build, shape = MODELS[name]
    model, sample = build(), feeds(shape)
    before = output(model, sample)
    rng = np.random.default_rng(3)
    for group in find_channel_groups(model):
        rescale(model, group, np.exp(rng.uniform(-2, 2, group.channels)))
    assert_same(model, before, sample)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", [equalize, smooth, scale_by_activation])
def test_methods_keep_the_function_and_repeat(method: Any, name: str) -> None:
    build, shape = MODELS[name]
    first, second, sample = build(), build(), feeds(shape)
    before = output(first, sample)
    notes = [list(method(model, Preview(iter([feeds(shape, 5)])))) for model in (first, second)]
    assert notes[0] == notes[1] and len(notes[0]) == 1
    assert_same(first, before, sample)
    assert np.array_equal(output(first, sample), output(second, sample))


def test_equalization_gives_both_ends_the_same_ranges() -> None:
    model = convolutions()
    before = next(group for group in find_channel_groups(model) if group.label == "depthwise")
    assert np.ptp(np.log(largest_per_parameter(before) / largest_per_channel(before.sites[0], 8))) > 5
    equalize(model)
    group = next(group for group in find_channel_groups(model) if group.label == "depthwise")
    first = largest_per_parameter(group)
    second = largest_per_channel(group.sites[0], group.channels)
    assert np.ptp(np.log(first / second)) < 0.1


def test_smoothing_raises_the_signal_to_noise_ratio() -> None:
    data = [feeds((2, 5, 8), seed) for seed in range(12)]
    errors = {
        method: sardonyx.quantize(sardonyx.to_proto(transformer()), data, method=method, calibration="minmax")
        .report.outputs[0].sqnr
        for method in ("nearest", "smoothquant")
    }  # fmt: skip
    assert errors["smoothquant"] > errors["nearest"] + 2


def test_without_data_activations_stay() -> None:
    model = transformer()
    before = sardonyx.to_proto(model).SerializeToString()
    for method in (smooth, scale_by_activation):
        assert "Without data" in method(model, Preview(iter(())))[0]
    assert sardonyx.to_proto(model).SerializeToString() == before


REFUSED = {
    "a clipped activation": [("Clip", ["c", "low", "high"], "v")],
    "a graph output": [("Relu", ["c"], "y2")],
    "a square": [("Mul", ["c", "c"], "v")],
    "the divisor": [("Div", ["x", "c"], "v")],
}


@pytest.mark.parametrize("reason", REFUSED)
def test_other_operators_end_a_group(reason: str) -> None:
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((3, 3, 1, 1)), "w2": rng.standard_normal((3, 3, 1, 1)),
               "low": np.array(-1.0), "high": np.array(1.0)}  # fmt: skip
    ((op, inputs, result),) = REFUSED[reason]
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], "first"), helper.make_node(op, inputs, [result]),
             helper.make_node("Conv", [result, "w2"], ["y"], "second")]  # fmt: skip
    model = model_of(nodes, weights, ["N", 3, 4, 4], 4)
    if result == "y2":
        model.graph.outputs.append(next(node.outputs[0] for node in model.graph if node.op_type == "Relu"))
    assert groups_of(model) == set()
