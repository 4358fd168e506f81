"""Losses of numbers: squared, absolute and Huber error, cosine, Dice overlap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sardonyx.base.option_checks import option
from sardonyx.core import language as L
from sardonyx.core.ir.types import TensorType
from sardonyx.train.losses.classification import check_shares, pair, same_shape
from sardonyx.train.losses.loss import Loss, Outputs, OutputTypes, Terms, mean_over


@dataclass(frozen=True)
class MeanSquaredError(Loss):
    """Mean of squared differences, over all elements."""

    def labels(self, outputs: OutputTypes) -> dict[str, TensorType]:
        return same_shape(self, outputs)

    def terms(self, outputs: Outputs, labels: Outputs) -> Terms:
        x, y = pair(self, outputs, labels)
        return mean_over((x - y) * (x - y))


@dataclass(frozen=True)
class MeanAbsoluteError(Loss):
    """Mean of absolute differences, over all elements."""

    def labels(self, outputs: OutputTypes) -> dict[str, TensorType]:
        return same_shape(self, outputs)

    def terms(self, outputs: Outputs, labels: Outputs) -> Terms:
        x, y = pair(self, outputs, labels)
        return mean_over(L.abs_(x - y))


@dataclass(frozen=True)
class Huber(Loss):
    """Mean of a function that is quadratic up to ``delta`` and linear beyond.

    Attributes:
        delta: The absolute difference at which the function becomes linear.
    """

    delta: float = option(1.0, above=0)

    def labels(self, outputs: OutputTypes) -> dict[str, TensorType]:
        return same_shape(self, outputs)

    def terms(self, outputs: Outputs, labels: Outputs) -> Terms:
        x, y = pair(self, outputs, labels)
        difference = L.abs_(x - y)
        linear = self.delta * (difference - 0.5 * self.delta)
        return mean_over(L.where(difference <= self.delta, 0.5 * difference * difference, linear))


@dataclass(frozen=True)
class Cosine(Loss):
    """One minus the cosine of output and label vectors along the last axis, averaged over samples.

    Attributes:
        epsilon: Least product of the lengths.
    """

    epsilon: float = option(1e-8, least=0)

    def labels(self, outputs: OutputTypes) -> dict[str, TensorType]:
        return same_shape(self, outputs)

    def terms(self, outputs: Outputs, labels: Outputs) -> Terms:
        x, y = pair(self, outputs, labels)
        dot = L.reduce_sum(x * y, [-1])
        squares = L.reduce_sum(x * x, [-1]) * L.reduce_sum(y * y, [-1])
        return mean_over(1 - dot / L.sqrt(L.maximum(squares, self.epsilon**2)))


@dataclass(frozen=True)
class Dice(Loss):
    """One minus the Dice overlap of probabilities and masks, averaged over the first two axes.

    The output is [batch, classes, ...] of probabilities (``from_logits=False``) or logits of independent classes.

    Attributes:
        from_logits: If True, a sigmoid of the output is compared.
        smooth: Number added to numerator and denominator.
    """

    from_logits: bool = True
    smooth: float = option(1.0, least=0)

    def labels(self, outputs: OutputTypes) -> dict[str, TensorType]:
        return same_shape(self, outputs)

    def check(self, labels: Mapping[str, np.ndarray], outputs: OutputTypes) -> None:
        check_shares(labels[self.label], self.label)

    def terms(self, outputs: Outputs, labels: Outputs) -> Terms:
        x, y = pair(self, outputs, labels)
        if self.from_logits:
            x = L.sigmoid(x)
        axes = list(range(min(2, x.rank - 1), x.rank))
        both = 2 * L.reduce_sum(x * y, axes) + self.smooth
        return mean_over(1 - both / (L.reduce_sum(x, axes) + L.reduce_sum(y, axes) + self.smooth))
