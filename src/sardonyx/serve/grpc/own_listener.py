"""The gRPC server on the event loop, without ``grpcio``: a quarter of its cost a call."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import deque
from typing import Any

from sardonyx.errors import RequestError, ResourceError
from sardonyx.serve.grpc.calls import CALLS
from sardonyx.serve.grpc.conversion import answer_message, parsed_request
from sardonyx.serve.grpc.http2 import Http2Connection
from sardonyx.serve.grpc.message_reading import INFERENCE, read_message
from sardonyx.serve.grpc.streams import STREAMING, Stream
from sardonyx.serve.grpc.templates import GrpcTemplates
from sardonyx.serve.operations.service import Service
from sardonyx.serve.protocol.messages import SERVICE, message_class
from sardonyx.serve.protocol.refusals import refusal
from sardonyx.serve.protocol.requests import Answer
from sardonyx.serve.security.tls import Tls
from sardonyx.serve.security.tokens import Tokens

_QUIET_SECONDS = 0.05

_HEALTH = "/grpc.health.v1.Health/Check"
"""The health call of gRPC, with its two answers, for probes of orchestrators."""
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"

_INFER = f"/{SERVICE}/ModelInfer"
_STREAM_INFER = f"/{SERVICE}/{STREAMING}"


class OwnGrpcListener:
    """A running gRPC server of this package.

    Args:
        service: The operations of the server.
        tokens: The accepted tokens.

    Attributes:
        port: The port.
    """

    def __init__(self, service: Service, tokens: Tokens) -> None:
        self.port = 0
        self._service = service
        self._tokens = tokens
        self._connections: set[Http2Connection] = set()
        self._listener: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._templates = GrpcTemplates(service)
        self._streamed = message_class("ModelStreamInferResponse")

    async def open(self, host: str, port: int, tls: Tls | None, reuse_port: bool) -> None:
        """Listen.

        Raises:
            ResourceError: The address is in use.
        """
        context = None
        if tls is not None:
            context = tls.context()
            context.set_alpn_protocols(["h2"])
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(
                self.connection, host, port, ssl=context,
                backlog=1024, reuse_port=reuse_port or None,
            )  # fmt: skip
        except OSError as error:
            raise ResourceError(
                f"the address cannot be used: {error.strerror or error}.", where=f"{host}:{port}"
            ) from error
        self.port = self._listener.sockets[0].getsockname()[1]
        self._sweeper = loop.create_task(self._sweep())

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            now = time.monotonic()
            for connection in list(self._connections):
                connection.sweep(now)

    def connection(self) -> Http2Connection:
        """Return the protocol of a new connection."""
        service = self._service
        return Http2Connection(self._answer, service.limits, self._connections, self._templates, service.held)

    async def close(self, seconds: float) -> None:
        """End after the calls that are being answered, or after some seconds."""
        if self._listener is not None:
            self._listener.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._connections):
            connection.go_away()
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end and any(connection.is_busy for connection in self._connections):
            await asyncio.sleep(_QUIET_SECONDS / 5)
        for connection in list(self._connections):
            connection.abort()

    def _answer(self, stream: Stream, data: bytes | None) -> None:
        path = stream.headers[":path"]
        if path == _STREAM_INFER:
            self._stream(stream, data)
        elif data is None:
            raise RequestError("the call has no message.")
        elif path == _INFER:
            self._infer(stream, data)
        else:
            self._call(stream, data)

    def _require(self, stream: Stream, scope: str) -> None:
        if self._tokens.is_required:
            self._tokens.require(stream.headers.get("authorization", ""), scope)

    def _parsed(self, stream: Stream, message: Any) -> Any:
        request = parsed_request(self._service, message)
        timeout = stream.timeout_us
        if timeout:
            request.timeout_us = min(timeout, request.timeout_us) if request.timeout_us else timeout
        if self._tokens.is_required:
            request.client = self._tokens.require(stream.headers.get("authorization", ""), "infer")
        if "traceparent" in stream.headers:
            request.trace = stream.headers["traceparent"]
        return request

    def _infer(self, stream: Stream, data: bytes) -> None:
        self._require(stream, "infer")
        message = read_message(INFERENCE, data)
        request = self._parsed(stream, message)
        request.size += len(data)

        def done(result: Answer | Exception) -> None:
            stream.work = None
            if isinstance(result, Exception):
                stream.fail(result)
                return
            try:
                stream.reply(answer_message(result).SerializeToString())
                self._templates.learn(stream.headers, data, message, request)
            except Exception as error:
                stream.fail(error)
                return
            stream.finish()

        work = self._service.infer(request, done)
        if not stream.is_closed and stream.trailers is None:
            stream.work = work if work is not None else _Flag(request)

    def _call(self, stream: Stream, data: bytes) -> None:
        if stream.headers[":path"] == _HEALTH:
            stream.reply(_SERVING if self._service.is_ready else _NOT_SERVING)
            stream.finish()
            return
        prefix, _, name = stream.headers[":path"].rpartition("/")
        entry = CALLS.get(name) if prefix == f"/{SERVICE}" else None
        if entry is None:
            raise RequestError("unknown call.", kind="unsupported")
        kind, scope, handler = entry
        self._require(stream, scope)
        result = handler(self._service, read_message(kind, data))
        if not inspect.isawaitable(result):
            stream.reply(result.SerializeToString())
            stream.finish()
            return

        async def finish() -> None:
            try:
                stream.reply((await result).SerializeToString())
            except Exception as error:
                stream.fail(error)
            else:
                stream.finish()

        stream.work = asyncio.get_running_loop().create_task(finish())

    def _stream(self, stream: Stream, data: bytes | None) -> None:
        """Answer a message of a stream; answers are in the order of requests."""
        window = stream.work
        if window is None:
            self._require(stream, "infer")
            window = stream.work = _Window(self, stream)
        if data is None:
            window.is_ended = True
            window.send()
        else:
            window.add(data)

    def failed(self, request_id: str, error: BaseException) -> bytes:
        """Return the message of a failed request of a stream."""
        response = self._streamed(error_message=str(refusal(error)[0]))
        response.infer_response.id = request_id
        data: bytes = response.SerializeToString()
        return data

    def begin(self, stream: Stream, message: Any, done: Any) -> Any:
        """Compute a request of a stream; return the pending work."""
        request = self._parsed(stream, message)
        work = self._service.infer(request, done)
        return work if work is not None else _Flag(request)

    def streamed(self, answer: Answer) -> bytes:
        """Return the message of an answer of a stream."""
        message = answer_message(answer)
        message.parameters["triton_final_response"].bool_param = True
        data: bytes = self._streamed(infer_response=message).SerializeToString()
        return data


class _Flag:
    """Cancels a request that is not in a queue."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def cancel(self) -> None:
        self._request.cancelled = True


