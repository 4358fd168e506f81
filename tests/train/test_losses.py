"""Losses equal their definitions in double precision; their gradients equal differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx.printer
import pytest

from sardonyx import train
from sardonyx.core.eval.interpreter import evaluate
from sardonyx.core.eval.run_context import RunContext, running
from sardonyx.core.eval.tensor import constant
from sardonyx.core.eval.trace import trace
from sardonyx.core.ir import types as t
from sardonyx.core.ir.types import TensorType
from sardonyx.core.transform.differentiation import gradient
from sardonyx.errors import FeedError, OptionError
from sardonyx.train.losses import LOSSES, Loss, loss_of

RNG = np.random.default_rng(5)


def log_softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    shifted = x - x.max(axis, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis, keepdims=True)))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def value_and_gradient(loss: Loss, output: np.ndarray, labels: dict[str, np.ndarray]) -> tuple[float, np.ndarray]:
    types = loss.labels({"y": TensorType(t.DOUBLE, output.shape)})
    assert set(types) == set(labels)

    def body(y: Any, *values: Any) -> list[Any]:
        terms = loss.terms({"y": y}, dict(zip(types, values, strict=True)))
        return [terms.total / terms.weight]

    declared = [TensorType(types[name].dtype, array.shape) for name, array in labels.items()]
    traced = trace("loss", body, [TensorType(t.DOUBLE, output.shape), *declared])
    arrays = [output, *(labels[name].astype(types[name].dtype.numpy()) for name in types)]
    with running(RunContext()):
        value, dy = evaluate(gradient(traced, [0]), [constant(array) for array in arrays])
    return float(value.known), np.asarray(dy.known)  # type: ignore[attr-defined]


LOGITS, INDEX = RNG.standard_normal((6, 4)), np.array([0, 3, 1, 1, 2, 0])
TARGET, CHANCE = RNG.standard_normal((6, 4)), RNG.random((6, 4))
P = np.exp(log_softmax(TARGET))
PICKED = log_softmax(LOGITS)[np.arange(6), INDEX]
MASKED = np.where(np.arange(6) % 2, INDEX, -100)
WEIGHTS = (1.0, 2.0, 0.5, 1.5)

Case = tuple[Loss, np.ndarray, dict[str, np.ndarray], float]

CASES: dict[str, Case] = {
    "cross-entropy": (train.CrossEntropy(), LOGITS, {"labels": INDEX}, -PICKED.mean()),
    "ignored labels": (train.CrossEntropy(), LOGITS, {"labels": MASKED}, -PICKED[1::2].mean()),
    "class weights": (
        train.CrossEntropy(class_weights=WEIGHTS), LOGITS, {"labels": INDEX},
        -(PICKED * np.take(WEIGHTS, INDEX)).sum() / np.take(WEIGHTS, INDEX).sum(),
    ),
    "smoothing": (
        train.CrossEntropy(label_smoothing=0.2), LOGITS, {"labels": INDEX},
        (0.8 * -PICKED + 0.2 * -log_softmax(LOGITS).mean(1)).mean(),
    ),
    "soft labels": (train.CrossEntropy(soft=True), LOGITS, {"labels": P}, -(P * log_softmax(LOGITS)).sum(1).mean()),
    "images": (
        train.CrossEntropy(), RNG.standard_normal((2, 3, 2, 2)), {"labels": np.zeros((2, 2, 2))}, np.nan,
    ),
    "bce": (
        train.BinaryCrossEntropy(), LOGITS, {"labels": CHANCE},
        -(CHANCE * np.log(sigmoid(LOGITS)) + (1 - CHANCE) * np.log(sigmoid(-LOGITS))).mean(),
    ),
    "focal": (
        train.Focal(gamma=2.0), LOGITS, {"labels": INDEX}, (-((1 - np.exp(PICKED)) ** 2) * PICKED).mean(),
    ),
    "kl": (
        train.KullbackLeibler(), LOGITS, {"labels": P}, (P * (np.log(P) - log_softmax(LOGITS))).sum(1).mean(),
    ),
    "distillation": (
        train.Distillation(temperature=3.0, alpha=0.7), LOGITS, {"teacher": TARGET, "labels": INDEX},
        0.7 * 9 * (np.exp(log_softmax(TARGET / 3)) * (log_softmax(TARGET / 3) - log_softmax(LOGITS / 3))).sum(1).mean()
        - 0.3 * PICKED.mean(),
    ),
    "mse": (train.MeanSquaredError(), LOGITS, {"labels": TARGET}, ((LOGITS - TARGET) ** 2).mean()),
    "l1": (train.MeanAbsoluteError(), LOGITS, {"labels": TARGET}, np.abs(LOGITS - TARGET).mean()),
    "huber": (
        train.Huber(delta=0.5), LOGITS, {"labels": TARGET},
        np.where(
            np.abs(LOGITS - TARGET) <= 0.5, (LOGITS - TARGET) ** 2 / 2, 0.5 * (np.abs(LOGITS - TARGET) - 0.25)
        ).mean(),
    ),
    "cosine": (
        train.Cosine(), LOGITS, {"labels": TARGET},
        (1 - (LOGITS * TARGET).sum(1) / np.linalg.norm(LOGITS, axis=1) / np.linalg.norm(TARGET, axis=1)).mean(),
    ),
    "dice": (
        train.Dice(), LOGITS[:, :, None], {"labels": CHANCE[:, :, None]},
        (1 - (2 * sigmoid(LOGITS) * CHANCE + 1) / (sigmoid(LOGITS) + CHANCE + 1)).mean(),
    ),
    "triplet": (
        train.Triplet(), LOGITS, {"positive": TARGET, "negative": CHANCE},
        np.maximum(
            np.linalg.norm(LOGITS - TARGET + 1e-6, axis=1) - np.linalg.norm(LOGITS - CHANCE + 1e-6, axis=1) + 1, 0
        ).mean(),
    ),
    "contrastive": (
        train.Contrastive(temperature=0.5), LOGITS, {"labels": TARGET},
        -np.diag(
            log_softmax(
                (LOGITS / np.linalg.norm(LOGITS, axis=1, keepdims=True))
                @ (TARGET / np.linalg.norm(TARGET, axis=1, keepdims=True)).T / 0.5
            )
        ).mean(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_loss_equals_its_definition_and_its_gradient_differences(name: str) -> None:
    loss, output, labels, expected = CASES[name]
    value, dy = value_and_gradient(loss, output, labels)
    if not np.isnan(expected):
        assert value == pytest.approx(expected, rel=1e-9)
    direction = np.random.default_rng(0).standard_normal(output.shape)
    ahead, _ = value_and_gradient(loss, output + 1e-6 * direction, labels)
    behind, _ = value_and_gradient(loss, output - 1e-6 * direction, labels)
    assert (dy * direction).sum() == pytest.approx((ahead - behind) / 2e-6, rel=1e-5, abs=1e-8)


def likelihood(log_p: np.ndarray, target: list[int]) -> float:
    """Return the negative log-likelihood over all alignments, by enumeration."""
    steps, classes = log_p.shape
    total = 0.0
    for path in np.ndindex(*[classes] * steps):
        merged = [s for i, s in enumerate(path) if i == 0 or s != path[i - 1]]
        if [s for s in merged if s] == target:
            total += np.exp(sum(log_p[i, s] for i, s in enumerate(path)))
    return -np.log(total)


def test_ctc_sums_over_all_alignments() -> None:
    logits = RNG.standard_normal((3, 4, 3))
    targets, lengths, ends = [[1, 2], [1, 1], [2]], np.array([2, 2, 1]), np.array([4, 4, 3])
    labels = np.array([[1, 2], [1, 1], [2, 0]])
    log_p = log_softmax(logits)
    expected = np.mean([likelihood(log_p[i, : ends[i]], targets[i]) / len(targets[i]) for i in range(3)])
    feeds = {"labels": labels, "label_lengths": lengths, "input_lengths": ends}
    value, dy = value_and_gradient(train.CTC(), logits, feeds)
    assert value == pytest.approx(expected, rel=1e-9)
    direction = RNG.standard_normal(logits.shape)
    ahead, behind = (value_and_gradient(train.CTC(), logits + e * direction, feeds)[0] for e in (1e-6, -1e-6))
    assert (dy * direction).sum() == pytest.approx((ahead - behind) / 2e-6, rel=1e-5)


def pair_model() -> onnx.ModelProto:
    """Return one layer applied to three inputs [N, 2]: embeddings of an anchor, a near and a far sample."""
    return onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        net (float[N, 2] a, float[N, 2] b, float[N, 2] c) => (float[N, 2] one, float[N, 2] near, float[N, 2] far)
        <float[2, 2] w = {0.5, -0.3, 0.2, 0.9}>
        { one = MatMul(a, w)  near = MatMul(b, w)  far = MatMul(c, w) }"""
    )


