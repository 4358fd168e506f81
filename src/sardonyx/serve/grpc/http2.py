"""gRPC on the event loop: an HTTP/2 server for the calls of one service."""

from __future__ import annotations

import asyncio
import logging
import struct
import time
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from sardonyx.errors import RequestError
from sardonyx.serve.dispatch.plain import LARGEST, PlainRequest
from sardonyx.serve.grpc import frames
from sardonyx.serve.grpc.frames import HeaderFields, Http2Error, frame, header_block
from sardonyx.serve.grpc.templates import GrpcTemplates
from sardonyx.serve.protocol.limits import Limits
from sardonyx.serve.protocol.refusals import REFUSALS, refusal

_log = logging.getLogger("sardonyx.serve")

_FRAME_BYTES = 1 << 20
_STREAM_WINDOW = 4 << 20
_CONNECTION_WINDOW = 32 << 20
_CONTROL_FRAMES = 1000
"""Control frames (settings, pings, resets, empty frames) of a connection in one second, beyond those of answers."""

_CONTROL_FRAMES_OF_DATA = 8
"""Control frames that a client may send for a frame of data: it opens windows, and measures the connection by pings."""

_TIMEOUT_UNITS = {"H": 3_600_000_000, "M": 60_000_000, "S": 1_000_000, "m": 1000, "u": 1, "n": 0}

Send = Callable[[bytes], None]


class Stream:
    """One call.

    Attributes:
        number: The number of the stream.
        method: The name of the call.
        headers: The header fields.
        is_ended: True once the client sends no more.
        work: The pending work, for cancellation.
        send_window: Bytes that the client accepts.
    """

    __slots__ = (
        "connection", "data", "headers", "is_closed", "is_ended", "method", "number", "pending", "received",
        "send_window", "sent_head", "trailers", "work",
    )  # fmt: skip

    def __init__(self, connection: Http2Connection, number: int, headers: HeaderFields, window: int) -> None:
        self.connection = connection
        self.number = number
        self.headers = headers
        self.method = headers[":path"].rpartition("/")[2]
        self.data = bytearray()
        self.received = 0
        self.is_ended = False
        self.is_closed = False
        self.work: Any = None
        self.send_window = window
        self.pending: deque[bytes] = deque()
        self.trailers: bytes | None = None
        self.sent_head = False

    @property
    def timeout_us(self) -> int:
        """The deadline of the call in microseconds from its start; 0 for none."""
        text = self.headers.get("grpc-timeout", "")
        if not text or not text[:-1].isdecimal() or len(text) > 9 or text[-1] not in _TIMEOUT_UNITS:
            return 0
        return max(1, int(text[:-1]) * _TIMEOUT_UNITS[text[-1]])

    def reply(self, message: bytes) -> None:
        """Send one message of the answer."""
        self.connection.send_message(self, message)

    def finish(self) -> None:
        """End the call with success."""
        self.connection.end_stream(self, frames.ANSWER_TRAILERS)

    def fail(self, error: BaseException) -> None:
        """End the call with the status of an error."""
        refused, is_defect = refusal(error)
        if is_defect:
            _log.error("%s", refused, exc_info=error)
        fields = [("grpc-status", str(REFUSALS[refused.kind].grpc)), ("grpc-message", quote(str(refused)[:1000], " "))]
        if not self.sent_head:
            fields = [(":status", "200"), ("content-type", "application/grpc"), *fields]
        self.connection.end_stream(self, header_block(fields))


Answer = Callable[[Stream, "bytes | None"], None]
"""Answers a message of a call, now or later; None after the last message."""


