"""Optimizer steps: ``Adagrad``, ``Adam``, ``Momentum``.

Source: ONNX Operators, domain *ai.onnx.preview.training*; Duchi et al. (2011), Kingma and Ba (2015), Sutskever et al.
(2013). The tensors are ordered by kind: all optimized tensors, all gradients, then all of each kind of state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sardonyx.core import language as L
from sardonyx.core.language import Tensor
from sardonyx.errors import InvalidModelError
from sardonyx.ops.registry import operator

_DOMAIN = "ai.onnx.preview.training"


def _step_tensors(tensors: Sequence[Tensor], kinds: int, step: Callable[..., Sequence[Tensor]]) -> tuple[Tensor, ...]:
    """Apply the step to every optimized tensor with its gradient and states; results are ordered by kind."""
    if len(tensors) % kinds:
        raise InvalidModelError(
            f"expected a multiple of {kinds} tensors, {kinds} for each optimized one, got {len(tensors)}."
        )
    count = len(tensors) // kinds
    groups = [tensors[i * count : (i + 1) * count] for i in range(kinds)]
    results = [step(*group) for group in zip(*groups, strict=True)]
    return tuple(tensor for kind in zip(*results, strict=True) for tensor in kind)


@operator("Adagrad", since=1, domain=_DOMAIN)
def adagrad(
    rate: Tensor,
    count: Tensor,
    *tensors: Tensor,
    decay_factor: float = 0.0,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
) -> tuple[Tensor, ...]:
    def step(x: Tensor, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        r = L.cast(rate, x.dtype) / (1 + L.cast(count, x.dtype) * decay_factor)
        g = norm_coefficient * x + g
        h = h + g * g
        return x - r * g / (L.sqrt(h) + epsilon), h

    return _step_tensors(tensors, 3, step)


@operator("Adam", since=1, domain=_DOMAIN)
def adam(
    rate: Tensor,
    count: Tensor,
    *tensors: Tensor,
    alpha: float = 0.9,
    beta: float = 0.999,
    epsilon: float = 1e-6,
    norm_coefficient: float = 0.0,
    norm_coefficient_post: float = 0.0,
) -> tuple[Tensor, ...]:
    def step(x: Tensor, g: Tensor, v: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r, times = L.cast(rate, x.dtype), L.cast(count, x.dtype)
        corrected = r * L.sqrt(1 - L.constant(beta, x.dtype) ** times) / (1 - L.constant(alpha, x.dtype) ** times)
        r = L.where(times > 0, corrected, r)
        g = norm_coefficient * x + g
        v = alpha * v + (1 - alpha) * g
        h = beta * h + (1 - beta) * g * g
        return (1 - norm_coefficient_post) * (x - r * v / (L.sqrt(h) + epsilon)), v, h

    return _step_tensors(tensors, 4, step)


@operator("Momentum", since=1, domain=_DOMAIN)
def momentum(
    rate: Tensor,
    count: Tensor,
    *tensors: Tensor,
    alpha: float,
    beta: float,
    mode: str,
    norm_coefficient: float,
) -> tuple[Tensor, ...]:
    if mode not in ("standard", "nesterov"):
        raise InvalidModelError(f"unknown mode {mode!r} of Momentum.", remedy="Use 'standard' or 'nesterov'.")

    def step(x: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        r = L.cast(rate, x.dtype)
        g = norm_coefficient * x + g
        v = alpha * v + L.where(count > 0, L.constant(beta, x.dtype), 1) * g
        return x - r * (g + alpha * v if mode == "nesterov" else v), v

    return _step_tensors(tensors, 3, step)
