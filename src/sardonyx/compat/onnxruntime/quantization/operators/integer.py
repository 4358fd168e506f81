"""Operators on integers with ranges of each call."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from sardonyx.compat.onnxruntime.quantization.operators.base_operator import QuantOperatorBase
from sardonyx.compat.onnxruntime.quantization.operators.qlinear import QOpMatMul
from sardonyx.compat.onnxruntime.quantization.quant_utils import attributes_of, find_by_name, get_mul_node, ms_domain


class IntegerProduct(QOpMatMul):
    """A product of integers, and the multiplication by both scales."""

    def append_product(self, kind: str, factors: tuple[Any, ...], result: str) -> list[onnx.NodeProto]:
        """Return the nodes from the float factors to the float result."""
        integers, zero_points, scales, nodes = factors
        product = self.node.output[0] + "_output_quantized"
        name = self.node.name + "_quant" if self.node.name else ""
        options = attributes_of(self.node)
        float_kind = self.quantizer.get_tensor_type(self.node.output[0], mandatory=True)
        cast = product + "_cast_output"
        nodes.append(helper.make_node(kind, [*integers, *zero_points], [product], name, **options))
        nodes.append(helper.make_node("Cast", [product], [cast], product + "_cast", to=float_kind))
        scale_name = name + "_scales_mul" if name else f"{scales[0]}_{scales[1]}_mul"
        scale = find_by_name(scale_name, self.quantizer.new_nodes)
        if scale is None:
            scale = get_mul_node(scales, scale_name + ":0", scale_name)
            nodes.append(scale)
        nodes.append(get_mul_node([cast, scale.output[0]], result, name + "_output_scale_mul" if name else ""))
        return list(nodes)


class MatMulInteger(IntegerProduct):
    """MatMul."""

    def quantize(self) -> None:
        """Append the product of integers."""
        factors = self.factors(reduce_range=True, op_level_per_channel=True)
        self.quantizer.new_nodes.extend(self.append_product("MatMulInteger", factors, self.node.output[0]))


class ConvInteger(IntegerProduct):
    """Conv, whose bias is added in float."""

    def should_quantize(self) -> bool:
        """Return True if the options choose the node, and its first input is float."""
        return QuantOperatorBase.should_quantize(self)

    def quantize(self) -> None:
        """Append the product of integers, and the sum with the bias.

        Raises:
            ValueError: The filter of a node with bias is no initializer.
        """
        node, quantizer = self.node, self.quantizer
        weight = quantizer.model.get_initializer(node.input[1])
        rank = 0 if weight is None else len(weight.dims)
        factors = self.factors(reduce_range=quantizer.reduce_range)
        has_bias = len(node.input) > 2 and bool(node.input[2])
        result = node.output[0]
        nodes = self.append_product("ConvInteger", factors, result + "quant_scaled_output" if has_bias else result)
        if has_bias:
            if not rank:
                raise ValueError(f"Expected {node.input[1]} to be an initializer")
            shape, reshaped = result + "_bias_reshape_shape", result + "_bias_reshape_output"
            sizes = np.ones(rank, np.int64)
            sizes[1] = -1
            quantizer.model.add_initializer(onnx.numpy_helper.from_array(sizes, shape))
            nodes.append(helper.make_node("Reshape", [node.input[2], shape], [reshaped]))
            sums = [result + "quant_scaled_output", reshaped]
            nodes.append(helper.make_node("Add", sums, [result], result + "_bias_add"))
        quantizer.new_nodes.extend(nodes)


class AttentionQuant(QOpMatMul):
    """Attention of ``com.microsoft``."""

    def should_quantize(self) -> bool:
        """Return True if the options choose the node."""
        return bool(self.quantizer.should_quantize_node(self.node))

    def quantize(self) -> None:
        """Append QAttention; the node in float with sizes of its own for queries, keys and values."""
        node = self.node
        factors: tuple[Any, ...] = (None,)
        if "qkv_hidden_sizes" not in attributes_of(node):
            factors = self.factors(reduce_range=True, op_level_per_channel=True)
        if factors[0] is None:
            super().quantize()
            return
        integers, zero_points, scales, nodes = factors
        rest = [*node.input[3:5], "", ""]
        inputs = [*integers, node.input[2], *scales, rest[0], *zero_points, rest[1]]
        self.append(nodes, "QAttention", inputs, node.output, domain=ms_domain)


class EmbedLayerNormalizationQuant(QuantOperatorBase):
    """EmbedLayerNormalization of ``com.microsoft``, whose tables and factors become integers."""

    def should_quantize(self) -> bool:
        """Return True if the options choose the node."""
        return bool(self.quantizer.should_quantize_node(self.node))

    def quantize(self) -> None:
        """Append QEmbedLayerNormalization, which has no third output."""
        node = self.node
        names: Any = (None,)
        if len(node.output) <= 2:
            names = self.quantizer.quantize_activation(node, [2, 3, 4, 5, 6])
        if names[0] is None:
            super().quantize()
            return
        integers, zero_points, scales, nodes = names
        mask = node.input[7] if len(node.input) > 7 else ""
        inputs = [node.input[0], node.input[1], *integers, mask, *scales, *zero_points]
        self.append(nodes, "QEmbedLayerNormalization", inputs, node.output, domain=ms_domain)


class LSTMQuant(QuantOperatorBase):
    """LSTM with constant weights, which become transposed integers of DynamicQuantizeLSTM."""

    def quantize(self) -> None:
        """Append DynamicQuantizeLSTM, or the node in float."""
        node, quantizer = self.node, self.quantizer
        model = quantizer.model
        weights = [model.get_initializer(name) for name in node.input[1:3]]
        if (
            any(weight is None or len(weight.dims) != 3 for weight in weights)
            or not all(quantizer.is_valid_quantize_weight(name) for name in node.input[1:3])
        ):  # fmt: skip
            super().quantize()
            return
        names = [self._quantize_weight(weight) for weight in weights if weight is not None]
        rest = [*node.input[3:8], *[""] * 5][:5]
        inputs = [node.input[0], names[0][0], names[1][0], *rest]
        inputs += [names[0][2], names[0][1], names[1][2], names[1][1]]
        self.append([], "DynamicQuantizeLSTM", inputs, node.output, domain=ms_domain, layout=None)
        dequantize = quantizer._dequantize_value(node.input[0])
        if dequantize is not None:
            quantizer.new_nodes.append(dequantize)

    def _quantize_weight(self, weight: TensorProto) -> tuple[str, str, str]:
        """Quantize a weight [directions, rows, columns] to integers [directions, columns, rows]; return their names."""
        quantizer, model = self.quantizer, self.quantizer.model
        directions, rows, columns = weight.dims
        dims = list(weight.dims)
        if quantizer.is_per_channel():
            weight.dims[:] = [directions * rows, columns]
        names: tuple[str, str, str] = quantizer.quantize_weight_per_channel(weight.name, TensorProto.INT8, 0)
        weight.dims[:] = dims
        integers = model.get_initializer(names[0])
        if integers is None:
            raise ValueError(f"internal: the integers of {weight.name} are missing.")
        array = onnx.numpy_helper.to_array(integers).reshape(directions, rows, columns).transpose(0, 2, 1)
        model.remove_initializer(integers)
        model.add_initializer(onnx.numpy_helper.from_array(np.ascontiguousarray(array), names[0]))
        if quantizer.is_per_channel():
            for name in names[1:]:
                tensor = model.get_initializer(name)
                if tensor is not None:
                    tensor.dims[:] = [directions, rows]
        return names
