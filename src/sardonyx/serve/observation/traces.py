"""Traces of requests by OpenTelemetry, with the W3C context of clients."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable
from typing import Any

from sardonyx.errors import MissingDependencyError, OptionError
from sardonyx.serve.protocol.requests import Answer, InferRequest

_PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


class Traces:
    """Records a span for each sampled request, with its waiting time and its run as events.

    Args:
        exporter: The exporter of OpenTelemetry that receives spans.

    Raises:
        MissingDependencyError: opentelemetry-sdk is not installed.

    Attributes:
        is_on: True if requests are traced.
        rate: One of this many requests is traced; a request that names a sampled parent always is.
    """

    def __init__(self, exporter: Any) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise _missing() from error
        self._api = trace
        self._provider = TracerProvider(resource=Resource.create({"service.name": "sardonyx"}))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("sardonyx.serve")
        self._count = itertools.count()
        self.is_on = True
        self.rate = 1

    def watched(
        self, request: InferRequest, done: Callable[[Answer | Exception], None]
    ) -> Callable[[Answer | Exception], None]:
        """Return a function that receives the answer, records its span, and passes the answer on.

        Args:
            request: The request.
            done: Receives the answer.
        """
        parent = _PARENT.fullmatch(request.trace) if isinstance(request.trace, str) else None
        is_sampled = parent is not None and int(parent[3], 16) & 1
        if not is_sampled and next(self._count) % self.rate:
            return done
        # The clock of arrivals is monotonic; spans have the time since 1970.
        offset = time.time_ns() - time.monotonic_ns()

        def finish(result: Answer | Exception) -> None:
            self._record(request, result, parent, offset)
            done(result)

        return finish

    def _record(self, request: InferRequest, result: Answer | Exception, parent: Any, offset: int) -> None:
        api = self._api
        context = None
        if parent is not None:
            remote = api.SpanContext(int(parent[1], 16), int(parent[2], 16), True, api.TraceFlags(int(parent[3], 16)))
            context = api.set_span_in_context(api.NonRecordingSpan(remote))
        span = self._tracer.start_span(
            f"infer {request.model}", context, api.SpanKind.SERVER, start_time=request.arrival + offset,
            attributes={"sardonyx.model": request.model, "sardonyx.request_id": request.id},
        )  # fmt: skip
        if request.started:
            span.add_event("run begins", timestamp=request.started + offset)
            span.add_event("run ends", timestamp=request.ended + offset)
        if isinstance(result, Answer):
            span.set_attributes({"sardonyx.version": result.version, "sardonyx.revision": result.revision})
        else:
            span.set_status(api.Status(api.StatusCode.ERROR, str(result)[:200]))
        span.end(time.monotonic_ns() + offset)

    def close(self) -> None:
        """Send the spans that wait, and end."""
        self._provider.shutdown()


def exporter_of(text: str) -> Any:
    """Return the exporter for ``otlp:URL``, e.g. ``otlp:http://127.0.0.1:4318/v1/traces``, or for ``console``.

    Raises:
        OptionError: The text is neither.
        MissingDependencyError: The package of the exporter is not installed.
    """
    kind, _, target = text.partition(":")
    try:
        if kind == "console" and not target:
            from opentelemetry.sdk.trace.export import ConsoleSpanExporter

            return ConsoleSpanExporter()
        if kind == "otlp" and target.startswith(("http://", "https://")):
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            return OTLPSpanExporter(endpoint=target)
    except ImportError as error:
        raise _missing() from error
    raise OptionError(f"expected otlp:URL or console, got {text!r}.", where="--trace")


def _missing() -> MissingDependencyError:
    return MissingDependencyError(
        "traces require opentelemetry-sdk and its exporter.", remedy='Install them: pip install "sardonyx[trace]".'
    )
