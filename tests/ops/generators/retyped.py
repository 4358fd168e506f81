"""Cases with another element type, any that the operator's schema allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.ops.generators.draw import Array, Case, Draw

_NAMES = {
    "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16, "float": TensorProto.FLOAT,
    "double": TensorProto.DOUBLE, "int8": TensorProto.INT8, "int16": TensorProto.INT16, "int32": TensorProto.INT32,
    "int64": TensorProto.INT64, "uint8": TensorProto.UINT8, "uint16": TensorProto.UINT16,
    "uint32": TensorProto.UINT32, "uint64": TensorProto.UINT64, "bool": TensorProto.BOOL,
    "string": TensorProto.STRING, "complex64": TensorProto.COMPLEX64, "complex128": TensorProto.COMPLEX128,
}  # fmt: skip
DTYPES: Mapping[str, Any] = MappingProxyType(
    {f"tensor({name})": np.dtype(helper.tensor_dtype_to_np_dtype(kind)) for name, kind in _NAMES.items()}
)
"""Numpy element types by the standard's names; sub-byte types and 8-bit floats are covered by the cases of casts."""


def retyped(draw: Draw, case: Case) -> Case:
    """Return the case with another type for its first input and for all inputs of the same type variable.

    Operators that only move elements (strings and booleans are allowed too) get any type, others one of the same kind.
    """
    parameters = onnx.defs.get_schema(case.name, case.opset, case.domain).inputs
    first = case.inputs[0] if case.inputs else None
    if not isinstance(first, np.ndarray) or not all(map(_is_plain, case.attributes.values())):
        return case
    variable, allowed = parameters[0].type_str, set(parameters[0].types)
    moved = {"tensor(string)", "tensor(bool)"} <= allowed
    options = [
        dtype for name, dtype in DTYPES.items() if name in allowed and (moved or _kind(dtype) == _kind(first.dtype))
    ]
    if not options:
        return case
    dtype = draw.pick(*options)
    inputs = [
        _converted(x, dtype) if parameters[min(i, len(parameters) - 1)].type_str == variable else x
        for i, x in enumerate(case.inputs)
    ]
    return replace(case, inputs=inputs)


def _is_plain(attribute: Any) -> bool:
    """Return True if an attribute does not determine element types, as graphs and tensors do."""
    return not isinstance(attribute, (onnx.GraphProto, onnx.TensorProto))


def _kind(dtype: np.dtype[Any]) -> str:
    return {"u": "i", "V": "f"}.get(dtype.kind, dtype.kind)


def _converted(x: Any, dtype: np.dtype[Any]) -> Any:
    """Convert numbers to another type: absolute values for unsigned types; strings become their lengths."""
    if not isinstance(x, np.ndarray):
        return x
    if dtype.kind == "O":
        return x if x.dtype == object else np.array([str(number) for number in x.flat], object).reshape(x.shape)
    numbers: Array = np.array([len(text) for text in x.flat]).reshape(x.shape) if x.dtype == object else x
    if _kind(dtype) == "i" and _kind(x.dtype) in "fc":
        numbers = np.nan_to_num(numbers.astype(np.float64), nan=1, posinf=9, neginf=-9)
    if dtype.kind == "u":
        numbers = np.abs(numbers.astype(np.int64))
    with np.errstate(all="ignore"):
        if dtype.kind == "c" and x.dtype.kind != "c":
            return np.asarray(numbers + 0.5j * np.flip(numbers.astype(np.float64))).astype(dtype)
        return numbers.astype(dtype)
