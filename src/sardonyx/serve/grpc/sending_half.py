"""The half of a connection of HTTP/2 that sends: windows of the client, and answers that wait for these."""

from __future__ import annotations

import asyncio
import struct
import time
from abc import ABC, abstractmethod
from typing import Any

from sardonyx.serve.grpc import frames
from sardonyx.serve.grpc.frames import Http2Error, frame, frame_head
from sardonyx.serve.grpc.streams import Stream
from sardonyx.serve.protocol.held_bytes import SMALL, HeldBytes

_WRITTEN_BYTES = 256 << 10
"""Bytes that are given to the transport at once, which then tells if the client reads."""

_CONTROL_FRAMES_OF_DATA = 8
"""Control frames that a client may send for a frame of data: it opens windows, and measures the connection by pings."""


class SendingHalf(asyncio.Protocol, ABC):
    """Sends the answers to calls as far as the client accepts them.

    Args:
        held: Counts the bytes that wait for clients.
    """

    def __init__(self, held: HeldBytes) -> None:
        self._held = held
        self._transport: Any = None
        self._streams: dict[int, Stream] = {}
        self._window = 65535
        self._stream_window = 65535
        self._peer_frame = 16384
        self._control = 0
        self._output: list[bytes | memoryview] = []
        self._output_bytes = 0
        self._is_feeding = False
        self._is_full = False

    @abstractmethod
    def _read_messages(self, stream: Stream) -> None:
        """Answer the complete messages of a call; written by the half that receives."""

    # Windows of the client.

    def _read_settings(self, payload: bytes) -> None:
        for key, value in struct.iter_unpack(">HI", payload):
            if key == frames.SETTINGS_INITIAL_WINDOW_SIZE:
                if value > 0x7FFFFFFF:
                    raise Http2Error(frames.FLOW_CONTROL_ERROR, "window too large")
                change = value - self._stream_window
                self._stream_window = value
                for stream in self._streams.values():
                    stream.send_window += change
                    if stream.send_window > 0x7FFFFFFF:
                        raise Http2Error(frames.FLOW_CONTROL_ERROR, "window too large")
            elif key == frames.SETTINGS_MAX_FRAME_SIZE:
                if not 16384 <= value <= 0xFFFFFF:
                    raise Http2Error(frames.PROTOCOL_ERROR, "invalid frame size")
                self._peer_frame = value
        self._send(frame(frames.SETTINGS, frames.ACK, 0))
        self._send_pending()

    def _widen(self, stream: Stream | None, increment: int) -> None:
        """Add bytes that the client accepts, of a call or, if None, of the connection."""
        if stream is None:
            self._window += increment
            window = self._window
        else:
            stream.send_window += increment
            window = stream.send_window
        if not increment or window > 0x7FFFFFFF:
            raise Http2Error(frames.FLOW_CONTROL_ERROR, "window too large")

    # Calls.

    def send_message(self, stream: Stream, message: bytes) -> None:
        """Send a message of an answer, as far as the client accepts it."""
        if stream.is_closed or self._transport is None:
            return
        if not stream.sent_head:
            stream.sent_head = True
            self._send(frame(frames.HEADERS, frames.END_HEADERS, stream.number, frames.ANSWER_HEAD))
        stream.pending.append(struct.pack(">BI", 0, len(message)) + message)
        stream.pending_bytes += len(message) + 5
        self._send_stream(stream)
        self._flush_soon()

    def end_stream(self, stream: Stream, trailers: bytes) -> None:
        """End a call after its pending messages."""
        if stream.is_closed or stream.trailers is not None or self._transport is None:
            return
        stream.trailers = trailers
        self._send_stream(stream)
        self._flush_soon()

    def reset(self, stream: Stream, code: int) -> None:
        """End a call at once."""
        self._close(stream)
        self._send(frame(frames.RST_STREAM, 0, stream.number, struct.pack(">I", code)))
        self._flush_soon()

    def _close(self, stream: Stream) -> None:
        """Forget a call, and cancel its work."""
        stream.is_closed = True
        self._streams.pop(stream.number, None)
        stream.cancel()
        stream.data.clear()
        stream.pending.clear()
        stream.pending_bytes = 0
        self._hold(stream)

    def _hold(self, stream: Stream) -> None:
        """Count the bytes of a call that wait for the client."""
        size = len(stream.data) + stream.pending_bytes
        if size > SMALL and not stream.is_closed:
            stream.is_held = True
            if not self._held.hold(stream, size):
                stream.is_held = False
                stream.give_up()
        elif stream.is_held:
            stream.is_held = False
            self._held.release(stream)

    # Output.

    def _send_stream(self, stream: Stream) -> None:
        """Send what the client accepts of the answer of a call, and continue to read its messages."""
        pending = stream.pending
        while pending:
            data = pending[0]
            size = min(len(data) - stream.sent, self._peer_frame, self._window, stream.send_window)
            if size <= 0 or self._is_full:
                stream.stalled_since = stream.stalled_since or time.monotonic()
                self._hold(stream)
                return
            end = stream.sent + size
            self._window -= size
            stream.send_window -= size
            stream.accept(size)
            self._control = max(0, self._control - _CONTROL_FRAMES_OF_DATA)
            self._send(frame_head(frames.DATA, 0, stream.number, size))
            self._send(data if size == len(data) else memoryview(data)[stream.sent : end])
            stream.sent = end
            if end == len(data):
                pending.popleft()
                stream.sent = 0
                stream.open_messages -= 1
                stream.message_begin = time.monotonic()
            if self._output_bytes > _WRITTEN_BYTES:
                self._flush()
        if stream.trailers is not None:
            flags = frames.END_HEADERS | frames.END_STREAM
            self._send(frame(frames.HEADERS, flags, stream.number, stream.trailers))
            if not stream.is_ended:
                self._send(frame(frames.RST_STREAM, 0, stream.number, struct.pack(">I", frames.NO_ERROR)))
            stream.work = None
            self._close(stream)
        elif stream.is_streaming:
            self._read_messages(stream)

    def _send_pending(self) -> None:
        for stream in list(self._streams.values()):
            if stream.pending or stream.trailers is not None:
                self._send_stream(stream)

    def _sends_whole(self, data: bytes, size: int) -> bool:
        """Send the frames of a short answer; return False if the client does not accept all of them now.

        Args:
            data: The frames.
            size: The bytes of the message with its head.
        """
        if self._is_full or size > min(self._window, self._stream_window, self._peer_frame):
            return False
        self._window -= size
        self._output.append(data)
        self._control = max(0, self._control - _CONTROL_FRAMES_OF_DATA)
        return True

    def _send(self, data: bytes | memoryview) -> None:
        self._output.append(data)
        self._output_bytes += len(data)

    def _flush_soon(self) -> None:
        """Write at the end of a read; or at once, where no read is in progress."""
        if not self._is_feeding:
            self._flush()

    def _flush(self) -> None:
        output = self._output
        if output and self._transport is not None:
            self._transport.write(b"".join(output))
        output.clear()
        self._output_bytes = 0
