"""Measure int8 models: Sardonyx's compiled code next to its own float32, ONNX Runtime and OpenVINO.

    SARDONYX_SUITES=… python benchmarks/int8_speed.py --models resnet50 --forms sardonyx ort-u8s8 --markdown page.md

Every model is quantized in several forms (`int8_models.py`), and every engine runs the same int8 file in a process of
its own; short blocks of runs alternate, and ratios are medians over the rounds. With one thread, processor times count.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

import engines
import int8_models
import report
import suites
from tables import Table, geomean, line

Result = dict[str, Any]

LARGE_SECONDS = 5e-3
"""Time in float32 from which a network must gain."""

GOALS = {"float32": (2.0, 1.3), engines.PEERS[0]: (1.5, 1.5), engines.PEERS[1]: (1.2, 1.2)}
"""Smallest ratio of the other time over int8's, on processors with and without VNNI."""

BLOCK_SECONDS = 0.05
FEWEST_RUNS = 3
FEWEST_ROUNDS = 5


class Side:
    """An engine with a model in a process of its own, which runs blocks on demand; a context manager."""

    def __init__(self, engine: str, path: Path, samples: Path, threads: int) -> None:
        arguments = json.dumps([engine, str(path), str(samples), threads])
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.outputs: str = self._reply()["outputs"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.wait()

    def block(self) -> float:
        """Return the median seconds of a block of runs.

        Raises:
            RuntimeError: The process ended.
        """
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._reply()["seconds"])

    def _reply(self) -> Result:
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        reply = json.loads(text) if text else {"failure": f"the process ended with code {self._process.wait()}"}
        if "failure" in reply:
            self._process.wait()
            raise RuntimeError(reply["failure"])
        return dict(reply)


def serve(engine: str, path: str, samples: str, threads: int) -> None:
    """Run blocks of an engine: one for each line of the input."""
    feeds = int8_models.Float("", Path(path), Path(samples)).feeds()[0]
    try:
        run = engines.load(engine, Path(path), threads)
        outputs = run(feeds)
    except Exception as error:  # the engines' errors have no base class of their own
        print(json.dumps({"failure": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}), flush=True)
        return
    with tempfile.NamedTemporaryFile(suffix=".npz", delete=False) as file:
        np.savez(file, *outputs)
    print(json.dumps({"outputs": file.name}), flush=True)
    clock = time.process_time if threads == 1 else time.perf_counter
    for _ in sys.stdin:
        run(feeds)  # wakes the engine's workers
        times: list[float] = []
        while len(times) < FEWEST_RUNS or (sum(times) < BLOCK_SECONDS and len(times) < 1000):
            start = clock()
            run(feeds)
            times.append(clock() - start)
        print(json.dumps({"seconds": statistics.median(times)}), flush=True)


def sqnr(reference: str, path: str) -> float:
    """Return the signal-to-noise ratio in dB of the worst float output of a file against a reference's."""
    with np.load(reference) as expected, np.load(path) as actual:
        ratios = []
        for name in expected.files:
            if not np.issubdtype(expected[name].dtype, np.floating):
                continue
            signal = np.square(expected[name], dtype=np.float64).sum()
            noise = np.square(expected[name].astype(np.float64) - actual[name]).sum()
            ratios.append(float(10 * np.log10(signal / noise)) if noise and signal else np.inf)
        return min(ratios, default=np.inf)


def compared(sides: Mapping[str, tuple[str, Path]], samples: Path, threads: int, seconds: float) -> Result:
    """Return times, ratios over int8's time, and failures of the sides: engine and file by name."""
    failures: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        running: dict[str, Side] = {}
        for name, (engine, path) in sides.items():
            try:
                running[name] = stack.enter_context(Side(engine, path, samples, threads))
            except RuntimeError as error:
                failures[name] = str(error)
        rounds: dict[str, list[float]] = {name: [] for name in running}
        order = list(running)
        end = time.monotonic() + seconds
        while order and (len(rounds[order[0]]) < FEWEST_ROUNDS or time.monotonic() < end):
            for name in order:
                rounds[name].append(running[name].block())
            order = order[1:] + order[:1]
        errors = {}
        if engines.SUBJECT in running:
            errors = {name: sqnr(side.outputs, running[engines.SUBJECT].outputs) for name, side in running.items()}
        for side in running.values():
            Path(side.outputs).unlink()
    own = rounds.get(engines.SUBJECT)
    return {
        "seconds": {name: statistics.median(blocks) for name, blocks in rounds.items()},
        "ratios": {
            name: statistics.median(a / b for a, b in zip(blocks, own, strict=True))
            for name, blocks in rounds.items() if own and name != engines.SUBJECT
        },
        "sqnr": errors, "failures": failures,
    }  # fmt: skip


def measure(chosen: argparse.Namespace) -> Iterator[Result]:
    """Measure every form of every model with every number of threads."""
    for model in int8_models.float_models(chosen.work, chosen.models):
        for form in chosen.forms:
            try:
                path = int8_models.quantized(chosen.work, model, form)
            except RuntimeError as error:
                yield {"name": model.name, "form": form, "threads": 0, "failures": {"quantizer": str(error)}}
                continue
            for threads in chosen.threads:
                sides = {engines.SUBJECT: (engines.SUBJECT, path), "float32": (engines.SUBJECT, model.path)}
                sides |= {peer: (peer, path) for peer in engines.PEERS if peer in chosen.peers}
                figures = compared(sides, model.samples, threads, chosen.seconds)
                yield {"name": model.name, "form": form, "threads": threads, **figures}


