"""Options of one run, or of several runs that can be terminated together."""

from __future__ import annotations

import threading
import weakref

from sardonyx.core.eval.run_context import RunContext
from sardonyx.errors import OptionError


class RunOptions:
    """Options of one or several runs; the holder can terminate all of them.

    Args:
        timeout: Limit of the seconds of a run; None for the limit of the session.
        tag: The label of the run in a trace.

    Attributes:
        timeout: As passed.
        tag: As passed.
    """

    def __init__(self, *, timeout: float | None = None, tag: str = "") -> None:
        if timeout is not None and timeout <= 0:
            raise OptionError(f"expected more than 0 seconds, got {timeout}.", where="timeout")
        self.timeout = timeout
        self.tag = tag
        self._lock = threading.Lock()
        self._terminated = False
        self._running: weakref.WeakSet[RunContext] = weakref.WeakSet()

    @property
    def terminated(self) -> bool:
        """True if runs with these options end immediately."""
        return self._terminated

    def terminate(self) -> None:
        """End all current runs with these options, from any thread; the runs raise ``ResourceError``.

        Later runs end immediately too, until :meth:`reset`.
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
        """Register a run that is about to begin, so that :meth:`terminate` reaches the run.

        Raises:
            ResourceError: The options were terminated.
        """
        context.limited = True
        with self._lock:
            self._running.add(context)
            if self._terminated:
                context.terminate()
        context.check_time()
