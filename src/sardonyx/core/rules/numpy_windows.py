"""Windows that move over arrays: convolutions and reductions, by numpy, in bounded memory.

Knows arrays only; element types are the caller's to widen and to round.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray
Pairs = Sequence[tuple[int, int]]

_COLUMN_BYTES = 1 << 24
"""Most bytes of patches that a convolution lays out at a time, but for one row of places: what caches may hold."""


def spread(x: Array, padding: Pairs, base_dilation: Sequence[int], value: Any) -> Array:
    """The trailing axes dilated, then padded or cropped."""
    kept = x.ndim - len(padding)
    for axis, dilation in enumerate(base_dilation, kept):
        if dilation > 1 and x.shape[axis]:
            shape = list(x.shape)
            shape[axis] = (shape[axis] - 1) * dilation + 1
            dilated = np.full(shape, value, x.dtype)
            dilated[(slice(None),) * axis + (slice(None, None, dilation),)] = x
            x = dilated
    widths = [(0, 0)] * kept + [(max(low, 0), max(high, 0)) for low, high in padding]
    if any(any(pair) for pair in widths):
        x = np.pad(x, widths, constant_values=value)
    cropped = [
        slice(max(-low, 0), size - max(-high, 0)) for (low, high), size in zip(padding, x.shape[kept:], strict=True)
    ]
    return _at(x, *cropped)


def _at(x: Array, *index: Any) -> Array:
    """By indices of the last axes."""
    found: Array = x[(..., *index)]
    return found


def windows(
    x: Array, window: Sequence[int], strides: Sequence[int], dilation: Sequence[int], out: Sequence[int]
) -> Array:
    """A view of all windows over the trailing axes: [leading…, out…, window…]."""
    kept = x.ndim - len(window)
    steps = x.strides[kept:]
    return np.lib.stride_tricks.as_strided(
        x,
        (*x.shape[:kept], *out, *window),
        (*x.strides[:kept], *map(operator.mul, steps, strides), *map(operator.mul, steps, dilation)),
        writeable=False,
    )


# Convolutions: [G, N, C, *spatial] with [G, M, C, *kernel] to [G, N, M, *out].


def convolved(
    x: Array,
    w: Array,
    out: Sequence[int],
    strides: Sequence[int],
    padding: Pairs,
    base_dilation: Sequence[int],
    kernel_dilation: Sequence[int],
) -> Array:
    """The convolution, computed in the element type of the operands."""
    shape = (*x.shape[:2], w.shape[1], *out)
    if 0 in shape or not x.size or not w.size:
        return np.zeros(shape, x.dtype)
    if max(base_dilation, default=1) > 1 and max(strides) == 1:
        return _scattered(x, w, shape, padding, base_dilation, kernel_dilation)
    x = spread(x, padding, base_dilation, 0)
    by_place = _by_channel if w.shape[2] == 1 else _by_columns
    return by_place(w, windows(x, w.shape[3:], strides, kernel_dilation, out), shape)


def _by_channel(w: Array, patches: Array, shape: tuple[int, ...]) -> Array:
    """Of one channel a group: as many products as places in the kernel, of all groups at once."""
    found = np.zeros(shape, w.dtype)
    product = np.empty(shape, w.dtype)
    to_right = (..., *(None,) * (len(shape) - 3))
    for place in itertools.product(*map(range, w.shape[3:])):
        factor = w[(slice(None), None, slice(None), 0, *place)][to_right]
        found += np.multiply(factor, _at(patches, *place), out=product)
    return found


def _by_columns(w: Array, patches: Array, shape: tuple[int, ...]) -> Array:
    """A matrix product of the weights with the patches as columns, some rows of places at a time."""
    groups, batch, features, *out = shape
    rest = math.prod(out[1:])
    depth = math.prod(w.shape[2:])
    weights = w.reshape(groups, features, depth)
    rows = max(1, _COLUMN_BYTES // (depth * rest * w.itemsize))
    n = len(out)
    order = (0, *range(1 + n, 1 + 2 * n), *range(1, 1 + n))  # channels, kernel, places
    found = np.empty((groups, batch, features, math.prod(out)), w.dtype)
    for group, image in itertools.product(range(groups), range(batch)):
        for first in range(0, out[0] if out else 1, rows):
            part = patches[group, image, :, first : first + rows] if out else patches[group, image]
            columns = part.transpose(order).reshape(depth, -1)
            target = found[group, image, :, first * rest : first * rest + columns.shape[1]]
            np.matmul(weights[group], columns, out=target)
    return found.reshape(shape)


def _scattered(
    x: Array,
    w: Array,
    shape: tuple[int, ...],
    padding: Pairs,
    base_dilation: Sequence[int],
    kernel_dilation: Sequence[int],
) -> Array:
    """Of dilated elements by a stride of 1: each adds to the places that it reaches, and zeros are not multiplied."""
    found = np.zeros(shape, x.dtype)
    flat = x.reshape(*x.shape[:3], -1)
    for place in itertools.product(*map(range, w.shape[3:])):
        product = np.matmul(_at(w, *place)[:, None], flat).reshape(*shape[:3], *x.shape[3:])
        read, written = [], []
        for axis, at in enumerate(place):
            # Element i adds to place i*dilation + offset.
            dilation, offset = base_dilation[axis], padding[axis][0] - at * kernel_dilation[axis]
            first = max(0, -(offset // dilation))
            count = min(x.shape[3 + axis], -(-(shape[3 + axis] - offset) // dilation)) - first
            start = first * dilation + offset
            read.append(slice(first, first + max(count, 0)))
            written.append(slice(start, start + max(count, 0) * dilation, dilation) if count > 0 else slice(0, 0))
        _at(found, *written)[...] += _at(product, *read)
    return found


# Reductions over windows of the last axes.


def reduced(
    x: Array,
    ufunc: np.ufunc,
    identity: Any,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Pairs,
    dilation: Sequence[int],
    out: Sequence[int],
) -> Array:
    """Each window reduced: a box is reduced one axis after the other."""
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
    """Windows along the first axis."""
    if window == 1 and stride == 1 and padding == (0, 0):
        return x
    x = np.moveaxis(spread(np.moveaxis(x, 0, -1), [padding], [1], identity), -1, 0)
    found = np.empty_like(x, shape=(out, *x.shape[1:]))
    if window > out:
        for i in range(out):
            first = i * stride
            ufunc.reduce(x[first : first + dilation * (window - 1) + 1 : dilation], axis=0, out=found[i, ...])
        return found
    found[...] = identity
    for place in range(window if out else 0):
        first = place * dilation
        ufunc(found, x[first : first + (out - 1) * stride + 1 : stride], out=found)
    return found


def chosen(
    x: Array,
    greatest: bool,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Pairs,
    dilation: Sequence[int],
    out: Sequence[int],
) -> Array:
    """The flat index into the last axes of each window's extremum: the first of equals, or of NaNs.

    Padding is never chosen; -1 where there is nothing else.
    """
    kept = x.ndim - len(window)
    sizes = x.shape[kept:]
    best = np.zeros((*x.shape[:kept], *out), x.dtype)
    index = np.full(best.shape, -1, np.int64)
    if not x.size or not best.size:
        return index
    beyond = np.greater if greatest else np.less
    for place in itertools.product(*map(range, window)):
        at = np.ix_(*_coordinates(place, strides, padding, dilation, out))
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
    place: Sequence[int], strides: Sequence[int], padding: Pairs, dilation: Sequence[int], out: Sequence[int]
) -> list[Array]:
    """Along every axis, where each window has its element at ``place``."""
    return [
        np.arange(count) * stride - low + at * step
        for at, stride, (low, _), step, count in zip(place, strides, padding, dilation, out, strict=True)
    ]