def has_vnni() -> bool:
    from sardonyx.compiler.target.description import host

    return not host().saturates


def tables(results: Sequence[Result]) -> list[Table]:
    """Return the criteria and the table of all figures."""
    others = ["float32", *engines.PEERS]
    rows, notes = [], []
    for result in results:
        figures = (result.get(key, {}) for key in ("seconds", "ratios", "sqnr"))
        seconds, ratios, errors = figures
        if engines.SUBJECT in seconds:
            rows.append([
                result["name"], result["form"], f"{result['threads']}", f"{seconds[engines.SUBJECT] * 1e3:.3f}",
                *(f"{ratios[name]:.2f}" if name in ratios else "—" for name in others),
                *(f"{errors[name]:.0f}" if name in errors else "—" for name in ("float32", engines.PEERS[0])),
            ])  # fmt: skip
        for name, reason in result["failures"].items():
            notes.append(f"{result['name']}, {result['form']}: {name}: {reason}")
    columns = [
        "Model",
        "Form",
        "Threads",
        "ms",
        *(f"× {name}" for name in others),
        "dB to float32",
        "dB to ONNX Runtime",
    ]
    lead = (
        "Median of alternating blocks. Ratios are the other's time over that of Sardonyx's int8; above 1, it is faster."
    )
    return [Table("Int8: summary", "", ["Criterion", "Goal", "Measured", "Met"], criteria(results)),
            Table("Int8 models", lead, columns, rows, sorted(set(notes)))]  # fmt: skip


def criteria(results: Sequence[Result]) -> list[list[str]]:
    measured = [result for result in results if engines.SUBJECT in result.get("seconds", {})]
    lines = []
    for name, goals in GOALS.items():
        goal = goals[0] if has_vnni() else goals[1]
        held = [result for result in measured if name in result["ratios"]]
        if name == "float32":
            held = [result for result in held if result["seconds"]["float32"] > LARGE_SECONDS]
        ratios = [result["ratios"][name] for result in held]
        if ratios:
            below = sum(ratio < goal for ratio in ratios)
            text = f"geometric mean {geomean(ratios):.2f}, least {min(ratios):.2f}, {below} of {len(ratios)} below"
            lines.append(line(f"int8 over {name}", f"≥ {goal}", text, below == 0))
    slower = sorted(
        {f"{result['name']} ({result['form']})" for result in measured if result["ratios"].get("float32", 1) < 1}
    )
    lines.append(line("int8 over float32, all", "none slower", f"slower: {', '.join(slower) or 'none'}", not slower))
    return lines


def plot(path: Path, results: Sequence[Result]) -> None:
    """Draw the ratios of all measured files."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    measured = [result for result in results if engines.SUBJECT in result.get("seconds", {})]
    figure, axes = pyplot.subplots(figsize=(12, 2 + 0.16 * len(measured)))
    for name, marker in (("float32", "o"), (engines.PEERS[0], "s"), (engines.PEERS[1], "^")):
        axes.plot([r["ratios"].get(name, np.nan) for r in measured], range(len(measured)), marker, label=f"over {name}")
    axes.set_yticks(
        range(len(measured)), [f"{r['name']}, {r['form']}, {r['threads']}" for r in measured], fontsize=6
    )  # fmt: skip
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(*json.loads(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=[], metavar="PATTERN", help="names, or suite/name; * matches")
    parser.add_argument("--forms", nargs="*", default=list(int8_models.FORMS), help=", ".join(int8_models.FORMS))
    parser.add_argument("--peers", nargs="*", default=list(engines.PEERS), help=", ".join(engines.PEERS))
    parser.add_argument("--threads", nargs="*", type=int, default=[1], help="numbers of threads of every engine")
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of the rounds of a file")
    parser.add_argument("--json", type=Path, help="file for all figures, extended by each file")
    parser.add_argument("--plot", type=Path, help="file for a plot")
    parser.add_argument("--markdown", type=Path, help="page whose section int8 is rewritten")
    parser.add_argument(
        "--merge", nargs="*", type=Path, default=[], help="figures of earlier runs, shown and not measured"
    )
    parser.add_argument(
        "--work", type=Path, default=Path(tempfile.gettempdir()) / "sardonyx-benchmarks",
        help="folder for models and int8 files, reused by later runs",
    )  # fmt: skip
    chosen = parser.parse_args()
    results: list[Result] = [entry for path in chosen.merge for entry in json.loads(path.read_text())["results"]]
    facts = {**engines.versions(), **report.machine_and_date()}
    try:
        for result in [] if chosen.merge else measure(chosen):
            results.append(result)
            print(json.dumps(result), file=sys.stderr)
            if chosen.json:
                chosen.json.write_text(json.dumps({"surroundings": facts, "results": results}, indent=1))
    except suites.MaterialMissing as reason:
        sys.exit(str(reason))
    report.deliver(tables(results), facts, "int8", lambda path: plot(path, results), chosen)


if __name__ == "__main__":
    main()
