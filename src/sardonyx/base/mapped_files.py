"""Files mapped into memory for reading, and the release of the pages that were read.

Pages of a mapping count as memory of the process until the system needs the memory. A reader that goes through all
weights of a model would hold the whole file besides its own results: readers of large spans count the bytes, and the
pages are released from time to time. A released page is loaded again at the next access, from the system's file cache.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
import weakref

_RELEASE_BYTES = 64 << 20
"""Bytes that are read before the pages are released."""

_lock = threading.Lock()
_files: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
_read = 0


def map_file(descriptor: int) -> mmap.mmap:
    """Map a whole file that is not empty, for reading.

    Args:
        descriptor: The open file.

    Raises:
        OSError: The file cannot be mapped.
    """
    mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    with _lock:
        _files.add(mapped)
    return mapped


def count_read(size: int) -> None:
    """Count bytes that were read from mapped files, and release the pages of all mapped files once they are many.

    Args:
        size: Number of bytes.
    """
    global _read
    with _lock:
        _read += size
        if _read < _RELEASE_BYTES:
            return
    release_pages()


def release_pages() -> None:
    """Release the pages of all mapped files, after the last use of what was read."""
    global _read
    with _lock:
        _read = 0
        files = list(_files)
    if hasattr(mmap, "MADV_DONTNEED"):
        for mapped in files:
            # The system refuses for pages that the process has locked: these stay in memory, as the process wants.
            with contextlib.suppress(OSError):
                mapped.madvise(mmap.MADV_DONTNEED)
