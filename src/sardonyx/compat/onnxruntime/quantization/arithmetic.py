"""Ranges, scales and integers of quantization, by ONNX Runtime's names and conventions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto

TENSOR_NAME_QUANT_SUFFIX = "_quantized"

FLOAT8_TYPES = (
    TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ,
)  # fmt: skip

FLOAT8_DISTRIBUTIONS: dict[int, np.ndarray] = {}

ONNX_TYPE_TO_NP_TYPE: dict[int, np.dtype[Any]] = {
    TensorProto.INT8: np.dtype(np.int8),
    TensorProto.UINT8: np.dtype(np.uint8),
    TensorProto.INT16: np.dtype(np.int16),
    TensorProto.UINT16: np.dtype(np.uint16),
    TensorProto.FLOAT8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    TensorProto.INT4: np.dtype(ml_dtypes.int4),
    TensorProto.UINT4: np.dtype(ml_dtypes.uint4),
}

_INTEGERS = tuple(kind for kind in ONNX_TYPE_TO_NP_TYPE if kind not in FLOAT8_TYPES)


def _ranges(limits: dict[int, tuple[int, int]]) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    return {
        kind: (np.array(low, ONNX_TYPE_TO_NP_TYPE[kind]), np.array(high, ONNX_TYPE_TO_NP_TYPE[kind]))
        for kind, (low, high) in limits.items()
    }


ONNX_INT_TYPE_RANGE = _ranges(
    {
        TensorProto.UINT8: (0, 255), TensorProto.INT8: (-128, 127), TensorProto.UINT16: (0, 65535),
        TensorProto.INT16: (-32768, 32767), TensorProto.UINT4: (0, 15), TensorProto.INT4: (-8, 7),
    }
)  # fmt: skip
ONNX_INT_TYPE_SYMMETRIC_RANGE = _ranges({TensorProto.INT8: (-127, 127), TensorProto.INT16: (-32767, 32767)})
ONNX_INT_TYPE_REDUCED_RANGE = _ranges(
    {
        TensorProto.UINT8: (0, 127), TensorProto.INT8: (-64, 64), TensorProto.UINT16: (0, 32767),
        TensorProto.INT16: (-16384, 16384), TensorProto.UINT4: (0, 7), TensorProto.INT4: (-4, 3),
    }
)  # fmt: skip


def get_qmin_qmax_for_qType(qType: int, reduce_range: bool = False, symmetric: bool = False) -> tuple[Any, Any]:
    """Return the least and the greatest integer of an element type.

    Raises:
        ValueError: The type is not an integer type of quantization.
    """
    if qType == TensorProto.FLOAT8E4M3FN:
        raise NotImplementedError("8-bit floats have no least and greatest integer.")
    if reduce_range:
        table = ONNX_INT_TYPE_REDUCED_RANGE
    elif symmetric and qType in ONNX_INT_TYPE_SYMMETRIC_RANGE:
        table = ONNX_INT_TYPE_SYMMETRIC_RANGE
    else:
        table = ONNX_INT_TYPE_RANGE
    if qType not in table:
        raise ValueError(f"Unexpected data type {qType} requested, expected an integer type of quantization.")
    return table[qType]


def get_qrange_for_qType(qType: int, reduce_range: bool = False, symmetric: bool = False) -> Any:
    """Return the greatest minus the least integer of an element type."""
    low, high = get_qmin_qmax_for_qType(qType, reduce_range, symmetric)
    return int(high) - int(low)


def _float_range(rmin: Any, rmax: Any, symmetric: bool, min_real_range: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Return limits that contain 0, of at least a width, and symmetric around 0 if requested."""
    low = np.minimum(rmin, np.zeros((), getattr(rmin, "dtype", np.float32)))
    high = np.maximum(rmax, np.zeros((), getattr(rmax, "dtype", np.float32)))
    if min_real_range is not None:
        high = np.maximum(high, low + np.asarray(min_real_range, dtype=low.dtype))
    if symmetric:
        high = np.maximum(np.abs(low), np.abs(high))
        low = -high
    return np.asarray(low), np.asarray(high)


