"""Quantization-aware training: quantized weights as rounded floats, activations rounded in the forward pass.

A model with ``QuantizeLinear`` and ``DequantizeLinear`` is trained in *simulated form*: each constant of integers that
is dequantized becomes a floating-point parameter followed by ``FakeQuantize``, and so does each pair of nodes around an
activation. Scales and zero points stay. The trained model is the quantized model with other integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.model.copying import copy_model
from sardonyx.ops.definitions.counted_dropout import DOMAIN
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import Names, node_label, value_names
from sardonyx.train.trainable.trainable_models import trainable_form

_WIDEST = 2.0**24
"""Codes beyond this magnitude are no exact float32; integers of 32 bits, of biases, are rounded without limits."""


@dataclass(frozen=True)
class Codes:
    """The integers of a weight.

    Attributes:
        name: The initializer of integers in the quantized model.
        dtype: Its element type.
        scale: The scales in the shape of the weight, float32.
        zero_point: The codes of 0 in the shape of the weight.
        low: The least code.
        high: The greatest code.
    """

    name: str
    dtype: ir.DataType
    scale: np.ndarray
    zero_point: np.ndarray
    low: float
    high: float

    def of(self, weight: np.ndarray) -> np.ndarray:
        """Return the integers of a weight, rounded as ``FakeQuantize`` rounds."""
        units = np.round(weight.astype(np.float32) / self.scale) + self.zero_point
        return np.asarray(np.clip(units, self.low, self.high).astype(self.dtype.numpy()))


@dataclass(frozen=True)
class SimulatedForm:
    """A quantized model in simulated form.

    Attributes:
        source: The quantized model.
        form: Its trainable form, which is saved instead if a parameter is no initializer of the source.
        model: The form with floating-point weights and ``FakeQuantize``.
        codes: The integers by the name of the weight.
    """

    source: ir.Model
    form: ir.Model
    model: ir.Model
    codes: Mapping[str, Codes]

    def quantized(self, weights: Mapping[str, np.ndarray]) -> ir.Model:
        """Return the quantized model with the integers of new weights, and with new tensors of other names."""
        targets = {name: self.codes[name].name if name in self.codes else name for name in weights}
        is_stored = all(name in self.source.graph.initializers for name in targets.values())
        result = copy_model(self.source if is_stored else self.form)
        for name, array in weights.items():
            codes = self.codes.get(name)
            target = result.graph.initializers[targets[name]]
            old = target.const_value
            assert old is not None
            new = np.asarray(array, old.dtype.numpy()) if codes is None else codes.of(array)
            target.const_value = ir.Tensor(new, dtype=old.dtype, name=target.name)
        return result


def simulated_form(source: ir.Model) -> SimulatedForm | None:
    """Return the simulated form of a quantized model; None if no constant of integers is dequantized."""
    if not any(node.op_type == "DequantizeLinear" and not node.domain for node in _main_nodes(source)):
        return None
    form = trainable_form(source)
    model = copy_model(form)
    graph = model.graph
    fresh = Names(value_names(model))
    codes: dict[str, Codes] = {}
    for node in [node for node in graph if node.op_type == "DequantizeLinear" and not node.domain]:
        if (weight := _weight_of(node)) is not None:
            _simulate_weight(graph, node, weight, codes, fresh)
    if not codes:
        return None
    for node in [node for node in graph if node.op_type == "QuantizeLinear" and not node.domain]:
        _simulate_activation(graph, node)
    graph.opset_imports[DOMAIN] = 1
    return SimulatedForm(source, form, model, codes)


def _main_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the nodes of the main graph and of functions."""
    yield from model.graph
    for function in model.functions.values():
        yield from function


def _weight_of(node: ir.Node) -> ir.Value | None:
    """Return the initializer of integers that a node dequantizes by constants, or None."""
    value = node.inputs[0]
    if value is None or not value.is_initializer() or value.is_graph_input() or value.const_value is None:
        return None
    parameters = [x for x in node.inputs[1:] if x is not None]
    if not value.const_value.dtype.is_integer() or any(facts.constant(x) is None for x in parameters):
        return None
    return value


