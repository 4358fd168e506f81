"""Measurements in child processes: a crash is a row of the table, and every process starts clean.

`python children.py NAME` reads the arguments of one of the functions below as JSON and prints the result as JSON.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import engines

JUDGE = "onnxruntime"
"""The engine whose error is the tolerance if the error exceeds the default tolerance."""

TIMEOUT_SECONDS = 1800.0

REPEATED = 3
"""Calls of a repeated size."""


def call(name: str, cache: Path | None = None, **arguments: Any) -> dict[str, Any]:
    """Run a function of this module in a new process.

    Args:
        name: The function.
        cache: The folder of Sardonyx's program cache; None for the folder of the environment.
        arguments: The arguments of the function.

    Returns:
        The result, or ``failure`` with the reason.
    """
    surroundings = {**os.environ, **({} if cache is None else {"SARDONYX_CACHE": str(cache)})}
    # Bytecode is cached, as for installed packages.
    surroundings.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, __file__, name]
    try:
        child = subprocess.run(
            command, input=json.dumps(arguments), env=surroundings, capture_output=True, text=True, errors="replace",
            timeout=TIMEOUT_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"failure": f"did not end within {TIMEOUT_SECONDS:.0f} s"}
    if child.returncode:
        last = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        return {"failure": last[:300]}
    return dict(json.loads(child.stdout.splitlines()[-1]))


def read_feeds(stored: str) -> dict[str, np.ndarray]:
    with np.load(stored) as arrays:
        return {name: arrays[name] for name in arrays.files}


def latency(path: str, optimized: str | None, feeds: str, threads: int, seconds: float) -> dict[str, Any]:
    """Measure all engines on one model, peers also on the optimized model, and our roofline."""
    import suites
    from judge import TOLERANCE
    from sardonyx.report.alternation import alternate, ratio

    inputs = read_feeds(feeds)
    _, reference = suites.unoptimized_outputs(Path(path), inputs)
    engine_files = {engine: (engine, path) for engine in (engines.SUBJECT, *engines.PEERS)}
    engine_files |= {f"{engine}, optimized": (engine, optimized) for engine in engines.PEERS if optimized is not None}
    runs: dict[str, Any] = {}
    outputs: dict[str, list[Any]] = {}
    failures: dict[str, str] = {}
    for name, (engine, file) in engine_files.items():
        try:
            runs[name] = engines.load(engine, Path(str(file)), threads)
            outputs[name] = runs[name](inputs)
        except Exception as error:  # the engines' errors have no base class of their own
            failures[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    errors, faults = compare_outputs(outputs, reference, TOLERANCE)
    judge = "ONNX Runtime without optimizations"
    if JUDGE in faults:
        # The model amplifies rounding: ONNX Runtime itself exceeds the tolerance.
        doubles = suites.double_outputs(Path(path), inputs)
        reference, judge = (reference, judge) if doubles is None else (doubles, "the model in double precision")
        own, _ = compare_outputs({JUDGE: outputs[JUDGE]}, reference, TOLERANCE)
        errors, faults = compare_outputs(outputs, reference, max(TOLERANCE, own[JUDGE]))
        judge += f", tolerance {max(TOLERANCE, own[JUDGE]):.1e}, the difference of {JUDGE}"
    failures |= {name: f"wrong outputs: {fault}" for name, fault in faults.items()}
    sides = {name: functools.partial(run, inputs) for name, run in runs.items() if name not in failures}
    rounds = alternate(sides, seconds) if sides else {}
    ours = rounds.get(engines.SUBJECT)
    return {
        "seconds": {name: statistics.median(blocks) for name, blocks in rounds.items()},
        "ratios": {name: ratio(blocks, ours) for name, blocks in rounds.items()} if ours else {},
        "rounds": len(ours or ()), "failures": failures, "errors": errors, "judge": judge,
        **(kernel_figures(path, inputs, threads, statistics.median(ours)) if ours else {}),
    }  # fmt: skip


def compare_outputs(
    outputs: Mapping[str, list[Any]], reference: list[Any], tolerance: float
) -> tuple[dict[str, float], dict[str, str]]:
    """Return the error of each engine's outputs, and the faults above the tolerance."""
    from judge import difference

    errors, faults = {}, {}
    for name, values in outputs.items():
        compared = [difference(new, old, tolerance) for new, old in zip(values, reference, strict=True)]
        errors[name] = max((error for error, _ in compared), default=0.0)
        wrong = [fault for _, fault in compared if fault]
        if wrong:
            faults[name] = wrong[0]
    return errors, faults


def kernel_figures(path: str, feeds: Mapping[str, np.ndarray], threads: int, seconds: float) -> dict[str, Any]:
    """Return the number of kernels, the interpreted values, and the run's share of the roofline."""
    from sardonyx import Session
    from sardonyx.compiler.call.interpreted import sizes_in
    from sardonyx.compiler.explain import explain
    from sardonyx.compiler.machine_peak import measured_peak

    session = Session(path, compile="wait", threads=threads)
    # The program of `native` comes from the store, without its graph.
    program = session.program
    native = session.native
    assert program is not None
    assert native is not None
    explanation = explain(program, sizes_in(program.function.inputs, native.arrays(feeds)))
    peak = measured_peak(program.target, program.pool)
    costs = [(note.operations, note.bytes) for note in explanation.kernels]
    known = all(operations is not None and moved is not None for operations, moved in costs)
    least = sum(o / peak.operations + b / peak.bytes for o, b in costs) if known else None  # type: ignore[operator]
    return {
        "kernels": len(explanation.kernels),
        "interpreted": [f"{note.primitive}: {note.reason}" for note in explanation.interpreted],
        "roofline": None if least is None or explanation.interpreted else least / seconds,
        "peak": {"operations": peak.operations, "bytes": peak.bytes},
    }


