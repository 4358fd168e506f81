"""Paths of the protocol: handler, scope and methods of each."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from sardonyx.errors import RequestError
from sardonyx.serve.http import handlers
from sardonyx.serve.http.handlers import Call
from sardonyx.serve.http.messages import HttpResponse

Handler = Callable[[Call], "HttpResponse | Awaitable[HttpResponse]"]

_MODEL = r"/v2/models/(?P<model>[^/]{1,384})(?:/versions/(?P<version>\d{1,18}))?"


@dataclass(frozen=True)
class Route:
    """A path with the operation that it names.

    Attributes:
        methods: The methods, with a handler for each; None for inference, which the application answers itself.
        scope: The scope of tokens; empty for operations that need no token.
        model: The name of the model; empty if the path has none.
        version: The number of the version as text; empty for the newest.
        name: The name of a region in the path.
        kind: ``infer``, ``generate`` or empty.
    """

    methods: Mapping[str, Handler]
    scope: str = ""
    model: str = ""
    version: str = ""
    name: str = ""
    kind: str = ""


def _get(handler: Handler) -> dict[str, Handler]:
    return {"GET": handler, "HEAD": handler}


def _post(handler: Handler) -> dict[str, Handler]:
    return {"POST": handler}


_TABLE: tuple[tuple[str, dict[str, Handler], str, str], ...] = (
    (r"/v2/?", _get(handlers.server_metadata), "read", ""),
    (r"/v2/health/live", _get(handlers.live), "", ""),
    (r"/v2/health/ready", _get(handlers.ready), "", ""),
    (r"/v2/models/stats", _get(handlers.all_statistics), "read", ""),
    (_MODEL + "/infer", {"POST": handlers.never}, "infer", "infer"),
    (_MODEL + "/generate", {"POST": handlers.never}, "infer", "generate"),
    (_MODEL + "/generate_stream", {"POST": handlers.never}, "infer", "generate_stream"),
    (_MODEL, _get(handlers.model_metadata), "read", ""),
    (_MODEL + "/ready", _get(handlers.model_ready), "", ""),
    (_MODEL + "/config", _get(handlers.model_config), "read", ""),
    (_MODEL + "/stats", _get(handlers.model_statistics), "read", ""),
    (_MODEL + "/trace/setting", _get(handlers.trace_settings) | _post(handlers.set_trace_settings), "admin", ""),
    (r"/v2/trace/setting", _get(handlers.trace_settings) | _post(handlers.set_trace_settings), "admin", ""),
    (r"/v2/logging", _get(handlers.log_settings) | _post(handlers.set_log_settings), "admin", ""),
    (r"/v2/repository/index", _post(handlers.index), "read", ""),
    (r"/v2/repository/models/(?P<model>[^/]{1,384})/load", _post(handlers.load), "admin", ""),
    (r"/v2/repository/models/(?P<model>[^/]{1,384})/unload", _post(handlers.unload), "admin", ""),
    (r"/v2/systemsharedmemory/status", _get(handlers.shared_memory_status), "admin", ""),
    (r"/v2/systemsharedmemory/region/(?P<name>[^/]{1,384})/status", _get(handlers.shared_memory_status), "admin", ""),
    (r"/v2/systemsharedmemory/region/(?P<name>[^/]{1,384})/register", _post(handlers.register), "admin", ""),
    (r"/v2/systemsharedmemory/(?:region/(?P<name>[^/]{1,384})/)?unregister", _post(handlers.unregister), "admin", ""),
    (r"/v2/cudasharedmemory(?:/region/[^/]+)?/unregister", _post(handlers.unregister_cuda), "admin", ""),
    (r"/v2/cudasharedmemory/.*", _get(handlers.cuda) | _post(handlers.cuda), "admin", ""),
    (_MODEL + "/weights", _post(handlers.weights), "admin", ""),
    (_MODEL + "/edit", _post(handlers.edit), "admin", ""),
    (_MODEL + "/undo", _post(handlers.undo), "admin", ""),
    (_MODEL + "/history", _get(handlers.history), "admin", ""),
    (_MODEL + "/explain", _get(handlers.explain), "admin", ""),
    (_MODEL + "/profile", _get(handlers.profile), "admin", ""),
    (r"/metrics", _get(handlers.metrics), "read", ""),
    (r"/status", _get(handlers.status_page), "", ""),
    (r"/status/data", _get(handlers.status_data), "read", ""),
)


def find_route(path: str) -> Route:
    """Return the route of a path.

    Raises:
        RequestError: The path is unknown.
    """
    for pattern, methods, scope, kind in _TABLE:
        # Compiled by the first request, not by the start of a server.
        match = re.fullmatch(pattern, path)
        if match is not None:
            parts = {key: unquote(value) for key, value in match.groupdict().items() if value is not None}
            return Route(methods, scope, kind=kind, **parts)
    raise RequestError("unknown path.", kind="not_found")
