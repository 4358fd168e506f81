"""A model on several engines, side by side: latency with its spread, ratios with their uncertainty, throughput, energy.

Engines take turns in one process (:mod:`.alternation`). A ratio is the median over the rounds of a peer's time over
ours, and its interval holds the true median with a probability of 95 %, whatever the times' distribution: it is that of
order statistics.
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

from sardonyx.compiler.executor.thread_pool import pool
from sardonyx.errors import EvaluationError, OptionError, UnsupportedError
from sardonyx.report.alternation import REST_SECONDS, alternated
from sardonyx.rewrite import measure
from sardonyx.runtime import Session

SUBJECT = "sardonyx"
PERCENTILES = (50, 90, 99)

RAPL = Path("/sys/class/powercap")
"""Where Linux tells the energy that processors took."""

Run = Callable[[Mapping[str, Any]], object]


@dataclass(frozen=True)
class EngineFigures:
    """One engine on one set of sizes.

    Attributes:
        engine: Its name.
        percentiles: Seconds of a run, by percentile.
        runs: How many were counted.
        ratio: Its time over Sardonyx's; above 1 Sardonyx is faster.
        interval: That holds the true median ratio with 95 %; None with too few rounds.
        streams: Runs a second, by number of threads that call at once.
        joules: Energy of a run; None where the machine does not tell.
    """

    engine: str
    percentiles: Mapping[int, float]
    runs: int
    ratio: float
    interval: tuple[float, float] | None
    streams: Mapping[int, float]
    joules: float | None


@dataclass(frozen=True)
class Figures:
    """All engines on one set of sizes.

    Attributes:
        sizes: What open sizes were.
        engines: The figures, Sardonyx first.
    """

    sizes: Mapping[str, int]
    engines: tuple[EngineFigures, ...]

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def bench(
    path: str | os.PathLike[str],
    against: Sequence[str] = ("onnxruntime",),
    *,
    sizes: Sequence[Mapping[str, int]] = (),
    feeds: Mapping[str, Any] | None = None,
    seconds: float = 2.0,
    threads: int | None = None,
    streams: Sequence[int] = (),
) -> Iterator[Figures]:
    """Measure a model.

    Args:
        path: The model.
        against: Other engines, of :data:`sardonyx.rewrite.measure.ENGINES`.
        sizes: Assignments of open sizes, each measured; typical ones where empty.
        feeds: Real inputs instead of drawn ones; no sizes then.
        seconds: To spend on each set of sizes, and on each number of streams.
        threads: Threads of every engine; all there are by default.
        streams: How many threads call at once, where throughput is measured.

    Yields:
        The figures of each set of sizes, as they are there.

    Raises:
        OptionError: There is no such engine, or sizes and inputs are both given.
        MissingDependencyError: An engine is not installed.
        EvaluationError: An engine does not run the model.
        UnsupportedError: The model is not compiled.
    """
    unknown = [name for name in against if name not in measure.ENGINES]
    if unknown:
        known = ", ".join(sorted(measure.ENGINES))
        raise OptionError(f"there is no engine '{unknown[0]}'.", where="against", remedy=f"There are: {known}.")
    if feeds is not None and sizes:
        raise OptionError("are told by the inputs that are given.", where="sizes")
    session = Session(path, compile="wait", threads=threads)
    if not session.wait():
        raise UnsupportedError(f"the model is not compiled: {session.not_compiled}", where=os.fspath(path))
    runs: dict[str, Run] = {SUBJECT: lambda given: session.run(None, given)}
    for name in against:
        runs[name] = measure.loaded(path, pool(threads).threads, name, spinning=True)
    for chosen, given in _given(path, sizes, feeds, runs[SUBJECT]):
        yield Figures(chosen, tuple(_measured(runs, given, seconds, streams)))


def _given(
    path: str | os.PathLike[str], sizes: Sequence[Mapping[str, int]], feeds: Mapping[str, Any] | None, run: Run
) -> Iterator[tuple[Mapping[str, int], Mapping[str, Any]]]:
    if feeds is not None:
        yield {}, feeds
        return
    if not sizes:

        def named(given: Mapping[str, Any]) -> Mapping[str, Any]:
            run(given)
            return {}

        drawn, chosen = measure.draw(path, named)
        yield chosen, drawn
        return
    for assigned in sizes:
        drawn, chosen = measure.draw_at(path, assigned)
        yield chosen, drawn


def _measured(
    runs: Mapping[str, Run], given: Mapping[str, Any], seconds: float, streams: Sequence[int]
) -> Iterator[EngineFigures]:
    calls = {name: functools.partial(run, given) for name, run in runs.items()}
    rounds = alternated(calls, seconds)
    ours = list(map(statistics.median, rounds[SUBJECT]))
    for name, call in calls.items():
        all_runs = sorted(each for block in rounds[name] for each in block)
        ratios = sorted(statistics.median(block) / own for block, own in zip(rounds[name], ours, strict=True))
        yield EngineFigures(
            name,
            {percent: _percentile(all_runs, percent) for percent in PERCENTILES},
            len(all_runs),
            statistics.median(ratios),
            measure.median_interval(ratios),
            {count: throughput(call, count, seconds) for count in streams},
            energy(call, seconds),
        )


def _percentile(ordered: Sequence[float], percent: int) -> float:
    """The least value that so many percent do not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def throughput(call: Callable[[], object], streams: int, seconds: float) -> float:
    """Runs a second, of so many threads that call without pause.

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
        except Exception as error:  # it is raised again by the thread that waits
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
    taken = time.perf_counter() - begin
    if failed:
        raise EvaluationError(f"a call failed while {streams} ran at once: {failed[0]}") from failed[0]
    return sum(counts) / taken


def energy(call: Callable[[], object], seconds: float, folder: Path = RAPL) -> float | None:
    """Joules of a run, of all the machine's processors; None where these do not tell."""
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
            # A counter begins anew at its range.
            most = int((path.parent / "max_energy_range_uj").read_text())
            used += (int(path.read_text()) - start) % (most + 1)
    except OSError:
        # Most systems let nobody but root read them.
        return None
    return used / 1e6 / count


def _counters(folder: Path) -> list[Path]:
    """Those of whole packages; what lies within them is part of them."""
    return [path for path in sorted(folder.glob("intel-rapl:*/energy_uj")) if path.parent.name.count(":") == 1]
