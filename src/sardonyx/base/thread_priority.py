"""Work that lets calls go first: where processors are scarce, calls are to be about as fast beside it as without it."""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from sardonyx.base import background_threads
from sardonyx.base.cancellation import until

T = TypeVar("T")

_NICER = 5
"""Steps by which such work is nicer than who asks for it: beside threads that compute without pause it gets a third of
what each of them does. Ten steps more would leave calls as they are, and edits waiting for seconds."""


_MOMENT_SECONDS = 0.05
"""How long a session's first call is waited for."""

_FIRST_CALL_SECONDS = 2.0
"""How long the end of it is waited for: a call that takes longer shares the processors."""


def let_others_first() -> None:
    """Lower the priority of this thread, for good, where threads have priorities of their own."""
    if sys.platform == "linux":
        own = threading.get_native_id()
        with contextlib.suppress(OSError):  # A sandbox may refuse it: the work is done all the same.
            os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + _NICER)


class FirstCall:
    """The first call of a session, which what is done for later ones waits for: both would hold Python's lock.

    It is a context for calls.
    """

    def __init__(self) -> None:
        self._begun = threading.Event()
        self._ended = threading.Event()

    def __enter__(self) -> None:
        self._begun.set()

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def give_up(self) -> None:
        """There is nobody who waits for a call: whoever waits for one goes on."""
        self._ended.set()
        self._begun.set()

    def wait(self) -> None:
        """Wait a moment for the first call to begin, and then for its end, as long as calls commonly take."""
        if self._begun.wait(_MOMENT_SECONDS):
            self._ended.wait(_FIRST_CALL_SECONDS)


def behind_calls(work: Callable[[], T]) -> T:
    """Do something in a thread of lower priority, and wait for it.

    A thread of its own, because one that lowers its priority needs a privilege to raise it again. Where threads have no
    priorities of their own, which is everywhere but on Linux, it is done in this thread. Where an exception ends the
    waiting, as Ctrl-C does, the work ends at its next :func:`.require_somebody`.

    Args:
        work: What to do; it runs with this thread's context variables.

    Returns:
        What it gives.

    Raises:
        BaseException: What it raises.
    """
    if sys.platform != "linux":
        return work()
    results: list[T] = []
    errors: list[BaseException] = []
    context = contextvars.copy_context()
    given_up = threading.Event()

    def wanted() -> T:
        with until(given_up):
            return work()

    def nicer() -> None:
        let_others_first()
        try:
            results.append(context.run(wanted))
        except BaseException as error:
            errors.append(error)

    thread = background_threads.start("sardonyx-edit", nicer)
    try:
        thread.join()
    except BaseException:
        given_up.set()
        raise
    if errors:
        raise errors.pop()
    return results.pop()
