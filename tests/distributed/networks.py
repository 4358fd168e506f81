"""Networks of several layers."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def layers(count: int, skip: bool = False) -> onnx.ModelProto:
    """Return a chain of products of 16 KiB of weights, with a value that skips from the first layer to the last."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    value = "x"
    for number in range(count):
        weights.append(numpy_helper.from_array(rng.standard_normal((64, 64), np.float32) / 8, f"w{number}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{number}"], [f"h{number}"]))
        nodes.append(helper.make_node("Tanh", [f"h{number}"], [f"t{number}"]))
        value = f"t{number}"
    nodes.append(helper.make_node("Add", [value, "t0" if skip else value], ["y"]))
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 64])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 64]) for name in ("y", "t1")],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
