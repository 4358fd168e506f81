"""The squared error of the products of rounded weights, with a gradient that follows changes of integers and scales.

A gradient costs a product of the size of the weights by the Hessian. Methods pass it on with the integers, so that a
change costs the product of the change, and the errors of rows cost none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sardonyx.compress.quantization.methods.grids import Grid, require_hessian

_LEAF = 16
"""Columns whose changes reach each other's gradient one by one; others are reached by products of panels."""


@dataclass(frozen=True)
class Rounded:
    """Integers of a matrix of weights. All arrays are [rows, k], in the order of columns in memory.

    Attributes:
        grid: The scales and limits, with an element for each weight.
        integers: The integers, as float32.
        gradient: Half of the negative gradient of the error by the weights: ``target - values @ hessian``.
    """

    grid: Grid
    integers: np.ndarray
    gradient: np.ndarray

    @property
    def values(self) -> np.ndarray:
        """The numbers of the integers."""
        return self.grid.values(self.integers)


class Objective:
    """The error of the products ``d H d``, row by row, of weights minus quantized weights ``d``.

    Args:
        rows: The weights, [rows, k].
        hessian: The sum or mean of ``x x^T`` over the inputs, [k, k].
        target: The sum or mean of ``y x^T``, [rows, k], of the products ``y`` to reach, if they are not ``rows @ x``.

    Attributes:
        rows: The weights, as float32, in the order of columns.
        hessian: The Hessian, as float32.

    Raises:
        OptionError: The Hessian does not fit the weights, or an element is not finite.
    """

    def __init__(self, rows: np.ndarray, hessian: np.ndarray, target: np.ndarray | None = None) -> None:
        require_hessian(rows, hessian)
        self.rows = by_columns(rows)
        self.hessian = hessian.astype(np.float32, copy=False)
        self._target = None if target is None else by_columns(target)

    def rounded(self, grid: Grid, integers: np.ndarray | None = None) -> Rounded:
        """Return integers, by default the nearest ones, with their gradient."""
        grid = grid.expanded(self.rows.shape)
        grid = replace(grid, scales=by_columns(grid.scales), zeros=by_columns(grid.zeros))
        integers = grid.nearest(self.rows) if integers is None else by_columns(integers)
        values = grid.values(integers)
        if self._target is None:
            gradient = (self.hessian.T @ (self.rows - values).T).T
        else:
            gradient = self._target - (self.hessian.T @ values.T).T
        return Rounded(grid, integers, gradient)

    def errors(self, rounded: Rounded) -> np.ndarray:
        """Return the error of each row, [rows]; with a target, up to a number that integers do not change."""
        if self._target is None:
            return np.asarray(np.einsum("rk,rk->r", rounded.gradient, self.rows - rounded.values))
        return np.asarray(np.einsum("rk,rk->r", rounded.gradient + self._target, -rounded.values))

    def best(self, first: Rounded, second: Rounded) -> Rounded:
        """Return the rows of the second where their error is less, else those of the first, of the same grid."""
        is_less = (self.errors(second) < self.errors(first))[:, None]
        chosen = (
            by_columns(np.where(is_less, after, before))
            for before, after in ((first.integers, second.integers), (first.gradient, second.gradient))
        )
        return Rounded(first.grid, *chosen)


Change = Callable[[int, int], np.ndarray]
"""Changes the columns from one to another, and their own gradient; returns the changes of their values, [k, rows]."""


def sweep(gradient: np.ndarray, hessian: np.ndarray, change: Change, width: int = _LEAF) -> None:
    """Change all columns, some at a time; the gradient of the other columns follows.

    Halves of the columns reach each other by one product, so that most of the work is in products of large matrices.

    Args:
        gradient: The gradient of the error, [k, rows]; changed in place.
        hessian: The Hessian, [k, k].
        change: The change of some columns.
        width: The columns of a change.
    """

    def part(first: int, last: int) -> np.ndarray:
        if last - first <= width:
            return change(first, last)
        middle = first + halves(last - first, width)
        left = part(first, middle)
        if left.any():
            gradient[middle:last] -= hessian[middle:last, first:middle] @ left
        right = part(middle, last)
        if right.any():
            gradient[first:middle] -= hessian[first:middle, middle:last] @ right
        return np.concatenate([left, right])

    if len(gradient):
        part(0, len(gradient))


def halves(count: int, width: int) -> int:
    """Return the columns of the first half of some columns: a multiple of the width of a change."""
    return -(-count // (2 * width)) * width


def by_columns(array: np.ndarray) -> np.ndarray:
    """Return an array of float32, [rows, k], whose columns are contiguous."""
    return np.asfortranarray(array, np.float32)
