"""What is measured in processes of their own: a crash is a row of the table, and every process starts clean.

`python children.py NAME` reads the arguments of one of the functions below as JSON and prints what it returns as JSON.
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
"""Whose error is allowed to all where it is larger than the tolerance."""

TIMEOUT_SECONDS = 1800.0

REPEATED = 3
"""Calls of a size that is not new any more."""


def call(name: str, cache: Path | None = None, **arguments: Any) -> dict[str, Any]:
    """Run a function of this module in a process of its own; ``failure`` is why there is no result.

    Args:
        name: The function.
        cache: The folder of Sardonyx's compiled code; that of the surroundings where None.
        arguments: What it is given.
    """
    surroundings = {**os.environ, **({} if cache is None else {"SARDONYX_CACHE": str(cache)})}
    # Modules are compiled once, as those of installed packages are.
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
    """All engines on one model, peers on the optimized one too; the roofline of the compiled one."""
    import suites
    from judge import TOLERANCE
    from sardonyx.report.alternation import alternate, ratio

    given = read_feeds(feeds)
    _, reference = suites.unoptimized_outputs(Path(path), given)
    wanted = {engine: (engine, path) for engine in (engines.SUBJECT, *engines.PEERS)}
    wanted |= {f"{engine}, optimized": (engine, optimized) for engine in engines.PEERS if optimized is not None}
    runs: dict[str, Any] = {}
    outputs: dict[str, list[Any]] = {}
    failures: dict[str, str] = {}
    for name, (engine, file) in wanted.items():
        try:
            runs[name] = engines.load(engine, Path(str(file)), threads)
            outputs[name] = runs[name](given)
        except Exception as error:  # the engines' errors have no base class of their own
            failures[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    errors, faults = judged(outputs, reference, TOLERANCE)
    judge = "ONNX Runtime without optimizations"
    if JUDGE in faults:
        # What ONNX Runtime itself is that far off cannot be asked of anyone: the model amplifies rounding.
        doubles = suites.double_outputs(Path(path), given)
        reference, judge = (reference, judge) if doubles is None else (doubles, "the model in double precision")
        own, _ = judged({JUDGE: outputs[JUDGE]}, reference, TOLERANCE)
        errors, faults = judged(outputs, reference, max(TOLERANCE, own[JUDGE]))
        judge += f", within {max(TOLERANCE, own[JUDGE]):.1e} as {JUDGE} is"
    failures |= {name: f"other outputs: {fault}" for name, fault in faults.items()}
    sides = {name: functools.partial(run, given) for name, run in runs.items() if name not in failures}
    rounds = alternate(sides, seconds) if sides else {}
    ours = rounds.get(engines.SUBJECT)
    return {
        "seconds": {name: statistics.median(blocks) for name, blocks in rounds.items()},
        "ratios": {name: ratio(blocks, ours) for name, blocks in rounds.items()} if ours else {},
        "rounds": len(ours or ()), "failures": failures, "errors": errors, "judge": judge,
        **(compiled(path, given, threads, statistics.median(ours)) if ours else {}),
    }  # fmt: skip


def judged(
    outputs: Mapping[str, list[Any]], reference: list[Any], tolerance: float
) -> tuple[dict[str, float], dict[str, str]]:
    """How far the outputs of each side are off the reference, and what is wrong with those that are too far."""
    from judge import difference

    errors, faults = {}, {}
    for name, found in outputs.items():
        compared = [difference(new, old, tolerance) for new, old in zip(found, reference, strict=True)]
        errors[name] = max((error for error, _ in compared), default=0.0)
        wrong = [fault for _, fault in compared if fault]
        if wrong:
            faults[name] = wrong[0]
    return errors, faults


def compiled(path: str, feeds: Mapping[str, np.ndarray], threads: int, seconds: float) -> dict[str, Any]:
    """Kernels, what is left to the interpreter, and the share of the roofline that a run's time is."""
    from sardonyx import Session
    from sardonyx.compiler.call.interpreted import sizes_in
    from sardonyx.compiler.explain import explain
    from sardonyx.compiler.machine_peak import measured_peak

    session = Session(path, compile="wait", threads=threads)
    # Asked for first: the one from the store does not know what it was made of.
    program = session.program
    native = session.native
    assert program is not None
    assert native is not None
    found = explain(program, sizes_in(program.function.inputs, native.arrays(feeds)))
    peak = measured_peak(program.target, program.pool)
    costs = [(note.operations, note.bytes) for note in found.kernels]
    known = all(operations is not None and moved is not None for operations, moved in costs)
    least = sum(o / peak.operations + b / peak.bytes for o, b in costs) if known else None  # type: ignore[operator]
    return {
        "kernels": len(found.kernels),
        "interpreted": [f"{note.primitive}: {note.reason}" for note in found.interpreted],
        "roofline": None if least is None or found.interpreted else least / seconds,
        "peak": {"operations": peak.operations, "bytes": peak.bytes},
    }


