"""Ray: batch inference with Ray Data, and a deployment for Ray Serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sardonyx.base.extras import require
from sardonyx.distributed.image import Image
from sardonyx.distributed.predictor import Predictor, input_types
from sardonyx.model.load import Loadable


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
    ``user_config`` of ``{"weights": {name: nested lists}}`` updates weights in place, so that a rolling update of a
    configuration does not restart replicas.

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
    return serve.deployment(name=name, **options)(Replica).bind(content)


class Replica:
    """One replica of a deployment: a session, its answers, and its live edits.

    Args:
        content: The model, as bytes.
    """

    def __init__(self, content: bytes) -> None:
        from sardonyx.runtime import Session

        self._session = Session(content, compile="wait")

    def reconfigure(self, config: Mapping[str, Any]) -> None:
        """Apply a configuration: update weights of the running session."""
        import numpy as np

        weights = {name: np.asarray(values, np.float32) for name, values in (config or {}).get("weights", {}).items()}
        if weights:
            self._session.update_weights(weights)

    async def __call__(self, request: Any) -> dict[str, Any]:
        """Answer an HTTP request with JSON, or a call with a dictionary."""
        import numpy as np

        body = request if isinstance(request, dict) else await request.json()
        types = input_types(self._session)
        inputs = body["inputs"]
        feeds = {name: np.asarray(values, types.get(name)) for name, values in inputs.items()}
        results = self._session.run(None, feeds)
        names = [info.name for info in self._session.get_outputs()]
        return {
            "outputs": {name: np.asarray(result).tolist() for name, result in zip(names, results, strict=True)},
            "revision": self._session.revision,
        }
