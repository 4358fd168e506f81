"""Requests and responses of HTTP, independent of the connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sardonyx.errors import RequestError
from sardonyx.serve.protocol import json_codec
from sardonyx.serve.protocol.refusals import REFUSALS

JSON = "application/json"
BINARY = "application/octet-stream"

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
        body: The body, decompressed.
        peer: The address of the client.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""
    peer: str = ""


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


class Cancellable(Protocol):
    """Work that can be cancelled when the client has gone."""

    def cancel(self) -> object:
        """Cancel the work."""


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
