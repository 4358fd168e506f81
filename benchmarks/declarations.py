"""The cost of declarations without a need: ``python benchmarks/declarations.py [--threads 2]``.

One network (convolutions, then products) is declared in several ways that compute the same outputs. Each form is
compared with the form of constant weights and fixed sizes, in calls that alternate between the two; the last column is
the engine that answers a call. ``--overridden`` adds calls that feed another value for one weight.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import sardonyx

LAYERS, CHANNELS, IMAGE = 6, 64, 32
FIRST = "conv0_w"
"""The weight that an overriding call feeds."""

Weight = Callable[[str, np.ndarray], tuple[list[onnx.NodeProto], list[onnx.TensorProto]]]


def plain(name: str, array: np.ndarray) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """A weight as an initializer."""
    return [], [numpy_helper.from_array(array, name)]


def identity(name: str, array: np.ndarray) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """A weight behind an Identity."""
    return [helper.make_node("Identity", [f"{name}_"], [name])], [numpy_helper.from_array(array, f"{name}_")]


def cast(name: str, array: np.ndarray) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """A weight in float16, behind a Cast."""
    node = helper.make_node("Cast", [f"{name}_"], [name], to=TensorProto.FLOAT)
    return [node], [numpy_helper.from_array(array.astype(np.float16), f"{name}_")]


def transpose(name: str, array: np.ndarray) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """A weight behind a Transpose."""
    order = list(range(array.ndim))[::-1]
    node = helper.make_node("Transpose", [f"{name}_"], [name], perm=order)
    return [node], [numpy_helper.from_array(np.ascontiguousarray(array.transpose(order)), f"{name}_")]


def dequantized(name: str, array: np.ndarray) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """A weight in int8, behind DequantizeLinear, Cast and Identity."""
    scale = np.float32(np.abs(array).max() / 127)
    tensors = [
        numpy_helper.from_array(np.round(array / scale).astype(np.int8), f"{name}_q"),
        numpy_helper.from_array(np.asarray(scale), f"{name}_s"),
        numpy_helper.from_array(np.int8(0), f"{name}_z"),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", [f"{name}_q", f"{name}_s", f"{name}_z"], [f"{name}_d"]),
        helper.make_node("Cast", [f"{name}_d"], [f"{name}_c"], to=TensorProto.FLOAT),
        helper.make_node("Identity", [f"{name}_c"], [name]),
    ]
    return nodes, tensors


def network(weight: Weight = plain) -> onnx.ModelProto:
    """Return the network with weights of this form."""
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    tensors: list[onnx.TensorProto] = []

    def add(name: str, shape: Sequence[int]) -> str:
        array = (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float16).astype(np.float32)
        for part, added in zip((nodes, tensors), weight(name, array), strict=True):
            part.extend(added)  # type: ignore[attr-defined]
        return name

    value, channels = "x", 3
    for layer in range(LAYERS):
        w, b = add(f"conv{layer}_w", [CHANNELS, channels, 3, 3]), add(f"conv{layer}_b", [CHANNELS])
        nodes.append(helper.make_node("Conv", [value, w, b], [f"c{layer}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [f"r{layer}"]))
        value, channels = f"r{layer}", CHANNELS
    nodes.append(helper.make_node("GlobalAveragePool", [value], ["pooled"]))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"]))
    value = "flat"
    for layer in range(2):
        nodes.append(helper.make_node("MatMul", [value, add(f"fc{layer}_w", [CHANNELS, CHANNELS])], [f"p{layer}"]))
        nodes.append(helper.make_node("Add", [f"p{layer}", add(f"fc{layer}_b", [CHANNELS])], [f"s{layer}"]))
        value = f"s{layer}"
    nodes.append(helper.make_node("Softmax", [value], ["y"]))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, IMAGE, IMAGE])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, CHANNELS])]
    graph = helper.make_graph(nodes, "net", inputs, outputs, tensors)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def listed() -> onnx.ModelProto:
    """Return the network with all weights listed as inputs."""
    model = network()
    for tensor in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return model


def open_sizes() -> onnx.ModelProto:
    """Return the network with open sizes of its input."""
    model = network()
    for dim, name in zip(model.graph.input[0].type.tensor_type.shape.dim, "NCHW", strict=True):
        dim.Clear()
        dim.dim_param = name
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "N"
    return model


def constant_outputs() -> onnx.ModelProto:
    """Return the network with a bias and a folded constant as further outputs."""
    model = network()
    model.graph.node.append(helper.make_node("Neg", ["fc0_b"], ["negated"]))
    for name in ("negated", "fc1_b"):
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, [CHANNELS]))
    return model


def inner_outputs() -> onnx.ModelProto:
    """Return the network with the results of inner layers as further outputs."""
    model = network()
    for layer in range(LAYERS - 1):
        shape = [1, CHANNELS, IMAGE, IMAGE]
        model.graph.output.append(helper.make_tensor_value_info(f"c{layer}", TensorProto.FLOAT, shape))
    return model


def functions() -> onnx.ModelProto:
    """Return the network with each Relu followed by a model function that returns its input."""
    model = network()
    opset = helper.make_opsetid("", 17)
    body = [helper.make_node("Identity", ["a"], ["b"])]
    model.functions.append(helper.make_function("local", "Same", ["a"], ["b"], body, [opset]))
    model.opset_import.append(helper.make_opsetid("local", 1))
    nodes = []
    for node in model.graph.node:
        nodes.append(node)
        if node.op_type == "Relu":
            nodes.append(helper.make_node("Same", [f"{node.output[0]}_"], [node.output[0]], domain="local"))
            node.output[0] += "_"
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


FORMS: dict[str, Callable[[], onnx.ModelProto]] = {
    "weights are inputs": listed,
    "open sizes": open_sizes,
    "constants as outputs": constant_outputs,
    "inner results as outputs": inner_outputs,
    "identity functions": functions,
    "weights behind Identity": lambda: network(identity),
    "weights behind Cast": lambda: network(cast),
    "weights behind Transpose": lambda: network(transpose),
    "weights behind DequantizeLinear": lambda: network(dequantized),
}


def alternate(calls: Sequence[Callable[[], object]], runs: int) -> list[float]:
    """Return the median milliseconds of each call."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(runs):
        for call, column in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            column.append((time.perf_counter() - start) * 1e3)
    return [statistics.median(column) for column in times]


