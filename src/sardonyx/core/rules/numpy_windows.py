"""Sliding windows over arrays: convolutions and reductions by numpy, in bounded memory.

The functions know arrays only; the caller widens and rounds element types.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from sardonyx.base.blas_threads import products

Array = np.ndarray
Pairs = Sequence[tuple[int, int]]

_COLUMN_BYTES = 1 << 20
"""Maximum bytes of patches per im2col step (at least one output row): they are read from L2 once written."""

_MANY_GROUPS = 16
"""Number of groups whose products, one after the other, take longer than products of whole images."""


def spread(x: Array, padding: Pairs, base_dilation: Sequence[int], value: Any) -> Array:
    """Dilate the trailing axes, then pad or crop."""
    leading = x.ndim - len(padding)
    for axis, dilation in enumerate(base_dilation, leading):
        if dilation > 1 and x.shape[axis]:
            shape = list(x.shape)
            shape[axis] = (shape[axis] - 1) * dilation + 1
            dilated = np.full(shape, value, x.dtype)
            dilated[(slice(None),) * axis + (slice(None, None, dilation),)] = x
            x = dilated
    widths = [(0, 0)] * leading + [(max(low, 0), max(high, 0)) for low, high in padding]
    if any(any(pair) for pair in widths):
        x = np.pad(x, widths, constant_values=value)
    cropped = [
        slice(max(-low, 0), size - max(-high, 0)) for (low, high), size in zip(padding, x.shape[leading:], strict=True)
    ]
    return _at(x, *cropped)


def _at(x: Array, *index: Any) -> Array:
    """Index the last axes."""
    result: Array = x[(..., *index)]
    return result


def windows(
    x: Array, window: Sequence[int], strides: Sequence[int], dilation: Sequence[int], out: Sequence[int]
) -> Array:
    """Return a view of all windows over the trailing axes: [leading…, out…, window…]."""
    leading = x.ndim - len(window)
    steps = x.strides[leading:]
    # No element is a stride away from the only one of its axis: the stride may exceed what numpy multiplies.
    between = [step * stride if count > 1 else 0 for step, stride, count in zip(steps, strides, out, strict=True)]
    inside = [step * stride if count > 1 else 0 for step, stride, count in zip(steps, dilation, window, strict=True)]
    return np.lib.stride_tricks.as_strided(
        x,
        (*x.shape[:leading], *out, *window),
        (*x.strides[:leading], *between, *inside),
        writeable=False,
    )


# Convolutions: [G, N, C, *spatial] with [G, M, C, *kernel] to [G, N, M, *out].


def convolve(
    x: Array,
    w: Array,
    out: Sequence[int],
    strides: Sequence[int],
    padding: Pairs,
    base_dilation: Sequence[int],
    kernel_dilation: Sequence[int],
) -> Array:
    """Compute a convolution in the element type of the operands."""
    shape = (*x.shape[:2], w.shape[1], *out)
    if 0 in shape or not x.size or not w.size:
        return np.zeros(shape, x.dtype)
    if max(base_dilation, default=1) > 1 and max(strides) == 1:
        return _scattered(x, w, shape, padding, base_dilation, kernel_dilation)
    x = spread(x, padding, base_dilation, 0)
    by_channel = w.shape[2] == 1 and (w.shape[1] == 1 or w.shape[0] >= _MANY_GROUPS)
    convolve_patches = _by_channel if by_channel else _by_columns
    return convolve_patches(w, windows(x, w.shape[3:], strides, kernel_dilation, out), shape)


def _by_channel(w: Array, patches: Array, shape: tuple[int, ...]) -> Array:
    """Convolve one channel per group: one product per kernel element, for some groups at once."""
    result = np.empty(shape, w.dtype)
    count = max(1, _COLUMN_BYTES // (math.prod(shape[1:]) * w.itemsize))
    product = np.empty((min(count, shape[0]), *shape[1:]), w.dtype)
    to_right = (..., *(None,) * (len(shape) - 3))
    positions = list(itertools.product(*map(range, w.shape[3:])))
    for first in range(0, shape[0], count):
        groups = slice(first, first + count)
        sums = result[groups]
        for number, position in enumerate(positions):
            factor = w[(groups, None, slice(None), 0, *position)][to_right]
            patch = np.multiply(factor, _at(patches[groups], *position), out=product[: len(sums)] if number else sums)
            if number:
                sums += patch
    return result


def _by_columns(w: Array, patches: Array, shape: tuple[int, ...]) -> Array:
    """Multiply the weights by the patches as columns (im2col), some output rows at a time."""
    groups, batch, features, *out = shape
    rest = math.prod(out[1:])
    depth = math.prod(w.shape[2:])
    weights = w.reshape(groups, features, depth)
    rows = max(1, _COLUMN_BYTES // (depth * rest * w.itemsize))
    n = len(out)
    order = (0, *range(1 + n, 1 + 2 * n), *range(1, 1 + n))  # channels, kernel, positions
    result = np.empty((groups, batch, features, math.prod(out)), w.dtype)
    for group, image in itertools.product(range(groups), range(batch)):
        for first in range(0, out[0] if out else 1, rows):
            part = patches[group, image, :, first : first + rows] if out else patches[group, image]
            columns = part.transpose(order).reshape(depth, -1)
            target = result[group, image, :, first * rest : first * rest + columns.shape[1]]
            with products(columns.size * features):
                np.matmul(weights[group], columns, out=target)
    return result.reshape(shape)


def _scattered(
    x: Array,
    w: Array,
    shape: tuple[int, ...],
    padding: Pairs,
    base_dilation: Sequence[int],
    kernel_dilation: Sequence[int],
) -> Array:
    """Convolve dilated elements at stride 1: each element adds to its outputs, without products by zero."""
    result = np.zeros(shape, x.dtype)
    flat = x.reshape(*x.shape[:3], -1)
    for position in itertools.product(*map(range, w.shape[3:])):
        with products(x.shape[2] * w.shape[1] * flat.shape[3]):
            product = np.matmul(_at(w, *position)[:, None], flat)
        product = product.reshape(*shape[:3], *x.shape[3:])
        read, written = [], []
        for axis, at in enumerate(position):
            # Element i adds to output i*dilation + offset.
            dilation, offset = base_dilation[axis], padding[axis][0] - at * kernel_dilation[axis]
            first = max(0, -(offset // dilation))
            count = min(x.shape[3 + axis], -(-(shape[3 + axis] - offset) // dilation)) - first
            start = first * dilation + offset
            read.append(slice(first, first + max(count, 0)))
            written.append(slice(start, start + max(count, 0) * dilation, dilation) if count > 0 else slice(0, 0))
        _at(result, *written)[...] += _at(product, *read)
    return result


# Reductions over windows of the last axes.


def reduce_windows(
    x: Array,
    ufunc: np.ufunc,
    identity: Any,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Pairs,
    dilation: Sequence[int],
    out: Sequence[int],
) -> Array:
    """Reduce each window, one axis after the other."""
    for i, axis in enumerate(range(x.ndim - len(window), x.ndim)):
        x = np.moveaxis(x, axis, 0)
        x = _reduced_along(x, ufunc, identity, window[i], strides[i], padding[i], dilation[i], out[i])
        x = np.moveaxis(x, 0, axis)
    return x


def _reduced_along(
    x: Array,
    ufunc: np.ufunc,
    identity: Any,
    window: int,
    stride: int,
    padding: tuple[int, int],
    dilation: int,
    out: int,
) -> Array:
    """Reduce windows along the first axis."""
    if window == 1 and stride == 1 and padding == (0, 0):
        return x
    x = np.moveaxis(spread(np.moveaxis(x, 0, -1), [padding], [1], identity), -1, 0)
    result = np.empty_like(x, shape=(out, *x.shape[1:]))
    if window > out:
        for i in range(out):
            first = i * stride
            ufunc.reduce(x[first : first + dilation * (window - 1) + 1 : dilation], axis=0, out=result[i, ...])
        return result
    result[...] = identity
    for position in range(window if out else 0):
        first = position * dilation
        ufunc(result, x[first : first + (out - 1) * stride + 1 : stride], out=result)
    return result


def find_extrema(
    x: Array,
    greatest: bool,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Pairs,
    dilation: Sequence[int],
    out: Sequence[int],
) -> Array:
    """Return the flat index into the last axes of each window's extremum: the first of equals, or of NaNs.

    Padding is never selected; the index is -1 for a window of padding alone.
    """
    leading = x.ndim - len(window)
    sizes = x.shape[leading:]
    best = np.zeros((*x.shape[:leading], *out), x.dtype)
    index = np.full(best.shape, -1, np.int64)
    if not x.size or not best.size:
        return index
    beyond = np.greater if greatest else np.less
    for offsets in itertools.product(*map(range, window)):
        at = np.ix_(*_coordinates(offsets, strides, padding, dilation, out))
        inside = np.ones((1,) * len(out), np.bool_)
        position = np.zeros((1,) * len(out), np.int64)
        for coordinate, size in zip(at, sizes, strict=True):
            inside = inside & (coordinate >= 0) & (coordinate < size)
            position = position * size + coordinate
        value = _at(x, *(np.clip(c, 0, size - 1) for c, size in zip(at, sizes, strict=True)))
        better = inside & ((index < 0) | beyond(value, best) | ((value != value) & (best == best)))
        np.copyto(best, value, where=better)
        np.copyto(index, position, where=better)
    return index


def _coordinates(
    position: Sequence[int], strides: Sequence[int], padding: Pairs, dilation: Sequence[int], out: Sequence[int]
) -> list[Array]:
    """Return along every axis each window's coordinate of the window element ``position``."""
    return [
        np.arange(count) * stride - low + at * step
        for at, stride, (low, _), step, count in zip(position, strides, padding, dilation, out, strict=True)
    ]
