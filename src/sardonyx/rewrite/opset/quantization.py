"""Quantization by axis or block as arithmetic, and the integer operators before set 10."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from sardonyx.rewrite.opset.arithmetic import round_half_even
from sardonyx.rewrite.opset.shaping import reshape, slice_axis, unsqueeze
from sardonyx.rewrite.opset.site import Site
from sardonyx.rewrite.opset.table import down

_T = ir.DataType
_INTEGERS = (_T.INT8, _T.UINT8, _T.INT16, _T.UINT16, _T.INT32)


@down("QuantizeLinear", version=23)
def precision_by_scale(site: Site) -> None:
    """Cast both operands to the precision of the division, implied by the scale's type before."""
    x, scale = site.required(0), site.required(1)
    precision = _T(site.integer("precision")) if site.integer("precision") else site.dtype(scale)
    inputs = [site.cast(x, precision), site.cast(scale, precision), site.input(2)]
    site.become(inputs=inputs, attributes=site.attributes(drop=["precision"]))


@down("DequantizeLinear", version=23)
def type_by_scale(site: Site) -> None:
    """Cast the scale to the result type, implied by the scale's type before."""
    dtype = site.integer("output_dtype")
    scale = site.required(1)
    if dtype:
        scale = site.cast(scale, _T(dtype))
    inputs = [site.required(0), scale, site.input(2)]
    site.become(inputs=inputs, attributes=site.attributes(drop=["output_dtype"]))


@down("QuantizeLinear", version=21)
def quantize_bytes(site: Site) -> None:
    """Write blocks and 16-bit integers as arithmetic, and a result type as a zero point of this type."""
    dtype = _result_type(site)
    if site.integer("block_size") or dtype in (_T.INT16, _T.UINT16):
        site.replace(_quantize(site, site.required(0), dtype))
        return
    zero = site.input(2)
    if zero is None and dtype != _T.UINT8:
        sizes = site.sizes(site.required(1))
        site.require_room(*sizes)
        zero = site.constant(np.zeros(sizes), dtype)
    inputs = [site.required(0), site.required(1), zero]
    site.become(inputs=inputs, attributes=site.attributes(drop=["block_size", "output_dtype"]))


@down("DequantizeLinear", version=21)
def dequantize_bytes(site: Site) -> None:
    """Write blocks and 16-bit integers as arithmetic."""
    if site.integer("block_size") or site.dtype(site.required(0)) in (_T.INT16, _T.UINT16):
        site.replace(_dequantize(site, site.required(0), 0))
        return
    site.become(attributes=site.attributes(drop=["block_size"]))


@down("QuantizeLinear", version=19)
def quantize_float32(site: Site) -> None:
    """Write other types than float32 as arithmetic; drop saturation, which affects only 8-bit floats."""
    if site.dtype(site.required(0)) in (_T.FLOAT16, _T.BFLOAT16):
        site.replace(_quantize(site, site.required(0), _result_type(site)))
        return
    site.become(attributes=site.attributes(drop=["saturate"]))


@down("DequantizeLinear", version=19)
def dequantize_to_float32(site: Site) -> None:
    """Write other types than float32 as arithmetic."""
    if site.dtype(site.required(1)) in (_T.FLOAT16, _T.BFLOAT16):
        site.replace(_dequantize(site, site.required(0), 0))


@down("QuantizeLinear", version=13)
def quantize_whole_tensors(site: Site) -> None:
    """Write quantization along an axis as arithmetic."""
    if _is_one_number(site, site.required(1)):
        site.become(attributes=site.attributes(drop=["axis"]))
        return
    site.replace(_quantize(site, site.required(0), _result_type(site)))


@down("DequantizeLinear", version=13)
def dequantize_whole_tensors(site: Site) -> None:
    """Write dequantization along an axis as arithmetic."""
    if _is_one_number(site, site.required(1)):
        site.become(attributes=site.attributes(drop=["axis"]))
        return
    site.replace(_dequantize(site, site.required(0), 0))


@down("QuantizeLinear", version=10)
def quantize_by_arithmetic(site: Site) -> None:
    """Write quantization as division, rounding, shift and saturation."""
    site.replace(_quantize(site, site.required(0), _result_type(site)))


@down("DequantizeLinear", version=10)
def dequantize_by_arithmetic(site: Site) -> None:
    """Write dequantization as difference and product."""
    site.replace(_dequantize(site, site.required(0), 0))


def _is_one_number(site: Site, scale: ir.Value) -> bool:
    return site.rank(scale) == 0 or site.static_shape(scale) == (1,)


def _result_type(site: Site) -> ir.DataType:
    zero = site.input(2)
    if zero is not None:
        return site.dtype(zero)
    return _T(site.integer("output_dtype") or _T.UINT8)


def _aligned(site: Site, parameter: ir.Value, x: ir.Value) -> ir.Value:
    """Return a scale or zero point in a shape that broadcasts against ``x``: by tensor, axis or block."""
    rank = site.rank(x)
    if _is_one_number(site, parameter):
        return reshape(site, parameter, []) if site.rank(parameter) and not rank else parameter
    axis = site.axis("axis", 1, rank)
    block = site.integer("block_size")
    if not block or site.rank(parameter) != rank:
        own, other = site.static_shape(parameter), site.static_shape(x)
        if own is not None and other is not None and own[0] != other[axis]:
            site.refuse(f"expected {other[axis]} values of {parameter.name!r}, got {own[0]}")
        trailing = list(range(1, rank - axis))
        return unsqueeze(site, parameter, trailing) if trailing else parameter
    sizes = list(site.sizes(parameter))
    spread = [*sizes[: axis + 1], block, *sizes[axis + 1 :]]
    value = site.emit("Expand", unsqueeze(site, parameter, [axis + 1]), site.constant(spread))
    sizes[axis] *= block
    value = reshape(site, value, sizes)
    length = site.size(x, axis)
    return value if length == sizes[axis] else slice_axis(site, value, axis, 0, length)


