"""A version of a model as requests reach it: checks, sequences, remembered answers, queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container
from typing import TypeVar

from sardonyx.errors import RequestError
from sardonyx.serve.dispatch.answer_cache import AnswerCache
from sardonyx.serve.dispatch.batch import batch_key, merging_key
from sardonyx.serve.dispatch.fused import Part
from sardonyx.serve.dispatch.queue import Entry, Queue
from sardonyx.serve.dispatch.sequences import Sequences, Step
from sardonyx.serve.models.model import ServedModel
from sardonyx.serve.models.served import Served
from sardonyx.serve.protocol.datatypes import shortened
from sardonyx.serve.protocol.limits import Limits
from sardonyx.serve.protocol.requests import Answer, Done, InferRequest


class Endpoint:
    """A served version with its queue; used by the thread of the event loop alone.

    Args:
        model: The version.
        limits: The limits of the server.
        loop: The event loop.
        allow_inner: True if requests may name inner tensors as outputs.

    Attributes:
        model: The version.
        queue: Its queue.
        sequences: Its open sequences; None for a model without state.
        cache: Its remembered answers; None if answers are not remembered.
    """

    def __init__(self, model: ServedModel, limits: Limits, loop: asyncio.AbstractEventLoop, allow_inner: bool) -> None:
        self.model = model
        self.queue = Queue(model, limits, loop)
        self.sequences = Sequences(model, limits, self._submit) if model.is_stateful else None
        self.cache = AnswerCache() if model.model.cached and not model.is_stateful else None
        self._limits = limits
        self._allow_inner = allow_inner

    @property
    def is_special(self) -> bool:
        """True if answers depend on more than the inputs, are remembered, or have other sizes than the model's."""
        return self.sequences is not None or self.cache is not None or bool(self.model.reshapings)

    @property
    def is_stateful(self) -> bool:
        """True if requests belong to sequences."""
        return self.sequences is not None

    def plain_queue(self, request: InferRequest) -> Queue | None:
        """Return the queue of plain requests of the form of a request; None if such requests are not plain."""
        return None if self.is_special else self.queue

    @property
    def part(self) -> Part | None:
        """The model as a step of a fused ensemble; None if its requests need its own queue."""
        is_fusible = not self.is_special and self.model.batching.is_immediate and not self.model.revision.has_loops
        return self.model if is_fusible else None

    def infer(self, request: InferRequest, done: Done) -> Entry | Step | None:
        """Check a request and compute it; the request waits if the model is busy.

        Args:
            request: The request.
            done: Receives the answer or the error, in the thread of the event loop.

        Returns:
            The waiting request, for cancellation; None if it is answered already.

        Raises:
            RequestError: The request does not fit the model, or the queue is full.
        """
        revision = self.model.revision
        interface = revision.interface
        if request.outputs:
            require_outputs(
                request, interface.outputs, self.model.name, hidden=self.model.hidden, allow_inner=self._allow_inner
            )
        if self.sequences is not None:
            return self.sequences.submit(request, interface, done)
        key, rows = batch_key(request)
        revision.check(key, request.inputs)
        most = self.model.batching.most_rows
        if most and rows > most:
            raise RequestError(f"expected at most {most} rows, got {rows}.", where=self.model.name)
        if self.cache is None:
            return self.queue.submit(request, done, merging_key(key, self.model.batching), rows)
        return answered_from(
            self.cache, self.model, request, revision.number, done, lambda later: self._submit(request, later)
        )

    def _submit(self, request: InferRequest, done: Done) -> Entry:
        key, rows = batch_key(request)
        return self.queue.submit(request, done, merging_key(key, self.model.batching), rows)


def require_outputs(
    request: InferRequest, known: Container[str], where: str, *, hidden: Container[str] = (), allow_inner: bool = False
) -> None:
    """Check the names of requested outputs.

    Args:
        request: The request.
        known: The outputs of the model.
        where: The name of the model.
        hidden: Outputs that answers do not contain.
        allow_inner: True if requests may name inner tensors.

    Raises:
        RequestError: An output is unknown, or is requested twice.
    """
    names = set()
    for output in request.outputs:
        if output.name in names:
            raise RequestError("the output is requested twice.", where=output.name[:64])
        names.add(output.name)
        if output.name in hidden or (output.name not in known and not allow_inner):
            raise RequestError(f"unknown output {shortened(output.name)}.", where=where)


T = TypeVar("T")


def answered_from(
    cache: AnswerCache, model: Served, request: InferRequest, revision: int, done: Done, compute: Callable[[Done], T]
) -> T | None:
    """Answer a request from the cache, or compute and remember the answer.

    Args:
        cache: The remembered answers.
        model: The model, whose statistics count.
        request: The request.
        revision: The number of the current revision.
        done: Receives the answer or the error.
        compute: Computes the answer.

    Returns:
        The result of `compute`; None if the cache has the answer.
    """
    begin = time.monotonic_ns()
    key = cache.key(request)
    answer = cache.get(key, request, revision)
    statistics = model.statistics
    now = time.monotonic_ns()
    if answer is not None:
        statistics.cache_hit.add(now - begin)
        statistics.answered(now - request.arrival, 0)
        done(answer)
        return None
    statistics.cache_miss.add(now - begin)

    def remember(result: Answer | Exception) -> None:
        if isinstance(result, Answer):
            cache.put(key, result)
        done(result)

    return compute(remember)
