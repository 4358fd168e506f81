"""Latency of models side by side: paired runs in one process, so that a noisy machine slows both alike."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sardonyx import model as model_io
from sardonyx.errors import EvaluationError
from sardonyx.rewrite.inference import infer_shapes
from sardonyx.rewrite.verify import inputs
from sardonyx.rewrite.verify.search import Search

TYPICAL_SIZES = (128, 224, 64)
"""Open sizes tried first, with a batch of 1: what is tiny measures the engine's overhead, not the model."""


@dataclass(frozen=True)
class Latency:
    """Medians of paired runs.

    Attributes:
        seconds: Median seconds of a run, one for each model.
        ratio: Median over pairs of the last model's time over the first's.
        runs: Number of pairs.
        engine: What ran them.
        sizes: What open sizes were taken as.
        times: Seconds of every run, one tuple for each model; the runs of one index are a pair.
    """

    seconds: tuple[float, ...]
    ratio: float
    runs: int
    engine: str
    sizes: Mapping[str, int]
    times: tuple[tuple[float, ...], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The medians as plain data."""
        return {name: value for name, value in vars(self).items() if name != "times"}


def measure(
    paths: Sequence[str | os.PathLike[str]],
    *,
    feeds: Mapping[str, Any] | None = None,
    budget: float = 2.0,
    threads: int = 0,
) -> Latency:
    """Run models in turn on equal inputs in ONNX Runtime, with all its optimizations.

    Args:
        paths: Files of models with equal inputs.
        feeds: Inputs by name; drawn from the first model when None.
        budget: Seconds to spend on counted runs.
        threads: Threads of the engine; its own choice when 0.

    Raises:
        EvaluationError: a model does not load, or runs on none of the inputs drawn.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    # Spinning workers of one session would steal the cores from the other.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        sessions = [
            onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"]) for path in paths
        ]
    except Exception as error:  # the binding raises a dozen unrelated classes
        raise EvaluationError(f"ONNX Runtime does not load it: {error}") from error
    feeds, sizes = ({**feeds}, _bound(paths[0], feeds)) if feeds is not None else _runnable(paths[0], sessions)
    times: list[list[float]] = [[] for _ in sessions]
    deadline = time.perf_counter() + budget
    while len(times[0]) < 5 or (time.perf_counter() < deadline and len(times[0]) < 500):
        for session, record in zip(sessions, times, strict=True):
            started = time.perf_counter()
            session.run(None, feeds)
            record.append(time.perf_counter() - started)
    ratios = [last / first for first, last in zip(times[0], times[-1], strict=True)]
    return Latency(
        seconds=tuple(statistics.median(record) for record in times),
        ratio=statistics.median(ratios),
        runs=len(ratios),
        engine=f"onnxruntime {onnxruntime.__version__}",
        sizes=sizes,
        times=tuple(map(tuple, times)),
    )


def _bound(path: str | os.PathLike[str], feeds: Mapping[str, Any]) -> dict[str, int]:
    """What the open sizes of a model are for some inputs."""
    return {
        dim.value: int(size)
        for value in inputs.required_inputs(model_io.load(path))
        for dim, size in zip(value.shape or (), getattr(feeds.get(str(value.name)), "shape", ()), strict=False)
        if not isinstance(dim, int) and dim.value is not None
    }


def _runnable(path: str | os.PathLike[str], sessions: Sequence[Any]) -> tuple[dict[str, Any], dict[str, int]]:
    """Inputs on which all sessions run, and what they take the open sizes as: typical ones, or any."""
    model = model_io.load(path)
    infer_shapes(model)
    names = inputs.open_sizes(model)

    def run(feeds: dict[str, Any]) -> dict[str, Any]:
        try:
            answers = [session.run(None, feeds) for session in sessions]
        except Exception as error:  # the binding raises a dozen unrelated classes
            raise EvaluationError(str(error)) from error
        return {str(place): answer for place, answer in enumerate(answers[0])}

    for size in TYPICAL_SIZES if names else ():
        sizes = {name: 1 if first else size for name, first in names.items()}
        try:
            feeds = inputs.draw(model, sizes, seed=0)
            run(feeds)
        except EvaluationError:
            continue
        return feeds, sizes
    search = Search(model, run, seed=0, wanted=1)
    found = search.samples() or search.dull
    if not found:
        raise EvaluationError(
            f"ONNX Runtime runs it on none of the inputs drawn: {'; '.join(search.reasons)[:400]}",
            where=os.fspath(path),
        )
    return found[0].feeds, dict(found[0].sizes)