def _quantize(site: Site, x: ir.Value, dtype: ir.DataType) -> ir.Value:
    """``saturate(round(x / scale) + zero point)``, computed in the scale's type."""
    if dtype not in _INTEGERS:
        site.refuse(f"its result type {dtype.name} does not exist in the target opset")
    scale = site.required(1)
    ratio = site.emit("Div", site.cast(x, site.dtype(scale)), _aligned(site, scale, x))
    value = site.cast(round_half_even(site, ratio), _T.FLOAT)
    zero = site.input(2)
    if zero is not None:
        value = site.emit("Add", value, site.cast(_aligned(site, zero, x), _T.FLOAT))
    return site.cast(_saturated(site, value, dtype), dtype)


def _saturated(site: Site, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    low, high = float(np.iinfo(dtype.numpy()).min), float(np.iinfo(dtype.numpy()).max)
    if site.target < 11:
        return site.emit("Clip", value, min=low, max=high)
    return site.emit("Clip", value, site.scalar(low, value), site.scalar(high, value))


def _dequantize(site: Site, x: ir.Value, first: int) -> ir.Value:
    """Emit ``(x - zero point) * scale``; scale and zero point follow the input at index ``first``."""
    dtype = site.dtype(x)
    if dtype not in _INTEGERS:
        site.refuse(f"its input type {dtype.name} does not exist in the target opset")
    scale, zero = site.required(first + 1), site.input(first + 2)
    value = site.cast(x, _T.INT32)
    if zero is not None:
        value = site.emit("Sub", value, site.cast(_aligned(site, zero, x), _T.INT32))
    return site.emit("Mul", site.cast(value, site.dtype(scale)), _aligned(site, scale, x))


@down("QLinearMatMul", version=10)
def product_of_quantized(site: Site) -> None:
    """Multiply in integers, scale and requantize."""
    operands = []
    for index, is_left in ((0, True), (3, False)):
        value = site.cast(site.required(index), _T.INT32)
        zero = site.cast(site.required(index + 2), _T.INT32)
        if not _is_one_number(site, zero) and is_left:
            zero = unsqueeze(site, zero, [1])
        operands.append(site.emit("Sub", value, zero))
    product = site.cast(site.emit("MatMul", *operands), _T.FLOAT)
    left, right, result = site.required(1), site.required(4), site.required(6)
    if not _is_one_number(site, left):
        left = unsqueeze(site, left, [1])
    ratio = site.emit("Div", site.emit("Mul", left, right), result)
    _requantize(site, site.emit("Mul", product, ratio), 7)


def _requantize(site: Site, value: ir.Value, zero_index: int) -> None:
    zero = site.required(zero_index)
    shifted = site.emit("Add", round_half_even(site, value), site.cast(zero, _T.FLOAT))
    site.replace(site.cast(_saturated(site, shifted, site.dtype(zero)), site.dtype(zero)))


def _exact_convolution(
    site: Site, x: ir.Value, x_zero: ir.Value | None, w: ir.Value, w_zero: ir.Value | None
) -> ir.Value:
    """Convolve bytes in float32, exact while every sum stays below 2²⁴."""
    kernel = site.sizes(w)
    if int(np.prod(kernel[1:])) * 255 * 255 >= 1 << 24:
        site.refuse("its sums may not be exact in float32")
    operands = []
    for value, zero in ((x, x_zero), (w, w_zero)):
        number = site.cast(value, _T.FLOAT)
        if zero is not None:
            shift = site.cast(zero, _T.FLOAT)
            if not _is_one_number(site, zero):
                shift = unsqueeze(site, shift, list(range(1, len(kernel))))
            number = site.emit("Sub", number, shift)
        operands.append(number)
    return site.emit("Conv", *operands, **site.attributes())


@down("ConvInteger", version=10)
def convolution_of_bytes(site: Site) -> None:
    """Convolve in float32, which holds all sums exactly."""
    x, w = site.required(0), site.required(1)
    site.replace(site.cast(_exact_convolution(site, x, site.input(2), w, site.input(3)), _T.INT32))


@down("QLinearConv", version=10)
def convolution_of_quantized(site: Site) -> None:
    """Convolve in integers, scale and requantize."""
    x, w = site.required(0), site.required(3)
    total = _exact_convolution(site, x, site.required(2), w, site.required(5))
    trailing = list(range(1, site.rank(w) - 1))
    if (bias := site.input(8)) is not None:
        total = site.emit("Add", total, unsqueeze(site, site.cast(bias, _T.FLOAT), trailing))
    scale = site.required(4)
    if not _is_one_number(site, scale):
        scale = unsqueeze(site, scale, trailing)
    ratio = site.emit("Div", site.emit("Mul", site.required(1), scale), site.required(6))
    _requantize(site, site.emit("Mul", total, ratio), 7)
