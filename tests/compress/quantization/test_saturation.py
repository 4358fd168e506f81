"""Sums of two products in 16 bits, and scales that biases permit: the same answers on all engines and processors."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.compress.quantization.saturation import MOST, exact, neighbour_sums, without_saturation


def _network(opset: int = 17, zero: bool = False, shared: bool = False, columns: int = 5) -> bytes:
    """Return two convolutions, the second of which reads sums of large inputs, and a product."""
    rng = np.random.default_rng(0)
    w1 = rng.standard_normal((16, 8, 3, 3)).astype(np.float32)
    b1 = rng.standard_normal(16).astype(np.float32)
    if zero:
        w1[::2] = 0
        w1[1] *= 1e-30
        b1[1] = 3.0
    arrays = {"w1": w1, "b1": b1, "w3": rng.standard_normal((16, columns)).astype(np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
    ]
    last = "r1"
    if shared:
        arrays["w2"] = rng.standard_normal((16, 16, 1, 1)).astype(np.float32)
        arrays |= {f"b{n}": rng.standard_normal(16).astype(np.float32) * 10**n for n in (2, 3)}
        nodes += [
            helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], "conv2"),
            helper.make_node("Relu", ["c2"], ["r2"], "relu2"),
            helper.make_node("Conv", ["r2", "w2", "b3"], ["c3"], "conv3"),
        ]
        last = "c3"
    nodes += [
        helper.make_node("GlobalAveragePool", [last], ["g"], "pool"),
        helper.make_node("Flatten", ["g"], ["f"], "flatten"),
        helper.make_node("MatMul", ["f", "w3"], ["y"], "product"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 10, 10])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, columns])
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8).SerializeToString()


def _samples() -> list[dict[str, np.ndarray]]:
    """Return samples with many values near the largest, as of bright images."""
    rng = np.random.default_rng(1)
    return [{"x": np.minimum(rng.uniform(0, 2, (1, 8, 10, 10)), 1).astype(np.float32)} for _ in range(12)]


def _bytes(model: ir.Model) -> bytes:
    return ir.to_proto(model).SerializeToString()


def _arrays(data: bytes) -> dict[str, np.ndarray]:
    return {one.name: numpy_helper.to_array(one) for one in onnx.load_from_string(data).graph.initializer}


def _weights(data: bytes) -> list[tuple[np.ndarray, int, bool]]:
    """Return the 8-bit weights of a model, the axis of channels, and True for matrices."""
    arrays = [array for array in _arrays(data).values() if array.dtype == np.int8 and array.ndim > 1]
    return [(array, 1 if array.ndim == 2 else 0, array.ndim == 2) for array in arrays]


def _ratio(data: bytes, reference: bytes) -> float:
    """Return the signal-to-noise ratio of ONNX Runtime's answers in dB."""
    signal = noise = 0.0
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    sessions = [
        onnxruntime.InferenceSession(one, options, providers=["CPUExecutionProvider"]) for one in (reference, data)
    ]
    for feeds in _samples():
        first, second = (np.asarray(session.run(None, feeds)[0], np.float64) for session in sessions)
        signal, noise = signal + float(np.square(first).sum()), noise + float(np.square(first - second).sum())
    return float(10 * np.log10(signal / max(noise, 1e-300)))


