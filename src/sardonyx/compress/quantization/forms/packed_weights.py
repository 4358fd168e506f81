"""Weights of few bits in bytes: ``MatMulNBits`` and ``GatherBlockQuantized`` of ONNX Runtime.

Source: ONNX Runtime's contrib operators, *MatMulNBits*, *GatherBlockQuantized*.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from sardonyx.compress.quantization.scheme import TYPES
from sardonyx.compress.quantization.targets import VENDOR
from sardonyx.compress.quantization.weights import QuantizedWeight
from sardonyx.compress.quantization.writer import Writer
from sardonyx.rewrite.analysis import facts

SMALLEST_BLOCK = 16
"""Blocks of the operators are powers of two from here."""

_BITS = {one.dtype: one.bits for one in TYPES.values() if not one.is_float and one.bits <= 8}


@dataclass(frozen=True)
class PackedWeight:
    """Rows of unsigned numbers of few bits in bytes, the lowest bits first.

    Attributes:
        values: uint8 of shape [rows, blocks, bytes of a block].
        scales: float32 of shape [rows, blocks].
        zeros: uint8 of shape [rows, bytes of the zero points of all blocks]; None if every zero is the middle.
        bits: The bits of a number.
    """

    values: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None
    bits: int


def is_packable(block: int) -> bool:
    """Return True if the operators have blocks of this size."""
    return block >= SMALLEST_BLOCK and block & (block - 1) == 0


def pack(weight: QuantizedWeight, sum_axis: int) -> PackedWeight:
    """Return a matrix with a scale per block along an axis as packed rows of that axis."""
    bits = _BITS[ir.DataType.from_numpy(weight.values.dtype)]
    middle = 1 << (bits - 1)
    is_signed = ir.DataType.from_numpy(weight.values.dtype).is_signed()
    offset = middle if is_signed else 0
    values = np.moveaxis(weight.values, sum_axis, 1).astype(np.int16) + offset
    scales, zeros = np.moveaxis(weight.scales, sum_axis, 1), np.moveaxis(weight.zeros, sum_axis, 1)
    levels = zeros.astype(np.int16) + offset
    rows, count = scales.shape
    padded = np.full((rows, count * weight.block), middle, np.uint8)
    padded[:, : values.shape[1]] = values.astype(np.uint8)
    packed = _bytes(padded, bits).reshape(rows, count, -1)
    is_middle = bool((levels == middle).all())
    return PackedWeight(
        np.ascontiguousarray(packed), np.ascontiguousarray(scales, np.float32),
        None if is_middle else _bytes(levels.astype(np.uint8), bits), bits,
    )  # fmt: skip


def _bytes(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Return rows of numbers in bytes, [rows, n] to [rows, ceil(n * bits / 8)]."""
    share = 8 // bits
    if share == 1:
        return numbers
    missing = -numbers.shape[1] % share
    whole = np.pad(numbers, [(0, 0), (0, missing)]).reshape(len(numbers), -1, share).astype(np.uint16)
    shifts = np.arange(0, 8, bits, dtype=np.uint16)
    return np.asarray((whole << shifts).sum(-1), np.uint8)


def write_product(writer: Writer, node: ir.Node, weight: QuantizedWeight, sum_axis: int, name: str) -> None:
    """Replace a product with a matrix, quantized in blocks, by ``MatMulNBits``.

    Args:
        writer: The writer of the model.
        node: A MatMul or Gemm whose input 1 is the weight.
        weight: The weight.
        sum_axis: The axis of the sum.
        name: The name of the weight.
    """
    packed = pack(weight, sum_axis)
    x = node.inputs[0]
    assert x is not None
    inputs: list[ir.Value | None] = [
        x,
        writer.initializer(f"{name}_packed", packed.values),
        writer.initializer(f"{name}_scale", packed.scales.reshape(-1)),
        None if packed.zeros is None else writer.initializer(f"{name}_zero_point", packed.zeros.reshape(-1)),
    ]
    product = writer.node(
        "MatMulNBits", inputs, name, ir.DataType.FLOAT, VENDOR, K=int(weight.values.shape[sum_axis]),
        N=len(packed.scales), bits=packed.bits, block_size=weight.block,
    )  # fmt: skip
    nodes = [product]
    if len(node.inputs) > 2 and (bias := node.inputs[2]) is not None:
        nodes.append(writer.node("Add", [product.outputs[0], bias], name, ir.DataType.FLOAT))
    writer.replace(node, nodes)


def write_lookup(writer: Writer, node: ir.Node, weight: QuantizedWeight, name: str) -> None:
    """Replace a Gather of rows of a table, quantized in blocks along axis 1, by ``GatherBlockQuantized``."""
    packed = pack(weight, 1)
    indices = node.inputs[1]
    assert indices is not None
    inputs: list[ir.Value | None] = [
        writer.initializer(f"{name}_packed", packed.values.reshape(len(packed.values), -1)),
        indices,
        writer.initializer(f"{name}_scale", packed.scales),
    ]
    if packed.zeros is not None:
        inputs.append(writer.initializer(f"{name}_zero_point", packed.zeros))
    lookup = writer.node(
        "GatherBlockQuantized", inputs, name, ir.DataType.FLOAT, VENDOR, bits=packed.bits, block_size=weight.block,
        gather_axis=int(facts.attribute(node, "axis", 13, 0)), quantize_axis=1,
    )  # fmt: skip
    writer.replace(node, [lookup])
