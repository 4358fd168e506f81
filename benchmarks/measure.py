"""The measurements on one model: results of the tools, their latency, time and memory."""

from __future__ import annotations

import contextlib
import hashlib
import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

import onnxruntime

import isolated
import judge
import paired
import peers
import suites

ROUNDS = 3
SLOW_SECONDS = 2.0
"""Limit of the warm-up: slower tools run once."""
LARGE_BYTES = 200 << 20
"""Size from which workers run one after another, because all heaps would not fit into memory."""


@dataclass
class Outcome:
    """One tool on one model: the `verdict` on the result at `path`, or `failure`; time and memory."""

    path: str = ""
    verdict: judge.Verdict | None = None
    failure: str | None = None
    seconds: float | None = None
    peak_bytes: int | None = None
    children_peak_bytes: int | None = None

    @property
    def countable(self) -> bool:
        return self.verdict is not None and self.verdict.countable

    @property
    def reason(self) -> str:
        """The reason why the number of nodes cannot be compared."""
        return self.failure or (self.verdict.reason if self.verdict else "not measured")


@dataclass
class Row:
    """All measurements on one model; `again` lists the changes of a second run of Sardonyx."""

    name: str
    suite: str
    bytes: int
    before: judge.Verdict
    tools: dict[str, Outcome] = field(default_factory=dict)
    again: str | None = None
    latency: paired.Latency | None = None

    @property
    def subject(self) -> Outcome:
        return self.tools[peers.SUBJECT.name]

    def counted(self) -> dict[str, int]:
        """Return the nodes of every peer whose result is correct and standard."""
        return {
            tool.name: self.tools[tool.name].verdict.nodes
            for tool in peers.PEERS
            if tool.name in self.tools and self.tools[tool.name].countable
        }

    @property
    def fewest(self) -> int:
        """The fewest nodes of any peer's correct and standard result, and of the input."""
        return min([*self.counted().values(), self.before.nodes])


class Bench:
    """The measurement of models one by one; results are stored under `work`, and peers' are reused.

    A context manager, which ends the workers.
    """

    def __init__(self, work: Path) -> None:
        self.work = work
        self.workers = isolated.Workers()
        self.tools = [tool for tool in (peers.SUBJECT, *peers.PEERS) if tool.installed]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.workers.__exit__(*exception)

    def row(self, case: suites.Case, sections: Sequence[str]) -> Row:
        samples = suites.samples(case)
        row = Row(case.name, case.suite, case.path.stat().st_size, judge.judge(case.path, case, samples))
        row.tools = {tool.name: self.outcome(tool, case, samples) for tool in self.tools}
        if row.subject.verdict:
            row.again = self.second_run(Path(row.subject.path))
        if "latency" in sections and row.subject.verdict:
            row.latency = self.compared_latency(case, row)
        if "time" in sections or "memory" in sections:
            self.add_effort(case, row, ROUNDS if "time" in sections else 0)
        if "memory" in sections:
            verified = isolated.run_once(peers.VERIFYING.name, case.path, self.scratch(peers.VERIFYING.name))
            row.tools[peers.VERIFYING.name] = Outcome(
                failure=verified.failure,
                seconds=verified.seconds,
                peak_bytes=verified.peak_bytes,
                children_peak_bytes=verified.children_peak_bytes,
            )
        return row

    def result_path(self, tool: peers.Tool, case: suites.Case) -> Path:
        return self.work / "results" / f"{tool.module}-{tool.version}" / f"{case.name}.onnx"

    def outcome(self, tool: peers.Tool, case: suites.Case, samples: Sequence[suites.Sample]) -> Outcome:
        """Return the tool's result and verdict; an unchanged peer's from the last call."""
        path = self.result_path(tool, case)
        stored = path.with_suffix(".json")
        key = fingerprint(tool, case)
        if tool != peers.SUBJECT and stored.exists():
            known = json.loads(stored.read_text())
            if known["key"] == key:
                verdict = judge.Verdict(**known["verdict"]) if known["verdict"] else None
                return Outcome(str(path), verdict, known["failure"])
        run = self.workers.run(tool.name, case.path, path)
        verdict = None if run.failure else judge.judge(path, case, samples)
        stored.write_text(json.dumps({"key": key, "verdict": verdict and asdict(verdict), "failure": run.failure}))
        return Outcome(str(path), verdict, run.failure)

    def second_run(self, first: Path) -> str | None:
        """Return the changes of Sardonyx's own result by Sardonyx; None for none."""
        second = first.with_suffix(".again.onnx")
        run = isolated.run_once(peers.SUBJECT.name, first, second)
        if run.failure:
            return run.failure
        return None if first.read_bytes() == second.read_bytes() else judge.changes(first, second)

    def compared_latency(self, case: suites.Case, row: Row) -> paired.Latency:
        """Compare with the input, the fastest correct and standard result, and all with fewer nodes."""
        nodes = row.counted()
        paths = {name: Path(row.tools[name].path) for name in nodes}
        fewer = {name: paths[name] for name in nodes if nodes[name] < row.subject.verdict.nodes}
        feeds = case.feeds(suites.LATENCY_SIZES)
        return paired.compare(Path(row.subject.path), {"input": case.path, **fewer}, paths, feeds)

    def add_effort(self, case: suites.Case, row: Row, rounds: int) -> None:
        """Measure time and peak memory of every tool with a result; rounds alternate over all tools."""
        able = [tool.name for tool in self.tools if row.tools[tool.name].failure is None]
        groups = [[name] for name in able] if row.bytes > LARGE_BYTES else [able]
        for group in groups:
            for name, effort in self.efforts(group, case, rounds).items():
                outcome = row.tools[name]
                outcome.seconds, outcome.peak_bytes, outcome.failure = effort.seconds, effort.peak_bytes, effort.failure

    def efforts(self, names: Sequence[str], case: suites.Case, rounds: int) -> dict[str, isolated.Run]:
        """Return each tool's peak in its first run, and the median seconds of the rounds after this run."""
        with contextlib.ExitStack() as stack:
            workers = {name: stack.enter_context(isolated.Worker(name)) for name in names}
            first = {name: worker.run(case.path, self.scratch(name)) for name, worker in workers.items()}
            timed = [name for name in names if not first[name].failure and first[name].seconds < SLOW_SECONDS]
            runs = {name: [] if name in timed else [first[name]] for name in names}
            for _ in range(rounds):
                for name in timed:
                    runs[name].append(workers[name].run(case.path, self.scratch(name)))
        return {name: summed_up(first[name], runs[name]) for name in names}

    def scratch(self, name: str) -> Path:
        return self.work / "scratch" / f"{name}.onnx"


def summed_up(first: isolated.Run, runs: Sequence[isolated.Run]) -> isolated.Run:
    """Return the peak of the first run with the median time of `runs`; the first failure if any."""
    failure = next((run.failure for run in (first, *runs) if run.failure), None)
    if failure:
        return isolated.Run(failure=failure)
    seconds = statistics.median(run.seconds for run in runs) if runs else None
    return isolated.Run(seconds, first.peak_bytes, first.children_peak_bytes)


def fingerprint(tool: peers.Tool, case: suites.Case) -> str:
    """Return a digest of the tool, the model, ONNX Runtime and the code of the verdict."""
    digest = hashlib.sha256(f"{tool.distribution} {tool.version} {onnxruntime.__version__}".encode())
    for path in (case.path, Path(judge.__file__), Path(suites.__file__), Path(peers.__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()
