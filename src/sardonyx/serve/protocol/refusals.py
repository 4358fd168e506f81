"""The refusals of a server, with their status over HTTP and gRPC."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from sardonyx.errors import (
    EditError,
    EvaluationError,
    ExecutionError,
    FeedError,
    InvalidModelError,
    MissingDependencyError,
    ModelFileError,
    OptionError,
    PrivacyBudgetError,
    RequestError,
    ResourceError,
    SardonyxError,
    ShapeError,
    UnsupportedError,
)


class Status(NamedTuple):
    """The status of a refusal.

    Attributes:
        http: The status code of HTTP.
        grpc: The status code of gRPC.
    """

    http: int
    grpc: int


REFUSALS = {
    "cancelled": Status(499, 1),
    "invalid": Status(400, 3),
    "timeout": Status(408, 4),
    "not_found": Status(404, 5),
    "forbidden": Status(403, 7),
    "length": Status(411, 3),
    "too_large": Status(413, 8),
    "head_too_large": Status(431, 8),
    "no_result": Status(422, 9),
    "method": Status(405, 12),
    "media_type": Status(415, 3),
    "unsupported": Status(501, 12),
    "internal": Status(500, 13),
    "unavailable": Status(503, 14),
    "exhausted": Status(503, 8),
    "unauthenticated": Status(401, 16),
    "budget": Status(429, 8),
}
"""The status of every kind of refusal."""

_KINDS: tuple[tuple[type[SardonyxError], str], ...] = (
    (FeedError, "invalid"),
    (ExecutionError, "no_result"),
    (UnsupportedError, "unsupported"),
    (ShapeError, "invalid"),
    (EditError, "invalid"),
    (InvalidModelError, "invalid"),
    (OptionError, "invalid"),
    (ModelFileError, "unavailable"),
    (MissingDependencyError, "unsupported"),
    (ResourceError, "exhausted"),
    (EvaluationError, "no_result"),
    (PrivacyBudgetError, "budget"),
)
"""The kinds of errors of the engine; the first class that fits counts."""


def refusal(error: BaseException) -> tuple[RequestError, bool]:
    """Return an error as a refusal, and True if the error is a defect of the server.

    The message of a defect has a random id, under which the caller logs the traceback, and nothing else.

    Args:
        error: Any error that an operation raised.
    """
    if isinstance(error, RequestError):
        return error, False
    if isinstance(error, SardonyxError):
        kind = next((kind for base, kind in _KINDS if isinstance(error, base)), None)
        if kind is not None:
            return RequestError(error.problem, kind=kind, where=error.where, remedy=error.remedy), False
    if isinstance(error, MemoryError):
        return RequestError("the machine has too little memory for the request.", kind="exhausted"), False
    return RequestError(f"internal error {uuid.uuid4().hex[:12]}; the server's log has details.", kind="internal"), True
