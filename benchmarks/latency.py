"""Measure Sardonyx's compiled models beside ONNX Runtime and OpenVINO: float32, batch 1, two threads.

    SARDONYX_SUITES=… python benchmarks/latency.py --json out.json --plot out.png --markdown docs/benchmarks.md

All engines run one model in one process, in short blocks that alternate, peers also on the graph after `sardonyx
optimize`; outputs must be equal within 1e-4 of the largest. Sections: latency (39 networks), call (the overhead of a
call), load and memory (from a fresh process), dynamic (many input sizes), trees (tree ensembles, recurrent layers, a
loop), recurrent (recurrent layers of many sizes). A quiet machine is needed.
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
"""Fresh processes for figures of loading and of memory: few where they are dear, or nothing is asked beside them."""

CALLS = 1000
SMALL = "mlp"
"""The model whose calls are measured."""

DYNAMIC_SEED = 0
Result = dict[str, Any]


class Bench:
    """Measures sections; models, inputs and compiled code lie under ``work``.

    Args:
        work: A folder that is kept between calls.
        threads: Of every engine.
        seconds: To spend on the rounds of a model.
        patterns: Names of models; all where empty.
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
        """The real models, and the networks of fixed sizes."""
        found = suites.cases(self.work / "models", self.patterns)
        return [case for case in found if not case.name.endswith(".dyn")]

    def stored(self, name: str, feeds: suites.Feeds) -> str:
        path = self.work / "feeds" / f"{name}.npz"
        np.savez(path, **feeds)
        return str(path)

    def feeds(self, case: suites.Case) -> str:
        return self.stored(case.name, case.feeds(suites.LATENCY_SIZES))

    def optimized(self, path: Path) -> str | None:
        """The graph after ``sardonyx optimize``; None where it is refused."""
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
        found = children.call(
            "latency", self.cache, path=str(path), optimized=self.optimized(path), feeds=feeds, threads=self.threads,
            seconds=self.seconds,
        )  # fmt: skip
        return {"name": name, **found}

    # Sections: each gives its rows one by one.

    def latency(self) -> Iterator[Result]:
        for case in progress(self.cases(), "latency"):
            yield {"suite": case.suite, **self.compared(case.name, case.path, self.feeds(case))}

    def call(self) -> Iterator[Result]:
        (case,) = suites.cases(self.work / "models", [f"models/{SMALL}"])
        found = children.call(
            "calls", self.cache, path=str(case.path), feeds=self.feeds(case), threads=self.threads,
            seconds=self.seconds, times=CALLS,
        )  # fmt: skip
        yield {"name": case.name, **found}

    def load(self) -> Iterator[Result]:
        """Loading and memory come from the same processes."""
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
                found = children.call("dynamic", self.cache, path=str(case.path), sizes=sizes, threads=self.threads)
                yield {"name": case.name, "count": count, **found}

    def drawn(self, case: suites.Case, random: np.random.Generator) -> suites.Feeds:
        """Inputs of sizes drawn at random: a batch and a sequence, or an image in steps of 32 pixels."""
        if case.suite == "models":
            sizes = {"batch": int(random.integers(1, 9)), "seq": int(random.integers(4, 129))}
            return suites.drawn_feeds(case.path, {**suites.LATENCY_SIZES, **sizes})
        height, width = (32 * int(blocks) for blocks in random.integers(3, 21, 2))
        (name,) = case.feeds()
        return {name: random.uniform(0, 255, (1, 3, height, width)).astype(np.float32)}

    def trees(self) -> Iterator[Result]:
        folder = self.work / "generated"
        made = [*generated.trees(folder), *generated.recurrent(folder), *generated.loop(folder)]
        yield from self.of_generated(made, "trees")

    def recurrent(self) -> Iterator[Result]:
        yield from self.of_generated(generated.recurrent_sizes(self.work / "generated"), "recurrent")

    def of_generated(self, made: Sequence[generated.Made], title: str) -> Iterator[Result]:
        for name, path, feeds in progress(made, title):
            yield self.compared(
                name, path, self.stored(f"generated-{path.stem}-{len(next(iter(feeds.values())))}", feeds)
            )


def progress(items: Sequence[Any], name: str) -> Iterator[Any]:
    yield from rich.progress.track(items, name, console=rich.console.Console(stderr=True))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sections", default=",".join(SECTIONS), help=f"some of {','.join(SECTIONS)}")
    parser.add_argument("--models", nargs="*", default=[], metavar="PATTERN", help="names, or suite/name; * matches")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0, help="to spend on the rounds of a model")
    parser.add_argument("--json", type=Path, help="write every figure here")
    parser.add_argument("--plot", type=Path, help="write a plot here")
    parser.add_argument("--markdown", type=Path, help="rewrite the marked section of this page")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "sardonyx-benchmarks")
    chosen = parser.parse_args()
    asked = chosen.sections.split(",")
    if unknown := set(asked) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    # Loading and memory are measured together.
    chosen.sections = [name for name in SECTIONS if name in asked]
    return chosen


def main() -> None:
    chosen = arguments()
    bench = Bench(chosen.work, chosen.threads, chosen.seconds, chosen.models)
    facts = {**engines.versions(), "threads": str(chosen.threads), **report.place()}
    found: dict[str, list[Result]] = {}
    for section in chosen.sections:
        measured = "load" if section == "memory" else section
        if measured in found:
            continue
        rows = found[measured] = []
        try:
            for row in getattr(bench, measured)():
                rows.append(row)
                if chosen.json:
                    chosen.json.write_text(json.dumps({"surroundings": facts, **found}, indent=1))
        except suites.MaterialMissing as reason:
            sys.exit(str(reason))
    tables = engine_tables.tables(found, chosen.sections)
    report.show(tables)
    if chosen.plot:
        engine_tables.plot(chosen.plot, found)
    if chosen.markdown:
        # Processes are slow to measure, and are measured alone: what was measured of latency then stays as it is.
        part = "loading" if set(chosen.sections) <= {"load", "memory"} else "latency"
        report.rewrite_section(chosen.markdown, report.markdown(tables, facts), part)


if __name__ == "__main__":
    main()
