"""Operators on integers (QOperator form): float operators between dequantization and quantization become one node.

Source: ONNX Operators, *QLinearConv*, *QLinearMatMul*; ONNX Runtime's contrib operators, *QGemm*, *QLinearAdd*,
*QLinearConcat*, *QLinearAveragePool*, *QLinearGlobalAveragePool*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.placement import is_movement
from sardonyx.compress.quantization.targets import VENDOR, QuantizationTarget
from sardonyx.compress.quantization.writer import Writer
from sardonyx.rewrite.analysis import facts
from sardonyx.rewrite.analysis.names import node_label

OPERATORS = ("Conv", "MatMul", "Gemm", "Add", "Concat", "AveragePool", "GlobalAveragePool", "MaxPool")
_NARROW = (ir.DataType.INT8, ir.DataType.UINT8)


@dataclass(frozen=True)
class Quantized:
    """A quantized tensor.

    Attributes:
        values: The integers.
        scale: The scales.
        zero: The zero points.
        axis: The axis of scales.
    """

    values: ir.Value
    scale: ir.Value
    zero: ir.Value
    axis: int

    @property
    def operands(self) -> list[ir.Value]:
        """The inputs of operators on integers."""
        return [self.values, self.scale, self.zero]


def write_integer_operators(model: ir.Model, target: QuantizationTarget) -> tuple[int, list[str]]:
    """Replace float operators between dequantization and quantization by operators on integers.

    Args:
        model: A model with QuantizeLinear and DequantizeLinear, which is changed.
        target: The target; without operators of ``com.microsoft``, only convolutions, products and maxima are replaced.

    Returns:
        The number of operators on integers, and the names of the nodes that keep the other form.
    """
    writer = Writer(model)
    count, others = 0, []
    for node in list(model.graph):
        is_moved = is_movement(node)
        if node.domain or not (is_moved or node.op_type in OPERATORS):
            continue
        sources = [_dequantized(value) for value in node.inputs[: 1 if is_moved else _operands(node)]]
        if any(source is None for source in sources):
            continue
        result = _quantizer(node)
        operands = [source for source in sources if source is not None]
        try:
            write = _write_movement if is_moved else _WRITERS[node.op_type]
            new = None if result is None else write(writer, node, operands, result, target)
        except _NoIntegerBias:
            new = None
        if new is None or result is None:
            others.append(node_label(node))
            continue
        writer.replace(result, new)
        count += 1
    _remove_unused(model.graph)
    return count, others


def _operands(node: ir.Node) -> int:
    """Return the number of inputs that are operands; the others are biases."""
    return 2 if node.op_type in ("Conv", "MatMul", "Gemm") else len(node.inputs)


def _dequantized(value: ir.Value | None) -> Quantized | None:
    """Return the integers of a dequantized value of 8 bits without blocks."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "DequantizeLinear" or node.domain or len(node.inputs) < 3:
        return None
    values, scale, zero = node.inputs
    if values is None or scale is None or zero is None or zero.dtype not in _NARROW:
        return None
    if facts.attribute(node, "block_size", 21, 0):
        return None
    return Quantized(values, scale, zero, int(facts.attribute(node, "axis", 13, 1)))


def _quantizer(node: ir.Node) -> ir.Node | None:
    """Return the only reader of a result, a QuantizeLinear, directly or after an activation that it absorbs."""
    value = node.outputs[0]
    while True:
        uses = value.uses()
        if len(uses) != 1 or value.is_graph_output():
            return None
        reader = next(iter(uses)).node
        if reader.op_type == "QuantizeLinear" and not reader.domain:
            zero = reader.inputs[2] if len(reader.inputs) > 2 else None
            return reader if zero is not None and zero.dtype in _NARROW else None
        if reader.op_type not in ("Relu", "Clip") or not _absorbs(reader):
            return None
        value = reader.outputs[0]


