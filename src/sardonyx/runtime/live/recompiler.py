"""Compiling of edited models while others answer: one thread, and only what is still asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sardonyx.base import background_threads
from sardonyx.runtime.live.model_version import Version

_PAUSE_SECONDS = 0.05
"""How long to wait for the next edit, so that of several in a row only the last is compiled."""


class Recompiler:
    """Compiles the version that answers; it knows whose only while it does, so that a session that is dropped goes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def compile_soon(self, current: Callable[[], Version]) -> None:
        """See to it that the version that answers is compiled, now or after what is being compiled.

        Args:
            current: Tells which that is, the same at every call.
        """
        with self._lock:
            if self._thread is None:
                self._thread = background_threads.start("sardonyx-compile", self._work, current)

    def _work(self, current: Callable[[], Version]) -> None:
        while True:
            version = current()
            background_threads.pause(_PAUSE_SECONDS)
            if version is not current():
                continue
            if not version.compiled:
                version.compile_quietly()
                continue
            with self._lock:
                if version is current():
                    self._thread = None
                    return
