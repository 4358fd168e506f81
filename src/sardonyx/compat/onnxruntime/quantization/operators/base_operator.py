"""Base of the classes that replace an operator by one on integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from sardonyx.compat.onnxruntime.quantization.arithmetic import TENSOR_NAME_QUANT_SUFFIX
from sardonyx.compat.onnxruntime.quantization.quant_utils import QuantizedValue, QuantizedValueType, attributes_of


class QuantOperatorBase:
    """A node that stays in float.

    Args:
        onnx_quantizer: The quantizer, an ``ONNXQuantizer``.
        onnx_node: The node.
    """

    def __init__(self, onnx_quantizer: Any, onnx_node: onnx.NodeProto) -> None:
        self.quantizer = onnx_quantizer
        self.node = onnx_node

    def should_quantize(self) -> bool:
        """Return True if the options choose the node, and its first input is float."""
        is_float = self.quantizer.is_float_tensor(self.node.input[0])
        return bool(self.quantizer.should_quantize_node(self.node) and is_float)

    def quantize(self) -> None:
        """Append the node, after nodes that give its quantized inputs in float."""
        for name in self.node.input:
            node = self.quantizer._dequantize_value(name)
            if node is not None:
                self.quantizer.new_nodes.append(node)
        self.quantizer.new_nodes.append(self.node)

    def register(self, scale_name: str, zp_name: str, result: str = "", index: int = 0, **details: Any) -> str:
        """Note that an output is quantized, and return the name of its integers."""
        name = self.node.output[index]
        result = result or name + TENSOR_NAME_QUANT_SUFFIX
        self.quantizer.quantized_value_map[name] = QuantizedValue(
            name, result, scale_name, zp_name, QuantizedValueType.Input, **details
        )
        return result

    def append(
        self, nodes: Sequence[onnx.NodeProto], kind: str, inputs: Sequence[str], outputs: Sequence[str], **options: Any
    ) -> None:
        """Append nodes, and a node of a kind with the attributes of the node, but for those that `options` replaces.

        An option that is None removes the attribute.
        """
        options = {name: value for name, value in {**attributes_of(self.node), **options}.items() if value is not None}
        name = self.node.name + "_quant" if self.node.name else ""
        node = onnx.helper.make_node(kind, list(inputs), list(outputs), name, **options)
        self.quantizer.new_nodes.extend([*nodes, node])