def test_embeddings_of_one_model_are_compared_and_the_gradient_passes_both() -> None:
    rng = np.random.default_rng(5)
    batch = {name: rng.standard_normal((6, 2)).astype(np.float32) for name in "abc"}
    for loss in (train.Triplet(positive="near", negative="far"), train.Contrastive(output="one", label="near")):
        trainer = train.Trainer(pair_model(), loss, train.SGD(0.1))
        assert set(trainer.batch_types) == set("abc")
        before = trainer.state()["parameter:w"].astype(np.float64)
        numeric = np.zeros((2, 2))
        for index in np.ndindex(2, 2):
            values = []
            for sign in (1, -1):
                moved = before.copy()
                moved[index] += sign * 1e-2
                trainer.load_state({"parameter:w": moved.astype(np.float32)})
                values.append(trainer.evaluate([batch])["loss"])
            numeric[index] = (values[0] - values[1]) / 2e-2
        trainer.load_state({"parameter:w": before.astype(np.float32)})
        np.testing.assert_allclose(trainer.gradients(batch)["w"], numeric, rtol=5e-3, atol=1e-4)
        start = trainer.evaluate([batch])["loss"]
        trainer.step(batch)
        assert trainer.evaluate([batch])["loss"] < start


def test_an_output_of_another_kind_than_the_label_is_refused() -> None:
    with pytest.raises(OptionError, match="has the name of an output"):
        train.Trainer(pair_model(), train.CrossEntropy("one", label="near"))
    renamed = onnx.parser.parse_model(onnx.printer.to_text(pair_model()).replace("near", "labels"))
    assert "labels" in train.Trainer(renamed, train.MeanSquaredError("one")).batch_types


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda outputs, labels: outputs - labels["labels"], "raised TypeError"),
        (lambda outputs, labels: labels * labels, "raised TypeError"),
        (lambda outputs, labels: outputs["logits"] - labels["labels"], "raised KeyError"),
    ],
)
def test_errors_of_a_function_of_outputs_and_labels_are_named(function: Any, text: str) -> None:
    with pytest.raises(OptionError, match=rf"loss: the function {text}.*outputs\[\"one\"\] - labels\[\"labels\"\]"):
        train.Trainer(pair_model(), function)


