"""Learning rates by step.

A schedule is a value: the rate depends on the step alone, and on the metrics of past epochs for ``Plateau``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sardonyx.base.option_checks import option, require_count, require_options
from sardonyx.errors import OptionError


@dataclass(frozen=True)
class Schedule:
    """Base class of schedules.

    Attributes:
        rate: The largest learning rate.
    """

    rate: float = option(1e-3, least=0)

    def __post_init__(self) -> None:
        require_options(self)

    def at(self, step: int, total: int | None = None) -> float:
        """Return the rate of a step.

        Args:
            step: The number of the step, from 1.
            total: The number of steps of the training; None if unknown.

        Raises:
            OptionError: The schedule needs the number of steps, and it is unknown.
        """
        return self.rate


class Constant(Schedule):
    """One rate for all steps."""


@dataclass(frozen=True)
class Steps(Schedule):
    """The rate times ``factor`` after each milestone.

    Attributes:
        milestones: Numbers of steps after which the rate shrinks.
        factor: The factor.
    """

    milestones: Sequence[int] = ()
    factor: float = option(0.1, least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        milestones: Any = self.milestones
        if isinstance(milestones, str) or not isinstance(milestones, Sequence):
            raise OptionError(f"expected a sequence of steps, got {milestones!r}.", where="milestones")
        for milestone in milestones:
            require_count(milestone, "milestones", least=0)

    def at(self, step: int, total: int | None = None) -> float:
        return self.rate * self.factor ** sum(step > milestone for milestone in self.milestones)


@dataclass(frozen=True)
class _Decay(Schedule):
    """A warm-up from 0, then a decay to a share of the rate.

    Attributes:
        steps: Number of steps; that of the training by default.
        warmup: Steps of the linear warm-up.
        final: The rate after the last step, as a share of the largest.
    """

    steps: int | None = option(None, kind=int, least=1)
    warmup: int = option(0, least=0)
    final: float = option(0.0, least=0)

    def at(self, step: int, total: int | None = None) -> float:
        if step <= self.warmup:
            return self.rate * step / max(self.warmup, 1)
        length = _length(self.steps or total)
        share = min(1.0, (step - 1 - self.warmup) / max(1, length - self.warmup))
        return self.rate * (self.final + (1 - self.final) * self._remaining(share))

    def _remaining(self, share: float) -> float:
        """Return the part of the decay that remains, from 1 to 0, after a share of the steps."""
        return 1 - share


class Linear(_Decay):
    """A warm-up from 0, then a line down to a share of the rate; without warm-up as ``torch``'s ``LinearLR``."""


class CosineDecay(_Decay):
    """A warm-up from 0, then half a cosine down to a share of the rate.

    Without warm-up the rates are those of ``torch.optim.lr_scheduler.CosineAnnealingLR``.
    """

    def _remaining(self, share: float) -> float:
        return 0.5 * (1 + math.cos(math.pi * share))


@dataclass(frozen=True)
class OneCycle(Schedule):
    """Up from a share of the rate and down to a smaller one, both by half a cosine (Smith and Topin, 2019).

    Attributes:
        steps: Number of steps; that of the training by default.
        rise: Share of the steps that go up.
        initial: The first rate is the largest divided by this number.
        final: The last rate is the first divided by this number.
    """

    steps: int | None = option(None, kind=int, least=1)
    rise: float = option(0.3, least=0, most=1)
    initial: float = option(25.0, above=0)
    final: float = option(1e4, above=0)

    def at(self, step: int, total: int | None = None) -> float:
        length = _length(self.steps or total)
        top = max(1.0, self.rise * length - 1)
        low, last = self.rate / self.initial, self.rate / self.initial / self.final
        position = min(step - 1, length - 1)
        if position <= top:
            return _between(low, self.rate, position / top)
        return _between(self.rate, last, (position - top) / max(1.0, length - 1 - top))


@dataclass(frozen=True)
class Plateau(Schedule):
    """The rate times ``factor`` whenever the watched metric has not improved for some evaluations.

    Attributes:
        factor: The factor.
        patience: Evaluations without improvement before the rate shrinks.
        metric: The name in the history; lower is better unless ``higher``.
        higher: If True, higher is better.
        least: The least rate.
    """

    factor: float = option(0.1, least=0)
    patience: int = option(2, least=0)
    metric: str = "validation_loss"
    higher: bool = False
    least: float = option(0.0, least=0)

    def after(self, values: Sequence[float]) -> Plateau:
        """Return the schedule after these values of the metric; the rate is that of the next step."""
        rate, best, waited = self.rate, math.inf, 0
        for value in values:
            score = -value if self.higher else value
            if score < best:
                best, waited = score, 0
            else:
                waited += 1
            if waited > self.patience:
                rate, waited = max(self.least, rate * self.factor), 0
        return replace(self, rate=rate)


def _between(a: float, b: float, share: float) -> float:
    return b + (a - b) * 0.5 * (1 + math.cos(math.pi * share))


def _length(steps: int | None) -> int:
    if steps is None:
        raise OptionError(
            "the schedule needs the number of steps.", where="rate", remedy="Give `steps`, or data of known length."
        )
    return steps


SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "cosine": CosineDecay,
    "linear": Linear,
    "one-cycle": OneCycle,
    "plateau": Plateau,
    "step": Steps,
}
"""Schedules by the name on the command line."""
