"""Files that one thread or process at a time holds; a lock ends with its process."""

from __future__ import annotations

import errno
import importlib
import os
import time
from typing import Any

IS_POSIX = os.name == "posix"

_HELD_ERRORS = frozenset({errno.EACCES, errno.EAGAIN, errno.EDEADLK})

_RETRY_SECONDS = 0.05
"""Seconds between two tries on Windows, which has no wait of its own without an end."""


def hold(descriptor: int, *, wait: bool) -> None:
    """Lock an open file until its descriptor is closed.

    Args:
        descriptor: The file, open for writing.
        wait: True to wait for another holder.

    Raises:
        OSError: The file cannot be locked, or another descriptor holds it (:func:`is_of_another`), and `wait` is False.
    """
    if IS_POSIX:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        return
    msvcrt: Any = importlib.import_module("msvcrt")  # Of Windows alone.
    while True:
        os.lseek(descriptor, 0, os.SEEK_SET)
        try:
            # The first byte: it may be past the end of the file.
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            return
        except OSError as error:
            if not wait or not is_of_another(error):
                raise
            time.sleep(_RETRY_SECONDS)


def is_of_another(error: OSError) -> bool:
    """Return True if an error of :func:`hold` says that another descriptor holds the file."""
    return error.errno in _HELD_ERRORS
