"""Rounding by second-order information: errors of a column are compensated by the columns that follow.

Source: Frantar et al., GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers, 2023. The
sweeps of :func:`descend` change single integers, and scales, while the error of the products decreases.
"""

from __future__ import annotations

import numpy as np

from sardonyx.compress.quantization.methods.grids import Grid, hessian_error, require_hessian
from sardonyx.errors import OptionError

_PANEL = 128
"""Columns whose errors are compensated at once."""

_DAMPING = 0.01
"""Share of the mean diagonal that is added to the diagonal."""

_MOST_DAMPINGS = 12
"""Dampings, each ten times the one before, after which a matrix has no factor."""


def gptq(rows: np.ndarray, hessian: np.ndarray, grid: Grid, *, by_activation: bool = True) -> np.ndarray:
    """Return the integers of weights, [rows, k] as float32; the error of each row is at most that of the nearest.

    Args:
        rows: The weights, [rows, k].
        hessian: The sum or mean of ``x x^T`` over the inputs, [k, k].
        grid: The scales and limits.
        by_activation: If True, columns with large inputs are rounded first.

    Raises:
        OptionError: The Hessian does not fit the weights, or an element is not finite.
    """
    require_hessian(rows, hessian)
    rows = rows.astype(np.float32, copy=False)
    grid = grid.expanded(rows.shape)
    nearest = grid.nearest(rows)
    k = rows.shape[1]
    diagonal = np.diag(hessian)
    if not k or not len(rows) or not np.trace(hessian) > 0:
        return nearest
    order = np.argsort(-diagonal, kind="stable") if by_activation else np.arange(k)
    factor = _inverse_factor(np.asarray(hessian, np.float64)[np.ix_(order, order)])
    if factor is None:
        return nearest
    integers = np.empty_like(nearest)
    integers[:, order] = _compensated(rows[:, order], factor, grid.columns(order))
    wide = hessian.astype(np.float32, copy=False)
    better = hessian_error(rows - grid.values(integers), wide) < hessian_error(rows - grid.values(nearest), wide)
    return np.where(better[:, None], integers, nearest)


def _inverse_factor(hessian: np.ndarray) -> np.ndarray | None:
    """Return the upper Cholesky factor of the inverse of a damped Hessian, in float32; None if no damping helps."""
    k = len(hessian)
    mean = float(np.trace(hessian)) / k
    for number in range(_MOST_DAMPINGS):
        damped = hessian + _DAMPING * 10.0**number * mean * np.eye(k)
        try:
            # With reversed order, the factor of the inverse is the inverse of a factor: one triangular solve.
            lower = np.linalg.cholesky(damped[::-1, ::-1])
        except np.linalg.LinAlgError:
            continue
        return np.ascontiguousarray(_inverse_of_lower(lower)[::-1, ::-1], np.float32)
    return None


def _inverse_of_lower(lower: np.ndarray) -> np.ndarray:
    """Return the inverse of a lower triangular matrix, by blocks."""
    k = len(lower)
    if k <= 64:
        return np.tril(np.linalg.inv(lower))
    half = k // 2
    result = np.zeros_like(lower)
    result[:half, :half] = _inverse_of_lower(lower[:half, :half])
    result[half:, half:] = _inverse_of_lower(lower[half:, half:])
    result[half:, :half] = -result[half:, half:] @ (lower[half:, :half] @ result[:half, :half])
    return result


def _compensated(rows: np.ndarray, factor: np.ndarray, grid: Grid) -> np.ndarray:
    rest = np.ascontiguousarray(rows.T)
    scales, zeros = np.ascontiguousarray(grid.scales.T), np.ascontiguousarray(grid.zeros.T)
    integers = np.empty_like(rest)
    for first in range(0, len(rest), _PANEL):
        last = min(first + _PANEL, len(rest))
        errors = np.empty_like(rest[first:last])
        for column in range(first, last):
            weight = rest[column]
            quantized = np.clip(np.rint(weight / scales[column]) + zeros[column], grid.lowest, grid.highest)
            integers[column] = quantized
            error = (weight - (quantized - zeros[column]) * scales[column]) / factor[column, column]
            errors[column - first] = error
            rest[column + 1 : last] -= factor[column, column + 1 : last, None] * error
        rest[last:] -= factor[first:last, last:].T @ errors
    return integers.T


