"""Quantization: numbers as integers with a scale, and simulated quantization."""

from __future__ import annotations

from typing import Any

from sardonyx.convert.torch.operators.promotion import cast, core_dtype, tensor_of
from sardonyx.convert.torch.operators.registry import aten
from sardonyx.core import language as L
from sardonyx.core.eval.tensor import Tensor
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType
from sardonyx.ops.nodes import onnx

_RANGES: dict[DType, tuple[int, int]] = {
    t.INT8: (-128, 127), t.UINT8: (0, 255), t.INT16: (-32768, 32767), t.UINT16: (0, 65535),
}  # fmt: skip


def _along(x: Any, rank: int, axis: int | None) -> Tensor:
    """Return parameters of an axis in a form that broadcasts."""
    return x if axis is None else L.reshape(x, [x.shape[0] if a == axis else 1 for a in range(rank)])


def _quantized(x: Tensor, scale: Any, zero: Any, low: int, high: int, dtype: DType, axis: int | None = None) -> Tensor:
    scale = cast(tensor_of(scale), t.FLOAT)
    zero = tensor_of(zero) if zero is not None else L.zeros_like(cast(scale, t.INT64))
    if _RANGES.get(dtype) == (low, high) and dtype in (t.INT8, t.UINT8):
        options = {} if axis is None else {"axis": axis}
        return onnx.QuantizeLinear(x, scale, cast(zero, dtype), **options)  # type: ignore[no-any-return]
    steps = L.round_(x / _along(scale, x.rank, axis)) + cast(_along(zero, x.rank, axis), x.dtype)
    return cast(L.clip(steps, low, high), dtype)


def _dequantized(x: Tensor, scale: Any, zero: Any, axis: int | None = None) -> Tensor:
    scale = cast(tensor_of(scale), t.FLOAT)
    zero = tensor_of(zero) if zero is not None else L.zeros_like(cast(scale, t.INT64))
    if x.dtype in (t.INT8, t.UINT8, t.INT32):
        options = {} if axis is None else {"axis": axis}
        return onnx.DequantizeLinear(x, scale, cast(zero, x.dtype), **options)  # type: ignore[no-any-return]
    return (cast(x, t.FLOAT) - cast(_along(zero, x.rank, axis), t.FLOAT)) * _along(scale, x.rank, axis)


@aten("quantized_decomposed.quantize_per_tensor.default", "quantized_decomposed.quantize_per_tensor.tensor")
@aten("quantized_decomposed.quantize_per_tensor.tensor2")
def _quantize_tensor(x: Tensor, scale: Any, zero: Any, low: int, high: int, dtype: Any, **_: Any) -> Tensor:
    return _quantized(x, scale, zero, low, high, core_dtype(dtype))


@aten("quantized_decomposed.dequantize_per_tensor.default", "quantized_decomposed.dequantize_per_tensor.tensor")
@aten("quantized_decomposed.dequantize_per_tensor.tensor2")
def _dequantize_tensor(x: Tensor, scale: Any, zero: Any, low: int, high: int, dtype: Any, **_: Any) -> Tensor:
    return _dequantized(x, scale, zero)


@aten("quantized_decomposed.quantize_per_channel.default")
def _quantize_channel(x: Tensor, scales: Tensor, zeros: Any, axis: int, low: int, high: int, dtype: Any) -> Tensor:
    return _quantized(x, scales, zeros, low, high, core_dtype(dtype), axis)


@aten("quantized_decomposed.dequantize_per_channel.default")
def _dequantize_channel(
    x: Tensor, scales: Tensor, zeros: Any, axis: int, low: int, high: int, dtype: Any, **_: Any
) -> Tensor:
    return _dequantized(x, scales, zeros, axis)


def _fake(x: Tensor, scale: Any, zero: Any, low: int, high: int, axis: int | None = None) -> Tensor:
    for dtype in (t.INT8, t.UINT8):
        if _RANGES[dtype] == (low, high):
            return _dequantized(_quantized(x, scale, zero, low, high, dtype, axis), scale, zero, axis)
    step = _along(cast(tensor_of(scale), x.dtype), x.rank, axis)
    offset = _along(cast(tensor_of(zero), x.dtype), x.rank, axis)
    return (L.clip(L.round_(x / step) + offset, low, high) - offset) * step


@aten("fake_quantize_per_tensor_affine.default", "fake_quantize_per_tensor_affine.tensor_qparams")
def _fake_tensor(x: Tensor, scale: Any, zero_point: Any, quant_min: int, quant_max: int) -> Tensor:
    return _fake(x, scale, zero_point, quant_min, quant_max)


@aten("fake_quantize_per_tensor_affine_cachemask.default")
def _fake_tensor_mask(
    x: Tensor, scale: Any, zero_point: Any, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor | None]:
    return _fake(x, scale, zero_point, quant_min, quant_max), None


@aten("fake_quantize_per_channel_affine.default")
def _fake_channel(x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int) -> Tensor:
    return _fake(x, scale, zero_point, quant_min, quant_max, axis)


@aten("fake_quantize_per_channel_affine_cachemask.default")
def _fake_channel_mask(
    x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> tuple[Tensor, Tensor | None]:
    return _fake(x, scale, zero_point, quant_min, quant_max, axis), None


@aten("_fake_quantize_learnable_per_tensor_affine.default")
def _fake_learnable(
    x: Tensor, scale: Tensor, zero_point: Tensor, quant_min: int, quant_max: int, grad_factor: float = 1.0
) -> Tensor:
    return _fake(x, L.reshape(scale, ()), _whole(L.reshape(zero_point, ()), quant_min, quant_max), quant_min, quant_max)


@aten("_fake_quantize_learnable_per_channel_affine.default")
def _fake_learnable_channel(
    x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int, grad_factor: float = 1.0
) -> Tensor:
    return _fake(x, scale, _whole(zero_point, quant_min, quant_max), quant_min, quant_max, axis)


def _whole(zero: Tensor, low: int, high: int) -> Tensor:
    """Return zero points that were learned as floats, as codes."""
    return cast(L.clip(L.round_(zero), low, high), t.INT64)
