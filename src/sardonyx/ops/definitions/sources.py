"""Sources: tensors from attributes, sizes and element types, and type conversion.

Source: ONNX Operators, *Constant*, *ConstantOfShape*, *Shape*, *Size*, *Range*, *EyeLike*, *OneHot*, *Cast*,
*CastLike*, *BitCast*.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sardonyx.core import language as L
from sardonyx.core.dim import Size, ceil_div, dim_max
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import DType
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError, ShapeError, TypeMismatchError
from sardonyx.ops.registry import operator


@operator("Constant", since=1)
def constant(
    *,
    value: Tensor | None = None,
    sparse_value: Tensor | None = None,
    value_float: float | None = None,
    value_floats: Sequence[float] | None = None,
    value_int: int | None = None,
    value_ints: Sequence[int] | None = None,
    value_string: str | None = None,
    value_strings: Sequence[str] | None = None,
) -> Tensor:
    tensors = (value, sparse_value)
    numbers = (
        (value_float, t.FLOAT), (value_floats, t.FLOAT), (value_int, t.INT64), (value_ints, t.INT64),
        (value_string, t.STRING), (value_strings, t.STRING),
    )  # fmt: skip
    values = [tensor for tensor in tensors if tensor is not None]
    values += [L.constant(number, dtype) for number, dtype in numbers if number is not None]
    if len(values) != 1:
        raise InvalidModelError(f"Constant has {len(values)} values.", remedy="Set exactly one of its attributes.")
    return values[0]


@operator("ConstantOfShape", since=9)
def constant_of_shape(shape: Tensor, *, value: Tensor | None = None) -> Tensor:
    filler = L.constant(0, t.FLOAT) if value is None else L.reshape(value, ())
    return L.full(L.sizes(shape), filler, filler.dtype)


@operator("Shape", since=1)
def shape(x: Tensor, *, start: int = 0, end: int | None = None) -> Tensor:
    return L.size_tensor(x.shape[start:end])


@operator("Size", since=1)
def size(x: Tensor) -> Tensor:
    return L.number(L.product(x.shape))


# Ranges.


@operator("Range", since=11)
def range_(start: Tensor, limit: Tensor, delta: Tensor, *, stash_type: int = 1) -> Tensor:
    """Return ``start + i*delta`` up to the limit; 16-bit floats are computed as ``stash_type``."""
    dtype = start.dtype
    if dtype in (t.FLOAT16, t.BFLOAT16):
        start, limit, delta = (L.cast(x, t.computing_type(stash_type, "stash_type")) for x in (start, limit, delta))
    start, limit, delta = (L.reshape(x, ()) for x in (start, limit, delta))
    if delta.is_constant and L.static_scalar(delta) == 0:
        raise ShapeError("a range has a step of 0.")
    count = _range_count(start, limit, delta)
    return L.cast(start + L.cast(L.arange(count), start.dtype) * delta, dtype)


def _range_count(start: Tensor, limit: Tensor, delta: Tensor) -> Size:
    """Return ``max(ceil((limit - start) / delta), 0)``."""
    first, last, step = (L.elements(x) for x in (start, limit, delta))
    if first is not None and last is not None and step is not None and isinstance(step[0], int):
        span = last[0] - first[0] if step[0] > 0 else first[0] - last[0]
        return dim_max(ceil_div(span, abs(step[0])), 0)
    if t.is_integer(start.dtype):
        start, limit, delta = (L.cast(x, t.INT64) for x in (start, limit, delta))
        is_empty = L.where(delta < 0, start <= limit, start >= limit)
        # The distance of two int64 numbers is a uint64 number.
        distance = L.bitcast(L.where(delta < 0, start - limit, limit - start), t.UINT64)
        by = L.maximum(L.bitcast(L.where(delta < 0, -delta, delta), t.UINT64), 1)
        length = L.bitcast(L.where(is_empty, 0, (distance - 1) / by + 1), t.INT64)
        return L.one_size(L.where(L.equal(delta, 0), -1, length), "the length of a range")
    length = L.maximum(L.ceil((limit - start) / delta), 0)
    if length.is_constant and not math.isfinite(float(length.known)):
        raise ShapeError(f"a range has a length of {length.known}.")
    # Infinity and NaN are not below 2⁶³.
    has_length = L.not_equal(delta, 0) & (length < 2.0**63)
    return L.one_size(L.where(has_length, L.cast(L.where(has_length, length, 0), t.INT64), -1), "the length of a range")


@operator("EyeLike", since=9)
def eye_like(x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    if x.rank != 2:
        raise ShapeError(f"expected a matrix for EyeLike, got rank {x.rank}.")
    on_diagonal = L.equal(L.iota(x.shape, 1) - L.iota(x.shape, 0), k)
    return L.cast(on_diagonal, x.dtype if dtype is None else t.element_type(dtype))


@operator("OneHot", since=9)
def one_hot(indices: Tensor, depth: Tensor, values: Tensor, *, axis: int = -1, opset: int) -> Tensor:
    values = L.of_shape(values, (2,), "the input `values` of OneHot")
    count = L.one_size(L.cast(depth, t.INT64), "the depth of OneHot")
    at = L.normalized_axis(axis, indices.rank + 1)
    chosen = L.unsqueeze(L.cast(indices, t.INT64), [at])
    if opset >= 11:
        chosen = L.where(chosen < 0, chosen + L.number(count), chosen)
    classes = L.reshape(L.arange(count), [count if i == at else 1 for i in range(indices.rank + 1)])
    off, on = (L.reshape(L.slice_(values, 0, i, i + 1), ()) for i in range(2))
    return L.where(L.equal(chosen, classes), on, off)


# Conversion.


@operator("Cast", since=6)
def cast(x: Tensor, *, to: int, saturate: int = 1, round_mode: str = "up", opset: int) -> Tensor:
    return _convert(x, t.element_type(to), bool(saturate), round_mode, opset)


@operator("Cast", since=1)
def cast_to_name(x: Tensor, *, to: str) -> Tensor:
    return L.cast(x, t.element_type(to))


def _saturate(x: Tensor, dtype: DType) -> Tensor:
    """Saturate to a 4-bit type; ONNX's test data saturate up to version 23 and wrap since."""
    match dtype:
        case DType.INT4:
            return L.clip(x, -8, 7)
        case DType.UINT4:
            return L.clip(x, 0, 15)
        case DType.FLOAT4E2M1:
            return L.where(L.is_nan(x), 6, x)
    return x


