"""Frames of HTTP/2 (RFC 9113), and header blocks as far as gRPC needs them."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from sardonyx.errors import MissingDependencyError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR = 0x0, 0x1, 0x2, 0x3, 0x6
STREAM_CLOSED, REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 0x5, 0x7, 0x8, 0x9, 0xB

SETTINGS_MAX_CONCURRENT_STREAMS, SETTINGS_INITIAL_WINDOW_SIZE = 0x3, 0x4
SETTINGS_MAX_FRAME_SIZE, SETTINGS_MAX_HEADER_LIST_SIZE = 0x5, 0x6

_REMEMBERED_BYTES = 64 << 10
"""Bytes of header blocks and fields that a connection remembers: a client repeats a few of some hundred bytes."""

_FIELD_BYTES = 128
"""Bytes of the objects of a field."""

REQUIRED = frozenset((":method", ":scheme", ":path"))
"""Fields of every request."""

_PSEUDO = REQUIRED | {":authority"}
_FORBIDDEN = frozenset(("connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade"))
_ONCE = (*_PSEUDO, "authorization", "content-type", "grpc-encoding", "grpc-timeout")
_CONTROL = re.compile(r"[\0\r\n]")


class Http2Error(Exception):
    """The peer violates the protocol: the connection ends.

    Args:
        code: The error code.
        text: The reason, for the peer.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return the bytes of a frame."""
    return frame_head(kind, flags, stream, len(payload)) + payload


def frame_head(kind: int, flags: int, stream: int, size: int) -> bytes:
    """Return the bytes of a frame before its payload of some bytes."""
    return struct.pack(">IBI", (size << 8) | kind, flags, stream)


def settings_frame(values: Iterable[tuple[int, int]]) -> bytes:
    """Return a frame of settings."""
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", key, value) for key, value in values))


def header_block(fields: Iterable[tuple[str, str]]) -> bytes:
    """Return a header block of literal fields, which changes no table of the peer."""
    return b"".join(b"\x00" + _string(name) + _string(value) for name, value in fields)


def _string(text: str) -> bytes:
    data = text.encode()
    length = len(data)
    if length < 127:
        return bytes((length,)) + data
    rest, prefix = length - 127, bytearray((127,))
    while rest >= 128:
        prefix.append(rest % 128 + 128)
        rest //= 128
    prefix.append(rest)
    return bytes(prefix) + data


ANSWER_HEAD = header_block(((":status", "200"), ("content-type", "application/grpc")))
ANSWER_TRAILERS = header_block((("grpc-status", "0"),))
"""The header blocks before and after the message of an answer."""


def unary_answer(pieces: Sequence[bytes], size: int) -> bytes:
    """Return the frames of a successful call with one message, as a format of bytes.

    The places of the format are the stream, the stream, the bytes between the pieces of the message, and the stream;
    a stream is four bytes.

    Args:
        pieces: The pieces of the message.
        size: The bytes of the message.
    """

    def head(kind: int, flags: int, length: int) -> bytes:
        return struct.pack(">IB", (length << 8) | kind, flags)

    texts = [
        head(HEADERS, END_HEADERS, len(ANSWER_HEAD)),
        ANSWER_HEAD + head(DATA, 0, size + 5),
        struct.pack(">BI", 0, size) + pieces[0],
        *pieces[1:-1],
        pieces[-1] + head(HEADERS, END_HEADERS | END_STREAM, len(ANSWER_TRAILERS)),
        ANSWER_TRAILERS,
    ]
    return b"%b".join(text.replace(b"%", b"%%") for text in texts)


class HeaderFields(dict[str, str]):
    """The fields of a header block; a repeated field has its last value.

    Attributes:
        is_plain: True once a call with these fields was answered that a template could have read.
        is_malformed: True if HTTP/2 forbids the fields, so that a proxy could have read others than this server.
    """

    is_plain = False
    is_malformed = False

    @classmethod
    def of(cls, fields: Sequence[tuple[str, str]]) -> HeaderFields:
        """Return the fields of a block."""
        headers = cls(fields)
        names = [name for name, _ in fields]
        regular = [name for name in names if not name.startswith(":")]
        headers.is_malformed = (
            not _PSEUDO.issuperset(names[: len(names) - len(regular)])
            or any(name.startswith(":") for name in names[len(names) - len(regular) :])
            or not _FORBIDDEN.isdisjoint(regular)
            or headers.get("te", "trailers") != "trailers"
            or any(not name or name != name.lower() or not name.isprintable() or " " in name for name in regular)
            or any(_CONTROL.search(value) for _, value in fields)
            or any(names.count(name) > 1 for name in _ONCE if name in headers)
        )
        return headers


class HeaderReader:
    """Reads header blocks; a block that changes no table is remembered by its bytes.

    Args:
        limit: Limit of the bytes of all fields of a block.
        most: Limit of the number of fields of a block.

    Raises:
        MissingDependencyError: hpack is not installed.
    """

    def __init__(self, limit: int, most: int) -> None:
        try:
            import hpack
        except ImportError as error:
            raise MissingDependencyError(
                "serving over gRPC requires hpack.", remedy='Install it: pip install "sardonyx[grpc]".'
            ) from error
        self._errors = hpack.HPACKError
        self._most = most
        self._decoder: Any = hpack.Decoder(max_header_list_size=limit)
        self._blocks: dict[bytes, HeaderFields] = {}
        self._remembered = 0

    def known(self, block: bytes) -> HeaderFields | None:
        """Return the fields of a block that was read before and changes no table."""
        return self._blocks.get(block)

    def read(self, block: bytes) -> HeaderFields:
        """Return the fields of a block.

        Raises:
            Http2Error: The block cannot be read, or has too many fields.
        """
        cached = self._blocks.get(block)
        if cached is not None:
            return cached
        entries = self._decoder.header_table.dynamic_entries
        before = len(entries), entries[0] if entries else None, self._decoder.header_table.maxsize
        try:
            pairs = self._decoder.decode(block)
        except (self._errors, UnicodeDecodeError) as error:
            raise Http2Error(COMPRESSION_ERROR, "malformed header block") from error
        if len(pairs) > self._most:
            raise Http2Error(ENHANCE_YOUR_CALM, "too many header fields")
        fields = HeaderFields.of(pairs)
        after = len(entries), entries[0] if entries else None, self._decoder.header_table.maxsize
        if before[0] != after[0] or before[1] is not after[1] or before[2] != after[2]:
            self._blocks.clear()
            self._remembered = 0
        else:
            # An entry of the table is repeated by one byte, so that fields may be larger than their block.
            size = len(block) + sum(len(name) + len(value) + _FIELD_BYTES for name, value in fields.items())
            if self._remembered + size <= _REMEMBERED_BYTES:
                self._remembered += size
                self._blocks[block] = fields
        return fields
