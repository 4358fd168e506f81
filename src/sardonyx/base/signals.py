"""Ctrl-C while native code runs: Python's handler waits until that returns, so it is told to.

Whoever plays loops on the main thread listens meanwhile. Python writes the number of a signal to a socket as soon as it
comes (``signal.set_wakeup_fd``); a thread that sleeps at its other end ends what goes on, and Python calls the handler.
Where somebody else in the process has taken that place, an event loop that handles signals, they wait.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable

_ENDING = (signal.SIGINT, signal.SIGTERM)
"""Signals whose handlers usually raise; a run that another one would end goes on."""

_SECONDS = 1.0
"""How long it is believed that nobody else has taken the place: to look takes longer than a short loop."""

_ELSEWHERE = contextlib.nullcontext()


class Interrupts:
    """Who is to be told of signals. The thread starts with the first that listens."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: list[Callable[[], None]] = []
        self._socket: socket.socket | None = None
        self._placed = False
        self._look_at = 0.0

    def listening(self, tell: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """Have ``tell`` called, from another thread, when a signal comes that ends what the main thread does.

        Nothing is done on other threads: they are not interrupted.
        """
        if threading.get_ident() != threading.main_thread().ident:
            return _ELSEWHERE
        now = time.monotonic()
        if now >= self._look_at:
            self._placed = self._take_place()
            self._look_at = now + _SECONDS
        return _Listening(self._told, self._lock, tell) if self._placed else _ELSEWHERE

    def _take_place(self) -> bool:
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
                    for tell in self._told:
                        tell()

    def forked(self) -> None:
        """Begin anew in a forked process: it has no such thread, and the socket is its parent's."""
        if self._placed and threading.get_ident() == threading.main_thread().ident:
            before = signal.set_wakeup_fd(-1)
            if self._socket is None or before != self._socket.fileno():
                signal.set_wakeup_fd(before)
        self.__init__()  # type: ignore[misc]


class _Listening:
    """See :meth:`Interrupts.listening`: a class, since a generator takes longer than a short loop."""

    __slots__ = ("_lock", "_tell", "_told")

    def __init__(self, told: list[Callable[[], None]], lock: threading.Lock, tell: Callable[[], None]) -> None:
        self._told, self._lock, self._tell = told, lock, tell

    def __enter__(self) -> None:
        self._told.append(self._tell)

    def __exit__(self, *raised: object) -> None:
        # Not told any more when this is left.
        with self._lock:
            self._told.remove(self._tell)


INTERRUPTS = Interrupts()
"""Those of the process."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=INTERRUPTS.forked)
