"""A small net that tests edit while a session runs it, with the values that the net computes."""

from __future__ import annotations

import numpy as np
import onnx

W = np.arange(1, 13, dtype=np.float32).reshape(4, 3) / 10
B = np.array([1, 2, 3], np.float32)
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
H = X @ W

HEAD = "head (float[M, 3] h) => (float[M] y) <int64[1] axis = {1}> { t = Exp(h) y = ReduceSum<keepdims = 0>(t, axis) }"
"""A model that reads the net's result."""


def parsed(graph: str, opset: int = 17) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {graph}')


def net() -> onnx.ModelProto:
    weights = ", ".join(str(w) for w in W.ravel())
    return parsed(
        f"net (float[N, 4] x) => (float[N, 3] y) <float[4, 3] w = {{{weights}}}, float[3] b = {{1, 2, 3}}>"
        " { [mm] h = MatMul(x, w) [add] s = Add(h, b) [relu] y = Relu(s) }"
    )


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)
