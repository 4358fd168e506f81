"""Options of optimizers, schedules, losses and learners: values of other types and out of range are refused."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
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


@pytest.mark.parametrize("loss", ["bce", "kl", "dice", train.CrossEntropy(soft=True)])
def test_labels_that_are_no_probabilities_are_refused(loss: Any) -> None:
    trainer = train.Trainer(regression(), loss, "sgd")
    x = np.ones((2, 4), np.float32)
    trainer.step({"x": x, "labels": np.array([[0, 1], [1.0001, 0]], np.float32)})
    for wrong in (2.0, -0.5):
        with pytest.raises(FeedError, match="expected labels from 0 to 1"):
            trainer.step({"x": x, "labels": np.full((2, 2), wrong, np.float32)})
