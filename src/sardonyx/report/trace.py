"""Chrome traces of a profile: one run, kernel by kernel, for Perfetto and ``chrome://tracing``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any

from sardonyx.model import write_text
from sardonyx.report.kernels import NodeNames, label
from sardonyx.report.scopes import Scope, Scopes
from sardonyx.runtime.profiling.profile import Event, Profile

_RUN, _MODULES = 0, 1
"""Track numbers; the tracks of threads follow."""


def write_trace(path: str | os.PathLike[str], profile: Profile, names: NodeNames, scopes: Scopes) -> None:
    """Write a profile as a Chrome trace.

    Args:
        path: The file.
        profile: The profile.
        names: Names of the nodes.
        scopes: Module scopes of the nodes.

    Raises:
        ModelFileError: The file cannot be written.
    """
    events = trace_events(profile, names, scopes)
    write_text(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": _metadata(profile)}))


def _metadata(profile: Profile) -> dict[str, str]:
    return {
        "target": profile.target, "threads": str(profile.threads),
        "median seconds without a clock": f"{profile.seconds:.9f}", "runs": str(profile.runs),
    }  # fmt: skip


def trace_events(profile: Profile, names: NodeNames, scopes: Scopes) -> list[dict[str, Any]]:
    """Return the trace's events: tracks for the run, for the model's modules, and for each thread."""
    threads = sorted({event.thread for event in profile.events} - {0})
    tracks = {_RUN: "run", _MODULES: "modules", **{_MODULES + thread: f"thread {thread}" for thread in threads}}
    events = [_meta("process_name", 0, f"sardonyx, {profile.target}")]
    events += [_meta("thread_name", track, name) for track, name in tracks.items()]
    events += [{**_meta("thread_sort_index", track, ""), "args": {"sort_index": track}} for track in tracks]
    events += [_span(event, profile, names) for event in profile.events]
    events += [
        {"name": name, "cat": "module", "ph": "X", "pid": 0, "tid": _MODULES, "ts": begin * 1e6, "dur": seconds * 1e6}
        for _, name, begin, seconds in module_spans(profile, scopes)
    ]
    return events


def _meta(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 0, "tid": track, "args": {"name": name}}


def _span(event: Event, profile: Profile, names: NodeNames) -> dict[str, Any]:
    arguments: dict[str, Any] = {"what": event.title, "nodes": [label(tensor, names) for tensor in event.tensors]}
    if event.kernel >= 0:
        kernel = profile.kernels[event.kernel]
        arguments |= {
            "kernel": event.kernel, "result": kernel.note.result, "operations": kernel.note.operations,
            "bytes": kernel.note.bytes, "median us": kernel.seconds * 1e6,
        }  # fmt: skip
        if kernel.note.operations and event.seconds and not event.thread:
            rate = kernel.note.operations / event.seconds
            arguments |= {"GFLOP/s": rate / 1e9, "share of peak": rate / profile.peak.operations}
    name = label(event.tensors[0], names) if event.tensors and event.kind != "part" else event.title
    track = _RUN if not event.thread else _MODULES + event.thread
    return {
        "name": name, "cat": event.kind, "ph": "X", "pid": 0, "tid": track,
        "ts": event.begin * 1e6, "dur": event.seconds * 1e6, "args": arguments,
    }  # fmt: skip


def module_spans(profile: Profile, scopes: Scopes) -> Iterator[tuple[int, str, float, float]]:
    """Yield depth, name, begin and seconds of each module: kernels in a row of one module are one span."""
    steps = [e for e in profile.events if not e.thread and e.kind != "part" and not _is_nested(e, profile)]
    for depth in range(max((len(_scope(step, scopes)) for step in steps), default=0)):
        open_span: list[Event] = []
        for step in steps:
            scope = _scope(step, scopes)
            if open_span and _scope(open_span[0], scopes)[: depth + 1] != scope[: depth + 1]:
                yield _module_span(open_span, depth, scopes)
                open_span = []
            if len(scope) > depth:
                open_span.append(step)
        if open_span:
            yield _module_span(open_span, depth, scopes)


def _is_nested(event: Event, profile: Profile) -> bool:
    return event.depth > (1 if profile.parts else 0)


def _scope(event: Event, scopes: Scopes) -> Scope:
    return scopes.of(event.tensors[0]) if event.tensors else ()


def _module_span(events: Sequence[Event], depth: int, scopes: Scopes) -> tuple[int, str, float, float]:
    begin, last = events[0].begin, events[-1]
    return depth, _scope(events[0], scopes)[depth], begin, last.begin + last.seconds - begin
