"""Options of optimizers, schedules, losses and learners: values of other types and out of range are refused."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from sardonyx import train
from sardonyx.errors import FeedError, OptionError
from tests.train.networks import classifier, images, regression

CLASSES: list[Any] = [
    train.SGD, train.Adam, train.AdamW, train.Adagrad, train.RMSprop, train.Adadelta, train.Lion, train.Adafactor,
    train.LAMB, train.Muon, train.EWC, train.SAM, train.Constant, train.Steps, train.Linear, train.CosineDecay,
    train.OneCycle, train.Plateau, train.CrossEntropy, train.BinaryCrossEntropy, train.Focal, train.KullbackLeibler,
    train.Distillation, train.Huber, train.MeanSquaredError, train.MeanAbsoluteError, train.Cosine, train.Dice,
    train.CTC, train.Triplet, train.Contrastive, train.LoRA, train.Guard, train.Privacy,
]  # fmt: skip

SIGNED = {"dampening", "beta2_decay"}
"""Numbers that may be negative."""


def cases() -> list[Any]:
    return [
        pytest.param(owner, field, id=f"{owner.__name__}-{field.name}")
        for owner in CLASSES
        for field in dataclasses.fields(owner)
    ]


@pytest.mark.parametrize(("owner", "field"), cases())
def test_a_field_of_another_type_or_out_of_range_is_refused(owner: Any, field: dataclasses.Field[Any]) -> None:
    wrong: list[Any] = [object(), [object()]]
    if isinstance(field.default, (bool, int, float)):
        wrong.append("x")
    if isinstance(field.default, float):
        wrong += [math.nan, math.inf] + [-1e9] * (field.name not in SIGNED)
    for value in wrong:
        with pytest.raises(OptionError):
            owner(**{field.name: value})


@pytest.mark.parametrize(
    "make",
    [
        lambda: train.Replay(0), lambda: train.Replay("x"), lambda: train.DDM(deviations=-1),  # type: ignore[arg-type]
        lambda: train.DDM(warm_up=1.5), lambda: train.PageHinkley(threshold=math.nan),  # type: ignore[arg-type]
        lambda: train.PageHinkley(delta=-1), lambda: train.Guard(least=9, window=8),
        lambda: train.Steps(milestones=[-1]), lambda: train.CrossEntropy(class_weights=(1.0, math.nan)),
        lambda: train.SGD(10**400), lambda: train.SGD(momentum=10**400), lambda: train.SGD(10**5000),
        lambda: train.EWC(np.array([1.0, 2.0])), lambda: train.ModelLoss(5),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_numbers_out_of_range_are_refused(make: Any) -> None:
    with pytest.raises(OptionError):
        make()


@pytest.mark.parametrize(
    ("optimizer", "callbacks"),
    [
        (train.SGD(train.Plateau(0.1)), []),
        (train.SGD(0.1), [train.EarlyStopping()]),
        (train.SGD(0.1), [train.EarlyStopping("validation_top1")]),
        (train.SGD(0.1), [train.SaveBest("best.onnx", "validation_accuracy")]),
    ],
)
def test_a_watched_metric_that_the_history_will_not_have_is_refused(optimizer: Any, callbacks: Any) -> None:
    trainer = train.Trainer(classifier(), "cross-entropy", optimizer)
    before = trainer.state()
    with pytest.raises(OptionError, match="the history has no metric"):
        trainer.fit(images(8, 0), callbacks=callbacks)
    assert all(np.array_equal(array, before[name]) for name, array in trainer.state().items())


class AddsMetric:
    """A callback that adds a metric to the row, and to the history too if asked."""

    def __init__(self, *, to_history: bool = False) -> None:
        self.to_history = to_history

    def __call__(self, moment: Any) -> None:
        moment.row["mine"] = 0.5
        if self.to_history:
            moment.trainer.history.rows[-1]["mine"] = 0.5


def test_a_metric_that_a_callback_adds_is_watched() -> None:
    data = images(8, 0)
    trainer = train.Trainer(classifier(), "cross-entropy", "sgd")
    early = train.EarlyStopping("mine", patience=1)
    assert len(trainer.fit(data, epochs=9, callbacks=[AddsMetric(), early])["loss"]) == 2
    plateau = train.SGD(train.Plateau(0.1, metric="mine", patience=0))
    trainer = train.Trainer(classifier(), "cross-entropy", plateau)
    assert trainer.fit(data, epochs=3, callbacks=[AddsMetric(to_history=True)])["rate"][-1] < 0.1


@pytest.mark.parametrize(
    ("rate", "callbacks", "epochs"),
    [
        (0.1, [train.EarlyStopping("mine"), AddsMetric()], 0),
        (0.1, [AddsMetric(), train.EarlyStopping("other")], 1),
        (train.Plateau(0.1, metric="other"), [AddsMetric()], 1),
    ],
)
def test_a_metric_that_no_callback_adds_is_refused_once_it_is_missing(rate: Any, callbacks: Any, epochs: int) -> None:
    trainer = train.Trainer(classifier(), "cross-entropy", train.SGD(rate))
    with pytest.raises(OptionError, match="the history has no metric"):
        trainer.fit(images(8, 0), epochs=3, callbacks=callbacks)
    assert len(trainer.history.rows) == epochs


@pytest.mark.parametrize("callbacks", [None, train.EarlyStopping("loss"), [5]])
def test_callbacks_that_are_no_list_of_functions_are_refused(callbacks: Any) -> None:
    with pytest.raises(OptionError, match="expected a list of functions"):
        train.Trainer(classifier(), "cross-entropy", "sgd").fit(images(8, 0), callbacks=callbacks)


def test_a_loss_is_a_model_of_any_source(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        squares (float[N, 2] y, float[N, 2] labels) => (float[N, 2] l) { d = Sub(y, labels) l = Mul(d, d) }"""
    )
    onnx.save(model, tmp_path / "loss.onnx")
    data = (np.ones((2, 4), np.float32), np.zeros((2, 2), np.float32))
    for source in (model, model.SerializeToString(), tmp_path / "loss.onnx", str(tmp_path / "loss.onnx")):
        assert train.Trainer(regression(), train.ModelLoss(model=source), "sgd").fit(data)["loss"]


def test_targets_in_a_list_have_a_hash() -> None:
    targets: Any = ["w"]
    assert hash(train.LoRA(targets=targets)) == hash(train.LoRA(targets=("w",)))


@pytest.mark.parametrize("loss", ["bce", "kl", "dice", train.CrossEntropy(soft=True)])
def test_labels_that_are_no_probabilities_are_refused(loss: Any) -> None:
    trainer = train.Trainer(regression(), loss, "sgd")
    x = np.ones((2, 4), np.float32)
    trainer.step({"x": x, "labels": np.array([[0, 1], [1.0001, 0]], np.float32)})
    for wrong in (2.0, -0.5):
        with pytest.raises(FeedError, match="expected labels from 0 to 1"):
            trainer.step({"x": x, "labels": np.full((2, 2), wrong, np.float32)})
