"""The protocol of optimizers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sardonyx.base.option_checks import option, require_number, require_options
from sardonyx.core.dim import Size
from sardonyx.core.language import Tensor
from sardonyx.train.schedules import Schedule

Scalars = Mapping[str, Tensor]
"""Numbers of a step by name, as float32 scalars."""


class Slot(NamedTuple):
    """One tensor of an optimizer's state for a parameter.

    Attributes:
        name: The name, for checkpoints.
        shape: The shape.
        initial: The value of all elements before the first step.
    """

    name: str
    shape: tuple[Size, ...]
    initial: float = 0.0


@dataclass(frozen=True)
class Optimizer(ABC):
    """Base class of optimizers; formulas are those of ``torch.optim`` unless the class states otherwise.

    Attributes:
        rate: The learning rate, or a schedule of rates.
        weight_decay: Decay of the parameters, added to the gradient unless the class decouples it.
    """

    rate: float | Schedule = 1e-3
    weight_decay: float = option(0.0, least=0)

    def __post_init__(self) -> None:
        if not isinstance(self.rate, Schedule):
            require_number(self.rate, "rate", least=0)
        require_options(self, besides=["rate"])

    def slots(self, shape: tuple[Size, ...]) -> tuple[Slot, ...]:
        """Return the state of a parameter of this shape."""
        return ()

    @property
    def can_update_rows(self) -> bool:
        """True if a step may leave rows of zero gradient as they are, as ``sparse`` of :class:`.Trainer` states."""
        return False

    def scalars(self, step: int, rate: float) -> dict[str, float]:
        """Return the numbers of a step, computed in double precision.

        Args:
            step: The number of the step, from 1.
            rate: The learning rate of the step.
        """
        return {"rate": rate}

    @property
    def depends_on_step(self) -> bool:
        """True if :meth:`scalars` may differ between steps of the same rate."""
        return type(self).scalars is not Optimizer.scalars

    @abstractmethod
    def update(self, p: Tensor, g: Tensor, state: Mapping[str, Tensor], s: Scalars) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the new parameter and the new state, traced over Core.

        Args:
            p: The parameter.
            g: Its gradient.
            state: The slots by name.
            s: The scalars of the step.
        """

    def decayed(self, p: Tensor, g: Tensor) -> Tensor:
        """Return the gradient with the decay of the parameter."""
        return g + self.weight_decay * p if self.weight_decay else g
