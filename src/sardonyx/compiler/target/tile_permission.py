"""Permission of the system to use the matrix tiles of the processor (AMX): Linux grants 8 KiB a thread on request."""

from __future__ import annotations

import ctypes
import functools
import sys

ARCH_PRCTL = 158
"""Number of Linux's system call ``arch_prctl`` on x86-64."""

REQUEST_STATE = 0x1023
"""Code of ``arch_prctl`` that requests a register state for all threads of the process."""

TILE_DATA = 18
"""Number of the register state that holds the tiles."""


@functools.cache
def request_tiles() -> bool:
    """Return True if the process may use matrix tiles, after a request to the system."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.syscall(ARCH_PRCTL, REQUEST_STATE, TILE_DATA) == 0)
