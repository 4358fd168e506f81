"""Anonymous memory for decrypted contents: not in core dumps, and not swapped to disk if the system's limits allow."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os

_log = logging.getLogger(__name__)
_ON_FAULT = 1
"""Flag of Linux's ``mlock2``: the threads that decrypt touch the pages, in parallel."""


def allocate(size: int) -> memoryview:
    """Return zeroed, writable memory of ``size`` bytes, freed with the last view.

    The memory is excluded from core dumps. It is locked (``mlock``), so that no part is written to swap space, as far
    as ``RLIMIT_MEMLOCK`` allows; the log says if locking was refused.
    """
    if not size:
        return memoryview(bytearray())
    # Private memory has huge pages, which take a third of the time of small ones.
    memory = mmap.mmap(-1, size, **({"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if os.name == "posix" else {}))
    for advice in ("MADV_DONTDUMP", "MADV_HUGEPAGE"):
        if (number := getattr(mmap, advice, None)) is not None:
            try:
                memory.madvise(number)
            except OSError as error:
                _log.info("decrypted memory has no %s: %s", advice, error)
    _lock(memory, size)
    return memoryview(memory)


def _lock(memory: mmap.mmap, size: int) -> None:
    """Lock pages of a mapping as they are first touched, or else all at once; unmapping unlocks the pages."""
    library = ctypes.CDLL(None, use_errno=True)
    anchor = ctypes.c_char.from_buffer(memory)
    address, length = ctypes.c_void_p(ctypes.addressof(anchor)), ctypes.c_size_t(size)
    del anchor
    if hasattr(library, "mlock2") and library.mlock2(address, length, _ON_FAULT) == 0:
        return
    if not hasattr(library, "mlock"):
        _log.info("decrypted memory is not locked: the system has no mlock")
    elif library.mlock(address, length):
        _log.info("decrypted memory of %d bytes is not locked: errno %d", size, ctypes.get_errno())
