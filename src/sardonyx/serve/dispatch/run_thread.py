"""A thread that computes one batch after another."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue


class RunThread:
    """A thread for the runs of one model: the event loop answers other requests meanwhile.

    Args:
        name: The name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        # Not a background thread of the process: its end must not wait for a server that was never stopped.
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def start(self, work: Callable[[], None]) -> None:
        """Let the thread do work after the work that is waiting."""
        self._work.put(work)

    def end(self) -> None:
        """End the thread after the work that is waiting."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()
