"""Tensor-parallel parts as actors of Ray: each has its share of the weights, all compute each request together."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np

from sardonyx.base.extras import require
from sardonyx.distributed.image import Image
from sardonyx.distributed.ray_pipeline import actor_classes, actor_options, ray_errors, starting
from sardonyx.distributed.tensor_parallel import Join, TensorParallel, Way
from sardonyx.errors import ExecutionError, FeedError


class RayTensorParallel:
    """The ways of a model as actors; parts go from actor to actor as objects of Ray, not through this process.

    Each actor adds or joins the parts of all ways itself, in the order of the ways, so that all have equal bits.
    Threads of one process may share the object: their requests are computed one after another.

    Args:
        parallel: The parts, of :func:`sardonyx.split_tensors`.
        threads: Threads of each way.
        actors: Options of Ray for the actor of each way, e.g. ``{"resources": {"large": 1}}``; one mapping for all, or
            one for each way.

    Raises:
        MissingDependencyError: Ray is not installed.
        OptionError: An option is unknown to Ray, or the number of mappings differs from that of the ways.
        UnsupportedError: A part is not compiled as a whole.
        ExecutionError: An actor does not start; none is left then.

    Example:
        >>> with RayTensorParallel(sardonyx.split_tensors("model.onnx", 2)) as parallel:
        ...     outputs = parallel.run({"x": x})
    """

    def __init__(
        self,
        parallel: TensorParallel,
        *,
        threads: int = 1,
        actors: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
    ) -> None:
        require("ray", "ray", "tensor-parallel parts on Ray")
        import ray

        options = actor_options(actors, parallel.ways)
        self._inputs = set(parallel.inputs)
        joins = [stage.joins for stage in parallel.stages]
        actors_of_ways = actor_classes(_Actor, options)
        self._actors: list[Any] = []
        with starting(self._actors, "way"):
            for way, actor in enumerate(actors_of_ways):
                images = [ray.put(Image.compile(stage.models[way], threads)) for stage in parallel.stages]
                self._actors.append(actor.remote(images, joins, dict(parallel.outputs)))
            ray.get([actor.ready.remote() for actor in self._actors])
        self._submission = Submission(self._actors, len(parallel.stages))

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the outputs of one request, in the order of the whole model.

        Raises:
            FeedError: The inputs are not those of the whole model.
            ExecutionError: An actor has ended, or the parts are closed.
            SardonyxError: The values have no result.
        """
        import ray

        if set(feeds) != self._inputs:
            expected = ", ".join(sorted(self._inputs))
            raise FeedError(f"expected the inputs {expected}, got {', '.join(feeds)}.", where="tensor-parallel parts")
        if not self._actors:
            raise ExecutionError("the parts are closed.", where="tensor-parallel parts")
        with ray_errors("way"):
            shared = ray.put({name: np.asarray(value) for name, value in feeds.items()})
            return list(ray.get(self._submission.send(shared)))

    def close(self) -> None:
        """End the actors."""
        import ray

        actors, self._actors = self._actors, []
        for actor in actors:
            ray.kill(actor)

    def __enter__(self) -> RayTensorParallel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Submission:
    """The calls of requests, in an order in which actors, which hold the values of one request, do not mix them.

    An actor runs the calls of a process in the order in which they are sent. All calls of a request are sent to all
    actors ahead of those of the next one, whichever threads send them.

    Args:
        actors: The actors of the ways.
        stages: The number of stages.
    """

    def __init__(self, actors: Sequence[Any], stages: int) -> None:
        self._actors, self._stages = list(actors), stages
        self._lock = threading.Lock()

    def send(self, feeds: Any) -> Any:
        """Send a request, and return the reference of its outputs."""
        with self._lock:
            parts = [actor.start.remote(feeds) for actor in self._actors]
            for stage in range(self._stages):
                # Every actor reads the parts of all actors for the stage before.
                parts = [actor.run.remote(stage, *parts) for actor in self._actors]
            return self._actors[0].results.remote(*parts)


class _Actor:
    """One way, with the values of one request at a time: see :class:`Submission`."""

    def __init__(self, images: Sequence[Any], joins: Sequence[Sequence[Join]], outputs: Mapping[str, str]) -> None:
        import ray

        self._way = Way([image.open() for image in ray.get(list(images))])
        self._joins = joins
        self._outputs = outputs

    def ready(self) -> bool:
        return True

    def start(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        self._way.start(feeds)
        return {}

    def run(self, stage: int, *parts: Mapping[str, Any]) -> dict[str, Any]:
        if stage > 0:
            self._way.join(self._joins[stage - 1], parts)
        outputs = self._way.run(stage)
        return {one.part: outputs[one.part] for one in self._joins[stage]}

    def results(self, *parts: Mapping[str, Any]) -> list[Any]:
        self._way.join(self._joins[-1], parts)
        return self._way.results(self._outputs)
