"""Confidence intervals of paired changes: two models measured on the same samples.

A change of a proportion has Newcombe's interval, which remains honest for few samples and for no differing sample.
Every other change has the bootstrap over samples, expanded for small samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95

FEWEST_SAMPLES = 8
"""Samples below which the bootstrap has no interval: resamples of fewer repeat each other."""

REPLICATES = 4000
"""Resamples of a mean."""

REPLICATES_OF_OTHERS = 400
"""Resamples of a statistic that is computed anew for each resample."""

REPLICATES_OF_ERRORS = 100
"""Resamples of a standard error."""

MOST_SAMPLES = 10_000_000
"""Largest number of samples that is named as needed."""

Statistic = Callable[[np.ndarray], float]
"""A function of the scores of some samples, one row a sample."""


class Interval(NamedTuple):
    """The interval of a change, after minus before.

    Attributes:
        low: The lower bound.
        high: The upper bound.
    """

    low: float
    high: float


class Pairs(NamedTuple):
    """Counts of samples by success before and after; fractions are allowed.

    Attributes:
        both: Successes of both models.
        lost: Successes of the first model alone.
        gained: Successes of the second model alone.
        neither: Failures of both models.
    """

    both: float
    lost: float
    gained: float
    neither: float

    @classmethod
    def of(cls, before: np.ndarray, after: np.ndarray) -> Pairs:
        """Count samples from scores of 0 and 1, shape [samples]."""
        first, second = before > 0.5, after > 0.5
        counts = (first & second, first & ~second, ~first & second, ~first & ~second)
        return cls(*(float(np.count_nonzero(cases)) for cases in counts))

    @property
    def change(self) -> float:
        """The change of the proportion of successes."""
        return (self.gained - self.lost) / sum(self)

    def times(self, factor: float) -> Pairs:
        """Return the counts of a sample that is larger by a factor."""
        return Pairs(*(count * factor for count in self))


def proportion_interval(pairs: Pairs, confidence: float = CONFIDENCE) -> Interval:
    """Return the interval of the change of a paired proportion.

    Source: R. G. Newcombe, Improved confidence intervals for the difference between binomial proportions based on
    paired data, Statistics in Medicine 17 (1998), method 10: Wilson's intervals of both proportions, combined with
    their correlation.
    """
    n = sum(pairs)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    first, second = (pairs.both + pairs.lost) / n, (pairs.both + pairs.gained) / n
    (low1, high1), (low2, high2) = _wilson(first, n, z), _wilson(second, n, z)
    phi = _correlation(pairs)
    down = _distance(second - low2, high1 - first, phi)
    up = _distance(high2 - second, first - low1, phi)
    change = second - first
    return Interval(max(change - down, -1.0), min(change + up, 1.0))


def _wilson(share: float, n: float, z: float) -> tuple[float, float]:
    centre = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max((centre - spread) / scale, 0.0), min((centre + spread) / scale, 1.0)


def _correlation(pairs: Pairs) -> float:
    """Return the correlation of both successes, with the correction for continuity of method 10."""
    both, lost, gained, neither = pairs
    margins = (both + lost) * (gained + neither) * (both + gained) * (lost + neither)
    if margins <= 0:
        return 0.0
    product = both * neither - lost * gained
    if product > 0:
        product = max(product - sum(pairs) / 2, 0.0)
    return product / math.sqrt(margins)


def _distance(own: float, other: float, phi: float) -> float:
    return math.sqrt(max(own * own - 2 * phi * own * other + other * other, 0.0))


def statistic_interval(
    before: np.ndarray, after: np.ndarray, statistic: Statistic | None, seed: int, confidence: float = CONFIDENCE
) -> Interval | None:
    """Return the bootstrap interval of the change of a statistic.

    Args:
        before: Scores of the first model, one row a sample.
        after: Scores of the second model on the same samples.
        statistic: The statistic; None for the mean of scores of shape [samples].
        seed: The seed of the resamples.
        confidence: Probability that the interval contains the change.

    Returns:
        The interval; None with fewer than ``FEWEST_SAMPLES`` samples, or if most resamples have no statistic (an area
        under a curve with one class alone).

    Source: T. Hesterberg, What teachers should know about the bootstrap, The American Statistician 69 (2015): the
    percentile interval with its tails expanded by Student's t, since percentiles alone are too narrow for few samples.
    """
    n = len(before)
    if n < FEWEST_SAMPLES:
        return None
    rng = np.random.default_rng(seed)
    if statistic is None:
        changes = _changes_of_means(after.astype(np.float64) - before.astype(np.float64), rng)
    else:
        changes = _changes_of_statistics(before, after, statistic, rng, REPLICATES_OF_OTHERS)
    if statistic is None and np.ptp(changes) == 0:
        # No sample differs from the others: as many as the rule of three allows may change by the spread of the scores.
        rare = (1 - (1 - confidence) ** (1 / n)) * float(np.ptp(before))
        return Interval(float(changes[0]) - rare, float(changes[0]) + rare)
    expanded = student_quantile(0.5 + confidence / 2, n - 1) * math.sqrt(n / (n - 1))
    tail = NormalDist().cdf(-expanded)
    changes = changes[np.isfinite(changes)]
    if len(changes) < REPLICATES_OF_OTHERS // 2:
        return None
    low, high = np.quantile(changes, (tail, 1 - tail))
    return Interval(float(low), float(high))


def statistic_error(before: np.ndarray, after: np.ndarray, statistic: Statistic, seed: int) -> float:
    """Return the standard error of the change of a statistic, by the bootstrap; 0 if no resample has one."""
    changes = _changes_of_statistics(before, after, statistic, np.random.default_rng(seed), REPLICATES_OF_ERRORS)
    finite = changes[np.isfinite(changes)]
    return float(finite.std()) if len(finite) else 0.0


def _changes_of_statistics(
    before: np.ndarray, after: np.ndarray, statistic: Statistic, rng: np.random.Generator, replicates: int
) -> np.ndarray:
    changes = np.empty(replicates)
    for number in range(replicates):
        rows = rng.integers(0, len(before), len(before))
        changes[number] = statistic(after[rows]) - statistic(before[rows])
    return changes


def _changes_of_means(differences: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    means = np.empty(REPLICATES)
    part = max(1, min(REPLICATES, (1 << 22) // len(differences)))
    for start in range(0, REPLICATES, part):
        count = min(part, REPLICATES - start)
        means[start : start + count] = differences[rng.integers(0, len(differences), (count, len(differences)))].mean(1)
    return means


def student_quantile(probability: float, freedom: int) -> float:
    """Return a quantile of Student's distribution, within 1 % from two degrees of freedom on.

    Source: the expansion of Cornish and Fisher in powers of 1 / degrees of freedom; Abramowitz and Stegun, 26.7.5.
    """
    if freedom == 1:
        return math.tan(math.pi * (probability - 0.5))
    if freedom == 2:
        return (2 * probability - 1) * math.sqrt(2 / (4 * probability * (1 - probability)))
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms)))


def samples_for(low: float, change: float, limit: float, samples: int) -> int | None:
    """Return the samples for which the lower bound of a change of this size would reach the limit.

    Bounds approach the change as one over the root of the number of samples.

    Args:
        low: The lower bound of the change.
        change: The change.
        limit: The limit, a negative number for a permitted loss.
        samples: The number of samples of this bound.

    Returns:
        The number; None if no number suffices, or only one above ``MOST_SAMPLES``.
    """
    margin = change - limit
    if margin <= 0:
        return None
    needed = math.ceil(samples * ((change - low) / margin) ** 2 - 1e-6)
    return max(needed, samples + 1) if needed <= MOST_SAMPLES else None


def samples_for_proportion(pairs: Pairs, limit: float, confidence: float = CONFIDENCE) -> int | None:
    """Return the samples for which the lower bound of a proportion's change would reach the limit; see above."""
    if pairs.change <= limit:
        return None
    n = sum(pairs)
    low, high = 1.0, 2.0
    while proportion_interval(pairs.times(high), confidence).low < limit:
        low, high = high, high * 2
        if n * high > MOST_SAMPLES:
            return None
    for _ in range(30):
        middle = (low + high) / 2
        if proportion_interval(pairs.times(middle), confidence).low < limit:
            low = middle
        else:
            high = middle
    return math.ceil(n * high)
