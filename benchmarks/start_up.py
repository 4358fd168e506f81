"""Measure whole processes from their start to the first answer, in processor time and in elapsed time.

    SARDONYX_SUITES=… python benchmarks/start_up.py --models 'models/resnet18' 'models/mlp' --json start_up.json
    SARDONYX_SUITES=… python benchmarks/start_up.py --sections cold --before ../before/src

Section `start`: for each model, processes alternate: Sardonyx with its compiled model in the cache (warm), Sardonyx
with an empty cache that answers at once and compiles later (first), or that waits for compiled code (with --cold), and
ONNX Runtime; each imports the engine, loads the model and answers once, and measures itself up to the answer. Section
`commands`: commands of the command line. Section `cold`: the creation of a session that waits for compiled code, with
an empty cache (now), with one that holds the model's kernels alone, as after the compilation of another model of the
same family (kernels), and with --others with one that holds the kernels of all other models of the run (others), in
processes that have imported what compilation imports; processor time includes the writing of the cache, which elapsed
time excludes. Processes of this tree, of the tree of --before and of ONNX Runtime alternate. Figures are medians over
the rounds, with the median of the paired ratios. Section `sharing`: the kernels of each model, by canonical form, and
how many of them other models have.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rich.console
import rich.progress
import rich.table

import suites

MOST_FIRST = 1.5
"""Goal for the processor time to the first answer with an empty cache, in ONNX Runtime's."""

SECTIONS = ("start", "cold", "sharing", "commands")

SPENT = """
import json, resource, time
usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
elapsed = time.clock_gettime(time.CLOCK_BOOTTIME)
with open("/proc/self/stat") as file:
    elapsed -= int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
print(json.dumps({"cpu": sum(u.ru_utime + u.ru_stime for u in usages), "elapsed": elapsed}))
"""
"""Prints the processor time and the elapsed time since the process started, in seconds."""

SARDONYX = f"""
import os, sys
import numpy as np
from sardonyx import Session
session = Session(sys.argv[1], compile=sys.argv[3], threads=2)
session.run(None, dict(np.load(sys.argv[2])))
{SPENT}
"""
ONNXRUNTIME = f"""
import os, sys
import numpy as np
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.log_severity_level = 2, 4
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
session.run(None, dict(np.load(sys.argv[2])))
{SPENT}
"""

COLD = """
import json, resource, sys, threading, time
import onnx
from sardonyx import Session
def spent():
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
graph = onnx.parser.parse_model(sys.argv[2])
Session(graph.SerializeToString(), compile="wait", threads=2)
before, begin = spent(), time.perf_counter()
session = Session(sys.argv[1], compile="wait", threads=2)
elapsed = time.perf_counter() - begin
for thread in threading.enumerate():
    if thread.name == "sardonyx-store":
        thread.join()
print(json.dumps({"elapsed": elapsed, "cpu": spent() - before}))
"""
"""Prints the time of creating a session, with the processor time of writing the cache.

A session of another model imports what compilation needs.
"""
PEER_COLD = """
import json, sys, time
import onnx
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads, options.log_severity_level = 2, 4
graph = onnx.parser.parse_model(sys.argv[2])
onnxruntime.InferenceSession(graph.SerializeToString(), options, providers=["CPUExecutionProvider"])
before, begin = time.process_time(), time.perf_counter()
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
print(json.dumps({"elapsed": time.perf_counter() - begin, "cpu": time.process_time() - before}))
"""
FIRST = '<ir_version: 8, opset_import: ["": 17]> first (float[7] x) => (float[7] y) { y = Exp(x) }'
"""The model of the session that imports what compilation needs."""


def run(command: list[str], cache: Path, bytecode: Path, tree: Path | None = None) -> str:
    """Run a command in an environment; return its output.

    Args:
        command: The command.
        cache: The folder of the artifact store.
        bytecode: The folder of Python's bytecode, which is cached, as for installed packages.
        tree: The folder to import the package from; None for this process's.

    Raises:
        SystemExit: The command fails.
    """
    environment = {**os.environ, "SARDONYX_CACHE": str(cache), "PYTHONPYCACHEPREFIX": str(bytecode)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if tree is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(tree), environment.get("PYTHONPATH", "")])
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:3])[:60]} failed: {done.stderr[-500:]}")
    return done.stdout


