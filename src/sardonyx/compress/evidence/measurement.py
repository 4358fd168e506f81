"""Measurements of a model by a caller's function: a number, and scores per sample if there are any."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.compress.evidence.intervals import Statistic
from sardonyx.errors import EvaluationError, OptionError, SardonyxError
from sardonyx.runtime.session import Session


@dataclass(frozen=True)
class Measurement:
    """The metric of one model; higher is better.

    Attributes:
        value: The metric.
        scores: Scores per sample, one row a sample; None if there are none.
        statistic: The function from rows of scores to the metric; None for their mean, or if there are no scores.
        scale: The metric over the statistic, 100 for percent.
        lower_is_better: True if the metric is usually shown with the opposite sign: an error, or perplexity.
    """

    value: float
    scores: np.ndarray | None = None
    statistic: Statistic | None = None
    scale: float = 1.0
    lower_is_better: bool = False

    @property
    def shown(self) -> float:
        """The metric with its usual sign."""
        return -self.value if self.lower_is_better else self.value


Evaluate = Callable[[Session], "float | tuple[float, Sequence[float] | np.ndarray | None] | Measurement"]
"""A function of a session that returns a number, or a number with scores per sample; higher is better.

The number is the mean of the scores, 100 times the mean, or minus the perplexity of log-likelihoods as scores; a
:class:`Measurement` states any other relation.
"""


def measure(session: Session, evaluate: Evaluate) -> Measurement:
    """Return the metric of a session.

    Raises:
        EvaluationError: The function raised, or its number or a score is not finite.
        OptionError: The function returned something else, or its number is not one of its scores.
    """
    try:
        answer: Any = evaluate(session)
    except SardonyxError:
        raise
    except Exception as error:  # The function is the caller's: any exception is possible.
        raise EvaluationError(
            f"the function raised {type(error).__name__}: {error}",
            where="evaluate",
            remedy="Call the function with a Session of the original model to see the whole traceback.",
        ) from error
    result = answer if isinstance(answer, Measurement) else _measurement(answer)
    if not math.isfinite(result.value):
        raise EvaluationError(f"expected a finite number, got {result.value}.", where="evaluate")
    return result


def _measurement(answer: Any) -> Measurement:
    value, scores = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, None)
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise OptionError(
            f"expected a number, or a number and scores per sample, got {type(answer).__name__}.", where="evaluate"
        )
    if scores is None:
        return Measurement(float(value))
    try:
        rows = np.asarray(scores, np.float64)
    except (TypeError, ValueError) as error:
        raise OptionError(f"expected scores as numbers: {error}", where="evaluate") from error
    if rows.ndim != 1 or not rows.size:
        raise OptionError(f"expected one score a sample, got the shape {list(rows.shape)}.", where="evaluate")
    if not np.isfinite(rows).all():
        raise EvaluationError("expected finite scores, got scores that are not finite.", where="evaluate")
    return _related(float(value), rows)


def _related(value: float, rows: np.ndarray) -> Measurement:
    """Return the measurement whose statistic of the scores is the number."""
    mean = float(rows.mean())
    for scale in (1.0, 100.0):
        if math.isclose(value, scale * mean, rel_tol=1e-5, abs_tol=1e-9):
            return Measurement(value, rows, None, scale)
    if math.isclose(value, minus_perplexity(rows), rel_tol=1e-5):
        return Measurement(value, rows, minus_perplexity, lower_is_better=True)
    raise OptionError(
        f"expected the number to be the mean of the scores ({mean:.6g}), 100 times the mean, or minus the perplexity "
        f"of the scores, got {value:.6g}.",
        where="evaluate",
        remedy="Return the number alone, or a Measurement with the statistic.",
    )


def minus_perplexity(rows: np.ndarray) -> float:
    """Return minus the perplexity of log-likelihoods, shape [samples]."""
    mean = float(rows.mean())
    return -math.exp(-mean) if mean > -700 else -math.inf
