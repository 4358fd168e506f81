"""Palettes: the values that a weight's elements share, by weighted k-means in one dimension."""

from __future__ import annotations

import numpy as np

_ROUNDS = 40
_BINS = 8192
"""Bins of elements: the palette is that of the bins' means, so that time does not grow with the weight."""


def palette_of(values: np.ndarray, weights: np.ndarray, count: int) -> np.ndarray:
    """Return at most `count` values, ascending float32, of a small weighted squared distance to the elements.

    Args:
        values: The elements, of shape [n].
        weights: The weight of each, of shape [n], at least 0; equal weights count if all are 0, or one is not finite.
        count: The number of values.
    """
    low, high = float(values.min()), float(values.max())
    if low == high:
        return np.array([low], np.float32)
    with np.errstate(over="ignore"):
        total = float(weights.sum())
    if not (total > 0 and np.isfinite(total)):
        weights = np.ones(weights.shape)
    bins = np.minimum(((values - low) * (_BINS / (high - low))).astype(np.int64), _BINS - 1)
    mass = np.bincount(bins, weights, _BINS)
    sums = np.bincount(bins, weights * values, _BINS)
    used = mass > 0
    points, mass, sums = sums[used] / mass[used], mass[used], sums[used]
    if len(points) <= count:
        return np.sort(points).astype(np.float32)
    # Quantiles of the cube root of the density, and equal steps: the descent ends at different palettes.
    density = np.cumsum(np.cbrt(mass))
    shares = (np.arange(count) + 0.5) / count
    starts = (np.interp(shares * density[-1], density, points), np.linspace(points[0], points[-1], count))
    ends = [_descended(start, points, mass, sums) for start in starts]
    best = min(ends, key=lambda centres: float(np.sum(mass * np.square(points - centres[_owners(points, centres)]))))
    return np.unique(best.astype(np.float32))


def _owners(points: np.ndarray, centres: np.ndarray) -> np.ndarray:
    return np.searchsorted((centres[1:] + centres[:-1]) / 2, points)


def _descended(centres: np.ndarray, points: np.ndarray, mass: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Return the centres after rounds of k-means."""
    count = len(centres)
    for _ in range(_ROUNDS):
        owners = _owners(points, centres)
        total = np.bincount(owners, mass, count)
        moved = np.where(total > 0, np.bincount(owners, sums, count) / np.where(total > 0, total, 1), centres)
        if np.array_equal(moved, centres):
            break
        centres = np.sort(moved)
    return centres


def nearest(values: np.ndarray, palette: np.ndarray) -> np.ndarray:
    """Return the index of the nearest value of an ascending palette for each element, uint8 of the elements' shape."""
    return np.searchsorted((palette[1:] + palette[:-1]) / 2, values).astype(np.uint8)
