"""The constant that is added to a product corrects the mean error of the product's weight."""

from __future__ import annotations

import numpy as np
from onnx import numpy_helper, parser

from sardonyx.compress.quantization import quantize


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
