"""Measure whole processes from their start to the first answer, in processor time and in elapsed time.

    SARDONYX_SUITES=… python benchmarks/start_up.py --models 'models/resnet18' 'models/mlp' --json start_up.json

For each model, processes alternate: Sardonyx with its compiled model in the cache (warm), Sardonyx with an empty cache
(cold), and ONNX Runtime; each imports the engine, loads the model and answers once. Commands of the command line
follow. Figures are medians over the rounds, with the median of the paired ratios to ONNX Runtime.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
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

SARDONYX = """
import sys
import numpy as np
from sardonyx import Session
session = Session(sys.argv[1], compile="wait", threads=2)
session.run(None, dict(np.load(sys.argv[2])))
"""
ONNXRUNTIME = """
import sys
import numpy as np
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.log_severity_level = 2, 4
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
session.run(None, dict(np.load(sys.argv[2])))
"""


def spent(command: list[str], cache: Path, bytecode: Path) -> dict[str, float]:
    """Run a command; return its processor time and elapsed time, in seconds.

    Raises:
        SystemExit: The command fails.
    """
    # Bytecode is cached, as for installed packages.
    environment = {**os.environ, "SARDONYX_CACHE": str(cache), "PYTHONPYCACHEPREFIX": str(bytecode)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    elapsed, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:3])[:60]} failed: {done.stderr[-500:]}")
    return {"cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, "elapsed": elapsed}


def measure(case: suites.Case, work: Path, rounds: int, with_cold: bool) -> dict[str, Any]:
    """Return the medians of one model, by way to start."""
    feeds, cache, bytecode = work / "feeds.npz", work / "cache", work / "bytecode"
    np.savez(feeds, **case.feeds(suites.LATENCY_SIZES))
    arguments = [str(case.path), str(feeds)]
    shutil.rmtree(cache, ignore_errors=True)
    ways = {"warm": [sys.executable, "-c", SARDONYX], "onnxruntime": [sys.executable, "-c", ONNXRUNTIME]}
    runs: dict[str, list[dict[str, float]]] = {"cold": [], **{name: [] for name in ways}}
    spent([*ways["warm"], *arguments], cache, bytecode)
    for _ in range(rounds):
        for name, command in ways.items():
            runs[name].append(spent([*command, *arguments], cache, bytecode))
        if with_cold:
            empty = Path(tempfile.mkdtemp(dir=work))
            runs["cold"].append(spent([*ways["warm"], *arguments], empty, bytecode))
    result: dict[str, Any] = {"name": case.name}
    for name, samples in runs.items():
        if samples:
            pairs = list(zip(samples, runs["onnxruntime"], strict=True))
            result[name] = {figure: statistics.median(sample[figure] for sample in samples) for figure in samples[0]}
            result[name]["ratio"] = statistics.median(ours["cpu"] / theirs["cpu"] for ours, theirs in pairs)
    return result


def measure_commands(path: Path, work: Path, rounds: int) -> list[dict[str, Any]]:
    """Return the medians of commands of the command line."""
    commands = {
        "python -c 'import numpy'": [sys.executable, "-c", "import numpy"],
        "sardonyx --help": [sys.executable, "-m", "sardonyx", "--help"],
        "sardonyx info": [sys.executable, "-m", "sardonyx", "info", str(path)],
    }
    results = []
    for name, command in commands.items():
        samples = [spent(command, work / "cache", work / "bytecode") for _ in range(rounds + 1)][1:]
        medians = {figure: statistics.median(sample[figure] for sample in samples) for figure in samples[0]}
        results.append({"name": name, **medians})
    return results


def show(models: list[dict[str, Any]], commands: list[dict[str, Any]]) -> None:
    table = rich.table.Table(
        "model", "start", "processor time, s", "elapsed, s", "/ ONNX Runtime", title="First answer"
    )
    for result in models:
        for way in ("warm", "cold", "onnxruntime"):
            if way in result:
                figures = result[way]
                table.add_row(
                    result["name"], way, f"{figures['cpu']:.3f}", f"{figures['elapsed']:.3f}", f"{figures['ratio']:.2f}"
                )
    console = rich.console.Console()
    console.print(table)
    table = rich.table.Table("command", "processor time, s", "elapsed, s", title="Commands")
    for result in commands:
        table.add_row(result["name"], f"{result['cpu']:.3f}", f"{result['elapsed']:.3f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure whole processes from their start to the first answer.")
    parser.add_argument("--models", nargs="*", default=("models/resnet18",), help="names, or suite/name; * matches")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="measure starts with an empty cache, too")
    parser.add_argument("--json", type=Path, help="write every figure here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        cases = suites.cases(work / "models", options.models)
        cases = [case for case in cases if not case.name.endswith(".dyn")]
        models = [
            measure(case, work, options.rounds, options.cold)
            for case in rich.progress.track(cases, "models", console=rich.console.Console(stderr=True), transient=True)
        ]
        commands = measure_commands(cases[0].path, work, options.rounds) if cases else []
    show(models, commands)
    if options.json:
        options.json.write_text(json.dumps({"models": models, "commands": commands}, indent=1))


if __name__ == "__main__":
    main()
