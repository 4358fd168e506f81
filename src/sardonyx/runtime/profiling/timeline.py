"""When a session's runs began and ended, for trace viewers."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx_ir as ir

from sardonyx.base.span_recorder import Span
from sardonyx.errors import ModelFileError
from sardonyx.model import write_text

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
            tag: What the run is called; empty for ``model_run``.
            told: What else the trace shows of it.
        """
        begin = time.perf_counter_ns()
        try:
            yield
        finally:
            end = time.perf_counter_ns()
            self._add(tag or "model_run", "Session", begin, end, told)

    def loaded(self) -> None:
        """Record that what it is of is ready, since it began."""
        self._add("session_initialization", "Session", self.start_ns, time.perf_counter_ns(), {})

    def nodes(self, spans: Iterable[tuple[Span, ir.Node]]) -> None:
        """Record what a run computed, kernel by kernel, under the names of nodes, as ONNX Runtime's traces have it.

        Args:
            spans: When it was, and the node that most of it was for.
        """
        for index, (span, node) in enumerate(spans):
            name = node.name or next((str(output.name) for output in node.outputs if output.name), "")
            told = {"op_name": node.op_type, "provider": "CPUExecutionProvider", "node_index": str(index)}
            self._add(f"{name}_kernel_time", "Node", span.begin, span.end, told)

    def _add(self, name: str, category: str, begin: int, end: int, told: dict[str, Any]) -> None:
        self._events.append(
            {
                "name": name, "cat": category, "ph": "X", "pid": os.getpid(), "tid": threading.get_native_id(),
                "ts": (begin - self.start_ns) / 1e3, "dur": (end - begin) / 1e3, "args": told,
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
        events, self._events = self._events, deque(maxlen=MOST_EVENTS)
        try:
            write_text(path, json.dumps(list(events)))
        except ModelFileError:
            self._events.extendleft(reversed(events))
            raise
        return str(path)
