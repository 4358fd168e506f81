"""Ctrl-C during native code.

Python runs signal handlers only after native code returns, so native code must be stopped. Loops on the main thread
register a listener. Python writes the number of a signal to a socket at once (``signal.set_wakeup_fd``); a thread that
sleeps at the other end stops the native code, and Python calls the handler. If other code in the process owns the
wakeup descriptor, such as an event loop, signals wait for native code to return.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

_ENDING = (signal.SIGINT, signal.SIGTERM)
"""Signals whose handlers usually raise; native code continues after other signals."""

_CHECK_SECONDS = 1.0
"""Seconds between checks of the wakeup descriptor's owner: a check takes longer than a short loop."""

_NOT_LISTENING = contextlib.nullcontext()


class Interrupts:
    """Listeners to signals. The thread starts with the first listener."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []
        self._socket: socket.socket | None = None
        self._owns_descriptor = False
        self._next_check = 0.0

    def listening(self, tell: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """Return a context in which a signal that ends the main thread's work calls ``tell`` from another thread.

        Other threads are not interrupted: the context has no effect there.
        """
        if threading.get_ident() != threading.main_thread().ident:
            return _NOT_LISTENING
        now = time.monotonic()
        if now >= self._next_check:
            self._owns_descriptor = self._claim_descriptor()
            self._next_check = now + _CHECK_SECONDS
        return _Listening(self._listeners, self._lock, tell) if self._owns_descriptor else _NOT_LISTENING

    def _claim_descriptor(self) -> bool:
        if self._socket is None:
            ours, self._socket = socket.socketpair()
            self._socket.setblocking(False)
            threading.Thread(target=self._listen, args=(ours,), name="sardonyx-signals", daemon=True).start()
        own = self._socket.fileno()
        before = signal.set_wakeup_fd(own, warn_on_full_buffer=False)
        if before in (-1, own):
            return True
        signal.set_wakeup_fd(before)
        return False

    def _listen(self, ours: socket.socket) -> None:
        while numbers := ours.recv(64):
            if any(number in _ENDING for number in numbers):
                with self._lock:
                    for tell in self._listeners:
                        tell()

    def forked(self) -> None:
        """Reset the state in a forked process, which has no thread, and whose socket belongs to the parent."""
        if self._owns_descriptor and threading.get_ident() == threading.main_thread().ident:
            before = signal.set_wakeup_fd(-1)
            if self._socket is None or before != self._socket.fileno():
                signal.set_wakeup_fd(before)
        self.__init__()  # type: ignore[misc]


class _Listening:
    """The context of :meth:`Interrupts.listening`; a generator would take longer than a short loop."""

    __slots__ = ("_listeners", "_lock", "_tell")

    def __init__(self, listeners: list[Callable[[], None]], lock: threading.Lock, tell: Callable[[], None]) -> None:
        self._listeners, self._lock, self._tell = listeners, lock, tell

    def __enter__(self) -> None:
        self._listeners.append(self._tell)

    def __exit__(self, *raised: object) -> None:
        # After leaving the context, the listener must not be called.
        with self._lock:
            self._listeners.remove(self._tell)


INTERRUPTS = Interrupts()
"""The listeners of the process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=INTERRUPTS.forked)


@contextlib.contextmanager
def interrupted_after() -> Iterator[None]:
    """Return a context whose end the first Ctrl-C waits for; the second is handled at once.

    Other threads than the main thread are not interrupted: the context has no effect there.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    waiting: list[int] = []

    def wait(number: int, frame: FrameType | None) -> None:
        if waiting:
            handler(number, frame)
        waiting.append(number)

    signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if waiting:
            handler(waiting[0], None)
