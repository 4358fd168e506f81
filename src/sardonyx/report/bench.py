"""Models on several engines: percentiles, ratios with confidence intervals, throughput, energy.

Engines alternate in one process (:mod:`.alternation`). A ratio is the median over the rounds of an engine's time over
Sardonyx's. Its interval holds the true median with a probability of 95 % for any distribution of the times (order
statistics).
"""

from __future__ import annotations

import functools
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sardonyx.base.option_checks import require_number
from sardonyx.compiler.executor.thread_pool import pool
from sardonyx.errors import EvaluationError, OptionError, UnsupportedError
from sardonyx.report.alternation import REST_SECONDS, time_rounds
from sardonyx.rewrite import measure
from sardonyx.runtime import Session
from sardonyx.runtime.compiled.compiled_file import is_compiled_file
from sardonyx.runtime.profiling.profile import drawn_feeds

SUBJECT = "sardonyx"
PERCENTILES = (50, 90, 99)

RAPL = Path("/sys/class/powercap")
"""Folder of Linux's counters of the energy that processors consumed."""

Run = Callable[[Mapping[str, Any]], object]


@dataclass(frozen=True)
class EngineFigures:
    """One engine and model on one set of sizes.

    Attributes:
        engine: Name of the engine; for another model than the first, with its file: ``sardonyx: small.onnx``.
        percentiles: Seconds of a run, by percentile.
        runs: Number of timed runs.
        ratio: Median over the rounds of the time over that of Sardonyx on the first model, which is faster above 1.
        interval: 95 % confidence interval of the median ratio; None with too few rounds.
        streams: Runs per second, by number of concurrent threads.
        joules: Energy of a run; None if the machine has no readable counter.
        rounds: Seconds of every timed run, by round; the rounds of one index were adjacent in time.
    """

    engine: str
    percentiles: Mapping[int, float]
    runs: int
    ratio: float
    interval: tuple[float, float] | None
    streams: Mapping[int, float]
    joules: float | None
    rounds: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Figures:
    """All engines on one set of sizes.

    Attributes:
        sizes: Values of the open sizes.
        engines: The figures, Sardonyx first.
    """

    sizes: Mapping[str, int]
    engines: tuple[EngineFigures, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the figures as plain data, without the times of single runs."""
        data = asdict(self)
        for engine in data["engines"]:
            del engine["rounds"]
        return data

    def times(self) -> Iterator[tuple[str, int, int, float]]:
        """Yield engine, round, run within the round, and seconds of every timed run."""
        for engine in self.engines:
            for number, block in enumerate(engine.rounds):
                yield from ((engine.engine, number, index, seconds) for index, seconds in enumerate(block))


def bench(
    path: str | os.PathLike[str],
    against: Sequence[str] | None = None,
    *,
    others: Sequence[str | os.PathLike[str]] = (),
    sizes: Sequence[Mapping[str, int]] = (),
    feeds: Mapping[str, Any] | None = None,
    seconds: float = 2.0,
    warmup: float = 0.0,
    threads: int | None = None,
    streams: Sequence[int] = (),
) -> Iterator[Figures]:
    """Measure a model, and other models on the same inputs.

    Args:
        path: The model, or a compiled file (``.sdx``).
        against: Other engines, of :data:`sardonyx.rewrite.measure.ENGINES`; by default ONNX Runtime, and none for
            compiled files.
        others: Other models with the inputs of the first, each measured on the same engines.
        sizes: Assignments of open sizes, each measured; typical sizes if empty.
        feeds: Real inputs instead of random ones; excludes ``sizes``.
        seconds: Time for each set of sizes, and for each number of streams.
        warmup: Seconds of runs of every engine, not counted, before each set of sizes.
        threads: Threads of every engine; all processors by default.
        streams: Numbers of concurrent threads at which throughput is measured.

    Yields:
        The figures of each set of sizes, as soon as measured.

    Raises:
        OptionError: Unknown engine, both sizes and inputs, another engine on a compiled file, a time out of range, or
            another model has other inputs.
        MissingDependencyError: An engine is not installed.
        EvaluationError: An engine does not run the model.
        UnsupportedError: The model is not compiled.
    """
    require_number(seconds, "seconds", above=0)
    require_number(warmup, "warmup", least=0)
    has_compiled = any(map(is_compiled_file, (path, *others)))
    if against is None:
        against = [] if has_compiled else ["onnxruntime"]
    if against and has_compiled:
        raise OptionError(
            "other engines cannot load a compiled file", where="against", remedy="Measure the .onnx file."
        )
    unknown = [name for name in against if name not in measure.ENGINES]
    if unknown:
        known = ", ".join(sorted(measure.ENGINES))
        raise OptionError(f"unknown engine '{unknown[0]}'", where="against", remedy=f"Choose from {known}.")
    if feeds is not None and sizes:
        raise OptionError("the inputs determine the sizes", where="sizes", remedy="Give sizes or inputs.")
    session = _compiled(path, threads)
    runs = _runs(path, session, against, threads)
    for other, label in zip(others, _labels(others), strict=True):
        second = _compiled(other, threads)
        _require_same_inputs(session, second, other)
        runs |= {f"{name}: {label}": run for name, run in _runs(other, second, against, threads).items()}
    for assigned, arrays in _feeds_by_sizes(path, sizes, feeds, session):
        yield Figures(assigned, tuple(_measure(runs, arrays, seconds, streams, warmup)))


def _compiled(path: str | os.PathLike[str], threads: int | None) -> Session:
    session = Session(path, compile="wait", threads=threads)
    if not session.wait():
        raise UnsupportedError(f"the model is not compiled: {session.not_compiled}", where=os.fspath(path))
    return session


def _runs(
    path: str | os.PathLike[str], session: Session, against: Sequence[str], threads: int | None
) -> dict[str, Run]:
    """Return the runs of a model by engine, Sardonyx first."""
    runs: dict[str, Run] = {SUBJECT: lambda arrays: session.run(None, arrays)}
    for name in against:
        runs[name] = measure.loaded(path, pool(threads).threads, name, spinning=True)
    return runs


def _labels(paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    """Return the names of files; the paths and, for a file given twice, numbers where names are equal."""
    names = [Path(path).name for path in paths]
    if len(set(names)) < len(names):
        names = [os.fspath(path) for path in paths]
    return [f"{name} ({names[:at].count(name) + 1})" if name in names[:at] else name for at, name in enumerate(names)]


def _require_same_inputs(first: Session, second: Session, path: str | os.PathLike[str]) -> None:
    expected, actual = ({value.name: value.type for value in one.get_inputs()} for one in (first, second))
    if actual != expected:
        raise OptionError(
            f"expected the inputs of the first model ({_listed(expected)}), got {_listed(actual)}.",
            where=os.fspath(path),
            remedy="Measure the models one by one.",
        )


def _listed(types: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {type}" for name, type in types.items()) or "none"


def _feeds_by_sizes(
    path: str | os.PathLike[str], sizes: Sequence[Mapping[str, int]], feeds: Mapping[str, Any] | None, session: Session
) -> Iterator[tuple[Mapping[str, int], Mapping[str, Any]]]:
    if feeds is not None:
        yield {}, feeds
        return
    choices: Sequence[Mapping[str, int] | None] = sizes or [None]
    for requested in choices:
        arrays, assigned = drawn_feeds(path, session, requested)
        yield assigned, arrays


def _measure(
    runs: Mapping[str, Run], feeds: Mapping[str, Any], seconds: float, streams: Sequence[int], warmup: float
) -> Iterator[EngineFigures]:
    calls = {name: functools.partial(run, feeds) for name, run in runs.items()}
    for call in calls.values():
        deadline = time.perf_counter() + warmup
        while time.perf_counter() < deadline:
            call()
    rounds = time_rounds(calls, seconds)
    ours = list(map(statistics.median, rounds[SUBJECT]))
    for name, call in calls.items():
        all_runs = sorted(run for block in rounds[name] for run in block)
        ratios = sorted(statistics.median(block) / own for block, own in zip(rounds[name], ours, strict=True))
        yield EngineFigures(
            name,
            {percent: _percentile(all_runs, percent) for percent in PERCENTILES},
            len(all_runs),
            statistics.median(ratios),
            measure.median_interval(ratios),
            {count: throughput(call, count, seconds) for count in streams},
            energy(call, seconds),
            tuple(map(tuple, rounds[name])),
        )


def _percentile(ordered: Sequence[float], percent: int) -> float:
    """Return the least value that ``percent`` percent of the values do not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def throughput(call: Callable[[], object], streams: int, seconds: float) -> float:
    """Return runs per second of ``streams`` threads that call without pause.

    Raises:
        EvaluationError: A call failed.
    """
    time.sleep(REST_SECONDS)
    ready, failed = threading.Barrier(streams + 1), []
    counts = [0] * streams
    over = threading.Event()

    def stream(number: int) -> None:
        ready.wait()
        try:
            while not over.is_set():
                call()
                counts[number] += 1
        except Exception as error:  # The waiting thread raises it again.
            failed.append(error)

    threads = [threading.Thread(target=stream, args=(number,), daemon=True) for number in range(streams)]
    for thread in threads:
        thread.start()
    ready.wait()
    begin = time.perf_counter()
    over.wait(seconds)
    over.set()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - begin
    if failed:
        raise EvaluationError(f"a call failed while {streams} ran concurrently: {failed[0]}") from failed[0]
    return sum(counts) / elapsed


def energy(call: Callable[[], object], seconds: float, folder: Path = RAPL) -> float | None:
    """Return joules per run of all processors of the machine; None without readable counters."""
    counters = _counters(folder)
    if not counters:
        return None
    try:
        before = {path: int(path.read_text()) for path in counters}
        begin, count = time.perf_counter(), 0
        while not count or time.perf_counter() - begin < seconds:
            call()
            count += 1
        used = 0
        for path, start in before.items():
            # A counter wraps around at its range.
            most = int((path.parent / "max_energy_range_uj").read_text())
            used += (int(path.read_text()) - start) % (most + 1)
    except OSError:
        # Most systems let only root read the counters.
        return None
    return used / 1e6 / count


def _counters(folder: Path) -> list[Path]:
    """Return the counters of whole packages; inner domains are part of their package."""
    return [path for path in sorted(folder.glob("intel-rapl:*/energy_uj")) if path.parent.name.count(":") == 1]
