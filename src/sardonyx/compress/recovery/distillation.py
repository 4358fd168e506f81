"""Fine-tuning of a changed model on the answers of the original: distillation without labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import onnx_ir as ir

from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.compress.samples import number_of, require_numbers
from sardonyx.errors import EvaluationError, OptionError
from sardonyx.runtime.session import Session
from sardonyx.train.losses.teacher import TeacherOutputs, teacher_label
from sardonyx.train.optimizers import AdamW
from sardonyx.train.schedules import CosineDecay
from sardonyx.train.trainer.callbacks import Moment
from sardonyx.train.trainer.trainer import Trainer

_CHECKS = 6
"""Times at which the samples that are not trained on are judged; the best weights are returned."""


def distill(
    student: ir.Model,
    teacher: ir.Model,
    samples: Iterable[Mapping[str, Any]],
    *,
    steps: int,
    rate: float = 1e-3,
    batch: int = 32,
    keep_zeros: bool = False,
    seed: int = 0,
) -> tuple[ir.Model, tuple[float, float]]:
    """Return the student after some steps on the teacher's outputs, and its loss before and after.

    Every fourth sample is not trained on and judges the weights; the best ones are returned, those of the student if
    no step improves them.

    Args:
        student: The model, of the inputs and outputs of the teacher.
        teacher: The original.
        samples: Samples to learn from.
        steps: Steps in all.
        rate: The largest learning rate, of AdamW.
        batch: Samples of a batch, if all inputs have an open first size.
        keep_zeros: If True, weights that are zero stay zero.
        seed: The seed of the order of samples.

    Raises:
        OptionError: There are fewer than two samples, or no step.
        EvaluationError: A sample holds NaN, or the original computes no finite numbers for a sample.
        UnsupportedError: The student has no trainable parameter, or an operator has no gradient.
        ExecutionError: A loss is not finite.
    """
    if steps < 1:
        raise OptionError(f"expected at least 1, got {steps}.", where="steps")
    held = list(samples)
    if len(held) < 2:
        raise OptionError(f"expected at least 2 samples, got {len(held)}.", where="data")
    for number, sample in enumerate(held):
        require_numbers(sample, student.graph.inputs, f"data, sample {number_of(sample, number)}")
    oracle = _Teacher(teacher)
    powers = oracle.powers(held)
    checks = [one for number, one in enumerate(held) if number % 4 == 3] or held[-1:]
    trained = [one for number, one in enumerate(held) if number % 4 != 3][: max(len(held) - len(checks), 1)]
    size = batch if _has_open_batch(student) else 1
    epochs = _Epochs(oracle, trained, size, seed, max(steps // _CHECKS, 1))
    validation = [oracle.labelled(one) for one in _joined(checks, size)]
    trainer = Trainer(
        student, TeacherOutputs(powers=powers), AdamW(CosineDecay(rate), weight_decay=0.0), batch_norm="frozen",
        clip_norm=1.0, keep_zeros=keep_zeros, seed=seed,
    )  # fmt: skip
    before = trainer.evaluate(validation)["loss"]
    best = _Best(before, validation, trainer)
    trainer.fit(epochs, epochs=_CHECKS, callbacks=[best], progress=False)
    if best.state is None:
        return student, (before, before)
    trainer.load_state(best.state)
    return trainer.model(), (before, best.loss)


class _Teacher:
    """The answers of the original."""

    def __init__(self, model: ir.Model) -> None:
        self._names = [str(value.name) for value in _floats(model)]
        self._session = Session(model, compile="wait")

    def answers(self, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the outputs by name."""
        results = self._session.run(self._names, feeds)
        return {name: np.asarray(one) for name, one in zip(self._names, results, strict=True)}

    def labelled(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return a batch with the outputs as labels."""
        return {**feeds, **{teacher_label(name): one for name, one in self.answers(feeds).items()}}

    def powers(self, samples: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, float], ...]:
        """Return the mean square of each output over samples, 1 for an output of zeros."""
        sums = dict.fromkeys(self._names, 0.0)
        for number, sample in enumerate(samples):
            location = f"data, sample {number_of(sample, number)}"
            for name, answer in self.answers(sample).items():
                if not np.isfinite(answer).all():
                    raise EvaluationError(
                        "the original computes NaN or infinity, which cannot be learned.",
                        where=f"{location}, {name}", remedy="Remove the sample.",
                    )  # fmt: skip
                if not answer.size:
                    raise EvaluationError(
                        "the original computes no elements.", where=f"{location}, {name}",
                        remedy="Remove the sample.",
                    )  # fmt: skip
                sums[name] += float(np.square(answer, dtype=np.float64).mean()) / len(samples)
        return tuple((name, power or 1.0) for name, power in sums.items())


class _Best:
    """A callback that keeps the state with the least loss on the checks."""

    def __init__(self, loss: float, checks: Sequence[Mapping[str, Any]], trainer: Trainer) -> None:
        self.loss = loss
        self.state: dict[str, np.ndarray] | None = None
        self._checks, self._trainer = checks, trainer

    def __call__(self, moment: Moment) -> Literal["stop"] | None:
        loss = self._trainer.evaluate(self._checks)["loss"]
        if loss < self.loss:
            self.loss, self.state = loss, self._trainer.state()
        return None


class _Epochs:
    """Batches of samples in an order that depends on the seed alone; an epoch is a number of steps.

    Every second batch is mixed: the teacher answers sums of two samples too, so that few samples suffice.
    Source: Beyer et al., Knowledge distillation: A good teacher is patient and consistent, 2022.
    """

    def __init__(
        self, teacher: _Teacher, samples: Sequence[Mapping[str, Any]], batch: int, seed: int, steps: int
    ) -> None:
        self._teacher, self._samples, self._batch, self._steps = teacher, samples, batch, steps
        self._rng = np.random.default_rng(seed)
        self._waiting: list[Mapping[str, Any]] = []

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Any:
        for number in range(self._steps):
            raise_if_cancelled()
            if not self._waiting:
                order = self._rng.permutation(len(self._samples))
                self._waiting = _joined([self._samples[i] for i in order], self._batch)
            batch = self._waiting.pop(0)
            yield self._teacher.labelled(self._mixed(batch) if number % 2 else batch)

    def _mixed(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a batch whose floating-point arrays are convex sums with those of another order."""
        rows = min((len(array) for array in batch.values() if np.ndim(array)), default=0)
        if rows < 2 or any(np.asarray(array).dtype.kind != "f" for array in batch.values()):
            return batch
        order, share = self._rng.permutation(rows), self._rng.uniform(0, 1, rows)
        mixed = {}
        for name, array in batch.items():
            weight = share.reshape(-1, *([1] * (np.ndim(array) - 1))).astype(array.dtype)
            mixed[name] = array * weight + array[order] * (1 - weight)
        return mixed


def _floats(model: ir.Model) -> list[ir.Value]:
    values = [value for value in model.graph.outputs if value.dtype is None or value.dtype.is_floating_point()]
    if not values:
        raise OptionError("expected a model with a floating-point output.", where="teacher")
    return values


def _has_open_batch(model: ir.Model) -> bool:
    initializers = model.graph.initializers
    inputs = [value for value in model.graph.inputs if value.name not in initializers]
    return all(value.shape is not None and len(value.shape) and not isinstance(value.shape[0], int) for value in inputs)


def _joined(samples: Sequence[Mapping[str, Any]], batch: int) -> list[Mapping[str, Any]]:
    """Return batches of consecutive samples, joined along axis 0 where their other sizes agree."""
    batches: list[list[Mapping[str, Any]]] = []
    count = 0
    for sample in samples:
        rows = max((len(array) for array in sample.values() if np.ndim(array)), default=1)
        if batches and count + rows <= batch and _fits(batches[-1][0], sample):
            batches[-1].append(sample)
            count += rows
        else:
            batches.append([sample])
            count = rows
    return [
        one[0] if len(one) == 1 else {name: np.concatenate([sample[name] for sample in one]) for name in one[0]}
        for one in batches
    ]


def _fits(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    return all(np.shape(first[name])[1:] == np.shape(second[name])[1:] for name in first)
