"""Multiply-accumulate counts of nodes, as expressions of the open sizes."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from sardonyx.core.dim import Size, product
from sardonyx.rewrite.analysis.sizes import Sizes


def _matmul_macs(node: ir.Node, sizes: Sizes) -> Size | None:
    left, out = sizes.dims(node.inputs[0]), sizes.dims(node.outputs[0])
    return None if left is None or out is None or not left else product(out) * left[-1]


def _gemm_macs(node: ir.Node, sizes: Sizes) -> Size | None:
    left, out = sizes.dims(node.inputs[0]), sizes.dims(node.outputs[0])
    if left is None or out is None or len(left) != 2:
        return None
    return product(out) * left[0 if sizes.attr(node, "transA", 0) else 1]


def _conv_macs(node: ir.Node, sizes: Sizes) -> Size | None:
    weight, out = sizes.dims(node.inputs[1 if node.op_type != "QLinearConv" else 3]), sizes.dims(node.outputs[0])
    return None if weight is None or out is None else product(out) * product(weight[1:])


def _transposed_conv_macs(node: ir.Node, sizes: Sizes) -> Size | None:
    weight, data = sizes.dims(node.inputs[1]), sizes.dims(node.inputs[0])
    return None if weight is None or data is None else product(data) * product(weight[1:])


def _recurrent_macs(node: ir.Node, sizes: Sizes) -> Size | None:
    data, weight, recurrence = (sizes.dims(v) for v in node.inputs[:3])
    if data is None or weight is None or recurrence is None:
        return None
    return data[0] * data[1] * (product(weight) + product(recurrence))


def _attention_macs(node: ir.Node, sizes: Sizes) -> Size | None:
    query, key, out = sizes.dims(node.inputs[0]), sizes.dims(node.inputs[1]), sizes.dims(node.outputs[0])
    if query is None or key is None or out is None or len(query) < 3:
        return None
    return (product(query) + product(out)) * key[-2]


MACS: dict[str, Callable[[ir.Node, Sizes], Size | None]] = {
    "MatMul": _matmul_macs,
    "MatMulInteger": _matmul_macs,
    "QLinearMatMul": _matmul_macs,
    "FusedMatMul": _matmul_macs,
    "Gemm": _gemm_macs,
    "Conv": _conv_macs,
    "ConvInteger": _conv_macs,
    "QLinearConv": _conv_macs,
    "FusedConv": _conv_macs,
    "ConvTranspose": _transposed_conv_macs,
    "LSTM": _recurrent_macs,
    "GRU": _recurrent_macs,
    "RNN": _recurrent_macs,
    "Attention": _attention_macs,
}
"""Operator type → function that counts the multiply-accumulates of a node; None if a shape is unknown."""