def _absorbs(activation: ir.Node) -> bool:
    """Return True if the quantization after an activation clips at least as much as the activation."""
    uses = activation.outputs[0].uses()
    if len(uses) != 1 or activation.outputs[0].is_graph_output():
        return False
    node = next(iter(uses)).node
    if node.op_type != "QuantizeLinear" or len(node.inputs) < 3:
        return False
    scale, zero = facts.scalar(node.inputs[1]), facts.scalar(node.inputs[2])
    dtype = node.inputs[2].dtype if node.inputs[2] is not None else None
    if scale is None or zero is None or dtype not in _NARROW:
        return False
    least, greatest = (-128, 127) if dtype == ir.DataType.INT8 else (0, 255)
    low, high = (least - zero) * scale, (greatest - zero) * scale
    if activation.op_type == "Relu":
        return bool(low >= 0)
    bounds = [facts.scalar(value) if value is not None else None for value in activation.inputs[1:3]]
    if any(bound is None and value is not None for bound, value in zip(bounds, activation.inputs[1:3], strict=False)):
        return False
    floor, ceiling = (*bounds, None, None)[:2]
    return (floor is None or low >= floor) and (ceiling is None or high <= ceiling + scale / 2)


def _result(quantize: ir.Node) -> list[ir.Value]:
    scale, zero = quantize.inputs[1], quantize.inputs[2]
    assert scale is not None and zero is not None
    return [scale, zero]


def _dtype(quantize: ir.Node) -> ir.DataType:
    zero = quantize.inputs[2]
    assert zero is not None and zero.dtype is not None
    return zero.dtype


def _attributes(node: ir.Node, *without: str) -> dict[str, Any]:
    return {name: attr.value for name, attr in node.attributes.items() if name not in without}


class _NoIntegerBias(Exception):
    """The bias cannot be 32-bit integers at the scale of the products."""


def _bias(writer: Writer, node: ir.Node, x: Quantized, w: Quantized) -> ir.Value | None:
    """Return the bias as 32-bit integers at the scale of the products; None for none.

    Raises:
        _NoIntegerBias: The bias has another type.
    """
    value = node.inputs[2] if len(node.inputs) > 2 else None
    if value is None:
        return None
    producer = value.producer()
    if producer is not None and producer.op_type == "DequantizeLinear" and producer.inputs[0] is not None:
        return producer.inputs[0]
    bias, x_scale, w_scale = facts.constant(value), facts.constant(x.scale), facts.constant(w.scale)
    if bias is None or x_scale is None or w_scale is None or bias.ndim != 1:
        raise _NoIntegerBias
    integers = np.rint(bias.astype(np.float64) / (x_scale.astype(np.float64) * w_scale))
    if np.abs(integers).max(initial=0) >= 2**31:
        raise _NoIntegerBias
    return writer.initializer(f"{value.name}_quantized", integers.astype(np.int32))


def _write_conv(
    writer: Writer, node: ir.Node, operands: Sequence[Quantized], result: ir.Node, target: QuantizationTarget
) -> list[ir.Node] | None:
    x, w = operands
    if facts.rank(w.scale) == 1 and (w.axis != 0 or not target.reads_filter_scales):
        return None
    bias = _bias(writer, node, x, w)
    inputs = [*x.operands, *w.operands, *_result(result), *([] if bias is None else [bias])]
    return [writer.node("QLinearConv", inputs, str(node.name), _dtype(result), **_attributes(node))]


def _write_matmul(
    writer: Writer, node: ir.Node, operands: Sequence[Quantized], result: ir.Node, target: QuantizationTarget
) -> list[ir.Node] | None:
    del target
    x, w = operands
    if facts.rank(w.scale) == 1 and (facts.rank(w.values) != 2 or w.axis not in (1, -1)):
        return None
    inputs = [*x.operands, *w.operands, *_result(result)]
    return [writer.node("QLinearMatMul", inputs, str(node.name), _dtype(result))]


def _write_gemm(
    writer: Writer, node: ir.Node, operands: Sequence[Quantized], result: ir.Node, target: QuantizationTarget
) -> list[ir.Node] | None:
    x, w = operands
    transposed = bool(facts.attribute(node, "transB", 13, 0))
    if facts.rank(w.scale) == 1 and w.axis != (0 if transposed else 1):
        return None
    bias = _bias(writer, node, x, w)
    if target.vendor:
        inputs = [*x.operands, *w.operands, bias, *_result(result)]
        return [writer.node("QGemm", inputs, str(node.name), _dtype(result), VENDOR, transB=int(transposed))]
    values = facts.constant(w.values)
    if bias is not None or (transposed and values is None):
        return None
    matrix = w.values
    if transposed and values is not None:
        matrix = writer.initializer(f"{w.values.name}_transposed", np.ascontiguousarray(values.T))
    inputs = [*x.operands, matrix, w.scale, w.zero, *_result(result)]
    return [writer.node("QLinearMatMul", inputs, str(node.name), _dtype(result))]


