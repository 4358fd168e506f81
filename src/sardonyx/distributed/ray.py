"""Ray: batch inference with Ray Data, and a deployment for Ray Serve."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sardonyx import __version__
from sardonyx.base.extras import require
from sardonyx.distributed.image import Image
from sardonyx.distributed.predictor import Predictor, input_types
from sardonyx.errors import EditError, FeedError, OptionError, SardonyxError
from sardonyx.model.load import Loadable
from sardonyx.runtime.foreign_values import read_values

if TYPE_CHECKING:
    import onnx_ir as ir

    from sardonyx.runtime import Session


def map_batches(
    data: Any, model: Loadable | Image, *, actors: int = 1, columns: Mapping[str, str] | None = None, **options: Any
) -> Any:
    """Return a Ray dataset with the outputs of a model as columns.

    The image is put into Ray's object store once; each actor maps the local file of its machine.

    Args:
        data: The dataset.
        model: The model, or its image.
        actors: Number of processes.
        columns: The column of each input whose name differs: column by input.
        options: Further arguments of ``Dataset.map_batches``, e.g. ``batch_size``.

    Raises:
        MissingDependencyError: Ray is not installed.
    """
    require("ray", "ray", "Ray Data")
    import ray

    image = model if isinstance(model, Image) else Image.compile(model)
    return data.map_batches(
        _Actor,
        fn_constructor_args=[ray.put(image), columns],
        batch_format="numpy",
        compute=ray.data.ActorPoolStrategy(size=actors),
        **options,
    )


class _Actor(Predictor):
    """A predictor whose image is a reference to Ray's object store."""

    def __init__(self, reference: Any, columns: Mapping[str, str] | None) -> None:
        import ray

        super().__init__(ray.get(reference) if isinstance(reference, ray.ObjectRef) else reference, columns)


def deployment(model: Loadable, name: str = "model", **options: Any) -> Any:
    """Return a Ray Serve deployment; a request is ``{"inputs": {name: nested lists}}``.

    An answer is ``{"outputs": {name: nested lists}, "revision": number}``. ``reconfigure`` is a live edit: a
    ``user_config`` of ``{"weights": {name: nested lists}}`` updates weights in place; weights without an entry are
    those of the model. A deployment of the same model and name whose ``user_config`` alone differs restarts no replica.

    Args:
        model: The model: its bytes travel to the replicas.
        name: The name of the deployment.
        options: Options of ``serve.deployment``, e.g. ``num_replicas``, ``user_config``.

    Raises:
        MissingDependencyError: Ray Serve is not installed.
    """
    require("ray", "ray", "Ray Serve")
    from ray import serve

    content = _content(model)
    return _versioned(serve.deployment(name=name, **options)(Replica), content).bind(content)


def server_deployment(
    models: Mapping[str, Loadable], name: str = "sardonyx", server: Mapping[str, Any] | None = None, **options: Any
) -> Any:
    """Return a Ray Serve deployment whose replicas answer the Open Inference Protocol, behind Ray's ingress.

    Each replica is a :class:`sardonyx.serve.Server` without a port of its own: requests are merged where that is proved
    sound, and clients of the protocol work with the address of the route. ``reconfigure`` is a live edit: a
    ``user_config`` of ``{"weights": {model: {name: nested lists}}}`` updates weights in place, of all models or, after
    an error, of none; weights without an entry are those of the models.

    Args:
        models: The models by name: their bytes travel to the replicas.
        name: The name of the deployment.
        server: Options of :class:`sardonyx.serve.Server`, e.g. ``limits``.
        options: Options of ``serve.deployment``, e.g. ``num_replicas``, ``user_config``.

    Raises:
        MissingDependencyError: Ray Serve, or the extra of the server, is not installed.

    Example:
        >>> serve.run(server_deployment({"net": "model.onnx"}, num_replicas=4), route_prefix="/")
    """
    require("ray", "ray", "Ray Serve")
    require("httptools", "serve", "the server")
    from ray import serve

    contents = {model: _content(source) for model, source in models.items()}
    replicas = serve.deployment(name=name, **options)(serve.ingress()(ServerReplica))
    return _versioned(replicas, *contents.values()).bind(contents, dict(server or {}))


def _content(model: Loadable) -> bytes:
    from sardonyx.model import load, to_proto
    from sardonyx.model.load import require_plain

    if isinstance(model, bytes):
        return model
    loaded = load(model)
    require_plain(loaded)  # Ray writes large objects to the disk.
    return to_proto(loaded).SerializeToString()


def _versioned(replicas: Any, *contents: bytes) -> Any:
    """Return a deployment whose version is that of its models: another ``user_config`` restarts no replica.

    Ray restarts replicas whose version changed, and by default each deployment is a new version. The argument is that
    of Ray's own deployments of configuration files.
    """
    digest = hashlib.sha256(__version__.encode() + b"".join(hashlib.sha256(part).digest() for part in contents))
    return replicas.options(version=digest.hexdigest(), _internal=True)


