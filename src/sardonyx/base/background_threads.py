"""Background threads, which are asked to stop at the end of the process, and joined.

Python terminates threads that still run at the end of the process, when they next take the interpreter lock. A
termination inside C++ code, such as numpy's, aborts the whole process.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from sardonyx.base.cancellation import Cancelled, cancel_on, raise_if_cancelled

_LAST_SECONDS = 10.0
"""Seconds to wait for all threads together: the longest step between two cancellation points."""

_ending = threading.Event()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def start(name: str, work: Callable[..., object], *arguments: Any) -> threading.Thread:
    """Start work in a thread that the process, at its end, waits for until the next cancellation point.

    Args:
        name: Name of the thread.
        work: The function to call; cancellation points are calls of :func:`.raise_if_cancelled`.
        arguments: Arguments of the function.
    """

    def run() -> None:
        try:
            with cancel_on(_ending):
                work(*arguments)
        except Cancelled:  # The process ends.
            return

    thread = threading.Thread(target=run, name=name, daemon=True)
    # Registered anew, to run before the handlers of modules that the threads use.
    atexit.unregister(_end)
    atexit.register(_end)
    _threads.add(thread)
    thread.start()
    return thread


def pause(seconds: float) -> None:
    """Sleep; raise :class:`.Cancelled` in a thread of :func:`start` at the end of the process."""
    _ending.wait(seconds)
    raise_if_cancelled()


def _end() -> None:
    _ending.set()
    last = time.monotonic() + _LAST_SECONDS
    for thread in list(_threads):
        if thread is not threading.current_thread():
            thread.join(max(0.0, last - time.monotonic()))