def _is_degenerate(scale: np.ndarray, dtype: np.dtype[Any]) -> Any:
    """Return True where a scale cannot be stored; subnormal scales of half precision can."""
    if dtype == np.float16:
        return scale.astype(dtype) < np.finfo(dtype).smallest_subnormal
    return scale < np.finfo(dtype).tiny


def compute_scale_zp(
    rmin: Any, rmax: Any, qmin: Any, qmax: Any, symmetric: bool = False, min_real_range: float | None = None
) -> list[Any]:
    """Return the zero point and the scale for a range of values and of integers.

    Raises:
        ValueError: 0 is outside of the integers.
    """
    if qmin > 0 or qmax < 0:
        raise ValueError(f"expected qmin <= 0 <= qmax, got qmin:{qmin}, qmax:{qmax}.")
    low, high = _float_range(rmin, rmax, symmetric, min_real_range)
    integer = getattr(qmin, "dtype", np.dtype(np.int64))
    scale = (high.astype(np.float64) - low.astype(np.float64)) / (np.float64(qmax) - np.float64(qmin))
    if np.any(_is_degenerate(np.asarray(scale), high.dtype)):
        return [np.array(0, dtype=integer), np.array(1.0, dtype=high.dtype)]
    middle = (np.float64(qmin) + np.float64(qmax)) / 2
    zero_point = np.round(middle if symmetric else np.float64(qmin) - low.astype(np.float64) / scale)
    return [np.array(zero_point, dtype=integer), np.asarray(scale).astype(high.dtype)]


