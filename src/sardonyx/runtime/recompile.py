"""Compiling of edited models while others answer: one thread, and only what is still asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sardonyx.runtime.version import Version

_PAUSE_SECONDS = 0.05
"""How long to wait for the next edit, so that of several in a row only the last is compiled."""


class Recompiler:
    """Compiles the version that answers.

    Args:
        current: Tells which that is.
    """

    def __init__(self, current: Callable[[], Version]) -> None:
        self._current = current
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def compile_soon(self) -> None:
        """See to it that the version that answers is compiled, now or after what is being compiled."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="sardonyx-compile", daemon=True)
                self._thread.start()

    def _work(self) -> None:
        pause = threading.Event()
        while True:
            version = self._current()
            pause.wait(_PAUSE_SECONDS)
            if version is not self._current():
                continue
            if not version.compiled:
                version.compile_quietly()
                continue
            with self._lock:
                if version is self._current():
                    self._thread = None
                    return
