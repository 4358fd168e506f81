"""Plain requests: their values are copied to the rows of a batch as they arrive, and answered by a template.

A request is plain if a template of its wire reads it: its bytes are those of an earlier request but for the values of
the inputs, it waits without a time limit, and no sequence, policy or remembered answer is concerned. All that the
general path checks was checked for the earlier request, so that nothing is checked again. A template refuses nothing:
bytes that it cannot read, and runs that fail, are left to the general path, whose errors and answers count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from sardonyx.serve.models.served import Computation, Computed
from sardonyx.serve.protocol.requests import InferRequest

LARGEST = 64 << 10
"""Bytes of a plain request: a larger one seldom arrives at once, and its values cost more than all else."""


CREDIT = 4
"""Runs in succession that fail, and are repeated by the general path, before requests are not plain for a while."""


class Writer(Protocol):
    """Writes the answers to plain requests of one template."""

    def prepare(self, results: Sequence[np.ndarray]) -> Any:
        """Return what :meth:`write` needs besides the requests; None if the results need the general path."""

    def write(self, requests: Sequence[PlainRequest], prepared: Any) -> None:
        """Answer requests, except those that were cancelled."""


class PlainQueue(Protocol):
    """The queue of a model, as far as plain requests use it."""

    model: Computed

    def add_plain(self, request: PlainRequest) -> bool:
        """Let a plain request wait; return False if it must take the general path."""

    def remove_plain(self, request: PlainRequest) -> None:
        """Take a plain request out of the queue."""


class PlainRequest:
    """A request whose values are in the rows of a batch.

    Args:
        sink: The connection.
        data: The bytes of the request.
        size: The bytes that the limit of the queue counts.
        batch: The batch.
        writer: Writes the answer.
        rows: The number of rows.
        tag: The object by which the connection knows the request.

    Attributes:
        row: The first row in the batch.
        arrival: The time of arrival, in nanoseconds of the monotonic clock.
        is_cancelled: True once the client has gone.
        id: The client's name for the request; empty for none.
    """

    __slots__ = ("arrival", "batch", "data", "id", "is_cancelled", "row", "rows", "sink", "size", "tag", "writer")

    def __init__(
        self, sink: Any, data: bytes, size: int, batch: PlainBatch, writer: Writer, rows: int, tag: Any = None
    ) -> None:
        self.sink = sink
        self.data = data
        self.size = size
        self.batch = batch
        self.writer = writer
        self.rows = rows
        self.tag = tag
        self.row = batch.rows
        self.arrival = time.monotonic_ns()
        self.is_cancelled = False
        self.id = b""

    def cancel(self) -> None:
        """Forget the request, because the client has gone; a request that still waits is never computed."""
        if self.withdraw():
            self.batch.collector.queue.model.statistics.cancel()
        self.is_cancelled = True

    def withdraw(self) -> bool:
        """Take the request out of its batch; return False if it is computed already."""
        if self.is_cancelled or self.batch.is_running:
            return False
        self.is_cancelled = True
        self.batch.collector.queue.remove_plain(self)
        return True


class PlainBatch:
    """Rows of plain requests that are computed as one run.

    Args:
        collector: The collector, whose inputs the batch has.

    Attributes:
        addresses: The address of the first row of each input.
        bytes: The rows of each input as bytes.
        arrays: The rows of each input.
        rows: The number of rows that have values.
        size: Bytes of the requests.
        requests: The requests, in the order of their rows.
        is_waiting: True from the first request to the run.
        is_running: True from the run to the answers.
        has_gaps: True if requests were removed, whose rows are among the others.
        id: The id of the request that is being read.
    """

    __slots__ = (
        "_feeds", "addresses", "arrays", "bytes", "collector", "has_gaps", "id", "is_running", "is_waiting", "requests",
        "rows", "size",
    )  # fmt: skip

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self.arrays = [
            np.empty((collector.capacity, *shape), dtype)
            for dtype, shape in zip(collector.dtypes, collector.shapes, strict=True)
        ]
        flat: list[Any] = [array.reshape(-1).view(np.uint8) for array in self.arrays]
        self.bytes = [memoryview(array) for array in flat]
        self.addresses = [int(array.ctypes.data) for array in self.arrays]
        self._feeds: dict[int, dict[str, np.ndarray]] = {}
        self.clear()

    def clear(self) -> None:
        """Forget all requests."""
        self.rows = self.size = 0
        self.requests: list[PlainRequest] = []
        self.is_waiting = self.is_running = self.has_gaps = False
        self.id = b""

    def feeds(self) -> dict[str, np.ndarray]:
        """Return the inputs of the run."""
        if self.has_gaps:
            self._close_gaps()
        feeds = self._feeds.get(self.rows)
        if feeds is None:
            names = self.collector.names
            feeds = self._feeds[self.rows] = {
                name: array[: self.rows] for name, array in zip(names, self.arrays, strict=True)
            }
        return feeds

    def _close_gaps(self) -> None:
        end = 0
        for request in self.requests:
            if request.row != end:
                for array in self.arrays:
                    array[end : end + request.rows] = array[request.row : request.row + request.rows].copy()
                request.row = end
            end += request.rows
        self.rows = end
        self.has_gaps = False


class Collector:
    """The batches of plain requests of one batch key and revision.

    Args:
        queue: The queue of the model.
        revision: The revision whose interface the requests fit.
        key: The batch key, as :func:`.batch_key` returns.
        rows: The rows of a request, if requests are not merged.

    Attributes:
        limit: The largest number of rows of several requests.
        capacity: The number of rows that a batch has room for.
        is_stale: True once the revision or the limit is another: templates do not use the collector any more.
        names: The names of the inputs.
        dtypes: Their element types.
        shapes: Their sizes but the first.
        row_bytes: Bytes of a row of all inputs.
        open: The batch that takes more requests; None if the next request begins one.
        credit: Failed runs after which the collector is stale; a run that succeeds restores the number.
    """

    def __init__(self, queue: PlainQueue, revision: Computation, key: Any, rows: int) -> None:
        self.queue = queue
        self.revision = revision
        self.key = key
        self.limit = queue.model.max_rows
        self.capacity = max(self.limit, rows)
        self.is_stale = False
        self.names = [name for name, _, _ in key]
        self.dtypes: list[np.dtype[Any]] = [revision.interface.inputs[name].datatype.dtype for name in self.names]
        self.shapes: list[tuple[int, ...]] = [shape for _, _, shape in key]
        self.row_bytes = sum(
            math.prod(shape) * dtype.itemsize for dtype, shape in zip(self.dtypes, self.shapes, strict=True)
        )
        self.open: PlainBatch | None = None
        self.credit = CREDIT
        self._free: list[PlainBatch] = []

    def batch(self, rows: int) -> PlainBatch:
        """Return the batch that takes the next request.

        Args:
            rows: The rows of the request.
        """
        batch = self.open
        if batch is None or (batch.is_waiting and batch.rows + rows > self.limit):
            batch = self.open = self._free.pop() if self._free else PlainBatch(self)
        return batch

    def release(self, batch: PlainBatch) -> None:
        """Let a batch whose requests are answered take others."""
        batch.clear()
        if not self.is_stale and len(self._free) < 2:
            self._free.append(batch)


class PlainOutcome:
    """The outcome of a run of plain requests.

    Attributes:
        results: The results by output; None if the run failed or must not be used.
        times: Nanoseconds of merging, running and dividing.
        cpu_ns: Processor time of the run in the calling thread, in nanoseconds; 0 if it was not measured.
    """

    __slots__ = ("cpu_ns", "results", "times")

    def __init__(self, results: Sequence[np.ndarray] | None, ns: int, cpu_ns: int) -> None:
        self.results = results
        self.times = (0, ns, 0)
        self.cpu_ns = cpu_ns


def execute_plain(model: Computed, batch: PlainBatch, is_timed: bool) -> PlainOutcome:
    """Compute the requests of a batch as one run.

    Args:
        model: The model.
        batch: The batch.
        is_timed: True to measure the processor time.
    """
    cpu = time.thread_time_ns() if is_timed else 0
    begin = time.perf_counter_ns()
    collector = batch.collector
    results: Sequence[Any] | None = None
    try:
        revision = model.revision
        if revision is collector.revision and model.max_rows == collector.limit:
            results = revision.run(batch.feeds())
            for result in results:
                if type(result) is not np.ndarray or result.ndim == 0 or len(result) != batch.rows:
                    results, collector.is_stale = None, True
                    break
        else:
            collector.is_stale = True
    except Exception:  # The general path repeats every request, and answers with its error.
        results = None
    ns = time.perf_counter_ns() - begin
    return PlainOutcome(results, ns, time.thread_time_ns() - cpu if is_timed else 0)


def answer_plain(batch: PlainBatch, results: Sequence[np.ndarray]) -> bool:
    """Answer the requests of a batch; return False, before any answer, if the results need the general path."""
    requests = batch.requests
    writer = requests[0].writer
    if len(requests) == 1:
        alone = writer.prepare(results)
        if alone is None:
            return False
        writer.write(requests, alone)
        return True
    writers = {id(request.writer): request.writer for request in requests}
    prepared = [(writer, writer.prepare(results)) for writer in writers.values()]
    if any(part is None for _, part in prepared):
        return False
    for writer, part in prepared:
        writer.write(
            requests if len(writers) == 1 else [request for request in requests if request.writer is writer], part
        )
    return True


def is_simple(request: InferRequest) -> bool:
    """Return True if a request has nothing that only the general path knows."""
    return (
        not (request.sequence or request.priority or request.timeout_us)
        and not any(name != "binary_data_output" for name in request.parameters)
        and not any(output.classes or output.destination for output in request.outputs)
    )


def is_fixed(arrays: Iterable[np.ndarray]) -> bool:
    """Return True if arrays have elements, each of a fixed number of bytes."""
    return all(array.size and array.dtype.kind != "O" for array in arrays)
