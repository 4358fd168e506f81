"""Cooperative cancellation of long work at cancellation points."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Protocol


class Cancelled(BaseException):
    """The work was cancelled. A BaseException, so that handlers of errors let the cancellation pass."""


class Signal(Protocol):
    """A ``threading.Event``, or a :class:`Deadline`."""

    def is_set(self) -> bool:
        """Return True once the work is to be cancelled."""


class Deadline:
    """A signal that is set after some seconds."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def is_set(self) -> bool:
        """Return True if the seconds are over."""
        return time.monotonic() >= self._end

    @property
    def seconds_left(self) -> float:
        """The seconds until the deadline; negative after it."""
        return self._end - time.monotonic()


_cancellations: ContextVar[tuple[Signal, ...]] = ContextVar("sardonyx_given_up", default=())


@contextlib.contextmanager
def cancel_on(signal: Signal) -> Iterator[None]:
    """Let :func:`raise_if_cancelled` raise in this context once the signal, or an outer context's signal, is set."""
    token = _cancellations.set((*_cancellations.get(), signal))
    try:
        yield
    finally:
        _cancellations.reset(token)


def raise_if_cancelled() -> None:
    """Raise if the work of this context was cancelled; called between the steps of long work.

    Raises:
        Cancelled: The signal of an enclosing :func:`cancel_on` is set.
    """
    for signal in _cancellations.get():
        if signal.is_set():
            raise Cancelled
