"""The constant that is added to a product corrects the mean error of the product's weight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper, parser

import sardonyx
from sardonyx.compress.quantization import quantize
from sardonyx.compress.quantization.bias_correction import mean_error
from sardonyx.compress.quantization.calibration import Observation
from sardonyx.compress.quantization.placement import find_placement
from sardonyx.compress.quantization.scheme import Scheme
from sardonyx.compress.quantization.site_inputs import Needs
from sardonyx.compress.quantization.weights import quantize_weight


def test_the_constant_after_a_product_corrects_the_mean_error() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> m (float[N, 32] x) => (float[N, 10] y) {
        p = MatMul(x, w1)
        a = Add(b1, p)
        s = Sigmoid(a)
        q = MatMul(s, w2)
        y = Add(q, b2)
    }"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("w1", (32, 64)), ("b1", (64,)), ("w2", (64, 10)), ("b2", (1, 10))):
        model.graph.initializer.append(
            numpy_helper.from_array((rng.standard_normal(shape) / 6).astype(np.float32), name)
        )
    samples = [{"x": np.abs(rng.standard_normal((4, 32))).astype(np.float32)} for _ in range(12)]
    plain, corrected = (
        quantize(model, samples, method="nearest", calibration="mse", bias_correction=corrects).report.outputs[0].sqnr
        for corrects in (False, True)
    )
    assert corrected > plain + 3
    plain, corrected = (
        quantize(model, samples, weights="int4", method="least-squares", bias_correction=corrects)
        .report.outputs[0]
        .sqnr
        for corrects in (False, True)
    )
    assert corrected > plain + 1


def test_the_bias_corrects_the_mean_error_of_inputs_that_are_near_the_least_value_of_a_gate() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> m (float[16, 8] x) => (float[16, 6] y) {
        p = Gemm(x, w1, b1)
        s = Sigmoid(p)
        t = Mul(p, s)
        y = Gemm(t, w2, b2)
    }"""
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape, shift in (("w1", (8, 32), 0.0), ("b1", (32,), -1.5), ("w2", (32, 6), 0.3), ("b2", (6,), 0.0)):
        array = (rng.standard_normal(shape) / 6 + shift).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    rows = [rng.standard_normal((16, 8)).astype(np.float32) for _ in range(12)]
    for array in rows:
        array[0] *= 300  # A step of about 0.5, beside values of -0.3 to 0.
    plain, corrected = (
        quantize(
            model, [{"x": array} for array in rows], calibration="minmax", bias_correction=corrects
        ).report.outputs[0].sqnr
        for corrects in (False, True)
    )  # fmt: skip
    assert corrected > plain + 1


def test_the_mean_error_of_a_convolution_counts_the_zeros_of_borders() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> m (float[8, 4, 2, 2] x) => (float[8, 6, 2, 2] y) {
        y = Conv <pads = [1, 1, 1, 1]> (x, w)
    }"""
    proto = parser.parse_model(text)
    rng = np.random.default_rng(0)
    floats = rng.standard_normal((6, 4, 3, 3)).astype(np.float32)
    x = np.abs(rng.standard_normal((8, 4, 2, 2))).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(floats, "w"))
    model = sardonyx.load(proto)
    (site,) = find_placement(model).sites
    seen = Observation(model, (), [{"x": x}], [site], Needs(row_means=True)).inputs[site.label]
    weight = quantize_weight(site.weight, site.channel_axis, site.sum_axis, Scheme())
    before = sardonyx.run(model, {"x": x})["y"]
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight.dequantized(), "w"))
    error = (before - sardonyx.run(proto, {"x": x})["y"]).mean((0, 2, 3))
    np.testing.assert_allclose(mean_error(site, weight, seen.row_means), error, atol=1e-6)
    assert np.abs(error).max() > 1e-4


@pytest.mark.parametrize("options", [{"calibration": "minmax"}, {"mode": "weights", "weights": "int4"}])
def test_a_column_that_a_product_adds_to_rows_is_no_bias_of_channels(options: dict[str, Any]) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> m (float[16, 32] x) => (float[16, 16] y) { y = Gemm(x, w, c) }"""
    proto = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape, factor in (("w", (32, 16), 0.1), ("c", (16, 1), 5.0)):
        array = (factor * rng.standard_normal(shape)).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    samples = [{"x": rng.standard_normal((16, 32)).astype(np.float32)} for _ in range(8)]
    result = quantize(proto, samples, method="gptq", **options)
    expected, y = (sardonyx.run(model, samples[0])["y"] for model in (proto, result.model))
    assert np.abs(y - expected).max() < 0.2 and np.abs(expected).max() > 5


def test_second_order_rounding_holds_beside_large_means_and_equal_samples() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> m (float[N, 64] x) => (float[N, 32] y) { y = Gemm(x, w, b) }"""
    proto = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape, factor in (("w", (64, 32), 0.1), ("b", (32,), 1.0)):
        array = (factor * rng.standard_normal(shape)).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    common = 100 * np.abs(rng.normal(1, 0.3, 64))
    x = (common * rng.normal(1, 0.01, (4, 3000, 1)) + rng.standard_normal((4, 3000, 64))).astype(np.float32)
    result = quantize(proto, [{"x": one} for one in x[:3]], mode="weights", weights="int4", method="gptq")
    expected, y = (sardonyx.run(model, {"x": x[3]})["y"] for model in (proto, result.model))
    assert expected.std(0).mean() > 12 * (y - expected).std()
    equal = [{"x": x[0, :1]}] * 8
    result = quantize(proto, equal, mode="weights", weights="int4", method="gptq")
    expected, y = (sardonyx.run(model, equal[0])["y"] for model in (proto, result.model))
    np.testing.assert_allclose(y, expected, atol=1e-3 * np.abs(expected).max())
