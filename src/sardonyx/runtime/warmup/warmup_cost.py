"""Whether ONNX Runtime answers a first call sooner than numpy, by what can be seen of a model without tracing it.

All of it is about: only the order of two estimates counts.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

NAME = "onnxruntime"

_IMPORT_SECONDS = 0.02
_SESSION_SECONDS = 2e-3
_NODE_SECONDS = {NAME: 60e-6, "reference": 250e-6}
"""Of a node: to make it ready, and to begin it once."""

_STEP_SECONDS = {NAME: 10e-6, "reference": 1e-3}
"""Of a step of a recurrent layer."""

_MACS_PER_SECOND = {NAME: 4e10, "reference": 5e9}
_LOADED_BYTES_PER_SECOND = 5e8

_OPTIMIZING_SECONDS = 0.012
_OPTIMIZING_NODE_SECONDS = 20e-6
_UNROLLED_SECONDS = 0.35e-9
"""What it takes ONNX Runtime to optimize a model, and what that saves for each element of the windows of convolutions,
which it writes out otherwise."""

_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
_CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "QLinearConv", "DeformConv"})
_ROUNDED = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
"""Optimized, ONNX Runtime rounds quantized numbers otherwise: by steps of theirs."""

_STRIDED = _CONVOLUTIONS | {"MaxPool", "AveragePool", "LpPool"}
_GLOBAL = frozenset({"GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"})


@dataclass(frozen=True)
class Work:
    """What a call of a model is of.

    Attributes:
        nodes: Nodes, those of bodies among them.
        steps: Steps of recurrent layers.
        multiplied: Multiplications by weights.
        unrolled: Elements of the windows of convolutions.
        held: Bytes of weights.
        keeps: Whether ONNX Runtime gives the same, but for the order of sums, when it has optimized it.
    """

    nodes: int
    steps: int
    multiplied: float
    unrolled: float
    held: int
    keeps: bool

    @property
    def is_worth_loading(self) -> bool:
        """Whether ONNX Runtime answers sooner than numpy, what has to be loaded for it counted in."""
        theirs = _SESSION_SECONDS + self.held / _LOADED_BYTES_PER_SECOND
        theirs += 0.0 if NAME in sys.modules else _IMPORT_SECONDS
        return theirs + self._seconds(NAME) < self._seconds("reference")

    @property
    def optimization(self) -> Literal["none", "all"]:
        """Whether ONNX Runtime is to optimize the model: where it gives the same then, and sooner."""
        gained = self.unrolled * _UNROLLED_SECONDS
        taken = _OPTIMIZING_SECONDS + self.nodes * _OPTIMIZING_NODE_SECONDS
        return "all" if gained > taken and self.keeps else "none"

    def _seconds(self, engine: str) -> float:
        stepped = self.nodes * _NODE_SECONDS[engine] + self.steps * _STEP_SECONDS[engine]
        return stepped + self.multiplied / _MACS_PER_SECOND[engine]


def work(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> Work:
    """What a call is of.

    Images keep their size but for strides. Weights of other operators count as if each were multiplied by every row of
    the inputs. Recurrent layers take as many steps as there are rows in what they go over,
    and states count as none.

    Args:
        model: The model.
        shapes: The sizes of its inputs, by name.
    """
    graph = model.graph
    inputs = {value: shapes[str(value.name)] for value in graph.inputs if value.name in shapes}
    pixels = {value: shape[0] * math.prod(shape[2:]) for value, shape in inputs.items() if len(shape) > 2}
    multiplied = unrolled = 0.0
    filters: set[ir.Value] = set()
    operators: list[str] = []
    recurrent: list[ir.Node] = []
    for node in graph.all_nodes():
        kind = node.op_type
        operators.append(kind)
        if kind in _RECURRENT:
            recurrent.append(node)
        if node.graph is not graph or not node.outputs:
            continue
        seen = max((pixels.get(value, 0) for value in node.inputs if value is not None), default=0)
        given = _pixels(node, seen)
        if given:
            pixels[node.outputs[0]] = given
        if kind in _CONVOLUTIONS or kind == "ConvTranspose":
            for held in filter(None, map(_held, node.inputs[1:])):
                tensor = held.const_value
                if tensor is not None and len(tensor.shape) > 2:
                    filters.add(held)
                    multiplied += float(tensor.size) * (seen if kind == "ConvTranspose" else given)
                    unrolled += float(_window(node, tensor)) * given
    rows = {value: _rows(value, shape) for value, shape in inputs.items()}
    gone_over = _gone_over(recurrent)
    if recurrent:
        rows = {value: count for value, count in rows.items() if value in gone_over}
    most = max(rows.values(), default=1)
    weights = dict(_weights(graph))
    multiplied += sum(
        float(tensor.size) * most for value, tensor in weights.items() if len(tensor.shape) > 1 and value not in filters
    )
    steps = len(recurrent) * most
    held_bytes = sum(tensor.nbytes for tensor in weights.values())
    return Work(len(operators), steps, multiplied, unrolled, held_bytes, _ROUNDED.isdisjoint(operators))


def _window(node: ir.Node, filters: ir.TensorProtocol) -> int:
    """Elements that a convolution writes out for a pixel; none where windows are pixels."""
    shape = filters.shape.numpy()
    if node.op_type != "Conv" or math.prod(shape[2:]) == 1:
        return 0
    groups = node.attributes.get("group")
    return math.prod(shape[1:]) * (1 if groups is None or groups.is_ref() else groups.as_int())


def _pixels(node: ir.Node, seen: int) -> int:
    """Pixels of the first result of a node, all images together, where its operands have so many."""
    shape = node.outputs[0].shape
    if shape is not None and len(shape) > 2 and all(isinstance(size, int) for size in shape):
        sizes = shape.numpy()
        return sizes[0] * math.prod(sizes[2:])
    if node.op_type in _GLOBAL:
        return 1
    if node.op_type in _STRIDED or node.op_type == "ConvTranspose":
        strides = node.attributes.get("strides")
        if strides is not None and not strides.is_ref():
            factor = math.prod(strides.as_ints())
            return seen * factor if node.op_type == "ConvTranspose" else max(seen // max(factor, 1), min(seen, 1))
    return seen


def _held(value: ir.Value | None) -> ir.Value | None:
    """The weight that a value is, as it is kept; None where it is none."""
    while value is not None and value.const_value is None:
        producer = value.producer()
        if producer is None or producer.op_type not in ("DequantizeLinear", "Identity"):
            return None
        value = producer.inputs[0]
    return value


def _weights(graph: ir.Graph) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    for value in graph.initializers.values():
        if value.const_value is not None:
            yield value, value.const_value
    for node in graph:
        if node.op_type == "Constant" and (told := node.attributes.get("value")) is not None:
            # As it is: `as_tensor` looks whether it is one, which takes longer than all else here.
            yield node.outputs[0], told.value


def _gone_over(layers: Sequence[ir.Node]) -> set[ir.Value]:
    """The values that the sequences of recurrent layers come from; states of layers are nobody's sequence."""
    found: set[ir.Value] = set()
    waiting = [node.inputs[0] for node in layers]
    while waiting:
        value = waiting.pop()
        if value is None or value in found:
            continue
        found.add(value)
        producer = value.producer()
        if producer is not None:
            waiting.extend(producer.inputs[:1] if producer.op_type in _RECURRENT else producer.inputs)
    return found


def _rows(value: ir.Value, shape: Sequence[int]) -> int:
    """Vectors, or numbers that vectors are looked up by."""
    rows = shape[:-1] if value.dtype is not None and value.dtype.is_floating_point() else shape
    return max(1, math.prod(rows))
