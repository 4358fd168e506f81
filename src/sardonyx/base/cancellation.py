"""Work that nobody waits for any more: it ends where it next asks whether somebody does."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextvars import ContextVar


class Abandoned(BaseException):
    """Nobody waits for what is being computed: no error of it, so that what catches errors lets it pass."""


_given_up: ContextVar[tuple[threading.Event, ...]] = ContextVar("sardonyx_given_up", default=())


@contextlib.contextmanager
def until(given_up: threading.Event) -> Iterator[None]:
    """Have :func:`require_somebody` end what is done in this context, once the event is set, or one from around."""
    token = _given_up.set((*_given_up.get(), given_up))
    try:
        yield
    finally:
        _given_up.reset(token)


def require_somebody() -> None:
    """Go on only if somebody waits for it; asked between steps of what takes long.

    Raises:
        Abandoned: Nobody does.
    """
    for given_up in _given_up.get():
        if given_up.is_set():
            raise Abandoned
