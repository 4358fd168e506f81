"""Factors of a matrix with the least error of its products."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_DAMPING = 1e-4
"""Share of the mean diagonal that is added to the second moments, so that a root has an inverse."""


@dataclass(frozen=True)
class Spectrum:
    """The singular values of a matrix times the root of the second moments of its inputs.

    Attributes:
        left: The left vectors, [outputs, rank].
        values: The singular values, the largest first.
        right: The right vectors times the inverse root, [rank, depth].
    """

    left: np.ndarray
    values: np.ndarray
    right: np.ndarray

    @classmethod
    def of(cls, matrix: np.ndarray, moment: np.ndarray | None) -> Spectrum:
        """Return the spectrum of a matrix [outputs, depth].

        Args:
            matrix: The weight.
            moment: The mean of x xᵀ over the inputs, [depth, depth]; None weighs all inputs equally.
        """
        wide = matrix.astype(np.float64)
        if moment is None:
            left, values, right = np.linalg.svd(wide, full_matrices=False)
            return cls(left, values, right)
        scales, vectors = np.linalg.eigh(moment.astype(np.float64))
        scales = np.sqrt(np.maximum(scales, 0) + _DAMPING * max(float(np.trace(moment)) / len(moment), 1e-30))
        left, values, right = np.linalg.svd((wide @ vectors) * scales, full_matrices=False)
        return cls(left, values, (right / scales) @ vectors.T)

    def rank_of(self, energy: float) -> int:
        """Return the least rank whose products have this share of the energy."""
        shares = np.cumsum(np.square(self.values))
        total = shares[-1] if len(shares) else 0.0
        return 1 if total <= 0 else int(np.searchsorted(shares, energy * total * (1 - 1e-12)) + 1)

    def factors(self, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Return [outputs, rank] and [rank, depth], of about equal size, in float32."""
        roots = np.sqrt(self.values[:rank])
        return (self.left[:, :rank] * roots).astype(np.float32), (roots[:, None] * self.right[:rank]).astype(np.float32)