@operator("CastLike", since=15)
def cast_like(x: Tensor, like: Tensor, *, saturate: int = 1, round_mode: str = "up", opset: int) -> Tensor:
    return _convert(x, like.dtype, bool(saturate), round_mode, opset)


def _convert(x: Tensor, dtype: DType, saturate: bool, rounding: str, opset: int) -> Tensor:
    if rounding not in ("up", "down", "nearest"):
        raise InvalidModelError(f"unknown round_mode {rounding!r}.", remedy="Use 'up', 'down' or 'nearest'.")
    if opset < 24 and t.is_float(x.dtype):
        x = _saturate(x, dtype)
    return L.cast(x, dtype, saturate=saturate, rounding=rounding)


@operator("BitCast", since=26)
def bit_cast(x: Tensor, *, to: int) -> Tensor:
    dtype = t.element_type(to)
    if t.STRING in (x.dtype, dtype):
        raise TypeMismatchError("strings have no bits.", remedy="Use numbers.")
    if dtype.bitwidth != x.dtype.bitwidth:
        raise TypeMismatchError(
            f"{x.dtype.name.lower()} has {x.dtype.bitwidth} bits, and {dtype.name.lower()} {dtype.bitwidth}.",
            remedy="Use a type of equal width.",
        )
    return L.bitcast(x, dtype)