class Http2Connection(asyncio.Protocol):
    """A connection of a client of gRPC.

    Args:
        answer: Answers messages.
        limits: The limits of the server.
        connections: The open connections, of which this becomes one.
        templates: Read calls that are equal to earlier ones but for the values.
    """

    def __init__(
        self, answer: Answer, limits: Limits, connections: set[Http2Connection], templates: GrpcTemplates
    ) -> None:
        self._answer = answer
        self._templates = templates
        self._plain: dict[int, PlainRequest] = {}
        self._limits = limits
        self._connections = connections
        self._transport: Any = None
        self._buffer = bytearray()
        self._has_preface = False
        self._reader = frames.HeaderReader(limits.head_bytes)
        self._streams: dict[int, Stream] = {}
        self._last = 0
        self._block: tuple[int, int, bytearray] | None = None
        self._window = 65535
        self._stream_window = 65535
        self._peer_frame = 16384
        self._consumed = 0
        self._control = 0
        self._resets = 0
        self._control_since = time.monotonic()
        self._output: list[bytes] = []
        self._is_feeding = False
        self._is_closing = False

    @property
    def is_busy(self) -> bool:
        """True if a call is open."""
        return bool(self._streams or self._plain)

    def connection_made(self, transport: Any) -> None:
        """Accept the connection, unless too many are open."""
        self._transport = transport
        if len(self._connections) >= self._limits.connections:
            transport.close()
            return
        self._connections.add(self)
        self._send(frames.settings_frame((
            (frames.SETTINGS_MAX_CONCURRENT_STREAMS, self._limits.streams),
            (frames.SETTINGS_INITIAL_WINDOW_SIZE, _STREAM_WINDOW),
            (frames.SETTINGS_MAX_FRAME_SIZE, _FRAME_BYTES),
            (frames.SETTINGS_MAX_HEADER_LIST_SIZE, self._limits.head_bytes),
        )))  # fmt: skip
        self._send(frame(frames.WINDOW_UPDATE, 0, 0, struct.pack(">I", _CONNECTION_WINDOW - 65535)))

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all calls of the client."""
        self._connections.discard(self)
        self._transport = None
        for stream in list(self._streams.values()):
            self._cancel(stream)
        self._streams.clear()
        for request in list(self._plain.values()):
            request.cancel()
        self._plain.clear()

    def data_received(self, data: bytes) -> None:
        """Read frames."""
        if self._transport is None or self._is_closing:
            return
        buffer: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            buffer = self._buffer
        self._is_feeding = True
        try:
            self._read_frames(buffer)
        except Http2Error as error:
            self._end(error.code, error.text)
        finally:
            self._is_feeding = False
            self._flush()

    def _read_frames(self, buffer: bytes | bytearray) -> None:
        """Read the complete frames of a buffer, and keep the rest.

        Args:
            buffer: The bytes of the connection, or new bytes if none are kept.
        """
        offset = 0
        size = len(buffer)
        if not self._has_preface:
            begin = bytes(buffer[: len(frames.PREFACE)])
            if not frames.PREFACE.startswith(begin):
                raise Http2Error(frames.PROTOCOL_ERROR, "expected the preface of HTTP/2")
            if size >= len(frames.PREFACE):
                self._has_preface = True
                offset = len(frames.PREFACE)
        while self._has_preface and size - offset >= 9:
            length = (buffer[offset] << 16) | (buffer[offset + 1] << 8) | buffer[offset + 2]
            if length > _FRAME_BYTES:
                raise Http2Error(frames.FRAME_SIZE_ERROR, "frame too large")
            end = offset + 9 + length
            if size < end:
                break
            kind, flags = buffer[offset + 3], buffer[offset + 4]
            if kind == frames.HEADERS and flags == frames.END_HEADERS:
                after = self._plain_call(buffer, offset, end, size)
                if after:
                    offset = after
                    continue
            number = struct.unpack_from(">I", buffer, offset + 5)[0] & 0x7FFFFFFF
            payload = bytes(memoryview(buffer)[offset + 9 : end])
            offset = end
            self._frame(kind, flags, number, payload)
            if self._transport is None or self._is_closing:
                return
        if buffer is self._buffer:
            del self._buffer[:offset]
        elif offset < size:
            self._buffer += buffer[offset:]

    def _plain_call(self, buffer: bytes | bytearray, offset: int, end: int, size: int) -> int:
        """Let a plain call wait, whose two frames are complete; return the offset after these, or 0 for another call.

        Args:
            buffer: The bytes of the connection.
            offset: The offset of the frame of header fields.
            end: The offset after this frame.
            size: The number of bytes.
        """
        if (
            size - end < 14 or buffer[end + 3] != frames.DATA or buffer[end + 4] != frames.END_STREAM
            or self._block is not None
        ):  # fmt: skip
            return 0
        length: int
        number: int
        length, same, is_compressed, message_length = struct.unpack_from(">IxIBI", buffer, end)
        length >>= 8
        (number,) = struct.unpack_from(">I", buffer, offset + 5)
        after = end + 9 + length
        if (
            number != same or not self._last < number <= 0x7FFFFFFF or not number & 1 or after > size
            or is_compressed or message_length != length - 5 or length > LARGEST
            or len(self._streams) + len(self._plain) >= self._limits.streams
        ):  # fmt: skip
            return 0
        headers = self._reader.known(bytes(buffer[offset + 9 : end]))
        if headers is None or not headers.is_plain:
            return 0
        request = self._templates.read(bytes(buffer[end + 14 : after]), self, (number, headers))
        if request is None:
            return 0
        self._last = number
        self._plain[number] = request
        self._consume(length)
        return after

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._block is not None and (kind != frames.CONTINUATION or number != self._block[0]):
            raise Http2Error(frames.PROTOCOL_ERROR, "expected a continuation")
        if kind == frames.DATA:
            self._data(flags, number, payload)
        elif kind == frames.HEADERS:
            self._headers(flags, number, payload)
        elif kind == frames.CONTINUATION:
            self._continuation(flags, payload)
        else:
            self._resets += kind == frames.RST_STREAM
            self._count_control()
            self._control_frame(kind, flags, number, payload)

    def _count_control(self) -> None:
        now = time.monotonic()
        if now - self._control_since > 1.0:
            self._control, self._resets, self._control_since = 0, 0, now
        self._control += 1
        if max(self._control, self._resets) > _CONTROL_FRAMES:
            raise Http2Error(frames.ENHANCE_YOUR_CALM, "too many control frames")

    def _control_frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == frames.SETTINGS:
            if number or len(payload) % 6 or (flags & frames.ACK and payload):
                raise Http2Error(frames.PROTOCOL_ERROR, "malformed settings")
            if not flags & frames.ACK:
                self._settings(payload)
        elif kind == frames.PING:
            if number or len(payload) != 8:
                raise Http2Error(frames.FRAME_SIZE_ERROR, "malformed ping")
            if not flags & frames.ACK:
                self._send(frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.WINDOW_UPDATE:
            self._window_update(number, payload)
        elif kind == frames.RST_STREAM:
            if not number or len(payload) != 4 or number > self._last:
                raise Http2Error(frames.PROTOCOL_ERROR, "malformed reset")
            stream = self._streams.pop(number, None)
            if stream is not None:
                self._cancel(stream)
            elif (request := self._plain.pop(number, None)) is not None:
                request.cancel()
        elif kind == frames.GOAWAY:
            self._is_closing = self._is_closing or not self.is_busy
        elif kind == frames.PUSH_PROMISE:
            raise Http2Error(frames.PROTOCOL_ERROR, "clients do not push")

    def _settings(self, payload: bytes) -> None:
        for key, value in struct.iter_unpack(">HI", payload):
            if key == frames.SETTINGS_INITIAL_WINDOW_SIZE:
                if value > 0x7FFFFFFF:
                    raise Http2Error(frames.FLOW_CONTROL_ERROR, "window too large")
                change = value - self._stream_window
                self._stream_window = value
                for stream in list(self._streams.values()):
                    stream.send_window += change
            elif key == frames.SETTINGS_MAX_FRAME_SIZE:
                if not 16384 <= value <= 0xFFFFFF:
                    raise Http2Error(frames.PROTOCOL_ERROR, "invalid frame size")
                self._peer_frame = value
        self._send(frame(frames.SETTINGS, frames.ACK, 0))
        self._send_pending()

    def _window_update(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(frames.FRAME_SIZE_ERROR, "malformed window update")
        increment = struct.unpack(">I", payload)[0] & 0x7FFFFFFF
        if number == 0:
            self._window += increment
            if not increment or self._window > 0x7FFFFFFF:
                raise Http2Error(frames.FLOW_CONTROL_ERROR, "window too large")
        else:
            stream = self._stream(number)
            if stream is not None:
                stream.send_window += increment
                if not increment or stream.send_window > 0x7FFFFFFF:
                    raise Http2Error(frames.FLOW_CONTROL_ERROR, "window too large")
        self._send_pending()

    # Calls.

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        begin, end = 0, len(payload)
        if flags & frames.PADDED:
            if not payload or payload[0] + 1 > end:
                raise Http2Error(frames.PROTOCOL_ERROR, "malformed padding")
            begin, end = 1, end - payload[0]
        if flags & frames.HAS_PRIORITY:
            begin += 5
        if number % 2 == 0 or begin > end:
            raise Http2Error(frames.PROTOCOL_ERROR, "malformed headers")
        block = payload[begin:end]
        if flags & frames.END_HEADERS:
            self._begin(number, flags, block)
        else:
            self._block = number, flags, bytearray(block)
            self._require_block(len(block))

    def _continuation(self, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise Http2Error(frames.PROTOCOL_ERROR, "unexpected continuation")
        if not payload:
            self._count_control()
        number, first, block = self._block
        block += payload
        self._require_block(len(block))
        if flags & frames.END_HEADERS:
            self._block = None
            self._begin(number, first, bytes(block))

    def _require_block(self, size: int) -> None:
        if size > self._limits.head_bytes:
            raise Http2Error(frames.ENHANCE_YOUR_CALM, "header block too large")

    def _begin(self, number: int, flags: int, block: bytes) -> None:
        self._require_block(len(block))
        headers = self._reader.read(block)
        stream = self._stream(number)
        if stream is not None:
            # Trailers of the client.
            if flags & frames.END_STREAM:
                self._ended(stream)
            return
        if number <= self._last:
            raise Http2Error(frames.PROTOCOL_ERROR, "the stream is closed")
        self._last = number
        if len(self._streams) + len(self._plain) >= self._limits.streams:
            self._count_control()
            self._send(frame(frames.RST_STREAM, 0, number, struct.pack(">I", frames.REFUSED_STREAM)))
            return
        if headers.get(":method") != "POST" or ":path" not in headers:
            raise Http2Error(frames.PROTOCOL_ERROR, "expected a call of gRPC")
        stream = self._streams[number] = Stream(self, number, headers, self._stream_window)
        if not headers.get("content-type", "").startswith("application/grpc"):
            stream.fail(RequestError("expected the content type application/grpc.", kind="media_type"))
        elif flags & frames.END_STREAM:
            self._ended(stream)

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        self._consume(len(payload))
        stream = self._stream(number)
        if stream is None:
            if number == 0 or number > self._last:
                raise Http2Error(frames.PROTOCOL_ERROR, "data of no stream")
            return
        if not payload and not flags & frames.END_STREAM:
            self._count_control()
        if flags & frames.PADDED:
            if not payload or payload[0] + 1 > len(payload):
                raise Http2Error(frames.PROTOCOL_ERROR, "malformed padding")
            payload = payload[1 : len(payload) - payload[0]]
        stream.data += payload
        stream.received += len(payload)
        if len(stream.data) > self._limits.body_bytes + 5:
            stream.fail(RequestError(f"expected at most {self._limits.body_bytes} bytes.", kind="too_large"))
            return
        if stream.received > _STREAM_WINDOW // 2 and not flags & frames.END_STREAM:
            self._send(frame(frames.WINDOW_UPDATE, 0, number, struct.pack(">I", stream.received)))
            stream.received = 0
        self._messages(stream)
        if flags & frames.END_STREAM and not stream.is_closed:
            self._ended(stream)

    def _consume(self, size: int) -> None:
        self._consumed += size
        if self._consumed > _CONNECTION_WINDOW // 2:
            self._send(frame(frames.WINDOW_UPDATE, 0, 0, struct.pack(">I", self._consumed)))
            self._consumed = 0

    def _messages(self, stream: Stream) -> None:
        """Answer the complete messages of a call."""
        data = stream.data
        while len(data) >= 5 and not stream.is_closed:
            compressed, length = struct.unpack_from(">BI", data)
            if compressed > 1 or length > self._limits.body_bytes:
                stream.fail(RequestError(f"expected a message of at most {self._limits.body_bytes} bytes.",
                                         kind="too_large"))  # fmt: skip
                return
            if len(data) < 5 + length:
                return
            message = bytes(memoryview(data)[5 : 5 + length])
            del data[: 5 + length]
            try:
                if compressed:
                    message = self._decompressed(stream, message)
                self._answer(stream, message)
            except Exception as error:
                stream.fail(error)

    def _decompressed(self, stream: Stream, message: bytes) -> bytes:
        encoding = stream.headers.get("grpc-encoding", "identity")
        window = {"gzip": 31, "deflate": 15}.get(encoding)
        if window is None:
            raise RequestError("unknown encoding of the message.", kind="unsupported")
        limits = self._limits
        most = min(limits.body_bytes, max(65536, len(message) * limits.compression_ratio))
        inflate = zlib.decompressobj(window)
        try:
            data = inflate.decompress(message, most + 1)
        except zlib.error as error:
            raise RequestError(f"the message is not {encoding} data.") from error
        if len(data) > most or not inflate.eof:
            raise RequestError(f"expected at most {most} bytes after decompression.", kind="too_large")
        return data

    def _ended(self, stream: Stream) -> None:
        stream.is_ended = True
        if stream.data:
            stream.fail(RequestError("the message is truncated."))
            return
        try:
            self._answer(stream, None)
        except Exception as error:
            stream.fail(error)

    def _cancel(self, stream: Stream) -> None:
        stream.is_closed = True
        if stream.work is not None:
            stream.work.cancel()
            stream.work = None

    # Plain calls.

    def _stream(self, number: int) -> Stream | None:
        """Return an open call; a plain call that still waits takes the general path, as a frame belongs to it."""
        request = self._plain.get(number) if self._plain else None
        if request is not None and request.withdraw():
            self.repeat(request)
        return self._streams.get(number)

    def answer(self, request: PlainRequest, data: bytes, size: int) -> None:
        """Answer a plain call; the caller calls :meth:`flush` after several.

        Args:
            request: The call.
            data: The frames of the answer.
            size: The bytes of the message with its head.
        """
        number, headers = request.tag
        if self._plain.pop(number, None) is None or self._transport is None:
            return
        if size <= self._window and size <= self._stream_window and size <= self._peer_frame:
            self._window -= size
            self._output.append(data)
            self._control = max(0, self._control - _CONTROL_FRAMES_OF_DATA)
            return
        stream = self._streams[number] = Stream(self, number, headers, self._stream_window)
        stream.is_ended = True
        begin = 9 + len(frames.ANSWER_HEAD) + 9
        stream.reply(data[begin + 5 : begin + size])
        stream.finish()

    def flush(self) -> None:
        """Send the answers to plain calls."""
        if self._output:
            self._flush_soon()

    def repeat(self, request: PlainRequest) -> None:
        """Answer a plain call by the general path."""
        number, headers = request.tag
        if self._plain.pop(number, None) is None or self._transport is None:
            return
        stream = self._streams[number] = Stream(self, number, headers, self._stream_window)
        try:
            self._answer(stream, request.data)
        except Exception as error:
            stream.fail(error)
        if not stream.is_closed:
            self._ended(stream)

    # Answers.

    def send_message(self, stream: Stream, message: bytes) -> None:
        """Send a message of an answer, as far as the client accepts it."""
        if stream.is_closed or self._transport is None:
            return
        if not stream.sent_head:
            stream.sent_head = True
            self._send(frame(frames.HEADERS, frames.END_HEADERS, stream.number, frames.ANSWER_HEAD))
        stream.pending.append(struct.pack(">BI", 0, len(message)) + message)
        self._send_stream(stream)
        self._flush_soon()

    def end_stream(self, stream: Stream, trailers: bytes) -> None:
        """End a call after its pending messages."""
        if stream.is_closed or stream.trailers is not None or self._transport is None:
            return
        stream.trailers = trailers
        self._send_stream(stream)
        self._flush_soon()

    def _send_stream(self, stream: Stream) -> None:
        pending = stream.pending
        while pending:
            data = pending[0]
            size = min(len(data), self._peer_frame, self._window, stream.send_window)
            if size <= 0:
                return
            pending.popleft()
            if size < len(data):
                pending.appendleft(data[size:])
            self._window -= size
            stream.send_window -= size
            self._send(frame(frames.DATA, 0, stream.number, data[:size]))
            self._control = max(0, self._control - _CONTROL_FRAMES_OF_DATA)
        if stream.trailers is not None:
            flags = frames.END_HEADERS | frames.END_STREAM
            self._send(frame(frames.HEADERS, flags, stream.number, stream.trailers))
            if not stream.is_ended:
                self._send(frame(frames.RST_STREAM, 0, stream.number, struct.pack(">I", frames.NO_ERROR)))
            stream.is_closed = True
            self._streams.pop(stream.number, None)

    def _send_pending(self) -> None:
        for stream in list(self._streams.values()):
            if stream.pending or stream.trailers is not None:
                self._send_stream(stream)

    def _send(self, data: bytes) -> None:
        self._output.append(data)

    def _flush_soon(self) -> None:
        """Write at the end of a read; or at once, where no read is in progress."""
        if not self._is_feeding:
            self._flush()

    def _flush(self) -> None:
        output = self._output
        if output and self._transport is not None:
            self._transport.write(b"".join(output))
        output.clear()

    def _end(self, code: int, text: str) -> None:
        self._is_closing = True
        self._send(frame(frames.GOAWAY, 0, 0, struct.pack(">II", self._last, code) + text.encode()[:128]))
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def go_away(self) -> None:
        """Tell the client to open no further calls; the connection ends after the current ones."""
        if self._transport is None:
            return
        self._send(frame(frames.GOAWAY, 0, 0, struct.pack(">II", self._last, frames.NO_ERROR)))
        self._flush_soon()
        if not self.is_busy:
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()
