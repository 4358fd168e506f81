"""Detectors of drift in a stream of losses or mistakes."""

from __future__ import annotations

import math
from typing import Any, Protocol

from sardonyx.base.option_checks import require_count, require_number
from sardonyx.errors import MissingDependencyError, OptionError


class Detector(Protocol):
    """A detector; those of River have this form too."""

    drift_detected: bool

    def update(self, x: float) -> Any:
        """Observe one number, and set ``drift_detected``."""


class PageHinkley:
    """Page's test for an increase of the mean (Page, 1954): the cumulative sum above its minimum.

    Args:
        delta: Increase that is tolerated.
        threshold: Height of the sum that signals a drift.
        warm_up: Numbers before the first signal.
    """

    def __init__(self, *, delta: float = 0.005, threshold: float = 50.0, warm_up: int = 30) -> None:
        require_number(delta, "delta", least=0)
        require_number(threshold, "threshold", above=0)
        require_count(warm_up, "warm_up", least=0)
        self._delta, self._threshold, self._warm_up = delta, threshold, warm_up
        self.drift_detected = False
        self._reset()

    def _reset(self) -> None:
        self._count, self._mean, self._sum, self._least = 0, 0.0, 0.0, 0.0

    def update(self, x: float) -> None:
        """Observe one number."""
        if self.drift_detected:
            self._reset()
        self._count += 1
        self._mean += (x - self._mean) / self._count
        self._sum += x - self._mean - self._delta
        self._least = min(self._least, self._sum)
        self.drift_detected = self._count >= self._warm_up and self._sum - self._least > self._threshold


class DDM:
    """Drift detection from the rate of mistakes (Gama et al., 2004): three standard deviations above the best rate.

    Args:
        deviations: Standard deviations above the best rate that signal a drift.
        warm_up: Numbers before the first signal.
    """

    def __init__(self, *, deviations: float = 3.0, warm_up: int = 30) -> None:
        require_number(deviations, "deviations", above=0)
        require_count(warm_up, "warm_up", least=0)
        self._deviations, self._warm_up = deviations, warm_up
        self.drift_detected = False
        self._reset()

    def _reset(self) -> None:
        self._count, self._rate = 0, 0.0
        self._best, self._best_deviation = math.inf, math.inf

    def update(self, x: float) -> None:
        """Observe 1 for a mistake, 0 for none."""
        if self.drift_detected:
            self._reset()
        self._count += 1
        self._rate += (float(x > 0.5) - self._rate) / self._count
        deviation = math.sqrt(self._rate * (1 - self._rate) / self._count)
        self.drift_detected = False
        if self._count < self._warm_up:
            return
        if self._rate + deviation < self._best + self._best_deviation:
            self._best, self._best_deviation = self._rate, deviation
        self.drift_detected = self._rate + deviation > self._best + self._deviations * self._best_deviation


def detector_of(detector: Detector | str | None) -> Detector | None:
    """Return a detector: an instance, ``"page-hinkley"``, ``"ddm"``, or ``"adwin"`` of River.

    Raises:
        OptionError: Unknown name.
        MissingDependencyError: River is not installed.
    """
    if detector is None or not isinstance(detector, str):
        return detector
    if detector == "page-hinkley":
        return PageHinkley()
    if detector == "ddm":
        return DDM()
    if detector == "adwin":
        try:
            from river.drift import ADWIN
        except ImportError as error:
            raise MissingDependencyError(
                "ADWIN requires river.", remedy='Install it: pip install "sardonyx[online]".'
            ) from error
        adwin: Detector = ADWIN()
        return adwin
    raise OptionError(f"expected 'adwin', 'ddm' or 'page-hinkley', got {detector!r}.", where="drift")
