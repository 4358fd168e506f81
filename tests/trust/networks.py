"""Models for the tests of trust."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS = 48


def network(channels: int = CHANNELS, activation: str = "Relu") -> onnx.ModelProto:
    """Return convolutions whose inner channels carry a mark."""
    rng = np.random.default_rng(3)
    nodes, weights = [], []
    shapes = [(channels, 3, 3, 3), (channels, channels, 3, 3), (channels, channels, 1, 1), (4, channels, 1, 1)]
    for index, shape in enumerate(shapes):
        scale = np.sqrt(2 / np.prod(shape[1:]))
        weights.append(numpy_helper.from_array((rng.standard_normal(shape) * scale).astype(np.float32), f"w{index}"))
        weights.append(numpy_helper.from_array(rng.standard_normal(shape[0]).astype(np.float32), f"b{index}"))
        source = "x" if index == 0 else f"r{index - 1}"
        pads = [1] * 4 if shape[2] == 3 else [0] * 4
        nodes.append(helper.make_node("Conv", [source, f"w{index}", f"b{index}"], [f"c{index}"], pads=pads))
        nodes.append(helper.make_node(activation, [f"c{index}"], [f"r{index}"]))
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info("r3", TensorProto.FLOAT, ["N", 4, 8, 8])], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
