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


def alternate(sides: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """The medians of the blocks of each side, one a round; who comes first changes from round to round.

    Args:
        sides: What is timed.
        seconds: How long, unless ``FEWEST_ROUNDS`` take longer.
    """
    for call in sides.values():
        call()
    medians: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides)
    deadline = time.perf_counter() + seconds
    while len(medians[order[0]]) < FEWEST_ROUNDS or time.perf_counter() < deadline:
        for name in order:
            medians[name].append(block(sides[name]))
        order = [*order[1:], order[0]]
    return medians


def block(call: Callable[[], object]) -> float:
    """The median seconds of the runs of one block."""
    time.sleep(REST_SECONDS)
    first = timed(call)
    wanted = 1 if first > BLOCK_SECONDS else FEWEST_RUNS
    runs: list[float] = []
    begin = time.perf_counter()
    while len(runs) < wanted or time.perf_counter() - begin < BLOCK_SECONDS:
        runs.append(timed(call))
        if len(runs) >= wanted and first > BLOCK_SECONDS:
            break
    return statistics.median(runs)


def timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def ratio(theirs: list[float], ours: list[float]) -> float:
    """The median over the rounds of one side's time over another's: drift of the machine falls out."""
    return statistics.median(a / b for a, b in zip(theirs, ours, strict=True))
