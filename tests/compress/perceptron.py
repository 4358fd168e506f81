"""A perceptron of three layers with samples, for the functions of compression."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper

TEXT = """<ir_version: 9, opset_import: ["": 17]> net (float[N, 8] x) => (float[N, 4] y)
    { h = Gemm(x, a, b) r = Relu(h) i = Gemm(r, c, d) j = Relu(i) y = Gemm(j, e, f) }"""


def weight(*shape: int, seed: int = 0) -> np.ndarray:
    return (0.3 * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def network(text: str = TEXT) -> bytes:
    shapes = {"a": (8, 64), "b": (64,), "c": (64, 64), "d": (64,), "e": (64, 4), "f": (4,)}
    model = onnx.parser.parse_model(text)
    arrays = {name: weight(*shape, seed=number) for number, (name, shape) in enumerate(shapes.items())}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return bytes(model.SerializeToString())


def samples(count: int = 6) -> list[dict[str, np.ndarray]]:
    return [{"x": weight(4, 8, seed=seed)} for seed in range(count)]
