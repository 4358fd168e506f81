"""The number of a sample in the data of the caller, which messages state though other samples are held back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Sample(dict[str, Any]):
    """Feeds with the number of the sample in the data.

    Args:
        number: The number, from 0.
        feeds: Arrays by the name of the input.
    """

    def __init__(self, number: int, feeds: Mapping[str, Any]) -> None:
        super().__init__(feeds)
        self.number = number


def number_of(sample: Mapping[str, Any], position: int) -> int:
    """Return the number of a sample in the data; the position in a sequence for feeds without one."""
    return sample.number if isinstance(sample, Sample) else position
