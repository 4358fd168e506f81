"""Differentially private gradients (Abadi et al., 2016): gradients of samples, clipped, summed, with normal noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from sardonyx.base.option_checks import option, require_options
from sardonyx.core import language as L
from sardonyx.core.ir import types as t
from sardonyx.core.ir.graph import Value
from sardonyx.core.language import Tensor
from sardonyx.errors import MissingDependencyError, OptionError
from sardonyx.ops.definitions.counted_dropout import random_bits
from sardonyx.train.step.gradient_lengths import length_of

_FIRST_STREAM = 1 << 16
"""Streams of random numbers below are those of dropout."""


@dataclass(frozen=True)
class Privacy:
    """Noise that hides each sample.

    The guarantee holds for samples that are drawn independently with the probability ``batch_size / samples``; batches
    of a permutation approximate the drawing. The random numbers are reproducible by the seed, which must stay secret,
    and are no cryptographic ones.

    Attributes:
        clip: Largest length of the gradient of a sample.
        noise: Standard deviation of the noise on the sum of clipped gradients, in units of ``clip``.
    """

    clip: float = option(1.0, above=0)
    noise: float = option(1.0, least=0)

    def __post_init__(self) -> None:
        require_options(self)

    def epsilon(self, samples: int, batch_size: int, steps: int, delta: float = 1e-5) -> float:
        """Return epsilon of the (epsilon, delta) guarantee of some steps, by Rényi differential privacy.

        Args:
            samples: Samples of the training data.
            batch_size: Samples of a batch.
            steps: Steps taken.
            delta: The probability that the guarantee permits to fail.

        Raises:
            MissingDependencyError: dp-accounting is not installed.
            OptionError: A number is impossible.
        """
        if not 1 <= batch_size <= samples or steps < 0 or not 0 < delta < 1:
            raise OptionError(
                "expected 1 <= batch_size <= samples, steps of at least 0 and delta in (0, 1), got"
                f" {batch_size}, {samples}, {steps}, {delta}.",
                where="privacy",
            )
        if not self.noise:
            return math.inf
        try:
            import dp_accounting
            from dp_accounting import rdp
        except ImportError as error:
            raise MissingDependencyError(
                "accounts of privacy require dp-accounting.", remedy='Install it: pip install "sardonyx[privacy]".'
            ) from error
        event = dp_accounting.PoissonSampledDpEvent(batch_size / samples, dp_accounting.GaussianDpEvent(self.noise))
        accountant = rdp.RdpAccountant()
        accountant.compose(event, steps)
        return float(accountant.get_epsilon(delta))


def private_gradients(
    privacy: Privacy,
    gradients_of: Callable[[list[Value]], list[Tensor]],
    batch: Sequence[Value],
    parameters: Sequence[Tensor],
    key: Tensor,
) -> list[Tensor]:
    """Return the noisy mean of clipped gradients of samples.

    Args:
        privacy: The lengths.
        gradients_of: From the arrays of one sample, with an axis of samples, to the gradients of the mean loss.
        batch: The arrays of the batch, samples in axis 0.
        parameters: The parameters.
        key: The int64 scalar of the step.
    """
    arrays = [cast(Tensor, value) for value in batch]
    if any(array.rank == 0 for array in arrays):
        raise OptionError("expected inputs and labels with an axis of samples.", where="privacy")
    count = L.size_tensor([arrays[0].shape[0]], ())

    def one(i: Tensor, *sums: Value) -> tuple[None, list[Value], list[Value]]:
        at = L.reshape(i, (1,))
        gradients = gradients_of([L.take(array, at, 0) for array in arrays])
        scale = L.minimum(privacy.clip / (length_of(gradients) + 1e-12), 1.0)
        new: list[Value] = [cast(Tensor, s) + g * L.cast(scale, g.dtype) for s, g in zip(sums, gradients, strict=True)]
        return None, new, []

    sums = L.loop(count, None, [L.zeros_like(p) for p in parameters], one)[0]
    result = []
    for number, value in enumerate(sums):
        g = cast(Tensor, value)
        if privacy.noise:
            g = g + L.cast(privacy.noise * privacy.clip * _normal(g, key, _FIRST_STREAM + 2 * number), g.dtype)
        result.append(g / L.cast(count, g.dtype))
    return result


def _normal(x: Tensor, key: Tensor, stream: int) -> Tensor:
    """Return standard normal numbers of the shape of ``x`` (Box and Muller, 1958)."""
    first, second = (L.cast(random_bits(x, key, stream + i), t.DOUBLE) for i in (0, 1))
    radius = L.sqrt(-2.0 * L.log((first + 1.0) * 2.0**-32))
    return L.cast(radius * L.cos(second * (2 * math.pi * 2.0**-32)), t.FLOAT)
