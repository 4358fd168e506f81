"""A bounded memory of samples of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from sardonyx.base.option_checks import require_count
from sardonyx.errors import OptionError

Sample = dict[str, np.ndarray]
"""Arrays without an axis of samples, by name."""


class Replay:
    """Samples of the past, for batches that mix old and new.

    Args:
        capacity: Most samples.
        policy: ``"reservoir"`` keeps a uniform choice of the whole stream, ``"ring"`` the latest samples.
        seed: The seed of choices.
    """

    def __init__(
        self, capacity: int = 2048, *, policy: Literal["reservoir", "ring"] = "reservoir", seed: int = 0
    ) -> None:
        require_count(capacity, "replay")
        require_count(seed, "seed", least=0)
        if policy not in ("reservoir", "ring"):
            raise OptionError(f"expected 'reservoir' or 'ring', got {policy!r}.", where="replay")
        self._capacity, self._policy = capacity, policy
        self._rng = np.random.default_rng(seed)
        self._samples: list[Sample] = []
        self._seen = 0

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, sample: Sample) -> None:
        """Add a sample; another one may leave."""
        index = self._seen
        self._seen += 1
        if len(self._samples) < self._capacity:
            self._samples.append(sample)
        elif self._policy == "ring":
            self._samples[index % self._capacity] = sample
        elif (chosen := int(self._rng.integers(0, self._seen))) < self._capacity:
            self._samples[chosen] = sample

    def draw(self, count: int) -> list[Sample]:
        """Return a uniform choice of samples, each at most once."""
        count = min(count, len(self._samples))
        return [self._samples[i] for i in self._rng.choice(len(self._samples), count, replace=False)]

    def clear(self) -> None:
        """Forget all samples."""
        self._samples.clear()
        self._seen = 0


def stacked(samples: list[Sample]) -> dict[str, np.ndarray]:
    """Return a batch of samples of equal sizes."""
    return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}


def split_rows(batch: Mapping[str, np.ndarray]) -> list[Sample]:
    """Return the samples of a batch, copied."""
    count = len(next(iter(batch.values())))
    return [{name: np.array(array[i]) for name, array in batch.items()} for i in range(count)]


def rows_of(batch: Mapping[str, np.ndarray]) -> int:
    """Return the number of samples of a batch."""
    return len(next(iter(batch.values())))


def joined(batches: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the samples of batches of equal sizes as one batch."""
    if len(batches) == 1:
        return dict(batches[0])
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
