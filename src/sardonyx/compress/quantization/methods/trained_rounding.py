"""Parts of the methods that train how weights are rounded: the nearest integers to start from, and Adam."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sardonyx.compress.quantization.methods.grids import Grid, hessian_error, require_hessian
from sardonyx.errors import OptionError


class Start(NamedTuple):
    """The nearest integers of weights, and the operands of a loss.

    Attributes:
        nearest: The integers, [rows, k].
        errors: The error of each row, [rows].
        factor: The number of weights over the sum of the errors; 0 if there is nothing to train.
        hessian: The Hessian as float32, [k, k].
        grid: The grid with a scale and a zero point for each weight.
        scales: The scales as contiguous float32, [rows, k].
        zeros: The zero points as contiguous float32, [rows, k].
        limits: The least and greatest integer.
    """

    nearest: np.ndarray
    errors: np.ndarray
    factor: np.float32
    hessian: np.ndarray
    grid: Grid
    scales: np.ndarray
    zeros: np.ndarray
    limits: tuple[np.float32, np.float32]


def start(rows: np.ndarray, ideal: np.ndarray, hessian: np.ndarray, grid: Grid, steps: int) -> Start:
    """Return the start of a training.

    Args:
        rows: The weights, [rows, k].
        ideal: The weights whose products are to be reached, [rows, k].
        hessian: The sum or mean of ``x x^T`` over the inputs, [k, k].
        grid: The scales and limits.
        steps: The number of steps.

    Raises:
        OptionError: The Hessian does not fit the weights, an element is not finite, or there is no step.
    """
    require_hessian(rows, hessian)
    if steps < 1:
        raise OptionError(f"expected at least 1 step, got {steps}.", where="steps")
    grid = grid.expanded(rows.shape)
    nearest, wide = grid.nearest(rows), np.asarray(hessian, np.float32)
    errors = hessian_error(ideal - grid.values(nearest), wide)
    total = float(errors.sum(dtype=np.float64))
    factor = np.float32(rows.size / total) if rows.size and total > 0 and math.isfinite(total) else np.float32(0)
    scales, zeros = np.ascontiguousarray(grid.scales, np.float32), np.ascontiguousarray(grid.zeros, np.float32)
    limits = np.float32(grid.lowest), np.float32(grid.highest)
    return Start(nearest, errors, factor, wide, grid, scales, zeros, limits)


class Adam:
    """Adam over one array.

    Args:
        variables: The variables.

    Attributes:
        variables: Their current values.
    """

    def __init__(self, variables: np.ndarray) -> None:
        self.variables = variables
        self._first, self._second = np.zeros_like(variables), np.zeros_like(variables)
        self._step = 0

    def step(self, slope: np.ndarray, rate: float) -> None:
        """Move the variables against a gradient."""
        self._step += 1
        self._first += np.float32(0.1) * (slope - self._first)
        self._second += np.float32(0.001) * (slope * slope - self._second)
        unbiased = np.sqrt(self._second / np.float32(1 - 0.999**self._step)) + np.float32(1e-8)
        self.variables = self.variables - np.float32(rate / (1 - 0.9**self._step)) * self._first / unbiased
