"""The figures of `latency.py` as tables: goals, measurements, and every exception by name."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engines import PEERS, SUBJECT
from tables import Table, geomean, line

Result = dict[str, Any]

VARIANTS = [name for peer in PEERS for name in (peer, f"{peer}, optimized")]
LARGE_SECONDS = 5e-3
"""Time in ONNX Runtime from which the criterion of single networks applies."""

MIB = 1 << 20
FLAT_BYTES = MIB
"""Tolerance of flat memory: heaps retain a few pages."""


def tables(results: Mapping[str, Sequence[Result]], sections: Sequence[str]) -> list[Table]:
    """Return the table of the criteria, and the tables of the sections."""
    builders: dict[str, Callable[[], tuple[Table, list[list[str]]]]] = {
        "latency": lambda: compared(results["latency"], "Latency"),
        "call": lambda: called(results["call"]),
        "load": lambda: loaded(results["load"]),
        "memory": lambda: remembered(results["load"]),
        "dynamic": lambda: of_many_sizes(results["dynamic"]),
        "trees": lambda: generated(results["trees"]),
        "recurrent": lambda: of_recurrent_layers(results["recurrent"]),
    }
    built = [builders[section]() for section in sections]
    criteria = [criterion for _, lines in built for criterion in lines]
    summary = Table("Compiled models: summary", "", ["Criterion", "Goal", "Measured", "Met"], criteria)
    return [summary, *(table for table, _ in built)]


# Latency.


def best_of(row: Result, peer: str) -> float | None:
    """Return the better of a peer's two times over ours."""
    ratios = [row["ratios"][name] for name in (peer, f"{peer}, optimized") if name in row.get("ratios", {})]
    return min(ratios, default=None)


def best(row: Result) -> float | None:
    """Return the fastest peer's time over ours."""
    return min((ratio for peer in PEERS if (ratio := best_of(row, peer)) is not None), default=None)


def compared(rows: Sequence[Result], title: str) -> tuple[Table, list[list[str]]]:
    table = Table(
        title,
        "Milliseconds, median of alternating blocks. Ratios are a peer's time over Sardonyx's, with the peer's better "
        "graph; above 1, Sardonyx is faster. The roofline is the time of operations at the measured peak of "
        "multiply-adds plus the time of bytes at the measured bandwidth, over Sardonyx's time.",
        ["Model", SUBJECT, *VARIANTS, *(f"× {peer}" for peer in PEERS), "× best", "of roofline", "kernels"],
        [],
    )
    for row in rows:
        seconds = row.get("seconds", {})
        ratios = [best_of(row, peer) for peer in PEERS]
        times = [f"{seconds[name] * 1e3:.3f}" if name in seconds else "—" for name in (SUBJECT, *VARIANTS)]
        roofline = row.get("roofline")
        table.rows.append(
            [
                row["name"], *times, *map(times_as, ratios), times_as(best(row)),
                "—" if roofline is None else f"{roofline:.2f}", str(row.get("kernels", "—")),
            ]
        )  # fmt: skip
        table.notes += notes(row)
    return table, latency_lines(rows) if title == "Latency" else []


def notes(row: Result) -> list[str]:
    """Return the failures and remarks of a row."""
    said = [f"{row['name']}: {row['failure']}"] if "failure" in row else []
    said += [f"{row['name']}: {name}: {reason}" for name, reason in row.get("failures", {}).items()]
    if "within" in row.get("judge", ""):
        said.append(f"{row['name']}: compared with {row['judge']}")
    left = row.get("interpreted")
    return [*said, *([f"{row['name']}: {len(left)} interpreted values: {', '.join(left[:3])}"] if left else [])]


def times_as(ratio: float | None) -> str:
    return "—" if ratio is None else f"{ratio:.2f}"


def latency_lines(rows: Sequence[Result]) -> list[list[str]]:
    usable = [row for row in rows if best(row) is not None]
    beside = [ratio for row in usable if (ratio := best_of(row, "onnxruntime")) is not None]
    over_best = [best(row) for row in usable]
    slower = [row["name"] for row in rows if (best(row) or 0) < 1]
    large = [row for row in usable if row["seconds"].get("onnxruntime", 0) > LARGE_SECONDS]
    missed = [
        row["name"] for row in large
        if (best_of(row, "onnxruntime") or 0) < 2 and (row.get("roofline") or 0) < 0.8
    ]  # fmt: skip
    all_there = len(usable) == len(rows)
    peaks = [row["peak"]["operations"] / 1e9 for row in usable if "peak" in row]
    widths = [row["peak"]["bytes"] / 1e9 for row in usable if "peak" in row]
    measured = f"{statistics.median(peaks):.0f} GFLOP/s, {statistics.median(widths):.1f} GB/s" if peaks else "none"
    return [
        ["measured peak", "", measured, ""],
        line("latency, geometric mean", "≥ 2.0 × ONNX Runtime", f"{geomean(beside):.2f} ({len(beside)} of {len(rows)})",
             all_there and geomean(beside) >= 2),
        line("latency, geometric mean", "≥ 1.5 × the better peer", f"{geomean(over_best):.2f}",
             all_there and geomean(over_best) >= 1.5),
        line("latency, each", "no model slower than the better peer", f"slower or missing: {listed(slower)}",
             not slower),
        line("networks above 5 ms", "≥ 2.0 × ONNX Runtime or ≥ 0.8 of the roofline", f"not met by: {listed(missed)}",
             all_there and not missed),
    ]  # fmt: skip


def listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


# Calls.


def called(rows: Sequence[Result]) -> tuple[Table, list[list[str]]]:
    table = Table(
        "Calls of a small model", "Microseconds per call from Python; shares are relative to ONNX Runtime's time.",
        ["Model", "call", "µs", "share"], [],
    )  # fmt: skip
    lines = []
    for row in rows:
        table.notes += notes(row)
        for name, seconds in row.get("seconds", {}).items():
            table.rows.append([row["name"], name, f"{seconds * 1e6:.2f}", f"{row['ratios'][name]:.3f}"])
        for name, most in (("sardonyx, run", 1 / 3), ("sardonyx, bind", 1 / 8)):
            share = row.get("ratios", {}).get(name, math.inf)
            lines.append(line(f"{row['name']}, {name}", f"≤ {most:.3f} of ONNX Runtime", f"{share:.3f}", share <= most))
    return table, lines


# Loading and memory.


def middle(row: Result, kind: str, figure: str) -> float | None:
    """Return the median of a figure over the processes; None if one failed."""
    figures = [run.get(figure) for run in row["starts"][kind]]
    return None if None in figures else statistics.median(figures)


def started(row: Result, peer: str, figure: str) -> float | None:
    """Return a peer's figure over ours, in processes with a warm cache."""
    ours, theirs = middle(row, "warm", figure), middle(row, peer, figure)
    return theirs / ours if ours and theirs else None


def loaded(rows: Sequence[Result]) -> tuple[Table, list[list[str]]]:
    columns = [
        ("cold", "load"), ("answer", "first"), ("warm", "load"), ("onnxruntime", "load"), ("onnxruntime", "first"),
        ("openvino", "load"),
    ]  # fmt: skip
    table = Table(
        "Loading",
        "Milliseconds in a new process that has imported the engine. Cold: with an empty cache, until all is compiled. "
        "First answer: with an empty cache, until the first result. Warm: with the cache. `first` is loading and the "
        "first run.",
        ["Model", "cold", "first answer", "warm", "ONNX Runtime", "ONNX Runtime, first", "OpenVINO"],
        [],
    )
    late, slow = [], []
    for row in rows:
        figures = [middle(row, *column) for column in columns]
        table.rows.append([row["name"], *("—" if seconds is None else f"{seconds * 1e3:.1f}" for seconds in figures)])
        table.notes += start_notes(row)
        _, answer, warm, theirs, first, _ = figures
        if warm is None or (theirs is not None and warm > theirs):
            late.append(row["name"])
        if answer is None or (first is not None and answer > 1.5 * first):
            slow.append(row["name"])
    lines = [
        line("warm load", "≤ ONNX Runtime's session time", f"longer: {listed(late)}", not late),
        line("first answer, cold", "≤ 1.5 × ONNX Runtime's load and first run", f"longer: {listed(slow)}", not slow),
    ]
    for row in rows:
        if row["name"] in ("resnet50", "minilm"):
            cold = middle(row, "cold", "load")
            lines.append(
                line(f"cold load, {row['name']}", "≤ 6 s", f"{cold or math.nan:.1f} s", cold is not None and cold <= 6)
            )
    return table, lines


def remembered(rows: Sequence[Result]) -> tuple[Table, list[list[str]]]:
    table = Table(
        "Memory",
        "Growth of resident memory in MiB from the import to the end of a run, in a new process; Sardonyx with a warm "
        "cache.",
        ["Model", SUBJECT, "ONNX Runtime", "OpenVINO"],
        [],
    )
    more = []
    for row in rows:
        figures = [middle(row, kind, "growth") for kind in ("warm", *PEERS)]
        table.rows.append([row["name"], *("—" if bytes_ is None else f"{bytes_ / MIB:.1f}" for bytes_ in figures)])
        ours, theirs, _ = figures
        if ours is None or (theirs is not None and ours > theirs):
            more.append(row["name"])
    return table, [line("memory", "growth ≤ ONNX Runtime's", f"more: {listed(more)}", not more)]


