"""Authenticated encryption of a byte stream in segments: Tink's AES-GCM-HKDF streaming format, AES-256, SHA-256.

A stream is a head of 40 bytes (the length of the head, a salt of 32 bytes, a nonce prefix of 7 bytes) and segments of
1 MiB, the last one shorter. Each segment is encrypted alone, with the nonce prefix ‖ index ‖ last flag, so that a
segment that is missing, moved, repeated, or from another stream fails its tag. The key of a stream is derived by HKDF
from the data key, the salt and the context, bytes that the reader must know.

Source: https://developers.google.com/tink/streaming-aead/aes_gcm_hkdf_streaming
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from sardonyx.base.cpu_count import thread_count
from sardonyx.base.mapped_files import count_read
from sardonyx.errors import EncryptionError

SEGMENT_BYTES = 1 << 20
"""Bytes of an encrypted segment with its tag."""

KEY_BYTES = 32
_TAG = 16
_PREFIX = 7
HEAD_BYTES = 1 + KEY_BYTES + _PREFIX
PLAIN_BYTES = SEGMENT_BYTES - _TAG
"""Plain bytes of a segment; the first segment has :data:`HEAD_BYTES` less."""

MAX_SEGMENTS = 2**32
_SERIAL_SEGMENTS = 8
"""Streams of up to this many segments are decrypted by the caller alone: starting threads takes as long."""


def derive_key(secret: bytes, salt: bytes, context: bytes) -> bytes:
    """Return a key of 32 bytes by HKDF-SHA256."""
    from sardonyx.trust.encryption.ciphers import HKDF, SHA256

    key: bytes = HKDF(SHA256(), KEY_BYTES, salt, context).derive(secret)
    return key


def encrypted_size(size: int) -> int:
    """Return the bytes of the stream of ``size`` plain bytes."""
    return HEAD_BYTES + size + _TAG * _segment_count(size)


def plain_size(size: int) -> int:
    """Return the plain bytes of a stream of ``size`` bytes.

    Raises:
        EncryptionError: No stream has this size.
    """
    if size < HEAD_BYTES + _TAG:
        raise EncryptionError(f"expected at least {HEAD_BYTES + _TAG} encrypted bytes, got {size}: truncated.")
    segments = -(-size // SEGMENT_BYTES)
    plain = size - HEAD_BYTES - _TAG * segments
    if segments > MAX_SEGMENTS or plain < 0 or encrypted_size(plain) != size:
        raise EncryptionError(f"{size:,} bytes cannot be an encrypted stream: truncated or extended.")
    return plain


def _segment_count(size: int) -> int:
    """Return the number of segments of ``size`` plain bytes; an empty stream has one segment."""
    return max(1, -(-(size + HEAD_BYTES) // PLAIN_BYTES))


def encrypt_stream(data_key: bytes, context: bytes, chunks: Iterable[bytes | memoryview], size: int) -> Iterator[bytes]:
    """Encrypt ``size`` bytes, which ``chunks`` yield in pieces of any length.

    Yields:
        The head of the stream, then its segments.

    Raises:
        EncryptionError: The chunks have another total length.
    """
    from sardonyx.trust.encryption.ciphers import AESGCM

    salt, prefix = os.urandom(KEY_BYTES), os.urandom(_PREFIX)
    cipher = AESGCM(derive_key(data_key, salt, context))
    yield bytes([HEAD_BYTES]) + salt + prefix
    last = _segment_count(size) - 1
    index, total, pending = 0, 0, bytearray()
    for chunk in chunks:
        total += len(chunk)
        if total > size:
            break
        pending += chunk
        limit = PLAIN_BYTES - (HEAD_BYTES if index == 0 else 0)
        while len(pending) >= limit and index < last:
            yield cipher.encrypt(_nonce(prefix, index, False), bytes(pending[:limit]), None)
            del pending[:limit]
            index, limit = index + 1, PLAIN_BYTES
    if total != size:
        raise EncryptionError(f"expected {size:,} bytes to encrypt, got {total:,}: the file changed meanwhile.")
    yield cipher.encrypt(_nonce(prefix, last, True), bytes(pending), None)


class Decryption:
    """The segments of one stream, each decrypted alone.

    Args:
        data_key: The data key.
        context: The context with which the stream was encrypted.
        head: The first :data:`HEAD_BYTES` bytes of the stream.
        size: Bytes of the stream.

    Raises:
        EncryptionError: The head or the size is not that of a stream.
    """

    def __init__(self, data_key: bytes, context: bytes, head: bytes, size: int) -> None:
        from sardonyx.trust.encryption.ciphers import AESGCM

        self.size = plain_size(size)
        """Plain bytes of all segments."""
        self.count = _segment_count(self.size)
        self._stream_size = size
        if head[0] != HEAD_BYTES:
            raise EncryptionError(f"expected a stream head of {HEAD_BYTES} bytes, got {head[0]}.")
        salt, self._prefix = head[1 : 1 + KEY_BYTES], head[1 + KEY_BYTES : HEAD_BYTES]
        self._cipher = AESGCM(derive_key(data_key, salt, context))

    def stored(self, index: int) -> tuple[int, int]:
        """Return the first and the end byte of a segment in the stream."""
        start = index * SEGMENT_BYTES
        return start or HEAD_BYTES, min(start + SEGMENT_BYTES, self._stream_size)

    def plain(self, index: int) -> tuple[int, int]:
        """Return the first and the end byte of a segment in the plain contents."""
        start, end = self.stored(index)
        first = max(0, index * PLAIN_BYTES - HEAD_BYTES)
        return first, first + end - start - _TAG

    def index_of(self, position: int) -> int:
        """Return the index of the segment that holds a plain byte."""
        return (position + HEAD_BYTES) // PLAIN_BYTES

    def decrypt(self, index: int, segment: bytes | memoryview, target: bytearray | memoryview) -> None:
        """Decrypt a segment into a buffer of its plain length.

        Raises:
            EncryptionError: The segment was not written with this key and context at this index, or was changed.
        """
        from sardonyx.trust.encryption.ciphers import InvalidTag

        try:
            self._cipher.decrypt_into(_nonce(self._prefix, index, index == self.count - 1), segment, None, target)
        except InvalidTag as error:
            raise EncryptionError(
                "the contents do not match their authentication tags: the file was changed, or its parts come from"
                " different files.",
                remedy="Get the file again from its author.",
            ) from error


def decrypt_stream(data_key: bytes, context: bytes, stream: memoryview, target: memoryview) -> None:
    """Decrypt a whole stream into a buffer, by all processors.

    Args:
        data_key: The data key.
        context: The context with which the stream was encrypted.
        stream: The head and the segments.
        target: Writable buffer of exactly :func:`plain_size` bytes.

    Raises:
        EncryptionError: The stream was not written with this key and context, or was changed. The buffer is then
            filled with zeros.
    """
    decryption = Decryption(data_key, context, bytes(stream[:HEAD_BYTES]), len(stream))
    assert len(target) == decryption.size

    def decrypt(index: int) -> None:
        (start, end), (first, last) = decryption.stored(index), decryption.plain(index)
        decryption.decrypt(index, stream[start:end], target[first:last])
        count_read(end - start)

    try:
        if decryption.count <= _SERIAL_SEGMENTS or thread_count(None) == 1:
            for index in range(decryption.count):
                decrypt(index)
        else:
            with ThreadPoolExecutor(thread_count(None)) as pool:
                for _ in pool.map(decrypt, range(decryption.count)):
                    pass
    except EncryptionError:
        target[:] = bytes(decryption.size)
        raise


def _nonce(prefix: bytes, index: int, is_last: bool) -> bytes:
    return prefix + index.to_bytes(4, "big") + bytes([is_last])