def calls(path: str, feeds: str, threads: int, seconds: float, times: int) -> dict[str, Any]:
    """What a call of a small model takes: many calls a sample, so that the clock does not count."""
    from sardonyx import Session
    from sardonyx.report.alternation import alternate, ratio

    given = read_feeds(feeds)
    session = Session(path, compile="wait", threads=threads)
    binding = session.bind(given)
    peers = {engine: engines.load(engine, Path(path), threads) for engine in engines.PEERS}
    sides: dict[str, Any] = {
        "sardonyx, run": lambda: session.run(None, given),
        "sardonyx, bind": binding,
        **{name: (lambda run=run: run(given)) for name, run in peers.items()},
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
    """Loading and the first run, and the memory that they leave behind, in a process that has imported the engine."""
    import importlib

    from isolated import resident_bytes

    # What a user imports; the package itself loads its parts when they are asked for.
    importlib.import_module({"sardonyx": "sardonyx.runtime"}.get(engine, engine))
    given = read_feeds(feeds)
    before = resident_bytes("VmRSS")
    begin = time.perf_counter()
    ours = engine == engines.SUBJECT
    run = engines.sardonyx(Path(path), threads, compile) if ours else engines.load(engine, Path(path), threads)
    loaded = time.perf_counter()
    run(given)
    ended = time.perf_counter()
    return {"load": loaded - begin, "first": ended - begin, "growth": resident_bytes("VmRSS") - before}


def dynamic(path: str, sizes: list[str], threads: int) -> dict[str, Any]:
    """Every engine on inputs of many sizes, each when it is new; ours then again. The engines take turns."""
    import sardonyx.compiler.llvm.parallel_build as build
    from judge import difference
    from sardonyx.report.alternation import REST_SECONDS, timed

    runs = {name: engines.load(name, Path(path), threads) for name in (engines.SUBJECT, *engines.PEERS)}
    new: dict[str, list[float]] = {name: [] for name in runs}
    again: list[float] = []
    compiled = counting(build, "compiled")
    worst, faults = 0.0, 0
    for number, stored in enumerate(sizes):
        given = read_feeds(stored)
        outputs = {}
        for name in sorted(runs, key=lambda name: (list(runs).index(name) + number) % len(runs)):
            time.sleep(REST_SECONDS)
            new[name].append(timed(lambda: outputs.update({name: runs[name](given)})))  # noqa: B023
            if name == engines.SUBJECT:
                again.append(statistics.median(timed(lambda: runs[name](given)) for _ in range(REPEATED)))  # noqa: B023
        for ours, theirs in zip(outputs[engines.SUBJECT], outputs["onnxruntime"], strict=True):
            error, fault = difference(ours, theirs)
            worst, faults = max(worst, error), faults + (fault is not None)
        if not number:
            compiled.clear()
    # The first size of all compiles in some engines: it is no size like others.
    ratios = sorted(a / b for a, b in zip(new[engines.SUBJECT][1:], again[1:], strict=True))
    return {
        "new": {name: sum(each[1:]) for name, each in new.items()},
        "again": sum(again[1:]),
        "ratio": statistics.median(ratios), "ratios": ratios, "compilations": len(compiled),
        "worst": worst, "faults": faults, "growth": growth_after_the_largest(path, sizes, threads),
    }  # fmt: skip


def growth_after_the_largest(path: str, sizes: list[str], threads: int) -> int:
    """Resident bytes that a new session gains over calls of all sizes, once it has had the largest."""
    from isolated import resident_bytes

    run = engines.load(engines.SUBJECT, Path(path), threads)
    largest = max(sizes, key=lambda stored: sum(each.size for each in read_feeds(stored).values()))
    for _ in range(2):
        run(read_feeds(largest))
    before = resident_bytes("VmRSS")
    for stored in sizes:
        run(read_feeds(stored))
    return resident_bytes("VmRSS") - before


def counting(module: Any, name: str) -> list[None]:
    """A list that grows with every call of a function of a module."""
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