def calls(path: str, feeds: str, threads: int, seconds: float, times: int) -> dict[str, Any]:
    """Measure a call of a small model: many calls per sample, so that the clock does not count."""
    from sardonyx import Session
    from sardonyx.report.alternation import alternate, ratio

    inputs = read_feeds(feeds)
    session = Session(path, compile="wait", threads=threads)
    binding = session.bind(inputs)
    peers = {engine: engines.load(engine, Path(path), threads) for engine in engines.PEERS}
    sides: dict[str, Any] = {
        "sardonyx, run": lambda: session.run(None, inputs),
        "sardonyx, bind": binding,
        **{name: (lambda run=run: run(inputs)) for name, run in peers.items()},
    }

    def repeated(one: Any) -> Any:
        def many() -> None:
            for _ in range(times):
                one()

        return many

    rounds = alternate({name: repeated(one) for name, one in sides.items()}, seconds)
    return {
        "seconds": {name: statistics.median(blocks) / times for name, blocks in rounds.items()},
        "ratios": {name: ratio(blocks, rounds["onnxruntime"]) for name, blocks in rounds.items()},
    }


def start(engine: str, path: str, feeds: str, threads: int, compile: str = "wait") -> dict[str, Any]:
    """Measure loading, the first run, and the growth of memory, in a process that has imported the engine."""
    import importlib

    from isolated import resident_bytes

    # The package loads its parts on first use; this part is what a user needs.
    importlib.import_module({"sardonyx": "sardonyx.runtime.session"}.get(engine, engine))
    inputs = read_feeds(feeds)
    before = resident_bytes("VmRSS")
    begin = time.perf_counter()
    ours = engine == engines.SUBJECT
    run = engines.sardonyx(Path(path), threads, compile) if ours else engines.load(engine, Path(path), threads)
    loaded = time.perf_counter()
    run(inputs)
    ended = time.perf_counter()
    return {"load": loaded - begin, "first": ended - begin, "growth": resident_bytes("VmRSS") - before}


def dynamic(path: str, sizes: list[str], threads: int) -> dict[str, Any]:
    """Run every engine, in alternation, on inputs of many sizes; Sardonyx repeats each size."""
    import sardonyx.compiler.llvm.parallel_build as build
    from judge import difference
    from sardonyx.report.alternation import REST_SECONDS, timed

    runs = {name: engines.load(name, Path(path), threads) for name in (engines.SUBJECT, *engines.PEERS)}
    new: dict[str, list[float]] = {name: [] for name in runs}
    again: list[float] = []
    kernel_figures = count_calls(build, "compiled")
    worst, faults = 0.0, 0
    for number, stored in enumerate(sizes):
        inputs = read_feeds(stored)
        outputs = {}
        for name in sorted(runs, key=lambda name: (list(runs).index(name) + number) % len(runs)):
            time.sleep(REST_SECONDS)
            new[name].append(timed(lambda: outputs.update({name: runs[name](inputs)})))  # noqa: B023
            if name == engines.SUBJECT:
                again.append(statistics.median(timed(lambda: runs[name](inputs)) for _ in range(REPEATED)))  # noqa: B023
        for ours, theirs in zip(outputs[engines.SUBJECT], outputs["onnxruntime"], strict=True):
            error, fault = difference(ours, theirs)
            worst, faults = max(worst, error), faults + (fault is not None)
        if not number:
            kernel_figures.clear()
    # The first size is not counted: some engines compile then.
    ratios = sorted(a / b for a, b in zip(new[engines.SUBJECT][1:], again[1:], strict=True))
    return {
        "new": {name: sum(seconds[1:]) for name, seconds in new.items()},
        "again": sum(again[1:]),
        "ratio": statistics.median(ratios), "ratios": ratios, "compilations": len(kernel_figures),
        "worst": worst, "faults": faults, "growth": growth_after_the_largest(path, sizes, threads),
    }  # fmt: skip


def growth_after_the_largest(path: str, sizes: list[str], threads: int) -> int:
    """Return the growth of resident bytes over calls of all sizes, after the largest size."""
    from isolated import resident_bytes

    run = engines.load(engines.SUBJECT, Path(path), threads)
    largest = max(sizes, key=lambda stored: sum(array.size for array in read_feeds(stored).values()))
    for _ in range(2):
        run(read_feeds(largest))
    before = resident_bytes("VmRSS")
    for stored in sizes:
        run(read_feeds(stored))
    return resident_bytes("VmRSS") - before


def count_calls(module: Any, name: str) -> list[None]:
    """Return a list that grows with every call of a function of a module."""
    function, calls = getattr(module, name), []

    def counted(*arguments: Any) -> Any:
        calls.append(None)
        return function(*arguments)

    setattr(module, name, counted)
    return calls


if __name__ == "__main__":
    functions = {"latency": latency, "calls": calls, "start": start, "dynamic": dynamic}
    arguments = json.loads(sys.stdin.read())
    print(json.dumps(functions[sys.argv[1]](**arguments)))
