"""Constant matrices and tables of few bits, in the nodes and under the names that ONNX Runtime writes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from sardonyx.compat.onnxruntime.quantization.blockwise import (
    blocks_of,
    pack_bits,
    quantize_blocks,
    quantize_matmul_2bits,
    quantize_matmul_4bits,
    quantize_matmul_8bits,
)
from sardonyx.compat.onnxruntime.quantization.quant_utils import QuantFormat, attributes_of, ms_domain

_LOG = logging.getLogger(__name__)
_KINDS = {4: (TensorProto.INT4, TensorProto.UINT4), 8: (TensorProto.INT8, TensorProto.UINT8)}
_KERNELS = {2: quantize_matmul_2bits, 4: quantize_matmul_4bits, 8: quantize_matmul_8bits}


class DefaultWeightOnlyQuantizer:
    """Nearest integers in blocks.

    Args:
        config: The options, a ``DefaultWeightOnlyQuantConfig``.
    """

    def __init__(self, config: Any) -> None:
        self.config = config

    def quantize(self, node: NodeProto, graph_stack: Sequence[GraphProto]) -> list[NodeProto]:
        """Return the nodes that replace a node, or the node itself if its weight cannot be quantized.

        Args:
            node: The node.
            graph_stack: The graph of the node, last, and the graphs around it.
        """
        is_pair, bits = self.config.quant_format == QuantFormat.QDQ, self.config.bits
        index = {"MatMul": 1, "Gather": 0}.get(node.op_type)
        if index is None:
            return [node]
        owner = next((g for g in reversed(graph_stack) for t in g.initializer if t.name == node.input[index]), None)
        if owner is None:
            return [node]
        weight = next(tensor for tensor in owner.initializer if tensor.name == node.input[index])
        data = ir.from_proto(weight).numpy()
        if node.op_type == "Gather":
            if bits != 4 or is_pair:
                _LOG.error("Gather has only 4 bits, and only the format QOperator; %s stays in float.", node.name)
                return [node]
            return self._gather(node, owner, weight.name, data)
        if is_pair and bits not in _KINDS:
            _LOG.error("MatMul has only 4 and 8 bits in the format QDQ; %s stays in float.", node.name)
            return [node]
        if data.ndim < 2 or any(size != 1 for size in data.shape[:-2]):
            return [node]
        for position in reversed(range(len(owner.input))):
            if owner.input[position].name == weight.name:
                del owner.input[position]
        return self._matmul(node, graph_stack, owner, weight.name, data)

    def _matmul(
        self, node: NodeProto, graphs: Sequence[GraphProto], owner: GraphProto, name: str, data: np.ndarray
    ) -> list[NodeProto]:
        dims, matrix = data.shape, data.reshape(data.shape[-2:])
        rank = _static_rank(node.input[0], graphs)
        needs_shape = len(dims) > 2 and (rank is None or rank < len(dims))
        result = node.output[0] + ("_pre_reshape" if needs_shape else "")
        if self.config.quant_format == QuantFormat.QOperator:
            nodes, prefix = self._nbits_node(node, owner, name, matrix, result), f"_Q{self.config.bits}"
        else:
            nodes, prefix = self._pair(node, owner, name, matrix, result), f"_DQ_Q{self.config.bits}"
        if needs_shape:
            stem = (node.name or name) + prefix
            nodes += _reshape_nodes(node.input[0], dims, owner, f"{stem}_{node.output[0]}", result, node.output[0])
        return nodes

    def _nbits_node(
        self, node: NodeProto, owner: GraphProto, name: str, matrix: np.ndarray, result: str
    ) -> list[NodeProto]:
        config, (rows, columns) = self.config, matrix.shape
        bits, count = config.bits, -(-rows // config.block_size)
        parts = 8 // bits
        integers = np.zeros((columns, count, config.block_size // parts), np.uint8)
        zero_points = np.zeros((columns, -(-count // parts)), np.uint8)
        scales = np.zeros((columns, count), _scale_type(matrix))
        _KERNELS[bits](integers, matrix, scales, zero_points, config.block_size, columns, rows, config.is_symmetric)
        arrays = {f"{name}_Q{bits}": integers, f"{name}_scales": scales.astype(matrix.dtype)}
        arrays |= {} if config.is_symmetric else {f"{name}_zero_points": zero_points}
        owner.initializer.extend(_tensor(array, one) for one, array in arrays.items())
        options = {"K": rows, "N": columns, "bits": bits, "block_size": config.block_size}
        if config.accuracy_level:
            options["accuracy_level"] = config.accuracy_level
        label = f"{node.name}_Q{bits}" if node.name else ""
        return [helper.make_node("MatMulNBits", [node.input[0], *arrays], [result], label, domain=ms_domain, **options)]

    def _pair(self, node: NodeProto, owner: GraphProto, name: str, matrix: np.ndarray, result: str) -> list[NodeProto]:
        """Return DequantizeLinear and MatMul; signed channels are stored transposed, as accelerators read them."""
        config, (rows, columns), bits = self.config, matrix.shape, self.config.bits
        is_transposed = config.channel_wised_quantize and config.is_symmetric
        block = rows if config.channel_wised_quantize else config.block_size
        integers, scales, zeros = quantize_blocks(blocks_of(matrix, block), bits, config.is_symmetric)
        integers, scales, zeros = integers.reshape(-1, columns)[:rows], scales[:, 0], zeros[:, 0]
        if config.is_symmetric:
            integers = integers ^ (1 << (bits - 1))  # Integers from 0, as two's complement around the zero point.
        if is_transposed:
            integers, scales = integers.T, scales.T
        kind = _KINDS[bits][0 if config.is_symmetric else 1]
        arrays = {f"{name}_DQ_Q{bits}": integers, f"{name}_DQ_scales": scales}
        arrays |= {} if config.is_symmetric else {f"{name}_DQ_zero_points": zeros}
        names = list(arrays)
        for one, array in arrays.items():
            if array is scales:
                owner.initializer.append(_tensor(array.astype(matrix.dtype), one))
            else:
                packed = pack_bits(np.ascontiguousarray(array).reshape(-1), bits).tobytes()
                owner.initializer.append(helper.make_tensor(one, kind, array.shape, packed, raw=True))
        floats = names[0] + "_output"
        options = {"axis": 1 if is_transposed else 0, "block_size": block}
        label = f"{node.name}_DQ_Q{bits}" if node.name else ""
        nodes = [helper.make_node("DequantizeLinear", names, [floats], label, **options)]
        if is_transposed:
            nodes.append(helper.make_node("Transpose", [floats], [floats + "_transposed"], perm=[1, 0]))
            floats += "_transposed"
        label = f"{node.name}_matmul_Q{bits}" if node.name else ""
        return [*nodes, helper.make_node("MatMul", [node.input[0], floats], [result], label)]

    def _gather(self, node: NodeProto, owner: GraphProto, name: str, data: np.ndarray) -> list[NodeProto]:
        config = self.config
        axis, block = config.quant_axes.get("Gather", 1), config.block_size
        if not -data.ndim <= axis < data.ndim or block < 16 or block & (block - 1):
            raise ValueError(f"{node.name}: the axis {axis} or the block size {block} does not fit the weight.")
        axis %= data.ndim
        shape = int(np.prod(data.shape[:axis])), data.shape[axis], int(np.prod(data.shape[axis + 1 :]))
        count = -(-shape[1] // block)
        padded = np.pad(data.reshape(shape).astype(np.float32), ((0, 0), (0, count * block - shape[1]), (0, 0)))
        integers, scales, zeros = quantize_blocks(
            padded.reshape(shape[0] * count, block, shape[2]), 4, config.is_symmetric
        )
        integers = integers.reshape(shape[0], count * block, shape[2])[:, : shape[1]].reshape(-1)
        integers = integers ^ 8 if config.is_symmetric else integers
        kind = TensorProto.INT4 if config.is_symmetric else TensorProto.UINT4
        dims = [*data.shape[:axis], count, *data.shape[axis + 1 :]]
        names = [f"{name}_Q4", node.input[1], f"{name}_scales"]
        packed = pack_bits(integers, 4).tobytes()
        owner.initializer.append(helper.make_tensor(names[0], kind, data.shape, packed, raw=True))
        owner.initializer.append(_tensor(scales.reshape(dims).astype(data.dtype), names[2]))
        if not config.is_symmetric:
            names.append(f"{name}_zero_points")
            packed = pack_bits(zeros.reshape(-1), 4).tobytes()
            owner.initializer.append(helper.make_tensor(names[3], kind, dims, packed, raw=True))
        options = {
            "gather_axis": attributes_of(node).get("axis", 0), "quantize_axis": axis, "block_size": block,
        }  # fmt: skip
        label = f"{node.name}_Q4" if node.name else ""
        return [helper.make_node("GatherBlockQuantized", names, list(node.output), label, domain=ms_domain, **options)]


def _scale_type(matrix: np.ndarray) -> Any:
    return np.float32 if matrix.dtype == ml_dtypes.bfloat16 else matrix.dtype


def _tensor(array: np.ndarray, name: str) -> onnx.TensorProto:
    return ir.to_proto(ir.Tensor(array, name=name))


def _static_rank(name: str, graphs: Sequence[GraphProto]) -> int | None:
    for graph in reversed(graphs):
        for info in (*graph.input, *graph.value_info, *graph.output):
            if info.name == name:
                kind = info.type.tensor_type
                return len(kind.shape.dim) if kind.HasField("shape") else None
    return None


def _reshape_nodes(
    left: str, dims: Sequence[int], owner: GraphProto, stem: str, source: str, result: str
) -> list[NodeProto]:
    """Return the nodes that prepend the sizes of 1 of a weight [1, …, K, N] to a product, for any rank of the input."""
    constants = {
        "zero": 0, "one": 1, "two": 2, "one_vec": [1], "rank_b": len(dims), "n_vec": [dims[-1]], "zero_vec": [0],
    }  # fmt: skip
    owner.initializer.extend(
        numpy_helper.from_array(np.array(value, np.int64), f"{stem}_{name}") for name, value in constants.items()
    )
    nodes: list[NodeProto] = []

    def add(kind: str, inputs: Sequence[str], name: str, **options: Any) -> None:
        names = [one if one in (left, source) else f"{stem}_{one}" for one in inputs]
        output = result if name == result else f"{stem}_{name}"
        nodes.append(helper.make_node(kind, names, [output], f"{stem}_{name}_node", **options))

    add("Shape", [left], "a_shape")
    add("Shape", ["a_shape"], "a_shape_of_shape")
    add("Gather", ["a_shape_of_shape", "zero"], "a_rank")
    add("Max", ["a_rank", "two"], "a_rank_eff")
    add("Sub", ["rank_b", "a_rank_eff"], "extra_raw")
    add("Max", ["extra_raw", "zero"], "extra_count")
    add("Reshape", ["extra_count", "one_vec"], "extra_count_vec")
    ones = helper.make_tensor(f"{stem}_one_value", TensorProto.INT64, [1], [1])
    add("ConstantOfShape", ["extra_count_vec"], "extra_ones", value=ones)
    add("Sub", ["a_rank", "one"], "a_rank_m1")
    add("Reshape", ["a_rank_m1", "one_vec"], "a_rank_m1_vec")
    add("Slice", ["a_shape", "zero_vec", "a_rank_m1_vec", "zero_vec"], "a_prefix_shape")
    add("Concat", ["extra_ones", "a_prefix_shape", "n_vec"], "target_shape", axis=0)
    add("Reshape", [source, "target_shape"], result)
    return nodes
