"""Models as users hand them to a server, and as the server holds them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sardonyx.base import background_threads
from sardonyx.base.thread_priority import lower_priority
from sardonyx.errors import ModelFileError, OptionError, UnsupportedError
from sardonyx.runtime.session import Session
from sardonyx.runtime.snapshot import Snapshot
from sardonyx.serve.models.batching import Batching
from sardonyx.serve.models.concatenation import Concatenation, Feeds
from sardonyx.serve.models.interface import Interface, Tensor
from sardonyx.serve.models.reshaping import Reshaping
from sardonyx.serve.models.served import Served
from sardonyx.serve.models.soundness import PENDING, Verdict, batch_axis_refusal, prove

PLATFORM = "sardonyx_onnx"
"""The platform of models, as the metadata name it."""

_SETTLE_SECONDS = 0.2
"""Time without an edit before a revision is proved, so that a series of edits is proved once."""

_ACCEPTED_SIZES = 4096
"""Limit of remembered sizes of calls that ran within the limits."""


@dataclass(frozen=True)
class State:
    """A tensor that a sequence carries from one request to the next.

    Attributes:
        input: The input that receives the state.
        output: The output that holds the next state; answers do not contain this output.
        initial: The state of a new sequence, without the batch axis; None for zeros of the declared sizes.
    """

    input: str
    output: str
    initial: np.ndarray | None = None


@dataclass(frozen=True)
class Control:
    """An input that tells the model the position of a request in its sequence.

    Attributes:
        input: The input.
        kind: ``"start"``, ``"end"``, ``"ready"`` or ``"corrid"`` (the id of the sequence).
        false: The value where the kind does not apply.
        true: The value where it applies.
    """

    input: str
    kind: str
    false: float = 0
    true: float = 1


@dataclass(frozen=True)
class Model:
    """A model for a server: a session and the options of serving.

    Attributes:
        session: The session; edits of the session answer from the next request on.
        batching: Options of batching and queueing.
        version: The number of the version.
        labels: Names of classes, by output.
        states: Tensors that sequences carry on.
        controls: Inputs that tell the position in a sequence.
        idle_seconds: Time after which an idle sequence ends.
        cached: True if answers to equal requests are remembered.
        warmup: Inputs of runs before the model is ready.
        config: The parsed ``config.pbtxt``, as the protocol writes it; None without one.
        declared: Sizes that requests must have where the model leaves them open, by input or output; -1 for any.
        reshapings: Inputs and outputs whose sizes in requests and answers differ from those in the model.
    """

    session: Session
    batching: Batching = field(default_factory=Batching)
    version: int = 1
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    states: Sequence[State] = ()
    controls: Sequence[Control] = ()
    idle_seconds: float = 60.0
    cached: bool = False
    warmup: Sequence[Mapping[str, np.ndarray]] = ()
    config: Mapping[str, Any] | None = None
    declared: Mapping[str, Sequence[int]] = field(default_factory=dict)
    reshapings: Mapping[str, Reshaping] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.batching.concatenation is not None and (self.states or self.controls):
            raise OptionError("a model with sequences cannot have concatenated inputs.", where="batching.concatenation")
        if self.batching.concatenation is not None and self.reshapings:
            raise OptionError("concatenated inputs cannot be reshaped.", where="batching.concatenation")


class Revision:
    """The facts of one revision that requests need.

    Args:
        session: The session.
        snapshot: The revision.
        concatenation: The inputs that runs get concatenated.
        declared: Sizes that requests must have; see :class:`.Interface`.

    Attributes:
        number: The number of the revision.
        snapshot: The revision.
        interface: Its inputs and outputs.
        verdict: The verdict on batching.
        has_loops: True if the time and memory of a run may depend on values.
        concatenation: The inputs that runs get concatenated.
        accepted: The sizes of calls that ran within the limits.
        checked: Batch keys of requests that fit the interface, for models whose first axis is open.

    Raises:
        UnsupportedError: An input or output is not a tensor.
    """

    def __init__(
        self,
        session: Session,
        snapshot: Snapshot,
        concatenation: Concatenation | None = None,
        declared: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.number = snapshot.revision
        self.snapshot = snapshot
        self.interface = Interface(snapshot, concatenation, declared)
        self.concatenation = concatenation
        self.has_loops: bool = snapshot.remembered("loops", lambda: _has_loops(snapshot))
        self.accepted: set[Any] = set()
        self.checked: set[Any] = set()
        refusal = batch_axis_refusal(self.interface)
        self.verdict = Verdict(False, refusal) if refusal else PENDING

    def check(self, key: Any, feeds: Mapping[str, np.ndarray]) -> None:
        """Check the inputs of a request, unless a request of the same batch key was checked.

        Raises:
            RequestError: An input is missing, unknown or of another form.
        """
        if key is not None and key in self.checked:
            return
        self.interface.check(feeds)
        if key is not None and self.verdict.is_sound:
            if len(self.checked) >= _ACCEPTED_SIZES:
                self.checked.clear()
            self.checked.add(key)

    def prove(self, session: Session) -> None:
        """Decide if requests of this revision may be merged."""
        if self.verdict is PENDING:
            self.verdict = prove(session, self.snapshot, self.interface, self.concatenation)

    def run_concatenated(self, concatenation: Concatenation, requests: Sequence[Feeds]) -> list[list[np.ndarray]]:
        """Run once for requests whose inputs are concatenated; return the outputs of each request."""
        results = self.run(concatenation.merged(requests, self.interface.computed))
        return concatenation.divided(dict(zip(self.interface.outputs, results, strict=True)), requests)

    def run(self, feeds: Mapping[str, np.ndarray]) -> list[Any]:
        """Run once: within the limits of the session for sizes not seen before, else directly."""
        if self.has_loops:
            return self.snapshot.run(None, feeds)
        key = tuple([(name, array.shape) for name, array in feeds.items()])
        if key in self.accepted:
            return self.snapshot.run_again(feeds)
        results = self.snapshot.run(None, feeds)
        if len(self.accepted) >= _ACCEPTED_SIZES:
            self.accepted.clear()
        self.accepted.add(key)
        return results


class ServedModel(Served):
    """A version of a model that a server answers from.

    Args:
        name: The name of the model.
        model: The session and its options.

    Attributes:
        model: As passed.
    """

    def __init__(self, name: str, model: Model) -> None:
        super().__init__(name, model.version)
        self.model = model
        self._session = model.session
        self._lock = threading.Lock()
        self._proving = False
        self._concatenation = model.batching.concatenation
        self._revision = Revision(self._session, self._session.snapshot(), self._concatenation, model.declared)
        self._require_sequence_tensors()
        self._revision.prove(self._session)
        for feeds in model.warmup:
            if self._concatenation is not None:
                self._revision.run_concatenated(self._concatenation, [feeds])
            else:
                self._revision.run(feeds)

    @property
    def platform(self) -> str:
        """The platform, as the metadata name it."""
        return PLATFORM

    @property
    def session(self) -> Session:
        """The session of the model."""
        return self._session

    @property
    def revision_number(self) -> int:
        """The number of the current revision."""
        return self._session.revision

    @property
    def config(self) -> Mapping[str, Any] | None:
        """The parsed ``config.pbtxt``; None without one."""
        return self.model.config

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """Names of classes, by output."""
        return self.model.labels

    @property
    def reshapings(self) -> Mapping[str, Reshaping]:
        """Inputs and outputs whose sizes in requests and answers differ from those in the model."""
        return self.model.reshapings

    @property
    def hidden(self) -> frozenset[str]:
        """Inputs that the server feeds, and outputs that answers do not contain."""
        states, controls = self.model.states, self.model.controls
        return frozenset((*(s.input for s in states), *(s.output for s in states), *(c.input for c in controls)))

    @property
    def row_limit(self) -> int:
        """The largest number of rows of a request; 0 for no limit."""
        return self.model.batching.most_rows

    def _require_sequence_tensors(self) -> None:
        """Check that the model has the inputs and outputs that sequences need."""
        interface, model = self._revision.interface, self.model
        inputs = [*(state.input for state in model.states), *(control.input for control in model.controls)]
        for kind, names, known in (
            ("input", inputs, interface.inputs),
            ("output", [state.output for state in model.states], interface.outputs),
        ):
            for name in names:
                if name not in known:
                    raise OptionError(f"the model has no {kind} {name!r}, which its sequences need.", where=self.name)

    @property
    def revision(self) -> Revision:
        """The revision that answers runs that begin now."""
        current = self._revision
        if current.number != self._session.revision:
            return self._next_revision()
        return current

    def _next_revision(self) -> Revision:
        with self._lock:
            snapshot = self._session.snapshot()
            if snapshot.revision > self._revision.number:
                self._revision = Revision(self._session, snapshot, self._concatenation, self.model.declared)
                if self._revision.verdict is PENDING and self.model.batching.mode == "auto" and not self._proving:
                    self._proving = True
                    background_threads.start("sardonyx-prove", self._prove)
            return self._revision

    def _prove(self) -> None:
        lower_priority()
        try:
            while True:
                revision = self._revision
                background_threads.pause(_SETTLE_SECONDS)
                with self._lock:
                    if revision is self._revision and (self.retired or revision.verdict is not PENDING):
                        self._proving = False
                        return
                if revision is self._revision:
                    revision.prove(self._session)
        except BaseException:
            self._proving = False
            raise

    @property
    def max_rows(self) -> int:
        """The largest number of rows of a batch of the current revision; 1 if requests are not merged."""
        batching = self.model.batching
        if batching.mode == "off":
            return 1
        if batching.mode == "auto" and not self._revision.verdict.is_sound:
            return 1
        return batching.max_rows

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the inputs and the outputs by name, as requests and answers have them."""
        interface, reshapings = self.revision.interface, self.model.reshapings
        inputs, outputs = (
            {
                name: reshapings[name].described(tensor) if name in reshapings else tensor
                for name, tensor in part.items()
            }
            for part in (interface.inputs, interface.outputs)
        )
        return inputs, outputs

    @property
    def batching(self) -> Batching:
        """Options of batching and queueing."""
        return self.model.batching

    @property
    def is_stateful(self) -> bool:
        """True if requests belong to sequences."""
        return bool(self.model.states or self.model.controls)

    def batching_note(self) -> str:
        """Return ``"sound"``, ``"forced"``, or the reason why requests are not merged."""
        if self.model.batching.mode == "off":
            return "off: batching is disabled for the model"
        if self.model.batching.mode == "force":
            return "forced"
        verdict = self._revision.verdict
        return "sound" if verdict.is_sound else f"off: {verdict.reason}"


def _has_loops(snapshot: Snapshot) -> bool:
    """Return True if a model has loops or host code, or its graph is unknown: compiled, or in a file that changed."""
    try:
        model = snapshot.model
    except (UnsupportedError, ModelFileError):
        return True
    return any(node.op_type in ("Loop", "Scan", "If") for node in model.graph.all_nodes())
