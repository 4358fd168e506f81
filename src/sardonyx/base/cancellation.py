"""Cooperative cancellation of long work at cancellation points."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextvars import ContextVar


class Cancelled(BaseException):
    """The work was cancelled. A BaseException, so that handlers of errors let the cancellation pass."""


_cancellations: ContextVar[tuple[threading.Event, ...]] = ContextVar("sardonyx_given_up", default=())


@contextlib.contextmanager
def cancel_on(event: threading.Event) -> Iterator[None]:
    """Let :func:`raise_if_cancelled` raise in this context once the event, or an outer context's event, is set."""
    token = _cancellations.set((*_cancellations.get(), event))
    try:
        yield
    finally:
        _cancellations.reset(token)


def raise_if_cancelled() -> None:
    """Raise if the work of this context was cancelled; called between the steps of long work.

    Raises:
        Cancelled: The event of an enclosing :func:`cancel_on` is set.
    """
    for event in _cancellations.get():
        if event.is_set():
            raise Cancelled
