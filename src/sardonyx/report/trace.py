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
"""Tracks; threads follow."""


def write_trace(path: str | os.PathLike[str], found: Profile, names: NodeNames, scopes: Scopes) -> None:
    """Write the trace.

    Args:
        path: Where to.
        found: The profile.
        names: Of the nodes.
        scopes: Where nodes belong.

    Raises:
        ModelFileError: It cannot be written.
    """
    data = {"traceEvents": trace_events(found, names, scopes), "displayTimeUnit": "ms", "otherData": _told(found)}
    write_text(path, json.dumps(data))


def _told(found: Profile) -> dict[str, str]:
    return {
        "target": found.target, "threads": str(found.threads),
        "median seconds without a clock": f"{found.seconds:.9f}", "runs": str(found.runs),
    }  # fmt: skip


def trace_events(found: Profile, names: NodeNames, scopes: Scopes) -> list[dict[str, Any]]:
    """The trace's events: tracks for the run, for the model's modules, and for each thread."""
    threads = sorted({event.thread for event in found.events} - {0})
    tracks = {_RUN: "run", _MODULES: "modules", **{_MODULES + each: f"thread {each}" for each in threads}}
    made = [_meta("process_name", 0, f"sardonyx, {found.target}")]
    made += [_meta("thread_name", track, name) for track, name in tracks.items()]
    made += [{**_meta("thread_sort_index", track, ""), "args": {"sort_index": track}} for track in tracks]
    made += [_span(event, found, names) for event in found.events]
    made += [
        {"name": name, "cat": "module", "ph": "X", "pid": 0, "tid": _MODULES, "ts": begin * 1e6, "dur": seconds * 1e6}
        for _, name, begin, seconds in module_spans(found, scopes)
    ]
    return made


def _meta(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 0, "tid": track, "args": {"name": name}}


def _span(event: Event, found: Profile, names: NodeNames) -> dict[str, Any]:
    told: dict[str, Any] = {"what": event.title, "nodes": [label(tensor, names) for tensor in event.tensors]}
    if event.kernel >= 0:
        kernel = found.kernels[event.kernel]
        told |= {
            "kernel": event.kernel, "result": kernel.note.result, "operations": kernel.note.operations,
            "bytes": kernel.note.bytes, "median us": kernel.seconds * 1e6,
        }  # fmt: skip
        if kernel.note.operations and event.seconds and not event.thread:
            rate = kernel.note.operations / event.seconds
            told |= {"GFLOP/s": rate / 1e9, "share of peak": rate / found.peak.operations}
    name = label(event.tensors[0], names) if event.tensors and event.kind != "part" else event.title
    track = _RUN if not event.thread else _MODULES + event.thread
    return {
        "name": name, "cat": event.kind, "ph": "X", "pid": 0, "tid": track,
        "ts": event.begin * 1e6, "dur": event.seconds * 1e6, "args": told,
    }  # fmt: skip


def module_spans(found: Profile, scopes: Scopes) -> Iterator[tuple[int, str, float, float]]:
    """The modules that kernels one after the other belong to, one inside the other: depth, name, begin, seconds."""
    steps = [each for each in found.events if not each.thread and each.kind != "part" and not _is_within(each, found)]
    for depth in range(max((len(_scope(each, scopes)) for each in steps), default=0)):
        begun: list[Event] = []
        for event in steps:
            scope = _scope(event, scopes)
            if begun and _scope(begun[0], scopes)[: depth + 1] != scope[: depth + 1]:
                yield _module(begun, depth, scopes)
                begun = []
            if len(scope) > depth:
                begun.append(event)
        if begun:
            yield _module(begun, depth, scopes)


def _is_within(event: Event, found: Profile) -> bool:
    return event.depth > (1 if found.parts else 0)


def _scope(event: Event, scopes: Scopes) -> Scope:
    return scopes.of(event.tensors[0]) if event.tensors else ()


def _module(events: Sequence[Event], depth: int, scopes: Scopes) -> tuple[int, str, float, float]:
    begin, last = events[0].begin, events[-1]
    return depth, _scope(events[0], scopes)[depth], begin, last.begin + last.seconds - begin
