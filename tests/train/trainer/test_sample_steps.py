"""Steps of one sample each in one call: results are those of one call for each sample, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from sardonyx import train
from sardonyx.errors import ExecutionError, FeedError, OptionError
from sardonyx.train import Trainer
from sardonyx.train.step.step_programs import StepPrograms
from tests.train.networks import classifier, images, points, regression

COUNT = 90
"""Samples: more than 64 steps, after which the state is checked."""

TRAININGS: dict[str, tuple[bytes, str, dict[str, Any]]] = {
    "rmsprop": (classifier(), "cross-entropy", {"optimizer": train.RMSprop(1e-3)}),
    "adam": (classifier(), "cross-entropy", {"optimizer": train.Adam(1e-3)}),
    "schedule": (classifier(), "cross-entropy", {"optimizer": train.SGD(train.OneCycle(0.1, 60), momentum=0.9)}),
    "dampening": (classifier(), "cross-entropy", {"optimizer": train.SGD(0.1, momentum=0.9, dampening=0.5)}),
    "muon": (classifier(), "cross-entropy", {"optimizer": train.Muon(1e-3)}),
    "ewc": (classifier(), "cross-entropy", {"optimizer": train.EWC(base=train.Adam(1e-3), strength=1.0)}),
    "sam": (classifier(), "cross-entropy", {"optimizer": train.SAM(train.SGD(0.1))}),
    "groups": (classifier(), "cross-entropy", {"optimizer": train.SGD(0.1), "groups": {"head.*": {"rate": 0.1}}}),
    "clipped": (classifier(), "cross-entropy", {"optimizer": train.SGD(0.1), "clip_norm": 0.1, "ema": 0.9}),
    "statistics": (classifier(normalized=True), "cross-entropy", {"optimizer": train.SGD(0.1)}),
    "dropout": (classifier(dropout=0.5), "cross-entropy", {"optimizer": train.SGD(0.1)}),
    "adapters": (classifier(), "cross-entropy", {"optimizer": train.SGD(0.1), "lora": train.LoRA(2)}),
    "private": (classifier(), "cross-entropy", {"optimizer": train.SGD(0.1), "privacy": train.Privacy(1.0, 0.5)}),
    "softmax": (classifier(softmax=True), "cross-entropy", {"optimizer": train.SGD(0.1)}),
    "double": (regression(TensorProto.DOUBLE), "mse", {"optimizer": train.Adam(1e-2)}),
    "half": (regression(TensorProto.FLOAT16), "mse", {"optimizer": train.Adam(1e-2)}),
    "limited": (classifier(), "cross-entropy", {"optimizer": train.SGD(0.1), "max_memory": 1 << 24}),
}


def data_of(model: bytes, count: int, seed: int = 5) -> dict[str, np.ndarray]:
    trainer = Trainer(model, "mse" if "image" not in _inputs(model) else "cross-entropy", "sgd")
    data = images(count, seed) if "image" in trainer.batch_types else points(count, seed)
    return {name: np.asarray(data[name], type.dtype.numpy()) for name, type in trainer.batch_types.items()}


def _inputs(model: bytes) -> list[str]:
    import onnx

    return [value.name for value in onnx.load_from_string(model).graph.input]


@pytest.mark.parametrize(("model", "loss", "options"), TRAININGS.values(), ids=TRAININGS)
def test_results_are_those_of_single_steps_to_the_bit(model: bytes, loss: str, options: dict[str, Any]) -> None:
    data = data_of(model, COUNT)
    single, many = (Trainer(model, loss, threads=1, **options) for _ in range(2))
    losses, outputs = [], []
    for i in range(COUNT):
        one, answer = single.step_outputs({name: array[i : i + 1] for name, array in data.items()})
        losses.append(one)
        outputs.append(answer)
    first = many.step_samples({name: array[:30] for name, array in data.items()})
    second = many.step_samples({name: array[30:] for name, array in data.items()})
    np.testing.assert_array_equal(np.concatenate([first[0], second[0]]), losses)
    for name in first[1]:
        expected = np.concatenate([answer[name] for answer in outputs])
        np.testing.assert_array_equal(np.concatenate([first[1][name], second[1][name]]), expected)
    for name, array in single.state().items():
        np.testing.assert_array_equal(many.state()[name], array, err_msg=name)
    assert many.step_count == single.step_count == COUNT


def test_native_code_takes_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, data = Trainer(classifier(), "cross-entropy", train.SGD(0.1), threads=1), images(200)
    calls = []
    plain = StepPrograms.gradients
    monkeypatch.setattr(StepPrograms, "gradients", lambda *arguments: calls.append(1) or plain(*arguments))
    trainer.step_samples(data)
    assert len(calls) < 5 and trainer.step_count == 200


def test_trainings_of_more_than_two_calls_take_single_steps() -> None:
    data, teacher = images(12), classifier(seed=3)
    for options in (
        {"teacher": teacher, "loss": train.Distillation()},
        {"reduce": lambda arrays: None, "loss": "cross-entropy"},
    ):
        trainers = [Trainer(classifier(), optimizer=train.SGD(0.1), threads=1, **options) for _ in range(2)]
        batch = {name: array for name, array in data.items() if name in trainers[0].batch_types}
        losses, _ = trainers[0].step_samples(batch)
        expected = [trainers[1].step({n: array[i : i + 1] for n, array in batch.items()}) for i in range(12)]
        np.testing.assert_array_equal(losses, expected)


def test_a_sample_without_a_finite_loss_ends_the_steps_by_name() -> None:
    trainer, data = Trainer(regression(), "mse", train.SGD(0.01), threads=1), points(40)
    whole = Trainer(regression(), "mse", train.SGD(0.01), threads=1)
    whole.step_samples({name: array[:25] for name, array in data.items()})
    name = next(name for name in trainer.batch_types if name != trainer.loss.label)
    data[name] = data[name].copy()
    data[name][25] = np.nan
    with pytest.raises(ExecutionError, match="1 of 1 samples of the batch of step 26 hold NaN"):
        trainer.step_samples(data)
    assert trainer.step_count == 25
    for key, array in whole.state().items():
        np.testing.assert_array_equal(trainer.state()[key], array)


def test_wrong_batches_are_refused_before_the_first_step() -> None:
    trainer, data = Trainer(classifier(), "cross-entropy", train.SGD(0.1), threads=1), images(8)
    with pytest.raises(FeedError, match="one number of samples in axis 0"):
        trainer.step_samples({**data, "labels": data["labels"][:5]})
    with pytest.raises(FeedError, match="class indices from 0 to 2"):
        trainer.step_samples({**data, "labels": np.array([0, 1, 2, 0, 1, 2, 0, 3])})
    assert trainer.step_count == 0
    with pytest.raises(OptionError, match="without accumulation"):
        Trainer(classifier(), "cross-entropy", accumulate=2).step_samples(data)


def test_labels_of_small_batches_are_checked() -> None:
    trainer, data = Trainer(classifier(), "cross-entropy", train.SGD(0.1), threads=1), images(2)
    for labels in ([0, 3], [-1, 0]):
        with pytest.raises(FeedError, match=f"got {labels[int(labels[0] == 0)]} at"):
            trainer.step({**data, "labels": np.array(labels)})
    trainer.step({**data, "labels": np.array([-100, 1])})


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_the_forward_pass_answers_from_the_current_parameters(dtype: int) -> None:
    model = regression(dtype)
    trainer, data = Trainer(model, "mse", train.SGD(0.05), threads=1), data_of(model, 8)
    name = next(name for name in trainer.batch_types if name != trainer.loss.label)
    for _ in range(5):
        answer = trainer.forward({name: data[name]})
        expected = trainer.predict({name: data[name]})
        for key, array in expected.items():
            np.testing.assert_allclose(answer[key], array, rtol=1e-3 if dtype == TensorProto.FLOAT16 else 1e-6)
        trainer.step(data)
    with pytest.raises(OptionError, match="missing"):
        trainer.forward({})
