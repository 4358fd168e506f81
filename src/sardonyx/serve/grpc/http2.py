"""gRPC on the event loop: an HTTP/2 server for the calls of one service."""

from __future__ import annotations

import math
import struct
import time
import zlib
from typing import Any

from sardonyx.errors import RequestError
from sardonyx.serve.dispatch.plain import LARGEST, PlainRequest
from sardonyx.serve.grpc import frames
from sardonyx.serve.grpc.frames import Http2Error, frame, header_block
from sardonyx.serve.grpc.sending_half import SendingHalf
from sardonyx.serve.grpc.streams import Answer, Stream
from sardonyx.serve.grpc.templates import GrpcTemplates
from sardonyx.serve.protocol.held_bytes import SMALL, HeldBytes
from sardonyx.serve.protocol.limits import Limits

_FRAME_BYTES = 1 << 20
_STREAM_WINDOW = 4 << 20
_CONNECTION_WINDOW = 32 << 20
_CONTROL_FRAMES = 1000
"""Control frames (settings, pings, resets, empty frames) of a connection in one second, beyond those of answers."""

_SETTINGS = 64
"""Settings in a frame: each may change the windows of all streams."""


class Http2Connection(SendingHalf):
    """A connection of a client of gRPC.

    Args:
        answer: Answers messages.
        limits: The limits of the server.
        connections: The open connections, of which this becomes one.
        templates: Read calls that are equal to earlier ones but for the values.
        held: Counts the bytes that wait for clients.

    Attributes:
        last_active: The time of the last received bytes, to the second.
    """

    def __init__(
        self,
        answer: Answer,
        limits: Limits,
        connections: set[Http2Connection],
        templates: GrpcTemplates,
        held: HeldBytes,
    ) -> None:
        super().__init__(held)
        self.last_active = time.monotonic()
        self._answer = answer
        self._templates = templates
        self._plain: dict[int, PlainRequest] = {}
        self._limits = limits
        self._connections = connections
        self._buffer = bytearray()
        self._is_held = False
        self._has_preface = False
        self._reader = frames.HeaderReader(limits.head_bytes, limits.headers)
        self._last = 0
        self._block: tuple[int, int, bytearray] | None = None
        self._consumed = 0
        self._resets = 0
        self._control_since = self.last_active
        self._is_closing = False
        self._is_active = False
        self._frame_begin = 0.0
        self._head_deadline = self.last_active + limits.head_seconds
        self._read_deadline = math.inf

    @property
    def is_busy(self) -> bool:
        """True if a call is open."""
        return bool(self._streams or self._plain)

    def connection_made(self, transport: Any) -> None:
        """Accept the connection, unless too many are open."""
        self._transport = transport
        if len(self._connections) >= self._limits.connections and not self._has_place():
            self._is_closing = True
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

    def _has_place(self) -> bool:
        """Return True if not too many connections are open, or the one that was idle longest makes room.

        Connections that are closing stay in the set: their time is limited, too.
        """
        current = [connection for connection in self._connections if not connection._is_closing]
        if len(current) < self._limits.connections:
            return True
        idle = [connection for connection in current if not connection.is_busy]
        oldest = min(idle, key=lambda connection: connection.last_active, default=None)
        if oldest is None or time.monotonic() - oldest.last_active < self._limits.idle_seconds:
            return False
        oldest.go_away()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all calls of the client."""
        self._connections.discard(self)
        self._transport = None
        for stream in list(self._streams.values()):
            self._close(stream)
        self._streams.clear()
        for request in list(self._plain.values()):
            request.cancel()
        self._plain.clear()
        self._forget_frame()

    def data_received(self, data: bytes) -> None:
        """Read frames."""
        if self._transport is None or self._is_closing:
            return
        self._is_active = True
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

    def pause_writing(self) -> None:
        """Read no frames while the client does not read."""
        self._is_full = True
        self._read_deadline = time.monotonic() + self._limits.idle_seconds
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Continue, as the client has read."""
        self._is_full = False
        if self._transport is not None and not self._is_closing:
            self._read_deadline = math.inf
            self._transport.resume_reading()
            self._send_pending()
            self._flush_soon()

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
                self._head_deadline = math.inf
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
        if offset == size:
            self._frame_begin = 0.0
        elif offset or not self._frame_begin:
            self._frame_begin = time.monotonic()
        if buffer is self._buffer:
            del self._buffer[:offset]
        elif offset < size:
            self._buffer += buffer[offset:]
        if len(self._buffer) > SMALL or self._is_held:
            self._hold_frame(is_new=offset > 0)

    def _hold_frame(self, is_new: bool) -> None:
        """Count the bytes of an incomplete frame."""
        if is_new:
            self._held.release(self)
        size = len(self._buffer)
        if size <= SMALL:
            self._is_held = False
            self._held.release(self)
            return
        self._is_held = self._held.hold(self, size)
        if not self._is_held:
            raise Http2Error(frames.ENHANCE_YOUR_CALM, "too many frames are incomplete")

    def _forget_frame(self) -> None:
        self._buffer.clear()
        self._is_held = False
        self._held.release(self)

    def give_up(self) -> None:
        """End the connection, whose bytes others need."""
        if self._transport is not None and not self._is_closing:
            self._end(frames.ENHANCE_YOUR_CALM, "too many frames are incomplete")

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
            if len(payload) > 6 * _SETTINGS:
                raise Http2Error(frames.ENHANCE_YOUR_CALM, "too many settings")
            if not flags & frames.ACK:
                self._read_settings(payload)
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
            stream = self._streams.get(number)
            if stream is not None:
                self._close(stream)
            elif (request := self._plain.pop(number, None)) is not None:
                request.cancel()
        elif kind == frames.GOAWAY:
            if not self.is_busy:
                self._end(frames.NO_ERROR, "")
        elif kind == frames.PUSH_PROMISE:
            raise Http2Error(frames.PROTOCOL_ERROR, "clients do not push")

    def _window_update(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(frames.FRAME_SIZE_ERROR, "malformed window update")
        increment = struct.unpack(">I", payload)[0] & 0x7FFFFFFF
        stream = self._stream(number) if number else None
        if not number or stream is not None:
            self._widen(stream, increment)
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
            self._head_deadline = time.monotonic() + self._limits.head_seconds
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
            self._head_deadline = math.inf
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
            if stream.is_ended or headers.is_malformed or not flags & frames.END_STREAM:
                self.reset(stream, frames.STREAM_CLOSED if stream.is_ended else frames.PROTOCOL_ERROR)
                return
            stream.is_ended = True
            self._read_messages(stream)
            return
        if number <= self._last:
            raise Http2Error(frames.PROTOCOL_ERROR, "the stream is closed")
        self._last = number
        if len(self._streams) + len(self._plain) >= self._limits.streams:
            self._count_control()
            self._send(frame(frames.RST_STREAM, 0, number, struct.pack(">I", frames.REFUSED_STREAM)))
            return
        if headers.is_malformed or not headers.keys() >= frames.REQUIRED:
            self._count_control()
            self._send(frame(frames.RST_STREAM, 0, number, struct.pack(">I", frames.PROTOCOL_ERROR)))
            return
        stream = self._streams[number] = Stream(self, number, headers, self._stream_window)
        stream.is_ended = bool(flags & frames.END_STREAM)
        if headers.get(":method") != "POST" or not is_grpc(headers.get("content-type", "")):
            status = "405" if headers.get(":method") != "POST" else "415"
            self.end_stream(stream, header_block([(":status", status)]))
        elif stream.is_ended:
            self._read_messages(stream)

    def _data(self, flags: int, number: int, payload: bytes) -> None:
        size = len(payload)
        self._consume(size)
        stream = self._stream(number)
        if stream is None:
            if number == 0 or number > self._last:
                raise Http2Error(frames.PROTOCOL_ERROR, "data of no stream")
            return
        if stream.is_ended:
            self.reset(stream, frames.STREAM_CLOSED)
            return
        if not payload and not flags & frames.END_STREAM:
            self._count_control()
        stream.unacknowledged += size
        if stream.unacknowledged > _STREAM_WINDOW:
            raise Http2Error(frames.FLOW_CONTROL_ERROR, "data beyond the window")
        if flags & frames.PADDED:
            if not payload or payload[0] + 1 > size:
                raise Http2Error(frames.PROTOCOL_ERROR, "malformed padding")
            payload = payload[1 : size - payload[0]]
        if not stream.data:
            stream.message_begin = time.monotonic()
        stream.data += payload
        stream.is_ended = bool(flags & frames.END_STREAM)
        self._read_messages(stream)

    def _consume(self, size: int) -> None:
        self._consumed += size
        if self._consumed > _CONNECTION_WINDOW // 2:
            self._send(frame(frames.WINDOW_UPDATE, 0, 0, struct.pack(">I", self._consumed)))
            self._consumed = 0

    def _read_messages(self, stream: Stream) -> None:
        """Answer the complete messages of a call while few answers wait, then the end of the call."""
        if stream.is_reading:
            return
        most = self._limits.streams if stream.is_streaming else 1
        stream.is_reading = True
        try:
            while not (stream.is_read or stream.is_closed) and stream.trailers is None and stream.open_messages < most:
                message = self._message(stream)
                if message is None:
                    break
                stream.open_messages += 1
                self._require_one(stream)
                self._answer(stream, message)
            if stream.is_closed or stream.trailers is not None:
                return
            self._require_one(stream)
            if stream.is_ended and not stream.is_read and stream.open_messages < most:
                stream.is_read = True
                if stream.data:
                    raise RequestError("the message is truncated.")
                self._answer(stream, None)
        except Exception as error:
            stream.cancel()
            stream.fail(error)
            return
        finally:
            stream.is_reading = False
        if stream.unacknowledged > _STREAM_WINDOW // 2 and stream.open_messages < most and not stream.is_ended:
            self._send(frame(frames.WINDOW_UPDATE, 0, stream.number, struct.pack(">I", stream.unacknowledged)))
            stream.unacknowledged = 0
        self._hold(stream)

    @staticmethod
    def _require_one(stream: Stream) -> None:
        if stream.data and stream.open_messages and not stream.is_streaming:
            raise RequestError("expected one message.")

    def _message(self, stream: Stream) -> bytes | None:
        """Take the next complete message of a call; None if there is none.

        Raises:
            RequestError: The message is too large or not compressed as declared.
        """
        data = stream.data
        if len(data) < 5:
            return None
        is_compressed, length = struct.unpack_from(">BI", data)
        if is_compressed > 1:
            raise RequestError(f"expected 0 or 1 before a message, got {is_compressed}.")
        if length > self._limits.body_bytes:
            raise RequestError(f"expected a message of at most {self._limits.body_bytes} bytes.", kind="too_large")
        if len(data) < 5 + length:
            return None
        message = bytes(memoryview(data)[5 : 5 + length])
        del data[: 5 + length]
        stream.message_begin = time.monotonic()
        return self._decompressed(stream, message) if is_compressed else message

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
        if self._sends_whole(data, size):
            return
        stream = self._streams[number] = Stream(self, number, headers, self._stream_window)
        stream.is_ended = stream.is_read = True
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
        stream.data += struct.pack(">BI", 0, len(request.data)) + request.data
        stream.is_ended = True
        self._read_messages(stream)

    # Time.

    def sweep(self, now: float) -> None:
        """End the connection, or calls, whose time is over; called about once a second."""
        if self._transport is None:
            return
        if self._is_active:
            self._is_active = False
            self.last_active = now
        seconds = now - self._frame_begin - self._limits.body_seconds if self._frame_begin else 0.0
        if now >= self._read_deadline:
            self._transport.abort()
            return
        if self._is_full or self._is_closing:
            return
        if now >= self._head_deadline or (seconds > 0 and len(self._buffer) < seconds * 1024):
            self._end(frames.ENHANCE_YOUR_CALM, "the frame took too long to arrive")
            return
        for stream in list(self._streams.values()):
            if stream.stalled_since and now - stream.stalled_since > self._limits.idle_seconds:
                self.reset(stream, frames.CANCEL)
            elif stream.is_too_slow(now, self._limits) and stream.trailers is None:
                stream.cancel()
                stream.fail(RequestError("the message arrives too slowly.", kind="timeout"))

    def _end(self, code: int, text: str) -> None:
        self._is_closing = True
        self._read_deadline = time.monotonic() + self._limits.idle_seconds
        self._forget_frame()
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
            self._is_closing = True
            self._read_deadline = time.monotonic() + self._limits.idle_seconds
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()


def is_grpc(content_type: str) -> bool:
    """Return True for the content type of gRPC, which has neighbours such as `application/grpc-web`."""
    return content_type == "application/grpc" or content_type.startswith(("application/grpc+", "application/grpc;"))
