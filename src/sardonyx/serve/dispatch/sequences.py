"""Sequences: requests of one client in order, with tensors that the server carries from one to the next."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np

from sardonyx.errors import RequestError
from sardonyx.serve.models.interface import Interface
from sardonyx.serve.models.model import Control, ServedModel, State
from sardonyx.serve.protocol.limits import Limits
from sardonyx.serve.protocol.requests import Answer, Done, InferRequest, Output, RequestedOutput, SequencePosition

Submit = Callable[[InferRequest, Done], Any]


class Step:
    """A request of a sequence, for cancellation when its client has gone.

    Args:
        request: The request.
        done: Receives the answer or the error.

    Attributes:
        request: As passed.
        done: As passed.
        abandon: Ends the wait in the queue of the model; None while the request waits for its sequence, and after.
    """

    __slots__ = ("abandon", "done", "request")

    def __init__(self, request: InferRequest, done: Done) -> None:
        self.request = request
        self.done = done
        self.abandon: Callable[[], None] | None = None

    def cancel(self) -> None:
        """Forget the request, because the client has gone; a request that still waits is never computed."""
        self.request.cancelled = True
        self.request.inputs = {}
        if self.abandon is not None:
            self.abandon()


class _Open:
    """An open sequence; it is over after its last request, unless a request that waits begins it again."""

    __slots__ = ("is_over", "is_running", "states", "used", "waiting")

    def __init__(self) -> None:
        self.states: dict[str, np.ndarray] = {}
        self.waiting: deque[Step] = deque()
        self.is_running = False
        self.is_over = False
        self.used = time.monotonic()


class Sequences:
    """The open sequences of a model; used by the thread of the event loop alone.

    Requests of one sequence are computed one after another; requests of different sequences are merged.

    Args:
        model: The model.
        limits: The limits of the server.
        submit: Lets a request wait in the queue of the model.
    """

    def __init__(self, model: ServedModel, limits: Limits, submit: Submit) -> None:
        self._model = model
        self._limits = limits
        self._submit = submit
        self._open: OrderedDict[int | str, _Open] = OrderedDict()
        self._waiting = 0
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def hidden(self) -> frozenset[str]:
        """Inputs that the server feeds, and outputs that answers do not contain."""
        return self._model.hidden

    def submit(self, request: InferRequest, interface: Interface, done: Done) -> Step:
        """Compute a request after the earlier requests of its sequence; return it for cancellation.

        Raises:
            RequestError: The request names no sequence, or a sequence that is not open, or too many are open.
        """
        position = request.sequence
        if position is None or position.id in (0, ""):
            raise RequestError("expected a sequence_id other than 0.", where=self._model.name)
        self._end_idle()
        # Checked first: a malformed request neither begins a sequence nor replaces an open one.
        for name in self.hidden & set(request.inputs):
            raise RequestError("the server feeds this input.", where=name)
        interface.check(request.inputs, self.hidden)
        self._controls(request, position, interface)
        sequence = self._open.get(position.id)
        if position.is_start:
            sequence = self._start(position, sequence)
        if sequence is None:
            raise _not_open(position)
        sequence.used = time.monotonic()
        self._open.move_to_end(position.id)
        step = Step(request, done)
        if sequence.is_running or sequence.waiting:
            self._require_room(request)
            sequence.waiting.append(step)
            self._waiting += 1
            self._bytes += request.size
        else:
            self._run(sequence, step, interface)
        return step

    def _start(self, position: SequencePosition, before: _Open | None) -> _Open:
        if before is None and len(self._open) >= self._limits.sequences:
            most = self._limits.sequences
            raise RequestError(f"{most} sequences are open.", kind="exhausted", where=self._model.name, retry_after=1.0)
        if before is not None and (before.is_running or before.waiting):
            return before
        sequence = self._open[position.id] = _Open()
        return sequence

    def _require_room(self, request: InferRequest) -> None:
        """Refuse a request beyond the limits of the queue, which does not count those that wait for a sequence."""
        limits = self._limits
        most = self._model.batching.queue_requests or limits.queue_requests
        if self._waiting >= most or self._bytes + request.size > limits.queue_bytes:
            self._model.statistics.reject()
            raise RequestError(
                f"{self._waiting} requests wait for their sequences.", kind="exhausted", where=self._model.name,
                remedy="Repeat the request later.", retry_after=1.0,
            )  # fmt: skip

    def _end_idle(self) -> None:
        oldest = time.monotonic() - self._model.model.idle_seconds
        while self._open:
            key, sequence = next(iter(self._open.items()))
            if sequence.used > oldest or sequence.is_running:
                return
            del self._open[key]

    def _run(self, sequence: _Open, step: Step, interface: Interface) -> None:
        request = step.request
        position = request.sequence
        assert position is not None
        if sequence.is_over and not position.is_start:
            raise _not_open(position)
        if position.is_start:
            sequence.states.clear()
            sequence.is_over = False
        rows = _rows(request)
        feeds = {**request.inputs, **self._controls(request, position, interface)}
        for state in self._model.model.states:
            feeds[state.input] = self._state(sequence, state, interface, rows)
        interface.check(feeds)
        inner = InferRequest(
            request.model, request.version, request.id, feeds, self._outputs(request, interface),
            priority=request.priority, timeout_us=request.timeout_us, size=request.size, arrival=request.arrival,
        )  # fmt: skip
        sequence.is_running = True

        def finish(result: Answer | Exception) -> None:
            step.abandon = None
            if isinstance(result, Answer):
                result = self._split(sequence, request, result)
            sequence.is_running = False
            sequence.is_over = position.is_end
            self._forget_if_over(position, sequence)
            step.done(result)
            self._run_later(sequence)
            self._forget_if_over(position, sequence)

        def abandon() -> None:
            if not entry.cancel():
                return
            step.abandon = None
            sequence.is_running = False
            # A sequence without its first request is not open.
            sequence.is_over = position.is_end or position.is_start
            self._run_later(sequence)
            self._forget_if_over(position, sequence)

        try:
            entry = self._submit(inner, finish)
        except BaseException:
            sequence.is_running = False
            raise
        step.abandon = abandon

    def _run_later(self, sequence: _Open) -> None:
        """Begin the next request that waits for a sequence."""
        while sequence.waiting and not sequence.is_running:
            later = sequence.waiting.popleft()
            self._waiting -= 1
            self._bytes -= later.request.size
            if later.request.cancelled:
                self._model.statistics.cancel()
                continue
            try:
                self._run(sequence, later, self._model.revision.interface)
            except Exception as error:
                later.done(error)

    def _forget_if_over(self, position: SequencePosition, sequence: _Open) -> None:
        is_used = sequence.is_running or sequence.waiting
        if sequence.is_over and not is_used and self._open.get(position.id) is sequence:
            del self._open[position.id]

    def _controls(
        self, request: InferRequest, position: SequencePosition, interface: Interface
    ) -> dict[str, np.ndarray]:
        rows = _rows(request)
        return {control.input: _control(control, position, interface, rows) for control in self._model.model.controls}

    def _outputs(self, request: InferRequest, interface: Interface) -> list[RequestedOutput]:
        states = [RequestedOutput(state.output) for state in self._model.model.states]
        if request.outputs:
            return [*request.outputs, *states]
        visible = [RequestedOutput(name) for name in interface.outputs if name not in self.hidden]
        return [*visible, *states]

    def _split(self, sequence: _Open, request: InferRequest, answer: Answer) -> Answer:
        by_output = {state.output: state.input for state in self._model.model.states}
        outputs = []
        for output in answer.outputs:
            if output.name in by_output:
                sequence.states[by_output[output.name]] = output.array.copy()
            else:
                outputs.append(Output(output.name, output.array, output.requested if request.outputs else None))
        return Answer(answer.model, answer.version, request.id, outputs, answer.revision)

    def _state(self, sequence: _Open, state: State, interface: Interface, rows: int) -> np.ndarray:
        tensor = interface.inputs.get(state.input)
        if tensor is None or state.output not in interface.outputs:
            raise RequestError("an edit removed the state of the sequence.", kind="no_result", where=state.input)
        stored = sequence.states.get(state.input)
        sizes = tensor.sizes
        if stored is None:
            initial = state.initial
            if initial is None or initial.ndim == len(sizes):
                shape = [rows if index == 0 and size < 0 else max(size, 1) for index, size in enumerate(sizes)]
                return np.zeros(shape, tensor.datatype.dtype)
            return np.repeat(initial[None], rows, axis=0)
        if stored.ndim != len(sizes) or any(s >= 0 and s != n for s, n in zip(sizes, stored.shape, strict=True)):
            raise RequestError(
                "an edit changed the sizes of the state: the sequence ends.", kind="no_result", where=state.input
            )
        return stored


def _rows(request: InferRequest) -> int:
    return next((array.shape[0] for array in request.inputs.values() if array.ndim), 1)


def _not_open(position: SequencePosition) -> RequestError:
    return RequestError(
        "the sequence is not open.", where=f"sequence {position.id}", remedy="Begin with sequence_start."
    )


def _control(control: Control, position: SequencePosition, interface: Interface, rows: int) -> np.ndarray:
    tensor = interface.inputs.get(control.input)
    if tensor is None:
        raise RequestError("an edit removed the control input.", kind="no_result", where=control.input)
    shape = [rows if index == 0 and size < 0 else max(size, 1) for index, size in enumerate(tensor.sizes)]
    if control.kind == "corrid":
        value: Any = str(position.id) if tensor.datatype.name == "BYTES" else position.id
        if isinstance(value, str) and tensor.datatype.name != "BYTES":
            raise RequestError("the model expects a number as sequence_id.", where="sequence_id")
        try:
            return np.full(shape, value, tensor.datatype.dtype)
        except OverflowError as error:
            raise RequestError(
                f"the model expects a sequence_id of type {tensor.datatype.name}, got {value}.", where="sequence_id"
            ) from error
    applies = {"start": position.is_start, "end": position.is_end, "ready": True}[control.kind]
    return np.full(shape, control.true if applies else control.false, tensor.datatype.dtype)
