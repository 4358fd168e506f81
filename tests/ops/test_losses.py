"""Losses equal PyTorch's definition: weights, ignored labels, reductions; labels out of range are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.errors import ExecutionError, InvalidModelError, ShapeError
from tests.ops.agreement import assert_equal, eager, traced

RNG = np.random.default_rng(3)
SCORES = RNG.standard_normal((4, 5, 2, 3)).astype(np.float32)
LABELS = RNG.integers(0, 5, (4, 2, 3))
WEIGHTS = RNG.random(5).astype(np.float32)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [None, 2, -1, 7])
@pytest.mark.parametrize("flat", [False, True])
def test_loss(reduction: str, weighted: bool, ignored: int | None, flat: bool) -> None:
    scores, labels = (SCORES[..., 0, 0], LABELS[..., 0, 0]) if flat else (SCORES, LABELS)
    labels = labels.copy()
    if ignored is not None:
        labels[0] = ignored
    options: dict[str, Any] = {"reduction": reduction}
    if ignored is not None:
        options["ignore_index"] = ignored
    arrays: list[np.ndarray | None] = [scores, labels, WEIGHTS if weighted else None]
    shapes = ["N C", "N", "C"] if flat else ["N C A B", "N A B", "C"]
    actual = eager("SoftmaxCrossEntropyLoss", arrays, outputs=2, **options)
    wide = scores.astype(np.float64)
    log_prob = wide - np.log(np.exp(wide).sum(1, keepdims=True))
    counted = labels != ignored
    safe = np.where(counted, labels, 0)
    w = np.where(counted, WEIGHTS[safe] if weighted else 1.0, 0)
    losses = -w * np.take_along_axis(log_prob, np.expand_dims(safe, 1), 1).squeeze(1)
    expected = {"none": losses, "sum": losses.sum(), "mean": losses.sum() / w.sum()}[reduction]
    np.testing.assert_allclose(actual[0], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(actual[1], log_prob, rtol=1e-5, atol=1e-6)
    assert_equal(eager("NegativeLogLikelihoodLoss", [actual[1], *arrays[1:]], **options), actual[:1])
    assert_equal(traced("SoftmaxCrossEntropyLoss", arrays, shapes, outputs=2, **options), actual)


@pytest.mark.parametrize(
    ("scores", "labels", "weights", "options", "error"),
    [
        (SCORES, LABELS + 1, None, {}, ExecutionError),
        (SCORES, LABELS - 1, None, {}, ExecutionError),
        (SCORES, LABELS[:2], None, {}, ShapeError),
        (SCORES, LABELS, WEIGHTS[:4], {}, ShapeError),
        (SCORES, LABELS, None, {"reduction": "max"}, InvalidModelError),
        (SCORES[0, :, 0, 0], LABELS[0, 0, 0], None, {}, ShapeError),
    ],
)
def test_mismatched_inputs_are_refused(
    scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        eager("SoftmaxCrossEntropyLoss", [scores, np.asarray(labels), weights], **options)
