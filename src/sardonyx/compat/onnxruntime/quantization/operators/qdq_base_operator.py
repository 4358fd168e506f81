"""Base of the classes that mark the tensors of an operator for pairs of nodes."""

from __future__ import annotations

from typing import Any

import onnx


class QDQOperatorBase:
    """A node whose inputs and outputs are all quantized.

    Args:
        onnx_quantizer: The quantizer, an ``QDQQuantizer``.
        onnx_node: The node.
    """

    def __init__(self, onnx_quantizer: Any, onnx_node: onnx.NodeProto) -> None:
        self.quantizer = onnx_quantizer
        self.node = onnx_node
        self.disable_qdq_for_node_output = onnx_node.op_type in onnx_quantizer.op_types_to_exclude_output_quantization

    def quantize(self) -> None:
        """Mark the inputs and the outputs."""
        for name in (*self.node.input, *(() if self.disable_qdq_for_node_output else self.node.output)):
            self.quantizer.quantize_activation_tensor(name)

    def mark_outputs(self) -> None:
        """Mark the outputs, each with a scale of its own."""
        if not self.disable_qdq_for_node_output:
            for name in self.node.output:
                self.quantizer.quantize_activation_tensor(name)

    def share_scale(self, output: str) -> None:
        """Mark an output with the scale of the first input."""
        self.quantizer.quantize_output_same_as_input(output, self.node.input[0], self.node.name)
