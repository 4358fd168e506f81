"""Optimizers that look at a whole tensor: LAMB, Adafactor, Muon."""

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


def _length(x: Tensor) -> Tensor:
    return L.sqrt(L.reduce_sum(x * x))


@dataclass(frozen=True)
class LAMB(Optimizer):
    """Adam's direction, scaled by the ratio of the lengths of parameter and direction (You et al., 2020).

    Attributes:
        beta1: Coefficient of the mean of gradients.
        beta2: Coefficient of the mean of squared gradients.
        epsilon: Number added to the root of the mean of squares.
    """

    beta1: float = option(0.9, least=0, below=1)
    beta2: float = option(0.999, least=0, below=1)
    epsilon: float = option(1e-6, least=0)

    def slots(self, shape: tuple[Size, ...]) -> tuple[Slot, ...]:
        return Slot("mean", shape), Slot("square", shape)

    def scalars(self, step: int, rate: float) -> dict[str, float]:
        return {"rate": rate, "first": 1 / (1 - self.beta1**step), "second": 1 / (1 - self.beta2**step)}

    def update(self, p: Tensor, g: Tensor, state: Mapping[str, Tensor], s: Scalars) -> tuple[Tensor, dict[str, Tensor]]:
        mean = self.beta1 * state["mean"] + (1 - self.beta1) * g
        square = self.beta2 * state["square"] + (1 - self.beta2) * (g * g)
        direction = mean * s["first"] / (L.sqrt(square * s["second"]) + self.epsilon) + self.weight_decay * p
        of_p, of_direction = _length(p), _length(direction)
        ratio = L.where((of_p > 0) & (of_direction > 0), of_p / of_direction, 1)
        return p - s["rate"] * ratio * direction, {"mean": mean, "square": square}


@dataclass(frozen=True)
class Adafactor(Optimizer):
    """Adafactor, as ``torch.optim.Adafactor``: matrices keep means of squares by row and column alone.

    Attributes:
        rate: The largest relative step; step t has ``min(rate, 1 / sqrt(t))``, times the root mean square of the
            parameter.
        beta2_decay: Exponent of the coefficient of the means: ``1 - t ** beta2_decay``.
        epsilon: Least root mean square of a parameter.
        clip: Largest root mean square of an update.
    """

    rate: float | Schedule = 1e-2
    beta2_decay: float = option(-0.8, most=0)
    epsilon: float = option(1e-3, least=0)
    clip: float = option(1.0, above=0)

    def slots(self, shape: tuple[Size, ...]) -> tuple[Slot, ...]:
        if len(shape) < 2:
            return (Slot("square", shape),)
        return Slot("rows", (*shape[:-1], 1)), Slot("columns", (*shape[:-2], 1, shape[-1]))

    def scalars(self, step: int, rate: float) -> dict[str, float]:
        return {
            "rate": min(rate, 1 / math.sqrt(step)),
            "share": step**self.beta2_decay,
            "decay": 1.0 - rate * self.weight_decay,
        }

    def update(self, p: Tensor, g: Tensor, state: Mapping[str, Tensor], s: Scalars) -> tuple[Tensor, dict[str, Tensor]]:
        tiny = float(2.0**-23)
        scale = s["rate"] * L.maximum(_length(p) / _root_size(p), self.epsilon)
        p = p * s["decay"] if self.weight_decay else p
        share, g2 = s["share"], g * g
        if p.rank < 2:
            new = {"square": state["square"] + share * (g2 - state["square"])}
            variance = new["square"]
        else:
            rows = state["rows"] + share * (L.reduce_mean(g2, [-1], keepdims=True) - state["rows"])
            columns = state["columns"] + share * (L.reduce_mean(g2, [-2], keepdims=True) - state["columns"])
            new = {"rows": rows, "columns": columns}
            variance = rows * columns / L.maximum(L.reduce_mean(rows, [-2], keepdims=True), tiny)
        update = g / L.sqrt(L.maximum(variance, tiny * tiny))
        size = L.maximum(_length(update) / _root_size(update) / self.clip, 1)
        return p - scale / size * update, new


def _root_size(x: Tensor) -> Tensor:
    return L.sqrt(L.cast(L.size_tensor([L.product(x.shape)], ()), x.dtype))


@dataclass(frozen=True)
class Muon(Optimizer):
    """Momentum made orthogonal by Newton-Schulz iterations (Jordan et al., 2024), as ``torch.optim.Muon``.

    Kernels of convolutions are matrices of output channels by the rest. Vectors take a step of AdamW with
    ``vector_rate`` as a share of the rate.

    Attributes:
        momentum: Coefficient of the running mean of gradients.
        nesterov: If True, the step looks ahead along the momentum.
        iterations: Number of Newton-Schulz iterations.
        vector_rate: Rate of vectors, as a share of the rate.
    """

    rate: float | Schedule = 1e-3
    weight_decay: float = option(0.1, least=0)
    momentum: float = option(0.95, least=0, below=1)
    nesterov: bool = True
    iterations: int = option(5, least=1)
    vector_rate: float = option(1.0, least=0)

    def slots(self, shape: tuple[Size, ...]) -> tuple[Slot, ...]:
        return (Slot("momentum", shape),) if len(shape) > 1 else (Slot("mean", shape), Slot("square", shape))

    def scalars(self, step: int, rate: float) -> dict[str, float]:
        vector = rate * self.vector_rate
        return {
            "rate": rate,
            "decay": 1.0 - rate * self.weight_decay,
            "step_size": vector / (1 - 0.9**step),
            "root": math.sqrt(1 - 0.999**step),
        }

    def update(self, p: Tensor, g: Tensor, state: Mapping[str, Tensor], s: Scalars) -> tuple[Tensor, dict[str, Tensor]]:
        if p.rank < 2:
            mean, square = 0.9 * state["mean"] + 0.1 * g, 0.999 * state["square"] + 0.001 * (g * g)
            return p - s["step_size"] * mean / (L.sqrt(square) / s["root"] + 1e-8), {"mean": mean, "square": square}
        v = self.momentum * state["momentum"] + (1 - self.momentum) * g
        direction = (1 - self.momentum) * g + self.momentum * v if self.nesterov else v
        rows = p.shape[0]
        matrix = L.reshape(direction, (rows, L.product(p.shape[1:])))
        orthogonal = self._orthogonal(matrix)
        columns = matrix.shape[1]
        tall = math.sqrt(max(1.0, rows / columns)) if isinstance(rows, int) and isinstance(columns, int) else 1.0
        return p * s["decay"] - s["rate"] * tall * L.reshape(orthogonal, p.shape), {"momentum": v}

    def _orthogonal(self, g: Tensor) -> Tensor:
        rows, columns = g.shape
        transposed = isinstance(rows, int) and isinstance(columns, int) and rows > columns
        x = L.permute(g, [1, 0]) if transposed else g
        x = x / L.maximum(_length(x), 1e-7)
        for _ in range(self.iterations):
            gram = L.matmul(x, L.permute(x, [1, 0]))
            x = 3.4445 * x + L.matmul(-4.7750 * gram + 2.0315 * L.matmul(gram, gram), x)
        return L.permute(x, [1, 0]) if transposed else x
