"""The access log: a line of JSON for every answered request."""

from __future__ import annotations

import json
import time
from typing import Any, TextIO


class AccessLogWriter:
    """Writes one line a request; the line has no values, no token and no query.

    Args:
        file: The open file.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __call__(self, request: Any, status: int, size: int, ns: int) -> None:
        """Write the line of a request.

        Args:
            request: The request, with method, target, headers and peer.
            status: The status of the response.
            size: Bytes of the body of the response.
            ns: Nanoseconds from the complete request to the response.
        """
        line = {
            "time": round(time.time(), 3), "peer": request.peer, "method": request.method,
            "path": request.target.partition("?")[0][:256], "status": status, "bytes": size, "ms": round(ns / 1e6, 3),
        }  # fmt: skip
        trace = request.headers.get("traceparent")
        if trace:
            line["traceparent"] = trace[:64]
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
