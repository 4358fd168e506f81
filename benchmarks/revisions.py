"""Compare the latency of two source trees of Sardonyx, in alternating blocks of one run.

    git worktree add --detach ../before HEAD~1
    SARDONYX_SUITES=… python benchmarks/revisions.py --before ../before/src --json revisions.json

Each tree has a process of its own with an empty cache. For each model both processes compile a session, then run it
in blocks that alternate; a ratio is the median of the blocks' ratios, after / before, with the interval of its middle
half. The last line is the geometric mean over the models. Outputs have to be equal within 1e-4 of the largest. A quiet
machine is needed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import rich.console
import rich.progress
import rich.table

import suites

TOLERANCE = 1e-4
SHORTEST_BLOCK = 0.02
"""Seconds; a block runs the model at least once."""


class Worker:
    """A process that imports one source tree and runs models on request."""

    def __init__(self, source: Path, cache: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source), "SARDONYX_CACHE": str(cache)}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def ask(self, **request: Any) -> Any:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the worker ended with status {self.process.wait()} at {request}")
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve() -> None:
    """Answer requests on the standard input: load a model, run a block, quit at its end."""
    from sardonyx import SardonyxError, Session

    channel, sys.stdout = sys.stdout, sys.stderr
    session: Any = None
    feeds: dict[str, np.ndarray] = {}
    for line in sys.stdin:
        request = json.loads(line)
        reply: dict[str, Any]
        if "path" in request:
            with np.load(request["feeds"]) as stored:
                feeds = dict(stored)
            try:
                session = Session(request["path"], compile="wait", threads=request["threads"])
            except SardonyxError as error:
                reply = {"error": str(error)}
            else:
                outputs = [array for value in session.run(None, feeds) for array in numeric_arrays(value)]
                np.savez(request["outputs"], *outputs)
                reply = {"error": None if session.native is not None else str(session.not_compiled)}
        else:
            times = []
            end = time.perf_counter() + request["seconds"]
            while not times or time.perf_counter() < end:
                start = time.perf_counter()
                session.run(None, feeds)
                times.append(time.perf_counter() - start)
            reply = {"seconds": float(np.median(times))}
        channel.write(json.dumps(reply) + "\n")
        channel.flush()


def numeric_arrays(output: Any) -> list[np.ndarray]:
    """Return the arrays of an output, a tensor or a sequence, without strings."""
    parts = output if isinstance(output, list) else [output]
    return [array for array in map(np.asarray, parts) if array.dtype.kind in "fiub"]


def difference(paths: tuple[Path, Path]) -> float:
    """Return the largest difference of the stored outputs, relative to the magnitude of each output."""
    largest = 0.0
    with np.load(paths[0]) as before, np.load(paths[1]) as after:
        for name in before.files:
            first, second = before[name], after[name]
            if first.shape != second.shape:
                return math.inf
            if not first.size:
                continue
            scale = max(float(np.abs(first.astype(np.float64)).max()), 1e-30)
            largest = max(largest, float(np.abs(first.astype(np.float64) - second.astype(np.float64)).max()) / scale)
    return largest


def compare(
    workers: tuple[Worker, Worker], case: suites.Case, work: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Return one model's paired ratios, or the reason for none."""
    feeds = work / "feeds.npz"
    np.savez(feeds, **case.feeds(suites.LATENCY_SIZES))
    outputs = (work / "before.npz", work / "after.npz")
    for worker, path in zip(workers, outputs, strict=True):
        reply = worker.ask(path=str(case.path), feeds=str(feeds), outputs=str(path), threads=options.threads)
        if reply["error"]:
            return {"name": case.name, "error": reply["error"]}
    if (distance := difference(outputs)) > TOLERANCE:
        return {"name": case.name, "error": f"outputs differ by {distance:.1e}"}
    block = max(SHORTEST_BLOCK, options.seconds / (2 * options.rounds))
    pairs = []
    for index in range(options.rounds):
        order = workers if index % 2 == 0 else workers[::-1]
        times = {worker: worker.ask(seconds=block)["seconds"] for worker in order}
        pairs.append((times[workers[0]], times[workers[1]]))
    ratios = [after / before for before, after in pairs]
    low, middle, high = np.percentile(ratios, (25, 50, 75))
    before, after = np.median(pairs, axis=0)
    return {
        "name": case.name, "before_ms": before * 1e3, "after_ms": after * 1e3, "ratio": middle,
        "low": low, "high": high,
    }  # fmt: skip


def show(results: list[dict[str, Any]]) -> None:
    table = rich.table.Table("model", "before, ms", "after, ms", "after / before", "middle half", title="Latency")
    for result in results:
        if "error" in result:
            table.add_row(result["name"], result["error"])
        else:
            table.add_row(
                result["name"], f"{result['before_ms']:.3f}", f"{result['after_ms']:.3f}", f"{result['ratio']:.3f}",
                f"{result['low']:.3f}-{result['high']:.3f}",
            )  # fmt: skip
    console = rich.console.Console()
    console.print(table)
    if ratios := [result["ratio"] for result in results if "error" not in result]:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        console.print(f"geometric mean of {len(ratios)} models: {mean:.3f}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare the latency of two source trees of Sardonyx.")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--before", type=Path, help="the src folder of the other tree")
    parser.add_argument("--after", type=Path, default=Path(__file__).resolve().parents[1] / "src")
    parser.add_argument("--models", nargs="*", default=(), metavar="PATTERN", help="names, or suite/name; * matches")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=11, help="pairs of blocks of each model")
    parser.add_argument("--seconds", type=float, default=3.0, help="to run each model, both trees together")
    parser.add_argument("--json", type=Path, help="write every figure here")
    options = parser.parse_args()
    if options.worker:
        return options
    if options.before is None:
        parser.error(
            "--before is missing: the src folder of the other tree (git worktree add --detach ../before REVISION)"
        )
    for tree in (options.before, options.after):
        if not (tree / "sardonyx" / "__init__.py").is_file():
            parser.error(f"{tree} holds no package sardonyx; give the src folder of a tree")
    if "SARDONYX_SUITES" not in os.environ:
        parser.error("SARDONYX_SUITES does not name the folder of public models, which are measured")
    return options


def main() -> None:
    options = parse_arguments()
    if options.worker:
        serve()
        return
    results = []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        trees = (options.before.resolve(), options.after.resolve())
        workers = (Worker(trees[0], work / "cache-before"), Worker(trees[1], work / "cache-after"))
        cases = [case for case in suites.cases(work / "models", options.models) if not case.name.endswith(".dyn")]
        for case in rich.progress.track(cases, "models", console=rich.console.Console(stderr=True), transient=True):
            results.append(compare(workers, case, work, options))
        for worker in workers:
            worker.close()
    show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1, default=float))


if __name__ == "__main__":
    main()
