"""Optimizers that scale each element by its history: Adam and relatives, Adagrad, RMSprop, Adadelta."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sardonyx.base.option_checks import option
from sardonyx.core import language as L
from sardonyx.core.dim import Size
from sardonyx.core.language import Tensor
from sardonyx.train.optimizers.optimizer import Optimizer, Scalars, Slot
from sardonyx.train.schedules import Schedule


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam, as ``torch.optim.Adam``.

    Attributes:
        beta1: Coefficient of the mean of gradients.
        beta2: Coefficient of the mean of squared gradients.
        epsilon: Number added to the root of the mean of squares.
        amsgrad: If True, the largest mean of squares so far is used.
    """

    beta1: float = option(0.9, least=0, below=1)
    beta2: float = option(0.999, least=0, below=1)
    epsilon: float = option(1e-8, least=0)
    amsgrad: bool = False

    def slots(self, shape: tuple[Size, ...]) -> tuple[Slot, ...]:
        slots = (Slot("mean", shape), Slot("square", shape))
        return (*slots, Slot("largest", shape)) if self.amsgrad else slots

    @property
    def can_update_rows(self) -> bool:
        return not self.weight_decay

    def scalars(self, step: int, rate: float) -> dict[str, float]:
        return {
            "step_size": rate / (1 - self.beta1**step),
            "root": math.sqrt(1 - self.beta2**step),
            "decay": 1.0 - rate * self.weight_decay,
        }

    def update(self, p: Tensor, g: Tensor, state: Mapping[str, Tensor], s: Scalars) -> tuple[Tensor, dict[str, Tensor]]:
        return self._step(p, self.decayed(p, g), state, s)

    def _step(self, p: Tensor, g: Tensor, state: Mapping[str, Tensor], s: Scalars) -> tuple[Tensor, dict[str, Tensor]]:
        new = {
            "mean": self.beta1 * state["mean"] + (1 - self.beta1) * g,
            "square": self.beta2 * state["square"] + (1 - self.beta2) * (g * g),
        }
        square = new["square"]
        if self.amsgrad:
            square = new["largest"] = L.maximum(state["largest"], square)
        return p - s["step_size"] * new["mean"] / (L.sqrt(square) / s["root"] + self.epsilon), new


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay, as ``torch.optim.AdamW``."""

    weight_decay: float = option(1e-2, least=0)

    def update(self, p: Tensor, g: Tensor, state: Mapping[str, Tensor], s: Scalars) -> tuple[Tensor, dict[str, Tensor]]:
        return self._step(p * s["decay"] if self.weight_decay else p, g, state, s)


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad, as ``torch.optim.Adagrad``.

    Attributes:
        rate_decay: Decay of the learning rate: step t has ``rate / (1 + (t - 1) * rate_decay)``.
        initial: Initial sum of squares.
        epsilon: Number added to the root of the sum.
    """

    rate: float | Schedule = 1e-2
    rate_decay: float = option(0.0, least=0)
    initial: float = option(0.0, least=0)
    epsilon: float = option(1e-10, least=0)

    def slots(self, shape: tuple[Size, ...]) -> tuple[Slot, ...]:
        return (Slot("sum", shape, self.initial),)

    @property
    def can_update_rows(self) -> bool:
        return not self.weight_decay

    def scalars(self, step: int, rate: float) -> dict[str, float]:
        return {"rate": rate / (1 + (step - 1) * self.rate_decay)}

    def update(self, p: Tensor, g: Tensor, state: Mapping[str, Tensor], s: Scalars) -> tuple[Tensor, dict[str, Tensor]]:
        g = self.decayed(p, g)
        total = state["sum"] + g * g
        return p - s["rate"] * g / (L.sqrt(total) + self.epsilon), {"sum": total}


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """RMSprop, as ``torch.optim.RMSprop``.

    Attributes:
        alpha: Coefficient of the mean of squares.
        epsilon: Number added to the root of the mean.
        momentum: Coefficient of the running sum of steps.
        centered: If True, squares are taken about the running mean.
    """

    rate: float | Schedule = 1e-2
    alpha: float = option(0.99, least=0, below=1)
    epsilon: float = option(1e-8, least=0)
    momentum: float = option(0.0, least=0)
    centered: bool = False

    def slots(self, shape: tuple[Size, ...]) -> tuple[Slot, ...]:
        names = ["square", *["momentum"] * bool(self.momentum), *["mean"] * self.centered]
        return tuple(Slot(name, shape) for name in names)

    def update(self, p: Tensor, g: Tensor, state: Mapping[str, Tensor], s: Scalars) -> tuple[Tensor, dict[str, Tensor]]:
        g = self.decayed(p, g)
        new = {"square": self.alpha * state["square"] + (1 - self.alpha) * (g * g)}
        variance = new["square"]
        if self.centered:
            new["mean"] = self.alpha * state["mean"] + (1 - self.alpha) * g
            variance = variance - new["mean"] * new["mean"]
        direction = g / (L.sqrt(variance) + self.epsilon)
        if self.momentum:
            direction = new["momentum"] = self.momentum * state["momentum"] + direction
        return p - s["rate"] * direction, new


@dataclass(frozen=True)
class Adadelta(Optimizer):
    """Adadelta, as ``torch.optim.Adadelta``.

    Attributes:
        rho: Coefficient of both means.
        epsilon: Number added under both roots.
    """

    rate: float | Schedule = 1.0
    rho: float = option(0.9, least=0, below=1)
    epsilon: float = option(1e-6, least=0)

    def slots(self, shape: tuple[Size, ...]) -> tuple[Slot, ...]:
        return Slot("square", shape), Slot("delta", shape)

    def update(self, p: Tensor, g: Tensor, state: Mapping[str, Tensor], s: Scalars) -> tuple[Tensor, dict[str, Tensor]]:
        g = self.decayed(p, g)
        square = self.rho * state["square"] + (1 - self.rho) * (g * g)
        delta = L.sqrt(state["delta"] + self.epsilon) / L.sqrt(square + self.epsilon) * g
        kept_delta = self.rho * state["delta"] + (1 - self.rho) * (delta * delta)
        return p - s["rate"] * delta, {"square": square, "delta": kept_delta}
