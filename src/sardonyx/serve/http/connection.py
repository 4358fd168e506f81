"""Connections of HTTP/1.1: bytes in, requests for the application, responses out, within the limits."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from sardonyx.errors import MissingDependencyError, RequestError
from sardonyx.serve.dispatch.plain import PlainRequest
from sardonyx.serve.http.application import Application
from sardonyx.serve.http.large_body import BEGUN, LEAST, LargeBody
from sardonyx.serve.http.messages import (
    HttpRequest,
    HttpResponse,
    compressed,
    error_response,
    response_head,
)
from sardonyx.serve.http.templates import HeadTemplate
from sardonyx.serve.protocol.datatypes import shortened
from sardonyx.serve.protocol.held_bytes import SMALL
from sardonyx.serve.protocol.limits import Limits
from sardonyx.serve.protocol.requests import Cancellable

try:
    import httptools
except ImportError as error:
    raise MissingDependencyError(
        "serving over HTTP requires httptools.", remedy='Install it: pip install "sardonyx[serve]".'
    ) from error

_PIPELINED = 16
"""Requests of a connection that wait for the response before them."""

_LINGER_SECONDS = 2.0
"""Seconds that a refused client has to read the answer; what it sends meanwhile is not kept."""

_SINGLE = frozenset(
    (
        "authorization",
        "host",
        "content-type",
        "content-encoding",
        "inference-header-content-length",
        "transfer-encoding",
    )
)
"""Fields that must not be repeated."""

_FIELDS = {
    spelling.encode(): name
    for name in ("host", "accept", "user-agent", "content-type", "content-length", "accept-encoding", "connection",
                 "authorization", "inference-header-content-length", "traceparent")
    for spelling in (name, name.title())
}  # fmt: skip
"""Names of frequent fields as clients spell them, in lower case."""

AccessLog = Callable[[HttpRequest, int, int, int], None]
"""Receives a request, the status, the bytes of the response, and the nanoseconds since the request was complete."""


class Connections:
    """The open connections of a server, and the work that they share.

    Args:
        application: Answers requests.
        limits: The limits of the server.
        access_log: Receives every answered request; None for no log.

    Attributes:
        application: As passed.
        limits: As passed.
        access_log: As passed.
        is_closing: True once connections end after their current request.
    """

    def __init__(self, application: Application, limits: Limits, access_log: AccessLog | None = None) -> None:
        self.application = application
        self.limits = limits
        self.access_log = access_log
        self.is_closing = False
        self.open: set[Connection] = set()

    @property
    def is_busy(self) -> bool:
        """True if a request is being read or answered."""
        return any(connection.is_busy for connection in self.open)

    def protocol(self) -> Connection:
        """Return the protocol of a new connection."""
        return Connection(self)

    def sweep(self) -> None:
        """End connections whose time is over; called about once a second."""
        now = time.monotonic()
        for connection in list(self.open):
            connection.end_if_late(now)

    def close(self) -> None:
        """End idle connections, and others after their current request."""
        self.is_closing = True
        for connection in list(self.open):
            connection.close_when_idle()

    def abort(self) -> None:
        """End all connections at once."""
        for connection in list(self.open):
            connection.abort()


class Connection(asyncio.Protocol):
    """A connection.

    Args:
        connections: All connections of the server.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._limits = connections.limits
        self._application = connections.application
        self._held = connections.application.service.held
        self._transport: asyncio.Transport | None = None
        self._parser: Any = httptools.HttpRequestParser(self)
        self._requests: deque[tuple[HttpRequest, bool, int]] = deque()
        self._work: Cancellable | None = None
        self._is_answering = False
        self._is_broken = False
        self._refusal: RequestError | None = None
        self._is_full = False
        self._unread_bytes = 0
        self._waiting_bytes = 0
        self._is_held = False
        self._template: HeadTemplate | None = None
        self._source = b""
        self._peer = ""
        self._begin_message()
        self._deadline = 0.0
        self._bytes_in = 0

    def _begin_message(self) -> None:
        self._target = b""
        self._headers: dict[str, str] = {}
        self._head_bytes = 0
        self._has_head = False
        self._has_wish = False
        self._is_reading = False
        self._chunks: list[bytes] = []
        self._body: bytearray | None = None
        self._body_bytes = 0
        self._body_length = 0
        self._body_memory = 0
        self._body_begin = 0.0
        self._other_bytes = 0

    # The transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, unless too many are open."""
        self._transport = transport  # type: ignore[assignment]
        peer = transport.get_extra_info("peername")
        self._peer = peer[0] if isinstance(peer, tuple) else "unix"
        self._deadline = time.monotonic() + self._limits.head_seconds
        connections = self._connections
        if len(connections.open) >= self._limits.connections or connections.is_closing:
            self._refuse(RequestError("too many connections are open.", kind="unavailable", retry_after=1.0))
            return
        connections.open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the pending work of the client."""
        self._connections.open.discard(self)
        self._transport = None
        # The parser refers to the connection: without this, only the collector would free both.
        self._parser = None
        self._unread_bytes = 0
        self._forget_requests()
        if self._work is not None:
            self._work.cancel()
            self._work = None

    def data_received(self, data: bytes) -> None:
        """Read bytes of requests."""
        if self._is_broken or self._transport is None:
            self._skip(len(data))
            return
        self._source = b""
        if not (self._is_answering or self._is_reading or self._is_full or self._requests):
            template = self._template
            if template is None or not data.startswith(template.prefix):
                template = self._application.templates.find(data)
            if template is not None:
                request = template.read(data, self)
                if request is not None:
                    self._template = template
                    self._is_answering = True
                    self._work = request
                    self._deadline = float("inf")
                    return
            self._source = data
        self._bytes_in += len(data)
        body_bytes = self._body_bytes
        try:
            self._feed(data)
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            self._refuse(cause if isinstance(cause, RequestError) else RequestError("malformed HTTP request."))
        except httptools.HttpParserError:
            self._refuse(RequestError("malformed HTTP request."))
        if not self._is_reading or self._is_broken:
            return
        if not self._has_head:
            if self._bytes_in > self._limits.head_bytes:
                self._refuse(_head_too_large(self._limits))
        elif self._bytes_in and self._body_bytes == body_bytes:
            # Extensions of a chunk, or trailers, which the parser collects.
            self._other_bytes += len(data)
            if self._other_bytes > self._limits.head_bytes:
                self._refuse(_head_too_large(self._limits))
        else:
            self._other_bytes = 0
            self._receive_large_body()

    def _skip(self, size: int) -> None:
        """Count bytes after a refusal, which are not kept."""
        self._other_bytes += size
        if self._other_bytes > 2 * self._limits.body_bytes and self._transport is not None:
            self._transport.close()

    def _feed(self, data: bytes) -> None:
        """Parse bytes; a wish for another protocol is ignored."""
        while data:
            try:
                self._parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                # The parser reads no body after such a head: another one reads the head without the wish.
                data = self._plain_head() + data[upgrade.args[0] :]
                self._source = b""
                self._parser = httptools.HttpRequestParser(self)

    def _plain_head(self) -> bytes:
        headers = {name: value for name, value in self._headers.items() if name not in ("upgrade", "connection")}
        if "close" in self._headers.get("connection", "").lower():
            headers["connection"] = "close"
        begin = b"%b %b HTTP/%b\r\n" % (
            self._parser.get_method(), self._target, self._parser.get_http_version().encode(),
        )  # fmt: skip
        return begin + "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode("latin-1") + b"\r\n"

    def _receive_large_body(self) -> None:
        """Let the rest of a large body of known length arrive in one piece of memory."""
        transport, length = self._transport, self._body_length
        if length - self._body_bytes < LEAST or self._body_bytes < BEGUN or transport is None:
            return
        if self._is_answering or self._is_full or self._requests or transport.is_closing():
            return
        begin = bytes(self._body) if self._body is not None else b"".join(self._chunks)
        self._chunks, self._body = [], None
        self._set_protocol(transport, LargeBody(self, begin, length, self._body_grows, self._body_arrived))

    def _set_protocol(self, transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
        # The event loop chooses how to read when reading begins.
        transport.pause_reading()
        transport.set_protocol(protocol)
        transport.resume_reading()

    def _body_grows(self, size: int, capacity: int) -> bool:
        """Count bytes of a large body, and its memory; return False if the connection ends."""
        self._body_bytes += size
        self._body_memory = capacity
        if self._is_broken or not self._hold():
            self._refuse(_too_many_held())
        return not self._is_broken

    def _body_arrived(self, body: memoryview) -> None:
        """Answer the request of a large body."""
        assert self._transport is not None
        parser, self._parser = self._parser, httptools.HttpRequestParser(self)
        self._set_protocol(self._transport, self)
        self._source = b""
        try:
            self._end_message(parser, body)
        except RequestError as error:
            self._refuse(error)

    def eof_received(self) -> bool:
        """End the connection: a client that closes cannot be told from one that only sends no more."""
        return False

    def pause_writing(self) -> None:
        """Begin no further request while the client does not read."""
        self._is_full = True
        self._deadline = time.monotonic() + self._limits.idle_seconds
        if self._transport is not None:
            self._unread_bytes = self._transport.get_write_buffer_size()
            if not self._hold():
                self._transport.abort()

    def resume_writing(self) -> None:
        """Continue with the next request."""
        self._is_full = False
        self._unread_bytes = 0
        self._hold()
        self._next()

    def _hold(self) -> bool:
        """Count the bytes that wait for the client; return False if they are too many."""
        body = max(self._body_bytes, self._body_memory) if self._is_reading else 0
        size = self._unread_bytes + self._waiting_bytes + body
        if size > SMALL:
            self._is_held = self._held.hold(self, size)
            return self._is_held
        if self._is_held:
            self._is_held = False
            self._held.release(self)
        return True

    def _forget_requests(self) -> None:
        self._requests.clear()
        self._waiting_bytes = 0
        self._forget_body()

    def _forget_body(self) -> None:
        self._chunks, self._body = [], None
        self._body_bytes = self._body_memory = 0
        self._hold()

    def give_up(self) -> None:
        """End the connection, whose bytes others need."""
        if self._is_full and self._transport is not None:
            self._transport.abort()
        else:
            self._refuse(_too_many_held())

    # The parser.

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._begin_message()
        self._is_reading = True
        self._bytes_in = 0
        self._deadline = time.monotonic() + self._limits.head_seconds

    def on_url(self, url: bytes) -> None:
        """Read a part of the target."""
        self._target += url
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Read a header field."""
        # Inlined: a request has several fields.
        self._head_bytes += len(name) + len(value) + 4
        headers = self._headers
        if self._head_bytes > self._limits.head_bytes or len(headers) >= self._limits.headers:
            raise _head_too_large(self._limits)
        if self._has_head:
            # A trailer: fields that decide how a request is read and who sent it count in the head alone.
            return
        key = _FIELDS.get(name)
        if key is None:
            key = name.decode("latin-1").lower()
        if key in headers and key in _SINGLE:
            raise RequestError(f"the field {key} is repeated.")
        headers[key] = value.decode("latin-1")

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self._limits.head_bytes:
            raise _head_too_large(self._limits)

    def on_headers_complete(self) -> None:
        """Check the length of the body before it is read."""
        self._has_head = True
        headers = self._headers
        self._has_wish = self._parser.should_upgrade()
        if self._has_wish:
            if self._parser.get_method() == b"CONNECT":
                raise RequestError("expected a request for this server, got CONNECT.", kind="method")
            return
        if "host" not in headers and self._parser.get_http_version() == "1.1":
            raise RequestError("the field host is missing.")
        coding = headers.get("transfer-encoding")
        if coding is not None and coding.strip().lower() != "chunked":
            raise RequestError(f"expected the transfer coding chunked, got {shortened(coding)}.", kind="unsupported")
        length = headers.get("content-length")
        if length is not None:
            self._body_length = int(length)
            self._limits.body(self._body_length)
        if headers.get("expect", "").lower() == "100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._deadline = float("inf")
        self._body_begin = time.monotonic()

    def on_body(self, body: bytes) -> None:
        """Read a part of the body."""
        self._body_bytes += len(body)
        self._limits.body(self._body_bytes)
        if self._body_bytes > SMALL and not self._hold():
            raise _too_many_held()
        if self._body is not None:
            self._body += body
            return
        self._chunks.append(body)
        if len(self._chunks) > 64:
            # Many small chunks would take more memory as objects than as bytes.
            self._body = bytearray(b"".join(self._chunks))
            self._chunks = []

    def on_message_complete(self) -> None:
        """Answer the request, after the requests before it."""
        if self._has_wish:
            return
        if self._body is not None:
            body = bytes(self._body)
        else:
            body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks, self._body = [], None
        self._end_message(self._parser, body)

    def _end_message(self, parser: Any, body: bytes | memoryview) -> None:
        self._is_reading = False
        if len(self._requests) >= _PIPELINED:
            raise RequestError(f"expected at most {_PIPELINED} requests before the first answer.", kind="unavailable")
        self._waiting_bytes += len(body)
        method = parser.get_method().decode("latin-1")
        keeps_alive = bool(parser.should_keep_alive())
        source = self._source if keeps_alive else b""
        request = HttpRequest(method, self._target.decode("latin-1"), self._headers, body, self._peer, source)
        self._requests.append((request, keeps_alive, time.monotonic_ns()))
        if self._waiting_bytes > SMALL and not self._hold():
            raise _too_many_held()
        if not self._is_answering:
            self._next()
        elif self._transport is not None and len(self._requests) > 1:
            self._transport.pause_reading()

    # Answers.

    def _next(self) -> None:
        while self._requests and not self._is_answering and not self._is_full and self._transport is not None:
            request, keeps_alive, begin = self._requests.popleft()
            self._waiting_bytes -= len(request.body)
            if self._is_held:
                self._hold()
            self._is_answering = True
            self._deadline = float("inf")

            def respond(
                response: HttpResponse, request: HttpRequest = request, keeps: bool = keeps_alive, begin: int = begin
            ) -> None:
                self._respond(request, response, keeps, begin)

            work = self._application.handle(request, respond)
            if self._is_answering:
                self._work = work

    def answer(self, request: PlainRequest, data: bytes, size: int) -> None:
        """Answer a plain request.

        Args:
            request: The request.
            data: The bytes of the response, for a connection that goes on.
            size: The bytes of its body.
        """
        transport = self._transport
        if transport is None:
            return
        self._is_answering = False
        self._work = None
        is_closing = self._connections.is_closing
        transport.write(
            data if not is_closing else b"%bconnection: close\r\n\r\n%b" % (data[: -size - 2], data[-size:])
        )
        if self._connections.access_log is not None:
            plain = request.tag.request(request.data, self._peer)
            self._connections.access_log(plain, 200, size, time.monotonic_ns() - request.arrival)
        self._deadline = time.monotonic() + self._limits.idle_seconds
        if is_closing:
            transport.close()
            return
        if self._requests:
            asyncio.get_running_loop().call_soon(self._next)
        elif self._refusal is not None:
            self._end_refused(self._refusal)

    def respond(self, request: PlainRequest, response: HttpResponse) -> None:
        """Answer a plain request by a response."""
        if self._transport is not None:
            self._respond(request.tag.request(request.data, self._peer), response, True, request.arrival)

    def repeat(self, request: PlainRequest) -> None:
        """Answer a plain request by the general path."""
        self._is_answering = False
        self._work = None
        if self._transport is not None:
            repeated = request.tag.request(request.data, self._peer)
            self._waiting_bytes += len(repeated.body)
            self._requests.appendleft((repeated, True, request.arrival))
            self._next()

    def _respond(self, request: HttpRequest, response: HttpResponse, keeps_alive: bool, begin: int) -> None:
        self._is_answering = False
        self._work = None
        if self._transport is None:
            return
        if request.template is not None:
            self._template = request.template
        accept = request.headers.get("accept-encoding")
        if accept is not None and response.body:
            response = compressed(response, accept)
        keeps_alive = keeps_alive and not self._connections.is_closing
        size = self._write(response, keeps_alive, is_head=request.method == "HEAD")
        if self._connections.access_log is not None:
            self._connections.access_log(request, response.status, size, time.monotonic_ns() - begin)
        self._deadline = time.monotonic() + self._limits.idle_seconds
        if not keeps_alive:
            self._transport.close()
            return
        if self._requests:
            asyncio.get_running_loop().call_soon(self._next)
        elif self._refusal is not None:
            self._end_refused(self._refusal)
        else:
            self._transport.resume_reading()

    def _write(self, response: HttpResponse, keeps_alive: bool, is_head: bool = False) -> int:
        assert self._transport is not None
        body = response.body
        size = 0
        for part in body:
            size += len(part)
        head = response_head(response.status, size, response.content_type, response.headers)
        head += "\r\n" if keeps_alive else "connection: close\r\n\r\n"
        if is_head or not body:
            self._transport.write(head.encode("latin-1"))
        elif size < 65536:
            # One buffer is sent at once; several are queued.
            self._transport.write(b"".join((head.encode("latin-1"), *body)))
        else:
            self._transport.writelines([head.encode("latin-1"), *body])
        return size

    def _refuse(self, error: RequestError) -> None:
        """Answer the requests before one that cannot be read, then that one, and end the connection."""
        if self._is_broken or self._transport is None:
            return
        self._is_broken = True
        self._refusal = error
        self._is_reading = False
        if error.kind == "exhausted":
            self._requests.clear()
            self._waiting_bytes = 0
        self._forget_body()
        if not (self._is_answering or self._requests):
            self._end_refused(error)

    def _end_refused(self, error: RequestError) -> None:
        """Answer, and end the connection when the client has read the answer, or after some time."""
        transport = self._transport
        assert transport is not None
        self._write(error_response(error), keeps_alive=False)
        if self._is_full or not transport.can_write_eof() or self not in self._connections.open:
            self._deadline = time.monotonic() + self._limits.idle_seconds
            transport.close()
            return
        if transport.get_protocol() is not self:
            self._set_protocol(transport, self)  # The rest of a large body is skipped, and its memory given back.
        # A connection with bytes that are not read would be reset, and the answer with it.
        transport.write_eof()
        transport.resume_reading()
        self._deadline = time.monotonic() + _LINGER_SECONDS

    # Time.

    def end_if_late(self, now: float) -> None:
        """End the connection if its time is over."""
        if now < self._deadline or self._transport is None:
            if self._is_reading and self._has_head and self._is_too_slow(now):
                self._refuse(RequestError("the body arrives too slowly.", kind="timeout"))
            return
        if self._is_full or self._transport.is_closing():
            self._end_if_stalled(now)
        elif self._is_reading:
            self._refuse(RequestError("the request took too long to arrive.", kind="timeout"))
        else:
            self._transport.close()

    def _end_if_stalled(self, now: float) -> None:
        """End the connection unless the client has read 1 KiB a second of the answer since the last deadline."""
        assert self._transport is not None
        unread = self._transport.get_write_buffer_size()
        if self._unread_bytes - unread < self._limits.idle_seconds * 1024:
            self._transport.abort()
            return
        self._unread_bytes = unread
        self._deadline = now + self._limits.idle_seconds
        self._hold()

    def _is_too_slow(self, now: float) -> bool:
        """Return True if the body arrives with less than 1 KiB a second, after the time that every body has."""
        seconds = now - self._body_begin - self._limits.body_seconds
        return seconds > 0 and self._body_bytes < seconds * 1024

    @property
    def is_busy(self) -> bool:
        """True if a request is being read or answered."""
        return self._is_answering or self._is_reading or bool(self._requests)

    def close_when_idle(self) -> None:
        """End the connection now if no request is being read or answered, else after the answer."""
        if not self.is_busy and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()


def _too_many_held() -> RequestError:
    return RequestError("too many requests are incomplete.", kind="exhausted", retry_after=1.0)


def _head_too_large(limits: Limits) -> RequestError:
    return RequestError(
        f"expected at most {limits.headers} header fields and {limits.head_bytes} bytes.", kind="head_too_large"
    )