class _Slot:
    """A request of a stream."""

    __slots__ = ("answer", "work")

    def __init__(self) -> None:
        self.answer: bytes | None = None
        self.work: Any = None


class _Window:
    """The requests of a stream whose answers are not sent, in order."""

    def __init__(self, listener: OwnGrpcListener, stream: Stream) -> None:
        self.is_ended = False
        self._listener = listener
        self._stream = stream
        self._slots: deque[_Slot] = deque()

    def add(self, data: bytes) -> None:
        slot = _Slot()
        self._slots.append(slot)
        identity = ""

        def done(result: Answer | Exception) -> None:
            try:
                slot.answer = (
                    self._listener.failed(identity, result)
                    if isinstance(result, Exception)
                    else self._listener.streamed(result)
                )
            except Exception as error:
                slot.answer = self._listener.failed(identity, error)
            self.send()

        try:
            message = read_message(INFERENCE, data)
            identity = message.id
            slot.work = self._listener.begin(self._stream, message, done)
        except Exception as error:
            done(error)

    def send(self) -> None:
        slots = self._slots
        while slots and slots[0].answer is not None:
            self._stream.reply(slots.popleft().answer)  # type: ignore[arg-type]
        if self.is_ended and not slots:
            self._stream.finish()

    def cancel(self) -> None:
        for slot in self._slots:
            if slot.work is not None and slot.answer is None:
                slot.work.cancel()


async def open_own_grpc(
    service: Service, tokens: Tokens, host: str, port: int, tls: Tls | None = None, reuse_port: bool = False
) -> OwnGrpcListener:
    """Start a gRPC server of this package on the running event loop; arguments as for :func:`.open_grpc`.

    Raises:
        MissingDependencyError: hpack is not installed.
        ResourceError: The address is in use.
    """
    from sardonyx.serve.grpc.frames import HeaderReader

    HeaderReader(service.limits.head_bytes, service.limits.headers)
    listener = OwnGrpcListener(service, tokens)
    await listener.open(host, port, tls, reuse_port)
    return listener
