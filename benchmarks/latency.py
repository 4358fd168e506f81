"""Measure Sardonyx's compiled models next to ONNX Runtime and OpenVINO: float32, batch 1, two threads.

    SARDONYX_SUITES=… python benchmarks/latency.py --json out.json --plot out.png --markdown docs/benchmarks.md

All engines run one model in one process, in short blocks that alternate, peers also on the graph after `sardonyx
optimize`; outputs must be equal within 1e-4 of the largest element. Sections: latency (39 networks), call (the overhead
of a call), load and memory (in new processes), dynamic (many input sizes), trees (tree ensembles, recurrent layers, a
loop), recurrent (recurrent layers of many sizes). Run on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rich.console
import rich.progress

import children
import engine_tables
import engines
import generated
import report
import suites

SECTIONS = ("latency", "call", "load", "memory", "dynamic", "trees", "recurrent")
STARTS = {"answer": 1, "cold": 1, "warm": 3, "onnxruntime": 3, "openvino": 1}
"""Number of processes for loading and memory: few for slow starts and figures without a criterion."""

CALLS = 1000
SMALL = "mlp"
"""The model whose calls are measured."""

DYNAMIC_SEED = 0
Result = dict[str, Any]


class Bench:
    """The measurements by section; models, inputs and compiled code are stored under ``work``.

    Args:
        work: A folder that is reused by later runs.
        threads: Number of threads of every engine.
        seconds: Duration of the rounds of a model.
        patterns: Names of models; all if empty.
    """

    def __init__(self, work: Path, threads: int, seconds: float, patterns: Sequence[str]) -> None:
        self.work = work
        self.threads = threads
        self.seconds = seconds
        self.patterns = patterns
        self.cache = work / "cache"
        for name in ("feeds", "optimized", "generated"):
            (work / name).mkdir(parents=True, exist_ok=True)

    def cases(self) -> list[suites.Case]:
        """Return the models of the suite `real`, and the networks of fixed sizes."""
        cases = suites.cases(self.work / "models", self.patterns)
        return [case for case in cases if not case.name.endswith(".dyn")]

    def stored(self, name: str, feeds: suites.Feeds) -> str:
        path = self.work / "feeds" / f"{name}.npz"
        np.savez(path, **feeds)
        return str(path)

    def feeds(self, case: suites.Case) -> str:
        return self.stored(case.name, case.feeds(suites.LATENCY_SIZES))

    def optimized(self, path: Path) -> str | None:
        """Return the path of the result of ``sardonyx optimize``; None if the model is refused."""
        import sardonyx

        result = self.work / "optimized" / path.name
        if not result.exists() or result.stat().st_mtime < path.stat().st_mtime:
            try:
                sardonyx.optimize(path, verify=False).save(result)
            except sardonyx.SardonyxError as error:
                print(f"{path.name}: {error}", file=sys.stderr)
                return None
        return str(result)

    def compared(self, name: str, path: Path, feeds: str) -> Result:
        figures = children.call(
            "latency", self.cache, path=str(path), optimized=self.optimized(path), feeds=feeds, threads=self.threads,
            seconds=self.seconds,
        )  # fmt: skip
        return {"name": name, **figures}

    # Sections: generators of rows.

    def latency(self) -> Iterator[Result]:
        for case in progress(self.cases(), "latency"):
            yield {"suite": case.suite, **self.compared(case.name, case.path, self.feeds(case))}

    def call(self) -> Iterator[Result]:
        (case,) = suites.cases(self.work / "models", [f"models/{SMALL}"])
        figures = children.call(
            "calls", self.cache, path=str(case.path), feeds=self.feeds(case), threads=self.threads,
            seconds=self.seconds, times=CALLS,
        )  # fmt: skip
        yield {"name": case.name, **figures}

    def load(self) -> Iterator[Result]:
        """Measure loading and memory in the same processes."""
        for case in progress(self.cases(), "load"):
            feeds = self.feeds(case)
            common = {"path": str(case.path), "feeds": feeds, "threads": self.threads}
            rows: dict[str, list[Result]] = {name: [] for name in STARTS}
            fresh = self.work / "fresh"
            for number in range(max(STARTS.values())):
                for name in [name for name, starts in STARTS.items() if number < starts]:
                    if name in ("answer", "cold"):
                        shutil.rmtree(fresh, ignore_errors=True)
                    engine = name if name in engines.PEERS else engines.SUBJECT
                    compile = "background" if name == "answer" else "wait"
                    cache = fresh if engine == engines.SUBJECT else None
                    rows[name].append(children.call("start", cache, engine=engine, compile=compile, **common))
            yield {"name": case.name, "starts": rows}

    def dynamic(self) -> Iterator[Result]:
        random = np.random.default_rng(DYNAMIC_SEED)
        for name, count in (("models/minilm.dyn", 200), ("real/yunet_n_dynamic", 100)):
            for case in suites.cases(self.work / "models", [name]):
                sizes = [self.stored(f"dynamic-{case.name}-{i}", self.drawn(case, random)) for i in range(count)]
                figures = children.call("dynamic", self.cache, path=str(case.path), sizes=sizes, threads=self.threads)
                yield {"name": case.name, "count": count, **figures}

    def drawn(self, case: suites.Case, random: np.random.Generator) -> suites.Feeds:
        """Return inputs of random sizes: a batch and a sequence, or an image in steps of 32 pixels."""
        if case.suite == "models":
            sizes = {"batch": int(random.integers(1, 9)), "seq": int(random.integers(4, 129))}
            return suites.drawn_feeds(case.path, {**suites.LATENCY_SIZES, **sizes})
        height, width = (32 * int(blocks) for blocks in random.integers(3, 21, 2))
        (name,) = case.feeds()
        return {name: random.uniform(0, 255, (1, 3, height, width)).astype(np.float32)}

    def trees(self) -> Iterator[Result]:
        folder = self.work / "generated"
        models = [*generated.trees(folder), *generated.recurrent(folder), *generated.loop(folder)]
        yield from self.of_generated(models, "trees")

    def recurrent(self) -> Iterator[Result]:
        yield from self.of_generated(generated.recurrent_sizes(self.work / "generated"), "recurrent")

    def of_generated(self, models: Sequence[generated.GeneratedModel], title: str) -> Iterator[Result]:
        for name, path, feeds in progress(models, title):
            yield self.compared(
                name, path, self.stored(f"generated-{path.stem}-{len(next(iter(feeds.values())))}", feeds)
            )


def progress(items: Sequence[Any], name: str) -> Iterator[Any]:
    yield from rich.progress.track(items, name, console=rich.console.Console(stderr=True))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sections", default=",".join(SECTIONS), help=f"some of {','.join(SECTIONS)}")
    parser.add_argument("--models", nargs="*", default=[], metavar="PATTERN", help="names, or suite/name; * matches")
    parser.add_argument("--threads", type=int, default=2, help="threads of every engine")
    parser.add_argument("--seconds", type=float, default=6.0, help="duration of the rounds of a model")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--plot", type=Path, help="file for a plot")
    parser.add_argument("--markdown", type=Path, help="page whose marked section is rewritten")
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "sardonyx-benchmarks",
        help="folder for models, inputs and compiled code, reused by later runs",
    )  # fmt: skip
    chosen = parser.parse_args()
    sections = chosen.sections.split(",")
    if unknown := set(sections) - set(SECTIONS):
        parser.error(f"unknown section {', '.join(sorted(unknown))}; expected some of {', '.join(SECTIONS)}")
    # Loading and memory are measured together.
    chosen.sections = [name for name in SECTIONS if name in sections]
    return chosen


def main() -> None:
    chosen = arguments()
    bench = Bench(chosen.work, chosen.threads, chosen.seconds, chosen.models)
    facts = {**engines.versions(), "threads": str(chosen.threads), **report.machine_and_date()}
    measurements: dict[str, list[Result]] = {}
    for section in chosen.sections:
        measured = "load" if section == "memory" else section
        if measured in measurements:
            continue
        rows = measurements[measured] = []
        try:
            for row in getattr(bench, measured)():
                rows.append(row)
                if chosen.json:
                    chosen.json.write_text(json.dumps({"surroundings": facts, **measurements}, indent=1))
        except suites.MaterialMissing as reason:
            sys.exit(str(reason))
    tables = engine_tables.tables(measurements, chosen.sections)
    report.show(tables)
    if chosen.plot:
        engine_tables.plot(chosen.plot, measurements)
    if chosen.markdown:
        # Loading and memory take long and may be measured alone: the section of latency is unchanged then.
        part = "loading" if set(chosen.sections) <= {"load", "memory"} else "latency"
        report.rewrite_section(chosen.markdown, report.markdown(tables, facts), part)


if __name__ == "__main__":
    main()