class ServerReplica:
    """One replica of a deployment of a server: its sessions, and the application that Ray's ingress calls.

    Args:
        contents: The models by name, as bytes.
        server: Options of the server.
    """

    def __init__(self, contents: Mapping[str, bytes], server: Mapping[str, Any]) -> None:
        from sardonyx.runtime import Session
        from sardonyx.serve import Server

        sessions = {name: Session(content, compile="wait") for name, content in contents.items()}
        self._weights = {name: _Weights(session) for name, session in sessions.items()}
        self._server = Server(dict(sessions), **server)

    def __serve_build_asgi_app__(self) -> Any:
        """Return the application of the replica; Ray calls this once."""
        return self._server.asgi()

    def reconfigure(self, config: Mapping[str, Any] | None) -> None:
        """Apply a configuration: update weights of the running sessions; others have those of the models.

        Raises:
            OptionError: The configuration has other entries, an unknown model, or elements that are no numbers.
            EditError: A weight is unknown.
            SardonyxError: A model cannot run with the weights; all models are unchanged.
        """
        entries = _entries(config)
        for name in entries:
            if name not in self._weights:
                raise OptionError(f"unknown model {name!r}.", where="user_config")
        read = {name: weights.read(entries.get(name, {})) for name, weights in self._weights.items()}
        applied: list[tuple[_Weights, dict[str, np.ndarray]]] = []
        try:
            for name, arrays in read.items():
                before = dict(self._weights[name].current)
                self._weights[name].apply(arrays)
                applied.append((self._weights[name], before))
        except BaseException:
            for weights, before in reversed(applied):
                weights.apply(before)
            raise


def _entries(config: Mapping[str, Any] | None) -> Mapping[str, Any]:
    entries = {} if config is None else config
    weights = (entries.get("weights") or {}) if isinstance(entries, Mapping) else None
    if not isinstance(weights, Mapping) or set(entries) - {"weights"}:
        raise OptionError("expected {'weights': {name: nested lists}}.", where="user_config")
    return weights


class _Weights:
    """The weights of a session that configurations name: one that a configuration no longer names is the model's.

    Attributes:
        current: The weights of the configuration in force.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._original: dict[str, np.ndarray] = {}
        self.current: dict[str, np.ndarray] = {}

    def read(self, weights: Any) -> dict[str, np.ndarray]:
        """Return nested lists as arrays of the types of the session's weights.

        Raises:
            OptionError: The entries are no weights, or elements are no numbers.
            EditError: A weight is unknown.
        """
        if not isinstance(weights, Mapping):
            raise OptionError("expected {'weights': {model: {name: nested lists}}}.", where="user_config")
        arrays = {}
        for name, values in weights.items():
            known = self._tensor(name)
            if known is None:
                raise EditError("the model has no such weight.", where=str(name))
            try:
                arrays[name] = read_values(values, np.dtype(known.dtype.numpy()), str(name))
            except FeedError as error:
                raise OptionError(error.problem, where=error.where) from error
        return arrays

    def apply(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Set these weights, and set the others that configurations named back, as one edit.

        Raises:
            SardonyxError: The model cannot run with the weights; it is unchanged.
        """
        for name in arrays:
            tensor = None if name in self._original else self._tensor(name)
            if tensor is not None:
                self._original[name] = np.array(tensor.numpy())
        restored = {name: self._original[name] for name in self.current if name not in arrays}
        if restored or arrays:
            self._session.update_weights({**restored, **arrays})
        self.current = dict(arrays)

    def _tensor(self, name: str) -> ir.TensorProtocol | None:
        """Return the tensor of an initializer or of a constant's node; None for other names."""
        from sardonyx.rewrite.analysis import facts

        graph = self._session.model.graph
        value = graph.initializers.get(name)
        if value is None:
            value = next((output for node in graph for output in node.outputs if output.name == name), None)
        return facts.constant_tensor(value) or (None if value is None else value.const_value)


class Replica:
    """One replica of a deployment: a session, its answers, and its live edits.

    Args:
        content: The model, as bytes.
    """

    def __init__(self, content: bytes) -> None:
        from sardonyx.runtime import Session

        self._session = Session(content, compile="wait")
        self._weights = _Weights(self._session)

    def reconfigure(self, config: Mapping[str, Any] | None) -> None:
        """Apply a configuration: update weights of the running session; others have those of the model.

        Raises:
            OptionError: The configuration has other entries, or elements that are no numbers.
            EditError: A weight is unknown.
            SardonyxError: The model cannot run with the weights; it is unchanged.
        """
        self._weights.apply(self._weights.read(_entries(config)))

    async def __call__(self, request: Any) -> Any:
        """Answer an HTTP request with JSON, or a call with a dictionary.

        A call raises as :meth:`answer`; an HTTP request that is malformed is answered 400, with ``{"error": text}``.
        """
        if isinstance(request, dict):  # A request of HTTP is a mapping too.
            return self.answer(request)
        try:
            return self.answer(await request.json())
        except ValueError as error:  # No UTF-8, or no JSON.
            problem = f"the JSON of the request is malformed: {error}"
        except SardonyxError as error:
            problem = str(error)
        from starlette.responses import JSONResponse

        return JSONResponse({"error": problem}, 400)

    def answer(self, body: Any) -> dict[str, Any]:
        """Return the outputs and the revision that computed them.

        Raises:
            FeedError: The body has no inputs, or an input cannot be read.
            SardonyxError: The values have no result.
        """
        inputs = body.get("inputs") if isinstance(body, Mapping) else None
        if not isinstance(inputs, Mapping):
            raise FeedError('expected {"inputs": {name: nested lists}}.', where="request")
        types = input_types(self._session)
        feeds = {}
        for name, values in inputs.items():
            feeds[name] = read_values(values, types.get(name), str(name))
        # One snapshot: the revision is that of the run.
        snapshot = self._session.snapshot()
        names = [info.name for info in snapshot.outputs]
        results = snapshot.run(names, feeds)
        return {
            "outputs": {name: np.asarray(result).tolist() for name, result in zip(names, results, strict=True)},
            "revision": snapshot.revision,
        }
