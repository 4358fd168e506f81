"""Division of one stream of samples: those that parameters are learned from, and those that judge the result."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sardonyx.errors import OptionError

MOST_JUDGED = 32
"""Samples that are held back to judge the result; each is in memory until the end."""

_PERIOD = 4
"""One sample of this many is held back, until the number is reached."""


class Split:
    """One pass over samples, of which some are held back.

    Args:
        samples: The samples, read once.
        most_judged: The number of samples to hold back at most.

    Attributes:
        judged: The samples that judge the result; complete after :meth:`fitting` has ended.
        count: The number of samples read, held back or not.
        is_held_out: True if no parameter is learned from the judged samples; False with fewer than four samples.

    Raises:
        OptionError: There is no sample.
    """

    def __init__(self, samples: Iterable[Mapping[str, Any]], most_judged: int = MOST_JUDGED) -> None:
        stream = iter(samples)
        head = list(itertools.islice(stream, _PERIOD))
        if not head:
            raise OptionError("expected at least one sample.", where="data", remedy="Give samples of real inputs.")
        self._stream = itertools.chain(head, stream)
        self._most_judged = most_judged
        self.is_held_out = len(head) == _PERIOD
        self.judged: list[Mapping[str, Any]] = []
        self.count = 0

    def fitting(self) -> Iterator[Mapping[str, Any]]:
        """Yield the samples to learn from, and hold back the others."""
        for number, sample in enumerate(self._stream):
            self.count += 1
            is_judge = len(self.judged) < self._most_judged
            if self.is_held_out and is_judge and number % _PERIOD == _PERIOD - 1:
                self.judged.append(sample)
                continue
            if not self.is_held_out:
                self.judged.append(sample)
            yield sample


def split_samples(samples: Iterable[Mapping[str, Any]], most_judged: int = MOST_JUDGED) -> Split:
    """Return a division of samples: every fourth one is held back, up to a number.

    Fewer than four samples judge the result and are learned from; ``is_held_out`` is then False.

    Raises:
        OptionError: There is no sample.
    """
    return Split(samples, most_judged)
