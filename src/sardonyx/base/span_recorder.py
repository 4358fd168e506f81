"""Recorded spans of a run: the computations, with their times and nesting."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Span:
    """A recorded computation.

    Attributes:
        what: The computation, as an object of the recording module.
        begin: Start in nanoseconds of :func:`time.perf_counter_ns`.
        end: End in nanoseconds.
        depth: Number of enclosing spans.
        thread: 0 for the whole computation; for the share of one thread, the thread's number from 1.
    """

    what: Any
    begin: int
    end: int
    depth: int
    thread: int = 0

    @property
    def seconds(self) -> float:
        """The duration."""
        return (self.end - self.begin) * 1e-9


class Recorder:
    """Recorder of one run.

    Args:
        threads: Record the share of each worker, at some cost.

    Attributes:
        spans: The completed spans, in order of their end.
        sizes: Values of the size symbols of programs, by the program's ``id``.
        threads: True if the shares of workers are recorded.
    """

    def __init__(self, *, threads: bool = False) -> None:
        self.spans: list[Span] = []
        self.sizes: dict[int, Mapping[str, int]] = {}
        self.threads = threads
        self._depth = 0

    @contextlib.contextmanager
    def span(self, what: Any) -> Iterator[None]:
        """Record the body of the context as a span, even if the body raises."""
        self._depth += 1
        begin = time.perf_counter_ns()
        try:
            yield
        finally:
            end = time.perf_counter_ns()
            self._depth -= 1
            self.spans.append(Span(what, begin, end, self._depth))

    def add(self, what: Any, begin: int, end: int, thread: int = 0) -> None:
        """Record a completed computation."""
        self.spans.append(Span(what, begin, end, self._depth, thread))


_NOT_RECORDED = contextlib.nullcontext()


def record_span(recorder: Recorder | None, what: Any) -> contextlib.AbstractContextManager[None]:
    """Return a context that records its body, if there is a recorder."""
    return _NOT_RECORDED if recorder is None else recorder.span(what)
