"""Calls of a model with open sizes: every call has the results of its own sizes, whatever came before."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser

from sardonyx.runtime.session import Session

MODEL = """
<ir_version: 8, opset_import: ["": 18]>
g (float[N, M] x, float[M] b) => (float[N, M] y, float[N] s) {
   y = Mul (x, b)
   axes = Constant <value_ints = [1]> ()
   s = ReduceSum <keepdims = 0> (y, axes)
}
"""


def test_sizes_come_and_go() -> None:
    session = Session(onnx.parser.parse_model(MODEL), compile="wait")
    rng = np.random.default_rng(0)
    for n, m in [(2, 3)] * 4 + [(5, 3), (2, 3), (2, 3), (7, 1), (7, 1), (7, 1), (2, 3), (0, 4), (0, 4), (0, 4)]:
        x, b = rng.standard_normal((n, m)).astype(np.float32), rng.standard_normal(m).astype(np.float32)
        y, s = session.run(None, {"x": x, "b": b})
        np.testing.assert_array_equal(y, x * b)
        np.testing.assert_allclose(s, (x * b).sum(1), rtol=1e-5, atol=1e-6)
        # The results of a call stay what they were.
        again, _ = session.run(None, {"x": x + 1, "b": b})
        np.testing.assert_array_equal(y, x * b)
        np.testing.assert_array_equal(again, (x + 1) * b)
