"""Nodes and initializers of quantized models: quantization around float operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.placement import Placement, WeightSite
from sardonyx.compress.quantization.scheme import Affine, Scheme
from sardonyx.compress.quantization.weights import QuantizedWeight, quantize_weight
from sardonyx.rewrite.names import Names, node_names, value_names


class Writer:
    """Writes integers into the main graph of a model.

    Args:
        model: The model, which is changed.
        scheme: The scheme of weights.
    """

    def __init__(self, model: ir.Model, scheme: Scheme) -> None:
        self._graph = model.graph
        self._scheme = scheme
        self._names, self._node_names = Names(value_names(model)), Names(node_names(model))
        self._weights: dict[tuple[ir.Value, int, int | None], ir.Value] = {}

    def initializer(self, name: str, array: np.ndarray, dtype: ir.DataType | None = None) -> ir.Value:
        """Return a new initializer."""
        name = self._names.fresh(name)
        tensor = ir.Tensor(array, dtype=dtype, name=name) if dtype is not None else ir.tensor(array, name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
        self._graph.register_initializer(value)
        return value

    def node(
        self, op_type: str, inputs: Sequence[ir.Value], name: str, dtype: ir.DataType, **attributes: Any
    ) -> ir.Node:
        """Return a new node with one output, outside of the graph."""
        node = ir.node(op_type, inputs, attributes=attributes, name=self._node_names.fresh(f"{name}_{op_type}"))
        node.outputs[0].name = self._names.fresh(f"{name}_{op_type}")
        node.outputs[0].type = ir.TensorType(dtype)
        return node

    def quantize_activation(self, value: ir.Value, affine: Affine, readers: Sequence[tuple[ir.Node, int]]) -> None:
        """Let readers of a value read the value as integers."""
        name = str(value.name)
        scale = self.initializer(f"{name}_scale", np.array(affine.scale, np.float32))
        zero = self.initializer(f"{name}_zero_point", np.array(affine.zero_point, affine.kind.numpy), affine.kind.dtype)
        quantize = self.node("QuantizeLinear", [value, scale, zero], name, affine.kind.dtype)
        dequantize = self.node("DequantizeLinear", [quantize.outputs[0], scale, zero], name, ir.DataType.FLOAT)
        for node in (quantize, dequantize):
            node.outputs[0].shape = value.shape
        self._insert_after(value, [quantize, dequantize])
        for node, index in readers:
            node.replace_input_with(index, dequantize.outputs[0])

    def write_weight(self, site: WeightSite, weight: QuantizedWeight) -> None:
        """Let a node read its weight through DequantizeLinear."""
        value = site.node.inputs[site.index]
        assert value is not None
        key = value, site.channel_axis, site.sum_axis
        if key not in self._weights:
            self._weights[key] = self._dequantized(str(value.name), weight, site.node)
        site.node.replace_input_with(site.index, self._weights[key])
        self._drop(value)

    def _dequantized(self, name: str, weight: QuantizedWeight, before: ir.Node) -> ir.Value:
        dtype = ir.DataType.from_numpy(weight.values.dtype)
        values = self.initializer(f"{name}_quantized", weight.values, dtype)
        scale = self.initializer(f"{name}_scale", weight.scales)
        zero = self.initializer(f"{name}_zero_point", weight.zeros, dtype)
        attributes: dict[str, Any] = {} if weight.axis is None else {"axis": weight.axis}
        if weight.block:
            attributes["block_size"] = weight.block
        node = self.node("DequantizeLinear", [values, scale, zero], name, ir.DataType.FLOAT, **attributes)
        node.outputs[0].shape = ir.Shape(weight.values.shape)
        self._graph.insert_before(before, [node])
        return node.outputs[0]

    def quantize_bias(self, site: WeightSite, affine: Affine, weight: QuantizedWeight, correction: np.ndarray) -> None:
        """Let a node read its bias, corrected, as 32-bit integers at the scale of its products."""
        node = site.node
        value = node.inputs[2] if len(node.inputs) > 2 else None
        channels = site.channels
        old = None if value is None or value.const_value is None else value.const_value.numpy()
        if node.op_type == "MatMul" or (value is not None and (old is None or old.size not in (1, channels))):
            return
        bias = correction + (0.0 if old is None else np.broadcast_to(old.reshape(-1), (channels,)).astype(np.float64))
        if value is None and not np.any(correction):
            return
        name = f"{site.label}_bias" if value is None else str(value.name)
        scales = np.float64(affine.scale) * np.broadcast_to(weight.scales.reshape(-1), (channels,)).astype(np.float64)
        integers = np.rint(bias / scales)
        if np.abs(integers).max(initial=0) >= 2**31 or weight.block:
            read = self.initializer(f"{name}_corrected", bias.astype(np.float32))
        else:
            operands = [
                self.initializer(f"{name}_quantized", integers.astype(np.int32)),
                self.initializer(f"{name}_scale", scales.astype(np.float32)),
            ]
            dequantize = self.node("DequantizeLinear", operands, name, ir.DataType.FLOAT, axis=0)
            dequantize.outputs[0].shape = ir.Shape((channels,))
            self._graph.insert_before(node, [dequantize])
            read = dequantize.outputs[0]
        if value is None:
            node.resize_inputs(3)
        node.replace_input_with(2, read)
        if value is not None:
            self._drop(value)

    def quantize_table(self, site: WeightSite) -> None:
        """Let a Gather read rows of integers, each with a scale."""
        node, table, indices = site.node, site.node.inputs[0], site.node.inputs[1]
        assert table is not None and indices is not None
        name = str(table.name)
        weight = quantize_weight(site.weight, 0, 1, Scheme("int8", "channel"))
        rows = self.node(
            "Gather", [self.initializer(f"{name}_quantized", weight.values), indices], name, ir.DataType.INT8
        )
        scales = self.initializer(f"{name}_scale", weight.scales.reshape(-1, 1))
        factors = self.node("Gather", [scales, indices], f"{name}_scale", ir.DataType.FLOAT)
        floats = self.node("Cast", [rows.outputs[0]], name, ir.DataType.FLOAT, to=int(ir.DataType.FLOAT))
        product = self.node("Mul", [floats.outputs[0], factors.outputs[0]], name, ir.DataType.FLOAT)
        self._replace(node, [rows, factors, floats, product])
        self._drop(table)

    def quantize_dynamically(self, site: WeightSite) -> None:
        """Replace a product with a constant matrix by a product of integers whose scale each call computes."""
        node, x = site.node, site.node.inputs[0]
        assert x is not None
        matrix = site.weight if site.channel_axis == 1 else np.ascontiguousarray(site.weight.T)
        weight = quantize_weight(matrix, 1, 0, Scheme("int8", self._scheme.granularity, reduced=self._scheme.reduced))
        old = node.inputs[1]
        assert old is not None
        name = site.label
        quantize = ir.node("DynamicQuantizeLinear", [x], num_outputs=3, name=self._node_names.fresh(f"{name}_Quantize"))
        for output, kind, dtype in zip(
            quantize.outputs, ("quantized", "scale", "zero_point"),
            (ir.DataType.UINT8, ir.DataType.FLOAT, ir.DataType.UINT8), strict=True,
        ):  # fmt: skip
            output.name, output.type = self._names.fresh(f"{name}_{kind}"), ir.TensorType(dtype)
        integers = self.initializer(f"{old.name}_quantized", weight.values)
        product = self.node(
            "MatMulInteger", [quantize.outputs[0], integers, quantize.outputs[2]], name, ir.DataType.INT32
        )
        floats = self.node("Cast", [product.outputs[0]], name, ir.DataType.FLOAT, to=int(ir.DataType.FLOAT))
        scales = self.initializer(f"{old.name}_scale", weight.scales)
        factor = self.node("Mul", [quantize.outputs[1], scales], f"{name}_scale", ir.DataType.FLOAT)
        scaled = self.node("Mul", [floats.outputs[0], factor.outputs[0]], name, ir.DataType.FLOAT)
        nodes = [quantize, product, floats, factor, scaled]
        if len(node.inputs) > 2 and (bias := node.inputs[2]) is not None:
            nodes.append(self.node("Add", [scaled.outputs[0], bias], name, ir.DataType.FLOAT))
        self._replace(node, nodes)
        self._drop(old)

    def _replace(self, node: ir.Node, nodes: Sequence[ir.Node]) -> None:
        """Replace a node by nodes, of which the last computes the result under the same name."""
        result, new = node.outputs[0], nodes[-1].outputs[0]
        name = result.name
        new.shape, new.type = result.shape, result.type
        self._graph.insert_before(node, nodes)
        result.replace_all_uses_with(new, replace_graph_outputs=True)
        self._graph.remove(node, safe=True)
        new.name = name

    def _insert_after(self, value: ir.Value, nodes: Sequence[ir.Node]) -> None:
        producer = value.producer()
        if producer is None:
            self._graph.insert_before(self._graph[0], nodes)
        else:
            self._graph.insert_after(producer, nodes)

    def _drop(self, value: ir.Value) -> None:
        """Remove a constant that nothing reads any more."""
        if value.uses() or value.is_graph_output():
            return
        producer = value.producer()
        if producer is not None:
            self._graph.remove(producer, safe=True)
        elif value.name in self._graph.initializers and not value.is_graph_input():
            del self._graph.initializers[str(value.name)]


def write_static(
    model: ir.Model,
    placement: Placement,
    scheme: Scheme,
    maps: Mapping[ir.Value, Affine],
    weights: Mapping[WeightSite, QuantizedWeight],
    means: Mapping[str, np.ndarray],
) -> None:
    """Write a model with integer weights and activations.

    Args:
        model: The model, which is changed.
        placement: The places of integers in this model.
        scheme: The scheme.
        maps: The map of each activation.
        weights: The weights of sites.
        means: The mean of each channel of the inputs of sites by label, which correct the mean error of products;
            empty for none.
    """
    writer = Writer(model, scheme)
    for site in placement.sites:
        x = site.node.inputs[0]
        assert x is not None
        weight = weights[site]
        writer.write_weight(site, weight)
        if x in maps:
            writer.quantize_bias(site, maps[x], weight, mean_error(site, weight, means.get(site.label)))
    for value, readers in placement.reads.items():
        writer.quantize_activation(value, maps[value], readers)


def write_without_ranges(
    model: ir.Model, placement: Placement, scheme: Scheme, mode: str, weights: Mapping[WeightSite, QuantizedWeight]
) -> list[str]:
    """Write a model with integer weights, whose products quantize their input in each call if `mode` is ``"dynamic"``.

    Args:
        model: The model, which is changed.
        placement: The places of integers in this model.
        scheme: The scheme.
        mode: ``"dynamic"`` or ``"weights"``.
        weights: The weights of the sites that read floats.

    Returns:
        Sentences for the user.
    """
    writer = Writer(model, scheme)
    notes = []
    for site in placement.sites:
        if site in weights:
            writer.write_weight(site, weights[site])
        else:
            writer.quantize_dynamically(site)
    if mode == "weights":
        for site in placement.tables:
            writer.quantize_table(site)
    whole = [site for site in placement.sites if scheme.of_weight(site.sum_axis) != scheme]
    if whole:
        notes.append(f"The weights of {len(whole)} convolutions have 8 bits: 4 bits need blocks along one summed axis.")
    if mode == "dynamic":
        notes.append(
            f"Without ranges of activations, {len(placement.sites) - len(weights)} products are quantized in each call "
            f"and {len(weights)} nodes have integer weights alone, which saves memory and no time."
        )
    return notes


def mean_error(site: WeightSite, weight: QuantizedWeight, means: np.ndarray | None) -> np.ndarray:
    """Return the mean of float results minus quantized results, per output channel; zeros if unknown.

    For a convolution the borders count like the inside.
    """
    channels = site.weight.shape[site.channel_axis]
    difference = site.weight.astype(np.float64) - weight.dequantized()
    if means is None:
        return np.zeros(channels)
    if site.node.op_type == "Conv":
        per_input = difference.reshape(*difference.shape[:2], -1).sum(2)
        groups = len(means) // per_input.shape[1] if per_input.shape[1] else 1
        if groups * per_input.shape[1] != len(means) or channels % groups:
            return np.zeros(channels)
        grouped = means.reshape(groups, -1)[np.arange(channels) // (channels // groups)]
        return np.asarray((per_input * grouped).sum(1))
    if site.node.op_type == "Gemm" and site.sum_axis is not None and difference.shape[site.sum_axis] == len(means):
        return np.asarray(np.moveaxis(difference, site.channel_axis, 0) @ means)
    return np.zeros(channels)