@pytest.mark.parametrize("shape", [(6, 40), (6, 5, 3, 3), (6, 1, 7), (1, 2, 2, 2)])
def test_scales_are_widened_where_sums_would_saturate_alone(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    weight = rng.standard_normal(shape).astype(np.float32)
    weight[0] = np.where(np.arange(weight[0].size) == 0, 1, 0.01).reshape(weight[0].shape)
    whole = (np.abs(weight).reshape(len(weight), -1).max(1) / 127).astype(np.float32)
    is_matrix = len(shape) == 2

    def nearest(scales: np.ndarray) -> np.ndarray:
        return np.clip(np.rint(weight / scales.reshape(-1, *[1] * (len(shape) - 1))), -127, 127).astype(np.int8)

    values, scales = exact(nearest, whole, 0, is_matrix)
    before = neighbour_sums(nearest(whole), 0, is_matrix)
    assert neighbour_sums(values, 0, is_matrix).max() <= MOST
    assert np.array_equal(scales[before <= MOST], whole[before <= MOST])
    assert scales[0] == whole[0]
    if len(weight) > 1:
        assert (scales[before > MOST] > whole[before > MOST]).all() and (before > MOST).any()


def test_single_integers_are_reduced_as_little_as_needed() -> None:
    values = np.array([[127, 3, -100, -40, 5], [64, 64, 64, 64, 64]], np.int8)
    repaired = without_saturation(values, 0, True)
    assert repaired.tolist() == [[125, 3, -88, -40, 5], [64, 64, 64, 64, 64]]


OPTIONS: list[dict[str, Any]] = [
    {}, {"method": "nearest"}, {"method": "gptq"}, {"granularity": "tensor"}, {"mode": "dynamic"},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
def test_no_sum_of_two_products_saturates(options: dict[str, Any]) -> None:
    is_dynamic = options.get("mode") == "dynamic"
    network = _network(columns=2048 if is_dynamic else 5)  # A product is dynamic if this saves time.
    data = None if is_dynamic else _samples()
    result = sardonyx.quantize(network, data, **options)
    weights = _weights(_bytes(result.model))
    assert weights
    if is_dynamic:
        weights = [weight for weight in weights if weight[2]]
        assert weights
    for array, axis, is_matrix in weights:
        assert neighbour_sums(array, axis, is_matrix).max() <= MOST
    assert _ratio(_bytes(result.model), network) > 25
    full = sardonyx.quantize(network, data, reduce_range=False, **options)
    assert any(neighbour_sums(*weight).max() > MOST for weight in _weights(_bytes(full.model)))


def test_the_native_target_keeps_8_bits() -> None:
    result = sardonyx.quantize(_network(), _samples(), target="native", method="nearest")
    assert not result.report.scheme.exact_sums
    assert any(neighbour_sums(*weight).max() > MOST for weight in _weights(_bytes(result.model)))


def test_channels_of_zeros_keep_their_biases_on_every_engine() -> None:
    network = _network(zero=True)
    result = sardonyx.quantize(network, _samples())
    assert _ratio(_bytes(result.model), network) > 25
    names = _arrays(_bytes(result.model))
    assert names["b1_quantized"].dtype == np.int32
    assert np.abs(names["b1_quantized"].astype(np.int64)).max() <= 1 << 30


def test_nodes_with_one_weight_have_one_scale() -> None:
    network = _network(shared=True)
    result = sardonyx.quantize(network, _samples(), method="gptq")
    data = _bytes(result.model)
    arrays = _arrays(data)
    for bias, source in (("b2", "r1"), ("b3", "r2")):
        assert np.allclose(arrays[f"{bias}_scale"], arrays["w2_scale"] * arrays[f"{source}_scale"], rtol=1e-6)
    assert _ratio(data, network) > 25


def test_old_operator_sets_are_raised_for_scales_by_channel() -> None:
    result = sardonyx.quantize(_network(opset=11))
    onnx.checker.check_model(_bytes(result.model), full_check=True)
    assert result.report.opset == (11, 13)
    assert any("operator set" in note for note in result.report.notes)


def test_both_directions_of_a_recurrent_layer_share_scales() -> None:
    rng = np.random.default_rng(3)
    arrays = {
        "w": rng.standard_normal((2, 24, 6)), "r": rng.standard_normal((2, 24, 8)), "p": rng.standard_normal((8, 3)),
    }  # fmt: skip
    nodes = [
        helper.make_node("GRU", ["x", "w", "r"], ["", "h"], "gru", hidden_size=8, direction="bidirectional"),
        helper.make_node("MatMul", ["h", "p"], ["y"], "product"),
    ]
    sequence = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", 1, 6])
    result_info = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 1, 3])
    weights = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", [sequence], [result_info], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    samples = [{"x": rng.standard_normal((4, 1, 6)).astype(np.float32)} for _ in range(8)]
    for options in ({}, {"weights": "int4", "block": 4}):
        result = sardonyx.quantize(model, samples, **options)
        assert {error.sqnr > 10 for error in result.report.outputs} == {True}
        onnx.checker.check_model(_bytes(result.model), full_check=True)
