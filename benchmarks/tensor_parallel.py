"""Measure one request to a model that several ways compute together, beside the whole in one process.

    python benchmarks/tensor_parallel.py --model gpt2.onnx --ways 2 --length 128 --engines alone ray

`alone` is the processor time of one way without an engine, sums and joins with its own parts: the time that ways take
if exchanges cost nothing. `ray` is the time of a request to actors of Ray, exchanges included; the cost of an exchange
is the difference from `alone`. Ratios are those of the whole with one thread; the goal is the number of ways. Turns
alternate, the first ones warm up; figures are medians.

Ray gives its workers niceness 15 unless RAY_worker_niceness is set: beside other work on the machine, the actors would
wait while the whole runs. Here they have the niceness of this process.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rich.console
import rich.table

import sardonyx
from sardonyx.distributed.tensor_parallel import TensorParallel, Way


def feeds_of(session: sardonyx.Session, length: int) -> dict[str, np.ndarray]:
    """Return inputs of one row; open sizes after the first are the length, integers from 0 to 99."""
    rng = np.random.default_rng(0)
    feeds = {}
    for info in session.get_inputs():
        shape = [size if isinstance(size, int) else length if axis else 1 for axis, size in enumerate(info.shape or ())]
        integers = np.int64 if "int64" in info.type else np.int32
        feeds[info.name] = (
            rng.integers(0, 100, shape).astype(integers)
            if "int" in info.type
            else rng.standard_normal(shape, np.float32)
        )
    return feeds


def one_way(parallel: TensorParallel, feeds: dict[str, np.ndarray]) -> Callable[[], Any]:
    way = Way(parallel.sessions(0, threads=1, compile="wait"))

    def run() -> None:
        way.start(feeds)
        for number, stage in enumerate(parallel.stages):
            parts = way.run(number)
            way.join(stage.joins, [parts] * parallel.ways)

    return run


def turn(work: Callable[[], Any], clock: Callable[[], float], runs: int) -> float:
    begin = clock()
    for _ in range(runs):
        work()
    return (clock() - begin) / runs


def pair(
    whole: Callable[[], Any], work: Callable[[], Any], clock: Callable[[], float], runs: int, number: int
) -> tuple[float, float]:
    """Return the time of a request of both; odd turns measure the second one first."""
    if number % 2:
        second = turn(work, clock, runs)
        return turn(whole, clock, runs), second
    return turn(whole, clock, runs), turn(work, clock, runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--ways", type=int, default=2)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--runs", type=int, default=5, help="requests of a turn")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--engines", nargs="+", choices=("alone", "ray"), default=["alone", "ray"])
    arguments = parser.parse_args()
    console = rich.console.Console()
    begin = time.perf_counter()
    parallel = sardonyx.split_tensors(arguments.model, arguments.ways)
    console.print(
        f"split in {time.perf_counter() - begin:.1f} s: {len(parallel.stages)} stages, error {parallel.error:.1e}, "
        f"{max(parallel.weight_bytes) / 1e6:.1f} MB a way of {arguments.model.stat().st_size / 1e6:.1f} MB"
    )
    whole = sardonyx.Session(arguments.model, threads=1, compile="wait")
    feeds = feeds_of(whole, arguments.length)
    works: dict[str, tuple[Callable[[], Any], Callable[[], float]]] = {}
    if "alone" in arguments.engines:
        works["alone"] = one_way(parallel, feeds), time.process_time
    if "ray" in arguments.engines:
        os.environ.setdefault("RAY_worker_niceness", str(os.nice(0)))
        import ray

        from sardonyx.distributed.ray_tensor_parallel import RayTensorParallel

        ray.init(num_cpus=arguments.ways, include_dashboard=False, log_to_driver=False)
        actors = RayTensorParallel(parallel)
        works["ray"] = (lambda: actors.run(feeds)), time.perf_counter
    table = rich.table.Table("engine", "whole ms", "ms", "whole / engine", "ms an exchange")
    alone = 0.0
    for name, (work, clock) in works.items():
        pairs = [pair(lambda: whole.run(None, feeds), work, clock, arguments.runs, number)
                 for number in range(arguments.rounds + 1)][1:]  # fmt: skip
        left, right = (statistics.median(pair[index] for pair in pairs) * 1e3 for index in (0, 1))
        ratio = statistics.median(a / b for a, b in pairs)
        exchange = (right - alone) / (len(parallel.stages) - 1) if alone and len(parallel.stages) > 1 else None
        table.add_row(
            name, f"{left:.1f}", f"{right:.1f}", f"{ratio:.2f}", "" if exchange is None else f"{exchange:.2f}"
        )
        alone = right if name == "alone" else alone
    console.print(table)


if __name__ == "__main__":
    main()
