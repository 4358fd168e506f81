"""Calls of gRPC as streams of HTTP/2: messages that arrive, answers that wait for the client, the time of both."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import quote

from sardonyx.errors import RequestError
from sardonyx.serve.grpc.frames import ANSWER_TRAILERS, ENHANCE_YOUR_CALM, HeaderFields, header_block
from sardonyx.serve.protocol.datatypes import shortened
from sardonyx.serve.protocol.limits import Limits
from sardonyx.serve.protocol.refusals import REFUSALS, refusal

_log = logging.getLogger("sardonyx.serve")

STREAMING = "ModelStreamInfer"
"""The call of several messages."""

_TIMEOUT_UNITS = {"H": 3_600_000_000, "M": 60_000_000, "S": 1_000_000, "m": 1000, "u": 1, "n": 0}


class Sender(Protocol):
    """The connection of a call."""

    def send_message(self, stream: Stream, message: bytes) -> None:
        """Send a message of an answer."""

    def end_stream(self, stream: Stream, trailers: bytes) -> None:
        """End a call after its pending messages."""

    def reset(self, stream: Stream, code: int) -> None:
        """End a call at once."""


class Stream:
    """One call.

    Args:
        connection: The connection.
        number: The number of the stream.
        headers: The header fields.
        window: Bytes that the client accepts.

    Attributes:
        connection: As passed.
        number: As passed.
        headers: As passed.
        method: The name of the call.
        is_streaming: True for a call of several messages.
        data: Received bytes of messages that wait.
        unacknowledged: Received bytes since the window of the client was opened.
        open_messages: Messages whose answers are not sent.
        is_ended: True once the client sends no more.
        is_read: True once all messages of an ended call have been accepted.
        is_reading: True while messages are accepted.
        is_closed: True once the call is over.
        work: The pending work, for cancellation.
        send_window: Bytes that the client accepts.
        pending: Messages of the answer that wait for the client.
        sent: Bytes of the first of them that were sent.
        pending_bytes: Bytes that wait for the client.
        trailers: The header block that ends the call; None before the end.
        sent_head: True once the answer has begun.
        begin: The time of the start.
        message_begin: The time since which the current message arrives.
        stalled_since: The time since which the client accepts no bytes, or fewer than 1 KiB a second; 0 if it does.
        accepted: Bytes that it has accepted since then.
        is_held: True if waiting bytes are counted.
    """

    __slots__ = (
        "accepted", "begin", "connection", "data", "headers", "is_closed", "is_ended", "is_held", "is_read",
        "is_reading", "is_streaming", "message_begin", "method", "number", "open_messages", "pending", "pending_bytes",
        "send_window", "sent", "sent_head", "stalled_since", "trailers", "unacknowledged", "work",
    )  # fmt: skip

    def __init__(self, connection: Sender, number: int, headers: HeaderFields, window: int) -> None:
        self.connection = connection
        self.number = number
        self.headers = headers
        self.method = headers[":path"].rpartition("/")[2]
        self.is_streaming = self.method == STREAMING
        self.data = bytearray()
        self.unacknowledged = 0
        self.open_messages = 0
        self.is_ended = False
        self.is_read = False
        self.is_reading = False
        self.is_closed = False
        self.work: Any = None
        self.send_window = window
        self.pending: deque[bytes] = deque()
        self.sent = 0
        self.pending_bytes = 0
        self.trailers: bytes | None = None
        self.sent_head = False
        self.begin = self.message_begin = time.monotonic()
        self.stalled_since = 0.0
        self.accepted = 0
        self.is_held = False

    @property
    def timeout_us(self) -> int:
        """The rest of the time of the call in microseconds; 0 for no limit.

        Raises:
            RequestError: The field is malformed.
        """
        text = self.headers.get("grpc-timeout")
        if text is None:
            return 0
        if not (text[:-1].isdecimal() and text.isascii() and len(text) <= 9 and text[-1] in _TIMEOUT_UNITS):
            raise RequestError(f"expected up to 8 digits and a unit, got {shortened(text)}.", where="grpc-timeout")
        return max(1, int(text[:-1]) * _TIMEOUT_UNITS[text[-1]] - int((time.monotonic() - self.begin) * 1e6))

    def is_too_slow(self, now: float, limits: Limits) -> bool:
        """Return True if a message arrives with less than 1 KiB a second, after the time that every message has."""
        if self.is_streaming:
            is_awaited = bool(self.data) and self.open_messages < limits.streams
        else:
            is_awaited = self.open_messages == 0
        seconds = now - self.message_begin - limits.body_seconds
        return is_awaited and not self.is_ended and seconds > 0 and len(self.data) < seconds * 1024

    def accept(self, size: int) -> None:
        """Note bytes that the client accepts: too few of them do not end a stall."""
        self.pending_bytes -= size
        if self.stalled_since:
            self.accepted += size
            if not self.pending_bytes or self.accepted >= (time.monotonic() - self.stalled_since) * 1024:
                self.stalled_since, self.accepted = 0.0, 0

    def reply(self, message: bytes) -> None:
        """Send one message of the answer."""
        self.connection.send_message(self, message)

    def finish(self) -> None:
        """End the call with success."""
        self.connection.end_stream(self, ANSWER_TRAILERS)

    def fail(self, error: BaseException) -> None:
        """End the call with the status of an error."""
        refused, is_defect = refusal(error)
        if is_defect:
            _log.error("%s", refused, exc_info=error)
        fields = [("grpc-status", str(REFUSALS[refused.kind].grpc)), ("grpc-message", quote(str(refused)[:1000], " "))]
        if not self.sent_head:
            fields = [(":status", "200"), ("content-type", "application/grpc"), *fields]
        self.connection.end_stream(self, header_block(fields))

    def give_up(self) -> None:
        """End the call, whose bytes other calls need."""
        self.cancel()
        if self.sent_head:
            self.connection.reset(self, ENHANCE_YOUR_CALM)
        else:
            self.fail(RequestError("too many requests are incomplete.", kind="exhausted"))

    def cancel(self) -> None:
        """Cancel the pending work."""
        if self.work is not None:
            self.work.cancel()
            self.work = None


Answer = Callable[[Stream, "bytes | None"], None]
"""Answers a message of a call, now or later; None after the last message."""
