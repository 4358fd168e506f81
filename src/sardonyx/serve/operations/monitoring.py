"""The state of a server for metrics and for the status page."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from sardonyx import __version__
from sardonyx.runtime.editing.history import Commit
from sardonyx.serve.dispatch.ensemble_endpoint import RunningRequests
from sardonyx.serve.dispatch.queue import Queue
from sardonyx.serve.models.model import ServedModel
from sardonyx.serve.models.served import Served
from sardonyx.serve.observation.exposition import Family
from sardonyx.serve.observation.statistics import Histogram, Statistics
from sardonyx.serve.operations.service import Service

LABELS = ("model", "version")
"""The labels of metrics of a model."""

Read = Callable[[Statistics], Any]

_COUNTERS: tuple[tuple[str, str, Read], ...] = (
    ("requests_success", "Answered requests.", lambda s: s.success.count),
    ("requests_failure", "Failed requests.", lambda s: s.fail.count),
    ("requests_rejected", "Requests that the queue refused.", lambda s: s.rejected),
    ("requests_cancelled", "Requests that were never computed, because the client had gone.", lambda s: s.cancelled),
    ("requests_expired", "Requests that were never computed, because their time was over.", lambda s: s.expired),
    ("inferences", "Computed rows.", lambda s: s.inferences),
    ("executions", "Runs.", lambda s: s.executions),
    ("cache_hits", "Answers from the cache.", lambda s: s.cache_hit.count),
    ("cache_misses", "Requests that the cache did not answer.", lambda s: s.cache_miss.count),
)
_HISTOGRAMS: tuple[tuple[str, str, Read], ...] = (
    ("request_seconds", "Time from arrival to answer.", lambda s: s.request_seconds),
    ("queue_seconds", "Waiting time.", lambda s: s.queue_seconds),
    ("run_seconds", "Time of runs.", lambda s: s.run_seconds),
    ("batch_rows", "Rows of runs.", lambda s: s.rows),
)
_TRITON: tuple[tuple[str, str, Read], ...] = (
    ("nv_inference_request_success", "Successful requests.", lambda s: s.success.count),
    ("nv_inference_count", "Inferences.", lambda s: s.inferences),
    ("nv_inference_exec_count", "Executions.", lambda s: s.executions),
    ("nv_inference_request_duration_us", "Time of requests.", lambda s: s.success.ns // 1000),
    ("nv_inference_queue_duration_us", "Time in the queue.", lambda s: s.queue.ns // 1000),
    ("nv_inference_compute_input_duration_us", "Time of inputs.", lambda s: s.compute_input.ns // 1000),
    ("nv_inference_compute_infer_duration_us", "Time of runs.", lambda s: s.compute_infer.ns // 1000),
    ("nv_inference_compute_output_duration_us", "Time of outputs.", lambda s: s.compute_output.ns // 1000),
    ("nv_cache_num_hits_per_model", "Answers from the cache.", lambda s: s.cache_hit.count),
    ("nv_cache_num_misses_per_model", "Requests that the cache did not answer.", lambda s: s.cache_miss.count),
    ("nv_cache_hit_duration_per_model", "Time of answers from the cache in µs.", lambda s: s.cache_hit.ns // 1000),
    (
        "nv_cache_miss_duration_per_model",
        "Time of failed looks into the cache in µs.",
        lambda s: s.cache_miss.ns // 1000,
    ),
)
_TRITON_REASONS: tuple[tuple[str, Read], ...] = (
    ("BACKEND", lambda s: s.fail.count),
    ("CANCELED", lambda s: s.cancelled),
    ("REJECTED", lambda s: s.rejected + s.expired),
    ("OTHER", lambda s: 0),
)
"""Reasons of failures as Triton names them."""


def samples(service: Service) -> list[Family]:
    """Return all metrics of a server, by family."""
    endpoints = [((e.model.name, e.model.version), e.model, e.queue, e.model.statistics) for e in service.host]
    families = []
    for name, text, read in _COUNTERS:
        families.append(Family("counter", f"sardonyx_{name}", text, LABELS, [(v, read(s)) for v, _, _, s in endpoints]))
    if service.options.triton_metrics:
        families += _triton_families([(labels, queue, s) for labels, _, queue, s in endpoints])
    gauges = (
        ("revision", "Revision of the model.", [(v, m.revision_number) for v, m, _, _ in endpoints]),
        ("queue_requests", "Requests that wait.", [(v, q.waiting) for v, _, q, _ in endpoints]),
        ("queue_bytes", "Bytes of requests that wait.", [(v, q.bytes) for v, _, q, _ in endpoints]),
        ("running_requests", "Requests that are being computed.", [(v, q.running) for v, _, q, _ in endpoints]),
    )
    families += [Family("gauge", f"sardonyx_{n}", text, LABELS, values) for n, text, values in gauges]
    for name, text, read_histogram in _HISTOGRAMS:
        histograms = [(v, read_histogram(s)) for v, _, _, s in endpoints]
        families.append(Family("histogram", f"sardonyx_{name}", text, LABELS, histograms))
    families.append(Family("gauge", "sardonyx_ready", "1 if the server is ready.", (), [((), int(service.is_ready))]))
    return families


def _triton_families(endpoints: Sequence[tuple[tuple[str, str], Queue | RunningRequests, Statistics]]) -> list[Family]:
    """Return the metrics that Triton has, under its names, which lack the suffix of counters."""
    families = [
        Family("unknown", name, text, LABELS, [(v, read(s)) for v, _, s in endpoints]) for name, text, read in _TRITON
    ]
    failures = [((*v, reason), read(s)) for v, _, s in endpoints for reason, read in _TRITON_REASONS]
    waiting = [(v, queue.waiting) for v, queue, _ in endpoints]
    return [
        *families,
        Family("unknown", "nv_inference_request_failure", "Failed requests.", (*LABELS, "reason"), failures),
        Family("gauge", "nv_inference_pending_request_count", "Requests that wait.", LABELS, waiting),
    ]


def snapshot(service: Service) -> dict[str, Any]:
    """Return the state of a server for the status page."""
    models = []
    for endpoint in service.host:
        model, statistics = endpoint.model, endpoint.model.statistics
        models.append({
            "name": model.name, "version": model.version, "revision": model.revision_number,
            "batching": model.batching_note(), "waiting": endpoint.queue.waiting, "running": endpoint.queue.running,
            "success": statistics.success.count, "fail": statistics.fail.count, "rejected": statistics.rejected,
            "inferences": statistics.inferences, "executions": statistics.executions,
            "p50": statistics.request_seconds.quantile(0.5), "p99": statistics.request_seconds.quantile(0.99),
            "latency": _bars(statistics.request_seconds), "rows": _bars(statistics.rows),
            "edits": [{"number": c.number, "changes": list(c.changes)} for c in _latest_edits(model)],
        })  # fmt: skip
    return {
        "version": __version__, "ready": service.is_ready, "seconds": time.time() - service.start, "models": models,
    }  # fmt: skip


def _latest_edits(model: Served) -> Sequence[Commit]:
    return model.session.history[-5:] if isinstance(model, ServedModel) else ()


def _bars(histogram: Histogram) -> list[tuple[float, int]]:
    return [(bound, count) for bound, count in zip(histogram.bounds, histogram.counts, strict=False) if count]
