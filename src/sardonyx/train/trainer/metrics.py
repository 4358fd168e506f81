"""Metrics: numbers of outputs and labels, summed over batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from sardonyx.base.option_checks import listed, require_instance
from sardonyx.errors import OptionError
from sardonyx.train.losses.classification import class_axis
from sardonyx.train.losses.loss import Loss

Arrays = Mapping[str, np.ndarray]


class Part(NamedTuple):
    """The contribution of a batch.

    Attributes:
        total: The sum over samples.
        weight: The number of samples.
    """

    total: float
    weight: float


@dataclass(frozen=True)
class Metric:
    """A metric that is a mean over samples.

    Attributes:
        name: The name in histories.
        part: Returns the contribution of a batch from the output and the labels.
        finish: A function of the mean.
    """

    name: str
    part: Callable[[np.ndarray, np.ndarray], Part]
    finish: Callable[[float], float] = float


@dataclass(frozen=True)
class _Hits:
    """The share of samples whose label is among the best scores, as the loss counts classes and labels.

    Attributes:
        best: Number of best scores.
        axis: The axis of classes; None for that of :func:`.class_axis`.
        ignore: The label of elements that count nothing; labels below 0 never count.
    """

    best: int
    axis: int | None = None
    ignore: int | None = None

    def __call__(self, scores: np.ndarray, labels: np.ndarray) -> Part:
        axis = class_axis(scores.ndim, self.axis)
        scores = np.moveaxis(scores, axis, -1)
        if labels.ndim == scores.ndim:
            labels = np.moveaxis(labels, axis, -1).argmax(-1)
        counted = (labels >= 0) & (labels != self.ignore)
        if self.best == 1:
            hit = scores.argmax(-1) == labels
        else:
            top = np.argpartition(-scores, min(self.best, scores.shape[-1]) - 1, -1)[..., : self.best]
            hit = (top == labels[..., None]).any(-1)
        return Part(float((hit & counted).sum()), float(counted.sum()))


def _binary(threshold: float) -> Callable[[np.ndarray, np.ndarray], Part]:
    def part(scores: np.ndarray, labels: np.ndarray) -> Part:
        return Part(float(((scores > threshold) == (labels > 0.5)).sum()), float(labels.size))

    return part


def _elements(error: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray, np.ndarray], Part]:
    def part(outputs: np.ndarray, labels: np.ndarray) -> Part:
        difference = outputs.astype(np.float64) - np.reshape(labels, outputs.shape)
        return Part(float(error(difference).sum()), float(outputs.size))

    return part


METRICS: dict[str, Metric] = {
    "accuracy": Metric("accuracy", _Hits(1)),
    "binary-accuracy": Metric("binary-accuracy", _binary(0.0)),
    "mae": Metric("mae", _elements(np.abs)),
    "mse": Metric("mse", _elements(np.square)),
    "rmse": Metric("rmse", _elements(np.square), math.sqrt),
    "top1": Metric("top1", _Hits(1)),
    "top5": Metric("top5", _Hits(5)),
}
"""Metrics by name."""


_OF_PROBABILITIES = {"binary-accuracy": Metric("binary-accuracy", _binary(0.5))}
"""Metrics of probabilities that differ from those of logits."""


def metrics_of(
    metrics: str | Metric | Sequence[str | Metric], loss: Loss, *, of_probabilities: bool = False
) -> tuple[Metric, ...]:
    """Return metrics by name or as they are.

    Args:
        metrics: Names or metrics, or one of them.
        loss: The loss, which says the axis of classes and the label that counts nothing.
        of_probabilities: If True, the compared output holds results of a ``Sigmoid``, not logits.

    Raises:
        OptionError: Unknown name.
    """
    result = []
    for metric in listed(metrics):
        if isinstance(metric, str):
            if metric not in METRICS:
                raise OptionError(f"expected one of {', '.join(METRICS)}, got {metric!r}.", where="metrics")
            metric = (_OF_PROBABILITIES if of_probabilities else {}).get(metric, METRICS[metric])
            if isinstance(metric.part, _Hits):
                axis, ignore = getattr(loss, "axis", None), getattr(loss, "ignore", None)
                metric = replace(metric, part=replace(metric.part, axis=axis, ignore=ignore))
        require_instance(metric, Metric, "metrics", "names and Metrics")
        result.append(metric)
    return tuple(result)


class Mean:
    """A weighted mean over batches."""

    def __init__(self) -> None:
        self.total, self.weight = 0.0, 0.0

    def add(self, part: Part) -> None:
        """Add a batch."""
        self.total += part.total
        self.weight += part.weight

    @property
    def value(self) -> float:
        """The mean; NaN before the first sample."""
        return self.total / self.weight if self.weight else math.nan
