"""Operations over HTTP, except inference: a request in, a response out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import numpy as np

from sardonyx.errors import RequestError
from sardonyx.serve.http.infer_requests import parse_request
from sardonyx.serve.http.messages import CURL, JSON, HttpRequest, HttpResponse, json_response
from sardonyx.serve.observation.exposition import metrics_text
from sardonyx.serve.operations.live_edits import safetensors_weights
from sardonyx.serve.operations.monitoring import samples, snapshot
from sardonyx.serve.operations.service import Service
from sardonyx.serve.protocol import json_codec
from sardonyx.serve.protocol.datatypes import shortened

_QUERY_FIELDS = 16
"""Limit of the parameters of a query."""


@dataclass(slots=True)
class Call:
    """A request with the operations and the parts of its path.

    Attributes:
        service: The operations of the server.
        request: The request.
        model: The name of the model; empty if the path has none.
        version: The number of the version; empty for the newest.
        name: The name of a region; empty if the path has none.
    """

    service: Service
    request: HttpRequest
    model: str = ""
    version: str = ""
    name: str = ""

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object.

        Raises:
            RequestError: The body is another value, or malformed.
        """
        value = json_codec.parse_json(bytes(self.request.body), self.service.limits.json_depth)
        if not isinstance(value, dict):
            raise RequestError(f"expected a JSON object, got {shortened(value)}.")
        return value

    def query(self, name: str) -> str | None:
        """Return a parameter of the query; None if it is missing.

        Raises:
            RequestError: The query has too many parameters, or this one twice.
        """
        _, _, query = self.request.target.partition("?")
        try:
            values = parse_qs(query, keep_blank_values=True, max_num_fields=_QUERY_FIELDS).get(name, [])
        except ValueError as error:
            raise RequestError(f"expected at most {_QUERY_FIELDS} parameters of the query.") from error
        if len(values) > 1:
            raise RequestError("the parameter of the query is repeated.", where=name)
        return values[0] if values else None


def never(call: Call) -> HttpResponse:
    """Fail: the application answers inference itself."""
    raise AssertionError("internal: inference has no handler.")


def live(call: Call) -> HttpResponse:
    """Answer that the process is alive."""
    return json_response({"live": True})


def ready(call: Call) -> HttpResponse:
    """Answer if the server has loaded its models."""
    is_ready = call.service.is_ready
    return json_response({"ready": is_ready}, 200 if is_ready else 503)


def model_ready(call: Call) -> HttpResponse:
    """Answer if a model can be used."""
    call.service.host.require_ready(call.model, call.version)
    if call.service.is_draining:
        raise RequestError("the server is stopping.", kind="unavailable")
    return json_response({"name": call.model, "ready": True})


def server_metadata(call: Call) -> HttpResponse:
    """Describe the server."""
    return json_response(call.service.metadata())


def model_metadata(call: Call) -> HttpResponse:
    """Describe a model."""
    return json_response(call.service.model_metadata(call.model, call.version))


def model_config(call: Call) -> HttpResponse:
    """Describe the configuration of a model."""
    return json_response(call.service.model_config(call.model, call.version))


def model_statistics(call: Call) -> HttpResponse:
    """Count the requests of a model."""
    return json_response(call.service.statistics(call.model, call.version))


def all_statistics(call: Call) -> HttpResponse:
    """Count the requests of all models."""
    return json_response(call.service.statistics())


def trace_settings(call: Call) -> HttpResponse:
    """Return the trace settings."""
    if call.model:
        call.service.host.get(call.model)
    return json_response(call.service.trace_settings())


def set_trace_settings(call: Call) -> HttpResponse:
    """Change trace settings, of all models."""
    if call.model:
        call.service.host.get(call.model)
    return json_response(call.service.trace_settings(call.json()))


def log_settings(call: Call) -> HttpResponse:
    """Return the log settings."""
    return json_response(call.service.log_settings())


def set_log_settings(call: Call) -> HttpResponse:
    """Change log settings."""
    return json_response(call.service.log_settings(call.json()))


def index(call: Call) -> HttpResponse:
    """List the models of the repository."""
    ready_only = call.json().get("ready", False)
    if not isinstance(ready_only, bool):
        raise RequestError(f"expected true or false, got {shortened(ready_only)}.", where="ready")
    return json_response(call.service.index(ready_only))


async def load(call: Call) -> HttpResponse:
    """Load a model."""
    await call.service.load(call.model, _parameters(call))
    return HttpResponse(content_type="")


