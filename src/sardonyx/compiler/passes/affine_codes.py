"""Codes that are nearly linear functions of other codes, channel by channel: a product, a sum, a rounding.

A normalization between two quantizations, as a quantizer leaves it that folds no ``BatchNormalization``, subtracts,
divides, multiplies and adds constants of the channel, and the floats before the rounding decide the codes. There are
256 codes for each channel: the function ``codes * factor + summand`` replaces the floats if it rounds to the same code
for all of them, with a distance from halfway between two codes that no order of roundings exceeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sardonyx.compiler.analysis.constant_values import evaluate_closed, is_closed
from sardonyx.compiler.analysis.primitive_traits import dtype_of, is_elementwise
from sardonyx.compiler.analysis.strided_views import shape_of
from sardonyx.compiler.codegen.requantize import Codes
from sardonyx.core.eval.tensor import Tensor, apply, constant
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.ir.types import TensorType

_CODES = (t.UINT8, t.INT8)

_FEWEST_OPERATIONS = 4
"""Operations between codes and their rounding from which a product and a sum are fewer."""

_MOST_OPERATIONS = 32

_ROUNDING = 2.0**-23
"""Largest share by which a product and a sum of float32 differ from their exact values, in any order."""

_SLOPES = (0, 1, -1, 2, -2, 4, -4, 8, -8, 16, -16)
"""Deviations from the slope of the function that are tried, in units of :data:`_SLOPE_UNIT`."""

_SLOPE_UNIT = 2.0**-18


@dataclass(frozen=True)
class _Function:
    """Floats as a function of codes and of constants of a channel.

    Attributes:
        source: The codes.
        interior: The values computed from the codes, in topological order.
        axis: The axis of the channels.
        channels: Number of channels.
    """

    source: Value
    interior: tuple[Value, ...]
    axis: int
    channels: int

    def elements(self) -> np.ndarray:
        """Return the last value as [channels, 256], by the code of the source in ascending order."""
        dtype = dtype_of(self.source)
        shape = (self.channels, 256)
        known = {self.source: apply("broadcast", constant(ascending(dtype).reshape(1, 256), dtype), shape=shape)}
        for value in self.interior:
            operands = [known[x] if x in known else self._constant(x, shape) for x in value.operands]
            known[value] = apply(value.op, *operands, **value.params)
        return evaluate_closed(known[self.interior[-1]])

    def _constant(self, value: Value, shape: tuple[int, int]) -> Tensor:
        array = evaluate_closed(_narrow(value)).reshape(-1, 1)
        return apply("broadcast", constant(array, dtype_of(value)), shape=shape)


def ascending(dtype: t.DType) -> np.ndarray:
    """Return the integers of a type of 8 bits, in order."""
    low = -128 if dtype == t.INT8 else 0
    return np.arange(low, low + 256).astype(t.numpy_dtype(dtype))


def affine_source(goal: Codes) -> Tensor | None:
    """Return ``codes * factor + summand`` in place of the floats of a quantization; None if no such sum is exact.

    Args:
        goal: The quantization, whose source is a function of codes with constants of several channels.
    """
    function = _function(goal.source)
    if function is None:
        return None
    with np.errstate(all="ignore"):
        floats = function.elements()
    fitted = fit(floats, ascending(dtype_of(function.source)), goal.low - goal.zero, goal.high - goal.zero)
    if fitted is None:
        return None
    shape = shape_of(goal.source)
    along = [function.channels if axis == function.axis else 1 for axis in range(len(shape))]
    factor, summand = (
        apply("broadcast", constant(array.reshape(along), t.FLOAT), shape=shape) for array in fitted
    )  # fmt: skip
    return apply("convert", function.source, dtype=t.FLOAT, saturate=True, rounding="up") * factor + summand


def fit(floats: np.ndarray, codes: np.ndarray, low: int, high: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return factors and summands with which codes give the same integers as floats; None if there are none.

    Args:
        floats: The floats that are rounded, [channels, codes].
        codes: The codes, in ascending order.
        low: The least integer; lower ones become it.
        high: The greatest integer.
    """
    if low == high or not np.isfinite(floats).all():
        return None
    x, units = codes.astype(np.float64), np.clip(np.round(floats), low, high).astype(np.float64)
    slopes = _slopes(floats.astype(np.float64), x, (low < units) & (units < high))
    factors, summands = np.zeros((2, len(floats)), np.float32)
    missing = np.arange(len(floats))
    for deviation in _SLOPES:
        factor = (slopes[missing] * (1 + deviation * _SLOPE_UNIT)).astype(np.float32)
        summand, is_good = _summands(factor.astype(np.float64)[:, None] * x, units[missing], low, high)
        good = missing[is_good]
        factors[good], summands[good] = factor[is_good], summand[is_good]
        missing = missing[~is_good]
        if not missing.size:
            return factors, summands
    return None


