"""Code that is made once in a process, also where several threads ask for it first.

``functools.cache`` lets each of them make one and keeps the last: the others' code is freed while it is in use.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple, Unpack

A = TypeVarTuple("A")
T = TypeVar("T")


def once(make: Callable[[Unpack[A]], T]) -> Callable[[Unpack[A]], T]:
    """Remember what a function gives for its arguments; it is called once for each, by one thread at a time."""
    lock = threading.RLock()
    made: dict[tuple[*A], T] = {}

    @functools.wraps(make)
    def found(*arguments: *A) -> T:
        try:
            return made[arguments]
        except KeyError:
            with lock:
                if arguments not in made:
                    made[arguments] = make(*arguments)
            return made[arguments]

    return found
