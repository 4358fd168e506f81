"""Losses, metrics and gradients of a trainer without a step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.errors import ExecutionError, OptionError
from sardonyx.train.data.batches import Batches, Data, as_declared, require_names
from sardonyx.train.step.forward import LOSS, Forward, build_forward
from sardonyx.train.step.inference import Inference
from sardonyx.train.trainer.metrics import Mean, Part
from sardonyx.train.trainer.sample_steps import SampleSteps

_MOST_NAMES = 5
"""Samples that a message names."""


class Evaluation(SampleSteps):
    """A training with evaluations in inference mode."""

    def forward_passes(self) -> tuple[Forward, Forward]:
        """Return the forward passes in training and in inference mode."""
        return self._forward, self._inference().forward

    def _inference(self) -> Inference:
        if self._evaluation is None:
            self._evaluation = Inference(
                build_forward(
                    self._model, self.parameters, self._loss, training=False, statistics=self._forward.statistics
                ),
                self._loss,
                self._threads,
            )
        return self._evaluation

    def _weights(self, *, average: bool = False) -> dict[str, np.ndarray]:
        """Return parameters and statistics by name, as the trainer holds them."""
        state = dict(zip((one.name for one in self._step.state), self._work.state, strict=True))
        prefix = "average" if average else "parameter"
        if average and self._options.ema is None:
            raise OptionError("the trainer holds no running means.", where="average", remedy="Give `ema=`.")
        weights = {name: state[f"{prefix}:{name}"] for name in self._forward.parameters}
        return weights | {name: state[f"statistic:{name}"] for name in self._forward.statistics}

    def evaluate(self, data: Data, *, batch_size: int = 64, average: bool = False) -> dict[str, float]:
        """Return the loss and the metrics over data, in inference mode.

        Args:
            data: As of :meth:`fit`.
            batch_size: Samples of a batch, for whole arrays.
            average: If True, the running means of the parameters are evaluated.

        Raises:
            FeedError: A batch does not fit the model.
        """
        return self._evaluated(self._evaluation_batches(data, batch_size, "data"), average=average)

    def forward(self, inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the outputs of the forward pass, in inference mode from the current parameters.

        They are the outputs that the loss may read: a ``Softmax`` or ``Sigmoid`` that the loss computes is left out. No
        session is made, so that a call for one sample takes microseconds; see also :meth:`predict`.

        Args:
            inputs: The inputs by name.

        Raises:
            FeedError: An input does not fit the model.
            OptionError: An input is missing.
        """
        types = {name: self._types[name] for name in self._forward.inputs}
        named = require_names(inputs, types)
        arrays = [as_declared(array, types[name], name) for name, array in named.items()]
        return self._inference().outputs(self._weights, arrays)

    def _evaluation_batches(self, data: Data, batch_size: int, where: str) -> Batches:
        optional = [self._loss.label] if self._metrics else []
        return Batches(
            data, self.batch_types, batch_size=batch_size, optional=optional, where=where, remedies=self._remedies,
            classes=self._classes,
        )  # fmt: skip

    def _evaluated(self, batches: Batches, *, average: bool = False) -> dict[str, float]:
        inference, weights = self._inference(), self._weights(average=average)
        loss, means = Mean(), [Mean() for _ in self._metrics]
        is_empty = True
        for index, batch in enumerate(batches.epoch(0)):
            is_empty = False
            total, weight, outputs = inference.run(weights, self._evaluation_arguments(batch))
            if not math.isfinite(total):
                require_finite_samples(batch, batches.where, batches.sample_names(0, index))
            loss.add(Part(total, weight))
            for mean, metric in zip(means, self._metrics, strict=True):
                labels = {**outputs, **batch}.get(self._loss.label)
                if labels is None:
                    raise OptionError(f"the loss has no label for {metric.name}.", where="metrics")
                mean.add(metric.part(outputs[self._loss.output_name(inference.forward.outputs)], labels))
        if is_empty:
            raise OptionError("expected at least one batch.", where=batches.where)
        values = {metric.name: metric.finish(mean.value) for metric, mean in zip(self._metrics, means, strict=True)}
        return {LOSS: loss.value, **values}

    def _evaluation_arguments(self, batch: dict[str, np.ndarray]) -> list[np.ndarray]:
        forward = self._inference().forward
        return self._arguments(batch)[: len(forward.inputs) + len(forward.labels)]

    def _require_finite_loss(self, batches: Batches) -> None:
        """Check before the first step that samples with NaN or infinity in whole arrays have a finite loss.

        Raises:
            ExecutionError: The loss of such samples is not finite.
        """
        arrays = batches.whole_arrays(self.batch_types)
        wrong = np.flatnonzero(~finite_samples(arrays))[:_MOST_NAMES]
        if len(wrong):
            batch = {name: array[wrong] for name, array in arrays.items()}
            total, _, _ = self._inference().run(self._weights(), self._evaluation_arguments(batch))
            if not math.isfinite(total):
                require_finite_samples(arrays, batches.where, [str(i) for i in range(len(next(iter(arrays.values()))))])

    def gradients(self, batch: Mapping[str, Any] | Sequence[Any]) -> dict[str, np.ndarray]:
        """Return the gradients of the loss of a batch by parameter, in inference mode, without a step.

        Args:
            batch: As of :meth:`step`.
        """
        arrays = self._arguments(self._checked(batch))
        inference = self._inference()
        count = len(inference.forward.inputs) + len(inference.forward.labels)
        return inference.gradients(self._weights(), arrays[:count])

    def consolidate(self, data: Data, *, samples: int | None = None) -> None:
        """Hold to what the current parameters know of data, with the optimizer :class:`EWC`.

        The mean squared gradient of each sample's loss is added to the importance of each parameter, and the anchors
        move to the current parameters.

        Args:
            data: Samples with labels, as of :meth:`fit`.
            samples: Most samples.

        Raises:
            OptionError: The optimizer is another one, or the data have no sample.
        """
        names = [name for name in self.state() if name.startswith("importance:")]
        if not names:
            raise OptionError(
                "the optimizer holds no importances.", where="consolidate", remedy="Use `optimizer=EWC(...)`."
            )
        sums: dict[str, np.ndarray] = {}
        count = 0
        for batch in Batches(data, self.batch_types, batch_size=1, classes=self._classes).epoch(0):
            if samples is not None and count >= samples:
                break
            count += 1
            for name, gradient in self.gradients(batch).items():
                squared = np.square(gradient, dtype=np.float64)
                sums[name] = sums[name] + squared if name in sums else squared
        if not count:
            raise OptionError("expected at least one sample.", where="consolidate")
        state = self.state()
        for name in names:
            parameter = name.partition(":")[2]
            state[name] += (sums[parameter] / count).astype(state[name].dtype)
            state[f"anchor:{parameter}"] = state[f"parameter:{parameter}"]
        self.load_state(state)

    def check_labels(self, batch: Mapping[str, np.ndarray]) -> None:
        """Check the labels of a batch.

        Raises:
            FeedError: A label is out of range.
        """
        labels = {name: batch[name] for name in self._forward.labels if name in batch}
        self._check_values(labels)

    def sample_losses(
        self, batch: Mapping[str, np.ndarray], state: Mapping[str, np.ndarray] | None = None
    ) -> np.ndarray:
        """Return the loss of each sample of a batch in inference mode, float64 [samples].

        Args:
            batch: The inputs and labels, samples in axis 0.
            state: The state of the trainer, see :meth:`state`; the current one by default.
        """
        return self.sample_results(batch, state)[0]

    def sample_results(
        self, batch: Mapping[str, np.ndarray], state: Mapping[str, np.ndarray] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the loss of each sample of a batch, float64 [samples], and the outputs that the loss reads.

        Args:
            batch: As of :meth:`sample_losses`.
            state: As of :meth:`sample_losses`.
        """
        inference = self._inference()
        weights = self._weights()
        if state is not None:
            weights = {name: state[f"parameter:{name}"] for name in self._forward.parameters}
            weights |= {name: state[f"statistic:{name}"] for name in self._forward.statistics}
        arrays = [np.asarray(batch[name], order="C") for name in self.batch_types]
        return inference.samples(weights, arrays, self.loss_output)


def finite_samples(batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return which samples of a batch hold no NaN and no infinity, bool [samples]."""
    count = max((len(array) for array in batch.values() if array.ndim), default=0)
    finite = np.ones(count, np.bool_)
    for array in batch.values():
        if array.dtype.kind == "f" and array.shape[:1] == (count,):
            finite &= np.isfinite(array.reshape(count, -1)).all(1)
    return finite


def require_finite_samples(batch: Mapping[str, np.ndarray], where: str, names: Sequence[str]) -> None:
    """Refuse samples with NaN or infinity.

    Args:
        batch: The samples.
        where: The data.
        names: The names of the samples in the data; empty if unknown.

    Raises:
        ExecutionError: A sample holds NaN or infinity.
    """
    finite = finite_samples(batch)
    if not finite.all():
        error = ExecutionError(
            f"{int((~finite).sum())} of {len(finite)} samples hold NaN or infinity.", where=where,
            remedy="Remove these samples.",
        )  # fmt: skip
        name_samples(error, batch, names)
        raise error


def name_samples(error: ExecutionError, batch: Mapping[str, np.ndarray], names: Sequence[str]) -> None:
    """Name the samples of the data that hold NaN or infinity in an error.

    Args:
        error: The error.
        batch: The samples.
        names: Their names in the data; empty if unknown.
    """
    wrong = {name for name, is_finite in zip(names, finite_samples(batch), strict=False) if not is_finite}
    if wrong:
        listed = ", ".join(sorted(wrong, key=lambda name: (len(name), name))[:_MOST_NAMES])
        more = f" and {len(wrong) - _MOST_NAMES} more" if len(wrong) > _MOST_NAMES else ""
        error.reword(f"{error.problem} In the data: sample {listed}{more}.", where=error.where, remedy=error.remedy)
