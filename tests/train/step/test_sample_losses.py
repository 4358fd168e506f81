"""Losses of samples are computed in batches where that gives the losses of the samples alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

from sardonyx import train
from tests.train.networks import classifier, images, points, regression

MIXING = """<ir_version: 8, opset_import: ["": 17]> net (float[N, 4] x) => (float[N, 2] y)
<float[4, 2] w = {0.1, 0.2, -0.3, 0.4, 0.5, -0.6, 0.7, 0.8}> {
    h = Softmax<axis = 0>(x)
    y = MatMul(h, w)
}"""


def alone(trainer: train.Trainer, batch: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return losses and outputs of samples that are batches of their own."""
    count = len(next(iter(batch.values())))
    results = [trainer.sample_results({k: v[i : i + 1] for k, v in batch.items()}) for i in range(count)]
    return np.concatenate([losses for losses, _ in results]), np.concatenate([rows for _, rows in results])


@pytest.mark.parametrize(
    ("model", "loss", "batch"),
    [
        (classifier(), "cross-entropy", images(32, 0)),
        (classifier(softmax=True), train.CrossEntropy(label_smoothing=0.1), images(7, 1)),
        (classifier(normalized=True), train.Focal(), images(5, 2)),
        (regression(), "mse", points(16, 3)),
        (regression(), "huber", points(2, 4)),
        (onnx.parser.parse_model(MIXING).SerializeToString(), "mse", points(8, 5)),
    ],
    ids=["classes", "smoothed", "normalized", "mse", "huber", "a model that mixes samples"],
)
def test_a_batch_gives_the_losses_of_its_samples(model: bytes, loss: Any, batch: dict[str, np.ndarray]) -> None:
    trainer = train.Trainer(model, loss, train.SGD(0.1), batch_norm="frozen")
    for _ in range(2):  # The first batch decides how later ones are computed.
        losses, outputs = trainer.sample_results(batch)
        expected, rows = alone(trainer, batch)
        np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(outputs, rows, rtol=1e-5, atol=1e-6)


def test_samples_without_weight_have_no_loss() -> None:
    trainer = train.Trainer(classifier(), train.CrossEntropy(ignore=2), train.SGD(0.1))
    batch = images(16, 0)
    for _ in range(2):
        losses, _ = trainer.sample_results(batch)
        assert ((losses == 0) == (batch["labels"] == 2)).all()
