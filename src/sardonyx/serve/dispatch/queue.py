"""The queue of a model: work-conserving batching with priorities, deadlines and limits."""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from sardonyx.errors import RequestError
from sardonyx.serve.dispatch.batch import Outcome, execute
from sardonyx.serve.dispatch.plain import (
    CREDIT,
    Collector,
    PlainBatch,
    PlainOutcome,
    PlainRequest,
    answer_plain,
    execute_plain,
)
from sardonyx.serve.dispatch.run_thread import RunThread
from sardonyx.serve.models.batching import QueuePolicy
from sardonyx.serve.models.served import Computation, Computed
from sardonyx.serve.protocol.limits import Limits
from sardonyx.serve.protocol.requests import Answer, Done, InferRequest

_INLINE_NS = 100_000
"""Processor time of a run up to which the event loop runs the model itself, in ns: the cost of two thread switches."""

_MEASURED_RUNS = 8
"""Runs of a key before its time is known."""

_TIMED = 16
"""Runs in the event loop for each run whose time is measured."""

_KEYS = 1024
"""Limit of keys with known times."""

_COLLECTORS = 64
"""Limit of batch keys whose requests may be plain."""

_COLLECTED_BYTES = 64 << 20
"""Limit of the bytes of the rows of a plain batch, which are allocated for the largest batch."""

_PAUSE = 256
"""Requests that are not plain after plain requests failed."""

_LAST_PRIORITY = 1 << 62

_DELAYED = 1 << 63
"""The priority of requests whose time is over, where these wait."""

_log = logging.getLogger("sardonyx.serve")


class Entry:
    """A request that waits.

    Attributes:
        request: The request.
        done: Receives the answer.
        key: The batch key; None for a request that is never merged.
        rows: Rows of the request.
        level: The priority that the request names, or the default of the model; 0 for none.
        priority: Smaller numbers are computed first.
        timer: Ends the wait when the time of the request is over.
        is_waiting: True until the request is computed, cancelled or expired.
        queue: The queue in which the request waits.
        later: The entry in whose place the request waits once its time is over; None before.
    """

    __slots__ = ("done", "is_waiting", "key", "later", "level", "priority", "queue", "request", "rows", "timer")

    def __init__(self, queue: Queue, request: InferRequest, done: Done) -> None:
        self.queue = queue
        self.request = request
        self.done = done
        self.key: Any = None
        self.rows = 1
        self.level = 0
        self.priority = 0
        self.timer: asyncio.TimerHandle | None = None
        self.is_waiting = True
        self.later: Entry | None = None

    def cancel(self) -> bool:
        """Forget the request, because the client has gone; return True if it still waited, and is never computed."""
        if self.later is not None:
            return self.later.cancel()
        self.request.cancelled = True
        if not self.is_waiting:
            return False
        self.queue.remove(self)
        self.queue.model.statistics.cancel()
        self.forget()
        return True

    def forget(self) -> None:
        """Free the inputs and the caller's objects: the queue drops a removed entry only when its turn comes."""
        self.request.inputs = {}
        self.done = _ignored


