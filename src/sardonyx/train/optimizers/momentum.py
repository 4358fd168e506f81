"""Optimizers with running means of gradients alone: SGD, Lion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sardonyx.base.option_checks import option
from sardonyx.core import language as L
from sardonyx.core.dim import Size
from sardonyx.core.language import Tensor
from sardonyx.errors import OptionError
from sardonyx.train.optimizers.optimizer import Optimizer, Scalars, Slot
from sardonyx.train.schedules import Schedule


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent with momentum, as ``torch.optim.SGD``.

    Attributes:
        momentum: Coefficient of the running sum of gradients; 0 has no state.
        dampening: Share of the gradient that the sum leaves out, from the second step on.
        nesterov: If True, the step looks ahead along the momentum.
    """

    rate: float | Schedule = 1e-2
    momentum: float = option(0.0, least=0)
    dampening: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and (not self.momentum or self.dampening):
            raise OptionError("Nesterov's step requires a momentum and no dampening.", where="nesterov")

    def slots(self, shape: tuple[Size, ...]) -> tuple[Slot, ...]:
        return (Slot("momentum", shape),) if self.momentum else ()

    @property
    def can_update_rows(self) -> bool:
        return not self.momentum and not self.weight_decay

    @property
    def depends_on_step(self) -> bool:
        return self.dampening != 0

    def scalars(self, step: int, rate: float) -> dict[str, float]:
        return {"rate": rate, "share": 1.0 if step == 1 else 1.0 - self.dampening}

    def update(self, p: Tensor, g: Tensor, state: Mapping[str, Tensor], s: Scalars) -> tuple[Tensor, dict[str, Tensor]]:
        g = self.decayed(p, g)
        if not self.momentum:
            return p - s["rate"] * g, {}
        v = self.momentum * state["momentum"] + (s["share"] * g if self.dampening else g)
        return p - s["rate"] * (g + self.momentum * v if self.nesterov else v), {"momentum": v}


@dataclass(frozen=True)
class Lion(Optimizer):
    """Signs of a running mean of gradients, with decoupled decay (Chen et al., 2023).

    Attributes:
        beta1: Coefficient of the mean whose sign is the step.
        beta2: Coefficient of the mean that is kept.
    """

    rate: float | Schedule = 1e-4
    beta1: float = option(0.9, least=0, below=1)
    beta2: float = option(0.99, least=0, below=1)

    def slots(self, shape: tuple[Size, ...]) -> tuple[Slot, ...]:
        return (Slot("mean", shape),)

    @property
    def depends_on_step(self) -> bool:
        return False

    def scalars(self, step: int, rate: float) -> dict[str, float]:
        return {"rate": rate, "decay": 1.0 - rate * self.weight_decay}

    def update(self, p: Tensor, g: Tensor, state: Mapping[str, Tensor], s: Scalars) -> tuple[Tensor, dict[str, Tensor]]:
        direction = L.sign(self.beta1 * state["mean"] + (1 - self.beta1) * g)
        mean = self.beta2 * state["mean"] + (1 - self.beta2) * g
        return p * s["decay"] - s["rate"] * direction, {"mean": mean}