def spent(command: list[str], cache: Path, bytecode: Path) -> dict[str, float]:
    """Run a command; return its processor time and elapsed time, in seconds; raises as :func:`run`."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    run(command, cache, bytecode)
    elapsed, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, "elapsed": elapsed}


KERNELS = ("object", "kernel")
"""The kinds of entries of the store that hold kernels."""


def filled(path: Path, work: Path) -> Path:
    """Return a folder with the kernels of a model, compiled at the first call."""
    folder = work / "kernels" / path.stem
    if not folder.exists():
        command = [sys.executable, "-c", COLD, str(path), FIRST]
        run(command, folder, work / "bytecode of now")
        for kind in ("program", "weights", "fact"):
            shutil.rmtree(folder / kind, ignore_errors=True)
    return folder


def cold_run(engine: str, path: Path, work: Path, before: Path | None, others: Sequence[Path] = ()) -> dict[str, float]:
    """Return the times of creating a session in a new process with an empty cache, in seconds.

    Args:
        engine: `now`, `kernels`, `others`, `before` or `onnxruntime`.
        path: The model.
        work: A folder for caches.
        before: The folder from which `before` imports the package.
        others: The models whose kernels the cache of `others` holds.
    """
    command = [sys.executable, "-c", PEER_COLD if engine == "onnxruntime" else COLD, str(path), FIRST]
    with tempfile.TemporaryDirectory(dir=work) as cache:
        tree = before if engine == "before" else None
        bytecode = work / f"bytecode of {'now' if engine in ('kernels', 'others') else engine}"
        for model in {"kernels": (path,), "others": others}.get(engine, ()):
            for kind in KERNELS:
                shutil.copytree(filled(model, work) / kind, Path(cache, kind), dirs_exist_ok=True)
        return dict(json.loads(run(command, Path(cache), bytecode, tree)))


def measure_cold(
    case: suites.Case, work: Path, rounds: int, before: Path | None, others: Sequence[Path]
) -> dict[str, Any]:
    """Return the medians of the creation of a session of one model, by engine."""
    engines = [
        "now",
        "kernels",
        *(["others"] if others else []),
        *([] if before is None else ["before"]),
        "onnxruntime",
    ]
    runs: dict[str, list[dict[str, float]]] = {engine: [] for engine in engines}
    for engine in engines:
        if not (work / f"bytecode of {engine}").exists():
            cold_run(engine, case.path, work, before, others)
    for _ in range(rounds):
        for engine in engines:
            runs[engine].append(cold_run(engine, case.path, work, before, others))
    result: dict[str, Any] = {"name": case.name, "suite": case.suite}
    for engine, samples in runs.items():
        pairs = list(zip(runs["now"], samples, strict=True))
        result[engine] = {figure: statistics.median(sample[figure] for sample in samples) for figure in samples[0]}
        result[engine]["ratio"] = statistics.median(ours["cpu"] / theirs["cpu"] for ours, theirs in pairs)
    return result


def measure(case: suites.Case, work: Path, rounds: int, with_cold: bool) -> dict[str, Any]:
    """Return the medians of one model, by way to start."""
    feeds, cache, bytecode = work / "feeds.npz", work / "cache", work / "bytecode"
    np.savez(feeds, **case.feeds(suites.LATENCY_SIZES))
    arguments = [str(case.path), str(feeds)]
    shutil.rmtree(cache, ignore_errors=True)
    ours = [sys.executable, "-c", SARDONYX, *arguments]
    ways = {"warm": [*ours, "wait"], "first": [*ours, "background"], "cold": [*ours, "wait"]}
    ways["onnxruntime"] = [sys.executable, "-c", ONNXRUNTIME, *arguments]
    if not with_cold:
        del ways["cold"]
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    run(ways["warm"], cache, bytecode)
    for _ in range(rounds):
        for name, command in ways.items():
            with tempfile.TemporaryDirectory(dir=work, ignore_cleanup_errors=True) as empty:
                folder = Path(empty) if name in ("first", "cold") else cache
                runs[name].append(json.loads(run(command, folder, bytecode)))
    result: dict[str, Any] = {"name": case.name}
    for name, samples in runs.items():
        if samples:
            pairs = list(zip(samples, runs["onnxruntime"], strict=True))
            result[name] = {figure: statistics.median(sample[figure] for sample in samples) for figure in samples[0]}
            result[name]["ratio"] = statistics.median(ours["cpu"] / theirs["cpu"] for ours, theirs in pairs)
    return result


def measure_sharing(cases: Sequence[suites.Case], work: Path) -> list[dict[str, Any]]:
    """Return the number and bytes of stored kernels of each model, and of those that others have."""
    entries = {
        case.name: {file.name: file.stat().st_size for file in (filled(case.path, work) / "kernel").glob("*")}
        for case in cases
    }
    counts = Counter(name for files in entries.values() for name in files)
    return [
        {
            "name": model,
            "kernels": len(files),
            "shared": sum(counts[name] > 1 for name in files),
            "bytes": sum(files.values()),
            "shared bytes": sum(size for name, size in files.items() if counts[name] > 1),
        }
        for model, files in entries.items()
    ]


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


def show(
    models: list[dict[str, Any]],
    cold: list[dict[str, Any]],
    sharing: list[dict[str, Any]],
    commands: list[dict[str, Any]],
) -> None:
    console = rich.console.Console()
    table = rich.table.Table(
        "model", "start", "processor time, s", "elapsed, s", "/ ONNX Runtime", title="First answer"
    )
    for result in models:
        for way in ("warm", "first", "cold", "onnxruntime"):
            if way in result:
                figures = result[way]
                table.add_row(
                    result["name"], way, f"{figures['cpu']:.3f}", f"{figures['elapsed']:.3f}", f"{figures['ratio']:.2f}"
                )
    if models:
        console.print(table)
        good = sum(result["first"]["ratio"] <= MOST_FIRST for result in models)
        console.print(f"{good} of {len(models)} first answers within {MOST_FIRST} x ONNX Runtime")
    if cold:
        console.print(cold_table(cold))
    if sharing:
        table = rich.table.Table("model", "kernels by form", "of other models too", "KB", "of other models too, KB")
        for result in sharing:
            sizes = [f"{result[name] / 1e3:.0f}" for name in ("bytes", "shared bytes")]
            table.add_row(result["name"], str(result["kernels"]), str(result["shared"]), *sizes)
        console.print(table)
    table = rich.table.Table("command", "processor time, s", "elapsed, s", title="Commands")
    for result in commands:
        table.add_row(result["name"], f"{result['cpu']:.3f}", f"{result['elapsed']:.3f}")
    if commands:
        console.print(table)


def cold_table(results: list[dict[str, Any]]) -> rich.table.Table:
    """Return a table of :func:`measure_cold`."""
    others = [name for name in ("kernels", "others", "before", "onnxruntime") if name in results[0]]
    columns = [f"{name}, s" for name in ("now", *others)]
    elapsed = [f"elapsed, {name}" for name in ("now", *others)]
    table = rich.table.Table("model", *columns, *[f"now / {name}" for name in others], *elapsed)
    table.title = "Creation of a session, processor time"
    for result in results:
        times = [f"{result[name]['cpu']:.3f}" for name in ("now", *others)]
        ratios = [f"{result[name]['ratio']:.2f}" for name in others]
        elapsed = [f"{result[name]['elapsed']:.3f}" for name in ("now", *others)]
        table.add_row(result["name"], *times, *ratios, *elapsed)
    means = [
        f"{math.exp(statistics.mean(math.log(result[name]['ratio']) for result in results)):.2f}" for name in others
    ]
    table.add_row("geometric mean", *[""] * len(columns), *means, *[""] * len(elapsed))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure whole processes from their start to the first answer.")
    parser.add_argument("--models", nargs="*", default=("models/resnet18",), help="names, or suite/name; * matches")
    parser.add_argument("--sections", nargs="*", choices=SECTIONS, default=("start", "commands"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="measure starts with an empty cache, too")
    parser.add_argument("--others", action="store_true", help="measure `cold` with the kernels of other models, too")
    parser.add_argument("--before", type=Path, help="folder to import another revision of the package from, for `cold`")
    parser.add_argument("--work", type=Path, help="folder of the models' files, reused between calls")
    parser.add_argument("--json", type=Path, help="write every figure here")
    options = parser.parse_args()
    console = rich.console.Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        cases = suites.cases((options.work or work) / "models", options.models)
        cases = [case for case in cases if not case.name.endswith(".dyn")]
        models, cold, sharing, commands = [], [], [], []
        if "start" in options.sections:
            models = [
                measure(case, work, options.rounds, options.cold)
                for case in rich.progress.track(cases, "models", console=console, transient=True)
            ]
        if "cold" in options.sections:
            for case in rich.progress.track(cases, "cold", console=console, transient=True):
                others = [other.path for other in cases if other is not case] if options.others else []
                cold.append(measure_cold(case, work, options.rounds, options.before, others))
                write(options.json, {"cold": cold})
        if "sharing" in options.sections:
            sharing = measure_sharing(cases, work)
        if "commands" in options.sections:
            commands = measure_commands(cases[0].path, work, options.rounds)
    show(models, cold, sharing, commands)
    write(options.json, {"models": models, "cold": cold, "sharing": sharing, "commands": commands})


def write(path: Path | None, results: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
