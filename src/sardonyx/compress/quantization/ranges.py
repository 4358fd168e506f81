"""Statistics of activations over a stream of samples, and the ranges that follow from the statistics.

Memory does not grow with the number of samples: a tensor has its extremes, the running means of the samples' extremes,
the mean of each channel, and a histogram whose bins double in width when a value falls outside.
"""

from __future__ import annotations

import math

import numpy as np

from sardonyx.errors import OptionError

METHODS = ("minmax", "moving-average", "percentile", "mse", "entropy")
"""Ways to choose a range from the statistics of a tensor."""

_BINS = 2048
_MOMENTUM = 0.1
_PERCENTILE = 99.99
_SHRINKS = np.linspace(0.3, 1.0, 36)
"""Shares of the extremes that ``mse`` and ``entropy`` try."""


class Statistics:
    """Statistics of one tensor.

    Attributes:
        count: The number of samples.
        low: The least value.
        high: The greatest value.
    """

    def __init__(self) -> None:
        self.count = 0
        self.low, self.high = math.inf, -math.inf
        self._mean_low, self._mean_high = 0.0, 0.0
        self._width, self._first = 0.0, 0
        self._bins = np.zeros(0, np.int64)
        self._sums: np.ndarray | None = None
        self._weight = 0

    def add(self, values: np.ndarray) -> None:
        """Add the elements of one sample; axis 1 is the axis of channels.

        Raises:
            ValueError: An element is not finite.
        """
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError("not finite")
        self.low, self.high = min(self.low, low), max(self.high, high)
        share = 1.0 if not self.count else _MOMENTUM
        self._mean_low += share * (low - self._mean_low)
        self._mean_high += share * (high - self._mean_high)
        self.count += 1
        self._add_to_bins(values.astype(np.float32, copy=False).ravel(), low, high)
        self._add_to_means(values)

    def _add_to_bins(self, values: np.ndarray, low: float, high: float) -> None:
        if not self._width:
            self._width = max(max(abs(low), abs(high)) / (_BINS // 2), 1e-30)
            self._first = math.floor(low / self._width)
        while max(high, self.high) - min(low, self.low) > self._width * 2 * _BINS:
            if self._first % 2:
                self._first -= 1
                self._bins = np.concatenate([[0], self._bins])
            if len(self._bins) % 2:
                self._bins = np.concatenate([self._bins, [0]])
            self._bins = self._bins.reshape(-1, 2).sum(1)
            self._first //= 2
            self._width *= 2
        index = np.floor(values / np.float32(self._width)).astype(np.int64)
        first, last = min(self._first, int(index.min())), int(index.max())
        counts = np.bincount(index - first)
        bins = np.zeros(max(last + 1, self._first + len(self._bins)) - first, np.int64)
        bins[self._first - first : self._first - first + len(self._bins)] += self._bins
        bins[: len(counts)] += counts
        self._bins, self._first = bins, first

    def _add_to_means(self, values: np.ndarray) -> None:
        if values.ndim < 2:
            return
        axes = tuple(axis for axis in range(values.ndim) if axis != 1)
        sums = values.sum(axes, dtype=np.float64)
        if self._sums is None:
            self._sums = np.zeros_like(sums)
        if self._sums.shape == sums.shape:
            self._sums += sums
            self._weight += values.size // len(sums)

    @property
    def channel_means(self) -> np.ndarray | None:
        """The mean of each channel; None without an axis of channels."""
        return None if self._sums is None or not self._weight else self._sums / self._weight

    def interval(self, method: str) -> tuple[float, float]:
        """Return the range of a method.

        Raises:
            OptionError: Unknown method.
        """
        if method == "minmax":
            return self.low, self.high
        if method == "moving-average":
            return self._mean_low, self._mean_high
        if method == "percentile":
            return self._percentile()
        if method == "mse":
            return self._best(self._squared_error)
        if method == "entropy":
            return self._best(self._divergence)
        raise OptionError(f"expected one of {', '.join(METHODS)}, got {method!r}.", where="calibration")

    def _percentile(self) -> tuple[float, float]:
        total = np.cumsum(self._bins)
        outside = total[-1] * (1 - _PERCENTILE / 100) / 2
        low = self._first + int(np.searchsorted(total, outside, side="right"))
        high = self._first + int(np.searchsorted(total, total[-1] - outside, side="left")) + 1
        return max(low * self._width, self.low), min(high * self._width, self.high)

    def _best(self, loss: object) -> tuple[float, float]:
        candidates = [(self.low * share, self.high * share) for share in _SHRINKS]
        if self.low < 0 < self.high:
            candidates += [(self.low, self.high * share) for share in _SHRINKS]
            candidates += [(self.low * share, self.high) for share in _SHRINKS]
        assert callable(loss)
        return min(candidates, key=lambda interval: float(loss(*interval)))

    def _centres(self) -> np.ndarray:
        return (self._first + np.arange(len(self._bins)) + 0.5) * self._width

    def _rounded(self, low: float, high: float) -> np.ndarray:
        low, high = min(low, 0.0), max(high, 0.0)
        step = max((high - low) / 255, 1e-30)
        return np.clip(np.round(self._centres() / step) * step, low, high)

    def _squared_error(self, low: float, high: float) -> float:
        return float(self._bins @ (self._rounded(low, high) - self._centres()) ** 2)

    def _divergence(self, low: float, high: float) -> float:
        """Return the Kullback-Leibler divergence of the quantized distribution from the distribution."""
        rounded = self._rounded(low, high)
        _, level_of = np.unique(rounded, return_inverse=True)
        mass = np.bincount(level_of, self._bins)
        bins = np.bincount(level_of, self._bins > 0)
        expected = np.where(self._bins > 0, (mass / np.maximum(bins, 1))[level_of], 0.0)
        nonzero = self._bins > 0
        p, q = self._bins[nonzero] / self._bins.sum(), expected[nonzero] / expected.sum()
        clipped = (self._centres() < low - self._width) | (self._centres() > high + self._width)
        return float((p * np.log(p / q)).sum() + self._bins[clipped].sum() / self._bins.sum())