class Queue:
    """The requests of one version of a model; used by the thread of the event loop alone.

    Args:
        model: The model.
        limits: The limits of the server.
        loop: The event loop.

    Attributes:
        model: The model.
        waiting: Number of requests that wait.
        bytes: Bytes of requests that wait.
        running: Number of requests that are being computed.
        held: Number of requests of ensembles that may still come.
        on_idle: Called when a retired queue has answered its last request.
    """

    def __init__(self, model: Computed, limits: Limits, loop: asyncio.AbstractEventLoop) -> None:
        self.model = model
        self.waiting = 0
        self.bytes = 0
        self.running = 0
        self.held = 0
        self.on_idle: Callable[[], None] | None = None
        self._limits = limits
        self._loop = loop
        self._heap: list[tuple[int, int, Entry]] = []
        self._groups: dict[Any, deque[Entry]] = {}
        self._number = 0
        self._is_scheduled = False
        self._thread: RunThread | None = None
        self._times: dict[Any, tuple[int, float]] = {}
        self._drain_per_second = 0.0
        self._delay: asyncio.TimerHandle | None = None
        self._plain: deque[PlainBatch] = deque()
        self._collectors: dict[Any, Collector] = {}
        self._plain_from = 0
        self._untimed = 0
        self._at_level: Counter[int] = Counter()
        self.most_requests = model.batching.queue_requests or limits.queue_requests

    def submit(self, request: InferRequest, done: Done, key: Any, rows: int) -> Entry:
        """Let a request wait for its computation.

        Args:
            request: The request.
            done: Receives the answer or the error.
            key: The batch key, see :func:`.batch_key`.
            rows: Rows of the request.

        Raises:
            RequestError: The queue is full, the priority is out of range, or the time of the request is over.
        """
        if self._plain:
            self._repeat_waiting()
        batching = self.model.batching
        level = request.priority or batching.default_priority
        if batching.priority_levels and request.priority > batching.priority_levels:
            raise RequestError(
                f"expected a priority from 0 to {batching.priority_levels}, got {request.priority}.", where="priority"
            )
        if self._is_full(level) or self.bytes + request.size > self._limits.queue_bytes:
            self.model.statistics.reject()
            raise RequestError(
                f"{self.waiting} requests wait for the model.", kind="exhausted", where=self.model.name,
                remedy="Repeat the request later.", retry_after=self._retry_after(),
            )  # fmt: skip
        rest = self._rest_seconds(request, batching.queue(level))
        if len(self._heap) > 2 * self.waiting + _KEYS:
            self._forget_removed()
        entry = Entry(self, request, done)
        entry.rows = rows
        entry.level, entry.priority = level, level or _LAST_PRIORITY
        if rest is not None:
            entry.timer = self._loop.call_later(rest, self._expire, entry)
        if key is not None:
            entry.key = (entry.priority, *key)
        self._push(entry)
        if not self._is_scheduled and not self.running:
            # The requests that this turn of the event loop brings become one batch.
            self._is_scheduled = True
            self._loop.call_soon(self._turn)
        return entry

    def _push(self, entry: Entry) -> None:
        self._number += 1
        heapq.heappush(self._heap, (entry.priority, self._number, entry))
        key = entry.key
        if key is not None:
            group = self._groups.get(key)
            if group is None:
                self._groups[key] = deque((entry,))
            else:
                group.append(entry)
        self.waiting += 1
        self.bytes += entry.request.size
        if self.model.batching.level_queues:
            self._at_level[entry.level] += 1

    def _is_full(self, level: int) -> bool:
        """Return True if no further request of a priority may wait."""
        policy = self.model.batching.level_queues.get(level)
        if policy is None:
            return self.waiting >= self.most_requests
        is_level_full = 0 < policy.queue_requests <= self._at_level[level]
        return is_level_full or self.waiting >= self._limits.queue_requests

    def _rest_seconds(self, request: InferRequest, policy: QueuePolicy) -> float | None:
        """Return the seconds that a request may still wait; None without a limit.

        Raises:
            RequestError: The time of the request is over: it waited for its sequence, or arrived late.
        """
        timeout = policy.timeout_us
        if request.timeout_us and policy.allows_timeout:
            timeout = min(timeout, request.timeout_us) if timeout else request.timeout_us
        if not timeout:
            return None
        rest = timeout * 1e-6 - (time.monotonic_ns() - request.arrival) * 1e-9
        if policy.delays:
            return max(rest, 0.0)
        if rest <= 0:
            self.model.statistics.expire()
            raise _time_is_over()
        return rest

    # Plain requests. They wait only while no other request waits, so that all are computed in order of arrival.

    def collector(self, revision: Computation, key: Any, rows: int) -> Collector | None:
        """Return the collector of plain requests of a batch key; None if such requests cannot be plain now.

        Args:
            revision: The revision whose interface the requests fit.
            key: The batch key, see :func:`.batch_key`.
            rows: The rows of a request.
        """
        batching = self.model.batching
        if key is None or batching.max_delay_us or batching.timeout_us or self._number < self._plain_from:
            return None
        if batching.concatenation is not None or batching.level_queues or batching.keeps_order:
            return None
        limit = self.model.max_rows
        if limit > 1 and (rows > limit or batching.ragged == "pad"):
            return None
        name = key if limit > 1 else (rows, *key)
        collector = self._collectors.get(name)
        if collector is None or collector.is_stale or collector.revision is not revision or collector.limit != limit:
            if len(self._collectors) >= _COLLECTORS:
                self.forget_collectors()
            collector = Collector(self, revision, key, rows)
            if collector.capacity * collector.row_bytes > _COLLECTED_BYTES:
                return None
            self._collectors[name] = collector
        return collector

    def forget_collectors(self) -> None:
        """Let no further request be plain before the general path has answered one."""
        for collector in self._collectors.values():
            collector.is_stale = True
        self._collectors.clear()

    def add_plain(self, request: PlainRequest) -> bool:
        """Let a plain request wait, whose values are in its batch; return False if it must take the general path."""
        if self.waiting and not self._plain:
            return False
        if self.waiting >= self.most_requests or self.bytes + request.size > self._limits.queue_bytes:
            return False
        batch = request.batch
        if not batch.is_waiting:
            batch.is_waiting = True
            self._plain.append(batch)
        batch.requests.append(request)
        batch.rows += request.rows
        batch.size += request.size
        self.waiting += 1
        self.bytes += request.size
        if not self._is_scheduled and not self.running:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)
        return True

    def remove_plain(self, request: PlainRequest) -> None:
        """Take a plain request out of the queue."""
        batch = request.batch
        batch.requests.remove(request)
        batch.has_gaps = True
        batch.size -= request.size
        self.waiting -= 1
        self.bytes -= request.size

    def _next_plain(self) -> PlainBatch:
        batch = self._plain.popleft()
        batch.is_waiting, batch.is_running = False, True
        if batch.collector.open is batch:
            batch.collector.open = None
        self.waiting -= len(batch.requests)
        self.bytes -= batch.size
        return batch

    def _run_plain(self) -> None:
        batch = self._next_plain()
        if not batch.requests:
            batch.collector.release(batch)
            self._turn()
            return
        self.running = len(batch.requests)
        runs, mean = self._times.get(self._plain_key(batch), (0, 0.0))
        begin = time.monotonic_ns()
        if runs >= _MEASURED_RUNS and mean < _INLINE_NS:
            # The clock of a thread is a call of the system: few runs suffice for the mean.
            self._untimed = (self._untimed + 1) % _TIMED
            self._finish_plain(batch, begin, execute_plain(self.model, batch, self._untimed == 0))
        else:
            self._in_thread(lambda: self._finish_plain_later(batch, begin))

    def _finish_plain_later(self, batch: PlainBatch, begin: int) -> None:
        outcome = execute_plain(self.model, batch, True)
        self._loop.call_soon_threadsafe(self._finish_plain, batch, begin, outcome)

    def _plain_key(self, batch: PlainBatch) -> Any:
        return (self.model.batching.default_priority or _LAST_PRIORITY, *batch.collector.key)

    def _finish_plain(self, batch: PlainBatch, begin: int, outcome: PlainOutcome) -> None:
        self.running = 0
        now = time.monotonic_ns()
        requests, collector = batch.requests, batch.collector
        if self.waiting and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)
        is_answered = False
        if outcome.results is not None:
            try:
                is_answered = answer_plain(batch, outcome.results)
            except Exception as error:
                _log.error("internal: plain requests cannot be answered", exc_info=error)
        if is_answered:
            collector.credit = CREDIT
            if outcome.cpu_ns:
                self._learn(self._plain_key(batch), outcome.cpu_ns, now - begin, len(requests))
            statistics = self.model.statistics
            statistics.run(batch.rows, len(requests), outcome.times)
            statistics.answered_together(now, begin, [r.arrival for r in requests if not r.is_cancelled])
        else:
            collector.credit -= 1
            if not collector.credit:
                collector.is_stale = True
                self._plain_from = self._number + _PAUSE
            _repeat(requests)
        collector.release(batch)
        if not self.waiting and self.on_idle is not None:
            self.on_idle()

    def _repeat_waiting(self) -> None:
        """Let all plain requests take the general path, ahead of a request that is not plain."""
        batches = [self._next_plain() for _ in range(len(self._plain))]
        for batch in batches:
            _repeat(batch.requests)
            batch.collector.release(batch)

    # Requests with entries.

    def remove(self, entry: Entry) -> None:
        """Take a request out of the queue."""
        entry.is_waiting = False
        self.waiting -= 1
        self.bytes -= entry.request.size
        if self.model.batching.level_queues:
            self._at_level[entry.level] -= 1
        if entry.timer is not None:
            entry.timer.cancel()

    def _forget_removed(self) -> None:
        """Drop cancelled and expired requests, which would grow without bound while a long run lasts."""
        self._heap = [item for item in self._heap if item[2].is_waiting]
        heapq.heapify(self._heap)
        groups = {key: deque(e for e in group if e.is_waiting) for key, group in self._groups.items()}
        self._groups = {key: group for key, group in groups.items() if group}

    def _expire(self, entry: Entry) -> None:
        if entry.is_waiting and self.model.batching.queue(entry.level).delays:
            self._delay_entry(entry)
        elif entry.is_waiting:
            self.remove(entry)
            self.model.statistics.expire()
            entry.done(_time_is_over())
            entry.forget()

    def _delay_entry(self, entry: Entry) -> None:
        """Let a request wait behind all others."""
        later = Entry(self, entry.request, entry.done)
        later.rows, later.level, later.priority = entry.rows, entry.level, _DELAYED
        self.remove(entry)
        entry.later = later
        if entry.key is not None:
            later.key = (_DELAYED, *entry.key[1:])
        self._push(later)

    def _retry_after(self) -> float:
        """Return the seconds after which half of the queue is computed, as far as known."""
        return max(1.0, self.waiting / 2 / self._drain_per_second) if self._drain_per_second else 1.0

    def _turn(self) -> None:
        self._is_scheduled = False
        if self.running:
            return
        if self._plain:
            self._run_plain()
            return
        batch = self._take()
        if batch is None:
            if not self.waiting and self.on_idle is not None:
                self.on_idle()
            return
        self.running = len(batch)
        key = batch[0].key
        rows = sum(entry.rows for entry in batch)
        requests = [entry.request for entry in batch]
        runs, mean = self._times.get(key, (0, 0.0))
        begin = time.monotonic_ns()
        if runs >= _MEASURED_RUNS and mean < _INLINE_NS:
            self._finish(batch, begin, execute(self.model, requests, rows))
            return
        self._in_thread(lambda: self._run(batch, requests, rows, begin))

    def _in_thread(self, work: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = RunThread(f"sardonyx-serve-{self.model.name}")
        self._thread.start(work)

    def _run(self, batch: list[Entry], requests: list[InferRequest], rows: int, begin: int) -> None:
        outcome = execute(self.model, requests, rows)
        self._loop.call_soon_threadsafe(self._finish, batch, begin, outcome)

    def _take(self) -> list[Entry] | None:
        """Return the next batch: the first request by priority and arrival, and others of the same key."""
        leader = self._first()
        if leader is None:
            self._groups.clear()
            return None
        max_rows = self.model.max_rows if leader.key is not None else 1
        if max_rows > 1 and self._waits_for_more(leader, max_rows):
            return None
        heapq.heappop(self._heap)
        self.remove(leader)
        batch, rows = [leader], leader.rows
        group = self._groups.get(leader.key)
        is_ordered = self.model.batching.keeps_order
        while group:
            entry = group[0]
            if entry.is_waiting:
                if rows + entry.rows > max_rows or (is_ordered and entry is not self._first()):
                    break
                rows += entry.rows
                self.remove(entry)
                batch.append(entry)
            group.popleft()
        if group is not None and not group:
            del self._groups[leader.key]
        return batch

    def _first(self) -> Entry | None:
        """Return the waiting request that is first by priority and arrival."""
        heap = self._heap
        while heap and not heap[0][2].is_waiting:
            heapq.heappop(heap)
        return heap[0][2] if heap else None

    def _waits_for_more(self, leader: Entry, max_rows: int) -> bool:
        """Return True if the batch waits by option: for more rows, until the delay of its oldest request is over."""
        batching = self.model.batching
        if not batching.max_delay_us:
            return False
        rows = sum(entry.rows for entry in self._groups[leader.key] if entry.is_waiting)
        if rows >= max_rows or rows in batching.preferred_rows:
            return False
        rest = batching.max_delay_us * 1e-6 - (time.monotonic_ns() - leader.request.arrival) * 1e-9
        if rest <= 0:
            return False
        if self._delay is not None:
            self._delay.cancel()
        self._delay = self._loop.call_later(rest, self._turn)
        return True

    def _finish(self, batch: list[Entry], begin: int, outcome: Outcome) -> None:
        self.running = 0
        now = time.monotonic_ns()
        self._learn(batch[0].key, outcome.cpu_ns, now - begin, len(batch))
        statistics = self.model.statistics
        statistics.run(outcome.rows, len(batch), outcome.times)
        if self.waiting and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)
        for entry, result in zip(batch, outcome.results, strict=True):
            if entry.request.cancelled:
                continue
            entry.request.started, entry.request.ended = begin, now
            if isinstance(result, Answer):
                arrival = entry.request.arrival
                statistics.answered(now - arrival, begin - arrival)
                entry.done(result)
            else:
                self._fail(entry, result)
        if not self.waiting and self.on_idle is not None:
            self.on_idle()

    def _learn(self, key: Any, cpu_ns: int, ns: int, requests: int) -> None:
        runs, mean = self._times.get(key, (0, 0.0))
        if len(self._times) >= _KEYS and key not in self._times:
            self._times.clear()
        # The first run of a key prepares memory.
        self._times[key] = (runs + 1, cpu_ns if runs < 2 else mean + (cpu_ns - mean) / min(runs, 32))
        rate = requests / max(ns, 1) * 1e9
        self._drain_per_second = rate if not self._drain_per_second else 0.9 * self._drain_per_second + 0.1 * rate

    def _fail(self, entry: Entry, error: Exception) -> None:
        self.model.statistics.fail.add(time.monotonic_ns() - entry.request.arrival)
        entry.done(error)

    def close(self) -> None:
        """End the thread of the queue; the queue must be idle."""
        if self._thread is not None:
            self._thread.end()
            self._thread = None


def _time_is_over() -> RequestError:
    return RequestError("the time of the request was over before its computation.", kind="timeout")


def _ignored(result: Answer | Exception) -> None:
    """Receive the answer to a request whose caller has gone."""


def _repeat(requests: Sequence[PlainRequest]) -> None:
    for request in requests:
        if not request.is_cancelled:
            request.sink.repeat(request)
