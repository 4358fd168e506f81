"""Scales of blocks by weighted least squares, and by a robust norm (half-quadratic splitting).

Sources: Gerganov et al., llama.cpp, K-quants: weights of squared activations; Badri and Shaji, Half-Quadratic
Quantization of Large Machine Learning Models, 2023.
"""

from __future__ import annotations

import numpy as np

from sardonyx.compress.quantization.methods.grids import Grid
from sardonyx.errors import OptionError

_SHARES = np.linspace(1.05, 0.55, 21)
"""Shares of the whole span of a block that are tried as the span of the integers."""

_TINY = np.finfo(np.float32).tiny


def fit_scales(
    blocks: np.ndarray, levels: tuple[int, int], *, symmetric: bool, importance: np.ndarray | None = None,
    refinements: int = 2,
) -> Grid:  # fmt: skip
    """Return the scale and zero point of each block with the least weighted squared error that the search reaches.

    Args:
        blocks: Weights with a common scale, [blocks, elements].
        levels: The least and the greatest integer.
        symmetric: If True, the integer of 0 is 0.
        importance: Weights of squared errors, of a shape that broadcasts to the blocks'; None for equal ones.
        refinements: Alternations of scales by least squares and integers by rounding, from each start.

    Raises:
        OptionError: A weight is not finite, or an importance is negative or not finite.
    """
    blocks, importance = _checked(blocks, importance)
    lowest, highest = levels
    low, high = blocks.min(1, initial=0), blocks.max(1, initial=0)
    if symmetric:
        high = np.maximum(high, -low)
        low = -high
    steps = highest if symmetric else highest - lowest
    unit = np.maximum(np.maximum(high, -low), _TINY)
    # In units of the largest magnitude of a block, so that no square overflows or vanishes.
    scaled, low, high = blocks / unit[:, None], low / unit, high / unit
    span = np.maximum((high if symmetric else high - low) / np.float32(max(steps, 1)), np.float32(1e-7))
    best, zeros = span, np.zeros(len(blocks), np.float32)
    least = np.full(len(blocks), np.inf, np.float32)
    fit = _Fit(scaled, importance, lowest, highest)
    for share in _SHARES:
        scales = span * np.float32(share)
        offsets = (
            np.zeros_like(scales) if symmetric else np.clip(np.rint(lowest - low * share / scales), lowest, highest)
        )
        _, fitted, errors = fit.fitted(scales, offsets)
        better = errors < least
        best, zeros = np.where(better, fitted, best), np.where(better, offsets, zeros)
        least = np.where(better, errors, least)
    scales = best
    for _ in range(refinements):
        errors, fitted, _ = fit.fitted(scales, zeros)
        better = errors <= least
        best, least = np.where(better, scales, best), np.where(better, errors, least)
        scales = fitted
    scales = np.maximum(best * unit, _TINY).astype(np.float32)
    return Grid(scales[:, None], zeros[:, None], lowest, highest)


