"""Memory of large arrays that is used again when the arrays are freed.

New memory of many megabytes costs several times the copy into it, because the system maps and clears each page. A free
array is therefore prepared in the background whenever the last one is lent.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable

import numpy as np

from sardonyx.base import background_threads
from sardonyx.base.cancellation import raise_if_cancelled
from sardonyx.base.thread_priority import lower_priority

_MOST_FREE = 2
"""Returned arrays that stay in memory: a steady series of replacements leaves one, calls in flight another."""

_LEAST_PREPARED = 1 << 16
"""Bytes of an array from which a free one is prepared; to map fewer pages takes less time than to request it."""


class RecycledArrays:
    """Arrays of one shape; the memory of an array that is no longer referenced is lent again.

    An array is prepared only while none was returned, so that a steady series of replacements, which returns the old
    array after it has lent the new one, keeps one free array and prepares none.

    Args:
        allocate: Returns a new array, of an element type that memoryviews support.
    """

    def __init__(self, allocate: Callable[[], np.ndarray]) -> None:
        self._allocate = allocate
        self._returned: list[np.ndarray] = []
        self._prepared: np.ndarray | None = None
        self._generation = 0
        with _lock:
            _all.add(self)

    def lend(self) -> np.ndarray:
        """Return an array with any elements; the memory stays reserved as long as a view of the array is in use."""
        with _free_lock:
            generation = self._generation
            if is_returned := bool(self._returned):
                memory: np.ndarray | None = self._returned.pop()
            else:
                memory, self._prepared = self._prepared, None
        if memory is None:
            memory = self._allocate()
        if not is_returned and memory.nbytes >= _LEAST_PREPARED:
            _request(self)
        # A view of a view refers to the owner of the memory alone; a view of an array over a memoryview, to that array.
        lent = np.asarray(memory.data)
        weakref.finalize(lent, self._return, memory, generation).atexit = False
        return lent

    def prepare(self) -> None:
        """Allocate a free array unless there is one, and let the system map its pages."""
        with _free_lock:
            generation = self._generation
            if self._returned or self._prepared is not None:
                return
        memory = self._allocate()
        memory[...] = 0
        with _free_lock:
            if generation == self._generation and not self._returned:
                self._prepared = memory

    def release(self) -> None:
        """Give free arrays back, and from now on those that are lent or prepared."""
        with _free_lock:
            self._generation += 1
            self._returned.clear()
            self._prepared = None

    def _return(self, memory: np.ndarray, generation: int) -> None:
        with _free_lock:
            if generation == self._generation and len(self._returned) < _MOST_FREE:
                self._returned.append(memory)
                self._prepared = None


_lock = threading.Lock()
"""Guards requests. Threads are started while it is held: finalizers must not take it."""

_free_lock = threading.RLock()
"""Guards free arrays, and is held for no allocation. A finalizer may run within, in the thread that holds it."""

_all: weakref.WeakSet[RecycledArrays] = weakref.WeakSet()
_requests: deque[weakref.ref[RecycledArrays]] = deque()
_preparing: list[threading.Thread] = []


def release_all() -> None:
    """Give the free memory of all arrays back."""
    with _lock:
        _requests.clear()
        arrays = list(_all)
    for one in arrays:
        one.release()


def _request(arrays: RecycledArrays) -> None:
    """Let a thread of low priority prepare a free array."""
    with _lock:
        _requests.append(weakref.ref(arrays))
        if not _preparing or not _preparing[0].is_alive():
            try:
                _preparing[:] = [background_threads.start("sardonyx-memory", _prepare)]
            except RuntimeError:  # No thread can be started: the next array is allocated when it is lent.
                _requests.clear()


def _prepare() -> None:
    lower_priority()
    while True:
        with _lock:
            if not _requests:
                _preparing.clear()
                return
            arrays = _requests.popleft()()
        if arrays is not None:
            with contextlib.suppress(MemoryError):  # The array is allocated when it is lent, or refused then.
                arrays.prepare()
        del arrays
        raise_if_cancelled()


def _before_fork() -> None:
    _lock.acquire()
    _free_lock.acquire()


def _after_fork() -> None:
    _free_lock.release()
    _lock.release()


def _begin_in_fork() -> None:
    _requests.clear()
    _preparing.clear()
    _after_fork()


if hasattr(os, "register_at_fork"):  # A forked process inherits neither the thread nor a lock that is held.
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_begin_in_fork)
