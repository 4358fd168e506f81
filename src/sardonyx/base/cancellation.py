"""Cooperative cancellation of long work at cancellation points."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Protocol


class Cancelled(BaseException):
    """The work was cancelled. A BaseException, so that handlers of errors let the cancellation pass."""


class Cancellation(Protocol):
    """A ``threading.Event``, or a limit of time."""

    def is_set(self) -> bool:
        """Return True once the work is to be cancelled."""


_cancellations: ContextVar[tuple[Cancellation, ...]] = ContextVar("sardonyx_cancellations", default=())


@contextlib.contextmanager
def cancel_on(cancellation: Cancellation) -> Iterator[None]:
    """Let :func:`raise_if_cancelled` raise in this context once the cancellation, or an outer context's, is set."""
    token = _cancellations.set((*_cancellations.get(), cancellation))
    try:
        yield
    finally:
        _cancellations.reset(token)


def raise_if_cancelled() -> None:
    """Raise if the work of this context was cancelled; called between the steps of long work.

    Raises:
        Cancelled: The cancellation of an enclosing :func:`cancel_on` is set.
    """
    for cancellation in _cancellations.get():
        if cancellation.is_set():
            raise Cancelled
