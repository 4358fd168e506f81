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
    for share in _SHARES:
        scales = span * np.float32(share)
        offsets = (
            np.zeros_like(scales) if symmetric else np.clip(np.rint(lowest - low * share / scales), lowest, highest)
        )
        for _ in range(refinements + 1):
            grid = Grid(scales[:, None], offsets[:, None], lowest, highest)
            centred = grid.nearest(scaled) - offsets[:, None]
            errors = (importance * np.square(centred * scales[:, None] - scaled)).sum(1)
            better = errors < least
            best, zeros = np.where(better, scales, best), np.where(better, offsets, zeros)
            least = np.where(better, errors, least)
            scales = _least_squares_scales(scaled, centred, importance, scales)
    scales = np.maximum(best * unit, _TINY).astype(np.float32)
    return Grid(scales[:, None], zeros[:, None], lowest, highest)


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
