"""Tensor-parallel parts as actors of Ray, joined by a compiled graph: all compute each request together."""

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
    """The ways of a model as actors; parts go from actor to actor through channels of Ray that stay open.

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
        self._joins = joins[-1]
        self._outputs = list(parallel.outputs.values())
        self._lock = threading.Lock()
        with starting(self._actors, "way"):
            for way, actor in enumerate(actors_of_ways):
                images = [ray.put(Image.compile(stage.models[way], threads)) for stage in parallel.stages]
                self._actors.append(actor.remote(way, images, joins, dict(parallel.outputs)))
            # A way is ready before the graph starts its endless loop.
            ray.get([actor.ready.remote() for actor in self._actors])
            self._graph: Any = _graph(self._actors, len(parallel.stages))

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
        with self._lock, ray_errors("way"):
            if self._graph is None:
                raise ExecutionError("the parts are closed.", where="tensor-parallel parts")
            references = self._graph.execute({name: np.asarray(value) for name, value in feeds.items()})
            # Without a limit: Ray's own of 10 s is for hanging graphs, and the end of an actor is noticed anyway.
            parts = ray.get(references, timeout=-1)
            values = parts[0] | {one.name: one.whole([part[one.part] for part in parts]) for one in self._joins}
            # Copied: the memory of the channel is that of the next request.
            return [np.array(values[name]) for name in self._outputs]

    def close(self) -> None:
        """End the actors, after the request that is being computed."""
        import ray

        with self._lock:
            graph, self._graph = self._graph, None
            if graph is not None:
                graph.teardown()
                for actor in self._actors:
                    ray.kill(actor)

    def __enter__(self) -> RayTensorParallel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _graph(actors: Sequence[Any], stages: int) -> Any:
    """Return the compiled graph of a request: every actor reads the parts of all others for the stage before.

    An actor keeps its own part: after a request that failed, Ray would leave a value that an actor sent to itself in
    its channel, and refuse the next request.
    """
    from ray.dag import InputNode, MultiOutputNode

    def others(parts: Sequence[Any], way: int) -> list[Any]:
        return [part for number, part in enumerate(parts) if number != way]

    with InputNode() as feeds:
        parts = [actor.start.bind(feeds) for actor in actors]
        for stage in range(1, stages):
            parts = [actor.run.bind(stage, *others(parts, way)) for way, actor in enumerate(actors)]
        return MultiOutputNode(parts).experimental_compile(_max_inflight_executions=1)


class _Actor:
    """One way, with the values of one request at a time."""

    def __init__(
        self, way: int, images: Sequence[Any], joins: Sequence[Sequence[Join]], outputs: Mapping[str, str]
    ) -> None:
        import ray

        self._number = way
        self._way = Way([image.open() for image in ray.get(list(images))])
        self._joins = joins
        joined = {one.name for one in joins[-1]}
        self._rest = {name: value for name, value in outputs.items() if value not in joined and way == 0}
        self._own: dict[str, Any] | Exception = {}

    def ready(self) -> bool:
        return True

    def start(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Begin a request, and compute its first stage."""
        # Copied: later stages read them, and the memory of the channel is read only now.
        self._way.start({name: np.array(value) for name, value in feeds.items()})
        return self._run(0)

    def run(self, stage: int, *others: Mapping[str, Any]) -> dict[str, Any]:
        """Join the parts of the stage before, and compute a stage."""
        if isinstance(self._own, Exception):
            raise self._own
        self._way.join(self._joins[stage - 1], [*others[: self._number], self._own, *others[self._number :]])
        return self._run(stage)

    def _run(self, stage: int) -> dict[str, Any]:
        """Compute a stage; return the parts that are joined, and after the last stage the other outputs."""
        try:
            outputs = self._way.run(stage)
        except Exception as error:
            self._own = error
            raise
        self._own = {one.part: outputs[one.part] for one in self._joins[stage]}
        if stage == len(self._joins) - 1:
            self._own |= dict(zip(self._rest.values(), self._way.results(self._rest), strict=True))
        return self._own
