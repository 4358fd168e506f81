"""Small networks and data for tests of training."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper


def classifier(seed: int = 0, *, normalized: bool = False, softmax: bool = False, dropout: float = 0.0) -> bytes:
    """Return two convolutions, a pool and a product: images [N, 1, 8, 8] to logits [N, 3]."""
    rng = np.random.default_rng(seed)

    def weight(name: str, *shape: int, scale: float | None = None) -> onnx.TensorProto:
        size = 1 / np.sqrt(np.prod(shape[1:])) if scale is None else scale
        return helper.make_tensor(name, TensorProto.FLOAT, shape, (rng.standard_normal(shape) * size).ravel())

    weights = [weight("conv1.weight", 4, 1, 3, 3), weight("conv1.bias", 4, scale=0.1)]
    weights += [weight("conv2.weight", 4, 4, 3, 3), weight("head.weight", 3, 4), weight("head.bias", 3, scale=0.1)]
    nodes = [helper.make_node("Conv", ["image", "conv1.weight", "conv1.bias"], ["c1"], "conv1", pads=[1] * 4)]
    last = "c1"
    if normalized:
        weights += [helper.make_tensor("bn.weight", TensorProto.FLOAT, [4], [1.0] * 4)]
        weights += [helper.make_tensor("bn.bias", TensorProto.FLOAT, [4], [0.0] * 4)]
        weights += [helper.make_tensor("bn.running_mean", TensorProto.FLOAT, [4], [0.0] * 4)]
        weights += [helper.make_tensor("bn.running_var", TensorProto.FLOAT, [4], [1.0] * 4)]
        names = ["c1", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"]
        nodes.append(helper.make_node("BatchNormalization", names, ["n1"], "bn"))
        last = "n1"
    nodes += [
        helper.make_node("Relu", [last], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", "conv2.weight"], ["c2"], "conv2", pads=[1] * 4),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("GlobalAveragePool", ["r2"], ["a"]),
        helper.make_node("Flatten", ["a"], ["f"]),
    ]
    last = "f"
    if dropout:
        weights += [helper.make_tensor("ratio", TensorProto.FLOAT, [], [dropout])]
        nodes.append(helper.make_node("Dropout", ["f", "ratio"], ["d"], "drop"))
        last = "d"
    nodes.append(helper.make_node("Gemm", [last, "head.weight", "head.bias"], ["logits"], "head", transB=1))
    output = "logits"
    if softmax:
        nodes.append(helper.make_node("Softmax", ["logits"], ["probabilities"], "softmax"))
        output = "probabilities"
    x = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 8, 8])
    y = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["N", 3])
    graph = helper.make_graph(nodes, "classifier", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def regression(dtype: int = TensorProto.FLOAT, features: int = 4, results: int = 2) -> bytes:
    """Return a product and a bias: [N, features] to [N, results]."""
    rng = np.random.default_rng(3)
    weights = [
        helper.make_tensor("w", dtype, [features, results], rng.standard_normal(features * results)),
        helper.make_tensor("b", dtype, [results], [0.1, -0.2, 0.3][:results]),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "product"),
        helper.make_node("Add", ["m", "b"], ["y"], "sum"),
    ]
    x = helper.make_tensor_value_info("x", dtype, ["N", features])
    y = helper.make_tensor_value_info("y", dtype, ["N", results])
    graph = helper.make_graph(nodes, "regression", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def images(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return images whose class is the third of the image that is brightest, with labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    image = rng.random((count, 1, 8, 8)).astype(np.float32) * 0.5
    for i, label in enumerate(labels):
        image[i, 0, :, label * 3 : label * 3 + 2] += 1
    return {"image": image, "labels": labels.astype(np.int64)}


def points(count: int, seed: int = 0, features: int = 4, results: int = 2) -> dict[str, np.ndarray]:
    """Return inputs and targets of a linear function."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, features)).astype(np.float32)
    size = features * results
    return {"x": x, "labels": (x @ np.arange(size).reshape(features, results) / size).astype(np.float32)}
