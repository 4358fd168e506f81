"""Weights as integers, with the scales of the least squared error: per tensor, channel or block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sardonyx.compress.quantization.scheme import Scheme

_SHRINKS = np.linspace(1.0, 0.7, 16)
"""Shares of the largest magnitude that are tried as the largest representable magnitude."""


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight as integers.

    Attributes:
        values: The integers, in the weight's shape.
        scales: The scales: of shape [], [channels], or the weight's shape with blocks in place of the summed axis.
        zeros: The integers of 0, in the shape of the scales.
        axis: The axis of channels or of blocks; None for one scale.
        block: Elements of a block; 0 without blocks.
    """

    values: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    axis: int | None
    block: int

    def dequantized(self) -> np.ndarray:
        """Return the weight that the integers mean."""
        shape, axis, block = self.values.shape, self.axis, self.block
        integers = self.values.astype(np.float32) - _expand(self.zeros, shape, axis, block)
        return np.asarray(integers * _expand(self.scales, shape, axis, block))


def quantize_weight(weight: np.ndarray, channel_axis: int, sum_axis: int | None, scheme: Scheme) -> QuantizedWeight:
    """Return a weight as integers.

    Args:
        weight: The weight.
        channel_axis: The axis of output channels.
        sum_axis: The axis of the sum, for blocks; None if the weight has no single one.
        scheme: The scheme.
    """
    size = None if sum_axis is None else weight.shape[sum_axis]
    if scheme.granularity == "block" and size is not None and size > scheme.block and size % scheme.block == 0:
        assert sum_axis is not None
        split = (*weight.shape[:sum_axis], size // scheme.block, scheme.block, *weight.shape[sum_axis + 1 :])
        groups = np.moveaxis(weight.reshape(split), sum_axis + 1, -1)
        rows, shape, axis, block = groups.reshape(-1, scheme.block), groups.shape[:-1], sum_axis, scheme.block
    elif scheme.granularity == "tensor":
        rows, shape, axis, block = weight.reshape(1, -1), (), None, 0
    else:
        rows = np.moveaxis(weight, channel_axis, 0).reshape(weight.shape[channel_axis], -1)
        shape, axis, block = (weight.shape[channel_axis],), channel_axis, 0
    scales, zeros = _best_scales(rows, scheme)
    scales, zeros = scales.reshape(shape), zeros.reshape(shape)
    lowest = -scheme.limit if scheme.symmetric else 0
    integers = np.rint(weight / _expand(scales, weight.shape, axis, block)) + _expand(zeros, weight.shape, axis, block)
    dtype = np.int8 if scheme.symmetric else np.uint8
    values = np.clip(integers, lowest, scheme.limit).astype(dtype)
    return QuantizedWeight(values, scales, zeros.astype(dtype), axis, block)


def _best_scales(rows: np.ndarray, scheme: Scheme) -> tuple[np.ndarray, np.ndarray]:
    """Return the scale and zero point of the least squared error for each row, each of shape [rows]."""
    rows = rows.astype(np.float32, copy=False)
    tiny = np.finfo(np.float32).tiny
    if scheme.symmetric:
        high = np.abs(rows).max(1, initial=0)
        low, lowest = -high, -scheme.limit
    else:
        low, high, lowest = rows.min(1, initial=0), rows.max(1, initial=0), 0
    span = (high - low) / np.float32(scheme.limit - lowest)
    whole = np.where(span > 0, np.maximum(span, tiny), np.float32(1))
    best, zeros = whole, np.zeros(len(rows), np.float32)
    least = np.full(len(rows), np.inf, np.float32)
    for share in _SHRINKS:
        scales = np.maximum(whole * np.float32(share), tiny)
        offsets = (
            np.zeros_like(scales) if scheme.symmetric else np.clip(np.rint(-low * share / scales), 0, scheme.limit)
        )
        integers = np.clip(np.rint(rows / scales[:, None]) + offsets[:, None], lowest, scheme.limit)
        # In units of the largest scale, so that no square overflows.
        units, shrunk = rows / whole[:, None], (scales / whole)[:, None]
        errors = np.square((integers - offsets[:, None]) * shrunk - units).sum(1)
        better = errors < least
        best, zeros = np.where(better, scales, best), np.where(better, offsets, zeros)
        least = np.where(better, errors, least)
    return best.astype(np.float32), zeros


def _expand(scales: np.ndarray, shape: tuple[int, ...], axis: int | None, block: int) -> np.ndarray:
    """Return scales in a shape that broadcasts to the weight's."""
    if axis is None:
        return scales
    if block:
        return np.repeat(scales, block, axis)
    return scales.reshape([-1 if number == axis else 1 for number in range(len(shape))])
