"""Memoization of functions that must run once for each argument, even in several threads.

``functools.cache`` lets each of the threads compute a result and retains the last: generated code of the others would
be freed while in use.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple, Unpack

A = TypeVarTuple("A")
T = TypeVar("T")


def once(make: Callable[[Unpack[A]], T]) -> Callable[[Unpack[A]], T]:
    """Memoize a function; it is called once for each tuple of arguments, by one thread at a time."""
    lock = threading.RLock()
    results: dict[tuple[*A], T] = {}

    @functools.wraps(make)
    def memoized(*arguments: *A) -> T:
        try:
            return results[arguments]
        except KeyError:
            with lock:
                if arguments not in results:
                    results[arguments] = make(*arguments)
            return results[arguments]

    return memoized
