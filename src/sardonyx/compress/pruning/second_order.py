"""Pruning of weights by second-order information: removed weights are compensated by the ones that follow.

Source: Frantar and Alistarh, SparseGPT: Massive Language Models Can Be Accurately Pruned in One-Shot, 2023.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sardonyx.base.blas_threads import factorizations

Choice = Callable[[np.ndarray], np.ndarray]
"""A function from the importance of weights, [rows, columns], to True for those that stay."""


def sparse_rows(
    rows: np.ndarray, hessian: np.ndarray, choose: Choice, panel: int, damping: float = 0.01
) -> np.ndarray:  # fmt: skip
    """Return rows with zeros whose products with the inputs are close to those of the dense rows.

    Args:
        rows: The weights, [rows, k].
        hessian: The mean of ``x x^T`` over the inputs, [k, k].
        choose: The choice of the weights of a panel that stay.
        panel: The columns that are chosen at once; a multiple of the pattern's length.
        damping: Share of the mean diagonal that is added to the diagonal.

    Returns:
        The rows, of the error of products at most that of the dense rows with the same zeros.
    """
    k = rows.shape[1]
    wide = np.asarray(hessian, np.float64)
    factor = _inverse_factor(wide, damping)
    rest = rows.astype(np.float64)
    stays = np.ones(rows.shape, bool)
    for first in range(0, k, panel):
        last = min(first + panel, k)
        diagonal = np.diag(factor)[first:last]
        stays[:, first:last] = choose(np.square(rest[:, first:last] / diagonal))
        errors = np.zeros((len(rows), last - first))
        for column in range(first, last):
            error = np.where(stays[:, column], 0.0, rest[:, column]) / factor[column, column]
            rest[:, column:last] -= error[:, None] * factor[column, column:last]
            rest[~stays[:, column], column] = 0.0
            errors[:, column - first] = error
        rest[:, last:] -= errors @ factor[first:last, last:]
    plain = np.where(stays, rows, 0.0)
    better = _error(rows - rest, wide) <= _error(rows - plain, wide)
    return np.where(better[:, None], rest, plain).astype(rows.dtype)


def _inverse_factor(hessian: np.ndarray, damping: float) -> np.ndarray:
    """Return the upper Cholesky factor of the inverse of a damped Hessian."""
    k = len(hessian)
    mean = float(np.trace(hessian)) / max(k, 1) or 1.0
    while True:
        try:
            with factorizations(k):
                inverse = np.linalg.inv(hessian + damping * mean * np.eye(k))
                return np.asarray(np.linalg.cholesky((inverse + inverse.T) / 2).T)
        except np.linalg.LinAlgError:
            damping *= 10  # Ends: a multiple of the identity is positive definite.


def _error(rows: np.ndarray, hessian: np.ndarray) -> np.ndarray:
    return np.asarray(np.einsum("rk,rk->r", rows @ hessian, rows))
