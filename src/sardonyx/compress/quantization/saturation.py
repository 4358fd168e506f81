"""Weights whose neighbouring products add up in 16 bits, so that all processors compute the same sums.

Without VNNI, x86 engines multiply unsigned by signed bytes with an instruction that adds two neighbouring products in
saturating 16 bits (``vpmaddubsw``). With inputs up to 255, two neighbouring weights of one sign may have 128 in all.
The scale of a channel with larger sums is widened; its other sums, and the weights of other channels, keep 8 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

MOST = 128
"""The largest sum of two neighbouring weights of one sign: 255 * 128 < 2 ** 15."""

_MOST_STEPS = 4
"""Widenings of scales before single integers are reduced; rounding leaves a sum of 129 after the first."""

_CHUNK = 1 << 20
"""Elements of a weight whose sums are computed at once, which bounds temporary memory."""

_Orders = tuple[np.ndarray, ...]


def exact(
    nearest: Callable[[np.ndarray], np.ndarray], scales: np.ndarray, channel_axis: int, is_matrix: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return integers without sums that saturate, and their scales.

    Args:
        nearest: The nearest integers of the weight at some scales.
        scales: The scales, of shape [] or [channels].
        channel_axis: The axis of output channels.
        is_matrix: True if the other axis is the only summed one; else axis 1 is that of input channels.
    """
    values = nearest(scales)
    for _ in range(_MOST_STEPS):
        sums = neighbour_sums(values, channel_axis, is_matrix)
        if sums.max(initial=0) <= MOST:
            return values, scales
        factors = sums.astype(np.float32) / MOST
        if not scales.ndim:
            factors = factors.max(initial=0)
        scales = np.asarray(scales * np.maximum(factors, 1), np.float32)
        values = nearest(scales)
    return without_saturation(values, channel_axis, is_matrix), scales


def neighbour_sums(values: np.ndarray, channel_axis: int, is_matrix: bool) -> np.ndarray:
    """Return the largest sum of two neighbouring weights of one sign, by output channel.

    Neighbours are those of the last summed axis, and of the order with the input channels last, in which engines
    multiply.
    """
    moved = np.moveaxis(values, channel_axis, 0)
    orders = _orders(moved, is_matrix)
    result = np.zeros(len(moved), np.int64)
    for part, rows in _parts(moved):
        for order in orders:
            for sums in _sums(rows[:, order]):
                result[part] = np.maximum(result[part], sums.max(1, initial=0))
    return result


def without_saturation(values: np.ndarray, channel_axis: int, is_matrix: bool) -> np.ndarray:
    """Return integers with the larger of two neighbours nearer to 0 where the sum of both would saturate."""
    if neighbour_sums(values, channel_axis, is_matrix).max(initial=0) <= MOST:
        return values
    moved = np.array(np.moveaxis(values, channel_axis, 0))
    orders = _orders(moved, is_matrix)
    for part, rows in _parts(moved):
        changed = rows
        while True:
            excess = False
            for order in orders:
                for sign, sums in zip((1, -1), _sums(changed[:, order]), strict=True):
                    for row, column in zip(*np.nonzero(sums > MOST), strict=True):
                        pair = order[column : column + 2]
                        more = int(np.maximum(sign * changed[row, pair], 0).sum()) - MOST
                        if more > 0:
                            larger = pair[int(np.argmax(sign * changed[row, pair]))]
                            changed[row, larger] -= sign * more
                            excess = True
            if not excess:
                break
        moved[part] = changed.reshape(moved[part].shape)
    return np.ascontiguousarray(np.moveaxis(moved, 0, channel_axis))


def _orders(moved: np.ndarray, is_matrix: bool) -> _Orders:
    """Return the orders of the summed elements of a weight of shape [outputs, inputs, *kernel]."""
    count = moved[:1].size
    plain = np.arange(count)
    if is_matrix or moved.ndim < 3 or moved.shape[1] in (1, count):
        return (plain,)
    return plain, plain.reshape(moved.shape[1], -1).T.reshape(-1)


def _parts(moved: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield ranges of channels, and their integers as rows of 16 bits."""
    step = max(_CHUNK // max(moved[:1].size, 1), 1)
    for first in range(0, len(moved), step):
        part = slice(first, first + step)
        piece = moved[part]
        yield part, piece.reshape(len(piece), -1).astype(np.int16)


def _sums(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of neighbours above 0, and those of neighbours below 0, negated."""
    above, below = np.maximum(rows, 0), np.maximum(-rows, 0)
    return above[:, :-1] + above[:, 1:], below[:, :-1] + below[:, 1:]
