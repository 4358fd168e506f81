"""The nodes of quantized activations: pairs, pairs of one reader, and conversions between two types."""

from __future__ import annotations

from typing import Any

import onnx

from sardonyx.compat.onnxruntime.quantization.onnx_model import ONNXModel
from sardonyx.compat.onnxruntime.quantization.quant_utils import (
    DEQUANT_OP_NAME,
    QUANT_OP_NAME,
    QuantizedValue,
    QuantizedValueType,
    add_dequant_output_suffix,
    add_dequant_suffix,
    add_quant_input_suffix,
    add_quant_output_suffix,
    add_quant_suffix,
)


class QDQNodes:
    """Writer of QuantizeLinear and DequantizeLinear nodes."""

    model: ONNXModel
    qdq_op_domain: str | None
    dedicated_qdq_pair: bool
    tensor_to_its_receiving_nodes: dict[str, list[onnx.NodeProto]]

    def _create(
        self, kind: str, source: str, result: str, name: str, scale: str, zero_point: str, axis: int | None, block: int
    ) -> None:
        options: dict[str, Any] = {"axis": axis, "domain": self.qdq_op_domain}
        if block:
            options["block_size"] = block
        self.model.add_node(onnx.helper.make_node(kind, [source, scale, zero_point], [result], name, **options))

    def create_quantize(self, source: str, result: str, name: str, scale: str, zero_point: str) -> None:
        """Add a node that quantizes."""
        self._create(QUANT_OP_NAME, source, result, name, scale, zero_point, None, 0)

    def create_dequantize(
        self, source: str, result: str, name: str, scale: str, zero_point: str, axis: int | None = None, block: int = 0
    ) -> None:
        """Add a node that dequantizes."""
        self._create(DEQUANT_OP_NAME, source, result, name, scale, zero_point, axis, block)

    def create_pair(
        self,
        source: str,
        result: str,
        tensor: str,
        scale: str,
        zero_point: str,
        ending: str = "",
        axis: int | None = None,
        block_size: int = 0,
    ) -> None:
        """Add a pair of nodes with the names of a tensor and an ending."""
        integers = add_quant_output_suffix(tensor) + ending
        names = add_quant_suffix(tensor) + ending, add_dequant_suffix(tensor) + ending
        self._create(QUANT_OP_NAME, source, integers, names[0], scale, zero_point, axis, block_size)
        self._create(DEQUANT_OP_NAME, integers, result, names[1], scale, zero_point, axis, block_size)

    def _are_pairs_dedicated(self, tensor: str) -> bool:
        return self.dedicated_qdq_pair and len(self.tensor_to_its_receiving_nodes.get(tensor, ())) > 1

    def add_pair(self, tensor: str, scale: str, zero_point: str, data_type: int | None) -> QuantizedValue:
        """Add the pair of an activation, or one for each reader, and return the names."""
        result = add_dequant_output_suffix(tensor)
        if self._are_pairs_dedicated(tensor):
            for number, reader in enumerate(self.tensor_to_its_receiving_nodes[tensor], 1):
                self.create_pair(tensor, f"{result}_{number}", tensor, scale, zero_point, f"_{number}")
                self.model.replace_node_input(reader, tensor, f"{result}_{number}")
            result += "_1"
        elif self.model.is_graph_output(tensor):
            source, result = add_quant_input_suffix(tensor), tensor
            self.model.replace_output_of_all_nodes(tensor, source)
            self.create_pair(source, result, tensor, scale, zero_point)
        else:
            self.model.replace_input_of_all_nodes(tensor, result)
            self.create_pair(tensor, result, tensor, scale, zero_point)
        return QuantizedValue(tensor, result, scale, zero_point, QuantizedValueType.Input, scale_type=data_type)

    def add_conversion(
        self,
        tensor: str,
        first: tuple[str, str],
        second: tuple[str, str],
        converted_readers: set[str] | None,
        data_type: int | None,
    ) -> tuple[QuantizedValue, QuantizedValue, set[str]]:
        """Add a pair, and a second pair of another type for some readers.

        Readers of the first type read the first DequantizeLinear. The second pair follows it, or a copy of it if other
        nodes read it. The output of the graph has the second type if all readers do.

        Returns:
            The names of both types, and the readers of the second.

        Raises:
            ValueError: Each reader is to have a pair of its own.
        """
        if self._are_pairs_dedicated(tensor):
            raise ValueError(f"readers of {tensor} cannot have pairs of their own (DedicatedQDQPair) and another type.")
        readers = {node.name for node in self.tensor_to_its_receiving_nodes.get(tensor, [])}
        converted = readers if converted_readers is None else set(converted_readers)
        others = readers - converted
        are_all_converted = len(converted) == len(readers)
        is_output = self.model.is_graph_output(tensor)
        source = tensor
        if is_output:
            source = add_quant_input_suffix(tensor)
            self.model.replace_output_of_all_nodes(tensor, source)
        integers = add_quant_output_suffix(tensor)
        result = tensor if is_output and not are_all_converted else add_dequant_output_suffix(tensor)
        if others and result != tensor:
            self.model.replace_input_of_nodes(tensor, result, others)
        self.create_pair(source, result, tensor, *first)
        between = result
        if not are_all_converted:
            between = add_quant_input_suffix(f"{tensor}_convert")
            self.create_dequantize(integers, between, add_dequant_suffix(f"{tensor}_convert_clone"), *first)
        last = tensor if is_output and are_all_converted else add_dequant_output_suffix(f"{tensor}_convert")
        if converted and last != tensor:
            self.model.replace_input_of_nodes(tensor, last, converted)
        self.create_pair(between, last, f"{tensor}_convert", *second)
        kind = QuantizedValueType.Input
        values = [
            QuantizedValue(tensor, name, *scale_zp, kind, scale_type=data_type)
            for name, scale_zp in ((result, first), (last, second))
        ]
        return values[0], values[1], converted