def start_notes(row: Result) -> list[str]:
    return [
        f"{row['name']}: {kind}: {run['failure']}"
        for kind, starts in row["starts"].items() for run in starts[:1] if "failure" in run
    ]  # fmt: skip


# Many sizes.


def of_many_sizes(rows: Sequence[Result]) -> tuple[Table, list[list[str]]]:
    table = Table(
        "Many input sizes",
        "Seconds for all sizes but the first: the first call of each size, and for Sardonyx a repeated call (median of "
        "three). The ratio is new over repeated: median and 90th percentile over all sizes. Growth is that of resident "
        "memory over all sizes, in a session that ran the largest size first.",
        ["Model", "sizes", "engine", "new", "repeated", "new / repeated", "90th percentile", "growth, MiB"], [],
    )  # fmt: skip
    lines = []
    for row in rows:
        table.notes += notes(row)
        if "failure" in row:
            lines.append(line(f"sizes of {row['name']}", "runs", row["failure"], False))
            continue
        for name, seconds in row["new"].items():
            more = ["—"] * 4
            if name == SUBJECT:
                most = row["ratios"][len(row["ratios"]) * 9 // 10]
                more = [f"{row['again']:.3f}", f"{row['ratio']:.2f}", f"{most:.2f}", f"{row['growth'] / MIB:.1f}"]
            table.rows.append([row["name"], str(row["count"]), name, f"{seconds:.3f}", *more])
        fastest = min(row["new"][peer] for peer in PEERS)
        share, ratio = fastest / row["new"][SUBJECT], row["ratio"]
        lines += [
            line(f"sizes of {row['name']}", "no compilation", str(row["compilations"]), row["compilations"] == 0),
            line(f"sizes of {row['name']}", "a new size ≤ 1.1 × a repeated one", f"{ratio:.2f}", ratio <= 1.1),
            line(f"sizes of {row['name']}", "memory flat after the largest", f"{row['growth'] / MIB:.1f} MiB",
                 row["growth"] <= FLAT_BYTES),
            line(f"sizes of {row['name']}", "faster in total than both peers", f"{share:.2f} ×", share > 1),
            line(f"sizes of {row['name']}", "equal outputs", f"{row['faults']} differences", row["faults"] == 0),
        ]  # fmt: skip
    return table, lines


# Trees and the like.


def generated(rows: Sequence[Result]) -> tuple[Table, list[list[str]]]:
    table, _ = compared(rows, "Tree ensembles, recurrent layers, a loop")
    lines = []
    for row in rows:
        goal = 10.0 if row["name"].startswith("Loop") else 1.5 if row["name"] in ("LSTM", "GRU") else 5.0
        ratio = best_of(row, "onnxruntime")
        lines.append(
            line(row["name"], f"≥ {goal} × ONNX Runtime", times_as(ratio), ratio is not None and ratio >= goal)
        )
    return table, lines


def of_recurrent_layers(rows: Sequence[Result]) -> tuple[Table, list[list[str]]]:
    table, _ = compared(rows, "Recurrent layers")
    ratios = [best_of(row, "onnxruntime") for row in rows]
    known = [ratio for ratio in ratios if ratio is not None]
    missed = [row["name"] for row, ratio in zip(rows, ratios, strict=True) if ratio is None or ratio < 1.5]
    measured = f"{geomean(known):.2f}; not met by: {listed(missed)}" if known else "none"
    return table, [line("recurrent layers", "each ≥ 1.5 × ONNX Runtime", measured, not missed)]


def plot(path: Path, results: Mapping[str, Sequence[Result]]) -> None:
    """Draw the ratios of the models, a panel for each measured section."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels: list[tuple[str, Sequence[Result], Callable[[Result, str], float | None]]] = [
        (f"{name}: a peer's time over Sardonyx's, above 1 is faster", results[name], best_of)
        for name in ("latency", "trees") if results.get(name)
    ]  # fmt: skip
    for figure_name, title in (("load", "loading, warm: a peer's time"), ("growth", "memory after a run: a peer's")):
        if results.get("load"):
            beside = functools.partial(started, figure=figure_name)
            panels.append((f"{title} over Sardonyx's, above 1 is less", results["load"], beside))
    if not panels:
        return
    figure, axes = plt.subplots(len(panels), 1, figsize=(14, 5 * len(panels)), squeeze=False, layout="constrained")
    for axis, (title, rows, ratio) in zip(axes[:, 0], panels, strict=True):
        for peer in PEERS:
            axis.plot(range(len(rows)), [ratio(row, peer) or math.nan for row in rows], "o", label=f"over {peer}")
        axis.axhline(1, color="grey", linewidth=0.8)
        axis.set_yscale("log")
        axis.set_xticks(range(len(rows)), [row["name"] for row in rows], rotation=90, fontsize=8)
        axis.set_title(title)
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