def _summands(products: np.ndarray, units: np.ndarray, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the summand of each channel that is farthest from other results, and True where it is far enough."""
    rest = units - products
    least = np.where(units > low, rest, -np.inf).max(1) - 0.5
    greatest = np.where(units < high, rest, np.inf).min(1) + 0.5
    least, greatest = (
        np.where(np.isinf(least), greatest - 1, least),
        np.where(np.isinf(greatest), least + 1, greatest),
    )  # fmt: skip
    summands = ((least + greatest) / 2).astype(np.float32)
    exact = summands.astype(np.float64)
    margin = np.minimum(exact - least, greatest - exact)
    largest = np.maximum(products.max(1), -products.min(1))
    return summands, margin > _ROUNDING * (2 * largest + np.abs(exact))


def _slopes(floats: np.ndarray, x: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """Return the slope of each channel between the first and the last inner code, or between all if there are few."""
    few = inner.sum(1) < 2
    inner = inner | few[:, None]
    first, last = inner.argmax(1), inner.shape[1] - 1 - inner[:, ::-1].argmax(1)
    rows = np.arange(len(floats))
    result: np.ndarray = (floats[rows, last] - floats[rows, first]) / (x[last] - x[first])
    return result


def _function(root: Value) -> _Function | None:
    """Return floats as a function of codes and constants of several channels; None for other floats."""
    shape, done, channels = shape_of(root), dict[Value, None](), dict[int, int]()
    sources, waiting = set[Value](), [root]
    while waiting:
        value = waiting[-1]
        if value in done:
            waiting.pop()
            continue
        missing: list[Value] = []
        for operand in value.operands:
            if operand in done or operand in sources:
                continue
            if not isinstance(operand.type, TensorType):
                return None
            if (wide := _channels(operand)) is not None:
                channels.update(wide)
            elif shape_of(operand) != shape or is_closed(operand):
                return None
            elif dtype_of(operand) in _CODES:
                sources.add(operand)
            elif is_elementwise(operand):
                missing.append(operand)
            else:
                return None
        if len(done) + len(waiting) > _MOST_OPERATIONS:
            return None
        if missing:
            waiting += missing
        else:
            done[waiting.pop()] = None
    if len(sources) != 1 or len(channels) != 1 or len(done) < _FEWEST_OPERATIONS or not is_elementwise(root):
        return None
    ((axis, count),) = channels.items()
    return _Function(sources.pop(), tuple(done), axis, count)


def _narrow(value: Value) -> Value:
    """Return the constant that a value repeats along axes."""
    return value.operands[0] if value.op == "broadcast" else value


def _channels(value: Value) -> dict[int, int] | None:
    """Return the only axis and size of a constant that is not repeated, none for a number; None for other values."""
    narrow = _narrow(value)
    if not isinstance(narrow.type, TensorType) or not is_closed(narrow):
        return None
    axes = {axis: int(size) for axis, size in enumerate(_sizes(narrow)) if size != 1}
    return axes if len(axes) <= 1 else None


def _sizes(value: Value) -> Sequence[int]:
    return [int(size) for size in shape_of(value)]  # type: ignore[arg-type]
