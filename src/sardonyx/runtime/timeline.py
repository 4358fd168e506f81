"""When a session's runs began and ended, for trace viewers."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sardonyx.errors import ModelFileError

MOST_EVENTS = 1_000_000
"""Beyond which the oldest are forgotten."""


class Timeline:
    """Spans of time, by name and thread, in the form that ``chrome://tracing`` and Perfetto read.

    Attributes:
        start_ns: When it began, as ``time.perf_counter_ns`` counts.
    """

    def __init__(self) -> None:
        self.start_ns = time.perf_counter_ns()
        self._events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)

    @contextlib.contextmanager
    def run(self, tag: str, **told: Any) -> Iterator[None]:
        """Record what happens inside as one run.

        Args:
            tag: What the run is called; empty for ``run``.
            told: What else the trace shows of it.
        """
        begin = time.perf_counter_ns()
        try:
            yield
        finally:
            end = time.perf_counter_ns()
            self._events.append(
                {
                    "name": tag or "run", "cat": "Session", "ph": "X", "pid": os.getpid(),
                    "tid": threading.get_native_id(), "ts": (begin - self.start_ns) / 1e3, "dur": (end - begin) / 1e3,
                    "args": told,
                }
            )  # fmt: skip

    def write(self, prefix: str) -> str:
        """Write the events and forget them.

        Args:
            prefix: How the file's path begins.

        Returns:
            The path.

        Raises:
            ModelFileError: It cannot be written.
        """
        path = Path(f"{prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}_{time.perf_counter_ns() % 1_000_000:06}.json")
        events = [self._events.popleft() for _ in range(len(self._events))]
        try:
            path.write_text(json.dumps(events), encoding="utf-8")
        except OSError as error:
            raise ModelFileError(f"the trace cannot be written: {error.strerror}.", where=str(path)) from error
        return str(path)
