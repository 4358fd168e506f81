"""What holds while values are computed: whether all is computed at once, limits on memory and time, the run's number.

The context belongs to the thread (or task) that runs; a new one nests in the old.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import TracebackType

import numpy as np

from sardonyx.base.deadlines import DEADLINES
from sardonyx.base.span_recorder import Recorder
from sardonyx.errors import ResourceError

COUNTED = 4096
"""Bytes from which a value counts toward the memory limit after it was made: to follow smaller ones takes longer than
most take to compute."""


@functools.cache
def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 36


class RunContext:
    """Limits of one run, and what it has used of them.

    Args:
        max_memory: Most bytes of values alive at a time; None for the machine's memory.
        timeout: Most seconds; None for no limit.
        max_loop_iterations: Most iterations of any one loop; None for no limit.
        number: The number of the run: unseeded random values differ from one to the next.
        recorder: What notes when each part of it is computed; None for nothing.
    """

    def __init__(
        self,
        *,
        max_memory: int | None = None,
        timeout: float | None = None,
        max_loop_iterations: int | None = None,
        number: int = 0,
        recorder: Recorder | None = None,
    ) -> None:
        self.max_memory = _physical_memory() if max_memory is None else max_memory
        self.timeout = timeout
        self.max_loop_iterations = max_loop_iterations
        self.number = number
        self.recorder = recorder
        self.limited = not (max_memory is None and timeout is None and max_loop_iterations is None)
        """Whether somebody may want the run to end early: code that cannot look, or be told, must not run it."""
        self.alive = 0
        self.peak = 0
        self._tracked: dict[int, int] = {}
        self.terminated = False
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._lock = threading.Lock()
        self._on_end: list[Callable[[], None]] = []

    def reserve(self, nbytes: int, what: str) -> None:
        """Check that a value of ``nbytes`` may be made now.

        Raises:
            ResourceError: It would pass the memory limit, or the time is over.
        """
        if self.alive + nbytes > self.max_memory:
            raise ResourceError(
                f"{what} needs {nbytes:,} bytes, and {self.alive:,} of the {self.max_memory:,} allowed are in use.",
                remedy="Give smaller inputs, or raise `max_memory`.",
            )
        self.peak = max(self.peak, self.alive + nbytes)
        self.check_time()

    def check_time(self) -> None:
        """Check that there is time left.

        Raises:
            ResourceError: The time is over, or the run was told to end.
        """
        if self.terminated:
            raise ResourceError("the run was terminated.")
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise ResourceError(f"the run took longer than {self.timeout} s.", remedy="Raise `timeout`.")

    def terminate(self) -> None:
        """End the run, from any thread: it raises where it next looks."""
        self.terminated = True
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            for tell in self._on_end:
                tell()

    @contextlib.contextmanager
    def on_end(self, tell: Callable[[], None]) -> Iterator[None]:
        """Call ``tell`` when the run is terminated or its time is over, for code that cannot look by itself.

        Args:
            tell: Called from another thread, at most three times, and not any more when this is left; at once, if the
                run is over already.
        """
        due = functools.partial(self._tell)
        with self._lock:
            self._on_end.append(tell)
        if self._deadline is not None:
            DEADLINES.add(self._deadline, due)
        try:
            if self.terminated:
                tell()
            yield
        finally:
            if self._deadline is not None:
                DEADLINES.remove(due)
            with self._lock:
                self._on_end.remove(tell)

    def check_iterations(self, done: int) -> None:
        """Check that a loop may begin another iteration.

        Raises:
            ResourceError: It has done as many as are allowed, or the time is over.
        """
        self.check_time()
        if self.max_loop_iterations is not None and done >= self.max_loop_iterations:
            raise ResourceError(
                f"a loop passes the limit of {self.max_loop_iterations} iterations.",
                remedy="Raise `max_loop_iterations`.",
            )

    def track(self, holder: object, nbytes: int) -> None:
        """Count ``nbytes`` as in use as long as ``holder`` lives; once, however often that is asked for."""
        if nbytes < COUNTED:
            return
        with self._lock:
            if id(holder) in self._tracked:
                return
            self._tracked[id(holder)] = nbytes
            self.alive += nbytes
            self.peak = max(self.peak, self.alive)
        weakref.finalize(holder, self._release, id(holder)).atexit = False

    def count_from(self, nbytes: int) -> None:
        """Count ``nbytes`` as in use, in place of all that was tracked: who calls keeps account of that."""
        with self._lock:
            self._tracked.clear()
            self.alive = nbytes

    def _release(self, holder: int) -> None:
        with self._lock:
            self.alive -= self._tracked.pop(holder, 0)


_current: ContextVar[RunContext | None] = ContextVar("sardonyx_run", default=None)


def current_run() -> RunContext | None:
    """The run that goes on here; None while a graph is being traced."""
    return _current.get()


class _Running:
    """See :func:`running`: a class, since a generator takes as long as what is done here."""

    __slots__ = ("_context", "_errors", "_token")

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._errors = np.errstate(all="ignore")

    def __enter__(self) -> RunContext:
        self._token = _current.set(self._context)
        self._errors.__enter__()
        return self._context

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._errors.__exit__(kind, error, trace)
        _current.reset(self._token)


def running(context: RunContext) -> contextlib.AbstractContextManager[RunContext]:
    """Compute every value at once, within the limits of ``context``; numpy gives infinities and NaN in silence."""
    return _Running(context)


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Record a graph instead of computing, also inside a run."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)
