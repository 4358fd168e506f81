"""Recording a run: what was computed when, one inside the other."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Span:
    """Something that was computed.

    Attributes:
        what: What it is, as whoever computes it knows it.
        begin: When, in nanoseconds of :func:`time.perf_counter_ns`.
        end: Until when.
        depth: In how many others it lies.
        thread: 0 for all of it; of the share of one thread its number, from 1.
    """

    what: Any
    begin: int
    end: int
    depth: int
    thread: int = 0

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end - self.begin) * 1e-9


class Recorder:
    """What a run does, as it goes on.

    Args:
        threads: Whether to note what each worker did; that takes some time of its own.

    Attributes:
        spans: Those that are over, in order of their end.
        sizes: The open sizes that programs met, by their ``id``.
        threads: Whether workers are noted.
    """

    def __init__(self, *, threads: bool = False) -> None:
        self.spans: list[Span] = []
        self.sizes: dict[int, Mapping[str, int]] = {}
        self.threads = threads
        self._depth = 0

    @contextlib.contextmanager
    def span(self, what: Any) -> Iterator[None]:
        """Record what happens inside, whether it fails or not."""
        self._depth += 1
        begin = time.perf_counter_ns()
        try:
            yield
        finally:
            end = time.perf_counter_ns()
            self._depth -= 1
            self.spans.append(Span(what, begin, end, self._depth))

    def add(self, what: Any, begin: int, end: int, thread: int = 0) -> None:
        """Record something that is over."""
        self.spans.append(Span(what, begin, end, self._depth, thread))


_UNNOTED = contextlib.nullcontext()


def noted(recorder: Recorder | None, what: Any) -> contextlib.AbstractContextManager[None]:
    """Record what happens inside, where anybody records."""
    return _UNNOTED if recorder is None else recorder.span(what)
