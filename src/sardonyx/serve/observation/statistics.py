"""Counts and times of requests, in the form of the statistics extension, and histograms for metrics."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any


class Duration:
    """A count of events and the sum of their times.

    Attributes:
        count: The number of events.
        ns: The sum of their times in nanoseconds.
    """

    __slots__ = ("count", "ns")

    def __init__(self, count: int = 0, ns: int = 0) -> None:
        self.count = count
        self.ns = ns

    def add(self, ns: int, count: int = 1) -> None:
        """Count events."""
        self.count += count
        self.ns += ns

    def described(self) -> dict[str, int]:
        """Return count and time by name."""
        return {"count": self.count, "ns": self.ns}


class Histogram:
    """Counts of values by upper bound.

    Args:
        bounds: The upper bounds, ascending.

    Attributes:
        counts: The number of values up to every bound and above the one before; the last are above all bounds.
        sum: The sum of the values.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    def add_span(self, end: int, begins: Sequence[int]) -> None:
        """Count the times from some points to one later point, in seconds.

        Args:
            end: The later point, in nanoseconds.
            begins: The earlier points, ascending.
        """
        if len(begins) <= 1:
            for begin in begins:
                self.add((end - begin) * 1e-9)
            return
        first, last = (bisect_left(self.bounds, (end - begin) * 1e-9) for begin in (begins[0], begins[-1]))
        if first == last:
            self.counts[first] += len(begins)
            self.sum += (end * len(begins) - sum(begins)) * 1e-9
        else:
            for begin in begins:
                self.add((end - begin) * 1e-9)

    def quantile(self, share: float) -> float:
        """Return the upper bound of the bucket in which a quantile is; the largest bound for values above all."""
        rest = share * sum(self.counts)
        for bound, count in zip(self.bounds, self.counts, strict=False):
            rest -= count
            if rest <= 0 and count:
                return bound
        return self.bounds[-1] if any(self.counts) else 0.0


SECONDS = tuple(base * 10.0**power for power in range(-5, 2) for base in (1, 2.5, 5))
"""Bounds of histograms of times, in seconds: 10 µs to 50 s."""

ROWS = tuple(float(2**power) for power in range(13))
"""Bounds of histograms of rows."""

BYTES = tuple(float(4**power) for power in range(4, 15))
"""Bounds of histograms of bodies, in bytes."""

_BATCHES = 1024
"""Limit of numbers of rows with times of their own: a client chooses the rows of its requests."""


class Statistics:
    """Counts and times of one version of a model; written by the thread of the event loop alone.

    Attributes:
        success: Answered requests, from arrival to answer.
        fail: Failed requests.
        queue: Waiting times.
        compute_input: Times of merging requests.
        compute_infer: Times of runs.
        compute_output: Times of dividing results.
        cache_hit: Answers from the cache.
        cache_miss: Requests that the cache did not answer.
        rejected: Requests that the queue refused.
        cancelled: Requests that were never computed because the client had gone.
        expired: Requests that were never computed because their time was over.
        inferences: Computed rows.
        executions: Runs.
        last_ms: The time of the last request, in milliseconds since 1970.
        batches: Times of merging, running and dividing by number of rows, for the first 1,024 numbers of rows.
        request_seconds: Times from arrival to answer.
        queue_seconds: Waiting times.
        run_seconds: Times of runs.
        rows: Rows of runs.
    """

    def __init__(self) -> None:
        self.success = Duration()
        self.fail = Duration()
        self.queue = Duration()
        self.compute_input = Duration()
        self.compute_infer = Duration()
        self.compute_output = Duration()
        self.cache_hit = Duration()
        self.cache_miss = Duration()
        self.rejected = 0
        self.cancelled = 0
        self.expired = 0
        self.inferences = 0
        self.executions = 0
        self.last_ms = 0
        self.batches: dict[int, tuple[Duration, Duration, Duration]] = {}
        self.request_seconds = Histogram(SECONDS)
        self.queue_seconds = Histogram(SECONDS)
        self.run_seconds = Histogram(SECONDS)
        self.rows = Histogram(ROWS)

    def run(self, rows: int, requests: int, times: tuple[int, int, int]) -> None:
        """Count a run.

        Args:
            rows: Rows of the batch.
            requests: Requests of the batch.
            times: Nanoseconds of merging, running and dividing.
        """
        self.executions += 1
        self.inferences += rows
        self.last_ms = time.time_ns() // 1_000_000
        merging, running, dividing = times
        # As in Triton, every request of a batch counts the whole time of the batch.
        self.compute_input.add(merging * requests, requests)
        self.compute_infer.add(running * requests, requests)
        self.compute_output.add(dividing * requests, requests)
        self.run_seconds.add(running * 1e-9)
        self.rows.add(rows)
        batch = self.batches.get(rows)
        if batch is None:
            if len(self.batches) >= _BATCHES:
                return
            batch = self.batches[rows] = (Duration(), Duration(), Duration())
        batch[0].add(merging)
        batch[1].add(running)
        batch[2].add(dividing)

    def answered(self, total_ns: int, queue_ns: int) -> None:
        """Count an answered request."""
        self.success.count += 1
        self.success.ns += total_ns
        self.queue.count += 1
        self.queue.ns += queue_ns
        self.request_seconds.add(total_ns * 1e-9)
        self.queue_seconds.add(queue_ns * 1e-9)

    def answered_together(self, now: int, begin: int, arrivals: Sequence[int]) -> None:
        """Count the answered requests of one run.

        Args:
            now: The time of the answers, in nanoseconds of the monotonic clock.
            begin: The time at which the run began.
            arrivals: The times of arrival, ascending.
        """
        count, total = len(arrivals), sum(arrivals)
        self.success.add(now * count - total, count)
        self.queue.add(begin * count - total, count)
        self.request_seconds.add_span(now, arrivals)
        self.queue_seconds.add_span(begin, arrivals)

    def step(self, rows: int, requests: int, ns: int) -> None:
        """Count a run for requests of an ensemble, which are answered without waiting for this model.

        Args:
            rows: Rows of the batch.
            requests: Requests of the batch.
            ns: Nanoseconds of the run.
        """
        self.run(rows, requests, (0, ns, 0))
        self.success.add(ns * requests, requests)
        self.queue.add(0, requests)
        self.request_seconds.add(ns * 1e-9, requests)
        self.queue_seconds.add(0.0, requests)

    def reject(self) -> None:
        """Count a request refused by the queue."""
        self.rejected += 1

    def cancel(self) -> None:
        """Count a request never computed because the client had gone."""
        self.cancelled += 1

    def expire(self) -> None:
        """Count a request never computed because its time was over."""
        self.expired += 1

    def described(self) -> dict[str, Any]:
        """Return the statistics as the statistics extension names them: `fail` counts every request without answer."""
        names = ("queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
        unanswered = self.fail.count + self.rejected + self.cancelled + self.expired
        return {
            "last_inference": self.last_ms,
            "inference_count": self.inferences,
            "execution_count": self.executions,
            "inference_stats": {
                "success": self.success.described(), "fail": Duration(unanswered, self.fail.ns).described(),
                **{name: getattr(self, name).described() for name in names},
            },
            "response_stats": {},
            "batch_stats": [
                {
                    "batch_size": rows, "compute_input": parts[0].described(),
                    "compute_infer": parts[1].described(), "compute_output": parts[2].described(),
                }
                for rows, parts in sorted(self.batches.items())
            ],
            "memory_usage": [],
        }  # fmt: skip
