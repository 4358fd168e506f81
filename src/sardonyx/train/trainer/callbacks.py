"""Callbacks: functions that a training calls after each epoch."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from sardonyx.base.option_checks import require_count
from sardonyx.errors import MissingDependencyError, OptionError
from sardonyx.train.schedules import Plateau


class Training(Protocol):
    """The part of a trainer that callbacks use."""

    def state(self) -> dict[str, np.ndarray]:
        """Return copies of all tensors of the state by name."""

    def load_state(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Set the state to tensors of the same names and shapes."""

    def save(self, path: str | os.PathLike[str]) -> float:
        """Write the inference model."""

    def save_checkpoint(self, folder: str | os.PathLike[str]) -> None:
        """Write the state and the position."""


@dataclass(frozen=True)
class Moment:
    """The end of an epoch.

    Attributes:
        epoch: Completed epochs.
        step: Completed steps.
        row: The row of the history.
        trainer: The trainer.
        past: The rows of earlier epochs, also of those before a resumption.
        is_last: True for the last epoch that was requested.
    """

    epoch: int
    step: int
    row: Mapping[str, float]
    trainer: Training
    past: Sequence[Mapping[str, float]] = ()
    is_last: bool = False


Callback = Callable[[Moment], Literal["stop"] | None]
"""Called after each epoch; ``"stop"`` ends the training."""


def checked_callbacks(callbacks: Iterable[Callback]) -> tuple[Callback, ...]:
    """Return the callbacks of a training.

    Raises:
        OptionError: The value is no list of functions.
    """
    functions = tuple(callbacks) if isinstance(callbacks, Iterable) else ()
    if not isinstance(callbacks, Iterable) or not all(callable(one) for one in functions):
        raise OptionError(f"expected a list of functions, got {callbacks!r}.", where="callbacks")
    return functions


def require_watched(callbacks: Iterable[Callback], schedule: object, names: Collection[str]) -> None:
    """Check that the rows of a history will have the metrics that callbacks and a schedule watch.

    A callback of users may add a metric to the row: those that run after it, and the schedule, check each row.

    Args:
        callbacks: The callbacks, in order.
        schedule: The learning rate.
        names: The metrics that the training itself measures.

    Raises:
        OptionError: A metric is unknown.
    """
    for one in callbacks:
        if type(one) not in (EarlyStopping, SaveBest, TensorBoard, MLflow):
            return
        if isinstance(one, (EarlyStopping, SaveBest)):
            require_metric(one.metric, names)
    if isinstance(schedule, Plateau):
        require_metric(schedule.metric, names)


def require_metric(metric: str, names: Collection[str]) -> None:
    """Check that a history has a metric.

    Raises:
        OptionError: The history has no such metric.
    """
    if metric not in names:
        raise OptionError(
            f"the history has no metric {metric!r}, expected one of {', '.join(names)}.",
            where="metric",
            remedy="Give `validation=` and `metrics=`, or watch another metric.",
        )


class _Best:
    """The best value of a metric so far, in all epochs of a training, also those before a resumption."""

    def __init__(self, metric: str, higher: bool) -> None:
        self.metric, self.higher = metric, higher
        self.waited = 0
        self._best = math.inf
        self._has_past = False

    def observe(self, moment: Moment) -> bool:
        """Return True if an epoch is the best one, and count the epochs without improvement.

        Raises:
            OptionError: The history has no such metric.
        """
        if not self._has_past:
            self._has_past = True
            for row in moment.past:
                if self.metric in row:
                    self._compare(row[self.metric])
        require_metric(self.metric, moment.row)
        return self._compare(moment.row[self.metric])

    def _compare(self, value: float) -> bool:
        score = -value if self.higher else value
        if score < self._best:
            self._best, self.waited = score, 0
            return True
        self.waited += 1
        return False


class EarlyStopping:
    """Stop when a metric has not improved for some epochs, and restore the best parameters.

    The parameters are restored after the last epoch too. A resumed training counts the epochs before; it cannot
    restore their parameters, since a checkpoint holds those of its epoch.

    Args:
        metric: The name in the history.
        patience: Epochs without improvement.
        higher: If True, higher is better.
        restore: If True, the parameters of the best epoch are restored.

    Raises:
        OptionError: The history has no such metric, or the patience is no positive number.
    """

    def __init__(
        self, metric: str = "validation_loss", *, patience: int = 2, higher: bool = False, restore: bool = True
    ) -> None:
        require_count(patience, "patience")
        self.metric, self.patience, self.higher, self.restore = metric, patience, higher, restore
        self._best = _Best(metric, higher)
        self._state: dict[str, np.ndarray] | None = None

    def __call__(self, moment: Moment) -> Literal["stop"] | None:
        """Compare the epoch with the best one."""
        if self._best.observe(moment):
            self._state = moment.trainer.state() if self.restore else None
            return None
        has_ended = self._best.waited >= self.patience
        if self._state is not None and (has_ended or moment.is_last):
            moment.trainer.load_state(self._state)
        return "stop" if has_ended else None


class SaveBest:
    """Save the model whenever a metric improves.

    Args:
        path: The file.
        metric: The name in the history.
        higher: If True, higher is better.

    Raises:
        OptionError: The history has no such metric.
    """

    def __init__(self, path: str | os.PathLike[str], metric: str = "validation_loss", *, higher: bool = False) -> None:
        self.path, self.metric, self.higher = path, metric, higher
        self._best = _Best(metric, higher)

    def __call__(self, moment: Moment) -> None:
        """Save the model if the epoch is the best one."""
        if self._best.observe(moment):
            moment.trainer.save(self.path)


class TensorBoard:
    """Write each row to TensorBoard.

    Args:
        folder: The folder of the log.

    Raises:
        MissingDependencyError: Neither tensorboard nor tensorboardX is installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._writer = _summary_writer(os.fspath(folder))

    def __call__(self, moment: Moment) -> None:
        """Write the row of the epoch."""
        for name, value in moment.row.items():
            self._writer.add_scalar(name, value, moment.step)
        self._writer.flush()


class _EventFile:
    """A file of events, written by the package of TensorBoard itself."""

    def __init__(self, folder: str) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._file = EventFileWriter(folder)
        self.flush = self._file.flush

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Write a number."""
        summary = self._summary(value=[self._summary.Value(tag=name, simple_value=value)])
        self._file.add_event(self._event(wall_time=time.time(), step=step, summary=summary))


def _summary_writer(folder: str) -> Any:
    try:
        return _EventFile(folder)
    except ImportError:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise MissingDependencyError(
                "logs for TensorBoard require tensorboard.", remedy="Install it: pip install tensorboard."
            ) from error
    return SummaryWriter(folder)


class MLflow:
    """Log each row to the active MLflow run, or to a run of its own, which is active while a row is logged alone.

    Raises:
        MissingDependencyError: MLflow is not installed.
    """

    def __init__(self) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise MissingDependencyError(
                "logs for MLflow require mlflow.", remedy="Install it: pip install mlflow."
            ) from error
        self._mlflow: Any = mlflow
        self._run: str | None = None

    def __call__(self, moment: Moment) -> None:
        """Log the row of the epoch."""
        if self._mlflow.active_run() is not None:
            self._mlflow.log_metrics(dict(moment.row), step=moment.step)
            return
        with self._mlflow.start_run(run_id=self._run) as run:
            self._run = run.info.run_id
            self._mlflow.log_metrics(dict(moment.row), step=moment.step)
