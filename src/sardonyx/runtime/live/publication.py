"""A gate that the edits of a thread pass between their preparation and their publication."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

_gate: ContextVar[Callable[[], None] | None] = ContextVar("publication_gate", default=None)


@contextlib.contextmanager
def publication_gate(gate: Callable[[], None]) -> Iterator[None]:
    """Let every edit of this thread call a function once its version is prepared, before calls see the version.

    Args:
        gate: The function; it may wait for others. If it raises, the session is unchanged.
    """
    token = _gate.set(gate)
    try:
        yield
    finally:
        _gate.reset(token)


def pass_gate() -> None:
    """Call the gate of this thread, if there is one."""
    gate = _gate.get()
    if gate is not None:
        gate()
