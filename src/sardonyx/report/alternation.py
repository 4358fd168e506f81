"""Timing of several sides in one process: short alternating blocks of runs, each after a rest.

An engine's workers spin for a while after a run and would take cores from the next engine: during the rest the workers
fall asleep. The first run of a block wakes the side's own workers, and is not counted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

REST_SECONDS = 0.01
BLOCK_SECONDS = 0.03
FEWEST_RUNS = 3
"""Counted runs of a block; one for a side that takes longer than a block."""

FEWEST_ROUNDS = 5

Rounds = dict[str, list[list[float]]]
"""Seconds of every counted run, by side and round."""


def time_rounds(sides: Mapping[str, Callable[[], object]], seconds: float) -> Rounds:
    """Return the runs of each side; the order of the sides rotates from round to round.

    Args:
        sides: The calls to time.
        seconds: Duration, unless ``FEWEST_ROUNDS`` take longer.
    """
    for call in sides.values():
        call()
    rounds: Rounds = {name: [] for name in sides}
    order = list(sides)
    deadline = time.perf_counter() + seconds
    while len(rounds[order[0]]) < FEWEST_ROUNDS or time.perf_counter() < deadline:
        for name in order:
            rounds[name].append(time_block(sides[name]))
        order = [*order[1:], order[0]]
    return rounds


def alternate(sides: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """Return the medians of the blocks of each side, one per round; see :func:`time_rounds`."""
    return {name: list(map(statistics.median, blocks)) for name, blocks in time_rounds(sides, seconds).items()}


def time_block(call: Callable[[], object]) -> list[float]:
    """Return the seconds of the counted runs of one block."""
    time.sleep(REST_SECONDS)
    first = timed(call)
    fewest = 1 if first > BLOCK_SECONDS else FEWEST_RUNS
    runs: list[float] = []
    begin = time.perf_counter()
    while len(runs) < fewest or (first <= BLOCK_SECONDS and time.perf_counter() - begin < BLOCK_SECONDS):
        runs.append(timed(call))
    return runs


def timed(call: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def ratio(theirs: list[float], ours: list[float]) -> float:
    """Return the median over the rounds of one side's time over another's: drift of the machine cancels."""
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True))