def descend(
    rows: np.ndarray, hessian: np.ndarray, grid: Grid, integers: np.ndarray, *, sweeps: int = 2,
    target: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Return integers whose products have at most the error of these: sweeps of coordinate descent, one column a step.

    Args:
        rows: The weights, [rows, k].
        hessian: The sum or mean of ``x x^T`` over the inputs, [k, k].
        grid: The scales and limits.
        integers: The integers to begin with, [rows, k].
        sweeps: The most sweeps over all columns; the descent ends when nothing changes.
        target: The sum or mean of ``y x^T``, [rows, k], of the products ``y`` to reach, if they are not ``rows @ x``.
    """
    require_hessian(rows, hessian)
    grid = grid.expanded(rows.shape)
    hessian = hessian.astype(np.float32, copy=False)
    integers = integers.astype(np.float32)
    gradient = (rows @ hessian if target is None else target.astype(np.float32)) - grid.values(integers) @ hessian
    gradient, moved = np.ascontiguousarray(gradient.T), np.ascontiguousarray(integers.T)
    scales = np.ascontiguousarray(grid.scales.T)
    diagonal = np.diag(hessian)
    k = len(hessian)
    for _ in range(sweeps):
        changed = False
        for first in range(0, k, _PANEL):
            last = min(first + _PANEL, k)
            steps = np.zeros((last - first, len(rows)), np.float32)
            for column in np.flatnonzero(diagonal[first:last] > 0) + first:
                scale = scales[column]
                ideal = moved[column] + gradient[column] / (diagonal[column] * scale)
                rounded = np.clip(np.rint(ideal), grid.lowest, grid.highest)
                step = (rounded - moved[column]) * scale
                if step.any():
                    changed = True
                    moved[column] = rounded
                    steps[column - first] = step
                    gradient[first:last] -= hessian[first:last, column, None] * step
            outside = np.r_[0:first, last:k]
            gradient[outside] -= hessian[outside, first:last] @ steps
        if not changed:
            break
    return np.ascontiguousarray(moved.T)


def refit_scales(
    rows: np.ndarray, hessian: np.ndarray, grid: Grid, integers: np.ndarray, block: int, *,
    target: np.ndarray | None = None,
) -> Grid:  # fmt: skip
    """Return the grid with the scales of the least error of the products, block by block, for fixed integers.

    Args:
        rows: The weights, [rows, k].
        hessian: The sum or mean of ``x x^T`` over the inputs, [k, k].
        grid: The scales and limits; elements of a block have one scale.
        integers: The integers, [rows, k].
        block: Elements of a row with one scale.
        target: See :func:`descend`.
    """
    require_hessian(rows, hessian)
    hessian = hessian.astype(np.float32, copy=False)
    scales = np.array(np.broadcast_to(grid.scales, rows.shape), np.float32)
    centred = integers - np.broadcast_to(grid.zeros, rows.shape)
    gradient = (rows @ hessian if target is None else target.astype(np.float32)) - (centred * scales) @ hessian
    for first in range(0, rows.shape[1], block):
        part = slice(first, min(first + block, rows.shape[1]))
        levels = centred[:, part]
        curvature = np.einsum("rk,rk->r", levels @ hessian[part, part], levels)
        slope = np.einsum("rk,rk->r", gradient[:, part], levels)
        old = scales[:, first]
        new = np.where(curvature > 0, old + slope / np.where(curvature > 0, curvature, 1), old)
        new = np.where((new > old * 0.5) & (new < old * 2), new, old).astype(np.float32)
        scales[:, part] = new[:, None]
        gradient -= (levels * (new - old)[:, None]) @ hessian[part]
    return Grid(scales, np.broadcast_to(grid.zeros, rows.shape), grid.lowest, grid.highest)


def descend_groups(
    rows: np.ndarray, hessians: np.ndarray, grid: Grid, *, sweeps: int = 3
) -> np.ndarray:  # fmt: skip
    """Return the integers of many small matrices by coordinate descent from the nearest ones, all matrices at once.

    Args:
        rows: The weights, [groups, rows, k].
        hessians: The mean of ``x x^T`` over the inputs of each group, [groups, k, k].
        grid: The scales and zeros, of the shape of the weights.
        sweeps: The sweeps over all columns.

    Raises:
        OptionError: A Hessian or a weight is not finite.
    """
    if not (np.isfinite(hessians).all() and np.isfinite(rows).all()):
        raise OptionError("expected finite weights and Hessians.", where="hessians")
    integers = grid.nearest(rows)
    gradient = (rows - grid.values(integers)) @ hessians
    diagonal = np.diagonal(hessians, axis1=1, axis2=2)
    for _ in range(sweeps):
        for column in range(rows.shape[2]):
            curvature = diagonal[:, column, None]
            scales, old = grid.scales[:, :, column], integers[:, :, column]
            ideal = old + gradient[:, :, column] / (np.where(curvature > 0, curvature, 1) * scales)
            new = np.where(curvature > 0, np.clip(np.rint(ideal), grid.lowest, grid.highest), old)
            gradient -= ((new - old) * scales)[:, :, None] * hessians[:, None, column]
            integers[:, :, column] = new
    return integers
