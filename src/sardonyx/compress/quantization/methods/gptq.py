"""Rounding by second-order information: errors of a column are compensated by the columns that follow.

Source: Frantar et al., GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers, 2023; Chen
et al., The Geometry of LLM Quantization: GPTQ as Babai's Nearest Plane Algorithm, 2025, whose form needs no inverse of
the Hessian. The sweeps of :func:`descend` change single integers, and scales, while the error of the products
decreases.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sardonyx.base.blas_threads import factorizations
from sardonyx.compress.quantization.methods.grids import Grid
from sardonyx.compress.quantization.methods.objective import Objective, Rounded, halves, sweep
from sardonyx.errors import OptionError

_LEAF = 16
"""Columns that compensate each other one by one; others do by products of panels."""

_DAMPING = 0.01
"""Share of the mean diagonal that is added to the diagonal."""

_MOST_DAMPINGS = 12
"""Dampings, each ten times the one before, after which a matrix has no factor."""


def gptq(objective: Objective, start: Rounded, *, by_activation: bool = True) -> Rounded:
    """Return integers whose error is, in each row, at most that of the ones to begin with.

    Args:
        objective: The error.
        start: Integers and their grid.
        by_activation: If True, columns with large inputs are rounded first.
    """
    rows, hessian = objective.rows, objective.hessian
    diagonal = np.diag(hessian)
    if not rows.size or not np.trace(hessian) > 0:
        return start
    # The factor couples a column with those after it, and the last column is rounded first.
    order = np.argsort(-diagonal, kind="stable")[::-1] if by_activation else np.arange(len(diagonal))[::-1]
    factor = _factor(hessian.astype(np.float64)[np.ix_(order, order)])
    if factor is None:
        return start
    integers = np.empty_like(start.integers)
    integers[:, order] = _compensated(rows[:, order], factor, start.grid.columns(order))
    return objective.best(start, objective.rounded(start.grid, integers))


def _factor(hessian: np.ndarray) -> np.ndarray | None:
    """Return the lower Cholesky factor of a damped Hessian, in float32; None if no damping helps."""
    mean = float(np.trace(hessian)) / len(hessian)
    diagonal = np.diag(hessian).copy()
    for number in range(_MOST_DAMPINGS):
        np.fill_diagonal(hessian, diagonal + _DAMPING * 10.0**number * mean)
        try:
            with factorizations(len(hessian)):
                return np.linalg.cholesky(hessian).astype(np.float32)
        except np.linalg.LinAlgError:
            continue
    return None


def _compensated(rows: np.ndarray, factor: np.ndarray, grid: Grid) -> np.ndarray:
    """Return integers from the last column to the first; each compensates the errors of those after it.

    The error is the sum over columns j of ``(sum of factor[i, j] d[i] over i >= j) ** 2`` for the errors ``d``.
    """
    weights = np.ascontiguousarray(rows.T)
    rest = weights.copy()
    scales, zeros = np.ascontiguousarray(grid.scales.T), np.ascontiguousarray(grid.zeros.T)
    integers, errors = np.empty_like(rest), np.empty_like(rest)
    coupling = factor / np.diag(factor)

    def part(first: int, last: int) -> None:
        if last - first > _LEAF:
            middle = first + halves(last - first, _LEAF)
            part(middle, last)
            rest[first:middle] += coupling[middle:last, first:middle].T @ errors[middle:last]
            part(first, middle)
            return
        for column in range(last - 1, first - 1, -1):
            ideal, scale, zero = rest[column], scales[column], zeros[column]
            quantized = np.minimum(np.maximum(np.rint(ideal / scale) + zero, grid.lowest), grid.highest)
            integers[column] = quantized
            errors[column] = weights[column] - (quantized - zero) * scale
            if column > first:
                rest[first:column] += coupling[column, first:column, None] * errors[column]

    part(0, len(rest))
    return integers.T


def descend(objective: Objective, start: Rounded, *, sweeps: int = 2) -> Rounded:
    """Return integers whose products have at most the error of these: sweeps of coordinate descent, column by column.

    Args:
        objective: The error.
        start: The integers to begin with.
        sweeps: The most sweeps over all columns; the descent ends when nothing changes.
    """
    hessian, grid = objective.hessian, start.grid
    gradient, moved = start.gradient.T.copy(), start.integers.T.copy()
    scales, diagonal = grid.scales.T, np.diag(hessian)
    changed = False

    def change(first: int, last: int) -> np.ndarray:
        nonlocal changed
        steps = np.zeros((last - first, gradient.shape[1]), np.float32)
        for column in np.flatnonzero(diagonal[first:last] > 0) + first:
            scale, old = scales[column], moved[column]
            ideal = old + gradient[column] / (diagonal[column] * scale)
            rounded = np.minimum(np.maximum(np.rint(ideal), grid.lowest), grid.highest)
            step = (rounded - old) * scale
            if step.any():
                changed = True
                moved[column] = rounded
                steps[column - first] = step
                gradient[first:last] -= hessian[first:last, column, None] * step
        return steps

    for _ in range(sweeps):
        changed = False
        sweep(gradient, hessian, change)
        if not changed:
            break
    return Rounded(grid, moved.T, gradient.T)


def refit_scales(objective: Objective, start: Rounded, block: int) -> Rounded:
    """Return the same integers with the scales of the least error of the products, block by block.

    Args:
        objective: The error.
        start: The integers and their grid; elements of a block have one scale.
        block: Elements of a row with one scale.
    """
    hessian = objective.hessian
    scales = start.grid.scales.T.copy()
    levels, gradient = (start.integers - start.grid.zeros).T, start.gradient.T.copy()

    def change(first: int, last: int) -> np.ndarray:
        own, old = levels[first:last], scales[first].copy()
        products = hessian[first:last, first:last] @ own
        curvature = np.einsum("kr,kr->r", own, products)
        slope = np.einsum("kr,kr->r", gradient[first:last], own)
        new = np.where(curvature > 0, old + slope / np.where(curvature > 0, curvature, 1), old)
        new = np.where((new > old * 0.5) & (new < old * 2), new, old).astype(np.float32)
        gradient[first:last] -= products * (new - old)
        scales[first:last] = new
        return np.asarray(own * (new - old))

    sweep(gradient, hessian, change, block)
    return Rounded(replace(start.grid, scales=scales.T), start.integers, gradient.T)


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
