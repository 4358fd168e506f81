"""The number of threads with which numpy's library multiplies matrices.

OpenBLAS hands almost every product to all of its threads, and a thread without work runs on for a tenth of a second
before it sleeps. The interpreter's products between two such waits are mostly shorter than the hand-over is worth:
:func:`products` lets the calling thread compute these alone. Other libraries decide for themselves.
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple

import numpy as np

FEWEST = 9_000
"""Products of fewer multiplications are computed by the calling thread in any case."""

MOST = 1 << 27
"""Multiplications that one thread computes in some milliseconds; products of more are shared by all threads."""

_PANEL = 64
"""Columns of a panel of LAPACK, about."""

_NAMES = ("{}_num_threads", "{}_num_threads64_")
_PREFIXES = ("scipy_openblas_", "openblas_")


class Library(NamedTuple):
    """The functions of OpenBLAS that read and write the number of threads of the process."""

    get: Callable[[], int]
    set: Callable[[int], None]


@functools.cache
def openblas() -> Library | None:
    """Return the functions of the library that numpy is linked to; None if it is not OpenBLAS."""
    core = getattr(np, "_core", None) or np.core
    try:
        # A look-up in the extension module finds the symbols of the libraries that it is linked to.
        linked = ctypes.CDLL(core._multiarray_umath.__file__)
    except (AttributeError, OSError):
        return None
    for name in _NAMES:
        for prefix in _PREFIXES:
            get, set = (getattr(linked, prefix + name.format(verb), None) for verb in ("get", "set"))
            if get is not None and set is not None:
                get.restype, get.argtypes = ctypes.c_int, []
                set.restype, set.argtypes = None, [ctypes.c_int]
                return Library(get, set)
    return None


class _OneThread:
    """A context in which products are computed by the thread that calls; any number of threads may be inside.

    The number of threads belongs to the process: the first to enter sets it, the last to leave restores it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._before = 1

    def __enter__(self) -> None:
        library = openblas()
        if library is not None:
            with self._lock:
                if not self._inside:
                    self._before = library.get()
                    if self._before > 1:
                        library.set(1)
                self._inside += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        library = openblas()
        if library is not None:
            with self._lock:
                self._inside = max(self._inside - 1, 0)
                if not self._inside and self._before > 1 and library.get() == 1:  # Else the caller has set it since.
                    library.set(self._before)

    def renew(self) -> None:
        """Restore the number of threads in a child process, in which no other thread will leave."""
        self._lock = threading.Lock()  # Another thread of the parent may hold the lock for ever.
        inside, self._inside = self._inside, 0
        library = openblas() if inside else None
        if library is not None and self._before > 1:
            library.set(self._before)


class _Unchanged:
    """A context that changes nothing."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass


_ONE_THREAD = _OneThread()
_UNCHANGED = _Unchanged()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ONE_THREAD.renew)


def products(multiplications: int) -> _OneThread | _Unchanged:
    """Return a context for products of two matrices with this number of multiplications each."""
    return _ONE_THREAD if FEWEST <= multiplications < MOST else _UNCHANGED


def small_work(is_small: bool) -> _OneThread | _Unchanged:
    """Return a context for a sequence of products; one thread computes all of them if most are small."""
    return _ONE_THREAD if is_small else _UNCHANGED


def factorizations(size: int) -> _OneThread | _Unchanged:
    """Return a context for factorizations of square matrices of a size, and solutions of their systems.

    LAPACK multiplies panels of some dozen columns, and hands each product over: two threads compute the factor of 144
    columns in 60 ms beside other processes, one in 0.1 ms.
    """
    return products(max(_PANEL * size * size, FEWEST))