async def unload(call: Call) -> HttpResponse:
    """Unload a model."""
    await call.service.unload(call.model, _parameters(call))
    return HttpResponse(content_type="")


def _parameters(call: Call) -> dict[str, Any]:
    parameters = call.json().get("parameters", {})
    if not isinstance(parameters, dict):
        raise RequestError("expected an object.", where="parameters")
    return parameters


def shared_memory_status(call: Call) -> HttpResponse:
    """List regions of shared memory."""
    return json_response([region.described() for region in call.service.shared_memory.status(call.name)])


def register(call: Call) -> HttpResponse:
    """Register a region of shared memory."""
    body = call.json()
    call.service.shared_memory.register(call.name, body.get("key"), body.get("offset", 0), body.get("byte_size"))
    return HttpResponse(content_type="")


def unregister(call: Call) -> HttpResponse:
    """Unregister regions of shared memory."""
    call.service.shared_memory.unregister(call.name)
    return HttpResponse(content_type="")


def unregister_cuda(call: Call) -> HttpResponse:
    """Do nothing: no region of CUDA is registered."""
    return HttpResponse(content_type="")


def cuda(call: Call) -> HttpResponse:
    """Refuse shared memory of CUDA devices."""
    raise RequestError("the server has no CUDA devices, and so none of their shared memory.", kind="unsupported")


async def weights(call: Call) -> HttpResponse:
    """Set weights of a model: a safetensors file, or inputs of the protocol."""
    headers, body = call.request.headers, bytes(call.request.body)
    length = headers.get("inference-header-content-length")
    media = headers.get("content-type", "").split(";")[0].strip().lower()
    # curl states the type of a form for any file, and some clients state none: the first bytes of a safetensors file
    # are a number of 8 bytes.
    if media == JSON or (media in (CURL, "") and b"\0" not in body[:8]) or length is not None:
        request = parse_request(call.service, call.model, call.version, body, head_length(length))
        arrays: dict[str, np.ndarray] = request.inputs
    else:
        arrays = await call.service.in_worker(lambda: safetensors_weights(body))
    return json_response(await call.service.update_weights(call.model, call.version, arrays))


def head_length(text: str | None) -> int | None:
    """Return the length of the JSON part of a body; None if the field is missing.

    Raises:
        RequestError: The text is not a number.
    """
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise RequestError(f"expected a number, got {shortened(text)}.", where="Inference-Header-Content-Length")
    return int(text)


async def edit(call: Call) -> HttpResponse:
    """Edit a model."""
    limit = call.service.limits.json_depth * 2
    value = json_codec.parse_json(bytes(call.request.body), limit)
    changes = value.get("changes") if isinstance(value, dict) else value
    return json_response(await call.service.edit(call.model, call.version, changes))


async def undo(call: Call) -> HttpResponse:
    """Undo the latest edit of a model."""
    call.json()
    return json_response(await call.service.undo(call.model, call.version))


def history(call: Call) -> HttpResponse:
    """List the edits of a model."""
    return json_response(call.service.history(call.model, call.version))


async def explain(call: Call) -> HttpResponse:
    """Describe the kernels of a model."""
    return json_response(await call.service.explain(call.model, call.version))


async def profile(call: Call) -> HttpResponse:
    """Measure a model."""
    runs = call.query("runs")
    if runs is None:
        runs = "20"
    if not (runs.isascii() and runs.isdecimal() and len(runs) <= 9):
        raise RequestError(f"expected a number, got {shortened(runs)}.", where="runs")
    return json_response(await call.service.profile(call.model, call.version, int(runs)))


def metrics(call: Call) -> HttpResponse:
    """Return the metrics in the text format of Prometheus."""
    text, content_type = metrics_text(samples(call.service), call.request.headers.get("accept", ""))
    return HttpResponse(200, (text,), content_type)


def status_page(call: Call) -> HttpResponse:
    """Return the status page."""
    from importlib import resources  # Imported late: few servers show the page.

    page = resources.files("sardonyx.serve.http").joinpath("status_page.html").read_bytes()
    policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"
    headers = {"content-security-policy": policy, "x-content-type-options": "nosniff"}
    return HttpResponse(200, (page,), "text/html; charset=utf-8", headers)


def status_data(call: Call) -> HttpResponse:
    """Return the data of the status page."""
    return json_response(snapshot(call.service))
