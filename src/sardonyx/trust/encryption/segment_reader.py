"""Plain contents of an encrypted file, a few segments at a time, for contents larger than the memory."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import overload

from sardonyx.base.cpu_count import thread_count
from sardonyx.model.external import MappedFile
from sardonyx.trust.encryption.segments import HEAD_BYTES, Decryption

_CACHED_SEGMENTS = 2
"""Segments of random accesses: a value may begin in one segment and end in the next."""


class SegmentReader:
    """The plain bytes of a stream at the end of a file; nothing but the segments in use is in memory.

    Args:
        file: The encrypted file.
        start: First byte of the stream.
        data_key: The data key.
        context: The context of the stream.

    Raises:
        EncryptionError: No stream begins there; reads raise it for segments that were changed.
    """

    def __init__(self, file: MappedFile, start: int, data_key: bytes, context: bytes) -> None:
        self._file, self._start = file, start
        self._decryption = Decryption(data_key, context, file.read(start, HEAD_BYTES), file.size - start)
        self._segment = functools.lru_cache(_CACHED_SEGMENTS)(self._decrypt)

    def __len__(self) -> int:
        return self._decryption.size

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> bytes: ...
    def __getitem__(self, index: int | slice) -> int | bytes:
        if isinstance(index, slice):
            start, end, _ = index.indices(len(self))
            return b"".join(self._pieces(start, end))
        number = self._decryption.index_of(index)
        return self._segment(number)[index - self._decryption.plain(number)[0]]

    def _pieces(self, start: int, end: int) -> Iterator[memoryview]:
        while start < end:
            number = self._decryption.index_of(start)
            first, last = self._decryption.plain(number)
            yield memoryview(self._segment(number))[start - first : end - first]
            start = last

    def chunks(self) -> Iterator[bytearray]:
        """Decrypt all segments in order, by all processors, two ahead of the caller for each.

        Raises:
            EncryptionError: A segment was changed.
        """
        threads = thread_count(None)
        pending: collections.deque[Future[bytearray]] = collections.deque()
        with ThreadPoolExecutor(threads) as pool:
            try:
                for index in range(self._decryption.count):
                    pending.append(pool.submit(self._decrypt, index))
                    if len(pending) > 2 * threads:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:
                for future in pending:
                    future.cancel()

    def _decrypt(self, index: int) -> bytearray:
        start, end = self._decryption.stored(index)
        first, last = self._decryption.plain(index)
        plain = bytearray(last - first)
        self._decryption.decrypt(index, self._file.read(self._start + start, end - start), plain)
        return plain
