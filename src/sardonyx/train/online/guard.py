"""The guard of publications: a non-inferiority test on samples that no step has learned from."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sardonyx.base.option_checks import option, require_options
from sardonyx.errors import OptionError
from sardonyx.train.online.replay import Sample

Decision = Literal["publish", "wait", "undo"]


@dataclass(frozen=True)
class Guard:
    """Publish new weights only if held-back samples show that the weights are no worse.

    Every ``every``-th sample of the stream is held back in a window, and no step learns from the sample while the
    window holds it. New weights are published when the upper bound of the mean difference of the losses is below the
    tolerance, and undone when the lower bound is above. Both bounds are widened with each test, so that over the whole
    stream a wrong decision is rarer than one minus the confidence.

    Attributes:
        every: One of so many samples is held back.
        window: Most samples held back.
        least: Samples before the first publication.
        tolerance: Increase of the mean loss that is tolerated, as a share of the mean loss.
        confidence: The confidence of all tests together.
    """

    every: int = option(8, least=2)
    window: int = option(256, least=2)
    least: int = option(16, least=2)
    tolerance: float = option(0.02, least=0)
    confidence: float = option(0.95, above=0, below=1)

    def __post_init__(self) -> None:
        require_options(self)
        if self.least > self.window:
            raise OptionError(f"expected least <= window, got {self.least}, {self.window}.", where="guard")


class GuardState:
    """Held-back samples and the number of tests."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.samples: deque[Sample] = deque(maxlen=guard.window)
        self.tests = 0
        self._seen = 0

    def hold_back(self, batch: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], int]:
        """Hold samples of a batch back; a sample that leaves the window takes the place of the one that enters.

        Returns:
            The samples to learn from, and the number of those that were held back.
        """
        count = len(next(iter(batch.values())))
        is_held = np.arange(self._seen + 1, self._seen + count + 1) % self.guard.every == 0
        self._seen += count
        learned, is_learned = {name: np.array(array) for name, array in batch.items()}, ~is_held
        for i in np.flatnonzero(is_held):
            if len(self.samples) == self.samples.maxlen:
                for name, value in self.samples.popleft().items():
                    learned[name][i] = value
                is_learned[i] = True
            self.samples.append({name: np.array(array[i]) for name, array in batch.items()})
        return {name: array[is_learned] for name, array in learned.items()}, int(is_held.sum())

    def decide(self, published: np.ndarray, new: np.ndarray) -> Decision:
        """Return the decision from the losses of the held-back samples under published and new weights."""
        if len(published) < self.guard.least:
            return "wait"
        if not np.isfinite(new).all():
            return "undo"
        self.tests += 1
        difference = (new - published).astype(np.float64)
        mean, error = float(difference.mean()), float(difference.std(ddof=1)) / math.sqrt(len(difference))
        # The shares 6 / (pi k)^2 of all tests sum to one (union bound).
        share = (1 - self.guard.confidence) * 6 / (math.pi * self.tests) ** 2
        bound = _normal_quantile(1 - share / 2) * error
        margin = self.guard.tolerance * abs(float(published.mean()))
        if mean + bound <= margin:
            return "publish"
        return "undo" if mean - bound > margin else "wait"


def _normal_quantile(p: float) -> float:
    """Return the quantile of the standard normal distribution."""
    from statistics import NormalDist

    return NormalDist().inv_cdf(min(max(p, 1e-12), 1 - 1e-12))
