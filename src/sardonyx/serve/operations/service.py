"""The operations of a server: inference, metadata, the repository, edits, settings."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np

from sardonyx import __version__
from sardonyx.errors import ModelFileError, OptionError, RequestError, SardonyxError, UnsupportedError
from sardonyx.runtime.session import Session
from sardonyx.serve.dispatch.endpoint import Endpoint
from sardonyx.serve.dispatch.host import AnyEndpoint, Host
from sardonyx.serve.models.model import ServedModel
from sardonyx.serve.models.override import Override, override_of
from sardonyx.serve.models.repository import Repository
from sardonyx.serve.models.reshaping import Reshaping, reshape_inputs, reshaped_answer
from sardonyx.serve.models.served import Served
from sardonyx.serve.observation.traces import Traces
from sardonyx.serve.operations import live_edits
from sardonyx.serve.operations.changes import Change
from sardonyx.serve.operations.classification import classified
from sardonyx.serve.operations.model_config import described_config
from sardonyx.serve.operations.parameters import flag
from sardonyx.serve.operations.private_answers import described_policy, make_noisy, released_outputs
from sardonyx.serve.operations.settings import Settings
from sardonyx.serve.operations.shared_memory import SharedMemory
from sardonyx.serve.operations.worker_group import Abandoned, State, WorkerGroup
from sardonyx.serve.protocol.held_bytes import HeldBytes
from sardonyx.serve.protocol.limits import MODEL_NAME, Limits
from sardonyx.serve.protocol.requests import Answer, Cancellable, Done, InferRequest

if TYPE_CHECKING:
    from sardonyx.privacy.answers import PrivateAnswers

T = TypeVar("T")

ControlMode = Literal["off", "load", "edit"]
"""Changes that clients may make: none, loading and unloading of models, or edits of models too."""

EXTENSIONS = (
    "binary_tensor_data", "classification", "generate", "logging", "model_configuration", "model_repository",
    "model_repository(unload_dependents)", "parameters", "schedule_policy", "sequence", "statistics",
    "system_shared_memory", "trace", "sardonyx_live_edits",
)  # fmt: skip
"""The extensions of the protocol that the server has."""

_COLLECTED_EDITS = 32
"""Edits between two collections of earlier models: as many models as the history of a session keeps for undo."""

_log = logging.getLogger("sardonyx.serve")


@dataclass(frozen=True)
class ServiceOptions:
    """Options of the operations.

    Attributes:
        limits: The limits of the server.
        control: Changes that clients may make.
        allow_inner: True if requests may name inner tensors as outputs.
        allow_shared_memory: True if clients may register regions of shared memory.
        strict_json: True if NaN and infinity, which JSON lacks, are refused in JSON.
        triton_metrics: True if metrics have Triton's names too.
        privacy: Policies of models whose answers are noisy, by name.
    """

    limits: Limits = field(default_factory=Limits)
    control: ControlMode = "off"
    allow_inner: bool = False
    allow_shared_memory: bool = False
    strict_json: bool = False
    triton_metrics: bool = False
    privacy: Mapping[str, PrivateAnswers] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.control not in get_args(ControlMode):
            expected = ", ".join(map(repr, get_args(ControlMode)))
            raise OptionError(f"expected one of {expected}, got {self.control!r}.", where="control")


class Service:
    """The operations of a server; methods run in the thread of the event loop.

    Args:
        options: The options.
        repository: The models on disk; None for models of the caller alone.
        loop: The event loop.
        traces: Records spans of requests; None for no traces.

    Attributes:
        options: As passed.
        traces: As passed.
        limits: The limits of the server.
        host: The endpoints of all models.
        held: The bytes that wait for slow clients.
        shared_memory: The registered regions.
        collects_models: True if edits and loads collect garbage, in a process whose other objects are frozen.
        is_one_of_several: True in one worker of several, whose settings are fixed.
        group: The workers that make changes together; None for one process.
        is_draining: True once the server stops: it answers what it has accepted.
        start: The time of the start, in seconds since 1970.
    """

    def __init__(
        self,
        options: ServiceOptions,
        repository: Repository | None,
        loop: asyncio.AbstractEventLoop,
        traces: Traces | None = None,
    ) -> None:
        self.options = options
        self.limits = options.limits
        self.host = Host(options.limits, loop, options.allow_inner, self.infer_at, self._may_fuse)
        self.held = HeldBytes(options.limits)
        self.shared_memory = SharedMemory(options.allow_shared_memory, options.limits.shared_memory_regions)
        self.is_draining = False
        self.collects_models = False
        self.is_one_of_several = False
        self.group: WorkerGroup | None = None
        self.start = time.time()
        self._edits = 0
        self._loaded_for_ensembles: set[str] = set()
        self._repository = repository
        self._loop = loop
        self._workers = ThreadPoolExecutor(2, "sardonyx-serve-control")
        self.traces = traces
        self._settings = Settings(traces)

    def _may_fuse(self, name: str) -> bool:
        """Return True if a model computes steps of ensembles without a request: no noise and no span is due."""
        return name not in self.options.privacy and self.traces is None

    async def in_worker(self, work: Callable[[], T]) -> T:
        """Do slow work in another thread, without blocking answers."""
        return await self._loop.run_in_executor(self._workers, work)

    async def _collect(self) -> None:
        """Free earlier models, which are cycles of references, in a process that only serves."""
        if self.collects_models:
            await self.in_worker(gc.collect)

    def close(self) -> None:
        """End all threads."""
        self.host.close()
        if self.traces is not None:
            self.traces.close()
        self._workers.shutdown(wait=False, cancel_futures=True)

    # Health and metadata.

    @property
    def is_ready(self) -> bool:
        """True if the server has loaded its models, and is not stopping."""
        return not (self.host.is_loading or self.is_draining)

    def metadata(self) -> dict[str, Any]:
        """Return the name, version and extensions of the server."""
        return {"name": "sardonyx", "version": __version__, "extensions": list(EXTENSIONS)}

    def model_metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """Return the inputs, outputs and versions of a model, and its verdict on batching.

        Raises:
            RequestError: The model is unknown.
        """
        model = self.host.model(name, version)
        described = {
            key: [
                {"name": t.name, "datatype": t.datatype.name, "shape": t.sizes}
                for t in tensors.values()
                if t.name not in model.hidden
            ]
            for key, tensors in zip(("inputs", "outputs"), model.tensors(), strict=True)
        }
        return {
            "name": name,
            "versions": self.host.versions(name),
            "platform": model.platform,
            **described,
            "parameters": {
                "sardonyx_revision": model.revision_number,
                "sardonyx_batching": model.batching_note(),
                **described_policy(self.options.privacy.get(model.name)),
            },
        }

    def model_config(self, name: str, version: str = "") -> dict[str, Any]:
        """Return the configuration of a model in the form of Triton's model configuration."""
        return described_config(self.host.model(name, version))

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Return the statistics of one version, of all versions of a model, or of all models."""
        if name:
            self.host.get(name, version)
        endpoints = [
            endpoint
            for endpoint in self.host
            if (not name or endpoint.model.name == name) and (not version or endpoint.model.version == version)
        ]
        return {
            "model_stats": [
                {"name": e.model.name, "version": e.model.version, **e.model.statistics.described()} for e in endpoints
            ]
        }

    # Inference.

    def infer(self, request: InferRequest, done: Done) -> Cancellable | None:
        """Answer a request; see :meth:`.Endpoint.infer`.

        Raises:
            RequestError: The request does not fit the model, the queue is full, or the server is stopping.
        """
        return self.infer_at(self.host.get(request.model, request.version), request, done)

    def infer_at(self, endpoint: AnyEndpoint, request: InferRequest, done: Done) -> Cancellable | None:
        """Answer a request to an endpoint; raises like :meth:`infer`."""
        if self.traces is not None and self.traces.is_on:
            done = self.traces.watched(request, done)
        if any(output.classes or output.destination for output in request.outputs):
            inner = done

            def done(result: Answer | Exception) -> None:
                if isinstance(result, Answer):
                    try:
                        self._deliver(endpoint, result)
                    except Exception as error:
                        result = error
                inner(result)

        reshapings = endpoint.model.reshapings
        if reshapings:
            reshape_inputs(request, reshapings)
            done = _reshaping(reshapings, done)
        policy = self.options.privacy.get(endpoint.model.name)
        if policy is not None:
            if not isinstance(endpoint, Endpoint):
                raise RequestError(
                    "an ensemble has no private answers of its own.", kind="unsupported", where=request.model,
                    remedy="Give its models a policy.",
                )  # fmt: skip
            return self._loop.create_task(self._infer_private(endpoint, policy, request, done))
        return endpoint.infer(request, done)

    async def _infer_private(
        self, endpoint: Endpoint, policy: PrivateAnswers, request: InferRequest, done: Done
    ) -> None:
        """Answer with noise: the request is checked, then charged, then computed."""
        try:
            names, rows = released_outputs(endpoint, policy, request)
            await self.in_worker(lambda: policy.charge(request.client, endpoint.model.name, names, rows))
            future: asyncio.Future[Answer | Exception] = self._loop.create_future()
            entry = endpoint.infer(request, lambda result: None if future.done() else future.set_result(result))
            try:
                result = await future
            except asyncio.CancelledError:
                request.cancelled = True
                if entry is not None:
                    entry.cancel()
                raise
            if isinstance(result, Exception):
                raise result
            answer = result
            await self.in_worker(lambda: make_noisy(policy, answer, rows))
        except Exception as error:
            done(error)
        else:
            done(answer)

    async def infer_async(self, request: InferRequest) -> Answer:
        """Answer a request; cancelling the task cancels the request.

        Raises:
            SardonyxError: The request has no answer.
        """
        future: asyncio.Future[Answer] = self._loop.create_future()

        def done(result: Answer | Exception) -> None:
            if future.done():
                return
            if isinstance(result, Answer):
                future.set_result(result)
            else:
                future.set_exception(result)

        entry = self.infer(request, done)
        try:
            return await future
        except asyncio.CancelledError:
            request.cancelled = True
            if entry is not None:
                entry.cancel()
            raise

    def _deliver(self, endpoint: AnyEndpoint, answer: Answer) -> None:
        for output in answer.outputs:
            requested = output.requested
            if requested is None:
                continue
            if requested.classes:
                labels: Sequence[str] = endpoint.model.labels.get(output.name, ())
                tensor = endpoint.model.tensors()[1].get(output.name)
                has_rows = tensor is not None and bool(tensor.shape) and not isinstance(tensor.shape[0], int)  # type: ignore[index]
                output.array = classified(output.array, requested.classes, labels, has_rows, output.name)
            if requested.destination is not None:
                requested.destination.write(output.array)

    # The repository.

    def index(self, ready_only: bool = False) -> list[dict[str, str]]:
        """Return the state of every version of every model."""
        listed: dict[tuple[str, str], dict[str, str]] = {}
        if self._repository is not None:
            for entry in self._repository.index():
                listed[entry.name, entry.version] = asdict(entry)
        for endpoint in self.host:
            key = endpoint.model.name, endpoint.model.version
            listed.setdefault(key, {"name": key[0], "version": key[1], "state": "READY", "reason": ""})
        return [entry for _, entry in sorted(listed.items()) if not ready_only or entry["state"] == "READY"]

    async def load(self, name: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Load a model from the repository, or its files anew; answers continue meanwhile.

        Args:
            name: The name of the model.
            parameters: With ``config``, a configuration in place of the repository's until the next load; with
                ``file:…`` too, files in place of all files of the repository.

        Raises:
            RequestError: Loading is off, a parameter is invalid, or files are not accepted.
            SardonyxError: The model cannot be loaded; the loaded one answers on.
        """
        repository = self._controlled(name)
        override = override_of(parameters or {})
        if override is not None and override.files:
            self._require_files(name)
        if self.group is None:
            await self._load(repository, name, override)
        else:
            head, data = ({}, b"") if override is None else await self.in_worker(override.packed)
            await self.group.follow("load", name, head, lambda: self._load(repository, name, override), data)

    def _require_files(self, name: str) -> None:
        """Permit the files of a model in a request.

        Raises:
            RequestError: Edits are off: another model is more than an edit.
        """
        if self.options.control != "edit":
            raise RequestError(
                "files of a request are refused.", kind="unavailable", where=name[:64],
                remedy="Start the server with --control edit.",
            )  # fmt: skip
        if not MODEL_NAME.fullmatch(name):
            raise RequestError("expected letters, digits, '.', '_' and '-'.", where=name[:64])

    async def _load(self, repository: Repository, name: str, override: Override | None = None) -> None:
        before = await self.in_worker(lambda: repository.override(name, override))
        try:
            await self._load_files(repository, name)
        except BaseException as error:
            repository.restore(name, before)
            if override is not None and isinstance(error, ModelFileError):
                # The client has sent what cannot be read: a repetition of the request does not help.
                raise RequestError(error.problem, where=error.where, remedy=error.remedy) from error
            raise

    async def _load_files(self, repository: Repository, name: str) -> None:
        for part in await self.in_worker(lambda: repository.ordered([name])):
            if part != name and part not in repository.loaded:
                self.host.put(part, await self.in_worker(functools.partial(repository.load, part)))
                self._loaded_for_ensembles.add(part)
        self._loaded_for_ensembles.discard(name)
        models = await self.in_worker(lambda: repository.reload(name))
        self.host.put(name, models)
        await self._collect()

    async def unload(self, name: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Let a model answer no more requests; waiting requests are computed.

        Args:
            name: The name of the model.
            parameters: With ``unload_dependents``, the models of an ensemble are unloaded too that were loaded for it,
                unless another ensemble needs them.

        Raises:
            RequestError: Unloading is off.
        """
        repository = self._controlled(name)
        with_parts = flag(parameters or {}, "unload_dependents")
        if self.group is None:
            await self._unload(repository, name, with_parts)
        else:
            await self.group.follow(
                "unload", name, {"unload_dependents": with_parts},
                lambda: self._unload(repository, name, with_parts),
            )  # fmt: skip

    async def _unload(self, repository: Repository, name: str, with_parts: bool) -> None:
        names = [name]
        if with_parts:
            names = (await self.in_worker(lambda: repository.ordered([name])))[::-1]
        for part in names:
            if part != name and (part not in self._loaded_for_ensembles or self.host.is_needed(part)):
                continue
            await self.in_worker(functools.partial(repository.unload, part))
            self._loaded_for_ensembles.discard(part)
            self.host.remove(part)
        await self._collect()

    def _controlled(self, name: str) -> Repository:
        if self.options.control == "off":
            raise RequestError(
                "loading is off.", kind="unavailable", where=name[:64], remedy="Start the server with --control load."
            )
        if self._repository is None:
            raise RequestError("the server has no repository.", kind="unsupported")
        return self._repository

    async def load_all(self) -> None:
        """Load the models of the repository; a model of a folder that cannot be loaded is logged and left out.

        Raises:
            SardonyxError: The repository is one model file, which cannot be loaded.
        """
        repository = self._repository
        if repository is not None and repository.is_file:
            for name in repository.names():
                self.host.put(name, await self.in_worker(functools.partial(repository.load, name)))
        elif repository is not None:
            names = repository.names()
            for name in await self.in_worker(lambda: repository.ordered(names)):
                if name not in names:
                    continue
                await self._take(name, functools.partial(repository.load, name))
        self.host.is_loading = False

    async def poll(self, seconds: float) -> None:
        """Load changed models of the repository, every some seconds, for ever.

        Of several workers with changes by clients, one looks, and the others follow.
        """
        repository = self._repository
        while repository is not None:
            await asyncio.sleep(seconds)
            if self.group is not None and not self.group.leads():
                continue
            try:
                for name, load in await self.in_worker(lambda: list(repository.poll(seconds))):
                    await self._take_together(name, load)
            except (SardonyxError, OSError) as error:
                _log.warning("the repository cannot be read: %s", error)

    async def _take_together(self, name: str, load: Callable[[], list[Served]]) -> None:
        """Load or unload a model whose files have changed, in all workers."""
        repository, group = self._repository, self.group
        if group is None or repository is None:
            await self._take(name, load)
            return
        override = repository.overridden(name)
        head, data = ({}, b"") if override is None else await self.in_worker(override.packed)

        async def own() -> None:
            if not await self._take(name, load):
                raise Abandoned

        operation = "load" if name in await self.in_worker(repository.names) else "unload"
        with contextlib.suppress(Abandoned):
            await group.follow(operation, name, head, own, data)

    async def _take(self, name: str, load: Callable[[], list[Served]]) -> bool:
        """Load or unload a model whose files have changed; return False if it stays as it was, for a logged reason."""
        try:
            models = await self.in_worker(load)
        except (SardonyxError, OSError) as error:
            _log.error("model %s is not loaded: %s", name, error)
            return False
        except Exception:
            _log.exception("internal: model %s is not loaded", name)
            return False
        if self._repository is not None and name in self._repository.loaded:
            self.host.put(name, models)
            _log.info("model %s is loaded: versions %s", name, ", ".join(self.host.versions(name)))
        else:
            self.host.remove(name)
            _log.info("model %s is unloaded", name)
        return True

    # Edits.

    async def update_weights(self, name: str, version: str, weights: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Set weights of a model as one edit; see :func:`.live_edits.update_weights`."""
        return await self._change("weights", name, version, weights)

    async def edit(self, name: str, version: str, changes: object) -> dict[str, Any]:
        """Edit a model; see :func:`.live_edits.edit`."""
        return await self._change("edit", name, version, changes)

    async def undo(self, name: str, version: str) -> dict[str, Any]:
        """Undo the latest edit of a model."""
        return await self._change("undo", name, version)

    async def _change(self, kind: str, name: str, version: str, value: Any = None) -> dict[str, Any]:
        if self.options.control != "edit":
            raise RequestError(
                "edits are off.", kind="unavailable", where=name[:64], remedy="Start the server with --control edit."
            )
        model = self.host.get(name, version).model
        session, change = model.session, Change(kind, name, model.version, value)
        if self.group is None:
            result = await self.in_worker(lambda: change.perform(session))
        else:
            result = await self.group.change(change, session)
        await self._collect_edit()
        return result

    async def _collect_edit(self) -> None:
        self._edits += 1
        if self._edits % _COLLECTED_EDITS == 0:
            await self._collect()

    # The part of this worker in changes of all.

    def session_of(self, model: str, version: str) -> Session:
        """Return the session of a version.

        Raises:
            RequestError: The version is not loaded here.
        """
        return self.host.get(model, version).model.session

    async def follow(self, operation: str, model: str, parameters: Mapping[str, Any], data: bytes) -> None:
        """Load or unload a model here, as another worker has done."""
        repository = self._controlled(model)
        if operation == "load":
            await self._load(repository, model, Override.unpacked(parameters, data) if parameters else None)
        else:
            await self._unload(repository, model, flag(parameters, "unload_dependents"))

    async def states(self) -> list[State]:
        """Return the state of all loaded versions, for a worker that begins."""
        repository = self._repository
        states = []
        for endpoint in list(self.host):
            state = await self.in_worker(functools.partial(_state, endpoint.model))
            override = None if repository is None else repository.overridden(state.name)
            if override is not None:
                head, data = await self.in_worker(override.packed)
                state = state._replace(override=head, files=data)
            states.append(state)
        return states

    async def take(self, states: Sequence[State]) -> None:
        """Load, replace and renumber models so that they have the states of another worker."""
        repository = self._repository
        names = {state.name for state in states}
        if repository is not None:
            for state in states:
                if state.override:
                    override = Override.unpacked(state.override, state.files)
                    await self.in_worker(functools.partial(repository.override, state.name, override))
            overridden = {state.name for state in states if state.override}
            for name in await self.in_worker(lambda: repository.ordered(sorted(names))):
                if name not in repository.loaded or name in overridden:
                    await self._take(name, functools.partial(repository.load, name))
            for name in repository.loaded - names:
                await self._unload(repository, name, False)
        for state in states:
            if state.revision < 0:
                continue
            session = self.session_of(state.name, state.version)
            if state.model:
                await self.in_worker(functools.partial(session.reload, state.model))
            session.renumber(state.revision)

    def history(self, name: str, version: str) -> dict[str, Any]:
        """Return the edits of a model."""
        return live_edits.history(self.host.get(name, version).model.session)

    async def explain(self, name: str, version: str) -> dict[str, Any]:
        """Return the kernels of a model."""
        session = self.host.get(name, version).model.session
        return await self.in_worker(lambda: live_edits.explanation(session))

    async def profile(self, name: str, version: str, runs: int) -> dict[str, Any]:
        """Measure a model kernel by kernel."""
        session = self.host.get(name, version).model.session
        return await self.in_worker(lambda: live_edits.profile(session, runs))

    # Settings.

    def _require_one_process(self, changes: Mapping[str, Any] | None) -> None:
        if changes and self.is_one_of_several:
            raise RequestError("a setting would change in one worker of several.", kind="unsupported")

    def trace_settings(self, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the trace settings, after changes of some; see :meth:`.Settings.trace`."""
        self._require_one_process(changes)
        return self._settings.trace(changes or {})

    def log_settings(self, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the log settings, after changes of some; see :meth:`.Settings.log`."""
        self._require_one_process(changes)
        return self._settings.log(changes or {})


def _state(model: Served) -> State:
    """Return the state of a version for another worker; the model itself if it was edited or loaded again."""
    # Imported late: a start does without onnx.
    from sardonyx.model.save import to_proto

    if not isinstance(model, ServedModel):
        return State(model.name, model.version, -1, b"")
    snapshot = model.session.snapshot()
    source = None
    if snapshot.revision:
        with contextlib.suppress(UnsupportedError):  # A compiled file holds no model, and has no edits.
            source = snapshot.model
    data = b"" if source is None else to_proto(source).SerializeToString()
    return State(model.name, model.version, snapshot.revision, data)


def _reshaping(reshapings: Mapping[str, Reshaping], done: Done) -> Done:
    """Return a receiver of answers as the model gives them."""

    def reshaped(result: Answer | Exception) -> None:
        if isinstance(result, Answer):
            try:
                result = reshaped_answer(result, reshapings)
            except RequestError as error:
                result = error
        done(result)

    return reshaped
