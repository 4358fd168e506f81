"""Requests and responses of HTTP, independent of the connection."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sardonyx.errors import RequestError
from sardonyx.serve.protocol import json_codec
from sardonyx.serve.protocol.refusals import REFUSALS

JSON = "application/json"
BINARY = "application/octet-stream"
CURL = "application/x-www-form-urlencoded"
"""The type that curl states for a body of ``-d``: such a body is JSON here. A browser names the page of a form."""

WINDOWS = {"gzip": 31, "deflate": 15}
"""The encodings of bodies, with the form that zlib calls window bits."""

SMALLEST_COMPRESSED = 1024
"""Bytes of a body from which compression pays."""

PHRASES = {
    200: "OK", 204: "No Content", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found",
    405: "Method Not Allowed", 408: "Request Timeout", 411: "Length Required", 413: "Content Too Large",
    415: "Unsupported Media Type", 422: "Unprocessable Content", 431: "Request Header Fields Too Large",
    499: "Client Closed Request", 500: "Internal Server Error", 501: "Not Implemented", 503: "Service Unavailable",
}  # fmt: skip


@dataclass(slots=True)
class HttpRequest:
    """A request.

    Attributes:
        method: The method.
        target: The path and the query, as sent.
        headers: The header fields, by name in lower case.
        body: The body as sent, in memory of any kind; :meth:`.Application.handle` decompresses it.
        peer: The address of the client.
        source: All bytes of the request, if they arrived at once; else empty.
        template: Reads requests that are equal but for the values; None if none is known.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes | memoryview = b""
    peer: str = ""
    source: bytes = b""
    template: Any = None


@dataclass(slots=True)
class HttpResponse:
    """A response.

    Attributes:
        status: The status code.
        body: The parts of the body, in order.
        content_type: The media type; empty for no body.
        headers: Further header fields.
    """

    status: int = 200
    body: Sequence[bytes | memoryview] = ()
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


def response_head(status: int, size: int | str, content_type: str, headers: Mapping[str, str]) -> str:
    """Return the head of a response, without the empty line.

    Args:
        status: The status code.
        size: The bytes of the body, or a text in their place.
        content_type: The media type; empty for no body.
        headers: Further header fields.
    """
    head = f"HTTP/1.1 {status} {PHRASES.get(status, '')}\r\ncontent-length: {size}\r\n"
    if content_type:
        head += f"content-type: {content_type}\r\n"
    for name, value in headers.items():
        head += f"{name}: {value}\r\n"
    return head


Respond = Callable[[HttpResponse], None]
"""Receives the response, in the thread of the event loop."""


def json_response(value: object, status: int = 200) -> HttpResponse:
    """Return a response with a JSON body."""
    return HttpResponse(status, (json_codec.encode(value),))


def error_response(error: RequestError) -> HttpResponse:
    """Return the response of a refusal: its message as ``{"error": …}``."""
    headers = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, round(error.retry_after)))
    if error.kind == "unauthenticated":
        headers["www-authenticate"] = "Bearer"
    return HttpResponse(REFUSALS[error.kind].http, (json_codec.encode({"error": str(error)}),), JSON, headers)


def compressed(response: HttpResponse, accept: str) -> HttpResponse:
    """Return a response compressed as the client accepts; small bodies are not compressed."""
    size = sum(len(part) for part in response.body)
    names = [part.split(";")[0].strip().lower() for part in accept.split(",") if "q=0" not in part.replace("q=0.", "")]
    name = next((name for name in names if name in WINDOWS), None)
    if name is None or size < SMALLEST_COMPRESSED:
        return response
    deflate = zlib.compressobj(1, zlib.DEFLATED, WINDOWS[name])
    body = b"".join([*(deflate.compress(part) for part in response.body), deflate.flush()])
    headers = {**response.headers, "content-encoding": name, "vary": "accept-encoding"}
    return HttpResponse(response.status, (body,), response.content_type, headers)
