"""Models for programs over other weights, and weights for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from sardonyx.core.eval.run_context import RunContext
from sardonyx.model import load
from sardonyx.runtime.compiled.compiled_model import NativeModel

RNG = np.random.default_rng(0)


def parsed(graph: str) -> ir.Model:
    return load(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}'))


def with_weights(model: ir.Model, draw: Callable[[str, np.ndarray], np.ndarray]) -> ir.Model:
    twin = model.clone()
    for name, value in twin.graph.initializers.items():
        assert value.const_value is not None
        value.const_value = ir.Tensor(draw(name, value.const_value.numpy()), name=name)
    return twin


def drawn(_: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "f":
        return (RNG.random(array.shape) + 0.1).astype(array.dtype)
    return RNG.integers(0, 100, array.shape).astype(array.dtype)


def run(native: NativeModel, feeds: dict[str, Any]) -> list[np.ndarray]:
    return native.run(None, feeds, RunContext())


CONVOLUTIONS = """net (float[1, 3, 12, 12] x) => (float[1, 16, 12, 12] y)
    <float[16, 3, 3, 3] w, float[16, 16, 3, 3] v, float[16] s, float[16] b, float[16] m, float[16] n,
     float[16, 1, 3, 3] d>
    {
        c = Conv<pads = [1, 1, 1, 1]>(x, w)
        e = BatchNormalization(c, s, b, m, n)
        f = Relu(e)
        g = Conv<pads = [1, 1, 1, 1]>(f, v, b)
        h = Conv<pads = [1, 1, 1, 1], group = 16>(g, d)
        y = Add(h, f)
    }"""
PRODUCTS = """net (float[N, 8] x) => (float[N, 8] y) <float[8, 16] w, float[16] b, float[16, 8] v>
    { h = MatMul(x, w) i = Add(h, b) y = MatMul(i, v) }"""
TRANSPOSED = """net (float[N, 3, 8] x) => (float[N, 3, 8] y) <float[16, 8] w, float[16] b, float[8, 16] v>
    { t = Transpose<perm = [1, 0]>(w) h = MatMul(x, t) i = Add(h, b) r = Relu(i) u = Transpose<perm = [1, 0]>(v)
      z = MatMul(r, u) y = Relu(z) }"""
QUANTIZED = """net (uint8[4, 96] x) => (int32[4, 64] y) <int8[96, 64] w> { y = MatMulInteger(x, w) }"""
LOOP = """net (float[4, 4] x) => (float[4, 4] y) <int64 n = {3}, bool t = {1}, float[4, 4] w>
    { y = Loop(n, t, x) <body = body (int64 i, bool c, float[4, 4] a) => (bool d, float[4, 4] r)
        { d = Identity(c) r = MatMul(a, w) }> }"""
MODELS: dict[str, tuple[str, dict[str, np.ndarray]]] = {
    "convolutions": (CONVOLUTIONS, {"x": RNG.random((1, 3, 12, 12)).astype(np.float32)}),
    "products": (PRODUCTS, {"x": RNG.random((3, 8)).astype(np.float32)}),
    "transposed": (TRANSPOSED, {"x": RNG.random((2, 3, 8)).astype(np.float32)}),
    "quantized": (QUANTIZED, {"x": RNG.integers(0, 255, (4, 96)).astype(np.uint8)}),
    "loop": (LOOP, {"x": RNG.random((4, 4)).astype(np.float32)}),
}


def filled(name: str) -> tuple[ir.Model, dict[str, np.ndarray]]:
    """A model with drawn weights where it only declares them."""
    graph, feeds = MODELS[name]
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}')
    for info in proto.graph.value_info:
        tensor = info.type.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        array = drawn("", np.zeros(shape, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)))
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, info.name))
    del proto.graph.value_info[:]
    return load(proto), feeds
