"""Threads that work behind calls: at the end of the process they are asked to stop, and waited for.

Python ends a thread that still runs when the process ends, at the moment when it next takes Python's lock. Where that
is inside of somebody's C++ code, as numpy's, the whole process is aborted.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from sardonyx.base.cancellation import Abandoned, require_somebody, until

_LAST_SECONDS = 10.0
"""How long is waited for all of them together: for the longest step between two questions whether to go on."""

_ending = threading.Event()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def start(name: str, work: Callable[..., object], *arguments: Any) -> threading.Thread:
    """Do something in a thread that no process waits for longer than until its next :func:`.require_somebody`.

    Args:
        name: The thread's name.
        work: What to do.
        arguments: What it is given.
    """

    def wanted() -> None:
        try:
            with until(_ending):
                work(*arguments)
        except Abandoned:  # The process ends.
            return

    thread = threading.Thread(target=wanted, name=name, daemon=True)
    # Again each time, so that it comes before what was registered sooner: threads may need what that takes down.
    atexit.unregister(_end)
    atexit.register(_end)
    _threads.add(thread)
    thread.start()
    return thread


def pause(seconds: float) -> None:
    """Sleep; raises :class:`.Abandoned` in a thread of :func:`start` when the process ends."""
    _ending.wait(seconds)
    require_somebody()


def _end() -> None:
    _ending.set()
    last = time.monotonic() + _LAST_SECONDS
    for thread in list(_threads):
        if thread is not threading.current_thread():
            thread.join(max(0.0, last - time.monotonic()))
