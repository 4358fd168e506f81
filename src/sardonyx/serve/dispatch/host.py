"""The host of all endpoints: look-up by name and version, replacement without a gap."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from sardonyx.errors import RequestError
from sardonyx.serve.dispatch.endpoint import Endpoint
from sardonyx.serve.dispatch.ensemble_endpoint import EnsembleEndpoint, Infer
from sardonyx.serve.models.ensemble import ServedEnsemble
from sardonyx.serve.models.model import ServedModel
from sardonyx.serve.models.served import Served
from sardonyx.serve.protocol.datatypes import shortened
from sardonyx.serve.protocol.limits import Limits
from sardonyx.serve.protocol.requests import Cancellable, Done, InferRequest

AnyEndpoint: TypeAlias = Endpoint | EnsembleEndpoint


def infer_at(endpoint: AnyEndpoint, request: InferRequest, done: Done) -> Cancellable | None:
    """Answer a request to an endpoint."""
    return endpoint.infer(request, done)


class Host:
    """The endpoints of a server by name and version; used by the thread of the event loop alone.

    Args:
        limits: The limits of the server.
        loop: The event loop.
        allow_inner: True if requests may name inner tensors as outputs.
        infer: Answers the requests that ensembles make to their models.
        may_fuse: Returns True if a model computes steps of ensembles without a request; None for no model.

    Attributes:
        is_loading: True until the models of the start are loaded: unknown models may follow.
        generation: The number of changes of the endpoints.
    """

    def __init__(
        self,
        limits: Limits,
        loop: asyncio.AbstractEventLoop,
        allow_inner: bool = False,
        infer: Infer = infer_at,
        may_fuse: Callable[[str], bool] | None = None,
    ) -> None:
        self._limits = limits
        self._infer = infer
        self._may_fuse = may_fuse
        self._loop = loop
        self._allow_inner = allow_inner
        self._endpoints: dict[str, dict[str, AnyEndpoint]] = {}
        self._newest: dict[str, AnyEndpoint] = {}
        self._unloaded: set[str] = set()
        self._retiring: set[AnyEndpoint] = set()
        self.is_loading = True
        self.generation = 0

    def __iter__(self) -> Iterator[AnyEndpoint]:
        return (endpoint for versions in self._endpoints.values() for endpoint in versions.values())

    def get(self, name: str, version: str = "") -> AnyEndpoint:
        """Return an endpoint.

        Args:
            name: The name of the model.
            version: The number of the version as text; empty for the newest.

        Raises:
            RequestError: The model or version is unknown or unloaded.
        """
        if not version:
            endpoint = self._newest.get(name)
            if endpoint is not None:
                return endpoint
            if name in self._unloaded or self.is_loading:
                raise RequestError("the model is not loaded.", kind="unavailable", where=name, retry_after=1.0)
            # The first words are Triton's: its clients compare them.
            raise RequestError(f"Request for unknown model: {shortened(name)} is not found.", kind="not_found")
        endpoint = self._endpoints.get(name, {}).get(version)
        if endpoint is None:
            if name not in self._endpoints:
                return self.get(name)
            raise RequestError(f"unknown version {shortened(version)} of the model.", kind="not_found", where=name)
        return endpoint

    def model(self, name: str, version: str = "") -> Served:
        """Return a served version to describe it; an ensemble fits its models.

        Raises:
            RequestError: The version is unknown or unloaded, or a model of the ensemble is missing.
        """
        endpoint = self.get(name, version)
        if isinstance(endpoint, EnsembleEndpoint):
            endpoint.parts()
        return endpoint.model

    def versions(self, name: str) -> list[str]:
        """Return the versions of a model, oldest first."""
        return sorted(self._endpoints.get(name, {}), key=int)

    def put(self, name: str, models: Sequence[Served]) -> None:
        """Let these versions of a model answer from now on; other versions finish their waiting requests."""
        before = self._endpoints.get(name, {})
        after = {}
        for model in models:
            same = before.get(model.version)
            if same is None or same.model is not model:
                same = self._endpoint(model)
            after[model.version] = same
        self._replace(name, before, after)

    def _endpoint(self, model: Served) -> AnyEndpoint:
        if isinstance(model, ServedEnsemble):
            return EnsembleEndpoint(model, self._limits, self._loop, self.get, self._infer, self._may_fuse)
        assert isinstance(model, ServedModel)
        return Endpoint(model, self._limits, self._loop, self._allow_inner)

    def require_ready(self, name: str, version: str = "") -> None:
        """Check that a model, or all models of an ensemble, can answer.

        Raises:
            RequestError: The model, or one of the ensemble, is unknown, unloaded or does not fit.
        """
        endpoint = self.get(name, version)
        if isinstance(endpoint, EnsembleEndpoint):
            for part in set(endpoint.parts()):
                self.require_ready(part.model.name, part.model.version)

    def is_needed(self, name: str) -> bool:
        """Return True if an ensemble has a model of this name."""
        ensembles = (endpoint.model for endpoint in self if isinstance(endpoint, EnsembleEndpoint))
        return any(step.model == name for model in ensembles for step in model.ensemble.steps)

    def remove(self, name: str) -> None:
        """Let no version of a model answer; waiting requests are still computed."""
        self._replace(name, self._endpoints.get(name, {}), {})

    def _replace(self, name: str, before: dict[str, AnyEndpoint], after: dict[str, AnyEndpoint]) -> None:
        self.generation += 1
        if after:
            self._endpoints[name] = after
            self._newest[name] = after[max(after, key=int)]
            self._unloaded.discard(name)
        else:
            self._endpoints.pop(name, None)
            self._newest.pop(name, None)
            if before:
                self._unloaded.add(name)
        for endpoint in before.values():
            if after.get(endpoint.model.version) is not endpoint:
                self._retire(endpoint)
        for endpoint in self:
            if isinstance(endpoint, EnsembleEndpoint):
                endpoint.refit()

    def _retire(self, endpoint: AnyEndpoint) -> None:
        endpoint.model.retired = True
        self._retiring.add(endpoint)

        queue = endpoint.queue

        def close() -> None:
            if queue.waiting or queue.running or queue.held:
                return
            queue.on_idle = None
            queue.close()
            self._retiring.discard(endpoint)

        queue.on_idle = close
        close()

    @property
    def pending(self) -> int:
        """The number of requests that wait or are being computed."""
        queues = [endpoint.queue for endpoint in (*self, *self._retiring)]
        return sum(queue.waiting + queue.running for queue in queues)

    def close(self) -> None:
        """End all threads; no request may wait."""
        for endpoint in (*self, *list(self._retiring)):
            endpoint.queue.close()
