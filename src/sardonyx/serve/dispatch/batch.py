"""One run for several requests: merging of inputs, division of results, repetition apart after a failure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sardonyx.errors import RequestError
from sardonyx.serve.models.batching import Batching
from sardonyx.serve.models.concatenation import Concatenation
from sardonyx.serve.models.model import Revision
from sardonyx.serve.models.served import Computation, Computed
from sardonyx.serve.protocol.requests import Answer, InferRequest, Output


@dataclass(slots=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        results: An answer or an error for each request of the batch, in order.
        rows: Rows of the batch.
        times: Nanoseconds of merging, running and dividing.
        cpu_ns: Processor time of the run in the calling thread, in nanoseconds.
    """

    results: list[Answer | Exception]
    rows: int
    times: tuple[int, int, int] = (0, 0, 0)
    cpu_ns: int = 0


def batch_key(request: InferRequest) -> tuple[Any, int]:
    """Return the key of requests that may be merged, and the rows of the request; None for no common rows.

    Two keys are equal if types and all sizes but the first are equal.
    """
    rows = -1
    key = []
    for name, array in request.inputs.items():
        shape = array.shape
        if not shape or (rows >= 0 and shape[0] != rows):
            return None, 1
        rows = shape[0]
        key.append((name, array.dtype.num, shape[1:]))
    return (tuple(key), rows) if rows > 0 else (None, max(rows, 1))


def merging_key(key: Any, batching: Batching) -> Any:
    """Return the key of requests that a queue merges: a batch key without the sizes that may differ.

    Args:
        key: A batch key; None stays None.
        batching: The options of the model.
    """
    if key is None or batching.ragged == "group":
        return key
    joined = None if batching.concatenation is None else batching.concatenation.inputs
    return tuple(
        (name, dtype, len(sizes) if joined is None else sizes[1:] if name in joined else sizes)
        for name, dtype, sizes in key
    )


def execute(model: Computed, requests: Sequence[InferRequest], rows: int) -> Outcome:
    """Compute requests of one batch key as one run; after a failure, every request apart.

    All answers of a run are of one revision.

    Args:
        model: The model.
        requests: The requests.
        rows: The sum of their rows.
    """
    begin = time.perf_counter_ns()
    try:
        revision = model.revision
    except Exception as error:  # An edit gave the model an interface that cannot be served.
        return Outcome([error for _ in requests], rows)
    if isinstance(revision, Revision) and revision.concatenation is not None:
        return _concatenated(model, revision, revision.concatenation, requests, rows, begin)
    if len(requests) == 1:
        return _single(model, revision, requests[0], rows, begin)
    try:
        feeds = _merged(requests)
        merged, cpu = time.perf_counter_ns(), time.thread_time_ns()
        results = revision.run(feeds)
        ran, cpu = time.perf_counter_ns(), time.thread_time_ns() - cpu
        _require_rows(results, rows, revision)
        answers: list[Answer | Exception] = []
        offset = 0
        names = list(revision.interface.outputs)
        is_padded = model.batching.ragged == "pad"
        name, version, number = model.name, model.version, revision.number
        for request in requests:
            end = offset + next(iter(request.inputs.values())).shape[0]
            parts = [result[offset:end] for result in results]
            if is_padded:
                parts = _cropped(parts, request, revision)
            if request.outputs:
                answers.append(_answer(model, revision, request, parts))
            else:
                outputs = [Output(names[index], part) for index, part in enumerate(parts)]
                answers.append(Answer(name, version, request.id, outputs, number))
            offset = end
        return Outcome(answers, rows, (merged - begin, ran - merged, time.perf_counter_ns() - ran), cpu)
    except Exception:  # One request may be at fault: the others must not fail with it.
        return _apart(model, requests, rows, begin)


def _apart(model: Computed, requests: Sequence[InferRequest], rows: int, begin: int) -> Outcome:
    outcomes = [execute(model, [request], 1) for request in requests]
    cpu = sum(outcome.cpu_ns for outcome in outcomes)
    return Outcome([outcome.results[0] for outcome in outcomes], rows, (0, time.perf_counter_ns() - begin, 0), cpu)