def _limits(dtype: ir.DataType) -> tuple[float, float]:
    bits = dtype.bitwidth
    if bits > 16:
        return -_WIDEST, _WIDEST
    return (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1) - 1) if dtype.is_signed() else (0.0, 2.0**bits - 1)


def _spread(parameter: np.ndarray, shape: tuple[int, ...], axis: int, block: int) -> np.ndarray:
    """Return a scale or a zero point in the shape of a weight."""
    values = np.asarray(parameter, np.float32)
    if block:
        values = np.repeat(values, block, axis)
        return values[tuple(slice(size) for size in shape)]
    if values.ndim == 1 and len(shape) > 1:
        values = values.reshape([-1 if a == axis % len(shape) else 1 for a in range(len(shape))])
    return np.broadcast_to(values, shape)


def _simulate_weight(graph: ir.Graph, node: ir.Node, weight: ir.Value, codes: dict[str, Codes], fresh: Names) -> None:
    tensor, scale = weight.const_value, facts.constant(node.inputs[1])
    assert tensor is not None and scale is not None
    point = facts.constant(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else None
    axis, block = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
    integers = tensor.numpy()
    scales = _spread(np.asarray(scale), integers.shape, axis, block)
    points = np.zeros_like(scales) if point is None else _spread(np.asarray(point), integers.shape, axis, block)
    low, high = _limits(tensor.dtype)
    known = next((name for name, one in codes.items() if one.name == weight.name), None)
    if known is None:
        known = fresh.fresh(f"{weight.name}_float")
        floats = ((integers.astype(np.float32) - points) * scales).astype(np.float32)
        value = ir.Value(
            name=known, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(floats.shape),
            const_value=ir.tensor(floats, name=known),
        )  # fmt: skip
        graph.register_initializer(value)
        codes[known] = Codes(str(weight.name), tensor.dtype, scales, points, low, high)
    _replace(graph, node, node, graph.initializers[known], low, high)


def _simulate_activation(graph: ir.Graph, quantize: ir.Node) -> None:
    """Replace a quantization whose readers all dequantize by one rounding of floats."""
    readers = [reader for reader, _ in quantize.outputs[0].uses()]
    if not readers or quantize.outputs[0].is_graph_output() or any(r.op_type != "DequantizeLinear" for r in readers):
        return
    point = quantize.inputs[2] if len(quantize.inputs) > 2 else None
    declared = quantize.attributes.get_int("output_dtype", 0)
    stored = None if point is None else facts.constant_tensor(point)
    dtype = stored.dtype if stored is not None else ir.DataType(declared) if declared else ir.DataType.UINT8
    if not dtype.is_integer():
        return
    x = quantize.inputs[0]
    assert x is not None
    for reader in readers:
        _replace(graph, reader, quantize, x, *_limits(dtype))
    if not quantize.outputs[0].uses():
        graph.remove(quantize, safe=True)


def _replace(graph: ir.Graph, dequantize: ir.Node, like: ir.Node, x: ir.Value, low: float, high: float) -> None:
    """Replace a dequantization by ``FakeQuantize`` of the floats, with the parameters of a node."""
    new = ir.Node(
        DOMAIN,
        "FakeQuantize",
        [x, *like.inputs[1:3]],
        [
            ir.AttrFloat32("low", low),
            ir.AttrFloat32("high", high),
            ir.AttrInt64("axis", like.attributes.get_int("axis", 1)),
            ir.AttrInt64("block_size", like.attributes.get_int("block_size", 0)),
        ],
        name=node_label(dequantize),
    )
    old, output = dequantize.outputs[0], new.outputs[0]
    output.name, output.type, output.shape = old.name, old.type, old.shape
    graph.insert_before(dequantize, [new])
    old.replace_all_uses_with(output, replace_graph_outputs=True)
    graph.remove(dequantize, safe=True)
