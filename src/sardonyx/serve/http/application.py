"""The application: a request of HTTP in, a response out; the same for connections of the server and for ASGI."""

from __future__ import annotations

import asyncio
import functools
import logging
import zlib
from collections.abc import Mapping
from typing import Any

from sardonyx.errors import RequestError
from sardonyx.serve.http.generation import generate_request, generated
from sardonyx.serve.http.handlers import Call, head_length
from sardonyx.serve.http.infer_requests import encode_answer, parse_request
from sardonyx.serve.http.messages import (
    BINARY,
    CURL,
    JSON,
    WINDOWS,
    HttpRequest,
    HttpResponse,
    Respond,
    error_response,
)
from sardonyx.serve.http.routes import Route, find_route
from sardonyx.serve.http.templates import HttpTemplates
from sardonyx.serve.operations.service import Service
from sardonyx.serve.protocol.datatypes import shortened
from sardonyx.serve.protocol.limits import Limits
from sardonyx.serve.protocol.refusals import refusal
from sardonyx.serve.protocol.requests import Answer, Cancellable, InferRequest
from sardonyx.serve.security.local_names import is_local_name
from sardonyx.serve.security.tokens import Tokens

_log = logging.getLogger("sardonyx.serve")

_SMALL = 64 << 10


class Application:
    """Answers requests of HTTP.

    Args:
        service: The operations of the server.
        tokens: The accepted tokens.
        requires_local_name: True to refuse requests for names that sites can have; see
            :mod:`sardonyx.serve.security.local_names`.

    Attributes:
        service: As passed.
        templates: Read requests that are equal to earlier ones but for the values.
    """

    def __init__(self, service: Service, tokens: Tokens, requires_local_name: bool = False) -> None:
        self.service = service
        self.templates = HttpTemplates(service)
        self._tokens = tokens
        self._requires_local_name = requires_local_name
        self._route = functools.lru_cache(maxsize=1024)(find_route)

    def handle(self, request: HttpRequest, respond: Respond) -> Cancellable | None:
        """Answer a request, now or later; errors are answered too.

        Args:
            request: The request, with its body as sent.
            respond: Receives the response.

        Returns:
            The pending work, for cancellation when the client has gone; None if the request is answered.
        """
        try:
            path, _, _ = request.target.partition("?")
            route = self._route(path)
            handler = route.methods.get(request.method)
            if handler is None:
                raise RequestError(f"expected {' or '.join(route.methods)}.", kind="method")
            headers = request.headers
            client = ""
            if self._tokens.is_required:
                client = self._tokens.require(headers.get("authorization", ""), route.scope)
            elif self._requires_local_name and not is_local_name(headers.get("host", "")):
                raise RequestError(
                    f"expected an address or a name of this machine, got {shortened(headers['host'])}.",
                    kind="forbidden", where="Host",
                    remedy="Use the address of the server, or start it with --token-file.",
                )  # fmt: skip
            if "origin" in headers:
                require_same_origin(headers)
            encoding = headers.get("content-encoding")
            if encoding:
                request.body = decompressed(request.body, encoding, self.service.limits)
            if route.kind:
                return self._infer(request, route, respond, client)
            result = handler(Call(self.service, request, route.model, route.version, route.name))
            if isinstance(result, HttpResponse):
                respond(result)
                return None
            return self._finish_later(result, respond)
        except Exception as error:
            respond(self.failure(error))
            return None

    def _finish_later(self, result: Any, respond: Respond) -> asyncio.Task[None]:
        async def finish() -> None:
            try:
                response = await result
            except Exception as error:
                response = self.failure(error)
            respond(response)

        return asyncio.get_running_loop().create_task(finish())

    def failure(self, error: BaseException) -> HttpResponse:
        """Return the response of an error, and log a defect."""
        refused, is_defect = refusal(error)
        if is_defect:
            _log.error("%s", refused, exc_info=error)
        return error_response(refused)

    def _infer(self, request: HttpRequest, route: Route, respond: Respond, client: str) -> Cancellable | None:
        headers = request.headers
        content_type = headers.get("content-type")
        length = headers.get("inference-header-content-length")
        is_raw = False
        if content_type is not None:
            media = content_type.split(";", 1)[0].strip().lower()
            if media not in (JSON, BINARY, CURL):
                raise RequestError(f"expected {JSON} or {BINARY}, got {shortened(media)}.", kind="media_type")
            is_raw = media == BINARY and length is None
        size: int | None = None
        if route.kind == "infer":
            size = 0 if is_raw else head_length(length)
            # Only raw tensors are read from memory of any kind.
            body = bytes(request.body) if size is None else request.body
            parsed = parse_request(self.service, route.model, route.version, body, size)
        else:
            parsed = generate_request(self.service, route.model, route.version, bytes(request.body))
        parsed.client = client
        parsed.size += len(request.source)
        if "traceparent" in headers:
            parsed.trace = headers["traceparent"]

        def done(result: Answer | Exception) -> None:
            try:
                if isinstance(result, Exception):
                    raise result
                response = self._response(route, parsed, result)
                if request.source and route.kind == "infer":
                    self.templates.learn(request, parsed, size)
            except Exception as error:
                response = self.failure(error)
            respond(response)

        return self.service.infer(parsed, done)

    def _response(self, route: Route, request: InferRequest, answer: Answer) -> HttpResponse:
        limits, strict = self.service.limits, self.service.options.strict_json
        size = sum([output.array.nbytes for output in answer.outputs])
        if size > limits.output_bytes:
            raise RequestError(
                f"expected outputs of at most {limits.output_bytes} bytes, got {size}.", kind="too_large"
            )
        if route.kind != "infer":
            return generated(answer, is_stream=route.kind == "generate_stream", strict=strict)
        head, buffers = encode_answer(answer, request.binary_outputs, strict)
        if not buffers:
            return HttpResponse(200, (head,))
        headers = {"inference-header-content-length": str(len(head))}
        return HttpResponse(200, (head, *buffers), BINARY, headers)


def require_same_origin(headers: Mapping[str, str]) -> None:
    """Refuse a request that a page of another site sends from a browser.

    Raises:
        RequestError: The origin is another one than the server.
    """
    _, _, origin = headers["origin"].partition("://")
    if origin != headers.get("host", ""):
        raise RequestError("requests of other sites are refused.", kind="forbidden", where="Origin")


def decompressed(body: bytes | memoryview, encoding: str, limits: Limits) -> bytes | memoryview:
    """Return a decompressed body, never more than the limits allow.

    Raises:
        RequestError: The encoding is unknown, the data are malformed, or the result is too large.
    """
    name = encoding.strip().lower()
    if name == "identity":
        return body
    window = WINDOWS.get(name)
    if window is None:
        raise RequestError(f"expected gzip or deflate, got {shortened(name)}.", kind="media_type")
    most = min(limits.body_bytes, max(_SMALL, len(body) * limits.compression_ratio))
    inflate = zlib.decompressobj(window)
    try:
        data = inflate.decompress(body, most + 1)
    except zlib.error as error:
        raise RequestError(f"the body is not {name} data.") from error
    if len(data) > most:
        raise RequestError(f"expected at most {most} bytes after decompression.", kind="too_large")
    if not inflate.eof or inflate.unused_data:
        raise RequestError(f"the {name} data are truncated, or more bytes follow.")
    return data
