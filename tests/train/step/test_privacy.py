"""Private gradients are means of clipped gradients of samples, with noise of the stated deviation."""

from __future__ import annotations

import numpy as np
import pytest

from sardonyx import train
from sardonyx.errors import OptionError
from tests.train.networks import classifier, images, points, regression


def moved(privacy: train.Privacy | None, data: dict[str, np.ndarray], seed: int = 0) -> np.ndarray:
    """Return the change of all parameters by a step of length 1 along the gradient."""
    trainer = train.Trainer(regression(), "mse", train.SGD(1.0), privacy=privacy, seed=seed)
    before = trainer.state()
    trainer.step(data)
    after = trainer.state()
    return np.concatenate([(before[name] - after[name]).ravel() for name in before])


def test_without_noise_the_step_is_the_mean_of_clipped_gradients() -> None:
    data = points(9)
    rows = [moved(None, {name: array[i : i + 1] for name, array in data.items()}) for i in range(9)]
    lengths = [np.linalg.norm(row) for row in rows]
    limit = float(np.median(lengths))
    expected = np.mean([row * min(1, limit / length) for row, length in zip(rows, lengths, strict=True)], 0)
    np.testing.assert_allclose(moved(train.Privacy(limit, 0.0), data), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(moved(train.Privacy(1e6, 0.0), data), moved(None, data), rtol=1e-4, atol=1e-6)


def test_the_noise_is_normal_and_follows_the_seed() -> None:
    data = points(4)
    plain = moved(train.Privacy(0.5, 0.0), data)
    noise = np.array([moved(train.Privacy(0.5, 3.0), data, seed) - plain for seed in range(40)]) * 4 / 1.5
    assert abs(noise.mean()) < 0.2 and abs(noise.std() - 1) < 0.12
    np.testing.assert_array_equal(moved(train.Privacy(0.5, 3.0), data, 3), moved(train.Privacy(0.5, 3.0), data, 3))


def test_a_private_training_learns() -> None:
    options = {"privacy": train.Privacy(1.0, 0.5)}
    trainer = train.Trainer(classifier(dropout=0.1), "cross-entropy", train.AdamW(0.02), **options)
    losses = [trainer.step(images(64, seed)) for seed in range(30)]
    assert np.mean(losses[-5:]) < 0.8 * losses[0]


def test_impossible_privacy_is_refused() -> None:
    with pytest.raises(OptionError, match="clip"):
        train.Privacy(0.0)
    with pytest.raises(OptionError, match="statistics of a batch"):
        train.Trainer(classifier(normalized=True), "cross-entropy", privacy=train.Privacy())
    with pytest.raises(OptionError, match="one batch"):
        train.Trainer(regression(), "mse", privacy=train.Privacy(), accumulate=2)
    with pytest.raises(OptionError, match="batch_size"):
        train.Privacy().epsilon(10, 20, 5)


def test_epsilon_is_that_of_the_accountant() -> None:
    pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    epsilon = train.Privacy(1.0, 1.1).epsilon(60000, 256, 60 * 235, 1e-5)
    assert 2.5 < epsilon < 3.1  # The tutorial of TensorFlow Privacy reports 3.0 by an older account.
    assert train.Privacy(1.0, 0.0).epsilon(100, 10, 1) == np.inf
