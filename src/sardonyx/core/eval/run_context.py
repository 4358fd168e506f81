"""The context of a run: immediate computation, limits on memory and time, the run's number.

The context belongs to the running thread (or task); contexts nest.
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
"""Bytes from which a value counts toward the memory limit.

Tracking a smaller value costs more than computing most of them.
"""


@functools.cache
def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 36


class RunContext:
    """Limits of one run, and its current usage.

    Args:
        max_memory: Maximum bytes of live values; None for the machine's memory.
        timeout: Maximum seconds; None for no limit.
        max_loop_iterations: Maximum iterations of any one loop; None for no limit.
        number: The number of the run: unseeded random values differ between runs.
        recorder: Recorder of the time spans of the run's parts; None for no recording.
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
        """True if the run may have to end early: code that cannot check the limits must not run here."""
        self.alive = 0
        self.peak = 0
        self._tracked: dict[int, int] = {}
        self.terminated = False
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._lock = threading.Lock()
        self._on_end: list[Callable[[], None]] = []

    def reserve(self, nbytes: int, name: str) -> None:
        """Check that a value of ``nbytes`` may be allocated now.

        Raises:
            ResourceError: The value would exceed the memory limit, or the time limit is reached.
        """
        if self.alive + nbytes > self.max_memory:
            raise ResourceError(
                f"{name} needs {nbytes:,} bytes, but {self.alive:,} of the {self.max_memory:,} allowed are in use.",
                remedy="Give smaller inputs, or raise `max_memory`.",
            )
        self.peak = max(self.peak, self.alive + nbytes)
        self.check_time()

    def check_time(self) -> None:
        """Check that the time limit is not reached.

        Raises:
            ResourceError: The time limit is reached, or the run was terminated.
        """
        if self.terminated:
            raise ResourceError("the run was terminated.")
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise ResourceError(f"the run took longer than {self.timeout} s.", remedy="Raise `timeout`.")

    def terminate(self) -> None:
        """End the run, from any thread: the next check of the time raises."""
        self.terminated = True
        self._notify()

    def _notify(self) -> None:
        with self._lock:
            for callback in self._on_end:
                callback()

    @contextlib.contextmanager
    def on_end(self, callback: Callable[[], None]) -> Iterator[None]:
        """Call ``callback`` when the run is terminated or out of time, for code without checks of its own.

        Args:
            callback: Called from another thread, at most three times, and never after this context is left; called
                immediately if the run is already over.
        """
        notify = functools.partial(self._notify)
        with self._lock:
            self._on_end.append(callback)
        if self._deadline is not None:
            DEADLINES.add(self._deadline, notify)
        try:
            if self.terminated:
                callback()
            yield
        finally:
            if self._deadline is not None:
                DEADLINES.remove(notify)
            with self._lock:
                self._on_end.remove(callback)

    def check_iterations(self, done: int) -> None:
        """Check that a loop may begin another iteration.

        Raises:
            ResourceError: The limit on iterations or time is reached.
        """
        self.check_time()
        if self.max_loop_iterations is not None and done >= self.max_loop_iterations:
            raise ResourceError(
                f"a loop exceeds the limit of {self.max_loop_iterations} iterations.",
                remedy="Raise `max_loop_iterations`.",
            )

    def track(self, holder: object, nbytes: int) -> None:
        """Count ``nbytes`` as in use during the lifetime of ``holder``; repeated calls count once."""
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
        """Replace all tracked values by a total of ``nbytes`` in use; the caller does its own accounting."""
        with self._lock:
            self._tracked.clear()
            self.alive = nbytes

    def _release(self, holder: int) -> None:
        with self._lock:
            self.alive -= self._tracked.pop(holder, 0)


_current: ContextVar[RunContext | None] = ContextVar("sardonyx_run", default=None)


def current_run() -> RunContext | None:
    """Return the run of this context; None while tracing a graph."""
    return _current.get()


class _Running:
    """See :func:`running`; a class, because a generator would cost as much as this work."""

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
    """Compute every value at once, within the limits of ``context``; numpy warnings are silenced."""
    return _Running(context)


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Record a graph instead of computing, also inside a run."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)
