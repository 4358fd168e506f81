"""The time of a search: trials end early enough for the last measurement and the evidence."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from sardonyx.base.cancellation import Cancellation, Cancelled, cancel_on, raise_if_cancelled

T = TypeVar("T")

MOST_RESERVED = 0.5
"""The largest share of the time that is left for the end of a search."""


class _End:
    """A cancellation that is set after some seconds."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def is_set(self) -> bool:
        """Return True if the seconds are over."""
        return self.seconds_left <= 0

    @property
    def seconds_left(self) -> float:
        """The seconds that are left; negative after the end."""
        return self._end - time.monotonic()


class TimeLimit:
    """The time of a search, a part of which is reserved for its end: a cancellation that is set when trials end.

    Args:
        seconds: The time from now; None without a limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self._whole = None if seconds is None else _End(seconds)
        self._most_reserved = MOST_RESERVED * (seconds or 0.0)
        self._reserved = 0.0

    def reserve(self, seconds: float) -> None:
        """Leave at least some seconds for the end of the search."""
        self._reserved = min(max(self._reserved, seconds), self._most_reserved)

    def is_set(self) -> bool:
        """Return True if no time is left for trials."""
        return self._whole is not None and self._whole.seconds_left <= self._reserved

    def completes_trials(self, work: Callable[[], object]) -> bool:
        """Do work that ends with the time for trials, and return True if its end was reached."""
        return _result(lambda: (work(),), self) is not None

    def evidence(self, work: Callable[[], T]) -> T | None:
        """Return the result of work that ends with the whole time; None if the time was over first."""
        return work() if self._whole is None else _result(work, self._whole)


def _result(work: Callable[[], T], cancellation: Cancellation) -> T | None:
    """Return the result of work; None if the cancellation was set at a cancellation point of the work."""
    try:
        with cancel_on(cancellation):
            return work()
    except Cancelled:
        raise_if_cancelled()  # The work around this search may be cancelled too.
        return None
