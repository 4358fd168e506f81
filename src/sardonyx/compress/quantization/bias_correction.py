"""Correction of biases by the mean error of products: of the rounding of weights, and of inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.placement import WeightSite
from sardonyx.compress.quantization.scheme import Affine
from sardonyx.compress.quantization.weights import QuantizedWeight
from sardonyx.compress.quantization.writer import Writer
from sardonyx.rewrite.analysis import facts

_CORRECTED = ("Conv", "Gemm", "MatMul")

_CHUNK = 1 << 20
"""Elements of a weight that are converted at once."""


def has_corrected_mean(site: WeightSite) -> bool:
    """Return True if a bias serves the mean error of a site: its own, or the constant that its only reader adds."""
    if site.node.op_type not in _CORRECTED or site.is_batched:
        return False
    if site.node.op_type == "MatMul":
        return _addend(site) is not None
    value = site.node.inputs[2] if len(site.node.inputs) > 2 else None
    return value is None or _is_per_channel(value, site)


def is_per_channel(shape: tuple[int, ...], channels: int) -> bool:
    """Return True if an array of a shape is one number, or one along its last axis for each channel.

    A column of ``Gemm`` has a number for each row, which is no bias of channels though both may be equally many.
    """
    size = math.prod(shape)
    return size == 1 or (size == channels and shape[-1:] == (channels,))


def mean_error(
    site: WeightSite, weight: QuantizedWeight, mean: np.ndarray | None, shift: np.ndarray | None = None
) -> np.ndarray:
    """Return the mean of float results minus quantized results, per output channel; zeros if unknown.

    Args:
        site: The site.
        weight: The quantized weight.
        mean: The mean row of the input, of shape [groups, depth].
        shift: The mean of rows minus quantized rows, of shape [groups, depth]: inputs near the least value of a gate,
            for example -0.2 of SiLU beside a step of 0.5, all become 0.
    """
    error = np.zeros(site.channels)
    if site.node.op_type not in _CORRECTED or site.is_batched:
        return error
    integers, floats = site.matrix(weight.dequantized()), site.matrix(site.weight)
    rows = error.reshape(len(integers), -1)
    for part in _parts(integers):
        quantized = integers[:, part].astype(np.float64)
        if mean is not None:
            rows[:, part] += ((floats[:, part] - quantized) @ mean[..., None])[..., 0]
        if shift is not None:
            rows[:, part] += (quantized @ shift[..., None])[..., 0]
    return error


def _parts(matrices: np.ndarray) -> Iterator[slice]:
    """Yield ranges of the rows of matrices of shape [groups, rows, depth] that are small beside a large weight."""
    step = max(_CHUNK // max(matrices[:, :1].size, 1), 1)
    for first in range(0, matrices.shape[1], step):
        yield slice(first, first + step)


def write_bias(
    writer: Writer, site: WeightSite, affine: Affine | None, weight: QuantizedWeight, correction: np.ndarray
) -> None:
    """Let a node read its bias, corrected, as 32-bit integers at the scale of its products; as floats without a map."""
    node = site.node
    value = node.inputs[2] if len(node.inputs) > 2 else None
    channels = site.channels
    old = None if value is None or value.const_value is None else value.const_value.numpy()
    if node.op_type == "MatMul":
        _write_sum(writer, site, correction)
        return
    if value is not None and not _is_per_channel(value, site):
        return
    bias = correction + (0.0 if old is None else np.broadcast_to(old.reshape(-1), (channels,)).astype(np.float64))
    if (value is None or affine is None) and not np.any(correction):
        return
    name = f"{site.label}_bias" if value is None else str(value.name)
    read = _integer_bias(writer, name, bias, affine, weight)
    if read is None:
        read = writer.initializer(f"{name}_corrected", bias.astype(np.float32))
    if value is None:
        node.resize_inputs(3)
    node.replace_input_with(2, read)
    if value is not None:
        writer.drop(value)


def _write_sum(writer: Writer, site: WeightSite, correction: np.ndarray) -> None:
    """Correct the constant that the only reader of a product adds to it; without such a reader the product stays."""
    addend = _addend(site)
    if addend is None or not np.any(correction):
        return
    reader, index, bias = addend
    value = reader.inputs[index]
    assert value is not None
    corrected = (bias + correction).astype(np.float32)
    reader.replace_input_with(index, writer.initializer(f"{value.name}_corrected", corrected))
    writer.drop(value)


def _integer_bias(
    writer: Writer, name: str, bias: np.ndarray, affine: Affine | None, weight: QuantizedWeight
) -> ir.Value | None:
    """Return a bias as 32-bit integers; None if these cannot express it."""
    integers_multiply = affine is not None and not affine.kind.is_float and affine.kind.bits == 8
    if affine is None or not integers_multiply or weight.block or weight.values.dtype not in (np.int8, np.uint8):
        return None
    factors = np.broadcast_to(weight.scales.reshape(-1), bias.shape).astype(np.float64)
    scales = (np.float64(affine.scale) * factors).astype(np.float32)
    if (scales < np.finfo(np.float32).tiny).any():
        return None
    integers = np.rint(bias / scales.astype(np.float64))
    if np.abs(integers).max(initial=0) >= 2**31:
        return None
    operands = [
        writer.initializer(f"{name}_quantized", integers.astype(np.int32)),
        writer.initializer(f"{name}_scale", scales),
    ]
    dequantize = writer.node("DequantizeLinear", operands, name, ir.DataType.FLOAT, axis=0)
    dequantize.outputs[0].shape = ir.Shape(bias.shape)
    writer.insert_constants([dequantize])
    return dequantize.outputs[0]


def _is_per_channel(bias: ir.Value, site: WeightSite) -> bool:
    """Return True if a bias is a constant number, or one for each channel."""
    return bias.const_value is not None and is_per_channel(bias.const_value.numpy().shape, site.channels)


def _addend(site: WeightSite) -> tuple[ir.Node, int, np.ndarray] | None:
    """Return the Add that alone reads a product, the index of its constant per channel, and the constant."""
    uses = list(site.node.outputs[0].uses())
    if len(uses) != 1 or site.node.outputs[0].is_graph_output():
        return None
    reader, index = uses[0].node, 1 - uses[0].idx
    if reader.op_type != "Add" or reader.domain:
        return None
    bias = facts.constant(reader.inputs[index])
    if bias is None or bias.dtype != np.float32 or bias.shape[-1:] != (site.channels,):
        return None
    return reader, index, bias
