"""Weights as rows, and the numbers that the integers of a weight can express."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sardonyx.errors import OptionError


@dataclass(frozen=True)
class Grid:
    """The numbers of a weight's integers, element by element: ``(q - zeros) * scales`` for ``lowest <= q <= highest``.

    Attributes:
        scales: Positive scales, of a shape that broadcasts to [rows, k].
        zeros: The integers of 0, of the shape of the scales.
        lowest: The least integer.
        highest: The greatest integer.
    """

    scales: np.ndarray
    zeros: np.ndarray
    lowest: int
    highest: int

    def nearest(self, rows: np.ndarray) -> np.ndarray:
        """Return the nearest integers, as float32 of shape [rows, k]."""
        integers = np.clip(np.rint(rows / self.scales) + self.zeros, self.lowest, self.highest)
        return np.asarray(integers, np.float32)

    def values(self, integers: np.ndarray) -> np.ndarray:
        """Return the numbers of integers."""
        return np.asarray((integers - self.zeros) * self.scales)

    def columns(self, index: slice | np.ndarray | int) -> Grid:
        """Return the grid of some columns of a grid with an element for each weight."""
        return replace(self, scales=self.scales[:, index], zeros=self.zeros[:, index])

    def of_rows(self, index: slice | np.ndarray) -> Grid:
        """Return the grid of some rows of a grid with an element for each weight."""
        return replace(self, scales=self.scales[index], zeros=self.zeros[index])

    def expanded(self, shape: tuple[int, ...]) -> Grid:
        """Return the grid with an element for each weight of a shape."""
        return replace(self, scales=np.broadcast_to(self.scales, shape), zeros=np.broadcast_to(self.zeros, shape))


def hessian_error(difference: np.ndarray, hessian: np.ndarray) -> np.ndarray:
    """Return the squared error of the products of each row, ``d H d``, of shape [rows].

    Args:
        difference: Weights minus quantized weights, [rows, k].
        hessian: The sum of ``x x^T`` over the inputs, [k, k].
    """
    return np.asarray(np.einsum("rk,rk->r", difference @ hessian, difference))


def require_hessian(rows: np.ndarray, hessian: np.ndarray) -> None:
    """Check that a Hessian fits rows of weights.

    Raises:
        OptionError: The sizes differ, or an element is not finite.
    """
    k = rows.shape[-1]
    if rows.ndim != 2 or hessian.shape != (k, k):
        raise OptionError(
            f"expected weights [rows, k] and a Hessian [k, k], got {list(rows.shape)} and {list(hessian.shape)}.",
            where="hessian",
        )
    if not (np.isfinite(hessian).all() and np.isfinite(rows).all()):
        raise OptionError("expected finite weights and Hessian.", where="hessian")
