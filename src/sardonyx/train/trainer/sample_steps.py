"""A step for each sample of a batch, in one native call for many samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sardonyx.errors import FeedError, OptionError
from sardonyx.train.schedules import Schedule
from sardonyx.train.step.step_series import StepSeries
from sardonyx.train.trainer.training_step import TrainingStep

_SERIES = 512
"""Steps of a native call, between which Python handles signals and the state is checked."""


class SampleSteps(TrainingStep):
    """A training with steps of one sample each."""

    def step_samples(self, batch: Mapping[str, Any] | Sequence[Any]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Train on the samples of a batch, one step after the other; return losses and outputs before each update.

        Results and new state are those of :meth:`step_outputs` for one sample after the other, to the bit: the weights
        that answer a sample have been trained by all samples before it, as prequential evaluation requires. Native code
        takes many steps in one call, except with a teacher, ``reduce`` or ``sparse``, and for models with loops or
        large intermediate values.

        Args:
            batch: As of :meth:`step`, samples in axis 0 of each array.

        Returns:
            The loss of each sample, float64, and the outputs by name, joined in axis 0.

        Raises:
            OptionError: The trainer accumulates batches.
            FeedError: The arrays have different numbers of samples; see also :meth:`step`.
            ExecutionError: See :meth:`step`; the samples ahead of the one that is named have trained the parameters.

        Example:
            >>> losses, outputs = trainer.step_samples({"x": rows, "labels": labels})
            >>> accuracy = (outputs["logits"].argmax(1) == labels).mean()
        """
        if self._work.accumulates:
            raise OptionError("expected a trainer without accumulation.", where="step_samples")
        arrays = self._checked(batch)
        count = _sample_count(arrays)
        if self._teacher is None:  # Its labels are computed in each step.
            self._check_values({name: arrays[name] for name in self._forward.labels})
        losses, outputs = np.empty(count), [np.empty(0)] * len(self._forward.outputs)
        series: StepSeries | None = None
        first = 0
        while first < count:
            if series is not None:
                first = self._take_series(series, arrays, losses, outputs, first)
                if first == count:
                    break
            # The first samples, and one whose step has no result: this step names the reason.
            row = {name: array[first : first + 1] for name, array in arrays.items()}
            losses[first] = self._train(row, None)
            if not first:
                outputs = [np.empty((count, *array.shape), array.dtype) for array in self._outputs]
            for rows, array in zip(outputs, self._outputs, strict=True):
                rows[first] = array
            first += 1
            if first < count and self._teacher is None:
                series = self._work.series(self._arguments(row))
        joined = (rows.reshape(-1, *rows.shape[2:]) for rows in outputs)
        return losses, dict(zip(self._forward.outputs, joined, strict=True))

    def _take_series(
        self, series: StepSeries, arrays: Mapping[str, np.ndarray], losses: np.ndarray,
        outputs: Sequence[np.ndarray], first: int,
    ) -> int:  # fmt: skip
        """Take steps from a sample on, and write their results; return the number of the first sample without one."""
        names = [*self._forward.inputs, *self._forward.labels]
        while first < len(losses):
            end = min(len(losses), first + _SERIES)
            step = self._position.step
            rows = [arrays[name][first:end] for name in names]
            if self._has_key:
                rows.append(np.arange(step, step + end - first) + (self._seed << 32))
            own = np.empty(end - first, series.results[0].dtype)
            results = [own, *(array[first:end] for array in outputs)]
            steps = series.run([*rows, *self._numbers(end - first)], results, 0, end - first)
            losses[first : first + steps] = own[:steps]
            self._position = replace(self._position, step=step + steps)
            self._work.count_updates(steps)
            first += steps
            if first < end:
                break
        return first

    def _numbers(self, count: int) -> list[np.ndarray]:
        """Return the numbers of the next steps for each group, a row each."""
        is_constant = not isinstance(self.base_optimizer.rate, Schedule) and not any(
            group.optimizer.depends_on_step for group in self._groups
        )
        numbers = [self._scalars(None, step) for step in range(1 if is_constant else count)]
        types = (type.dtype.numpy() for type in self._step.scalars)
        every = (np.array(rows, dtype) for rows, dtype in zip(zip(*numbers, strict=True), types, strict=True))
        return [np.repeat(rows, count, axis=0) if is_constant else rows for rows in every]


def _sample_count(arrays: Mapping[str, np.ndarray]) -> int:
    counts = {array.shape[:1] for array in arrays.values()}
    if len(counts) > 1 or () in counts:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
        raise FeedError(f"expected one number of samples in axis 0 of all arrays, got {shapes}.", where="batch")
    return int(next(iter(counts))[0])
