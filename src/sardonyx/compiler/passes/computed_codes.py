"""Products of two computed operands of 8-bit codes, such as queries by keys and weights by values of an attention.

The products of bytes are those of unsigned by signed codes: other codes are shifted by 128, and so are their zero
points. With ``x - a`` and ``y - b``, the sums over K are

    sum((x - a) * (y - b)) = sum(x * y) - b * sum(x) - a * sum(y) + K * a * b

modulo 2**32: sums of rows and columns are computed from the codes, where the other zero point is not known to be 0.
Targets without such products multiply floats, if float32 holds all sums exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sardonyx.compiler.analysis.constant_values import is_closed
from sardonyx.compiler.analysis.primitive_traits import dtype_of
from sardonyx.compiler.analysis.shape_guards import MOST_TERMS, WIDEST
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.passes.int8_matmul import Quantized, apply_scale, convert, match_quantized
from sardonyx.compiler.target.description import Target
from sardonyx.compiler.tiling.gemm import BYTES_OF_WORD, multiplies_bytes
from sardonyx.core.dim import Size
from sardonyx.core.eval.tensor import Tensor, apply, constant
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value

EXACT = (1 << 24) // (WIDEST * WIDEST)
"""Largest number of products of such differences whose sum is exact in float32."""

_SHIFT = 128
"""Distance between unsigned and signed codes."""


def multiply_computed_codes(params: Mapping[str, Any], x: Value, y: Value, target: Target) -> Tensor | None:
    """Return a ``contract`` of two computed quantized operands as a product of codes; None for other operands.

    Args:
        params: Parameters of the ``contract``.
        x: The first operand.
        y: The second operand.
        target: The processor.
    """
    if params["dtype"] not in (t.FLOAT, t.INT32) or is_closed(x) or (is_closed(y) and not params["batch"]):
        return None
    if {dtype_of(x), dtype_of(y)} == {t.UINT8, t.INT8}:
        return None  # The product that this function returns.
    first, second = match_quantized(x), match_quantized(y)
    if first is None or second is None:
        return None
    depth = math.prod(shape_of(x)[axis] for axis in params["left"])
    if _suits_bytes(params, first, second, depth, target):
        return _multiply_bytes(params, first, second, depth)
    if params["dtype"] != t.INT32 or not isinstance(depth, int) or not depth or depth > EXACT:
        return None
    wide = [convert(operand, t.FLOAT) for operand in (x, y)]
    return convert(apply("contract", *wide, **{**params, "dtype": t.FLOAT}), t.INT32)


def _suits_bytes(params: Mapping[str, Any], first: Quantized, second: Quantized, depth: Size, target: Target) -> bool:
    """Return True if the target multiplies bytes, all sums fit 32 bits, and no scale makes a number infinite."""
    batch, left, right = params["batch"], params["left"], params["right"]
    rows = _free(first.codes, left, [a for a, _ in batch])
    columns = _free(second.codes, right, [b for _, b in batch])
    if len(left) != 1 or not multiplies_bytes(rows, columns, depth, target):
        return False
    if params["dtype"] == t.INT32:
        return True
    # A guard limits open sizes, see :mod:`.analysis.shape_guards`.
    most = depth if isinstance(depth, int) else MOST_TERMS
    if most > MOST_TERMS:
        return False
    bound, limit = float(most), float(np.finfo(np.float32).max)
    for scale in (first.scale, second.scale):
        known = scale is not None and scale.is_constant
        largest = WIDEST * (float(np.abs(np.asarray(scale.known)).max()) if scale is not None and known else 1.0)
        bound *= largest
        if not largest <= limit:
            return False
    return bound <= limit


def _free(x: Value, summed: tuple[int, ...], batch: list[int]) -> Size:
    """Return the rows or columns of a product of the batch."""
    return math.prod(size for axis, size in enumerate(shape_of(x)) if axis not in summed and axis not in batch)


def _multiply_bytes(params: Mapping[str, Any], first: Quantized, second: Quantized, depth: Size) -> Tensor:
    """Return the product by bytes, with the terms of zero points and the scales."""
    left, right = params["left"], params["right"]
    x, a = _shifted(first, t.UINT8)
    y, b = _shifted(second, t.INT8)
    words = _whole_words(x, left[0], depth), _whole_words(y, right[0], depth)
    sums = apply("contract", *words, **{**params, "dtype": t.INT32})
    shape, pairs = shape_of(sums), len(params["batch"])
    if b is not None:
        of_rows = _sums(convert(x, t.INT32), left, [i for i, _ in params["batch"]])
        sizes = shape_of(of_rows)
        lined = apply("reshape", of_rows, shape=(*sizes, *(1,) * (len(shape) - len(sizes))))
        sums = sums - apply("broadcast", lined, shape=shape) * b
    if a is not None:
        numbers = convert(y, t.INT32)
        of_columns = _sums(numbers if b is None else numbers - b, right, [j for _, j in params["batch"]])
        sizes = shape_of(of_columns)
        ones = (1,) * (len(shape) - len(sizes))
        lined = apply("reshape", of_columns, shape=(*sizes[:pairs], *ones, *sizes[pairs:]))
        sums = sums - apply("broadcast", lined, shape=shape) * a
    scales = [scale for scale in (first.scale, second.scale) if scale is not None]
    factor = scales[0] * scales[1] if len(scales) == 2 else scales[0] if scales else None
    return apply_scale(sums, params["dtype"], factor, None)


def _shifted(source: Quantized, dtype: t.DType) -> tuple[Tensor, Tensor | None]:
    """Return codes as an element type, shifted by half of the range if theirs is the other, and the zero point."""
    codes, zero = source.codes, source.zero
    if zero is not None and zero.is_constant and not np.asarray(zero.known).any():
        zero = None
    if dtype_of(codes) == dtype:
        return codes, zero
    byte = apply("bitcast", codes, dtype=t.UINT8) if dtype_of(codes) == t.INT8 else codes
    flipped = byte ^ constant(np.uint8(_SHIFT), t.UINT8)
    shift = constant(np.int32(_SHIFT if dtype == t.UINT8 else -_SHIFT), t.INT32)
    total = shift if zero is None else zero + shift
    is_zero = total.is_constant and not np.asarray(total.known).any()
    return flipped if dtype == t.UINT8 else apply("bitcast", flipped, dtype=dtype), None if is_zero else total


def _whole_words(codes: Tensor, axis: int, depth: Size) -> Tensor:
    """Return codes whose axis is padded with zeros to whole words."""
    missing = (-depth) % BYTES_OF_WORD
    if missing == 0:
        return codes
    high = tuple(missing if i == axis else 0 for i in range(len(shape_of(codes))))
    none = (0,) * len(high)
    filling = constant(np.zeros((), t.numpy_dtype(codes.dtype)), codes.dtype)
    return apply("pad", codes, filling, low=none, high=high, interior=none)


def _sums(numbers: Tensor, summed: tuple[int, ...], batch: list[int]) -> Tensor:
    """Return the sums along axes; of the others, those of the batch come first."""
    sums = apply("reduce", numbers, kind="add", axes=tuple(sorted(summed)))
    free = [axis for axis in range(len(shape_of(numbers))) if axis not in summed]
    order = [free.index(axis) for axis in [*batch, *(axis for axis in free if axis not in batch)]]
    return sums if order == sorted(order) else apply("permute", sums, axes=tuple(order))
