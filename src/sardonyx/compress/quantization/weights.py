"""Weights as narrow numbers, with the scales of the least squared error: per tensor, channel or block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sardonyx.compress.quantization.saturation import exact
from sardonyx.compress.quantization.scheme import Scheme

_SHRINKS = np.linspace(1.0, 0.7, 16)
"""Shares of the largest magnitude that are tried as the largest representable magnitude."""

_CHUNK = 1 << 20
"""Elements of rows whose scales are computed at once: temporary arrays stay in the processor's cache."""


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight as narrow numbers.

    Attributes:
        values: The numbers, in the weight's shape and the scheme's type.
        scales: The scales: of shape [], [channels], or the weight's shape with blocks in place of the summed axis.
        zeros: The numbers of 0, in the shape of the scales; all 0 for floats.
        axis: The axis of channels or of blocks; None for one scale.
        block: Elements of a block; 0 without blocks. The last block may be shorter.
    """

    values: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    axis: int | None
    block: int

    def dequantized(self) -> np.ndarray:
        """Return the weight that the numbers mean, as float32."""
        scales, zeros = self.expanded()
        return np.asarray((self.values.astype(np.float32) - zeros) * scales)

    def expanded(self) -> tuple[np.ndarray, np.ndarray]:
        """Return scales and zero points as float32 in shapes that broadcast to the weight's."""
        shape, axis, block = self.values.shape, self.axis, self.block
        zeros = self.zeros.astype(np.float32)
        return _expand(self.scales, shape, axis, block), _expand(zeros, shape, axis, block)


def quantize_weight(weight: np.ndarray, channel_axis: int, sum_axis: int | None, scheme: Scheme) -> QuantizedWeight:
    """Return a weight as narrow numbers, each the nearest one.

    Args:
        weight: The weight.
        channel_axis: The axis of output channels.
        sum_axis: The axis of the sum, for blocks; None if the weight has no single one.
        scheme: The scheme.
    """
    size = None if sum_axis is None else weight.shape[sum_axis]
    block = scheme.block_along(size)
    if block and sum_axis is not None:
        rows, shape = _blocks(weight, sum_axis, block)
        axis = sum_axis
    elif scheme.granularity == "tensor":
        rows, shape, axis = weight.reshape(1, -1), (), None
    else:
        rows = np.moveaxis(weight, channel_axis, 0).reshape(weight.shape[channel_axis], -1)
        shape, axis = (weight.shape[channel_axis],), channel_axis
    scales, zeros = _best_scales(rows, scheme)
    scales, zeros = scales.reshape(shape), zeros.reshape(shape)
    kind = scheme.weight_type

    def rounded(scales: np.ndarray) -> np.ndarray:
        values = np.empty(weight.shape, kind.numpy)
        whole = _expand(scales, weight.shape, axis, block), _expand(zeros, weight.shape, axis, block)
        for part in _parts(weight):
            factor, offset = (array if array.ndim == 0 or len(array) == 1 else array[part] for array in whole)
            values[part] = nearest(weight[part].astype(np.float32, copy=False) / factor, offset, scheme)
        return values

    if scheme.has_exact_sums:
        values, scales = exact(rounded, scales, channel_axis, sum_axis is not None)
    else:
        values = rounded(scales)
    return QuantizedWeight(values, scales, zeros.astype(kind.numpy), axis, block)


def nearest(units: np.ndarray, zeros: np.ndarray | float, scheme: Scheme) -> np.ndarray:
    """Return the nearest numbers of weights in units of their scales, in the scheme's type."""
    kind = scheme.weight_type
    if kind.is_float:
        return np.asarray(np.clip(units, scheme.lowest, scheme.limit).astype(kind.numpy))
    integers = np.clip(np.rint(units) + zeros, scheme.lowest, scheme.limit)
    return np.asarray(integers.astype(kind.numpy))


def _parts(weight: np.ndarray) -> Iterator[slice]:
    """Yield ranges of axis 0 of at most ``_CHUNK`` elements, or of one index."""
    if weight.ndim == 0:
        return
    step = max(_CHUNK // max(weight[:1].size, 1), 1)
    for first in range(0, len(weight), step):
        yield slice(first, first + step)


def _blocks(weight: np.ndarray, sum_axis: int, block: int) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return blocks as rows, and the shape of the scales; a short last block is filled with its last element."""
    moved = np.moveaxis(weight, sum_axis, -1)
    missing = -moved.shape[-1] % block
    if missing:
        moved = np.pad(moved, [*[(0, 0)] * (moved.ndim - 1), (0, missing)], mode="edge")
    count = moved.shape[-1] // block
    rows = moved.reshape(*moved.shape[:-1], count, block)
    scales = np.moveaxis(np.empty(rows.shape[:-1], np.bool_), -1, sum_axis)
    # Rows in the order of the scales, so that both reshape alike.
    return np.moveaxis(rows, -2, sum_axis).reshape(-1, block), scales.shape


def _best_scales(rows: np.ndarray, scheme: Scheme) -> tuple[np.ndarray, np.ndarray]:
    """Return the scale and zero point of the least squared error for each row, each of shape [rows]."""
    scales, zeros = np.empty(len(rows), np.float32), np.empty(len(rows), np.float32)
    for part in _parts(rows):
        scales[part], zeros[part] = _best_scales_of(rows[part].astype(np.float32, copy=False), scheme)
    return scales, zeros


def _best_scales_of(rows: np.ndarray, scheme: Scheme) -> tuple[np.ndarray, np.ndarray]:
    tiny = np.finfo(np.float32).tiny
    lowest, limit = np.float32(scheme.lowest), np.float32(scheme.limit)
    if scheme.symmetric:
        high = np.abs(rows).max(1, initial=0)
        low, span = -high, high / limit
    else:
        low, high = rows.min(1, initial=0), rows.max(1, initial=0)
        span = high / limit - low / limit  # Not (high - low), which may overflow.
    whole = np.where(span > 0, np.maximum(span, tiny), np.float32(1))
    best, zeros = whole, np.zeros(len(rows), np.float32)
    least = np.full(len(rows), np.inf, np.float32)
    units = rows / whole[:, None]  # In units of the largest scale, so that no square overflows.
    for share in _SHRINKS:
        scales = np.maximum(whole * np.float32(share), tiny)
        shrunk = (scales / whole)[:, None]
        if scheme.symmetric:
            offsets = np.zeros_like(scales)
        else:
            offsets = np.clip(np.rint(-low * np.float32(share) / scales), 0, limit)
        numbers = units / shrunk
        if scheme.weight_type.is_float:
            numbers = np.clip(numbers, lowest, limit).astype(scheme.weight_type.numpy).astype(np.float32)
        else:
            numbers = np.clip(np.rint(numbers) + offsets[:, None], lowest, limit) - offsets[:, None]
        errors = np.square(numbers * shrunk - units).sum(1)
        better = errors < least
        best, zeros = np.where(better, scales, best), np.where(better, offsets, zeros)
        least = np.where(better, errors, least)
    return best.astype(np.float32), zeros


def _expand(scales: np.ndarray, shape: tuple[int, ...], axis: int | None, block: int) -> np.ndarray:
    """Return scales in a shape that broadcasts to the weight's."""
    if axis is None:
        return scales
    if block:
        repeated = np.repeat(scales, block, axis)
        return repeated[(slice(None),) * axis + (slice(shape[axis]),)]
    return scales.reshape([-1 if number == axis else 1 for number in range(len(shape))])
