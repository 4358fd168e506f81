"""Files mapped into memory for reading, and the release of the pages that were read.

Pages of a mapping count as memory of the process until the system needs the memory. A reader that goes through all
weights of a model would hold the whole file besides its own results: readers of large spans count the bytes, and the
pages are released from time to time. A released page is loaded again at the next access, from the system's file cache.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import threading
import weakref

import numpy as np

SEGMENT_BYTES = 256 << 20
"""Bytes of one file of a spill: each file holds a descriptor."""

_ALIGNMENT = 64
"""Bytes of a cache line, at which spilled arrays begin."""

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


class Spill:
    """Arrays in temporary files without names, mapped, in place of memory of the process.

    A file is deleted with the last array in it. Without space for a file, arrays stay in memory.
    """

    def __init__(self) -> None:
        self._segment: mmap.mmap | None = None
        self._used = 0

    def array(self, array: np.ndarray) -> np.ndarray:
        """Return a copy of an array in a file; the array itself if it cannot be written."""
        start = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        if self._segment is None or start + array.nbytes > len(self._segment):
            self._segment = _writable_file(max(SEGMENT_BYTES, array.nbytes))
            start = 0
        if self._segment is None or not array.nbytes:
            return array
        result = np.frombuffer(self._segment, array.dtype, array.size, start).reshape(array.shape)
        np.copyto(result, array)
        self._used = start + array.nbytes
        result.flags.writeable = False
        count_read(array.nbytes)
        return result


def _writable_file(size: int) -> mmap.mmap | None:
    """Map a new temporary file; None if there is no space for it."""
    try:
        with tempfile.TemporaryFile(prefix="sardonyx-") as file:
            os.posix_fallocate(file.fileno(), 0, size)
            mapped = mmap.mmap(file.fileno(), size)
    except OSError:
        return None
    with _lock:
        _files.add(mapped)
    return mapped
