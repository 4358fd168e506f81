"""How fast ONNX Runtime runs one model file beside others: paired, alternating runs in one process.

Each comparison alternates single runs of the two models, the order swapped every time, and takes the median of the
ratios of neighbouring runs: drift of the machine falls out. Sessions are made anew a few times in swapped order, since
where a session's memory happens to lie is worth some percent. Workers do not spin: an idle session's spinning threads
would take the cores from the other one.

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
"""How often the two sessions of a comparison are made anew."""
PAIR_SECONDS = 1.5
UNDECIDED_SECONDS = 4.5
"""A comparison goes on up to here while the confidence interval of its median holds the limit."""
FEWEST_PAIRS = 12
SCREEN_SECONDS = 1.5
MOST_SCREENS = 500
LIMIT = 1.02
TIMEOUT_SECONDS = 600.0


@dataclass(frozen=True)
class Comparison:
    """Latency of a result over that of another model; `low` and `high` hold the median ratio with 95 % confidence."""

    other: str
    ratio: float
    low: float
    high: float
    seconds: float
    other_seconds: float
    pairs: int


@dataclass(frozen=True)
class Latency:
    """One result beside others: `comparisons` by name, `fastest` of the candidates, or `failure`."""

    comparisons: dict[str, Comparison] = field(default_factory=dict)
    fastest: str | None = None
    failure: str | None = None


def compare(result: Path, compared: Mapping[str, Path], candidates: Mapping[str, Path], feeds: suites.Feeds) -> Latency:
    """Measure `result` in a child process beside each model of `compared` and the fastest of `candidates`."""
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
    found = json.loads(child.stdout.splitlines()[-1])
    comparisons = {name: Comparison(**fields) for name, fields in found["comparisons"].items()}
    return Latency(comparisons, found["fastest"])


def run_seconds(session: onnxruntime.InferenceSession, feeds: suites.Feeds) -> float:
    begin = time.perf_counter()
    session.run(None, feeds)
    return time.perf_counter() - begin


def fastest(paths: Mapping[str, Path], feeds: suites.Feeds) -> str:
    """The name of the model with the least median latency, runs of all taken in turn."""
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
    """The median of the ratios of alternating runs."""
    ratios: list[float] = []
    ours: list[float] = []
    theirs: list[float] = []
    for round_number in range(SESSIONS):
        paths = [result, other] if round_number % 2 == 0 else [other, result]
        made = {path: suites.session(path, "ORT_ENABLE_ALL", THREADS) for path in paths}
        first, second = made[result], made[other]
        for session in (first, second, first, second):
            session.run(None, feeds)
        share = (round_number + 1) / SESSIONS
        begin = time.perf_counter()
        while wanted(ratios, time.perf_counter() - begin, share):
            if len(ratios) % 2:
                mine, its = run_seconds(first, feeds), run_seconds(second, feeds)
            else:
                its, mine = run_seconds(second, feeds), run_seconds(first, feeds)
            ours.append(mine)
            theirs.append(its)
            ratios.append(mine / its)
        del made, first, second
    low, high = interval(ratios)
    return Comparison(
        name, statistics.median(ratios), low, high, statistics.median(ours), statistics.median(theirs), len(ratios)
    )


def wanted(ratios: Sequence[float], seconds: float, share: float) -> bool:
    """Whether the sessions at hand should go on: `share` is the part of all pairs due by their end."""
    if len(ratios) < FEWEST_PAIRS * share or seconds < PAIR_SECONDS / SESSIONS:
        return True
    low, high = interval(ratios)
    return low <= LIMIT <= high and seconds < UNDECIDED_SECONDS / SESSIONS


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Where the true median lies with 95 % confidence."""
    found = median_interval(sorted(ratios))
    return found if found is not None else (min(ratios), max(ratios))


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
    found = {name: asdict(paired(Path(result), name, path, feeds)) for name, path in compared.items()}
    print(json.dumps({"comparisons": found, "fastest": best}))


if __name__ == "__main__":
    main()
