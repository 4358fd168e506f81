"""Operators on integers with learned ranges."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from sardonyx.compat.onnxruntime.quantization.arithmetic import (
    FLOAT8_TYPES,
    TENSOR_NAME_QUANT_SUFFIX,
    initializer_of,
    quantize_nparray,
)
from sardonyx.compat.onnxruntime.quantization.operators.base_operator import QuantOperatorBase
from sardonyx.compat.onnxruntime.quantization.quant_utils import attributes_of, ms_domain


class QLinearOperator(QuantOperatorBase):
    """A node that ``QLinear…`` of ``com.microsoft`` replaces: triples of the inputs, then the scale of the output."""

    inputs: tuple[int, ...] = (0,)

    def scale_of_output(self) -> tuple[Any, Any]:
        """Return a scale and a zero point of the output that do not depend on data; None for learned ones."""
        return None, None

    def quantize(self) -> None:
        """Append the operator on integers, or the node in float without ranges."""
        quantizer, node = self.quantizer, self.node
        is_known, scale, zero_point, *_ = quantizer._get_quantization_params(node.output[0], *self.scale_of_output())
        integers, zero_points, scales, nodes = quantizer.quantize_activation(node, self.inputs)
        if not is_known or integers is None:
            super().quantize()
            return
        result = self.register(scale, zero_point)
        triples = list(zip(integers, scales, zero_points, strict=True))
        self.append(nodes, "QLinear" + node.op_type, self.order(triples, scale, zero_point), [result], **self.options())

    def order(self, triples: list[tuple[str, str, str]], scale: str, zero_point: str) -> list[str]:
        """Return the inputs of the operator on integers."""
        return [*(name for triple in triples for name in triple), scale, zero_point]

    def options(self) -> dict[str, Any]:
        """Return the domain, and attributes that the node does not have."""
        return {"domain": ms_domain}


class QLinearBinaryOp(QLinearOperator):
    """Add and Mul."""

    inputs = (0, 1)


class QLinearPool(QLinearOperator):
    """AveragePool."""


class QLinearConcat(QLinearOperator):
    """Concat; the scale of the output comes first."""

    def quantize(self) -> None:
        """Append the operator on integers, or the node in float without ranges."""
        self.inputs = tuple(range(len(self.node.input)))
        super().quantize()

    def order(self, triples: list[tuple[str, str, str]], scale: str, zero_point: str) -> list[str]:
        """Return the inputs of the operator on integers."""
        return [scale, zero_point, *(name for triple in triples for name in triple)]


class QLinearWhere(QLinearOperator):
    """The operator Where, if the options force it."""

    inputs = (1, 2)

    def should_quantize(self) -> bool:
        """Return True: an unquantized node is appended as it is."""
        return True

    def quantize(self) -> None:
        """Append the operator on integers, or the node."""
        if self.quantizer.force_quantize_no_input_check:
            super().quantize()
        else:
            self.quantizer.new_nodes.append(self.node)

    def order(self, triples: list[tuple[str, str, str]], scale: str, zero_point: str) -> list[str]:
        """Return the inputs of the operator on integers."""
        return [self.node.input[0], *super().order(triples, scale, zero_point)]


class QLinearSoftmax(QLinearOperator):
    """Softmax, whose results are between 0 and 1."""

    def scale_of_output(self) -> tuple[Any, Any]:
        """Return a scale of 1/256."""
        return 1 / 256.0, 0 if self.quantizer.activation_qType == TensorProto.UINT8 else -128

    def options(self) -> dict[str, Any]:
        """Return the domain and the operator set, on which the default axis depends."""
        return {"domain": ms_domain, "opset": self.quantizer.opset_version}


class QLinearActivation(QLinearOperator):
    """Sigmoid and LeakyRelu; Relu and Clip, which the limits of integers replace."""

    def scale_of_output(self) -> tuple[Any, Any]:
        """Return the scale of Sigmoid for NNAPI, if requested."""
        is_fixed = self.node.op_type == "Sigmoid" and self.quantizer.extra_options.get("extra.Sigmoid.nnapi")
        return (1 / 256.0, 0) if is_fixed else (None, None)

    def quantize(self) -> None:
        """Append the operator on integers, or drop the node if its input is quantized and not symmetric."""
        quantizer, node = self.quantizer, self.node
        if node.op_type not in ("Relu", "Clip"):
            super().quantize()
        elif node.input[0] in quantizer.quantized_value_map and not quantizer.is_activation_symmetric:
            quantizer.quantized_value_map[node.output[0]] = quantizer.quantized_value_map[node.input[0]]
        else:
            QuantOperatorBase.quantize(self)


class QGlobalAveragePool(QuantOperatorBase):
    """GlobalAveragePool of a quantized tensor."""

    def quantize(self) -> None:
        """Append the operator on integers, or the node in float."""
        source = self.quantizer.quantized_value_map.get(self.node.input[0])
        if source is None:
            super().quantize()
            return
        is_known, scale, zero_point, *_ = self.quantizer._get_quantization_params(self.node.output[0])
        own = (scale, zero_point) if is_known else (source.scale_name, source.zp_name)
        inputs = [str(source.q_name), source.scale_name, source.zp_name, *own]
        result = self.register(*own)
        self.append([], "QLinearGlobalAveragePool", inputs, [result], domain=ms_domain, channels_last=0)


class QArgMax(QuantOperatorBase):
    """ArgMax of a quantized tensor, which needs no scale."""

    def quantize(self) -> None:
        """Append the node, on integers if there are."""
        value = self.quantizer.find_quantized_value(self.node.input[0])
        if value is not None:
            self.node.input[0] = str(value.q_name)
        self.quantizer.new_nodes.append(self.node)


class Direct8BitOp(QuantOperatorBase):
    """Operators that move elements, of integers too."""

    def quantize(self) -> None:
        """Append the node on integers, if its input is quantized or the options force it."""
        quantizer, node = self.quantizer, self.node
        if quantizer.force_quantize_no_input_check:
            if not quantizer.is_valid_quantize_weight(node.input[0]):
                super().quantize()
                return
            integers, zero_points, scales, nodes = quantizer.quantize_activation(node, [0])
            if integers is None:
                super().quantize()
                return
            names = integers[0], scales[0], zero_points[0]
        else:
            value = quantizer.find_quantized_value(node.input[0])
            if value is None:
                quantizer.new_nodes.append(node)
                return
            names, nodes = (str(value.q_name), value.scale_name, value.zp_name), []
        result = self.register(names[1], names[2])
        node.input[0], node.output[0] = names[0], result
        quantizer.new_nodes.extend([*nodes, node])


class QMaxPool(Direct8BitOp):
    """MaxPool, which has integers from operator set 12 on, and no 8-bit floats."""

    def quantize(self) -> None:
        """Append the node on integers, if the operator set and the type permit."""
        is_float = self.quantizer.opset_version < 12 or self.quantizer.activation_qType in FLOAT8_TYPES
        (QuantOperatorBase if is_float else Direct8BitOp).quantize(self)


class QResize(Direct8BitOp):
    """Resize, which has integers from operator set 11 on."""

    def quantize(self) -> None:
        """Append the node on integers, if the operator set permits."""
        (QuantOperatorBase if self.quantizer.opset_version < 11 else Direct8BitOp).quantize(self)


class QSplit(QuantOperatorBase):
    """Split of integers, whose outputs have the scale of its input."""

    def quantize(self) -> None:
        """Append the node on integers, or in float without ranges."""
        integers, zero_points, scales, nodes = self.quantizer.quantize_activation(self.node, [0])
        if integers is None:
            super().quantize()
            return
        results = [
            self.register(scales[0], zero_points[0], name + "quantized", index)
            for index, name in enumerate(self.node.output)
        ]
        self.append(nodes, "Split", [integers[0], *self.node.input[1:]], results)


class GatherQuant(QuantOperatorBase):
    """Gather of a weight."""

    def should_quantize(self) -> bool:
        """Return True if the options choose the node, and its first input is a weight."""
        is_weight = self.quantizer.is_valid_quantize_weight(self.node.input[0])
        return bool(self.quantizer.should_quantize_node(self.node) and is_weight)

    def quantize(self) -> None:
        """Append the node on integers."""
        integers, zero_points, scales, nodes = self.quantizer.quantize_activation(self.node, [0])
        if integers is None:
            super().quantize()
            return
        result = self.register(scales[0], zero_points[0])
        self.node.input[0], self.node.output[0] = integers[0], result
        self.quantizer.new_nodes.extend([*nodes, self.node])


class QPad(QuantOperatorBase):
    """Pad of a quantized tensor, with an integer that stands for the padding."""

    def quantize(self) -> None:
        """Append the node on integers, or in float."""
        quantizer, node = self.quantizer, self.node
        value = quantizer.quantized_value_map.get(node.input[0])
        if value is None or quantizer.opset_version < 11:
            super().quantize()
            return
        if attributes_of(node).get("mode", b"constant") == b"constant":
            if len(node.input) < 3:
                node.input.append(value.zp_name)
            elif not node.input[2]:
                node.input[2] = value.zp_name
            elif not self._quantize_padding(value):
                super().quantize()
                return
        result = self.register(value.scale_name, value.zp_name)
        node.input[0], node.output[0] = str(value.q_name), result
        quantizer.new_nodes.append(node)

    def _quantize_padding(self, value: Any) -> bool:
        """Replace the padding by integers; return False if the scale is computed in each call."""
        quantizer, node = self.quantizer, self.node
        model = quantizer.model
        zero_point, scale = model.get_initializer(value.zp_name), model.get_initializer(value.scale_name)
        if zero_point is None or scale is None:
            return False
        constant = model.get_initializer(node.input[2])
        if constant is None:
            nodes = quantizer._get_quantize_input_nodes(
                node, 2, quantizer.activation_qType, value.scale_name, value.zp_name, scale.data_type
            )
            quantizer.new_nodes.extend(nodes or [])
            node.input[2] = node.input[2] + TENSOR_NAME_QUANT_SUFFIX
            return True
        scale_number, zero_number = (onnx.numpy_helper.to_array(one).reshape(-1)[0] for one in (scale, zero_point))
        kind, dims = quantizer.activation_qType, list(constant.dims)
        data = quantize_nparray(kind, onnx.numpy_helper.to_array(constant), scale_number, zero_number)
        name = node.input[2] + TENSOR_NAME_QUANT_SUFFIX
        model.add_initializer(initializer_of(name, np.asarray(data), kind, dims))
        node.input[2] = name
        return True


class QOpMatMul(QuantOperatorBase):
    """Products whose second factor may have to be constant."""

    def should_quantize(self) -> bool:
        """Return True if the options choose the node, and a factor is float."""
        quantizer, node = self.quantizer, self.node
        if not quantizer.should_quantize_node(node):
            return False
        if not quantizer.is_float_tensor(node.input[1]) and not quantizer.is_float_tensor(node.input[0]):
            return False
        return not quantizer.q_matmul_const_b_only or bool(quantizer.find_initializer_in_path(node.input[1]))

    def factors(self, axis: int | None = None, weight_type: int | None = None, **options: Any) -> tuple[Any, ...]:
        """Return names of integers, zero points and scales of both factors, and new nodes; None without a range.

        Args:
            axis: The axis of the channels of a constant factor that have a scale each; None for the options' choice.
            weight_type: The type of that factor.
            **options: Further arguments of ``quantize_weight``.
        """
        quantizer, node = self.quantizer, self.node
        left = quantizer.quantize_activation(node, [0])
        if left[0] is None:
            return None, None, None, None
        if axis is not None and weight_type is not None:
            names = quantizer.quantize_weight_per_channel(node.input[1], weight_type, axis)
            right: Any = *([name] for name in names), []
        else:
            right = quantizer.quantize_weight(node, [1], **options)
        if right[0] is None:
            return None, None, None, None
        return tuple([*one, *two] for one, two in zip(left, right, strict=True))


class QLinearMatMul(QOpMatMul):
    """MatMul."""

    def quantize(self) -> None:
        """Append the operator on integers, or the node in float without ranges."""
        integers, zero_points, scales, nodes = self.factors(reduce_range=True, op_level_per_channel=True)
        is_known, scale, zero_point, *_ = self.quantizer._get_quantization_params(self.node.output[0])
        if not is_known or integers is None:
            super().quantize()
            return
        triples = (name for triple in zip(integers, scales, zero_points, strict=True) for name in triple)
        inputs = [*triples, scale, zero_point]
        domain = ms_domain if self.quantizer.weight_qType in FLOAT8_TYPES else ""
        self.append(nodes, "QLinearMatMul", inputs, [self.register(scale, zero_point)], domain=domain)


class QLinearGemm(QOpMatMul):
    """Gemm, with a bias of 32-bit integers."""

    def quantize(self) -> None:
        """Append the operator on integers, or the node in float without ranges or with a bias that varies."""
        quantizer, node = self.quantizer, self.node
        attributes = attributes_of(node)
        is_known, scale, zero_point, *_ = quantizer._get_quantization_params(node.output[0])
        if quantizer.is_input_a_initializer(node.input[1]) and quantizer.is_per_channel():
            axis = 0 if attributes.get("transB", 0) else 1
            integers, zero_points, scales, nodes = self.factors(axis, quantizer.weight_qType)
        else:
            integers, zero_points, scales, nodes = self.factors(reduce_range=quantizer.reduce_range)
        has_bias = len(node.input) > 2 and bool(node.input[2])
        if not is_known or integers is None or (has_bias and not quantizer.is_input_a_initializer(node.input[2])):
            super().quantize()
            return
        bias = ""
        if has_bias:
            beta = attributes.get("beta", 1.0)
            bias = quantizer.quantize_bias_static(node.input[2], node.input[0], node.input[1], beta)
        triples = (name for triple in zip(integers, scales, zero_points, strict=True) for name in triple)
        result = self.register(scale, zero_point, node_type=node.op_type, node_qtype=quantizer.weight_qType)
        self.append(nodes, "QGemm", [*triples, bias, scale, zero_point], [result], beta=None, domain=ms_domain)


class QLinearConv(QOpMatMul):
    """Conv, with a bias of 32-bit integers."""

    def should_quantize(self) -> bool:
        """Return True if the options choose the node, and its first input is float."""
        return QuantOperatorBase.should_quantize(self)

    def quantize(self) -> None:
        """Append the operator on integers, or the node in float without ranges.

        Raises:
            RuntimeError: The weights are 8-bit floats, and there is a bias.
        """
        quantizer, node = self.quantizer, self.node
        is_known, scale, zero_point, *_ = quantizer._get_quantization_params(node.output[0])
        if quantizer.is_input_a_initializer(node.input[1]) and quantizer.is_per_channel():
            integers, zero_points, scales, nodes = self.factors(0, TensorProto.INT8)
        else:
            integers, zero_points, scales, nodes = self.factors(reduce_range=quantizer.reduce_range)
        if not is_known or integers is None:
            super().quantize()
            return
        triples = (name for triple in zip(integers, scales, zero_points, strict=True) for name in triple)
        inputs = [*triples, scale, zero_point]
        if len(node.input) > 2 and node.input[2]:
            if quantizer.weight_qType in FLOAT8_TYPES:
                raise RuntimeError("Quantization to FLOAT8E4M3FN for operator Conv is not supported.")
            inputs.append(quantizer.quantize_bias_static(node.input[2], node.input[0], node.input[1]))
        self.append(nodes, "QLinearConv", inputs, [self.register(scale, zero_point)])
