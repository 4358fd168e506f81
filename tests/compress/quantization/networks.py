"""Small networks and samples for tests of quantization, and the error of a model on an engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import sardonyx
from sardonyx.compress.quantization import Quantized

Sample = dict[str, np.ndarray]


def tensor(rng: np.random.Generator, name: str, *shape: int) -> onnx.TensorProto:
    values = rng.standard_normal(shape) / np.sqrt(max(np.prod(shape[1:]), 1))
    return helper.make_tensor(name, TensorProto.FLOAT, shape, values.astype(np.float32).ravel())


def detector(opset: int = 17) -> bytes:
    """Return convolutions with pools, a concatenation, a sum, and two heads with values of very different sizes."""
    rng = np.random.default_rng(0)
    weights = [tensor(rng, "w1", 16, 3, 3, 3), tensor(rng, "b1", 16), tensor(rng, "w2", 16, 16, 3, 3)]
    weights += [tensor(rng, "w3", 16, 32, 1, 1), tensor(rng, "w4", 16, 1, 3, 3), tensor(rng, "w5", 6, 16, 1, 1)]
    weights += [helper.make_tensor("size", TensorProto.FLOAT, [], [300.0])]
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "conv2", pads=[1] * 4),
        helper.make_node("Concat", ["r1", "c2"], ["k"], "join", axis=1),
        helper.make_node("Conv", ["k", "w3"], ["c3"], "conv3"),
        helper.make_node("MaxPool", ["c3"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p", "w4"], ["c4"], "depthwise", pads=[1] * 4, group=16),
        helper.make_node("Add", ["p", "c4"], ["s"], "sum"),
        helper.make_node("Conv", ["s", "w5"], ["h"], "head"),
        helper.make_node("Split", ["h"], ["box", "score"], "split", axis=1, num_outputs=2)
        if opset >= 18
        else helper.make_node("Split", ["h"], ["box", "score"], "split", axis=1),
        helper.make_node("Mul", ["box", "size"], ["boxes"], "scale"),
        helper.make_node("Sigmoid", ["score"], ["scores"], "sigmoid"),
        helper.make_node("Concat", ["boxes", "scores"], ["y"], "result", axis=1),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 12, 12])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 6, 6, 6])
    graph = helper.make_graph(nodes, "detector", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9).SerializeToString()


def transformer(width: int = 64, words: int = 50) -> bytes:
    """Return one block with embeddings, masked attention, residual sums with large channels, and a gated product."""
    rng = np.random.default_rng(1)
    text = f"""<ir_version: 9, opset_import: ["": 17]> block (int64[N, T] tokens) => (float[N, T, {words}] logits) {{
        e = Gather(table, tokens)
        n1 = LayerNormalization<axis=-1>(e, g1)
        q = MatMul(n1, wq)
        k = MatMul(n1, wk)
        v = MatMul(n1, wv)
        kt = Transpose<perm=[0, 2, 1]>(k)
        scores = MatMul(q, kt)
        shape = Shape<start=1, end=2>(tokens)
        square = Concat<axis=0>(shape, shape)
        big = Expand(infinity, square)
        mask = Trilu<upper=1>(big, one)
        masked = Add(scores, mask)
        p = Softmax<axis=-1>(masked)
        a = MatMul(p, v)
        o = MatMul(a, wo)
        r1 = Add(e, o)
        n2 = LayerNormalization<axis=-1>(r1, g1)
        u = MatMul(n2, wu)
        t = Sigmoid(u)
        m = Mul(u, t)
        d = MatMul(m, wd)
        r2 = Add(r1, d)
        n3 = LayerNormalization<axis=-1>(r2, g1)
        logits = MatMul(n3, wl)
    }}"""
    model = onnx.parser.parse_model(text)
    table = rng.standard_normal((words, width)).astype(np.float32)
    table[:, 3] *= 40
    arrays = {"table": table, "g1": np.ones(width, np.float32), "infinity": np.full(1, -1e9, np.float32)}
    sizes = {"wq": (width, width), "wk": (width, width), "wv": (width, width), "wo": (width, width)}
    sizes |= {"wu": (width, 2 * width), "wd": (2 * width, width), "wl": (width, words)}
    arrays |= {name: (rng.standard_normal(s) / np.sqrt(s[0])).astype(np.float32) for name, s in sizes.items()}
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
    model.graph.initializer.extend([*tensors, helper.make_tensor("one", TensorProto.INT64, [], [1])])
    return model.SerializeToString()


def images(count: int, seed: int = 1) -> list[Sample]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal((2, 3, 12, 12)).astype(np.float32)} for _ in range(count)]


def sentences(count: int, seed: int = 1) -> list[Sample]:
    """Return token sequences whose length changes from sample to sample."""
    rng = np.random.default_rng(seed)
    return [{"tokens": rng.integers(0, 50, (2, int(rng.integers(3, 12))))} for _ in range(count)]


def decibels(model: bytes, result: Quantized, feeds: list[Sample], engine: str) -> float:
    """Return the signal-to-noise ratio of the first output on an engine."""
    run: Any
    if engine == "native":
        run = sardonyx.Session(result.model, compile="wait").run
    elif engine == "onnxruntime":
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        proto = sardonyx.to_proto(result.model).SerializeToString()
        run = onnxruntime.InferenceSession(proto, options, providers=["CPUExecutionProvider"]).run
    else:
        run = sardonyx.Session(result.model, providers=["openvino"], strict=True).run
    original = sardonyx.Session(model, compile="wait")
    signal = noise = 0.0
    for sample in feeds:
        expected, actual = original.run(None, sample)[0], run(None, sample)[0]
        signal += float(np.square(expected).sum())
        noise += float(np.square(expected - actual).sum())
    return float(10 * np.log10(signal / noise))