class _Fit:
    """The errors of blocks at some scales, in memory that all scales share.

    Args:
        blocks: Weights with a common scale, [blocks, elements].
        importance: Weights of squared errors, of a shape that broadcasts to the blocks'.
        lowest: The least integer.
        highest: The greatest integer.
    """

    def __init__(self, blocks: np.ndarray, importance: np.ndarray, lowest: int, highest: int) -> None:
        self._blocks, self._limits = blocks, (np.float32(lowest), np.float32(highest))
        self._importance = importance if importance.size > 1 else None
        self._centred, self._errors, self._weighted = (np.empty_like(blocks) for _ in range(3))

    def fitted(self, scales: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the weighted squared error of each block with the nearest integers, the scale of the least error
        with these integers, and its error.
        """
        centred, errors = self._centred, self._errors
        np.divide(self._blocks, scales[:, None], out=centred)
        np.rint(centred, out=centred)
        np.maximum(centred, (self._limits[0] - offsets)[:, None], out=centred)
        np.minimum(centred, (self._limits[1] - offsets)[:, None], out=centred)
        np.multiply(centred, scales[:, None], out=errors)
        np.subtract(errors, self._blocks, out=errors)
        squares, slope = self._sums(errors, errors), self._sums(errors, centred)
        curvature = self._sums(centred, centred)
        step = slope / np.where(curvature > 0, curvature, 1)
        # The square of the step loses no digits, where the difference of two sums would.
        step = np.clip(step, scales * np.float32(-1), scales * np.float32(0.5))
        return squares, (scales - step).astype(np.float32), squares - step * (2 * slope - step * curvature)

    def _sums(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return the weighted sums of products of each block."""
        if self._importance is None:
            return np.asarray(np.einsum("bk,bk->b", first, second))
        np.multiply(first, self._importance, out=self._weighted)
        return np.asarray(np.einsum("bk,bk->b", self._weighted, second))


def fit_half_quadratic(
    blocks: np.ndarray, levels: tuple[int, int], *, symmetric: bool, norm: float = 0.7, steps: int = 20
) -> Grid:
    """Return the scales and zero points of the least sum of ``|error| ** norm``, without data.

    A norm below 1 tolerates a few large errors for many small ones. The result of a block is the best of the start, by
    the largest magnitude, and all steps.

    Args:
        blocks: Weights with a common scale, [blocks, elements].
        levels: The least and the greatest integer.
        symmetric: If True, the integer of 0 is 0.
        norm: The exponent, above 0 and at most 1.
        steps: Alternations of shrinkage and fit.

    Raises:
        OptionError: A weight is not finite, or the norm is outside its range.
    """
    if not 0 < norm <= 1:
        raise OptionError(f"expected a norm above 0 and at most 1, got {norm}.", where="norm")
    blocks, ones = _checked(blocks, None)
    lowest, highest = levels
    low, high = blocks.min(1, initial=0), blocks.max(1, initial=0)
    if symmetric:
        high = np.maximum(high, -low)
    unit = np.maximum(np.maximum(high, -low), _TINY)
    scaled = blocks / unit[:, None]
    width = high if symmetric else high - low
    scales = np.maximum(width / unit / np.float32(max(highest if symmetric else highest - lowest, 1)), np.float32(1e-7))
    zeros = np.zeros_like(scales) if symmetric else np.clip(np.rint(lowest - low / unit / scales), lowest, highest)
    best, best_zeros = scales, zeros
    least = np.full(len(blocks), np.inf, np.float32)
    beta = 10.0 / np.maximum(np.abs(scaled).mean(1), 1e-6)[:, None]
    for step in range(steps + 1):
        grid = Grid(scales[:, None], zeros[:, None], lowest, highest)
        integers = grid.nearest(scaled)
        errors = scaled - grid.values(integers)
        loss = (np.abs(errors) ** np.float32(norm)).sum(1)
        better = loss < least
        best, best_zeros = np.where(better, scales, best), np.where(better, zeros, best_zeros)
        least = np.where(better, loss, least)
        magnitude = np.abs(errors)
        shrunk = np.sign(errors) * np.maximum(
            magnitude - np.maximum(magnitude, np.float32(1e-8)) ** np.float32(norm - 1) * norm / beta, 0
        )
        ideal = scaled - shrunk
        scales = _least_squares_scales(ideal, integers - zeros[:, None], ones, scales)
        if not symmetric and step % 2:
            zeros = np.clip(np.rint((integers - ideal / scales[:, None]).mean(1)), lowest, highest)
        beta = beta * np.float32(1.05)
    return Grid(np.maximum(best * unit, _TINY).astype(np.float32)[:, None], best_zeros[:, None], lowest, highest)


def _checked(blocks: np.ndarray, importance: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    blocks = blocks.astype(np.float32, copy=False)
    if blocks.ndim != 2 or not np.isfinite(blocks).all():
        raise OptionError(f"expected finite weights [blocks, elements], got {list(blocks.shape)}.", where="weights")
    if importance is None:
        return blocks, np.ones((1, 1), np.float32)
    importance = np.asarray(importance, np.float64)
    if not np.isfinite(importance).all() or (importance < 0).any():
        raise OptionError("expected finite importances of at least 0.", where="importance")
    # A small constant keeps the error of elements without importance, whose input may be 0 by chance.
    mean = float(importance.mean()) if importance.size else 0.0
    return blocks, ((importance / mean + 1e-3) if mean > 0 else np.ones_like(importance)).astype(np.float32)


def _least_squares_scales(
    ideal: np.ndarray, centred: np.ndarray, importance: np.ndarray, scales: np.ndarray
) -> np.ndarray:
    above, below = (importance * ideal * centred).sum(1), (importance * centred * centred).sum(1)
    fitted = np.where((below > 0) & (above > 0), above / np.where(below > 0, below, 1), scales)
    return np.clip(fitted, scales * np.float32(0.5), scales * np.float32(2)).astype(np.float32)