def _write_add(
    writer: Writer, node: ir.Node, operands: Sequence[Quantized], result: ir.Node, target: QuantizationTarget
) -> list[ir.Node] | None:
    if not target.vendor or len({operand.zero.dtype for operand in operands} | {_dtype(result)}) != 1:
        return None
    inputs = [*operands[0].operands, *operands[1].operands, *_result(result)]
    return [writer.node("QLinearAdd", inputs, str(node.name), _dtype(result), VENDOR)]


def _write_concat(
    writer: Writer, node: ir.Node, operands: Sequence[Quantized], result: ir.Node, target: QuantizationTarget
) -> list[ir.Node] | None:
    if not target.vendor or len({operand.zero.dtype for operand in operands} | {_dtype(result)}) != 1:
        return None
    inputs = [*_result(result), *(value for operand in operands for value in operand.operands)]
    return [writer.node("QLinearConcat", inputs, str(node.name), _dtype(result), VENDOR, **_attributes(node))]


def _write_average(
    writer: Writer, node: ir.Node, operands: Sequence[Quantized], result: ir.Node, target: QuantizationTarget
) -> list[ir.Node] | None:
    if not target.vendor or operands[0].zero.dtype != _dtype(result):
        return None
    inputs = [*operands[0].operands, *_result(result)]
    attributes = _attributes(node, "dilations")
    if node.op_type == "AveragePool" and facts.attribute(node, "dilations", 19, None) not in (None, [1, 1], (1, 1)):
        return None
    return [writer.node(f"QLinear{node.op_type}", inputs, str(node.name), _dtype(result), VENDOR, **attributes)]


def _write_maximum(
    writer: Writer, node: ir.Node, operands: Sequence[Quantized], result: ir.Node, target: QuantizationTarget
) -> list[ir.Node] | None:
    """Let the maximum compare integers; its own scale follows."""
    del target
    (x,) = operands
    if len(node.outputs) > 1 or x.zero.dtype is None:
        return None
    name = str(node.name)
    maximum = writer.node("MaxPool", [x.values], name, x.zero.dtype, **_attributes(node))
    floats = writer.node("DequantizeLinear", [maximum.outputs[0], x.scale, x.zero], name, ir.DataType.FLOAT)
    quantize = writer.node("QuantizeLinear", [floats.outputs[0], *_result(result)], name, _dtype(result))
    return [maximum, floats, quantize]


def _write_movement(
    writer: Writer, node: ir.Node, operands: Sequence[Quantized], result: ir.Node, target: QuantizationTarget
) -> list[ir.Node] | None:
    """Let a movement move integers, if the scales ahead and after are the same."""
    del target
    (x,) = operands
    numbers = [(facts.scalar(old), facts.scalar(new)) for old, new in zip(x.operands[1:], _result(result), strict=True)]
    if len(node.outputs) > 1 or x.zero.dtype != _dtype(result) or any(a is None or a != b for a, b in numbers):
        return None
    inputs = [x.values, *node.inputs[1:]]
    return [writer.node(node.op_type, inputs, str(node.name), _dtype(result), **_attributes(node))]


_WRITERS: dict[str, Callable[..., list[ir.Node] | None]] = {
    "Conv": _write_conv,
    "MatMul": _write_matmul,
    "Gemm": _write_gemm,
    "Add": _write_add,
    "Concat": _write_concat,
    "AveragePool": _write_average,
    "GlobalAveragePool": _write_average,
    "MaxPool": _write_maximum,
}


def _remove_unused(graph: ir.Graph) -> None:
    """Remove the nodes whose results nothing reads, and the initializers of removed nodes."""
    for node in reversed(list(graph)):
        if all(not value.uses() and not value.is_graph_output() for value in node.outputs):
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_input() and not value.is_graph_output():
            del graph.initializers[name]
