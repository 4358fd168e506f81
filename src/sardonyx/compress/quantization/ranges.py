"""Statistics of activations over a stream of samples, and the ranges that follow from the statistics.

Memory does not grow with the number of samples: a tensor has its extremes, the running means of the samples' extremes,
and a histogram whose bins double in width when a value falls outside. Extremes are of all elements; the histogram is of
at most ``_MOST_COUNTED`` elements of a sample, drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from sardonyx.compress.quantization.scheme import TYPES, NarrowType
from sardonyx.errors import OptionError

METHODS = ("minmax", "moving-average", "percentile", "mse", "entropy")
"""Ways to choose a range from the statistics of a tensor."""

SENTINEL = 1e8
"""Magnitudes from here stand for infinity, for example in masks."""

_BINS = 2048
_MOST_COUNTED = 1 << 16
_MOMENTUM = 0.1
_PERCENTILE = 99.99
_HEADROOM = 1.5
"""The share of the extremes that 16 bits span: unseen values are clipped at a greater cost than that of wider steps."""

_SHRINKS = np.linspace(0.3, 1.0, 36)
"""Shares of the extremes that ``mse`` and ``entropy`` try."""


class Statistics:
    """Statistics of one tensor.

    Attributes:
        count: The number of samples.
        low: The least value.
        high: The greatest value.
        has_sentinels: True if an element stands for infinity.
    """

    def __init__(self) -> None:
        self.count = 0
        self.low, self.high = math.inf, -math.inf
        self.has_sentinels = False
        self._mean_low, self._mean_high = 0.0, 0.0
        self._width, self._first = 0.0, 0
        self._bins = np.zeros(0, np.int64)
        self._zeros = 0
        self._generator = np.random.default_rng(0)

    def add(self, values: np.ndarray, samples: int = 1) -> None:
        """Add the elements of one sample, or of several along the first axis.

        Raises:
            ValueError: An element is NaN.
        """
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        if math.isnan(low) or math.isnan(high):
            raise ValueError("not a number")
        if max(-low, high) >= SENTINEL and samples > 1 and len(values) % samples == 0:
            for part in np.split(values, samples):
                self.add(part)
            return
        self.count += samples
        if max(-low, high) >= SENTINEL:
            self.has_sentinels = True
            return
        self.low, self.high = min(self.low, low), max(self.high, high)
        self._move_means(values, samples)
        flat = values.reshape(-1)
        if flat.size > _MOST_COUNTED * samples:
            flat = flat[self._generator.integers(0, flat.size, _MOST_COUNTED * samples)]
        self._zeros += flat.size - int(np.count_nonzero(flat))
        self._add_to_bins(flat.astype(np.float32, copy=False), low, high)

    def _move_means(self, values: np.ndarray, samples: int) -> None:
        """Move the running means of the extremes towards those of each sample."""
        parts = samples if samples > 1 and len(values) % samples == 0 else 1
        rows = values.reshape(parts, -1)
        for number, (low, high) in enumerate(zip(rows.min(1).tolist(), rows.max(1).tolist(), strict=True)):
            share = 1.0 if self.count == samples and number == 0 else _MOMENTUM
            self._mean_low += share * (low - self._mean_low)
            self._mean_high += share * (high - self._mean_high)

    @property
    def is_constant(self) -> bool:
        """True if all elements have one value."""
        return self.count > 0 and not self.has_sentinels and self.low == self.high

    def widen(self, low: float, high: float) -> None:
        """Let the extremes span values of other samples, which the histogram does not count."""
        self.low, self.high = min(self.low, low), max(self.high, high)

    def _add_to_bins(self, values: np.ndarray, low: float, high: float) -> None:
        if not self._width:
            self._width = max(max(abs(low), abs(high)) / (_BINS // 2), 1e-30)
            self._first = math.floor(low / self._width)
        while self.high - self.low > self._width * 2 * _BINS:
            if self._first % 2:
                self._first -= 1
                self._bins = np.concatenate([[0], self._bins])
            if len(self._bins) % 2:
                self._bins = np.concatenate([self._bins, [0]])
            self._bins = self._bins.reshape(-1, 2).sum(1)
            self._first //= 2
            self._width *= 2
        index = np.floor(values * np.float32(1 / self._width)).astype(np.int32)
        first, last = min(self._first, int(index.min())), int(index.max())
        index -= first
        counts = np.bincount(index)
        bins = np.zeros(max(last + 1, self._first + len(self._bins)) - first, np.int64)
        bins[self._first - first : self._first - first + len(self._bins)] += self._bins
        bins[: len(counts)] += counts
        self._bins, self._first = bins, first

    def interval(self, method: str, kind: NarrowType = TYPES["uint8"], symmetric: bool = False) -> tuple[float, float]:
        """Return the range of a method.

        Args:
            method: The method.
            kind: The type of the numbers that span the range.
            symmetric: If True, 0 is the middle of the numbers.

        Raises:
            OptionError: Unknown method.
        """
        if method not in METHODS:
            raise OptionError(f"expected one of {', '.join(METHODS)}, got {method!r}.", where="calibration")
        if method == "moving-average":
            return self._mean_low, self._mean_high
        if method == "percentile":
            return self._percentile()
        if method == "minmax" or kind.is_float or not self.low < self.high:
            return self.low, self.high
        if kind.bits >= 16:
            return self.low * _HEADROOM, self.high * _HEADROOM
        levels = kind.high - kind.low
        if method == "mse":
            return self._best(self._squared_errors, levels, symmetric)
        return self._best(self._divergences, levels, symmetric)

    def _percentile(self) -> tuple[float, float]:
        total = np.cumsum(self._bins)
        outside = total[-1] * (1 - _PERCENTILE / 100) / 2
        low = self._first + int(np.searchsorted(total, outside, side="right"))
        high = self._first + int(np.searchsorted(total, total[-1] - outside, side="left")) + 1
        return max(low * self._width, self.low), min(high * self._width, self.high)

    def _best(
        self, losses: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray], levels: float, symmetric: bool
    ) -> tuple[float, float]:
        ones = np.ones_like(_SHRINKS)
        low, high = _SHRINKS * self.low, _SHRINKS * self.high
        if self.low < 0 < self.high and not symmetric:
            low = np.concatenate([low, ones * self.low, _SHRINKS * self.low])
            high = np.concatenate([high, _SHRINKS * self.high, ones * self.high])
        low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
        if symmetric:
            high = np.maximum(-low, high)
            low = -high
        steps = np.maximum((high - low) / levels, 1e-30)
        best = int(np.argmin(losses(low, high, steps)))
        return float(low[best]), float(high[best])

    def _centres(self) -> np.ndarray:
        return (self._first + np.arange(len(self._bins)) + 0.5) * self._width

    def _squared_errors(self, low: np.ndarray, high: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Return the squared errors of ranges: of rounding inside, with 0 exact, and of clipping outside."""
        centres, bins = self._centres(), self._bins.astype(np.float64)
        sums = [np.concatenate([[0.0], np.cumsum(bins * centres**power)]) for power in range(3)]
        below, above = np.searchsorted(centres, low), np.searchsorted(centres, high, side="right")
        count, first, second = ([total[below], total[-1] - total[above]] for total in sums)
        clipped = [
            square - 2 * limit * mean + limit**2 * number
            for number, mean, square, limit in zip(count, first, second, (low, high), strict=True)
        ]
        inside = np.maximum(sums[0][-1] - count[0] - count[1] - self._zeros, 0.0)
        return np.asarray(steps**2 / 12 * inside + np.maximum(clipped[0], 0) + np.maximum(clipped[1], 0))

    def _divergences(self, low: np.ndarray, high: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """Return the Kullback-Leibler divergence of each quantized distribution from the distribution."""
        nonzero = np.flatnonzero(self._bins)
        centres, mass = self._centres()[nonzero], self._bins[nonzero].astype(np.float64)
        p = mass / mass.sum()
        losses = np.empty(len(low))
        for number, (least, greatest, step) in enumerate(zip(low, high, steps, strict=True)):
            level = np.rint(np.clip(centres, least, greatest) / step).astype(np.int64)
            level -= level.min()
            q = (np.bincount(level, mass) / np.maximum(np.bincount(level), 1))[level]
            clipped = (centres < least - self._width) | (centres > greatest + self._width)
            losses[number] = (p * np.log(p / (q / q.sum()))).sum() + p[clipped].sum()
        return losses
