"""Random numbers: numpy's legacy sequence by seed, the specified distribution, and dropout that preserves the mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.errors import ExecutionError, InvalidModelError
from sardonyx.runtime import Session
from tests.ops.agreement import assert_equal, by_session, eager, model_of, traced


@pytest.mark.parametrize("dtype", [1, 10, 11, 16])
@pytest.mark.parametrize("name", ["RandomNormal", "RandomUniform"])
def test_seeds_reproduce_numpys_legacy_sequence(name: str, dtype: int) -> None:
    normal = name == "RandomNormal"
    options: dict[str, Any] = {"mean": 3.0, "scale": 2.0} if normal else {"low": 1.0, "high": 5.0}
    (actual,) = eager(name, [], shape=(3, 4), seed=7.0, dtype=dtype, **options)
    state = np.random.RandomState(7)
    expected = 3 + 2 * state.standard_normal((3, 4)) if normal else 1 + 4 * state.random_sample((3, 4))
    np.testing.assert_array_equal(actual, expected.astype(actual.dtype))
    x = np.zeros((3, 4), np.float32)
    like = eager(name + "Like", [x], seed=7.0, dtype=dtype, **options)
    assert_equal(like, [actual])
    assert_equal(traced(name + "Like", [x], ["N M"], seed=7.0, dtype=dtype, **options), [actual])


def test_without_a_seed_runs_differ_and_nodes_do_too() -> None:
    model = model_of("RandomUniform", [], opset=22, outputs=1, shape=[100])
    again = model_of("RandomUniform", [], opset=22, outputs=1, shape=[100])
    again.graph.node[0].name = "other"
    session = Session(model)
    first, second = session.run(None, {})[0], session.run(None, {})[0]
    assert (first != second).any()
    assert (first != by_session(again, [])[0]).any()
    assert first.min() >= 0 and first.max() < 1 and abs(first.mean() - 0.5) < 0.15


def test_random_like_integers_is_refused() -> None:
    with pytest.raises(InvalidModelError):
        eager("RandomNormalLike", [np.zeros(3, np.int32)])


def test_bernoulli_draws_ones_by_probability() -> None:
    p = np.repeat(np.array([0.0, 0.25, 1.0], np.float32), 4000).reshape(3, 4000)
    (actual,) = eager("Bernoulli", [p], seed=3.0, dtype=6)
    assert actual.dtype == np.int32
    np.testing.assert_allclose(actual.mean(1), [0, 0.25, 1], atol=0.02)
    assert_equal(traced("Bernoulli", [p], ["N M"], seed=3.0, dtype=6), [actual])


def test_multinomial_draws_classes_by_weight() -> None:
    logits = np.log(np.array([[1, 2, 1, 1e-9], [1e-9, 1e-9, 1e-9, 5]], np.float32))
    (actual,) = eager("Multinomial", [logits], seed=1.0, sample_size=8000, dtype=7)
    assert actual.shape == (2, 8000) and actual.dtype == np.int64
    np.testing.assert_allclose(np.bincount(actual[0], minlength=4) / 8000, [0.25, 0.5, 0.25, 0], atol=0.02)
    assert (actual[1] == 3).all()
    assert_equal(traced("Multinomial", [logits], ["N C"], seed=1.0, sample_size=8000, dtype=7), [actual])


@pytest.mark.parametrize("ratio", [None, 0.0, 0.3])
def test_dropout_in_training(ratio: float | None) -> None:
    x = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    arrays = [x, None if ratio is None else np.array(ratio, np.float32), np.array(True)]
    actual = eager("Dropout", arrays, outputs=2, seed=5)
    rate = np.float64(0.5 if ratio is None else np.float32(ratio))
    mask = np.random.RandomState(5).random_sample((3, 4)) >= rate
    assert_equal(actual, [np.where(mask, x * np.float32(1 / (1 - rate)), 0), mask])
    assert_equal(traced("Dropout", arrays, ["N M", "", ""], outputs=2, seed=5), actual)


@pytest.mark.parametrize(
    ("opset", "options", "mask"),
    [
        (1, {"is_test": 1}, np.float32),
        (6, {"is_test": 1}, np.float32),
        (7, {}, np.float32),
        (10, {}, np.bool_),
        (12, {}, np.bool_),
        (22, {}, np.bool_),
    ],
)
def test_dropout_in_inference_changes_nothing(opset: int, options: dict[str, int], mask: type[Any]) -> None:
    x = np.ones((2, 3), np.float32)
    assert_equal(eager("Dropout", [x], opset=opset, outputs=2, **options), [x, np.ones((2, 3), mask)])  # type: ignore[arg-type]


def test_the_first_dropout_trains_by_default() -> None:
    x = np.ones(10_000, np.float32)
    y, mask = eager("Dropout", [x], opset=6, outputs=2, ratio=0.75)
    assert set(np.unique(y)) == {0, 4} and abs(y.mean() - 1) < 0.1
    np.testing.assert_array_equal(mask, y / 4)


def test_a_ratio_out_of_range_is_refused() -> None:
    with pytest.raises(ExecutionError, match="ratio"):
        eager("Dropout", [np.ones(3, np.float32), np.array(1.0, np.float32), np.array(True)])
