"""What can be said of one run, or of several that are to end together."""

from __future__ import annotations

import threading
import weakref

from sardonyx.core.eval.run_context import RunContext
from sardonyx.errors import OptionError


class RunOptions:
    """What one run is told, or several: whoever holds the options can end them all.

    Args:
        timeout: Most seconds of a run; None for what the session says.
        tag: What a trace calls the run.

    Attributes:
        timeout: As given.
        tag: As given.
    """

    def __init__(self, *, timeout: float | None = None, tag: str = "") -> None:
        if timeout is not None and timeout <= 0:
            raise OptionError(f"{timeout} is not above zero.", where="timeout")
        self.timeout = timeout
        self.tag = tag
        self._lock = threading.Lock()
        self._terminated = False
        self._running: weakref.WeakSet[RunContext] = weakref.WeakSet()

    @property
    def terminated(self) -> bool:
        """Whether runs with these options end at once."""
        return self._terminated

    def terminate(self) -> None:
        """End the runs that go on with these options, from any thread; they raise ``ResourceError``.

        Later runs end at once too, until :meth:`reset`.
        """
        with self._lock:
            self._terminated = True
            running = list(self._running)
        for context in running:
            context.terminate()

    def reset(self) -> None:
        """Allow runs again."""
        self._terminated = False

    def begin(self, context: RunContext) -> None:
        """Have :meth:`terminate` reach a run that is about to begin.

        Raises:
            ResourceError: The options were terminated.
        """
        context.limited = True
        with self._lock:
            self._running.add(context)
            if self._terminated:
                context.terminate()
        context.check_time()
