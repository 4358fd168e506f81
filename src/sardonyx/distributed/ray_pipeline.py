"""The parts of a split model as actors of Ray, joined by a compiled graph: parts compute different requests at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np

from sardonyx.base.extras import require
from sardonyx.base.option_checks import require_count
from sardonyx.distributed.image import Image
from sardonyx.distributed.split import Pipeline
from sardonyx.errors import ExecutionError, FeedError, OptionError
from sardonyx.runtime.session import Session


class RayPipeline:
    """A running pipeline: one actor for each part, whose channels Ray keeps open.

    A request whose values have no result fails alone. When an actor ends, all requests fail from then on, and none
    gets a part of its outputs.

    Args:
        pipeline: The parts, of :func:`sardonyx.split`.
        threads: Threads of each part.
        most_requests: Requests that are computed at the same time at most.
        actors: Options of Ray for the actor of each part, e.g. ``{"resources": {"large": 1}}``; one mapping for all, or
            one for each part.

    Raises:
        MissingDependencyError: Ray is not installed.
        OptionError: An option is unknown to Ray, the number of mappings differs from that of the parts, or no request
            may be computed.
        UnsupportedError: A part is not compiled as a whole.
        ExecutionError: An actor does not start; none is left then.

    Example:
        >>> with RayPipeline(sardonyx.split("model.onnx", 4)) as pipeline:
        ...     answers = [pipeline.submit({"image": image}) for image in images[:8]]
        ...     outputs = [answer.result() for answer in answers]
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        threads: int = 1,
        most_requests: int = 8,
        actors: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
    ) -> None:
        require("ray", "ray", "pipelines on Ray")
        import ray
        from ray.dag import InputNode

        count = len(pipeline.parts)
        require_count(most_requests, "most_requests")
        options = actor_options(actors, count)
        images = [Image.compile(part, threads) for part in pipeline.parts]
        self.outputs = pipeline.outputs
        self._inputs = _needed([_inputs(part) for part in pipeline.parts], pipeline)
        stages = actor_classes(_Stage, options)
        self._actors: list[Any] = []
        with starting(self._actors, "part of the pipeline"):
            with InputNode() as node:
                step: Any = node
                for image, names, stage in zip(images, self._inputs[1:], stages, strict=True):
                    actor = stage.remote(ray.put(image), sorted(names))
                    self._actors.append(actor)
                    step = actor.run.bind(step)
            # A stage is ready before the graph starts its endless loop.
            ray.get([actor.inputs.remote() for actor in self._actors])
            self._graph: Any = step.experimental_compile(
                _submit_timeout=-1, _max_inflight_executions=most_requests, _max_buffered_results=most_requests
            )
        self._most = most_requests
        self._waiting: list[PipelineAnswer] = []

    def submit(self, feeds: Mapping[str, Any]) -> PipelineAnswer:
        """Send a request into the pipeline; if it is full, wait for the oldest request.

        Raises:
            FeedError: The inputs are not those of the whole model.
            ExecutionError: An actor has ended, or the pipeline is closed.
        """
        if set(feeds) != self._inputs[0]:
            expected = ", ".join(sorted(self._inputs[0]))
            raise FeedError(f"expected the inputs {expected}, got {', '.join(feeds)}.", where="pipeline")
        if self._graph is None:
            raise ExecutionError("the pipeline is closed.", where="pipeline")
        self._waiting = [answer for answer in self._waiting if not answer.is_finished]
        while len(self._waiting) >= self._most:
            self._waiting.pop(0).wait()
        with ray_errors():
            reference = self._graph.execute({name: np.asarray(value) for name, value in feeds.items()})
        answer = PipelineAnswer(reference, self.outputs)
        self._waiting.append(answer)
        return answer

    def run(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the outputs of one request, in the order of the whole model; raises like :meth:`submit`."""
        return self.submit(feeds).result()

    def close(self) -> None:
        """End the actors. Requests without a result fail."""
        import ray

        if self._graph is not None:
            graph, self._graph = self._graph, None
            graph.teardown()
            for actor in self._actors:
                ray.kill(actor)

    def __enter__(self) -> RayPipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PipelineAnswer:
    """The outputs of a request, once they are computed."""

    def __init__(self, reference: Any, names: Sequence[str]) -> None:
        self._reference, self._names = reference, names
        self._values: dict[str, Any] | BaseException | None = None

    @property
    def is_finished(self) -> bool:
        """True once :meth:`wait` has returned."""
        return self._values is not None

    def wait(self) -> None:
        """Wait until the request is computed, or has failed."""
        import ray

        if self._values is None:
            try:
                with ray_errors():
                    # Copied: the memory of the channel is that of the next request.
                    # Without Ray's limit of 10 s: a late request would still fill its place in the graph.
                    values = ray.get(self._reference, timeout=-1)
                    self._values = {name: np.array(value) for name, value in values.items()}
            except Exception as error:  # Raised by `result`.
                self._values = error

    def result(self) -> list[Any]:
        """Return the outputs, in the order of the whole model.

        Raises:
            SardonyxError: The values have no result, or an actor has ended.
        """
        self.wait()
        if isinstance(self._values, BaseException):
            raise self._values
        assert self._values is not None
        return [self._values[name] for name in self._names]


class _Stage:
    """An actor: one part, which passes on what later parts read."""

    def __init__(self, image: Image, passed: Sequence[str]) -> None:
        self._session = image.open()
        self._passed = passed
        self._names = [info.name for info in self._session.get_outputs()]

    def inputs(self) -> list[str]:
        return _names(self._session)

    def run(self, values: dict[str, Any]) -> dict[str, Any]:
        results = self._session.run(self._names, {name: values[name] for name in _names(self._session)})
        values = {**values, **dict(zip(self._names, results, strict=True))}
        return {name: values[name] for name in self._passed}


@contextmanager
def ray_errors(what: str = "part of the pipeline") -> Iterator[None]:
    """Raise the error of a part as it is, and errors of Ray's channels and actors by a name of ours."""
    from ray.exceptions import RayActorError, RayChannelError, RayChannelTimeoutError, RayTaskError

    try:
        yield
    except RayTaskError as error:
        raise getattr(error, "cause", error) from None
    except RayChannelTimeoutError as error:
        raise ExecutionError(
            "the pipeline gave no result in the time that Ray allows.", where="pipeline",
            remedy="Set RAY_CGRAPH_get_timeout and RAY_CGRAPH_submit_timeout (seconds) before Ray is imported.",
        ) from error  # fmt: skip
    except (RayActorError, RayChannelError) as error:
        raise ExecutionError(f"a {what} has ended.", where="ray", remedy="Start the actors again.") from error


@contextmanager
def starting(actors: Sequence[Any], what: str) -> Iterator[None]:
    """End all actors that were started if one does not start; errors are those of :func:`ray_errors`."""
    import ray

    try:
        with ray_errors(what):
            yield
    except BaseException:
        for actor in actors:
            ray.kill(actor)
        raise


def actor_classes(kind: type, options: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return a class of actors for each of the options.

    Raises:
        OptionError: An option is unknown to Ray.
    """
    import ray

    try:
        return [ray.remote(kind).options(**one) for one in options]
    except (TypeError, ValueError) as error:
        raise OptionError(f"expected options of Ray's actors: {error}", where="actors") from error


def actor_options(actors: Any, count: int) -> list[Mapping[str, Any]]:
    """Return the options of each actor.

    Raises:
        OptionError: The options are no mappings, or their number differs from that of the parts.
    """
    if isinstance(actors, Mapping):
        return [actors] * count
    if not isinstance(actors, Sequence) or not all(isinstance(one, Mapping) for one in actors):
        raise OptionError(f"expected a mapping, or one for each part, got {actors!r}.", where="actors")
    options = list(actors) or [{}] * count
    if len(options) != count:
        raise OptionError(f"expected options of {count} actors, got {len(options)}.", where="actors")
    return options


def _names(session: Session) -> list[str]:
    return [info.name for info in session.get_inputs()]


def _inputs(part: Any) -> set[str]:
    return {str(value.name) for value in part.graph.inputs if value.name not in part.graph.initializers}


def _needed(inputs: Sequence[set[str]], pipeline: Pipeline) -> list[set[str]]:
    """Return the values between parts: those before the first part, and those that each part passes on."""
    needed = [set(pipeline.outputs)]
    for part, names in zip(reversed(pipeline.parts), reversed(inputs), strict=True):
        produced = {str(value.name) for value in part.graph.outputs}
        needed.append((needed[-1] - produced) | names)
    return needed[::-1]
