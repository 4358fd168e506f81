"""Prequential metrics: of each sample of a stream, predicted before a step learns from it."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from sardonyx.base.option_checks import listed
from sardonyx.errors import ExecutionError, OptionError
from sardonyx.train.losses import Loss
from sardonyx.train.losses.classification import class_axis
from sardonyx.train.trainer.metrics import Mean, Metric, metrics_of


class RiverMetric(Protocol):
    """A metric of River."""

    def update(self, y_true: Any, y_pred: Any) -> Any:
        """Observe one prediction."""

    def get(self) -> float:
        """Return the value so far."""


class Prequential:
    """Metrics of a stream.

    Args:
        metrics: Names and metrics as of :class:`.Trainer`, or metrics of River.
        loss: The loss, which says the axis of classes and the label that counts nothing.
        is_binary: True if the output is one logit, or one probability, of a label that is 0 or 1.
        of_probabilities: True if the output holds probabilities.

    Raises:
        OptionError: A metric has another form.
    """

    def __init__(
        self,
        metrics: str | Metric | RiverMetric | Sequence[str | Metric | RiverMetric],
        loss: Loss,
        *,
        is_binary: bool,
        of_probabilities: bool,
    ) -> None:
        self._loss = loss
        self._is_binary, self._of_probabilities = is_binary, of_probabilities
        self._has_observed = False
        self._means: list[tuple[Metric, Mean]] = []
        self._river: list[tuple[str, Any]] = []
        others: list[Any] = []
        for metric in listed(metrics):
            if isinstance(metric, str | Metric):
                self._means += [(one, Mean()) for one in metrics_of([metric], loss, of_probabilities=of_probabilities)]
            elif callable(getattr(metric, "update", None)) and callable(getattr(metric, "get", None)):
                others.append(metric)
            else:
                raise OptionError(
                    f"expected the name of a metric, a Metric or a metric of River, got {metric!r}.", where="metrics"
                )
        names = [one.name for one, _ in self._means]
        for metric in others:
            names.append(_new_name(type(metric).__name__, names))
            self._river.append((names[-1], metric))

    def __bool__(self) -> bool:
        return bool(self._means or self._river)

    def update(self, outputs: np.ndarray, labels: np.ndarray) -> None:
        """Observe predictions of samples.

        Args:
            outputs: The outputs of the samples, in axis 0.
            labels: Their labels.
        """
        self._has_observed = True
        for metric, mean in self._means:
            mean.add(metric.part(outputs, labels))
        for name, metric in self._river:
            with _named(name):
                for output, label in zip(outputs, labels, strict=True):
                    self._observe(metric, output, label)

    def _observe(self, metric: Any, output: np.ndarray, label: np.ndarray) -> None:
        of_labels = bool(getattr(metric, "requires_labels", True))
        if self._is_binary:
            for score, truth in zip(output.ravel().tolist(), label.ravel().tolist(), strict=True):
                chance = score if self._of_probabilities else sigmoid(score)
                metric.update(truth > 0.5, chance > 0.5 if of_labels else {False: 1 - chance, True: chance})
        elif np.issubdtype(label.dtype, np.integer):
            axis = class_axis(output.ndim + 1, getattr(self._loss, "axis", None)) - 1  # Without the axis of samples.
            rows = np.moveaxis(output, axis, -1)
            rows = rows.reshape(-1, rows.shape[-1])
            for scores, truth in zip(rows, label.ravel().tolist(), strict=True):
                if truth >= 0 and truth != getattr(self._loss, "ignore", None):
                    metric.update(truth, int(scores.argmax()) if of_labels else dict(enumerate(_shares(scores))))
        else:
            for value, truth in zip(output.ravel().tolist(), label.ravel().tolist(), strict=True):
                metric.update(truth, value)

    @property
    def values(self) -> dict[str, float]:
        """The values so far by name; NaN for a metric that has no value yet.

        Raises:
            ExecutionError: A metric of River fails.
        """
        values = {metric.name: metric.finish(mean.value) for metric, mean in self._means}
        for name, metric in self._river:
            with _named(name):
                values[name] = _value(metric) if self._has_observed else math.nan
        return values


def _value(metric: Any) -> float:
    """Return the value of a metric of River; NaN if the quotient is undefined, as without a positive sample."""
    try:
        value = metric.get()
    except ArithmeticError:
        return math.nan
    return math.nan if value is None else float(value)


def sigmoid(score: float) -> float:
    """Return the probability of a logit, without overflow."""
    power = math.exp(-abs(score))
    return (1.0 if score >= 0 else power) / (1 + power)


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Name the metric whose code fails."""
    try:
        yield
    except Exception as error:
        raise ExecutionError(f"{name} failed: {type(error).__name__}: {error}", where="metrics") from error


def _new_name(name: str, names: Sequence[str]) -> str:
    """Return a name, with a number if it is taken."""
    numbered = itertools.chain([name], (f"{name}_{number}" for number in itertools.count(2)))
    return next(one for one in numbered if one not in names)


def _shares(scores: np.ndarray) -> list[float]:
    """Return the softmax of scores."""
    powers = np.exp(scores.astype(np.float64) - scores.max())
    return (powers / powers.sum()).tolist()  # type: ignore[no-any-return]
