"""The time of optimizing by the number of nodes: generated models, and the exponent of the time.

The chain is a list of element-wise operators, of which the optimizer removes a third; the net has the layers of an
exported convolutional network, with its shape arithmetic in nodes. The optimizer has work at every node of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

import isolated
import peers

CHAIN_NODES = (12_500, 25_000, 50_000, 100_000)
NET_LAYERS = (250, 500, 1_000, 2_000)
CHANNELS = 4
STEEPEST = 1.15
"""Largest exponent that counts as linear: 2^1.15 = 2.2 times the time for twice the nodes."""
TIMEOUT_SECONDS = 600.0
OPSET = 17


@dataclass(frozen=True)
class Scaling:
    """Processor seconds by number of nodes of one generated model."""

    model: str
    nodes: list[int]
    nodes_left: list[int]
    seconds: list[float]
    peak_bytes: list[int]
    failure: str | None = None

    @property
    def exponent(self) -> float:
        """The exponent of the time as a power of the nodes, over the three largest sizes."""
        if self.failure:
            return math.inf
        return math.log(self.seconds[-1] / self.seconds[-3]) / math.log(self.nodes[-1] / self.nodes[-3])


def measure(folder: Path) -> Iterator[Scaling]:
    """Optimize both models at every size, each in a new process that is warmed up on the smallest."""
    yield scaling("chain", chain, CHAIN_NODES, folder)
    yield scaling("2,000-layer net", net, NET_LAYERS, folder)


def scaling(name: str, build: Callable[[int], onnx.ModelProto], sizes: tuple[int, ...], folder: Path) -> Scaling:
    folder.mkdir(parents=True, exist_ok=True)
    measured = Scaling(name, [], [], [], [])
    for size in sizes:
        source, result = folder / f"{build.__name__}_{size}.onnx", folder / f"{build.__name__}_{size}.result.onnx"
        model = build(size)
        onnx.save(model, source)
        with isolated.Worker(peers.SUBJECT.name, TIMEOUT_SECONDS) as worker:
            worker.run(folder / f"{build.__name__}_{sizes[0]}.onnx", folder / "warm-up.onnx")
            run = worker.run(source, result)
        if run.failure:
            return Scaling(**{**vars(measured), "failure": f"{len(model.graph.node)} nodes: {run.failure}"})
        measured.nodes.append(len(model.graph.node))
        measured.nodes_left.append(len(onnx.load(result).graph.node))
        measured.seconds.append(run.processor_seconds)
        measured.peak_bytes.append(run.peak_bytes)
    return measured


def chain(length: int) -> onnx.ModelProto:
    """Return `length` nodes in a row: Add, Relu, Identity, Sigmoid, and pairs of Transpose that cancel."""
    nodes, weights = [], []
    value = "x"
    for index in range(length):
        kind = ("Add", "Relu", "Identity", "Sigmoid", "Transpose", "Transpose")[index % 6]
        inputs = [value]
        if kind == "Add":
            weights.append(onnx.numpy_helper.from_array(np.float32([1 + index % 7, index % 5]), f"bias_{index}"))
            inputs.append(f"bias_{index}")
        attributes = {"perm": [1, 0]} if kind == "Transpose" else {}
        target = "y" if index == length - 1 else f"value_{index}"
        nodes.append(onnx.helper.make_node(kind, inputs, [target], f"{kind}_{index}", **attributes))
        value = target
    return model_of(nodes, weights, ["batch", 2])


def net(layers: int) -> onnx.ModelProto:
    """Return a residual net of Conv, BatchNormalization and Relu, with a Reshape in every tenth layer."""
    random = np.random.default_rng(0)
    nodes, weights = [], []
    value = "x"

    def add(kind: str, inputs: list[str], target: str, **attributes: object) -> str:
        nodes.append(onnx.helper.make_node(kind, inputs, [target], target.replace("value", kind), **attributes))
        return target

    def weight(name: str, array: np.ndarray) -> str:
        weights.append(onnx.numpy_helper.from_array(array, name))
        return name

    for layer in range(layers):
        kernel = random.standard_normal((CHANNELS, CHANNELS, 3, 3), dtype=np.float32) / 6
        statistics = [np.full(CHANNELS, level, np.float32) for level in (1.0, 0.1, 0.0, 1.0)]
        normalization = [weight(f"bn_{layer}_{index}", array) for index, array in enumerate(statistics)]
        convolved = add("Conv", [value, weight(f"kernel_{layer}", kernel)], f"value_{layer}_conv", pads=[1, 1, 1, 1])
        normal = add("BatchNormalization", [convolved, *normalization], f"value_{layer}_bn")
        active = add("Relu", [normal], f"value_{layer}_relu")
        value = add("Add", [value, active], f"value_{layer}_sum")
        if layer % 10 == 9:
            shape = add("Shape", [value], f"value_{layer}_shape")
            first = add("Constant", [], f"value_{layer}_zero", value_ints=[0])
            batch = add("Gather", [shape, first], f"value_{layer}_batch", axis=0)
            rest = add("Constant", [], f"value_{layer}_rest", value_ints=[CHANNELS, 8, 8])
            target = add("Concat", [batch, rest], f"value_{layer}_target", axis=0)
            value = add("Reshape", [value, target], f"value_{layer}_reshaped")
    add("Identity", [value], "y")
    return model_of(nodes, weights, ["batch", CHANNELS, 8, 8])


def model_of(nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto], shape: list[str | int]) -> onnx.ModelProto:
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in ("x", "y")]
    graph = onnx.helper.make_graph(nodes, "generated", ends[:1], ends[1:], weights)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=8)
