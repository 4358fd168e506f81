"""Paired latency measurements in one process, so that machine noise affects all models alike.

Run as a program, this module is the child process of the regression gate: one JSON request on standard input, the
answer on standard output. A crash of an engine then ends the child alone.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import onnx_ir as ir

from sardonyx import model as model_io
from sardonyx.core.dim import require_symbols
from sardonyx.errors import EvaluationError, MissingDependencyError
from sardonyx.rewrite.analysis import inference
from sardonyx.rewrite.verify import inputs
from sardonyx.rewrite.verify.search import Feeds, Search

MOST_PAIRS = 500
FEWEST_PAIRS = 6
"""The smallest sample for which two order statistics bracket the median with the confidence below."""

CONFIDENCE = 0.95

TYPICAL_SIZES = (128, 224, 64)
"""Open sizes tried first, with a batch of 1; tiny sizes would measure the overhead of the engine."""

Run = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class Latency:
    """Medians of paired runs.

    Attributes:
        seconds: Median seconds of a run, one for each model.
        ratio: Median over pairs of the last model's time over the first's.
        runs: Number of pairs.
        engine: Name and version of the engine.
        sizes: Values of the open sizes.
        times: Seconds of every run, one tuple for each model; the runs of one index are a pair.
    """

    seconds: tuple[float, ...]
    ratio: float
    runs: int
    engine: str
    sizes: Mapping[str, int]
    times: tuple[tuple[float, ...], ...] = ()

    @property
    def interval(self) -> tuple[float, float] | None:
        """Confidence interval (95 %) of the true median ratio; None if there are too few pairs."""
        return median_interval(sorted(pair_ratios(self.times))) if self.times else None

    @property
    def is_significant(self) -> bool:
        """True if the interval excludes equal latencies."""
        return self.interval is not None and not self.interval[0] <= 1 <= self.interval[1]

    def as_dict(self) -> dict[str, Any]:
        """Return the medians, the interval and the significance as plain data."""
        known = {name: value for name, value in asdict(self).items() if name != "times"}
        return {**known, "interval": self.interval, "significant": self.is_significant}

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> Self:
        """Return the latency in the JSON answer of a child process."""
        times = tuple(map(tuple, answer["times"]))
        return cls(**{**answer, "seconds": tuple(answer["seconds"]), "times": times})


def pair_ratios(times: Sequence[Sequence[float]]) -> list[float]:
    """Return, for each pair, the last model's time over the first's."""
    return [last / first for first, last in zip(times[0], times[-1], strict=True)]


def median_interval(ordered: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return the narrowest symmetric pair of order statistics around the true median.

    This is the interval of the sign test, valid for every distribution.

    Args:
        ordered: The sample, ascending.
        confidence: Probability that the interval contains the median.

    Returns:
        The interval; None if the sample is too small.
    """
    n = len(ordered)
    below, interval = 0.0, None
    logarithm = -n * math.log(2)
    for k in range((n + 1) // 2):
        # P(median outside) is the probability that at most k of n fall on one side: a sum of C(n, k) / 2^n.
        below += math.exp(logarithm)
        if 1 - 2 * below < confidence:
            break
        interval = ordered[k], ordered[n - 1 - k]
        logarithm += math.log((n - k) / (k + 1))
    return interval


def _onnxruntime(path: str | os.PathLike[str], threads: int, spinning: bool) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    if not spinning:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda feeds: dict(zip(names, session.run(names, feeds), strict=True))


def _openvino(path: str | os.PathLike[str], threads: int, spinning: bool) -> Run:
    import openvino

    config = {"PERFORMANCE_HINT": "LATENCY", **({"INFERENCE_NUM_THREADS": threads} if threads else {})}
    compiled = openvino.Core().compile_model(os.fspath(path), "CPU", config)
    requests = threading.local()

    def run(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        # A request serves one call at a time.
        if not hasattr(requests, "own"):
            requests.own = compiled.create_infer_request()
        # A port may have several names, or none; only time is compared here, so the index is enough of a name.
        return {str(i): value for i, value in enumerate(requests.own.infer(dict(feeds)).values())}

    return run


_LOADERS: dict[str, Callable[[str | os.PathLike[str], int, bool], Run]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
}

ENGINES = frozenset(_LOADERS)
"""Packages that can be measured here if installed."""


def measure(
    paths: Sequence[str | os.PathLike[str]],
    *,
    feeds: Mapping[str, Any] | None = None,
    budget: float = 2.0,
    threads: int = 0,
    engine: str = "onnxruntime",
) -> Latency:
    """Run models alternately on equal inputs, with all optimizations of the engine.

    Args:
        paths: Files of models with equal inputs.
        feeds: Inputs by name; drawn from the first model when None.
        budget: Seconds to spend on counted runs.
        threads: Threads of the engine; its own choice when 0.
        engine: The package that runs the models, one of ``ENGINES``.

    Raises:
        MissingDependencyError: the engine is not installed.
        EvaluationError: a model does not load, or runs on none of the drawn inputs.
    """
    runs = [loaded(path, threads, engine) for path in paths]
    drawn, sizes = ({**feeds}, _sizes_of(paths[0], feeds)) if feeds is not None else draw(paths[0], runs[0])
    for run in runs:
        run(drawn)
    times: list[list[float]] = [[] for _ in runs]
    deadline = time.perf_counter() + budget
    order = list(zip(runs, times, strict=True))
    while len(times[0]) < FEWEST_PAIRS or (time.perf_counter() < deadline and len(times[0]) < MOST_PAIRS):
        for run, record in order:
            started = time.perf_counter()
            run(drawn)
            record.append(time.perf_counter() - started)
        # The second run of a pair starts with other cache contents, so the order alternates.
        order.reverse()
    ratios = pair_ratios(times)
    return Latency(
        seconds=tuple(statistics.median(record) for record in times),
        ratio=statistics.median(ratios),
        runs=len(ratios),
        engine=f"{engine} {sys.modules[engine].__version__}",
        sizes=sizes,
        times=tuple(map(tuple, times)),
    )


def loaded(path: str | os.PathLike[str], threads: int, engine: str, *, spinning: bool = False) -> Run:
    """Load a model into another engine and return a function to run the model.

    Args:
        path: The model.
        threads: Threads of the engine; its own choice when 0.
        engine: One of ``ENGINES``.
        spinning: Let the workers spin between runs, the default of engines. If sessions alternate without a pause,
            spinning workers of one session take the cores from the other.

    Raises:
        MissingDependencyError: the engine is not installed.
        EvaluationError: the engine does not load the model.
    """
    try:
        run = _LOADERS[engine](path, threads, spinning)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"the engine {engine} is not installed", where=os.fspath(path), remedy=f"Install it: pip install {engine}"
        ) from error
    except Exception as error:  # the bindings raise a dozen unrelated classes
        raise EvaluationError(f"{engine} does not load the model: {error}", where=os.fspath(path)) from error

    def checked(feeds: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return run(feeds)
        except Exception as error:  # likewise
            raise EvaluationError(f"{engine} does not run the model: {error}", where=os.fspath(path)) from error

    return checked


def draw(path: str | os.PathLike[str] | ir.Model, run: Run) -> tuple[Feeds, dict[str, int]]:
    """Draw inputs on which a model runs, at typical sizes if possible; return inputs and open sizes.

    Args:
        path: The model's file; or a Model, whose shapes are then inferred in place.
        run: Runs the model.

    Raises:
        EvaluationError: the model runs on none of the drawn inputs.
    """
    model = _load_with_shapes(path)
    names = inputs.open_sizes(model)
    for size in TYPICAL_SIZES if names else ():
        sizes = {name: 1 if first else size for name, first in names.items()}
        try:
            feeds = inputs.draw(model, sizes, seed=0)
            run(feeds)
        except EvaluationError:
            continue
        return feeds, sizes
    search = Search(model, run, seed=0, count=1)
    samples = search.samples() or search.uninformative
    if not samples:
        reason = "; ".join(search.reasons) or "no inputs could be drawn"
        raise EvaluationError(
            f"the model runs on none of the inputs drawn: {reason[:400]}",
            where=model.graph.name or "the model",
            remedy=sizes_remedy(names),
        )
    return samples[0].feeds, dict(samples[0].sizes)


def sizes_remedy(names: Iterable[str]) -> str:
    """Return the remedy for a model that fails on all drawn inputs.

    Args:
        names: The open sizes of the model.
    """
    listed = list(names)
    if not listed:
        return "Give real inputs (--inputs)."
    return f"Give real inputs (--inputs), or values of its open sizes (--sizes): {', '.join(listed[:8])}."


def _load_with_shapes(path: str | os.PathLike[str] | ir.Model) -> ir.Model:
    """Load a model, with inferred shapes unless it imports no operator set; sessions run such a model too."""
    model = model_io.load(path)
    if model.graph.opset_imports:
        inference.infer_shapes(model, strict=False)
    return model


def draw_at(path: str | os.PathLike[str] | ir.Model, sizes: Mapping[str, int]) -> tuple[Feeds, dict[str, int]]:
    """Draw inputs at some sizes and return them with the values of all open sizes, 1 for each unnamed one.

    Args:
        path: The model's file; or a Model, whose shapes are then inferred in place.
        sizes: Numbers for open sizes.

    Raises:
        OptionError: A name is not an open size of the model.
        EvaluationError: No inputs can be drawn.
    """
    model = _load_with_shapes(path)
    names = inputs.open_sizes(model)
    require_symbols(sizes, names)
    whole = dict.fromkeys(names, 1) | dict(sizes)
    return inputs.draw(model, whole, seed=0), whole


def _sizes_of(path: str | os.PathLike[str], feeds: Mapping[str, Any]) -> dict[str, int]:
    """Return the values that the open sizes of a model have in some inputs."""
    return {
        dim.value: int(size)
        for value in inputs.required_inputs(model_io.load(path))
        for dim, size in zip(value.shape or (), getattr(feeds.get(str(value.name)), "shape", ()), strict=False)
        if not isinstance(dim, int) and dim.value is not None
    }


def optimized_operators(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> dict[str, int]:
    """Count operators by type in the model that ONNX Runtime produces at its extended optimization level.

    Args:
        path: The model's file.
        folder: A folder for the engine to write to.

    Raises:
        EvaluationError: the engine does not load the model or write its result.
    """
    import onnxruntime

    from sardonyx.rewrite.record import Count

    written = Path(folder) / "extended.onnx"
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(written)
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the binding raises a dozen unrelated classes
        raise EvaluationError(f"ONNX Runtime does not load the model: {error}", where=os.fspath(path)) from error
    operators = Count.of(model_io.load(written)).operators
    written.unlink()
    return operators


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    if request["do"] == "census":
        return {"operators": optimized_operators(request["path"], request["folder"])}
    stored = Path(request["feeds"])
    if not stored.exists():
        feeds, _ = draw(request["paths"][0], loaded(request["paths"][0], 0, request["engine"]))
        stored.write_bytes(pickle.dumps(feeds))
    # Safe to unpickle: this program or its parent wrote the file, into their own folder.
    feeds = pickle.loads(stored.read_bytes())
    return asdict(measure(request["paths"], feeds=feeds, budget=request["budget"], engine=request["engine"]))


def main() -> None:
    """Answer one request."""
    try:
        answer = _answer(json.load(sys.stdin))
    except (EvaluationError, MissingDependencyError) as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
