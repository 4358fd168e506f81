"""The timeline of a session's runs, for trace viewers."""

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
"""Limit of recorded events; the oldest are dropped."""


class Timeline:
    """Spans of time, by name and thread, in the format of ``chrome://tracing`` and Perfetto.

    Attributes:
        start_ns: The start of recording, as ``time.perf_counter_ns`` counts.
    """

    def __init__(self) -> None:
        self.start_ns = time.perf_counter_ns()
        self._events: deque[dict[str, Any]] = deque(maxlen=MOST_EVENTS)

    @contextlib.contextmanager
    def run(self, tag: str, **details: Any) -> Iterator[None]:
        """Record the enclosed block as one run.

        Args:
            tag: The label of the run; empty for ``model_run``.
            details: Further entries of the trace.
        """
        begin = time.perf_counter_ns()
        try:
            yield
        finally:
            end = time.perf_counter_ns()
            self._add(tag or "model_run", "Session", begin, end, details)

    def loaded(self) -> None:
        """Record the time from the start until now as the initialization of the session."""
        self._add("session_initialization", "Session", self.start_ns, time.perf_counter_ns(), {})

    def nodes(self, spans: Iterable[tuple[Span, ir.Node]]) -> None:
        """Record the kernels of a run under the names of nodes, in the format of ONNX Runtime's traces.

        Args:
            spans: Spans with the node of most of their operations.
        """
        for index, (span, node) in enumerate(spans):
            name = node.name or next((str(output.name) for output in node.outputs if output.name), "")
            details = {"op_name": node.op_type, "provider": "CPUExecutionProvider", "node_index": str(index)}
            self._add(f"{name}_kernel_time", "Node", span.begin, span.end, details)

    def _add(self, name: str, category: str, begin: int, end: int, details: dict[str, Any]) -> None:
        self._events.append(
            {
                "name": name, "cat": category, "ph": "X", "pid": os.getpid(), "tid": threading.get_native_id(),
                "ts": (begin - self.start_ns) / 1e3, "dur": (end - begin) / 1e3, "args": details,
            }
        )  # fmt: skip

    def write(self, prefix: str) -> str:
        """Write the events to a file and drop them.

        Args:
            prefix: The prefix of the file's path.

        Returns:
            The path.

        Raises:
            ModelFileError: The file cannot be written.
        """
        path = Path(f"{prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}_{time.perf_counter_ns() % 1_000_000:06}.json")
        events, self._events = self._events, deque(maxlen=MOST_EVENTS)
        try:
            write_text(path, json.dumps(list(events)))
        except ModelFileError:
            self._events.extendleft(reversed(events))
            raise
        return str(path)