def _concatenated(
    model: Computed, revision: Revision, concatenation: Concatenation, requests: Sequence[InferRequest], rows: int,
    begin: int,
) -> Outcome:  # fmt: skip
    cpu = time.thread_time_ns()
    try:
        parts = revision.run_concatenated(concatenation, [request.inputs for request in requests])
        ran, cpu = time.perf_counter_ns(), time.thread_time_ns() - cpu
        answers: list[Answer | Exception] = []
        for request, part in zip(requests, parts, strict=True):
            answers.append(_answer(model, revision, request, part))
        return Outcome(answers, rows, (0, ran - begin, time.perf_counter_ns() - ran), cpu)
    except Exception as error:
        if len(requests) > 1:
            return _apart(model, requests, rows, begin)
        return Outcome([error], rows, (0, time.perf_counter_ns() - begin, 0), time.thread_time_ns() - cpu)


def _single(model: Computed, revision: Computation, request: InferRequest, rows: int, begin: int) -> Outcome:
    cpu = time.thread_time_ns()
    try:
        outputs = revision.interface.outputs
        if isinstance(revision, Revision) and any(output.name not in outputs for output in request.outputs):
            names = [output.name for output in request.outputs]
            values = revision.snapshot.run(names, request.inputs)
            ran = time.perf_counter_ns()
            answer = _named(model, revision, request, dict(zip(names, values, strict=True)))
        else:
            results = revision.run(request.inputs)
            ran = time.perf_counter_ns()
            answer = _answer(model, revision, request, results)
        times = (0, ran - begin, time.perf_counter_ns() - ran)
        return Outcome([answer], rows, times, time.thread_time_ns() - cpu)
    except Exception as error:
        return Outcome([error], rows, (0, time.perf_counter_ns() - begin, 0), time.thread_time_ns() - cpu)


def _merged(requests: Sequence[InferRequest]) -> dict[str, np.ndarray]:
    return {name: _joined([request.inputs[name] for request in requests]) for name in requests[0].inputs}


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the rows of all arrays, padded with zeros where inner sizes differ."""
    sizes = [array.shape[1:] for array in arrays]
    if all(size == sizes[0] for size in sizes):
        return np.concatenate(arrays)
    largest = tuple(map(max, zip(*sizes, strict=True)))
    rows = sum(len(array) for array in arrays)
    zero: Any = "" if arrays[0].dtype.kind == "O" else 0
    joined = np.full((rows, *largest), zero, arrays[0].dtype)
    offset = 0
    for array in arrays:
        joined[(slice(offset, offset + len(array)), *map(slice, array.shape[1:]))] = array
        offset += len(array)
    return joined


def _cropped(results: Sequence[np.ndarray], request: InferRequest, revision: Computation) -> list[np.ndarray]:
    """Return results without the part that padding added, as far as the names of sizes tell."""
    interface = revision.interface
    sizes = {
        size: actual
        for name, array in request.inputs.items()
        for size, actual in zip(interface.inputs[name].shape or (), array.shape, strict=False)
        if isinstance(size, str)
    }
    cropped = []
    for tensor, result in zip(interface.outputs.values(), results, strict=True):
        shape = tensor.shape or (None,) * result.ndim
        ends = [sizes.get(size) if isinstance(size, str) else None for size in shape[1:]]
        cropped.append(result[(slice(None), *map(slice, ends))])
    return cropped


def _require_rows(results: Sequence[Any], rows: int, revision: Computation) -> None:
    for name, result in zip(revision.interface.outputs, results, strict=True):
        if not isinstance(result, np.ndarray) or result.ndim == 0 or result.shape[0] != rows:
            raise RequestError(f"expected {rows} rows of output {name}.", kind="internal")


def _answer(model: Computed, revision: Computation, request: InferRequest, results: Sequence[Any]) -> Answer:
    names = revision.interface.outputs
    if request.outputs:
        return _named(model, revision, request, dict(zip(names, results, strict=True)))
    outputs = [Output(name, result) for name, result in zip(names, results, strict=True)]
    return Answer(model.name, model.version, request.id, outputs, revision.number)


def _named(model: Computed, revision: Computation, request: InferRequest, values: Mapping[str, Any]) -> Answer:
    outputs = []
    for requested in request.outputs:
        value = values.get(requested.name)
        if not isinstance(value, np.ndarray):
            raise RequestError("the value is not a tensor.", kind="unsupported", where=requested.name)
        outputs.append(Output(requested.name, value, requested))
    return Answer(model.name, model.version, request.id, outputs, revision.number)