def test_every_loss_has_a_name() -> None:
    assert {type(loss_of(name)) for name in LOSSES} == set(LOSSES.values())
    with pytest.raises(OptionError, match="expected one of"):
        loss_of("cross-entrop")


@pytest.mark.parametrize(
    "loss, labels",
    [
        (train.CrossEntropy(), {"labels": np.array([0, 4])}),
        (train.CrossEntropy(), {"labels": np.array([-1, 0])}),
        (train.Focal(), {"labels": np.array([7, 0])}),
    ],
)
def test_labels_out_of_range_are_refused(loss: Loss, labels: Any) -> None:
    with pytest.raises(FeedError, match="class indices from 0 to 3"):
        loss.check(labels, {"y": TensorType(t.FLOAT, (2, 4))})


@pytest.mark.parametrize(
    "make",
    [
        lambda types: train.CrossEntropy(label_smoothing=2.0).labels(types),
        lambda types: train.CrossEntropy(class_weights=(1.0,)).labels(types),
        lambda types: train.CrossEntropy(output="z").labels(types),
        lambda types: train.CrossEntropy(axis=5).labels(types),
        lambda types: train.Huber(delta=0.0).labels(types),
        lambda types: train.Distillation(temperature=0.0).labels(types),
        lambda types: train.CTC().labels(types),
    ],
)
def test_impossible_losses_are_refused(make: Callable[[Any], object]) -> None:
    with pytest.raises(OptionError):
        make({"y": TensorType(t.FLOAT, (2, 4))})
