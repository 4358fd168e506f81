"""Operators between pairs of QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

import logging

import numpy as np
import onnx

from sardonyx.compat.onnxruntime.quantization.arithmetic import FLOAT8_TYPES
from sardonyx.compat.onnxruntime.quantization.operators.qdq_base_operator import QDQOperatorBase
from sardonyx.compat.onnxruntime.quantization.quant_utils import attributes_of

_LOG = logging.getLogger(__name__)


class QDQRemovableActivation(QDQOperatorBase):
    """Relu and Clip, which the limits of integers replace where the node ahead is quantized."""

    def quantize(self) -> None:
        """Remove the node, or mark its tensors."""
        node, quantizer = self.node, self.quantizer
        if not quantizer.is_tensor_quantized(node.input[0]):
            return
        if (
            not quantizer.is_activation_symmetric
            and not quantizer.qdq_keep_removable_activations
            and quantizer.try_replacing_upstream_output(node.input[0], node.output[0])
        ):
            quantizer.remove_node(node)
        else:
            quantizer.quantize_activation_tensor(node.input[0])
        if not self.disable_qdq_for_node_output:
            quantizer.quantize_activation_tensor(node.output[0])


class QDQDirect8BitOp(QDQOperatorBase):
    """Operators that move elements, whose output has the scale of their input."""

    def quantize(self) -> None:
        """Mark the output, if the input is marked."""
        if self.quantizer.force_quantize_no_input_check:
            self.quantizer.quantize_activation_tensor(self.node.input[0])
        elif not self.quantizer.is_tensor_quantized(self.node.input[0]):
            return
        if not self.disable_qdq_for_node_output:
            self.share_scale(self.node.output[0])


class QDQMaxPool(QDQDirect8BitOp):
    """MaxPool, which has integers from operator set 12 on, and no 8-bit floats."""

    def quantize(self) -> None:
        """Mark the output, if the operator set and the type permit."""
        if self.quantizer.opset_version >= 12 and self.quantizer.activation_qType not in FLOAT8_TYPES:
            super().quantize()


class QDQResize(QDQDirect8BitOp):
    """Resize, which has integers from operator set 11 on."""

    def quantize(self) -> None:
        """Mark the output, if the operator set permits."""
        if self.quantizer.opset_version >= 11:
            super().quantize()


class QDQWeighted(QDQOperatorBase):
    """Operators with an activation, a weight and a bias."""

    def default_axis(self) -> int:
        """Return the axis of output channels of the weight."""
        return 1 if self.node.op_type == "ConvTranspose" else 0

    def mark_weight(self, name: str, op_type: str | None = None) -> None:
        """Mark a weight, with a scale for each channel if the options say so."""
        is_per_channel, axis = self.quantizer.is_tensor_per_channel(name, self.default_axis(), op_type)
        if is_per_channel and axis is not None:
            self.quantizer.quantize_weight_tensor_per_channel(name, axis)
        else:
            self.quantizer.quantize_weight_tensor(name)

    def mark_bias(self, beta: float = 1.0) -> None:
        """Mark the bias."""
        node = self.node
        self.quantizer.quantize_bias_tensor(node.name, node.input[2], node.input[0], node.input[1], beta)

    def quantize(self) -> None:
        """Mark the tensors."""
        self.quantizer.quantize_activation_tensor(self.node.input[0])
        if not self.disable_qdq_for_node_output:
            self.quantizer.quantize_activation_tensor(self.node.output[0])
        self.mark_weight(self.node.input[1])
        if len(self.node.input) > 2 and self.node.input[2]:
            self.mark_bias()


class QDQConv(QDQWeighted):
    """Conv and ConvTranspose."""


class QDQGemm(QDQWeighted):
    """Gemm; the scale of the bias takes its factor."""

    def default_axis(self) -> int:
        """Return the axis of output channels of the weight."""
        return 0 if attributes_of(self.node).get("transB", 0) else 1

    def mark_bias(self, beta: float = 1.0) -> None:
        """Mark the bias, if it is constant."""
        if not self.quantizer.is_input_a_initializer(self.node.input[2]):
            _LOG.warning("Bias of Gemm node '%s' is not constant. Exclude the node for speed.", self.node.name)
            return
        super().mark_bias(attributes_of(self.node).get("beta", 1.0))
        for attribute in self.node.attribute:
            if attribute.name == "beta":
                attribute.f = 1.0


class QDQMatMul(QDQWeighted):
    """MatMul, whose constant factors are weights."""

    def default_axis(self) -> int:
        """Return the axis of output channels of the weight."""
        return 1

    def quantize(self) -> None:
        """Mark the tensors."""
        for name in (*self.node.input, *(() if self.disable_qdq_for_node_output else self.node.output)):
            if self.quantizer.is_input_a_initializer(name):
                self.mark_weight(name, self.node.op_type)
            else:
                self.quantizer.quantize_activation_tensor(name)


class QDQNormalization(QDQWeighted):
    """Normalizations with a scale and a bias."""

    def default_axis(self) -> int:
        """Return the axis of the elements of the scale, for weights of two axes."""
        return 1

    def quantize(self) -> None:
        """Mark the tensors."""
        node = self.node
        self.quantizer.quantize_activation_tensor(node.input[0])
        if self.quantizer.is_input_a_initializer(node.input[1]):
            self.mark_weight(node.input[1], node.op_type)
        else:
            self.quantizer.quantize_activation_tensor(node.input[1])
        if len(node.input) > 2 and node.input[2]:
            self.mark_bias()
        self.mark_outputs()


class QDQPad(QDQOperatorBase):
    """Pad, whose output has the scale of its input if padding adds no other values than 0."""

    def _adds_no_value(self) -> bool:
        attributes = attributes_of(self.node)
        mode = attributes.get("mode", b"constant")
        if mode != b"constant":
            return mode in (b"reflect", b"edge", b"wrap")
        kind = self.quantizer.model.get_tensor_type(self.node.input[0])
        if kind is None:
            return False
        value: np.ndarray | None = np.zeros((), onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
        if self.quantizer.opset_version < 11:
            value = np.asarray(attributes.get("value", 0.0), np.float32)
        elif len(self.node.input) > 2 and self.node.input[2]:
            value = self.quantizer.model.get_constant_value(self.node.input[2])
        return value is not None and value.dtype in (np.float32, np.float16) and float(value.item()) == 0

    def quantize(self) -> None:
        """Mark the tensors."""
        for name in filter(None, self.node.input):
            self.quantizer.quantize_activation_tensor(name)
        if not self.disable_qdq_for_node_output and self._adds_no_value():
            self.share_scale(self.node.output[0])
        else:
            self.mark_outputs()


class QDQSplit(QDQOperatorBase):
    """Split, whose outputs have the scale of its input."""

    def quantize(self) -> None:
        """Mark the tensors."""
        if not self.quantizer.is_tensor_quantized(self.node.input[0]):
            self.quantizer.quantize_activation_tensor(self.node.input[0])
        if not self.disable_qdq_for_node_output:
            for name in self.node.output:
                self.share_scale(name)


class QDQGather(QDQOperatorBase):
    """Gather of a weight, or of a quantized tensor."""

    def quantize(self) -> None:
        """Mark the tensors."""
        source = self.node.input[0]
        if self.quantizer.is_valid_quantize_weight(source) or self.quantizer.force_quantize_no_input_check:
            self.quantizer.quantize_activation_tensor(source)
        elif not self.quantizer.is_tensor_quantized(source):
            return
        self.share_scale(self.node.output[0])


class QDQWhere(QDQOperatorBase):
    """The operator Where, if both its branches are quantized."""

    def quantize(self) -> None:
        """Mark the tensors."""
        branches = self.node.input[1:3]
        if self.quantizer.force_quantize_no_input_check:
            for name in branches:
                self.quantizer.quantize_activation_tensor(name)
        elif not all(self.quantizer.is_tensor_quantized(name) for name in branches):
            return
        self.mark_outputs()
