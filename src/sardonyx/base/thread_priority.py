"""Background work at low priority: calls stay about as fast beside background work as without."""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from sardonyx.base import background_threads
from sardonyx.base.cancellation import cancel_on

T = TypeVar("T")

_NICENESS_STEP = 5
"""Niceness added to background work.

Beside busy threads, background work gets a third of the time of each. Ten more steps would not speed up calls, and
would delay edits by seconds.
"""


_MOMENT_SECONDS = 0.05
"""Seconds to wait for the first call of a session to begin."""

_FIRST_CALL_SECONDS = 2.0
"""Seconds to wait for the end of the first call: longer calls share the processors."""


_PASS_SECONDS = 2e-5
"""Seconds that a thread sleeps to let calls pass: the system adds about 50 microseconds."""


class _Priority(threading.local):
    """The priority of a thread.

    Attributes:
        is_low: True after :func:`lower_priority`.
    """

    is_low = False


_priority = _Priority()


def lower_priority() -> None:
    """Lower the priority of this thread permanently, on systems with priorities for each thread."""
    _priority.is_low = True
    if sys.platform == "linux":
        own = threading.get_native_id()
        with contextlib.suppress(OSError):  # A sandbox may refuse; the work is done at normal priority.
            os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + _NICENESS_STEP)


class FirstCall:
    """The first call of a session, as a context that background work waits for.

    Both hold the interpreter lock, so background work would slow the call down.
    """

    def __init__(self) -> None:
        self._begun = threading.Event()
        self._ended = threading.Event()

    def __enter__(self) -> None:
        self._begun.set()

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def give_up(self) -> None:
        """End all waiting, because no call will follow."""
        self._ended.set()
        self._begun.set()

    def wait(self) -> None:
        """Wait a moment for the first call to begin, and then for its end, up to a limit."""
        if self._begun.wait(_MOMENT_SECONDS):
            self._ended.wait(_FIRST_CALL_SECONDS)


def let_calls_pass() -> None:
    """Let a thread that waits for the interpreter lock take it.

    A lock that is only released is mostly taken back before the other thread wakes up.
    """
    if threading.active_count() > 1:
        time.sleep(_PASS_SECONDS)


def run_after_calls(work: Callable[[], T]) -> T:
    """Run work in a thread of lower priority, and wait for the result.

    The work has a thread of its own, because raising a lowered priority needs a privilege. In a thread of lowered
    priority, and on systems other than Linux, which have no priorities for each thread, the work runs in this thread:
    another one would have a lower priority still. If an exception ends the waiting, such as
    KeyboardInterrupt, the work ends at its next cancellation point.

    Args:
        work: The function; it runs with this thread's context variables.

    Returns:
        The result of the work.

    Raises:
        BaseException: The exception that the work raises.
    """
    if sys.platform != "linux" or _priority.is_low:
        return work()
    results: list[T] = []
    errors: list[BaseException] = []
    context = contextvars.copy_context()
    cancelled = threading.Event()

    def run() -> T:
        with cancel_on(cancelled):
            return work()

    def run_at_low_priority() -> None:
        lower_priority()
        try:
            results.append(context.run(run))
        except BaseException as error:
            errors.append(error)

    thread = background_threads.start("sardonyx-edit", run_at_low_priority)
    try:
        thread.join()
    except BaseException:
        cancelled.set()
        raise
    if errors:
        raise errors.pop()
    return results.pop()
