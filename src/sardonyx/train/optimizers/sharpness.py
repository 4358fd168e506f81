"""Sharpness-aware minimization (Foret et al., 2021), a wrapper around an optimizer."""

from __future__ import annotations

from dataclasses import dataclass, field

from sardonyx.base.option_checks import option, require_options
from sardonyx.errors import OptionError
from sardonyx.train.optimizers.adaptive import AdamW
from sardonyx.train.optimizers.optimizer import Optimizer


@dataclass(frozen=True)
class SAM:
    """Take the gradient at the parameters moved by ``rho`` along the gradient of the batch.

    A step computes two gradients of the same batch.

    Attributes:
        base: The optimizer of the update.
        rho: Length of the move.
    """

    base: Optimizer = field(default_factory=AdamW)
    rho: float = option(0.05, above=0)

    def __post_init__(self) -> None:
        require_options(self)
        if not isinstance(self.base, Optimizer):
            raise OptionError(f"expected an optimizer, got {self.base!r}.", where="base")
