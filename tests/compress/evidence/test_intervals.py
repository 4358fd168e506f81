"""Intervals hold the true change as often as stated, also for few samples."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sardonyx.compress.evidence.intervals import (
    FEWEST_SAMPLES,
    Pairs,
    proportion_interval,
    samples_for,
    samples_for_proportion,
    statistic_interval,
    student_quantile,
)


def test_the_interval_of_a_proportion_is_the_published_one() -> None:
    interval = proportion_interval(Pairs(36, 2, 12, 0))
    assert interval == pytest.approx((0.0569, 0.3404), abs=1e-4)


@pytest.mark.parametrize("n", [20, 100])
def test_intervals_of_proportions_hold_the_true_change(n: int) -> None:
    rng = np.random.default_rng(0)
    true = np.array([0.85, 0.05, 0.02, 0.08])
    held = 0
    for counts in rng.multinomial(n, true, 2000):
        interval = proportion_interval(Pairs(*counts.astype(float)))
        held += interval.low <= true[2] - true[1] <= interval.high
    assert held / 2000 > 0.94


def test_equal_answers_of_few_samples_prove_little() -> None:
    few, many = (proportion_interval(Pairs(0.9 * n, 0, 0, 0.1 * n)) for n in (20, 20_000))
    assert few.low < -0.05
    assert many.low > -0.001


@pytest.mark.parametrize("n", [10, 40])
def test_intervals_of_means_hold_the_true_change(n: int) -> None:
    rng = np.random.default_rng(1)
    held = 0
    for trial in range(300):
        before = rng.exponential(1.0, n)
        interval = statistic_interval(before, before + rng.exponential(0.3, n) - 0.2, None, trial)
        assert interval is not None
        held += interval.low <= 0.1 <= interval.high
    assert held / 300 > 0.89  # Skewed differences of ten samples: Student's interval holds in 90 % as well.


def test_the_bootstrap_is_the_same_for_a_seed() -> None:
    rng = np.random.default_rng(2)
    before, after = rng.random((2, 50))
    assert statistic_interval(before, after, None, 7) == statistic_interval(before, after, None, 7)
    assert statistic_interval(before, after, None, 7) != statistic_interval(before, after, None, 8)


def test_a_statistic_and_the_mean_have_similar_intervals() -> None:
    rng = np.random.default_rng(3)
    before = rng.standard_normal(60)
    after = before + 0.1 * rng.standard_normal(60)
    mean = statistic_interval(before, after, None, 0)
    same = statistic_interval(before, after, lambda rows: float(rows.mean()), 0)
    assert mean is not None and same is not None
    assert same == pytest.approx(mean, abs=0.015)


def test_too_few_samples_have_no_interval() -> None:
    scores = np.arange(FEWEST_SAMPLES - 1.0)
    assert statistic_interval(scores, scores + 1, None, 0) is None


def test_scores_that_never_differ_still_leave_room_for_rare_changes() -> None:
    scores = np.linspace(0, 1, 20)
    interval = statistic_interval(scores, scores, None, 0)
    assert interval is not None
    assert interval.low == pytest.approx(-(1 - 0.05 ** (1 / 20)))


@pytest.mark.parametrize("freedom, expected", [(1, 12.706), (2, 4.303), (3, 3.182), (7, 2.365), (30, 2.042)])
def test_quantiles_of_student(freedom: int, expected: float) -> None:
    assert student_quantile(0.975, freedom) == pytest.approx(expected, rel=2e-3)


def test_the_needed_samples_suffice() -> None:
    pairs = Pairs(440, 6, 4, 50)
    needed = samples_for_proportion(pairs, -0.01)
    assert needed is not None and needed > 500
    assert proportion_interval(pairs.times(needed / 500)).low >= -0.01
    assert proportion_interval(pairs.times(0.9 * needed / 500)).low < -0.01
    assert samples_for_proportion(pairs, -0.004) is None  # The measured loss is at the limit.
    assert samples_for(-0.2, -0.1, -0.15, 50) == math.ceil(50 * 4)
    assert samples_for(-0.2, -0.1, -0.1, 50) is None