def snap_zero_point_to_uint8(
    rmin: Any, rmax: Any, qmin: int = 0, qmax: int = 255, min_real_range: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the zero point and the scale where the zero point is the least or the middle integer.

    The zero point is `qmin` for values from 0 on, else the middle of the integers; the scale covers the range.
    """
    least, greatest = int(qmin), int(qmax)
    middle = (least + greatest + 1) // 2
    low, high = min(float(np.squeeze(rmin)), 0.0), max(float(np.squeeze(rmax)), 0.0)
    width = float(min_real_range) if min_real_range is not None and min_real_range > 0 else 0.0
    high = max(high, low + width)
    zero_point = least if low >= 0 else middle
    if high <= low:
        scale = 1.0 / max(1, greatest - least)
    elif zero_point == least:
        scale = high / (greatest - least)
    else:
        scale = max(-low / (middle - least), high / (greatest - middle))
    scale = max(scale, (min_real_range or 0.0) / (greatest - least))
    return np.array(zero_point, dtype=np.uint8), np.array(scale, dtype=np.float32)


def compute_scale_zp_float8(element_type: int, std: Any) -> list[Any]:
    """Return the zero point and the scale of 8-bit floats for a standard deviation of values.

    Raises:
        ValueError: The type is not float8 E4M3.
    """
    if element_type != TensorProto.FLOAT8E4M3FN:
        raise ValueError(f"Quantization to element_type={element_type} not implemented, expected float8 E4M3.")
    if element_type not in FLOAT8_DISTRIBUTIONS:
        codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        FLOAT8_DISTRIBUTIONS[element_type] = codes[np.isfinite(codes)]
    deviation = np.std(FLOAT8_DISTRIBUTIONS[element_type])
    return [np.array(0, ml_dtypes.float8_e4m3fn), np.array(std / deviation, dtype=np.asarray(std).dtype)]


def compute_scale_zp_blocked(
    weight: np.ndarray, quant_type: int, axis: int, block_size: int, symmetric: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the zero points and the scales of the blocks of a matrix.

    Both have the shape of the matrix, but for the number of blocks along the axis.

    Raises:
        NotImplementedError: The weight is not a matrix.
    """
    if weight.ndim != 2:
        raise NotImplementedError(f"blocks need a matrix (rank-2), got a tensor of shape {weight.shape}.")
    qmin, qmax = get_qmin_qmax_for_qType(quant_type, symmetric=symmetric)
    moved = np.moveaxis(weight, axis, 0)
    count = -(-len(moved) // block_size)
    padded = np.pad(moved, ((0, count * block_size - len(moved)), (0, 0)))
    blocks = padded.reshape(count, block_size, moved.shape[1])
    low, high = _float_range(blocks.min(1), blocks.max(1), symmetric, None)
    raw = ((high - low).astype(np.float64) / (np.float64(qmax) - np.float64(qmin))).astype(weight.dtype)
    degenerate = _is_degenerate(raw, weight.dtype)
    scales = np.where(degenerate, np.ones_like(raw), raw)
    if symmetric:
        zero_points = np.full(scales.shape, np.round((np.float64(qmin) + np.float64(qmax)) / 2))
    else:
        zero_points = np.round(np.float64(qmin) - low.astype(np.float64) / scales.astype(np.float64))
        zero_points = np.where(degenerate, 0, np.clip(zero_points, np.float64(qmin), np.float64(qmax)))
    return np.moveaxis(zero_points.astype(qmin.dtype), 0, axis), np.moveaxis(scales, 0, axis)


def compute_data_quant_params(
    data: np.ndarray,
    quant_type: int,
    symmetric: bool,
    reduce_range: bool = False,
    min_real_range: float | None = None,
    rmin_override: Any = None,
    rmax_override: Any = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the zero point and the scale for data, or for the limits that replace those of the data.

    Raises:
        TypeError: The data are not an array.
        ValueError: Unknown type.
    """
    if not isinstance(data, np.ndarray):
        raise TypeError(f"Weight must be given as an array not {type(data)}.")
    if quant_type == TensorProto.FLOAT8E4M3FN:
        if reduce_range:
            raise RuntimeError("Unsupported option reduce_range=True for float 8.")
        zero_point, scale = compute_scale_zp_float8(quant_type, np.std(data))
        return np.asarray(zero_point), np.asarray(scale)
    if quant_type not in _INTEGERS:
        raise ValueError(f"Unexpected value for quant_type={quant_type}.")
    qmin, qmax = get_qmin_qmax_for_qType(quant_type, reduce_range, symmetric)
    if not len(data):
        return np.array(0, dtype=qmin.dtype), np.array(1.0, dtype=data.dtype)
    rmin = np.array(data.min() if rmin_override is None else rmin_override, dtype=data.dtype)
    rmax = np.array(data.max() if rmax_override is None else rmax_override, dtype=data.dtype)
    zero_point, scale = compute_scale_zp(rmin, rmax, qmin, qmax, symmetric, min_real_range)
    return np.asarray(zero_point), np.asarray(scale)


def quantize_nparray(
    qType: int, arr: np.ndarray, scale: Any, zero_point: Any, low: Any = None, high: Any = None
) -> np.ndarray:
    """Return an array as integers, or 8-bit floats, of an element type.

    Raises:
        ValueError: Unknown type.
    """
    if qType not in ONNX_TYPE_TO_NP_TYPE:
        raise ValueError(f"expected a type of quantization, got element type {qType}.")
    dtype = ONNX_TYPE_TO_NP_TYPE[qType]
    if qType in FLOAT8_TYPES:
        if float(np.asarray(zero_point).astype(np.float32)) != 0:
            raise NotImplementedError(f"zero_point is expected to be null for float 8 not {zero_point!r}.")
        limit = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
        return np.asarray(np.clip(arr.astype(np.float32) / np.float32(scale), -limit, limit).astype(dtype))
    least, greatest = (float(limit) for limit in get_qmin_qmax_for_qType(qType))
    least = least if low is None else max(least, float(low))
    greatest = greatest if high is None else min(greatest, float(high))
    # Values beyond int32 in units of the scale are clipped next, so that their overflow is meant.
    with np.errstate(over="ignore"):
        integers = np.round(arr.astype(np.float32) / scale) + np.asarray(zero_point).astype(np.float32)
    return np.asarray(np.clip(integers, least, greatest).astype(dtype))


def quantize_data(
    data: np.ndarray,
    qType: int,
    symmetric: bool,
    reduce_range: bool = False,
    min_real_range: float | None = None,
    rmin_override: Any = None,
    rmax_override: Any = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the zero point, the scale and the integers for data.

    Raises:
        RuntimeError: An 8-bit float is NaN.
    """
    zero_point, scale = compute_data_quant_params(
        data, qType, symmetric, reduce_range, min_real_range, rmin_override, rmax_override
    )
    quantized = quantize_nparray(qType, data, scale, zero_point)
    if qType in FLOAT8_TYPES and np.any(np.isnan(quantized.astype(np.float32))):
        raise RuntimeError(f"One of the quantized values is NaN, data in [{np.min(data)}, {np.max(data)}].")
    return zero_point, scale, quantized


def quantize_along(
    data: np.ndarray, quant_type: int, zero_point: np.ndarray, scale: np.ndarray, axis: int | None, block_size: int = 0
) -> np.ndarray:
    """Return a tensor as integers with one scale, or one for each index or block of an axis."""
    if axis is None:
        return quantize_nparray(quant_type, data, scale, zero_point)
    if block_size:
        scale, zero_point = (
            np.repeat(values, block_size, axis).take(range(data.shape[axis]), axis) for values in (scale, zero_point)
        )
    else:
        shape = [1] * data.ndim
        shape[axis] = -1
        scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
    if quant_type in FLOAT8_TYPES:
        zero_point = np.zeros((), np.float32)
    return quantize_nparray(quant_type, data, scale, zero_point)


def initializer_of(name: str, data: np.ndarray, quant_type: int, dims: Any) -> TensorProto:
    """Return a tensor of integers as an initializer; two integers of 4 bits share a byte."""
    tensor = TensorProto(name=name, data_type=quant_type, dims=dims)
    raw = np.ascontiguousarray(data).astype(ONNX_TYPE_TO_NP_TYPE[quant_type], copy=False).tobytes()
    is_packed = quant_type in (TensorProto.INT4, TensorProto.UINT4)
    tensor.raw_data = bytes(pack_bytes_to_4bit(raw)) if is_packed else raw
    return tensor


def quantize_onnx_initializer(
    weight: TensorProto,
    quant_type: int,
    zero_point: np.ndarray,
    scale: np.ndarray,
    axis: int | None = None,
    quant_weight_name: str | None = None,
    block_size: int = 0,
) -> TensorProto:
    """Return an initializer as integers, by default with the name of the initializer and ``_quantized``."""
    data = quantize_along(tensor_proto_to_array(weight), quant_type, zero_point, scale, axis, block_size)
    return initializer_of(quant_weight_name or weight.name + TENSOR_NAME_QUANT_SUFFIX, data, quant_type, weight.dims)


def tensor_proto_to_array(initializer: TensorProto) -> np.ndarray:
    """Return the elements of a float tensor.

    Raises:
        ValueError: The tensor is not a float tensor.
    """
    if initializer.data_type not in (TensorProto.FLOAT, TensorProto.FLOAT16):
        kind = TensorProto.DataType.Name(initializer.data_type)
        raise ValueError(f"Only float type is supported. Weights {initializer.name} is {kind}")
    return onnx.numpy_helper.to_array(initializer)


def normalize_axis(axis: int, rank: int) -> tuple[bool, int]:
    """Return True with the axis counted from 0, or False if the axis is outside of the rank."""
    counted = axis + rank if axis < 0 else axis
    return 0 <= counted < rank, counted


def pack_bytes_to_4bit(src_8bit: bytes) -> bytearray:
    """Return the low halves of bytes, two in a byte, the first in the low half."""
    halves = np.frombuffer(src_8bit, np.uint8) & 0xF
    halves = np.pad(halves, (0, len(halves) % 2))
    return bytearray((halves[0::2] | (halves[1::2] << 4)).tobytes())
