"""A learner: training in the background from a stream, publication of weights to a live session."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sardonyx.base import background_threads
from sardonyx.base.option_checks import require_instance
from sardonyx.base.thread_priority import lower_priority
from sardonyx.errors import ExecutionError, OptionError, ResourceError, SardonyxError, UnsupportedError
from sardonyx.runtime.session import Session
from sardonyx.train.data.batches import Batches, Data
from sardonyx.train.losses import BinaryCrossEntropy, Loss
from sardonyx.train.online.drift import Detector, detector_of
from sardonyx.train.online.guard import Guard, GuardState
from sardonyx.train.online.learner_report import Answer, LearnerReport
from sardonyx.train.online.prequential import Prequential, RiverMetric
from sardonyx.train.online.replay import Replay, joined, rows_of, split_rows, stacked
from sardonyx.train.optimizers import SAM, SGD, Optimizer
from sardonyx.train.step.forward import KEY, output_producer
from sardonyx.train.trainer.checkpoints import Position, read_checkpoint, write_checkpoint
from sardonyx.train.trainer.metrics import Metric
from sardonyx.train.trainer.trainer import Trainer

_STORE = "learner.safetensors"

_SAMPLES = 256
"""Samples that one native call observes and learns from."""


class Learner:
    """Learns from a stream while a session answers.

    A thread of low priority takes steps on new samples mixed with samples of the past. New weights are published to
    the session as one edit, if the guard permits: a call answers with exactly one set of weights and never waits.

    Args:
        session: The session, which answers from its model.
        loss: As of :class:`Trainer`.
        optimizer: As of :class:`Trainer`.
        trainable: As of :class:`Trainer`.
        batch: New samples of a step.
        replay: The memory of past samples; None for none.
        mix: Samples of the past for each new sample of a step.
        guard: The test before publications; None publishes after every ``publish_every`` steps.
        publish_every: Steps between publications.
        metrics: Prequential metrics: names as of :class:`Trainer`, or metrics of River; see :attr:`report`.
        drift: A detector over prequential losses: ``"page-hinkley"``, ``"ddm"``, ``"adwin"``, an object of River, None.
        on_drift: Called at a drift; by default the memory of the past is cleared.
        queue_size: Most batches that wait.
        when_full: ``"drop"`` drops a new batch if the queue is full, ``"block"`` waits, ``"refuse"`` raises.
        store: A folder in which published weights are kept; a learner with the same folder goes on from them.
        delayed: Most batches that wait for labels; see :meth:`observe`.
        seed: The seed of choices.
        threads: Number of threads of steps; 1 leaves the others to calls.

    Raises:
        EncryptionError: The model was loaded from an encrypted file, and ``store`` names a folder.
        OptionError: An option is impossible.
        UnsupportedError: The model cannot be trained.

    Example:
        >>> with Learner(session, "cross-entropy", SGD(0.01)) as learner:
        ...     for x, y in stream:
        ...         answer = learner.predict({"x": x})
        ...         learner.learn({"x": x}, y)
    """

    def __init__(
        self,
        session: Session,
        loss: Loss | str | Callable[..., Any] = "cross-entropy",
        optimizer: Optimizer | SAM | str | None = None,
        *,
        trainable: str | Sequence[str] = "*",
        batch: int = 32,
        replay: Replay | None = None,
        mix: float = 1.0,
        guard: Guard | None = None,
        publish_every: int = 1,
        metrics: str | Metric | RiverMetric | Sequence[str | Metric | RiverMetric] = (),
        drift: Detector | str | None = None,
        on_drift: Callable[[Learner], None] | None = None,
        queue_size: int = 256,
        when_full: Literal["drop", "block", "refuse"] = "block",
        store: str | os.PathLike[str] | None = None,
        delayed: int = 1024,
        seed: int = 0,
        threads: int | None = 1,
    ) -> None:
        if min(batch, publish_every, queue_size, delayed) < 1 or mix < 0:
            raise OptionError(
                "expected batch, publish_every, queue_size and delayed of at least 1, and mix of at least 0.",
                where="learner",
            )
        if when_full not in ("drop", "block", "refuse"):
            raise OptionError(f"expected 'drop', 'block' or 'refuse', got {when_full!r}.", where="when_full")
        require_instance(session, Session, "session", "a Session")
        if replay is not None:
            require_instance(replay, Replay, "replay", "a Replay")
        if guard is not None:
            require_instance(guard, Guard, "guard", "a Guard")
        self._session = session
        self._trainer = Trainer(
            session.model, loss, SGD(0.01) if optimizer is None else optimizer, trainable=trainable,
            batch_norm="frozen", seed=seed, threads=threads,
        )  # fmt: skip
        stored = session.model.graph.initializers
        if missing := [name for name in self._trainer.parameters if name not in stored]:
            raise UnsupportedError(
                f"the session's model has no initializer {', '.join(missing[:3])}, so the weight cannot be published.",
                where="learner",
                remedy="Open the session on `sardonyx.train.trainable_form(sardonyx.load(model))`.",
            )
        self._prequential = Prequential(
            metrics,
            self._trainer.loss,
            is_binary=isinstance(self._trainer.loss, BinaryCrossEntropy),
            of_probabilities=self._trainer.reads_probabilities,
        )
        if self._prequential and self._trainer.loss.label not in self._trainer.batch_types:
            raise OptionError("the loss has no labels, which metrics compare with the answers.", where="metrics")
        self._batch, self._mix, self._replay = batch, mix, replay
        self._guard = None if guard is None else GuardState(guard)
        self._publish_every, self._detector, self._on_drift = publish_every, detector_of(drift), on_drift
        self._queue: queue.Queue[dict[str, np.ndarray] | None] = queue.Queue(queue_size)
        self._when_full, self._store = when_full, None if store is None else Path(store)
        self._published = self._trainer.state()
        self._source = Batches([], self._trainer.batch_types)
        self._counts = dict.fromkeys(("samples", "held_back", "steps", "published", "undone", "drifts", "dropped"), 0)
        self._loss_total, self._revision, self._steps_since = 0.0, 0, 0
        self._pending: list[dict[str, np.ndarray]] = []
        self._ahead: deque[dict[str, np.ndarray] | None] = deque()
        # The outputs of a step are then those of the session's model: a step observes its own sample.
        self._observes_in_steps = (
            batch == 1 and replay is None and guard is None and drift is None and KEY not in self._trainer.batch_names
        )
        self._delayed: OrderedDict[Hashable, dict[str, np.ndarray]] = OrderedDict()
        self._delayed_limit = delayed
        self._error: BaseException | None = None
        self._closed, self._running = threading.Event(), threading.Event()
        self._running.set()
        self._lock = threading.Lock()
        if self._store is not None:
            self._trainer.require_plain()
            self._store.mkdir(parents=True, exist_ok=True)
            if (file := self._store / _STORE).exists():
                self._restore(file)
        self._thread = background_threads.start("sardonyx-learner", self._work)

    # The stream.

    def learn(self, feeds: Mapping[str, Any], labels: Any = None) -> None:
        """Queue samples with their labels, and return at once.

        Args:
            feeds: A batch of inputs by name; labels may be among them.
            labels: The labels of the loss, if it has one.

        Raises:
            FeedError: The samples do not fit the model, or a label is out of range.
            ResourceError: The queue is full, and ``when_full="refuse"``.
            ExecutionError: The learner is closed, or has stopped by an error.
        """
        if self._error is not None:
            raise ExecutionError("the learner has stopped.", where="learner", remedy=str(self._error)) from self._error
        if self.closed:
            raise ExecutionError("the learner is closed.", where="learner", remedy="Make another learner.")
        batch = dict(feeds)
        if labels is not None:
            batch[self._trainer.loss.label] = labels
        missing = [name for name in self._trainer.batch_types if name not in batch]
        if missing:
            raise OptionError(f"missing {', '.join(missing)}.", where="learn")
        checked = self._source.checked(batch, "learn")
        self._trainer.check_labels(checked)
        copied = {name: np.array(array) for name, array in checked.items()}
        while self._when_full == "block":
            try:
                self._queue.put(copied, timeout=0.1)
                return
            except queue.Full:
                if not self._thread.is_alive():  # It ended while the queue was full: nothing empties the queue.
                    raise ExecutionError(
                        "the learner has stopped.", where="learner", remedy=str(self._error or "It is closed.")
                    ) from self._error
        try:
            self._queue.put_nowait(copied)
        except queue.Full:
            if self._when_full == "refuse":
                raise ResourceError(
                    "the queue of the learner is full.", remedy="Call `flush`, or learn less."
                ) from None
            with self._lock:
                self._counts["dropped"] += len(next(iter(copied.values())))

    def observe(self, key: Hashable, feeds: Mapping[str, Any]) -> Answer:
        """Answer samples whose labels come later, and keep the samples until :meth:`label`.

        If more than ``delayed`` batches wait for labels, the oldest is forgotten, and counts as dropped.

        Args:
            key: A name of the samples, such as the number of a transaction.
            feeds: A batch of inputs by name.
        """
        answer = self.predict(feeds)
        with self._lock:
            self._delayed[key] = {name: np.array(value) for name, value in feeds.items()}
            self._delayed.move_to_end(key)
            while len(self._delayed) > self._delayed_limit:
                _, oldest = self._delayed.popitem(last=False)
                self._counts["dropped"] += len(next(iter(oldest.values())))
        return answer

    def label(self, key: Hashable, labels: Any) -> None:
        """Learn from samples that were observed before, now with their labels.

        Raises:
            OptionError: No observed samples of this key wait for labels.
            SardonyxError: See :meth:`learn`; the samples wait on.
        """
        with self._lock:
            feeds = self._delayed.get(key)
        if feeds is None:
            raise OptionError(
                f"no samples wait for labels under the key {key!r}.",
                where="label",
                remedy="Observe the samples first, or let more of them wait: `delayed=...`.",
            )
        self.learn(feeds, labels)
        with self._lock:
            self._delayed.pop(key, None)

    def predict(self, feeds: Mapping[str, Any]) -> Answer:
        """Return the outputs of the session and the revision of the weights that computed them."""
        snapshot = self._session.snapshot()
        outputs = snapshot.run(None, dict(feeds))
        names = [info.name for info in snapshot.outputs]
        return Answer(dict(zip(names, outputs, strict=True)), snapshot.commit)

    def predict_one(self, x: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the outputs for one sample without an axis of samples, in the shape of River."""
        answer = self.predict({name: np.asarray(value)[None] for name, value in x.items()})
        return {name: array[0] for name, array in answer.outputs.items()}

    def learn_one(self, x: Mapping[str, Any], y: Any) -> None:
        """Queue one sample without an axis of samples, in the shape of River."""
        self.learn({name: np.asarray(value)[None] for name, value in x.items()}, np.asarray(y)[None])

    def flush(self) -> None:
        """Wait until all queued samples are learned from, take the last step, and publish if the guard permits.

        Raises:
            ExecutionError: The learner has stopped by an error.
        """
        done = threading.Event()
        self._finish = done
        self._queue.put(None)
        while not done.wait(0.05):
            if self._error is not None or not self._thread.is_alive():
                break
        if self._error is not None:
            raise ExecutionError("the learner has stopped.", where="learner", remedy=str(self._error)) from self._error

    # Control.

    def freeze(self) -> None:
        """Stop taking steps; samples wait in the queue."""
        self._running.clear()

    def resume(self) -> None:
        """Go on after :meth:`freeze`."""
        self._running.set()

    def rollback(self, revision: int = 0) -> None:
        """Undo publications of the session after a revision, to the exact bits, and go on from these weights.

        Args:
            revision: The last revision that stays; 0 for the original weights.

        Raises:
            OptionError: No publication has this number.
        """
        with self._lock:
            if revision and revision not in {commit.number for commit in self._session.history}:
                raise OptionError(f"expected a revision of the session, got {revision}.", where="revision")
            while self._session.history and self._session.history[-1].number > revision:
                self._session.undo()
            graph = self._session.model.graph
            state = self._trainer.state()
            for name in self._trainer.parameters:
                tensor = graph.initializers[name].const_value
                assert tensor is not None
                state[f"parameter:{name}"] = tensor.numpy().astype(state[f"parameter:{name}"].dtype)
            self._trainer.load_state(state)
            self._published, self._revision = state, revision

    def consolidate(self, data: Data, *, samples: int | None = None) -> None:
        """Hold to what the current weights know of data, with the optimizer :class:`EWC`; see :class:`Trainer`.

        Args:
            data: Samples with labels, as of :meth:`Trainer.fit`.
            samples: Most samples.
        """
        with self._lock:
            self._trainer.consolidate(data, samples=samples)

    @property
    def trainer(self) -> Trainer:
        """The trainer; its weights are those of the next publication."""
        return self._trainer

    @property
    def answers_logits(self) -> bool:
        """True if the output that the loss reads is no probability in answers of the session."""
        producer = output_producer(self._session.model, self._trainer.loss_output)
        return producer is None or producer.op_type not in ("Sigmoid", "Softmax")

    @property
    def closed(self) -> bool:
        """True after :meth:`close`."""
        return self._closed.is_set()

    @property
    def report(self) -> LearnerReport:
        """The counts so far; a metric that has no value yet is NaN.

        Raises:
            ExecutionError: The function of a metric raised an error.
        """
        with self._lock:
            seen = self._counts["samples"] + self._counts["held_back"]
            mean = self._loss_total / seen if seen else math.nan
            error = "" if self._error is None else str(self._error)
            return LearnerReport(
                **self._counts, prequential_loss=mean, revision=self._revision, error=error,
                metrics=self._prequential.values,
            )  # fmt: skip

    def close(self) -> None:
        """Stop the learner; queued samples are dropped."""
        self._closed.set()
        self._running.set()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join()

    def __enter__(self) -> Learner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The thread.

    _finish: threading.Event | None = None

    def _work(self) -> None:
        lower_priority()
        try:
            while not self._closed.is_set():
                try:
                    batch = self._ahead.popleft() if self._ahead else self._queue.get(timeout=0.1)
                except queue.Empty:
                    background_threads.pause(0)
                    continue
                while not self._running.wait(0.1):
                    background_threads.pause(0)
                if self._closed.is_set():
                    return
                with self._lock:
                    if batch is not None:
                        self._observe(self._with_waiting(batch))
                        continue
                    if self._pending:
                        self._step()
                    self._publish_if_permitted()
                if self._finish is not None:
                    self._finish.set()
        except Exception as error:  # `learn`, `flush` and the report name it, whatever it is.
            self._error = (
                error
                if isinstance(error, SardonyxError)
                else ExecutionError(f"{type(error).__name__}: {error}", where="learner")
            )
            if self._finish is not None:
                self._finish.set()

    def _with_waiting(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return a batch with those that wait after it, as far as no step is between them.

        A stream of single samples would otherwise take a native call, and the interpreter lock, for each. A detector
        sees losses to the bit, which must not depend on the number of samples that wait.
        """
        room = _SAMPLES if self._observes_in_steps else self._batch - sum(map(rows_of, self._pending))
        batches, shapes = [batch], _row_shapes(batch)
        room -= rows_of(batch)
        while room > 0 and self._detector is None:
            try:
                following = self._queue.get_nowait()
            except queue.Empty:
                break
            if following is None or rows_of(following) > room or _row_shapes(following) != shapes:
                self._ahead.append(following)
                break
            batches.append(following)
            room -= rows_of(following)
        return joined(batches)

    def _observe_in_steps(self, batch: dict[str, np.ndarray]) -> None:
        """Observe each sample in the step that learns from it."""
        rest = batch
        while count := rows_of(rest):
            steps = min(count, self._publish_every - self._steps_since)
            part = {name: array[:steps] for name, array in rest.items()}
            before = self._trainer.step_count
            try:
                losses, outputs = self._trainer.step_samples(part)
            except ExecutionError:  # As in `_step`; the sample that failed is left out.
                steps = self._trainer.step_count - before + 1
                self._undo()
                losses, answers = self._trainer.sample_results({name: array[:steps] for name, array in part.items()})
            else:
                answers = outputs[self._trainer.loss_output]
                self._counts["steps"] += steps
                self._steps_since += steps
            self._count(losses, answers, {name: array[:steps] for name, array in rest.items()})
            self._counts["samples"] += steps
            rest = {name: array[steps:] for name, array in rest.items()}
            if self._steps_since >= self._publish_every:
                self._publish_if_permitted()

    def _count(self, losses: np.ndarray, outputs: np.ndarray, batch: dict[str, np.ndarray]) -> None:
        self._loss_total += float(losses.sum())
        if self._prequential:
            self._prequential.update(outputs, batch[self._trainer.loss.label])

    def _observe(self, batch: dict[str, np.ndarray]) -> None:
        if self._observes_in_steps:
            self._observe_in_steps(batch)
            return
        losses, outputs = self._trainer.sample_results(batch)
        held = 0
        self._count(losses, outputs, batch)
        if self._detector is not None:
            for loss in losses.tolist():
                self._watch(loss)
        if self._guard is not None:
            batch, held = self._guard.hold_back(batch)
            self._counts["held_back"] += held
        self._counts["samples"] += len(losses) - held
        if rows_of(batch):
            self._pending.append(batch)
        while sum(map(rows_of, self._pending)) >= self._batch:
            self._step()

    def _watch(self, loss: float) -> None:
        assert self._detector is not None
        self._detector.update(loss)
        if self._detector.drift_detected:
            self._counts["drifts"] += 1
            if self._on_drift is not None:
                self._on_drift(self)
            elif self._replay is not None:
                self._replay.clear()
            if self._guard is not None:
                self._guard.samples.clear()

    def _step(self) -> None:
        waiting = joined(self._pending)
        batch = {name: array[: self._batch] for name, array in waiting.items()}
        rest = {name: array[self._batch :] for name, array in waiting.items()}
        self._pending = [rest] if rows_of(rest) else []
        if self._replay is not None:
            samples = split_rows(batch)
            old = self._replay.draw(round(len(samples) * self._mix))
            for sample in samples:
                self._replay.add(sample)
            batch = joined([batch, stacked(old)]) if old else batch
        try:
            self._trainer.step(batch)
        except ExecutionError:  # The weights are those before the step; they go back to the published ones.
            self._undo()
            return
        self._counts["steps"] += 1
        self._steps_since += 1
        if self._steps_since >= self._publish_every:
            self._publish_if_permitted()

    def _undo(self) -> None:
        self._trainer.load_state(self._published)
        self._counts["undone"] += 1
        self._steps_since = 0

    def _publish_if_permitted(self) -> None:
        if not self._steps_since:
            return
        if self._guard is not None:
            if not self._guard.samples:
                return
            held = stacked(list(self._guard.samples))
            new = self._trainer.sample_losses(held)
            published = self._trainer.sample_losses(held, self._published)
            decision = self._guard.decide(published, new)
            if decision == "undo":
                self._undo()
            if decision != "publish":
                return
        self._publish()

    def _publish(self) -> None:
        if self._store is not None:
            position = Position(step=self._counts["steps"], form=self._trainer.form)
            write_checkpoint(self._store / _STORE, self._trainer.state_views(), position)
        self._session.update_weights(self._trainer.file_weights(copy=False))  # The session copies them.
        for name, array in self._trainer.state_views().items():  # New memory would cost more than the copies.
            np.copyto(self._published[name], array)
        self._steps_since = 0
        self._revision = self._session.snapshot().commit
        self._counts["published"] += 1

    def _restore(self, file: Path) -> None:
        tensors, position = read_checkpoint(file)
        if position.form != self._trainer.form:
            raise OptionError(
                "the store is of another learner: its parameters or its optimizer differ.",
                where=os.fspath(file),
                remedy="Use the options of the store, or another folder.",
            )
        self._trainer.load_state(tensors)
        self._session.update_weights(self._trainer.file_weights())
        self._published, self._revision = self._trainer.state(), self._session.snapshot().commit


def _row_shapes(batch: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape[1:] for name, array in batch.items()}


def learner_of(session: Session, learner: Learner | None, options: Mapping[str, Any]) -> Learner:
    """Return the learner of a session: the present one, or a new one with these options.

    Raises:
        OptionError: The session has a learner, and options for another one.
    """
    if learner is None or learner.closed:
        return Learner(session, **options)
    if options:
        raise OptionError(
            f"the session has a learner; {min(options)!r} is an option of the first call.",
            where="learn",
            remedy="Close the learner, or leave out the option.",
        )
    return learner
