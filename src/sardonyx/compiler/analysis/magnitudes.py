"""Bounds of the magnitudes of floats that are computed from integers and constants.

Kernels leave out limits and tests for NaN that a bound makes idle. Of a constant of several elements, code may depend
on its *magnitude class* alone, which is part of the canonical form of a group that quantizes; other weights need the
same class, or other code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from sardonyx.compiler.analysis.logistic import exponent_of_logistic
from sardonyx.compiler.analysis.primitive_traits import is_splat
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import TensorType

CLASSES = (2.0**-12, 2.0**-6, 1.0, 2.0**4, 2.0**16)
"""Upper limits of the classes of float32."""

INTEGER_CLASSES = (2.0**20, 2.0**24)
"""Upper limits of the classes of int32."""

_MOST_ELEMENTS = 1 << 14
"""Largest constant that has a class: scales and summands of channels."""

_MOST_OPERATIONS = 32

_QUANTIZED = frozenset({t.INT8, t.UINT8, t.INT16})


def quantizes(values: Iterable[Value]) -> bool:
    """Return True if code may depend on the magnitude classes of constants, in a group or function of these values."""
    return any(isinstance(value.type, TensorType) and value.type.dtype in _QUANTIZED for value in values)


def magnitude_class(value: Value) -> float | None:
    """Return the least limit that no element of a float32 or int32 constant exceeds; None for other constants."""
    if not isinstance(value.type, TensorType) or value.type.dtype not in (t.FLOAT, t.INT32):
        return None
    array = np.asarray(value.known)
    if not 0 < array.size <= _MOST_ELEMENTS or not np.isfinite(array).all():
        return None
    largest = float(np.abs(array.astype(np.float64)).max())
    limits = CLASSES if value.type.dtype == t.FLOAT else INTEGER_CLASSES
    return next((limit for limit in limits if largest <= limit), None)


def largest_magnitude(value: Value, computes: Callable[[Value], bool], depth: int = _MOST_OPERATIONS) -> float:
    """Return a bound of the magnitude of every element of a value that is never NaN; infinity if there is none.

    Args:
        value: A float32 value, or integers.
        computes: Returns True for the values that a kernel computes; those that the kernel reads are any numbers.
        depth: Most operations from the value to constants and integers.
    """
    if not isinstance(value.type, TensorType) or not depth:
        return math.inf
    dtype = value.type.dtype
    if t.is_integer(dtype):
        return _largest_integer(value, computes, depth)
    if dtype != t.FLOAT or not (value.is_constant or computes(value)):
        return math.inf
    if value.is_constant:
        if is_splat(value):
            number = abs(float(np.ravel(value.known)[0]))
            return math.inf if math.isnan(number) else number
        return magnitude_class(value) or math.inf
    if value.op in ("broadcast", "reshape", "permute", "convert", "neg", "abs"):
        return largest_magnitude(value.operands[0], computes, depth - 1)
    if value.op == "round":
        return largest_magnitude(value.operands[0], computes, depth - 1) + 1
    exponent = exponent_of_logistic(value)
    if exponent is not None:
        # The divisor is at least 1.
        is_bounded = largest_magnitude(exponent.x, computes, depth - 1) < math.inf
        return largest_magnitude(value.operands[0], computes, depth - 1) if is_bounded else math.inf
    if value.op not in ("add", "sub", "mul", "div", "max", "min"):
        return math.inf
    first, second = (largest_magnitude(operand, computes, depth - 1) for operand in value.operands)
    match value.op:
        case "add" | "sub":
            bound = first + second
        case "mul":
            bound = math.inf if math.inf in (first, second) else first * second
        case "div":
            divisor = value.operands[1].operands[0] if value.operands[1].op == "broadcast" else value.operands[1]
            exact = abs(float(np.ravel(divisor.known)[0])) if is_splat(divisor) else 0.0
            bound = first / exact if exact and exact < math.inf else math.inf
        case _:
            bound = max(first, second)
    # A sum of roundings exceeds no product of a small number.
    return bound * 1.0001 if bound < 1e30 else math.inf


def _largest_integer(value: Value, computes: Callable[[Value], bool], depth: int) -> float:
    """Return a bound of the magnitude of every element of an integer value."""
    assert isinstance(value.type, TensorType)
    dtype = value.type.dtype
    of_type = float(1 << (dtype.bitwidth - (t.kind(dtype) == "int"))) if dtype.bitwidth <= 32 else math.inf
    if value.is_constant:
        return magnitude_class(value) or of_type
    if not depth or not computes(value):
        return of_type
    bound = math.inf
    if value.op in ("reshape", "permute", "broadcast", "convert"):
        source = value.operands[0].type
        if isinstance(source, TensorType) and t.is_integer(source.dtype):
            bound = _largest_integer(value.operands[0], computes, depth - 1)
    elif value.op in ("add", "sub"):
        bound = sum(_largest_integer(operand, computes, depth - 1) for operand in value.operands)
    elif value.op == "convolve":
        x, w = (_largest_integer(operand, computes, depth - 1) for operand in value.operands)
        bound = x * w * _terms(value.operands[1])
    # Sums beyond the type lose their upper bits.
    return min(bound, of_type)


def _terms(weights: Value) -> float:
    """Return the number of products in an element of a convolution, infinity if the call knows the number."""
    sizes = shape_of(weights)[2:]  # [groups, filters, channels, *window]
    known = [size for size in sizes if isinstance(size, int)]
    return math.prod(known) if len(known) == len(sizes) else math.inf
