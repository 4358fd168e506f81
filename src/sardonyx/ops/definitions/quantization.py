"""Quantization: real numbers as integers (or narrow floats) with a scale and a zero point, and back.

Source: ONNX Operators, *QuantizeLinear*, *DequantizeLinear*, *DynamicQuantizeLinear*.
"""

from __future__ import annotations

from sardonyx.core import language as L
from sardonyx.core.dim import ceil_div
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError, ShapeError
from sardonyx.ops.registry import operator


@operator("QuantizeLinear", since=10)
def quantize_linear(
    x: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    saturate: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
) -> Tensor:
    dtype = t.element_type(output_dtype) if output_dtype else t.UINT8 if y_zero_point is None else y_zero_point.dtype
    if y_zero_point is not None and y_zero_point.dtype != dtype:
        raise InvalidModelError(f"output_dtype is {dtype.name}, and the zero point is {y_zero_point.dtype.name}.")
    if (not t.is_integer(dtype) and (not t.is_float(dtype) or dtype.bitwidth > 8)) or dtype.bitwidth > 16:
        raise InvalidModelError(
            f"expected a quantized type of at most 16 bits (8 for floats), got {dtype.name.lower()}."
        )
    divided_as = t.computing_type(precision, "precision") if precision else y_scale.dtype
    scale = L.cast(broadcast_parameter(x, y_scale, axis, block_size), divided_as)
    zero_point = None if y_zero_point is None else broadcast_parameter(x, y_zero_point, axis, block_size)
    return quantize_units(L.cast(x, divided_as) / scale, zero_point, dtype, saturate=bool(saturate))


@operator("DequantizeLinear", since=10)
def dequantize_linear(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:
    """Dequantize in at least float32, in which every difference of 16-bit integers is exact."""
    difference = L.cast(x, t.FLOAT)
    if x_zero_point is not None:
        difference = difference - L.cast(broadcast_parameter(x, x_zero_point, axis, block_size), t.FLOAT)
    scale = L.cast(broadcast_parameter(x, x_scale, axis, block_size), t.FLOAT)
    return L.cast(difference * scale, t.element_type(output_dtype) if output_dtype else x_scale.dtype)


def broadcast_parameter(x: Tensor, parameter: Tensor, axis: int, block_size: int) -> Tensor:
    """Broadcast a scale or zero point over ``x``: per tensor, per index of ``axis``, or per block.

    Raises:
        ShapeError: The rank or the number of blocks does not match.
    """
    if parameter.rank == 0 or x.rank == 0:
        return parameter if x.rank else L.reshape(parameter, ())
    if parameter.rank == x.rank and block_size > 0:
        axis = L.normalized_axis(axis, x.rank)
        blocks = ceil_div(x.shape[axis], block_size)
        parameter = L.of_size(parameter, axis, blocks, f"the blocks of {block_size} along axis {axis} of {x.type}")
        return L.slice_(L.repeat(parameter, axis, block_size), axis, 0, x.shape[axis])
    if parameter.rank != 1:
        raise ShapeError(f"scales {parameter.type} with blocks of {block_size} do not fit {x.type}.")
    if x.rank == 1:
        return parameter
    return L.unsqueeze(parameter, [a for a in range(x.rank) if a != L.normalized_axis(axis, x.rank)])


def quantize_units(x: Tensor, zero_point: Tensor | None, dtype: DType, *, saturate: bool = True) -> Tensor:
    """Quantize numbers in units of the scale: round to even, add the zero point, saturate."""
    if not t.is_integer(dtype):
        return L.cast(x if zero_point is None else x + L.cast(zero_point, x.dtype), dtype, saturate=saturate)
    units = L.round_(L.cast(x, t.FLOAT))
    moved = units if zero_point is None else units + L.cast(zero_point, t.FLOAT)
    low = 0 if t.kind(dtype) == "uint" else -(1 << (dtype.bitwidth - 1))
    return L.cast(L.clip(moved, low, low + (1 << dtype.bitwidth) - 1), dtype)


def requantize(total: Tensor, a_scale: Tensor, b_scale: Tensor, y_scale: Tensor, y_zero_point: Tensor) -> Tensor:
    """Requantize an integer sum of products with two scales to the units of a third scale."""
    a, b, y = (L.cast(scale, t.FLOAT) for scale in (a_scale, b_scale, y_scale))
    return quantize_units(L.cast(total, t.FLOAT) * (a * b / y), y_zero_point, y_zero_point.dtype)


@operator("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize to the range of the elements and 0; if the range is 0 or too small for a scale, the scale is 1."""
    least, greatest = L.minimum(L.reduce_min(x), 0), L.maximum(L.reduce_max(x), 0)
    step = (greatest - least) / 255
    scale = L.where(L.equal(step, 0), 1, step)
    zero_point = quantize_units(-least / scale, None, t.UINT8)
    return quantize_units(x / scale, zero_point, t.UINT8), scale, zero_point