def answering(session: sardonyx.Session) -> str:
    return next(note.name for note in session.answerers if note.answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--overridden", action="store_true")
    arguments = parser.parse_args()

    def session_of(model: onnx.ModelProto) -> sardonyx.Session:
        return sardonyx.Session(model.SerializeToString(), compile="wait", threads=arguments.threads)

    feeds: dict[str, Any] = {"x": np.random.default_rng(1).standard_normal((1, 3, IMAGE, IMAGE)).astype(np.float32)}
    constant = session_of(network())
    (expected,) = constant.run(None, feeds)
    print(f"{'form':<34} {'plain ms':>9} {'form ms':>9} {'factor':>7}  answerer")
    rows = [(name, session_of(make()), feeds, "", None) for name, make in FORMS.items()]
    rows.append(("inner results as outputs, y alone", session_of(inner_outputs()), feeds, "output variant", ["y"]))
    if arguments.overridden:
        shape = [CHANNELS, 3, 3, 3]
        weight = next(w for w in network().graph.initializer if w.name == FIRST)
        fed = {**feeds, FIRST: numpy_helper.to_array(weight).reshape(shape)}
        rows.append((f"weights are inputs, {FIRST} fed", session_of(listed()), fed, "input variant", None))
    for name, session, fed, answerer, outputs in rows:
        for _ in range(3):
            actual = session.run(outputs, fed)[0]
        for thread in threading.enumerate():
            if thread.name == "sardonyx-compile":
                thread.join()
        session.run(outputs, fed)
        np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-2 * float(np.abs(expected).max()))
        call = functools.partial(session.run, outputs, fed)
        before, after = alternate([lambda: constant.run(None, feeds), call], arguments.runs)
        print(f"{name:<34} {before:9.3f} {after:9.3f} {after / before:7.2f}  {answerer or answering(session)}")


if __name__ == "__main__":
    main()
