"""Latency of a model file in ONNX Runtime compared with other files, in paired, alternating runs.

A comparison alternates single runs of two models, in alternating order, and takes the median of the ratios of adjacent
runs, which excludes drift of the machine. New sessions in swapped order are created a few times, because the addresses
of a session's memory change its time by some percent. Workers do not spin: the spinning threads of an idle session
would occupy the cores.

`python paired.py FEEDS RESULT NAME=OTHER… ?NAME=CANDIDATE…` is the child process that measures one model; it prints
JSON.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import onnxruntime

import suites
from sardonyx.rewrite.measure import median_interval

THREADS = 2
SESSIONS = 3
"""Number of times that a comparison creates its two sessions."""
PAIR_SECONDS = 1.5
UNDECIDED_SECONDS = 4.5
"""Limit of a comparison while the confidence interval of its median contains the limit."""
FEWEST_PAIRS = 12
SCREEN_SECONDS = 1.5
MOST_SCREENS = 500
LIMIT = 1.02
TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True)
class Comparison:
    """Latency over another model's; `low` and `high` bound the median ratio with 95 % confidence."""

    other: str
    ratio: float
    low: float
    high: float
    seconds: float
    other_seconds: float
    pairs: int


@dataclass(frozen=True)
class Latency:
    """One result compared with others: `comparisons` by name, `fastest` of the candidates, or `failure`."""

    comparisons: dict[str, Comparison] = field(default_factory=dict)
    fastest: str | None = None
    failure: str | None = None


def compare(result: Path, compared: Mapping[str, Path], candidates: Mapping[str, Path], feeds: suites.Feeds) -> Latency:
    """Compare `result` in a child process with each model of `compared` and the fastest of `candidates`."""
    with tempfile.TemporaryDirectory() as folder:
        stored = Path(folder) / "feeds.npz"
        np.savez(stored, **feeds)
        named = [f"{name}={path}" for name, path in compared.items()]
        screened = [f"?{name}={path}" for name, path in candidates.items()]
        command = [sys.executable, __file__, str(stored), str(result), *named, *screened]
        try:
            child = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            return Latency(failure=f"did not end within {TIMEOUT_SECONDS:.0f} s")
    if child.returncode:
        last = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        return Latency(failure=last[:300])
    reply = json.loads(child.stdout.splitlines()[-1])
    comparisons = {name: Comparison(**fields) for name, fields in reply["comparisons"].items()}
    return Latency(comparisons, reply["fastest"])


def run_seconds(session: onnxruntime.InferenceSession, feeds: suites.Feeds) -> float:
    begin = time.perf_counter()
    session.run(None, feeds)
    return time.perf_counter() - begin


def fastest(paths: Mapping[str, Path], feeds: suites.Feeds) -> str:
    """Return the name of the model with the smallest median latency, in alternating runs."""
    if len(paths) == 1:
        return next(iter(paths))
    sessions = {name: suites.session(path, "ORT_ENABLE_ALL", THREADS) for name, path in paths.items()}
    runs: dict[str, list[float]] = {name: [] for name in sessions}
    for session in sessions.values():
        session.run(None, feeds)
    begin = time.perf_counter()
    for _ in range(MOST_SCREENS):
        for name, session in sessions.items():
            runs[name].append(run_seconds(session, feeds))
        if time.perf_counter() - begin > SCREEN_SECONDS:
            break
    return min(runs, key=lambda name: statistics.median(runs[name]))


def paired(result: Path, name: str, other: Path, feeds: suites.Feeds) -> Comparison:
    """Return the median of the ratios of alternating runs."""
    ratios: list[float] = []
    ours: list[float] = []
    theirs: list[float] = []
    for round_number in range(SESSIONS):
        paths = [result, other] if round_number % 2 == 0 else [other, result]
        sessions = {path: suites.session(path, "ORT_ENABLE_ALL", THREADS) for path in paths}
        first, second = sessions[result], sessions[other]
        for session in (first, second, first, second):
            session.run(None, feeds)
        share = (round_number + 1) / SESSIONS
        begin = time.perf_counter()
        while is_unfinished(ratios, time.perf_counter() - begin, share):
            if len(ratios) % 2:
                mine, its = run_seconds(first, feeds), run_seconds(second, feeds)
            else:
                its, mine = run_seconds(second, feeds), run_seconds(first, feeds)
            ours.append(mine)
            theirs.append(its)
            ratios.append(mine / its)
        del sessions, first, second
    low, high = interval(ratios)
    return Comparison(
        name, statistics.median(ratios), low, high, statistics.median(ours), statistics.median(theirs), len(ratios)
    )


def is_unfinished(ratios: Sequence[float], seconds: float, share: float) -> bool:
    """Return True if the current sessions need more runs, up to the `share` of all pairs."""
    if len(ratios) < FEWEST_PAIRS * share or seconds < PAIR_SECONDS / SESSIONS:
        return True
    low, high = interval(ratios)
    return low <= LIMIT <= high and seconds < UNDECIDED_SECONDS / SESSIONS


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median."""
    limits = median_interval(sorted(ratios))
    return limits if limits is not None else (min(ratios), max(ratios))


def main() -> None:
    stored, result, *named = sys.argv[1:]
    with np.load(stored) as arrays:
        feeds = {name: arrays[name] for name in arrays.files}
    paths = {name: Path(path) for name, path in (entry.split("=", 1) for entry in named)}
    compared = {name: path for name, path in paths.items() if not name.startswith("?")}
    candidates = {name[1:]: path for name, path in paths.items() if name.startswith("?")}
    best = fastest(candidates, feeds) if candidates else None
    if best:
        compared[best] = candidates[best]
    figures = {name: asdict(paired(Path(result), name, path, feeds)) for name, path in compared.items()}
    print(json.dumps({"comparisons": figures, "fastest": best}))


if __name__ == "__main__":
    main()
