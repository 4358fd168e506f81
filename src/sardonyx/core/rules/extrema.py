"""Maxima and minima that do not depend on the order of the operands: -0 is below +0, NaN wins over every number.

Source: IEEE 754-2019, *maximum* and *minimum*. numpy chooses one of two zeros by position and by vector length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


_CHUNK = 1 << 16
"""Elements that are searched at once."""


def _is_float(x: Array) -> bool:
    return bool(x.dtype.kind == "f")


def maximum(x: Array, y: Array) -> Any:
    """Return the elementwise maximum."""
    result = np.maximum(x, y)
    if not _is_float(result) or _is_decided(x, y, result):
        return result
    if any(bound == 0 and not np.signbit(bound) for bound in (_uniform(x), _uniform(y)) if bound is not None):
        return np.add(result, result.dtype.type(0), out=result if result.ndim else None)  # A zero is +0.
    # The sum of two zeros is their maximum: -0 only for twice -0.
    return np.where((x == 0) & (y == 0), x + y, result)


def minimum(x: Array, y: Array) -> Any:
    """Return the elementwise minimum."""
    result = np.minimum(x, y)
    if not _is_float(result) or _is_decided(x, y, result):
        return result
    return np.where((x == 0) & (y == 0), -(-x - y), result)


def _is_decided(x: Array, y: Array, result: Any) -> bool:
    """Return True if no element is the choice between two zeros."""
    bounds = [bound for bound in (_uniform(x), _uniform(y)) if bound is not None]
    return any(bound != 0 for bound in bounds) or (not bounds and not (result == 0).any())


def _uniform(x: Array) -> Any:
    """Return the element that an array repeats; None for other arrays."""
    repeats = x.size > 0 and all(step == 0 or size == 1 for step, size in zip(x.strides, x.shape, strict=True))
    return x[(0,) * x.ndim] if repeats else None


def reduce_in_order(kind: str, x: Array, identity: Any, reduce: Callable[[Array, Any], Any]) -> Any:
    """Return a reduction by ``np.maximum`` or ``np.minimum`` that tells the zeros of both signs apart.

    Args:
        kind: "max" or "min".
        x: The operand.
        identity: The result of a reduction of no elements.
        reduce: The reduction of an operand, with the identity: of ``x``, or of integers of the same order.
    """
    if not _is_float(x) or not _has_negative_zero(x):
        return reduce(x, identity)
    integer = np.dtype(f"i{x.dtype.itemsize}")
    limits = np.iinfo(integer)
    keys = _keys(np.ascontiguousarray(x).view(integer)).reshape(x.shape)
    keys[np.isnan(x)] = limits.max if kind == "max" else limits.min
    result = reduce(keys, _keys(np.asarray(identity, x.dtype).view(integer))[()])
    return np.ascontiguousarray(_keys(np.asarray(result))).view(x.dtype).reshape(np.shape(result))


def _has_negative_zero(x: Array) -> bool:
    flags = ["external_loop", "buffered", "zerosize_ok"]
    chunks = np.nditer(x, flags, order="K", buffersize=_CHUNK)  # type: ignore[call-overload]
    return any((np.signbit(chunk) & (chunk == 0)).any() for chunk in chunks)


def _keys(bits: Array) -> Array:
    """Return integers in the order of the floats with these bits; the inverse too."""
    return np.asarray(bits ^ ((bits >> (8 * bits.dtype.itemsize - 1)) & np.iinfo(bits.dtype).max))
