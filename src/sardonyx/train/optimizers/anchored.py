"""Elastic weight consolidation (Kirkpatrick et al., 2017), a wrapper around an optimizer."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field

from sardonyx.base.option_checks import option
from sardonyx.core.dim import Size
from sardonyx.core.language import Tensor
from sardonyx.errors import OptionError
from sardonyx.train.optimizers.adaptive import AdamW
from sardonyx.train.optimizers.optimizer import Optimizer, Scalars, Slot
from sardonyx.train.schedules import Schedule


@dataclass(frozen=True)
class EWC(Optimizer):
    """Pull each parameter toward its value at the last consolidation, by its importance for the data of that time.

    The gradient of ``strength / 2 * importance * (p - anchor) ** 2`` is added to the gradient of the loss.
    :meth:`Trainer.consolidate` adds the mean squared gradients of samples to the importances, and moves the anchors.
    Before the first consolidation the importances are zero.

    Attributes:
        rate: The learning rate; that of the base by default.
        base: The optimizer of the update.
        strength: Factor of the pull.
    """

    rate: float | Schedule = -1.0
    base: Optimizer = field(default_factory=AdamW)
    strength: float = option(1.0, least=0)

    def __post_init__(self) -> None:
        if not isinstance(self.base, Optimizer):
            raise OptionError(f"expected an optimizer, got {self.base!r}.", where="base")
        if isinstance(self.rate, numbers.Real) and self.rate == -1.0:
            object.__setattr__(self, "rate", self.base.rate)
        super().__post_init__()

    def slots(self, shape: tuple[Size, ...]) -> tuple[Slot, ...]:
        return (*self.base.slots(shape), Slot("importance", shape), Slot("anchor", shape))

    @property
    def depends_on_step(self) -> bool:
        return self.base.depends_on_step

    def scalars(self, step: int, rate: float) -> dict[str, float]:
        return self.base.scalars(step, rate)

    def update(self, p: Tensor, g: Tensor, state: Mapping[str, Tensor], s: Scalars) -> tuple[Tensor, dict[str, Tensor]]:
        importance, anchor = state["importance"], state["anchor"]
        new, slots = self.base.update(p, g + self.strength * importance * (p - anchor), state, s)
        return new, {**slots, "importance": importance, "anchor": anchor}
