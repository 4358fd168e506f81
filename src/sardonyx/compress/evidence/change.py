"""The change of a metric from one model to another, with its paired interval and a verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from sardonyx.compress.evidence.intervals import (
    CONFIDENCE,
    FEWEST_SAMPLES,
    Interval,
    Pairs,
    proportion_interval,
    samples_for,
    samples_for_proportion,
    statistic_error,
    statistic_interval,
)
from sardonyx.compress.evidence.measurement import Evaluate, Measurement, measure
from sardonyx.errors import OptionError
from sardonyx.runtime.session import Session

Verdict = Literal["kept", "not kept", "not judged"]
"""The budget of a metric: the interval of the loss is inside; the loss is outside; too little is known."""


@dataclass(frozen=True)
class MetricChange:
    """A metric before and after.

    Attributes:
        before: The metric of the original, with its usual sign.
        after: The metric of the result.
        loss: The loss, positive if the result is worse.
        interval: The interval of the loss that holds with 95 % for all comparisons at the same time; None if unknown.
        samples: The number of samples; 0 if the function returns no scores.
        drop: The largest permitted loss; None without a budget.
        comparisons: Results that were measured on the same samples before one was selected.
        verdict: The verdict.
        reason: The verdict in words.
        needed: Samples for which the interval of such a loss would be inside the budget; None if unknown, not needed,
            or more than ten million.
    """

    before: float
    after: float
    loss: float
    interval: tuple[float, float] | None
    samples: int
    drop: float | None
    comparisons: int
    verdict: Verdict
    reason: str
    needed: int | None = None


def compare_metrics(
    before: ir.Model | Session, after: ir.Model | Session, evaluate: Evaluate, drop: float | None = None, seed: int = 0
) -> MetricChange:
    """Measure two models and return the change of the metric.

    Args:
        before: The original, as a model or a session.
        after: The result.
        evaluate: The function that measures a session; higher is better.
        drop: The largest permitted loss, in the units of the metric; None claims nothing.
        seed: The seed of the bootstrap.

    Raises:
        EvaluationError: The function raised, or returned a number that is not finite.
        OptionError: The function returned something else, or the budget is negative.
    """
    first, second = (
        # One session at a time: each holds a copy of the weights.
        measure(model if isinstance(model, Session) else Session(model, compile="wait"), evaluate)
        for model in (before, after)
    )
    return metric_change(first, second, drop, seed=seed)


def require_metric(drop: float | None, evaluate: Evaluate | None) -> None:
    """Check the largest permitted loss of a metric, ahead of long work.

    Raises:
        OptionError: There is no metric, or the loss is negative or not finite.
    """
    _require_drop(drop)
    if drop is not None and evaluate is None:
        raise OptionError("a permitted loss needs a metric.", where="drop", remedy="Give `evaluate`.")


def _require_drop(drop: float | None) -> None:
    if drop is not None and not (isinstance(drop, (int, float)) and 0 <= drop < float("inf")):
        raise OptionError(f"expected a number of 0 or more, got {drop!r}.", where="drop")


def metric_change(
    before: Measurement, after: Measurement, drop: float | None = None, *, comparisons: int = 1, seed: int = 0
) -> MetricChange:
    """Return the change between two measurements on the same samples.

    Args:
        before: The measurement of the original.
        after: The measurement of the result.
        drop: The largest permitted loss; None claims nothing.
        comparisons: Results that were measured on these samples before this one was selected: the interval is widened
            so that it holds for all of them (Bonferroni).
        seed: The seed of the bootstrap.

    Raises:
        OptionError: The budget is negative or not finite, or the numbers of scores differ.
    """
    _require_drop(drop)
    loss = before.value - after.value
    interval, needed, samples = _interval(before, after, drop, 1 - (1 - CONFIDENCE) / comparisons, seed)
    bounds = None if interval is None else (-interval.high, -interval.low)
    verdict, reason = _verdict(loss, bounds, drop, samples, needed)
    return MetricChange(
        before.shown, after.shown, loss, bounds, samples, drop, comparisons, verdict, reason,
        needed if verdict == "not judged" else None,
    )  # fmt: skip


def standard_error(before: Measurement, after: Measurement, seed: int = 0) -> float:
    """Return the standard error of the loss between two measurements on the same samples; 0 without scores.

    Args:
        before: The measurement of the original.
        after: The measurement of the result.
        seed: The seed of the bootstrap of a metric that is not a mean.
    """
    if before.scores is None or after.scores is None or len(before.scores) != len(after.scores):
        return 0.0
    if before.statistic is None:
        differences = after.scores.astype(np.float64) - before.scores
        return abs(before.scale) * float(differences.std()) / math.sqrt(max(len(differences) - 1, 1))
    return abs(before.scale) * statistic_error(before.scores, after.scores, before.statistic, seed)


def _interval(
    before: Measurement, after: Measurement, drop: float | None, confidence: float, seed: int
) -> tuple[Interval | None, int | None, int]:
    """Return the interval of the change in units of the metric, the samples needed, and the samples."""
    if before.scores is None or after.scores is None:
        return None, None, 0
    n = len(before.scores)
    if n != len(after.scores):
        raise OptionError(
            f"expected the same samples for both models, got {n} and {len(after.scores)} scores.", where="evaluate"
        )
    scale, limit = before.scale, None if drop is None else -drop / before.scale
    if before.statistic is None and _are_binary(before.scores) and _are_binary(after.scores):
        pairs = Pairs.of(before.scores, after.scores)
        bounds = proportion_interval(pairs, confidence)
        needed = None if limit is None else samples_for_proportion(pairs, limit, confidence)
        return Interval(bounds.low * scale, bounds.high * scale), needed, n
    if n < FEWEST_SAMPLES:
        return None, FEWEST_SAMPLES, n
    interval = statistic_interval(before.scores, after.scores, before.statistic, seed, confidence)
    if interval is None:
        return None, None, n
    bounds = Interval(interval.low * scale, interval.high * scale)
    change = after.value - before.value
    needed = None if drop is None else samples_for(bounds.low, change, -drop, n)
    return bounds, needed, n


def _are_binary(scores: np.ndarray) -> bool:
    return scores.ndim == 1 and scores.dtype != object and bool(np.isin(scores, (0, 1)).all())


def _verdict(
    loss: float, bounds: tuple[float, float] | None, drop: float | None, samples: int, needed: int | None
) -> tuple[Verdict, str]:
    if drop is None:
        return "not judged", "no budget was stated"
    if loss > drop:
        return "not kept", f"the measured loss {loss:.4g} is above the budget {drop:g}"
    more = f"about {needed:,} samples are needed" if needed is not None else "more samples are needed"
    if bounds is None:
        if not samples:
            return "not judged", "the evaluate function returns no scores per sample, so the loss has no interval"
        return "not judged", f"{samples} samples are too few for an interval; {more}"
    if bounds[1] <= drop:
        return "kept", f"the loss is at most {bounds[1]:.4g} with 95 % confidence, the budget {drop:g}"
    return "not judged", (
        f"{samples} samples bound the loss by {bounds[1]:.4g}, the budget is {drop:g}; {more} for a loss of {loss:.4g}"
    )
