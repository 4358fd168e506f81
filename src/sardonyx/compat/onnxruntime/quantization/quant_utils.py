"""Types, constants and arithmetic of quantization, by ONNX Runtime's names."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto

from sardonyx.errors import OptionError

onnx_domain = "ai.onnx"
ms_domain = "com.microsoft"
QUANT_OP_NAME = "QuantizeLinear"
DEQUANT_OP_NAME = "DequantizeLinear"
QUANT_INPUT_SUFFIX = "_QuantizeLinear_Input"
DEQUANT_OUTPUT_SUFFIX = "_DequantizeLinear_Output"
TENSOR_NAME_QUANT_SUFFIX = "_quantized"
MODEL_SIZE_THRESHOLD = 2147483648

FLOAT8_TYPES = (
    TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ,
)  # fmt: skip

_PREPROCESSED = "onnx.quant.pre_process"
_INFERRED = "onnx.infer"


class _FromText(Enum):
    """An enumeration that programs read from command lines."""

    def __str__(self) -> str:
        return self.name

    @classmethod
    def from_string(cls, text: str) -> Any:
        """Return the member of a name.

        Raises:
            ValueError: Unknown name.
        """
        try:
            return cls[text]
        except KeyError:
            raise ValueError(f"expected one of {', '.join(cls.__members__)}, got {text!r}.") from None


class QuantizationMode(Enum):
    """Products of integers with ranges of each call, or with learned ranges."""

    IntegerOps = 0
    QLinearOps = 1


class QuantizedValueType(Enum):
    """The origin of a quantized value."""

    Input = 0
    Initializer = 1


class QuantType(_FromText):
    """Types of quantized numbers."""

    QInt8 = 0
    QUInt8 = 1
    QFLOAT8E4M3FN = 2
    QInt16 = 3
    QUInt16 = 4
    QInt4 = 5
    QUInt4 = 6
    QInt2 = 7
    QUInt2 = 8

    @property
    def tensor_type(self) -> int:
        """The element type in models."""
        return _ELEMENTS[self]


class QuantFormat(_FromText):
    """Operators on integers, or float operators between QuantizeLinear and DequantizeLinear."""

    QOperator = 0
    QDQ = 1


_ELEMENTS = {
    QuantType.QInt8: TensorProto.INT8,
    QuantType.QUInt8: TensorProto.UINT8,
    QuantType.QFLOAT8E4M3FN: TensorProto.FLOAT8E4M3FN,
    QuantType.QInt16: TensorProto.INT16,
    QuantType.QUInt16: TensorProto.UINT16,
    QuantType.QInt4: TensorProto.INT4,
    QuantType.QUInt4: TensorProto.UINT4,
    QuantType.QInt2: TensorProto.INT2,
    QuantType.QUInt2: TensorProto.UINT2,
}

ONNX_TYPE_TO_NP_TYPE: dict[int, np.dtype[Any]] = {
    TensorProto.INT8: np.dtype(np.int8),
    TensorProto.UINT8: np.dtype(np.uint8),
    TensorProto.INT16: np.dtype(np.int16),
    TensorProto.UINT16: np.dtype(np.uint16),
    TensorProto.INT4: np.dtype(ml_dtypes.int4),
    TensorProto.UINT4: np.dtype(ml_dtypes.uint4),
    TensorProto.FLOAT8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
}


def _range(low: int, high: int, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    return np.array(low, dtype=dtype), np.array(high, dtype=dtype)


ONNX_INT_TYPE_RANGE: dict[int, tuple[Any, Any]] = {
    TensorProto.UINT8: _range(0, 255, np.uint8),
    TensorProto.INT8: _range(-128, 127, np.int8),
    TensorProto.UINT16: _range(0, 65535, np.uint16),
    TensorProto.INT16: _range(-32768, 32767, np.int16),
    TensorProto.UINT4: _range(0, 15, ml_dtypes.uint4),
    TensorProto.INT4: _range(-8, 7, ml_dtypes.int4),
}
ONNX_INT_TYPE_SYMMETRIC_RANGE: dict[int, tuple[Any, Any]] = {
    TensorProto.INT8: _range(-127, 127, np.int8),
    TensorProto.INT16: _range(-32767, 32767, np.int16),
}
ONNX_INT_TYPE_REDUCED_RANGE: dict[int, tuple[Any, Any]] = {
    TensorProto.UINT8: _range(0, 127, np.uint8),
    TensorProto.INT8: _range(-64, 64, np.int8),
    TensorProto.UINT16: _range(0, 32767, np.uint16),
    TensorProto.INT16: _range(-16384, 16384, np.int16),
    TensorProto.UINT4: _range(0, 7, ml_dtypes.uint4),
    TensorProto.INT4: _range(-4, 3, ml_dtypes.int4),
}


def get_qmin_qmax_for_qType(qType: int, reduce_range: bool = False, symmetric: bool = False) -> tuple[Any, Any]:
    """Return the least and the greatest integer of an element type.

    Raises:
        ValueError: The type is not an integer type of quantization.
    """
    table = ONNX_INT_TYPE_RANGE
    if qType == TensorProto.FLOAT8E4M3FN:
        raise NotImplementedError("8-bit floats have no least and greatest integer.")
    if reduce_range:
        table = ONNX_INT_TYPE_REDUCED_RANGE
    elif symmetric and qType in ONNX_INT_TYPE_SYMMETRIC_RANGE:
        table = ONNX_INT_TYPE_SYMMETRIC_RANGE
    if qType not in table:
        raise ValueError(f"expected an integer type of quantization, got element type {qType}.")
    return table[qType]


def get_qrange_for_qType(qType: int, reduce_range: bool = False, symmetric: bool = False) -> Any:
    """Return the greatest minus the least integer of an element type."""
    low, high = get_qmin_qmax_for_qType(qType, reduce_range, symmetric)
    return int(high) - int(low)


def compute_scale_zp(
    rmin: Any, rmax: Any, qmin: Any, qmax: Any, symmetric: bool = False, min_real_range: float | None = None
) -> list[Any]:
    """Return the zero point and the scale for a range of values and of integers.

    Raises:
        ValueError: The range of integers is empty, or contains no zero point where 0 is needed.
    """
    if qmin > 0 or qmax < 0:
        raise ValueError(f"expected integers around 0, got {qmin} to {qmax}.")
    low, high = np.minimum(rmin, 0), np.maximum(rmax, 0)
    dtype = getattr(rmax, "dtype", np.dtype(np.float32))
    if min_real_range is not None:
        high = max(high, low + np.asarray(min_real_range, dtype=dtype))
    if symmetric:
        high = np.maximum(np.abs(low), np.abs(high))
        low = -high
    scale = np.array((np.float64(high) - np.float64(low)) / (np.float64(qmax) - np.float64(qmin)))
    integer = getattr(qmin, "dtype", np.dtype(np.int64))
    if scale < np.finfo(dtype).tiny:
        return [np.array(0, dtype=integer), np.array(1.0, dtype=dtype)]
    middle = (np.float64(qmin) + np.float64(qmax)) / 2 if symmetric else np.float64(qmin) - np.float64(low) / scale
    return [np.array(np.round(middle), dtype=integer), scale.astype(dtype)]


def quantize_nparray(
    qType: int,
    arr: np.ndarray,
    scale: Any,
    zero_point: Any,
    low: Any = None,
    high: Any = None,
) -> np.ndarray:
    """Return an array as integers of an element type.

    Raises:
        ValueError: Unknown type.
    """
    if qType not in ONNX_TYPE_TO_NP_TYPE:
        raise ValueError(f"expected a type of quantization, got element type {qType}.")
    dtype = ONNX_TYPE_TO_NP_TYPE[qType]
    if qType == TensorProto.FLOAT8E4M3FN:
        limit = 448.0
        return np.asarray(np.clip(arr.astype(np.float32) / np.float32(scale), -limit, limit).astype(dtype))
    least, greatest = get_qmin_qmax_for_qType(qType)
    least = np.asarray(least if low is None else max(int(low), int(least)), np.float64)
    greatest = np.asarray(greatest if high is None else min(int(high), int(greatest)), np.float64)
    integers = np.round(arr.astype(np.float32) / scale) + np.asarray(zero_point).astype(np.float32)
    return np.asarray(np.clip(integers, least, greatest).astype(dtype))


def normalize_axis(axis: int, rank: int) -> tuple[bool, int]:
    """Return True with the axis counted from 0, or False if the axis is outside of the rank."""
    counted = axis + rank if axis < 0 else axis
    return 0 <= counted < rank, counted


def add_quant_suffix(tensor_name: str) -> str:
    """Return the name of the node that quantizes a tensor."""
    return tensor_name + "_QuantizeLinear"


def add_quant_input_suffix(tensor_name: str) -> str:
    """Return the name of the input of the node that quantizes a tensor."""
    return tensor_name + QUANT_INPUT_SUFFIX


def add_quant_output_suffix(tensor_name: str) -> str:
    """Return the name of the output of the node that quantizes a tensor."""
    return tensor_name + "_QuantizeLinear_Output"


def add_dequant_suffix(tensor_name: str) -> str:
    """Return the name of the node that dequantizes a tensor."""
    return tensor_name + "_DequantizeLinear"


def add_dequant_input_suffix(tensor_name: str) -> str:
    """Return the name of the input of the node that dequantizes a tensor."""
    return tensor_name + "_DequantizeLinear_Input"


def add_dequant_output_suffix(tensor_name: str) -> str:
    """Return the name of the output of the node that dequantizes a tensor."""
    return tensor_name + DEQUANT_OUTPUT_SUFFIX


def tensor_proto_to_array(initializer: TensorProto) -> np.ndarray:
    """Return the elements of a tensor."""
    if initializer.data_type not in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16):
        raise ValueError(f"expected a float tensor, got element type {initializer.data_type} in {initializer.name}.")
    return onnx.numpy_helper.to_array(initializer)


def attribute_to_kwarg(attribute: onnx.AttributeProto) -> dict[str, Any]:
    """Return an attribute as a keyword argument of ``onnx.helper.make_node``."""
    return {attribute.name: onnx.helper.get_attribute_value(attribute)}


def compute_scale_zp_float8(element_type: int, std: Any) -> list[Any]:
    """Return the zero point and the scale of 8-bit floats for a standard deviation of values.

    Raises:
        ValueError: The type is not float8 E4M3.
    """
    if element_type != TensorProto.FLOAT8E4M3FN:
        raise ValueError(f"expected float8 E4M3, got element type {element_type}.")
    codes = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    deviation = np.std(codes[np.isfinite(codes)], dtype=np.float32)
    return [np.array(0, ml_dtypes.float8_e4m3fn), np.array(std / deviation, np.asarray(std).dtype)]


def find_by_name(item_name: str, item_list: Any) -> Any:
    """Return the only item of a name, or None."""
    return next((item for item in item_list if item.name == item_name), None)


def get_elem_index(elem_name: str, elem_list: Any) -> int:
    """Return the last index of a name in a list, or -1."""
    matches = [index for index, name in enumerate(elem_list) if name == elem_name]
    return matches[-1] if matches else -1


def get_opset_version(model: onnx.ModelProto) -> int:
    """Return the operator set of the standard domain."""
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", onnx_domain)]
    if len(versions) != 1:
        raise ValueError("expected one operator set of the standard domain.")
    return int(versions[0])


def load_model_with_shape_infer(model_path: Path) -> onnx.ModelProto:
    """Return a model with inferred shapes."""
    from sardonyx import infer_shapes, load, to_proto

    model = load(str(model_path))
    infer_shapes(model)
    proto = to_proto(model)
    add_infer_metadata(proto)
    return proto


def _add_metadata(model: onnx.ModelProto, key: str) -> None:
    entries = {entry.key: entry.value for entry in model.metadata_props} | {key: "onnxruntime.quant"}
    onnx.helper.set_model_props(model, entries)


def _has_metadata(model: onnx.ModelProto, key: str) -> bool:
    return any(entry.key == key and entry.value == "onnxruntime.quant" for entry in model.metadata_props)


def add_pre_process_metadata(model: onnx.ModelProto) -> None:
    """Mark a model as prepared for quantization."""
    _add_metadata(model, _PREPROCESSED)


def model_has_pre_process_metadata(model: onnx.ModelProto) -> bool:
    """Return True if a model is marked as prepared for quantization."""
    return _has_metadata(model, _PREPROCESSED)


def add_infer_metadata(model: onnx.ModelProto) -> None:
    """Mark a model as one with inferred shapes."""
    _add_metadata(model, _INFERRED)


def model_has_infer_metadata(model: onnx.ModelProto) -> bool:
    """Return True if a model is marked as one with inferred shapes."""
    return _has_metadata(model, _INFERRED)


def write_calibration_table(calibration_cache: Mapping[str, Any], dir: str | os.PathLike[str] = ".") -> None:
    """Write ranges of tensors as ``calibration.json``, and as ``calibration.cache`` (name and magnitude) in text.

    Raises:
        OptionError: The folder cannot be written.
    """
    from sardonyx.compat.onnxruntime.quantization.calibrate import TensorData

    rows: dict[str, list[float]] = {}
    for name, value in calibration_cache.items():
        low, high = value.range_value if isinstance(value, TensorData) else value[:2]
        rows[name] = [float(np.min(low)), float(np.max(high))]
    try:
        (Path(dir) / "calibration.json").write_text(json.dumps(rows))
        lines = [f"{name} {max(abs(low), abs(high))}" for name, (low, high) in rows.items()]
        (Path(dir) / "calibration.cache").write_text("\n".join(lines) + "\n")
    except OSError as error:
        raise OptionError(f"cannot be written: {error}", where=str(dir)) from error
