"""Element types of torch and Core, and torch's promotion of mixed operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sardonyx.core import language as L
from sardonyx.core.dim import Dim
from sardonyx.core.eval.tensor import Tensor, constant, size_tensor
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType
from sardonyx.errors import UnsupportedError

_DTYPES: dict[Any, DType] = {
    torch.float32: t.FLOAT,
    torch.float64: t.DOUBLE,
    torch.float16: t.FLOAT16,
    torch.bfloat16: t.BFLOAT16,
    torch.bool: t.BOOL,
    torch.int8: t.INT8,
    torch.int16: t.INT16,
    torch.int32: t.INT32,
    torch.int64: t.INT64,
    torch.uint8: t.UINT8,
    torch.uint16: t.UINT16,
    torch.uint32: t.UINT32,
    torch.uint64: t.UINT64,
    torch.complex64: t.COMPLEX64,
    torch.complex128: t.COMPLEX128,
    torch.float8_e4m3fn: DType.FLOAT8E4M3FN,
    torch.float8_e5m2: DType.FLOAT8E5M2,
}
_TORCH = {dtype: name for name, dtype in _DTYPES.items()}


def core_dtype(dtype: Any) -> DType:
    """Return torch's element type as Core's.

    Raises:
        UnsupportedError: Core has no such type.
    """
    if dtype not in _DTYPES:
        raise UnsupportedError(f"no ONNX element type equals {dtype}.")
    return _DTYPES[dtype]


def torch_dtype(dtype: DType) -> Any:
    """Return Core's element type as torch's."""
    return _TORCH[dtype]


def is_number(value: Any) -> bool:
    """Return True for a Python number or a size."""
    return isinstance(value, (int, float, bool, complex, Dim))


def tensor_of(value: Any, dtype: DType | None = None) -> Tensor:
    """Return a tensor, a number or a size as a tensor of an element type."""
    if isinstance(value, Tensor):
        return value if dtype is None or value.dtype == dtype else cast(value, dtype)
    if isinstance(value, Dim):
        scalar = size_tensor([value], ())
        return scalar if dtype in (None, t.INT64) else cast(scalar, dtype)
    if dtype is None:
        dtype = t.BOOL if isinstance(value, bool) else t.INT64 if isinstance(value, int) else t.FLOAT
    return constant(np.asarray(value), dtype)


def cast(x: Tensor, dtype: DType) -> Tensor:
    """Convert as torch does: floats to integers truncate."""
    if x.dtype == dtype:
        return x
    return L.cast(x, dtype)


def result_type(*values: Any) -> DType:
    """Return the type to which torch promotes operands: tensors with axes before scalars before Python numbers."""
    samples = []
    for value in values:
        if isinstance(value, Tensor):
            samples.append(torch.empty((1,) if value.rank else (), dtype=torch_dtype(value.dtype), device="meta"))
        elif isinstance(value, Dim):
            samples.append(1)
        elif value is not None:
            samples.append(value)
    result = samples[0] if isinstance(samples[0], torch.Tensor) else torch.tensor(samples[0])
    dtype = result.dtype
    if len(samples) == 2:
        dtype = torch.result_type(samples[0], samples[1])
    elif len(samples) > 2:
        for other in samples[1:]:
            dtype = torch.promote_types(dtype, torch.result_type(torch.empty(1, dtype=dtype, device="meta"), other))
    return core_dtype(dtype)


def promoted(*values: Any) -> list[Tensor]:
    """Return operands as tensors of the promoted element type."""
    dtype = result_type(*values)
    return [tensor_of(value, dtype) for value in values]


def floating(x: Any) -> Tensor:
    """Return a tensor as floats: integers and booleans become float32, the default type of torch."""
    x = tensor_of(x)
    return x if t.kind(x.dtype) in ("float", "complex") else cast(x, t.FLOAT)
