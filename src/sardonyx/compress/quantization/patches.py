"""The rows of a site's input, as the matrix that is multiplied by the weight."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from sardonyx.compress.quantization.placement import WeightSite
from sardonyx.rewrite.analysis import facts


@dataclass(frozen=True)
class Patches:
    """The rows of a site's input: patches of a convolution, or the last axis of a product.

    Attributes:
        groups: The groups.
        depth: The elements of a row.
        channel_axis: The axis of channels of the input.
        kernel: The sizes of the kernel; None for rows of the last axis, empty for pixels of axis 1.
        strides, dilations: Of the convolution.
        pads: Begins and ends, or the value of ``auto_pad``.
    """

    groups: int
    depth: int
    channel_axis: int
    kernel: tuple[int, ...] | None = None
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    pads: tuple[int, ...] | str = ()

    @classmethod
    def of(cls, site: WeightSite) -> Patches:
        """Return the rows of a site."""
        shape = site.shape
        if site.node.op_type == "Conv":
            spatial = len(shape) - 2
            ones = (1,) * spatial
            pads: Any = str(facts.attribute(site.node, "auto_pad", 11, "NOTSET"))
            if pads == "NOTSET":
                pads = tuple(facts.attribute(site.node, "pads", 11, (0,) * (2 * spatial)))
            strides, dilations = (
                tuple(facts.attribute(site.node, name, 11, ones)) for name in ("strides", "dilations")
            )
            kernel = tuple(shape[2:])
            if kernel == strides == ones and (pads in ("SAME_UPPER", "SAME_LOWER", "VALID") or not any(pads)):
                kernel = strides = dilations = pads = ()  # A row is a pixel, which needs no windows.
            return cls(site.groups, math.prod(shape[1:]), 1, kernel, strides, dilations, pads)
        if site.node.op_type == "ConvTranspose":
            return cls(site.groups, shape[0] // site.groups, 1, ())
        assert site.sum_axis is not None
        return cls(1, shape[site.sum_axis], -1)

    @property
    def channels(self) -> np.ndarray:
        """The channel of each element of a row, of shape [groups, depth]."""
        elements = np.arange(self.groups * self.depth) // math.prod(self.kernel or ())
        return elements.reshape(self.groups, self.depth)

    @property
    def moment_bytes(self) -> int:
        """The bytes of the second moments in float32."""
        return self.groups * self.depth * self.depth * 4

    def rows(self, values: np.ndarray, most: int, generator: np.random.Generator) -> tuple[np.ndarray, int]:
        """Return at most `most` rows of a sample, of shape [groups, rows, depth], and the number of all rows."""
        values = values.astype(np.float32, copy=False)
        if not self.kernel:
            matrix = np.moveaxis(values, self.channel_axis, -1).reshape(-1, self.groups, self.depth)
            total = len(matrix)
            if total > most:
                matrix = matrix[np.sort(generator.choice(total, most, replace=False))]
            return np.ascontiguousarray(matrix.transpose(1, 0, 2)), total
        windows = self._windows(values)
        batch, positions = windows.shape[0], windows.shape[2 : 2 + len(self.kernel)]
        total = batch * math.prod(positions)
        chosen = np.arange(total) if total <= most else np.sort(generator.choice(total, most, replace=False))
        index = np.unravel_index(chosen, (batch, *positions))
        chosen_index: tuple[Any, ...] = (index[0], slice(None), *index[1:])
        patches = windows[chosen_index]  # [rows, channels, *kernel]
        grouped = patches.reshape(len(chosen), self.groups, self.depth)
        return np.ascontiguousarray(grouped.transpose(1, 0, 2)), total

    def sums(self, values: np.ndarray) -> tuple[np.ndarray, int]:
        """Return the sum of all rows of a sample, of shape [groups, depth], and the number of rows."""
        if not self.kernel:
            axis = self.channel_axis % values.ndim
            rest = tuple(other for other in range(values.ndim) if other != axis)
            sums = values.sum(rest, dtype=np.float64).reshape(self.groups, self.depth)
            return sums, values.size // max(values.shape[axis], 1)
        widths, positions = self._extent(values.shape[2:])
        part = values.sum(0, dtype=np.float64)  # [channels, *spatial], then *kernel axis by axis.
        for axis, (size, step, dilation) in enumerate(zip(self.kernel, self.strides, self.dilations, strict=True), 1):
            starts = [tap * dilation - widths[axis - 1][0] for tap in range(size)]
            part = _sums_of_ranges(part, axis, starts, step, positions[axis - 1])
        return part.reshape(self.groups, self.depth), len(values) * math.prod(positions)

    def _extent(self, spatial: Sequence[int]) -> tuple[list[tuple[int, int]], list[int]]:
        """Return the widths of both borders, and the number of positions, of each spatial axis."""
        assert self.kernel is not None
        reach = [(size - 1) * step + 1 for size, step in zip(self.kernel, self.dilations, strict=True)]
        widths = list(zip(*self._padding(spatial, reach), strict=True))
        positions = [
            max((size + sum(width) - r) // step + 1, 0)
            for size, width, r, step in zip(spatial, widths, reach, self.strides, strict=True)
        ]
        return widths, positions

    def _windows(self, values: np.ndarray) -> np.ndarray:
        """Return a view of patches, of shape [batch, channels, *positions, *kernel]."""
        assert self.kernel is not None
        widths, positions = self._extent(values.shape[2:])
        is_padded = any(map(any, widths))
        padded = _padded(values, widths) if is_padded else np.ascontiguousarray(values)
        strides = padded.strides
        steps = [stride * step for stride, step in zip(strides[2:], self.strides, strict=True)]
        taps = [stride * step for stride, step in zip(strides[2:], self.dilations, strict=True)]
        return as_strided(
            padded, (*padded.shape[:2], *positions, *self.kernel), (*strides[:2], *steps, *taps), writeable=False
        )

    def _padding(self, spatial: Sequence[int], reach: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        if not isinstance(self.pads, str):
            half = len(spatial)
            return self.pads[:half], self.pads[half:]
        if self.pads == "VALID":
            return (0,) * len(spatial), (0,) * len(spatial)
        needed = [
            max((-(-size // step) - 1) * step + r - size, 0)
            for size, r, step in zip(spatial, reach, self.strides, strict=True)
        ]
        small, large = [n // 2 for n in needed], [n - n // 2 for n in needed]
        return (small, large) if self.pads == "SAME_UPPER" else (large, small)


def _padded(values: np.ndarray, widths: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return an image with borders of zeros: ``numpy.pad`` fills each border of each axis by a call of its own."""
    sizes = [size + sum(width) for size, width in zip(values.shape[2:], widths, strict=True)]
    result = np.zeros((*values.shape[:2], *sizes), values.dtype)
    inner = (slice(first, first + size) for (first, _), size in zip(widths, values.shape[2:], strict=True))
    result[(slice(None), slice(None), *inner)] = values
    return result


def _sums_of_ranges(values: np.ndarray, axis: int, starts: Sequence[int], step: int, count: int) -> np.ndarray:
    """Return sums along an axis over `count` indices from each start, in place of the axis; zeros are outside."""
    size = values.shape[axis]
    every = (slice(None),) * axis
    # Ranges of unit step hold nearly all indices: one sum and a few differences are less work than a sum for each.
    total = values.sum(axis) if step == 1 and len(starts) > 1 else None
    results = []
    for start in starts:
        first = start if start >= 0 else start % step
        end = min(start + count * step, size)
        if total is not None:
            outside = values[(*every, slice(0, first))].sum(axis) + values[(*every, slice(max(end, first), size))].sum(
                axis
            )
            results.append(total - outside)
        else:
            results.append(values[(*every, slice(first, max(end, first), step))].sum(axis))
    return np.stack(results, axis)
