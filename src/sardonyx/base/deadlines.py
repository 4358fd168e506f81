"""Deadlines, watched by one thread: native code need not read a clock."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable


class Deadlines:
    """Callbacks with deadlines. The thread starts with the first deadline, and sleeps while there is none."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ends: dict[Callable[[], None], float] = {}
        self._thread: threading.Thread | None = None

    def add(self, deadline: float, end: Callable[[], None]) -> None:
        """Call ``end`` at a time of the monotonic clock, in seconds, unless removed before."""
        with self._changed:
            self._ends[end] = deadline
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="sardonyx-deadlines", daemon=True)
                self._thread.start()
            elif deadline <= min(self._ends.values()):
                self._changed.notify()

    def remove(self, end: Callable[[], None]) -> None:
        """Remove a callback; it may have been called already."""
        with self._changed:
            self._ends.pop(end, None)

    def _watch(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                due = [end for end, deadline in self._ends.items() if deadline <= now]
                for end in due:
                    del self._ends[end]
                if not due:
                    self._changed.wait(min(self._ends.values()) - now if self._ends else None)
            for end in due:
                end()


DEADLINES = Deadlines()
"""The deadlines of the process."""

if hasattr(os, "register_at_fork"):
    # A forked process does not have the thread, and another thread may have held the lock.
    os.register_at_fork(after_in_child=DEADLINES.__init__)  # type: ignore[misc]
