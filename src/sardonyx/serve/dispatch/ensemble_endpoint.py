"""An ensemble as requests reach it: fused, or step by step through the queues of the ensemble's models."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from sardonyx.errors import ModelFileError, RequestError
from sardonyx.serve.dispatch.answer_cache import AnswerCache
from sardonyx.serve.dispatch.batch import batch_key
from sardonyx.serve.dispatch.endpoint import Endpoint, answered_from, require_outputs
from sardonyx.serve.dispatch.fused import FusedEnsemble, Part
from sardonyx.serve.dispatch.queue import Entry, Queue
from sardonyx.serve.models.ensemble import EnsembleStep, ServedEnsemble
from sardonyx.serve.protocol.limits import Limits
from sardonyx.serve.protocol.requests import (
    REQUEST_BYTES,
    Answer,
    Cancellable,
    Done,
    InferRequest,
    Output,
    RequestedOutput,
    tensor_bytes,
)

if TYPE_CHECKING:
    AnyEndpoint: TypeAlias = "Endpoint | EnsembleEndpoint"

Find = Callable[[str, str], "AnyEndpoint"]
"""Returns the endpoint of a name and a version."""

Infer = Callable[["AnyEndpoint", InferRequest, Done], Cancellable | None]
"""Answers a request to an endpoint."""

_PLANS = 64
"""Limit of the remembered choices of outputs."""

_ATTEMPTS = 16
"""Limit of the repetitions of a request whose steps meet several revisions of one model."""


class RunningRequests:
    """The requests of an ensemble, with the attributes of a queue.

    Args:
        fused: The queue of the fused ensemble.

    Attributes:
        in_steps: Number of requests in steps.
        held: Number of ensembles that are computing a request with this one.
    """

    def __init__(self, fused: Queue) -> None:
        self.in_steps = 0
        self.held = 0
        self._fused = fused

    @property
    def waiting(self) -> int:
        """Number of waiting requests; requests in steps wait in the queues of the models."""
        return self._fused.waiting

    @property
    def bytes(self) -> int:
        """Bytes of waiting requests."""
        return self._fused.bytes

    @property
    def running(self) -> int:
        """Number of requests in computation."""
        return self.in_steps + self._fused.running

    @property
    def on_idle(self) -> Callable[[], None] | None:
        """Called when a retired ensemble has answered its last request."""
        return self._fused.on_idle

    @on_idle.setter
    def on_idle(self, call: Callable[[], None] | None) -> None:
        self._fused.on_idle = call

    def close(self) -> None:
        """End the thread of the fused ensemble."""
        self._fused.close()


class EnsembleEndpoint:
    """A served ensemble; used by the thread of the event loop alone.

    Args:
        model: The ensemble.
        limits: The limits of the server.
        loop: The event loop.
        find: Returns the endpoint of a model.
        infer: Answers a request to an endpoint.
        may_fuse: Returns True if a model computes steps without a request; None for no model.

    Attributes:
        model: The ensemble.
        queue: The requests, waiting or in computation.
        cache: Its remembered answers; None if answers are not remembered.
    """

    def __init__(
        self, model: ServedEnsemble, limits: Limits, loop: asyncio.AbstractEventLoop, find: Find, infer: Infer,
        may_fuse: Callable[[str], bool] | None,
    ) -> None:  # fmt: skip
        self.model = model
        self._fused = FusedEnsemble(model)
        self._fused_queue = Queue(self._fused, limits, loop)
        self._fused.on_long = self._fused_queue.forget_collectors
        self.queue = RunningRequests(self._fused_queue)
        self._may_fuse = may_fuse
        self._part_rows = 0
        self.cache = AnswerCache() if model.ensemble.cached else None
        self._limits = limits
        self._find = find
        self._infer = infer
        self._fitted: tuple[Any, ...] = ()
        self._needed: dict[tuple[str, ...], list[int]] = {}

    @property
    def is_stateful(self) -> bool:
        """True if requests belong to sequences."""
        return any(part.is_stateful for part in self.parts())

    def parts(self) -> list[AnyEndpoint]:
        """Return the endpoint of every step.

        Raises:
            RequestError: A model is not loaded, or an edit or load has changed its interface.
        """
        try:
            parts = [self._find(step.model, step.version) for step in self.model.ensemble.steps]
        except RequestError as error:
            raise RequestError(
                f"a model of the ensemble is missing: {error}", kind="unavailable", where=self.model.name,
                retry_after=error.retry_after,
            ) from error  # fmt: skip
        fitted = tuple((part.model, part.model.revision_number) for part in parts)
        if fitted != self._fitted:
            if self.cache is not None:
                # The revisions of other models may have the same sum.
                self.cache = AnswerCache()
            try:
                self.model.fit([part.model for part in parts])
            except ModelFileError as error:
                raise RequestError(
                    f"the ensemble does not fit its models any more: {error.problem}", kind="unavailable",
                    where=self.model.name,
                ) from error  # fmt: skip
            self._fitted = fitted
            self._fuse(parts)
        return parts

    def _fuse(self, parts: Sequence[AnyEndpoint]) -> None:
        """Let the steps be computed without requests, if no model needs them."""
        self._fused_queue.forget_collectors()
        may_fuse = self._may_fuse
        steps = [part.part if may_fuse is not None and may_fuse(part.model.name) else None for part in parts]
        fusible = [step for step in steps if step is not None]
        self._part_rows = min((limit for part in parts if (limit := part.model.row_limit)), default=0)
        if len(fusible) == len(parts):
            self._fused.fit(fusible, self.model.revision_number)
        else:
            self._fused.forget()

    @property
    def part(self) -> Part | None:
        """The ensemble as a step of another fused ensemble; None if its requests pass the queues of models."""
        try:
            self.parts()
        except RequestError:
            return None
        return None if self.cache is not None or self._fused.current is None else self._fused

    def plain_queue(self, request: InferRequest) -> Queue | None:
        """Return the queue of plain requests of the form of a request; None if such requests are not plain."""
        return self._fused_queue if self.cache is None and self._is_fused(request, batch_key(request)[1]) else None

    def _is_fused(self, request: InferRequest, rows: int) -> bool:
        """Return True if the fused steps give the answer to a request, in less time."""
        return (
            not (request.sequence or request.priority or request.timeout_us)
            and self._fused.current is not None
            and not 0 < self._part_rows < rows
            and (not request.outputs or len(self.needed(_names(request))) == len(self.model.ensemble.steps))
            and not self._fused.is_long
        )

    def needed(self, outputs: tuple[str, ...]) -> list[int]:
        """Return the indices of the steps that some outputs depend on."""
        needed = self._needed.get(outputs)
        if needed is None:
            if len(self._needed) >= _PLANS:
                self._needed.clear()
            needed = self._needed[outputs] = self.model.ensemble.needed(outputs)
        return needed

    def refit(self) -> None:
        """Use the models that are loaded now, and release others."""
        self._fitted = ()
        self.model.forget_parts()
        # Missing models are refused by each request.
        with contextlib.suppress(RequestError):
            self.parts()

    def infer(self, request: InferRequest, done: Done) -> Cancellable | None:
        """Check a request and compute it; see :meth:`.Endpoint.infer`.

        Raises:
            RequestError: The request does not fit the ensemble, or too many are being computed.
        """
        parts = self.parts()
        signature = self.model.signature
        if request.outputs:
            require_outputs(request, signature.outputs, self.model.name)
        signature.check(request.inputs)
        rows = self._rows(request)
        if self.cache is None or self.is_stateful:
            return self._compute(request, parts, rows, done)
        return answered_from(
            self.cache, self.model, request, self.model.revision_number, done,
            lambda later: self._compute(request, parts, rows, later),
        )  # fmt: skip

    def _compute(
        self, request: InferRequest, parts: Sequence[AnyEndpoint], rows: int, done: Done
    ) -> Cancellable | None:
        """Compute a checked request, fused if fused steps give the same answer."""
        key, merged_rows = batch_key(request)
        if not self._is_fused(request, merged_rows):
            return self._compute_in_steps(request, parts, rows, done)
        fused = _FusedRequest(self, request, done)
        fused.entry = self._fused_queue.submit(request, fused.finish, key, merged_rows)
        return fused

    def _compute_in_steps(
        self, request: InferRequest, parts: Sequence[AnyEndpoint], rows: int, done: Done
    ) -> Cancellable | None:
        if self.queue.running >= self._limits.queue_requests:
            self.model.statistics.reject()
            raise RequestError(
                f"{self.queue.running} requests wait for the models of the ensemble.", kind="exhausted",
                where=self.model.name, remedy="Repeat the request later.", retry_after=1.0,
            )  # fmt: skip
        return _EnsembleRequest(self, parts, request, rows, done, self._infer).begin()

    def repeat(self, request: InferRequest, done: Done) -> Cancellable | None:
        """Compute a request step by step whose fused computation failed.

        Raises:
            RequestError: The request does not fit the ensemble any more, or too many are being computed.
        """
        parts = self.parts()
        self.model.signature.check(request.inputs)
        return self._compute_in_steps(request, parts, self._rows(request), done)

    def _rows(self, request: InferRequest) -> int:
        limit = self.model.row_limit
        if not limit:
            return 1
        counts = {array.shape[0] for array in request.inputs.values() if array.ndim}
        if len(counts) != 1:
            raise RequestError(f"expected one number of rows, got {sorted(counts)}.", where=self.model.name)
        rows: int = counts.pop()
        if not 0 < rows <= limit:
            raise RequestError(f"expected 1 to {limit} rows, got {rows}.", where=self.model.name)
        return rows


def _names(request: InferRequest) -> tuple[str, ...]:
    return tuple([output.name for output in request.outputs])


class _FusedRequest:
    """A request to a fused ensemble, repeated step by step after a failure, so the answer names the step.

    Attributes:
        entry: The waiting request; None once answered.
    """

    __slots__ = ("_done", "_endpoint", "_request", "entry")

    def __init__(self, endpoint: EnsembleEndpoint, request: InferRequest, done: Done) -> None:
        self.entry: Entry | Cancellable | None = None
        self._endpoint = endpoint
        self._request = request
        self._done = done

    def finish(self, result: Answer | Exception) -> None:
        """Receive the answer."""
        self.entry = None
        if isinstance(result, Answer):
            self._done(result)
            return
        try:
            self.entry = self._endpoint.repeat(self._request, self._done)
        except Exception as error:
            self._endpoint.model.statistics.fail.add(time.monotonic_ns() - self._request.arrival)
            self._done(error)

    def cancel(self) -> None:
        """Forget the request, because the client has gone."""
        self._request.cancelled = True
        if self.entry is not None:
            self.entry.cancel()


class _EnsembleRequest:
    """One request on its way through the steps of an ensemble."""

    def __init__(
        self, endpoint: EnsembleEndpoint, parts: Sequence[AnyEndpoint], request: InferRequest, rows: int, done: Done,
        infer: Infer,
    ) -> None:  # fmt: skip
        ensemble = endpoint.model.ensemble
        self._endpoint = endpoint
        self._request = request
        self._rows = rows
        self._done = done
        self._infer = infer
        self._parts = parts
        self._outputs = _names(request) or tuple(ensemble.outputs)
        needed = endpoint.needed(self._outputs)
        self._steps = [ensemble.steps[index] for index in needed]
        self._part = [parts[index] for index in needed]
        self._inputs = dict(request.inputs)
        self._attempt = 0
        self._is_starting = False
        self._is_over = False
        self._begin_tensors()

    def _begin_tensors(self) -> None:
        self._tensors: dict[str, np.ndarray] = dict(self._inputs)
        self._uses = Counter([*self._outputs, *(tensor for step in self._steps for tensor in step.inputs.values())])
        self._waiting = list(range(len(self._steps)))
        self._active: dict[int, Cancellable | None] = {}
        self._revisions: dict[AnyEndpoint, int] = {}

    def begin(self) -> _EnsembleRequest | None:
        """Begin the first steps; return the request for cancellation, or None if it is answered already."""
        self._endpoint.queue.in_steps += 1
        # The models stay until the request is answered, even if they are unloaded meanwhile.
        for part in self._parts:
            part.queue.held += 1
        self._advance()
        return None if self._is_over else self

    def cancel(self) -> None:
        """Forget the request, because the client has gone."""
        if self._is_over:
            return
        self._request.cancelled = True
        self._endpoint.model.statistics.cancel()
        self._end()

    def _end(self) -> None:
        self._is_over = True
        active, self._active = self._active, {}
        self._tensors, self._inputs, self._waiting = {}, {}, []
        for entry in active.values():
            if entry is not None:
                entry.cancel()
        self._endpoint.queue.in_steps -= 1
        for queue in (self._endpoint.queue, *(part.queue for part in self._parts)):
            if queue is not self._endpoint.queue:
                queue.held -= 1
            if queue.on_idle is not None:
                queue.on_idle()

    def _advance(self) -> None:
        self._is_starting = True
        while not self._is_over and (index := self._next_ready()) is not None:
            self._start(index)
        self._is_starting = False
        if not self._is_over and not self._active and not self._waiting:
            self._complete()

    def _next_ready(self) -> int | None:
        for index in self._waiting:
            if all(tensor in self._tensors for tensor in self._steps[index].inputs.values()):
                self._waiting.remove(index)
                return index
        return None

    def _start(self, index: int) -> None:
        step, request = self._steps[index], self._request
        feeds = {inner: self._tensors[outer] for inner, outer in step.inputs.items()}
        self._forget_used(step)
        try:
            inner = InferRequest(
                step.model, step.version, request.id, feeds, [RequestedOutput(name) for name in step.outputs],
                priority=request.priority, timeout_us=self._rest_us(), sequence=request.sequence,
                size=REQUEST_BYTES + sum(map(tensor_bytes, feeds.values())), client=request.client, trace=request.trace,
            )  # fmt: skip
            self._active[index] = None
            entry = self._infer(self._part[index], inner, functools.partial(self._finish, self._attempt, index))
        except Exception as error:
            self._fail(index, error)
            return
        if index in self._active:
            self._active[index] = entry

    def _rest_us(self) -> int:
        """Return the microseconds that the request may still wait; 0 for no limit.

        Raises:
            RequestError: The time is over.
        """
        if not self._request.timeout_us:
            return 0
        rest = self._request.timeout_us - (time.monotonic_ns() - self._request.arrival) // 1000
        if rest <= 0:
            raise RequestError("the time of the request was over before its computation.", kind="timeout")
        return rest

    def _forget_used(self, step: EnsembleStep) -> None:
        for tensor in step.inputs.values():
            self._uses[tensor] -= 1
            if not self._uses[tensor]:
                self._tensors.pop(tensor, None)

    def _finish(self, attempt: int, index: int, result: Answer | Exception) -> None:
        if self._is_over or attempt != self._attempt:
            return
        self._active.pop(index, None)
        step = self._steps[index]
        if not isinstance(result, Answer):
            self._fail(index, result)
            return
        part = self._part[index]
        if self._revisions.setdefault(part, result.revision) != result.revision and not self._endpoint.is_stateful:
            self._repeat(index)
            return
        for output in result.outputs:
            tensor = step.outputs[output.name]
            if self._uses[tensor]:
                self._tensors[tensor] = output.array
        if not self._is_starting:
            self._advance()

    def _repeat(self, index: int) -> None:
        """Begin anew, because an edit came between two steps of one model."""
        if self._attempt == _ATTEMPTS:
            self._fail(
                index,
                RequestError(
                    f"edits changed the model during {_ATTEMPTS + 1} attempts.",
                    kind="unavailable",
                    retry_after=1.0,
                    remedy="Repeat the request later.",
                ),
            )
            return
        self._attempt += 1
        for entry in self._active.values():
            if entry is not None:
                entry.cancel()
        self._begin_tensors()
        if not self._is_starting:
            self._advance()

    def _complete(self) -> None:
        request, model = self._request, self._endpoint.model
        requested = {output.name: output for output in request.outputs}
        outputs = [Output(name, self._tensors[name], requested.get(name)) for name in self._outputs]
        parts = set(self._parts)
        revision = sum(self._revisions.get(part, part.model.revision_number) for part in parts)
        self._end()
        now = time.monotonic_ns()
        model.statistics.run(self._rows, 1, (0, now - request.arrival, 0))
        model.statistics.answered(now - request.arrival, 0)
        self._done(Answer(model.name, model.version, request.id, outputs, revision))

    def _fail(self, index: int, error: Exception) -> None:
        step = self._steps[index]
        statistics = self._endpoint.model.statistics
        if isinstance(error, RequestError):
            # The client chooses the inputs of the first steps, and the sequence; a model computed all else.
            is_chosen = set(step.inputs.values()) <= set(self._endpoint.model.ensemble.inputs)
            is_chosen |= self._part[index].is_stateful
            kind = "no_result" if error.kind == "invalid" and not is_chosen else error.kind
            where = f"{step.model}: {error.where}" if error.where not in ("", step.model) else step.model
            error = RequestError(
                error.problem, kind=kind, where=where, remedy=error.remedy, retry_after=error.retry_after
            )
        self._end()
        statistics.fail.add(time.monotonic_ns() - self._request.arrival)
        self._done(error)
