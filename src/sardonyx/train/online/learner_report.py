"""Answers and counts of a learner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


class Answer(NamedTuple):
    """An answer of the session.

    Attributes:
        outputs: The outputs by name.
        revision: The number of the session's edit whose weights answered; 0 for the original weights.
    """

    outputs: dict[str, np.ndarray]
    revision: int


@dataclass(frozen=True)
class LearnerReport:
    """Counts of a learner.

    Attributes:
        samples: Samples learned from.
        held_back: Samples held back by the guard.
        steps: Steps taken.
        published: Publications.
        undone: Times that the guard restored the published weights.
        drifts: Drifts detected.
        dropped: Samples dropped because the queue was full.
        prequential_loss: Mean loss of samples before they were learned from.
        metrics: The prequential metrics by name.
        revision: The revision of the latest publication; 0 for none.
        error: The error that stopped the learner; empty for none.
    """

    samples: int
    held_back: int
    steps: int
    published: int
    undone: int
    drifts: int
    dropped: int
    prequential_loss: float
    revision: int
    error: str
    metrics: Mapping[str, float] = field(default_factory=dict)
