"""Ray: batch inference with Ray Data, and a deployment for Ray Serve."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from sardonyx import __version__
from sardonyx.base.extras import require
from sardonyx.distributed.image import Image
from sardonyx.distributed.predictor import Predictor, input_types
from sardonyx.errors import FeedError, OptionError, SardonyxError
from sardonyx.model.load import Loadable
from sardonyx.runtime.foreign_values import read_values


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
    ``user_config`` of ``{"weights": {name: nested lists}}`` updates weights in place. A deployment of the same model
    and name whose ``user_config`` alone differs restarts no replica.

    Args:
        model: The model: its bytes travel to the replicas.
        name: The name of the deployment.
        options: Options of ``serve.deployment``, e.g. ``num_replicas``, ``user_config``.

    Raises:
        MissingDependencyError: Ray Serve is not installed.
    """
    require("ray", "ray", "Ray Serve")
    from ray import serve

    from sardonyx.model import load, to_proto

    content = model if isinstance(model, bytes) else to_proto(load(model)).SerializeToString()
    # Ray restarts replicas whose version changed, and by default each deployment is a new version. The argument is that
    # of Ray's own deployments of configuration files.
    digest = hashlib.sha256(content + __version__.encode()).hexdigest()
    return serve.deployment(name=name, **options)(Replica).options(version=digest, _internal=True).bind(content)


class Replica:
    """One replica of a deployment: a session, its answers, and its live edits.

    Args:
        content: The model, as bytes.
    """

    def __init__(self, content: bytes) -> None:
        from sardonyx.runtime import Session

        self._session = Session(content, compile="wait")

    def reconfigure(self, config: Mapping[str, Any] | None) -> None:
        """Apply a configuration: update weights of the running session.

        Raises:
            OptionError: The configuration has other entries, or elements that are no numbers.
            EditError: A weight is unknown.
            SardonyxError: The model cannot run with the weights; it is unchanged.
        """
        import numpy as np

        entries = {} if config is None else config
        weights = (entries.get("weights") or {}) if isinstance(entries, Mapping) else None
        if not isinstance(weights, Mapping) or set(entries) - {"weights"}:
            raise OptionError("expected {'weights': {name: nested lists}}.", where="user_config")
        initializers = self._session.model.graph.initializers
        arrays = {}
        for name, values in weights.items():
            known = initializers.get(name)
            dtype = known.dtype.numpy() if known is not None and known.dtype is not None else np.float32
            try:
                arrays[name] = read_values(values, np.dtype(dtype), str(name))
            except FeedError as error:
                raise OptionError(error.problem, where=error.where) from error
        if arrays:
            self._session.update_weights(arrays)

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
        import numpy as np

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
