"""An ensemble as one computation: the steps of a batch run one after another, without a request for each.

A queue computes requests of a fused ensemble like requests of a model: rows merge, short runs are computed by the
event loop, and requests of equal form are plain. A step gets the arrays of the steps before without a copy. All
steps use revisions fitted together by the event loop; if an edit replaces one, runs fail, and the caller
repeats their requests step by step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from sardonyx.errors import RequestError, SardonyxError
from sardonyx.serve.models.batching import Batching
from sardonyx.serve.models.ensemble import EnsembleStep, ServedEnsemble
from sardonyx.serve.models.interface import Signature
from sardonyx.serve.models.served import Computation
from sardonyx.serve.observation.statistics import Statistics

_SHAPES = 4096
"""Limit of the remembered shapes of a step."""

_LONG_NS = 300_000
"""Nanoseconds of a request above which steps pay as requests of their own: a step costs the event loop about 40 µs,
and steps of several requests run at the same time. `benchmarks/serve.py --ensemble`, Zen 5."""

_SAMPLES = 16
"""Runs whose mean decides."""

_REST = 1024
"""Requests in steps before the time of a run is measured again."""


class Part(Protocol):
    """A model or fused ensemble as a step."""

    statistics: Statistics

    @property
    def revision(self) -> Computation:
        """The revision that answers runs that begin now."""

    @property
    def max_rows(self) -> int:
        """The largest number of rows of a batch."""


class _Step:
    """A step with the indices of the used outputs."""

    __slots__ = ("accepted", "freed", "inputs", "outputs", "revision")

    def __init__(self, step: EnsembleStep, revision: Computation, freed: Sequence[str]) -> None:
        names = list(revision.interface.outputs)
        self.revision = revision
        self.inputs = list(step.inputs.items())
        self.outputs = [(names.index(inner), outer) for inner, outer in step.outputs.items()]
        self.freed = freed
        self.accepted: set[Any] = set()

    def run(self, tensors: dict[str, np.ndarray]) -> None:
        """Add the outputs of this step to the tensors, and drop tensors without a later use."""
        feeds = {inner: tensors[outer] for inner, outer in self.inputs}
        shapes = tuple([array.shape for array in feeds.values()])
        if shapes not in self.accepted:
            self.revision.interface.check(feeds)
            if len(self.accepted) >= _SHAPES:
                self.accepted.clear()
            self.accepted.add(shapes)
        results = self.revision.run(feeds)
        for name in self.freed:
            del tensors[name]
        for index, name in self.outputs:
            tensors[name] = results[index]


_Run: TypeAlias = "tuple[FusedRevision, int, list[int]]"


class FusedRevision:
    """The revisions of all models of an ensemble.

    Args:
        model: The ensemble, fitted to the models.
        parts: The model of every step.
        number: The number of the revision of the ensemble.
        runs: Takes the runs with a result: revision, rows, and nanoseconds of every step in order.

    Attributes:
        number: As passed.
        interface: The inputs and outputs.
        parts: As passed.
        revisions: The revision of every step.
        order: The indices of the steps in the order of their computation.
    """

    def __init__(self, model: ServedEnsemble, parts: Sequence[Part], number: int, runs: list[_Run]) -> None:
        self.number = number
        self.interface: Signature = model.signature
        self.parts = tuple(parts)
        self.revisions = [part.revision for part in parts]
        self._runs = runs
        self.order = _order(model)
        self._outputs = list(model.ensemble.outputs)
        steps = model.ensemble.steps
        last = {tensor: index for index in self.order for tensor in steps[index].inputs.values()}
        self._steps = [
            _Step(
                steps[index], self.revisions[index],
                [t for t in dict.fromkeys(steps[index].inputs.values()) if last[t] == index and t not in self._outputs],
            )
            for index in self.order
        ]  # fmt: skip

    @property
    def is_current(self) -> bool:
        """True if no edit has replaced a revision."""
        try:
            return all(part.revision is revision for part, revision in zip(self.parts, self.revisions, strict=True))
        except SardonyxError:  # An edit gave a model an interface that cannot be served.
            return False

    def run(self, feeds: Mapping[str, np.ndarray]) -> list[Any]:
        """Run all steps once; return all outputs in order."""
        tensors = dict(feeds)
        times = []
        begin = time.perf_counter_ns()
        for step in self._steps:
            step.run(tensors)
            end = time.perf_counter_ns()
            times.append(end - begin)
            begin = end
        self._runs.append((self, _rows(feeds), times))
        return [tensors[name] for name in self._outputs]


def _rows(feeds: Mapping[str, np.ndarray]) -> int:
    array = next(iter(feeds.values()))
    return len(array) if array.ndim else 1


def _order(model: ServedEnsemble) -> list[int]:
    """Return the indices of the steps in an order of computation."""
    computed, waiting, order = set(model.ensemble.inputs), list(enumerate(model.ensemble.steps)), []
    while waiting:
        ready = [(index, step) for index, step in waiting if computed.issuperset(step.inputs.values())]
        order += [index for index, _ in ready]
        computed.update(tensor for _, step in ready for tensor in step.outputs.values())
        waiting = [entry for entry in waiting if entry not in ready]
    return order


class FusedStatistics(Statistics):
    """Counts the runs of a fused ensemble: in the statistics of the ensemble and of its models.

    Failures are not counted here: failed requests are repeated step by step.

    Args:
        fused: The ensemble.
        own: The statistics of the ensemble.
        counts_rows: True if every row of the ensemble is an inference, else every request.
    """

    def __init__(self, fused: FusedEnsemble, own: Statistics, counts_rows: bool) -> None:
        self._fused = fused
        self._own = own
        self._counts_rows = counts_rows
        super().__init__()

    def run(self, rows: int, requests: int, times: tuple[int, int, int]) -> None:
        """Count a run."""
        for part, count, ns in self._fused.ran(rows, requests, times[1]):
            self._own.run(part if self._counts_rows else count, count, times if part == rows else (0, ns, 0))

    def answered(self, total_ns: int, queue_ns: int) -> None:
        """Count an answered request."""
        self._own.answered(total_ns, queue_ns)

    def answered_together(self, now: int, begin: int, arrivals: Sequence[int]) -> None:
        """Count the answered requests of one run."""
        self._own.answered_together(now, begin, arrivals)

    def reject(self) -> None:
        """Count a request refused by the queue."""
        self._own.reject()

    def cancel(self) -> None:
        """Count a request never computed because the client had gone."""
        self._own.cancel()


class FusedEnsemble:
    """An ensemble whose steps one queue computes; used by the event loop but for `revision`.

    Args:
        model: The ensemble.

    Attributes:
        name: The name of the ensemble.
        version: The number of the version, as text.
        statistics: Counts runs and answers.
        batching: Rows merge if all models merge them.
        on_long: Called when steps begin to pay as requests of their own.
    """

    def __init__(self, model: ServedEnsemble) -> None:
        self.name = model.name
        self.version = model.version
        self.statistics: Statistics = FusedStatistics(self, model.statistics, model.row_limit > 0)
        self.batching = Batching(mode="force")
        self._model = model
        self._revision: FusedRevision | None = None
        self._runs: list[_Run] = []
        self.on_long: Callable[[], None] | None = None
        self._mean_ns = 0.0
        self._rest = 0

    def fit(self, parts: Sequence[Part], number: int) -> None:
        """Compute with other models or revisions from now on."""
        self._revision = FusedRevision(self._model, parts, number, self._runs)

    def forget(self) -> None:
        """Compute nothing more: runs fail."""
        self._revision = None

    @property
    def current(self) -> FusedRevision | None:
        """The revision; None if an edit has replaced one of a model."""
        revision = self._revision
        return revision if revision is not None and revision.is_current else None

    @property
    def revision(self) -> FusedRevision:
        """The revision that answers runs that begin now.

        Raises:
            RequestError: An edit has replaced a revision of a model.
        """
        revision = self.current
        if revision is None:
            raise RequestError("an edit has changed a model of the ensemble.", kind="unavailable", where=self.name)
        return revision

    @property
    def max_rows(self) -> int:
        """The largest number of rows of a batch: the smallest of all models."""
        revision = self._revision
        return 1 if revision is None else min(part.max_rows for part in revision.parts)

    @property
    def is_long(self) -> bool:
        """True if steps pay as requests of their own; every request asks once."""
        if self._rest:
            self._rest -= 1
        return self._rest > 0

    def ran(self, rows: int, requests: int, ns: int) -> list[tuple[int, int, int]]:
        """Count runs in the statistics of the models, and remember the time of a request.

        Args:
            rows: Rows of all requests.
            requests: Number of requests: of one run, or of a run each after a failure.
            ns: Nanoseconds of all runs.

        Returns:
            Rows, requests and nanoseconds of every run with a result.
        """
        counted = []
        # Runs whose results were not used may precede.
        rest = rows
        while self._runs and rest > 0:
            revision, part, times = self._runs.pop()
            count = requests if part == rows else 1
            for index, step in zip(revision.order, times, strict=True):
                revision.parts[index].statistics.step(part, count, step)
            counted.append((part, count, sum(times)))
            rest -= part
        self._runs.clear()
        # The first runs of a size prepare memory: one of them must not decide.
        self._mean_ns += (min(ns / requests, 4 * _LONG_NS) - self._mean_ns) / _SAMPLES
        if self._mean_ns > _LONG_NS:
            self._mean_ns, self._rest = 0.0, _REST
            if self.on_long is not None:
                self.on_long()
        return counted
