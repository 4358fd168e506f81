"""Timing several sides in one process: short blocks of runs that alternate, each after a rest.

A peer's workers spin for a while after a run and would take the cores from whoever comes next: the rest lets them fall
asleep. The first run of a block wakes a side's own workers, and is not counted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

REST_SECONDS = 0.01
BLOCK_SECONDS = 0.03
FEWEST_RUNS = 3
"""Counted runs of a block; of a side that takes longer than a block, one."""

FEWEST_ROUNDS = 5

Rounds = dict[str, list[list[float]]]
"""Seconds of every counted run, by side and round."""


def alternated(sides: Mapping[str, Callable[[], object]], seconds: float) -> Rounds:
    """The runs of each side; who comes first changes from round to round.

    Args:
        sides: What is timed.
        seconds: How long, unless ``FEWEST_ROUNDS`` take longer.
    """
    for call in sides.values():
        call()
    rounds: Rounds = {name: [] for name in sides}
    order = list(sides)
    deadline = time.perf_counter() + seconds
    while len(rounds[order[0]]) < FEWEST_ROUNDS or time.perf_counter() < deadline:
        for name in order:
            rounds[name].append(block(sides[name]))
        order = [*order[1:], order[0]]
    return rounds


def alternate(sides: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """The medians of the blocks of each side, one a round; see :func:`alternated`."""
    return {name: list(map(statistics.median, blocks)) for name, blocks in alternated(sides, seconds).items()}


def block(call: Callable[[], object]) -> list[float]:
    """The seconds of the runs of one block."""
    time.sleep(REST_SECONDS)
    first = timed(call)
    wanted = 1 if first > BLOCK_SECONDS else FEWEST_RUNS
    runs: list[float] = []
    begin = time.perf_counter()
    while len(runs) < wanted or (first <= BLOCK_SECONDS and time.perf_counter() - begin < BLOCK_SECONDS):
        runs.append(timed(call))
    return runs


def timed(call: Callable[[], object]) -> float:
    """The seconds of a call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def ratio(theirs: list[float], ours: list[float]) -> float:
    """The median over the rounds of one side's time over another's: drift of the machine falls out."""
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True))
