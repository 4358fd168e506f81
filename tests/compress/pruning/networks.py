"""Networks whose last channels are zero where they are computed and where they are read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Builder:
    """Weights of a network; the last half of the hidden channels is zero."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.weights: list[onnx.TensorProto] = []

    def weight(self, name: str, *shape: int, zero: Sequence[int] = ()) -> str:
        """Add a random weight, whose last half along the axes `zero` is zero; return the name."""
        values = self.rng.uniform(0.2, 1, shape) * self.rng.choice([-1, 1], shape)
        for axis in zero:
            index: list[slice] = [slice(None)] * len(shape)
            index[axis] = slice(shape[axis] // 2, None)
            values[tuple(index)] = 0
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def model(self, nodes: list[onnx.NodeProto], outputs: int, size: int = 8, rank: int = 2) -> bytes:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, size, size])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", outputs][:rank])
        graph = helper.make_graph(nodes, "net", [x], [y], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


def residual(zeros: bool = True, width: int = 8) -> bytes:
    """Return a residual network of some channels with normalization and PRelu."""
    b, z = Builder(), (lambda *axes: axes if zeros else ())
    b.weights.append(numpy_helper.from_array(np.ones(width, np.float32), "variance"))
    nodes = [
        helper.make_node("Conv", ["x", b.weight("w1", width, 3, 3, 3, zero=z(0))], ["c1"], "conv1", pads=[1] * 4),
        helper.make_node("BatchNormalization", ["c1", b.weight("g", width), b.weight("b", width, zero=z(0)),
                                                b.weight("m", width, zero=z(0)), "variance"], ["n1"], "norm"),
        helper.make_node("PRelu", ["n1", b.weight("slope", width, 1, 1)], ["r1"], "prelu"),
        helper.make_node("Conv", ["r1", b.weight("w2", width, width, 3, 3, zero=z(0, 1)),
                                  b.weight("b2", width, zero=z(0))], ["c2"], "conv2", pads=[1] * 4),
        helper.make_node("Add", ["r1", "c2"], ["s"], "sum"),
        helper.make_node("MaxPool", ["s"], ["q"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["q"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", b.weight("w3", 5, width, zero=z(1)), b.weight("b3", 5)], ["y"], "head",
                         transB=1),
    ]  # fmt: skip
    return b.model(nodes, 5)


def depthwise(zeros: bool = True) -> bytes:
    """Return a depthwise block with squeeze and excitation, and a Concat of two branches."""
    b, z = Builder(1), (lambda *axes: axes if zeros else ())
    nodes = [
        helper.make_node("Conv", ["x", b.weight("w1", 8, 3, 1, 1, zero=z(0))], ["c1"], "expand"),
        helper.make_node("Clip", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", b.weight("w2", 8, 1, 3, 3, zero=z(0)), b.weight("b2", 8, zero=z(0))], ["d"],
                         "depthwise", group=8, pads=[1] * 4),
        helper.make_node("GlobalAveragePool", ["d"], ["gap"]),
        helper.make_node("Conv", ["gap", b.weight("ws", 8, 8, 1, 1, zero=z(0, 1))], ["se"], "excite"),
        helper.make_node("Sigmoid", ["se"], ["gate"]),
        helper.make_node("Mul", ["d", "gate"], ["m"]),
        helper.make_node("Conv", ["x", b.weight("w3", 4, 3, 1, 1, zero=z(0))], ["c3"], "branch"),
        helper.make_node("Concat", ["m", "c3"], ["cat"], "join", axis=1),
        helper.make_node("Conv", ["cat", joined(b, zeros)], ["c4"], "project"),
        helper.make_node("ReduceMean", ["c4"], ["y"], "mean", axes=[2, 3], keepdims=0),
    ]  # fmt: skip
    return b.model(nodes, 6)


def joined(b: Builder, zeros: bool) -> str:
    """Add the weight that reads 8 and 4 channels, of which the last 4 and 2 are zero."""
    values = b.rng.uniform(0.2, 1, (6, 12, 1, 1)).astype(np.float32)
    if zeros:
        values[:, [4, 5, 6, 7, 10, 11]] = 0
    b.weights.append(numpy_helper.from_array(values, "w4"))
    return "w4"


def flattened(zeros: bool = True) -> bytes:
    """Return a head of two products after a Reshape to `[batch, channels × positions]`."""
    b, z = Builder(2), (lambda *axes: axes if zeros else ())
    b.weights.append(numpy_helper.from_array(np.array([-1, 8 * 16], np.int64), "shape"))
    nodes = [
        helper.make_node("Conv", ["x", b.weight("w1", 8, 3, 3, 3, zero=z(0)), b.weight("b1", 8, zero=z(0))], ["c1"],
                         "conv1", pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Reshape", ["r1", "shape"], ["f"], "reshape"),
        helper.make_node("Gemm", ["f", b.weight("w2", 128, 10, zero=z(0, 1)), b.weight("b2", 10)], ["g"], "hidden"),
        helper.make_node("Tanh", ["g"], ["t"]),
        helper.make_node("MatMul", ["t", b.weight("w3", 10, 4, zero=z(0))], ["p"], "product"),
        helper.make_node("Add", ["p", b.weight("b3", 4)], ["y"]),
    ]  # fmt: skip
    return b.model(nodes, 4)


def transformer(zero_heads: bool = False, batch: int | str = "N") -> bytes:
    """Return two blocks of attention (four heads of queries, two of keys and values) and of a hidden layer.

    The second and fourth pair of heads, and the second block, have small weights.
    """
    b = Builder(3)
    nodes: list[onnx.NodeProto] = []
    sizes = {"four": [0, 0, 4, 4], "two": [0, 0, 2, 1, 4], "wide": [1, 1, 1, 2, 1], "flat": [0, 0, 16]}
    for name, values in sizes.items():
        b.weights.append(numpy_helper.from_array(np.array(values, np.int64), name))
    b.weights.append(numpy_helper.from_array(np.array(0.5, np.float32), "scale"))

    def scaled(name: str, rows: int, columns: int, factor: float) -> str:
        values = b.rng.standard_normal((rows, columns)) * factor
        if zero_heads and name[0] in "qkv":
            values[:, columns // 2 :] = 0
        b.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    x = "x"
    for block, factor in ((0, 0.5), (1, 0.02)):
        t = f"_{block}"
        q, k, v = (scaled(f"{kind}w{t}", 16, columns, 0.4) for kind, columns in (("q", 16), ("k", 8), ("v", 8)))
        nodes += [
            helper.make_node("MatMul", [x, q], [f"q{t}"], f"query{t}"),
            helper.make_node("Reshape", [f"q{t}", "four"], [f"q4{t}"]),
            helper.make_node("Transpose", [f"q4{t}"], [f"qt{t}"], perm=[0, 2, 1, 3]),
        ]
        for kind, weight, order in (("k", k, [0, 2, 3, 1]), ("v", v, [0, 2, 1, 3])):
            nodes += [
                helper.make_node("MatMul", [x, weight], [f"{kind}{t}"], f"{kind}{t}"),
                helper.make_node("Reshape", [f"{kind}{t}", "two"], [f"{kind}2{t}"]),
                helper.make_node("Expand", [f"{kind}2{t}", "wide"], [f"{kind}e{t}"]),
                helper.make_node("Reshape", [f"{kind}e{t}", "four"], [f"{kind}4{t}"]),
                helper.make_node("Transpose", [f"{kind}4{t}"], [f"{kind}t{t}"], perm=order),
            ]
        nodes += [
            helper.make_node("MatMul", [f"qt{t}", f"kt{t}"], [f"s{t}"]),
            helper.make_node("Mul", [f"s{t}", "scale"], [f"m{t}"]),
            helper.make_node("Softmax", [f"m{t}"], [f"p{t}"], axis=-1),
            helper.make_node("MatMul", [f"p{t}", f"vt{t}"], [f"a{t}"]),
            helper.make_node("Transpose", [f"a{t}"], [f"at{t}"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [f"at{t}", "flat"], [f"af{t}"]),
            helper.make_node("MatMul", [f"af{t}", scaled(f"out{t}", 16, 16, factor)], [f"o{t}"], f"output{t}"),
            helper.make_node("Add", [x, f"o{t}"], [f"x1{t}"], f"attention_sum{t}"),
            helper.make_node("MatMul", [f"x1{t}", scaled(f"up{t}", 16, 32, 0.3)], [f"u{t}"], f"up{t}"),
            helper.make_node("Relu", [f"u{t}"], [f"r{t}"]),
            helper.make_node("MatMul", [f"r{t}", scaled(f"down{t}", 32, 16, factor)], [f"d{t}"], f"down{t}"),
            helper.make_node("Add", [f"x1{t}", f"d{t}"], [f"x2{t}"], f"hidden_sum{t}"),
        ]
        x = f"x2{t}"
    nodes.append(helper.make_node("MatMul", [x, scaled("head", 16, 5, 0.3)], ["y"], "head"))
    source = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, "T", 16])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, "T", 5])
    graph = helper.make_graph(nodes, "transformer", [source], [result], b.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()
