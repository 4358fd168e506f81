"""The figures of `optimizer.py` as tables: goals, measurements, and every exception by name."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import measure
import paired
import peers
import scale

GEOMEAN_NODES = 0.68
MEMORY_FACTOR = 1.3
MEMORY_BYTES = 200 << 20
SUBJECT = peers.SUBJECT.name
PEER_NAMES = [peer.name for peer in peers.PEERS]


@dataclass
class Table:
    """A title, a sentence that explains the table, columns, rows of text, and notes below."""

    title: str
    lead: str
    columns: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)

    def numeric(self, column: int) -> bool:
        """Return True if the column has figures, with an occasional word instead."""
        return any(re.fullmatch(r"\d[\d.e–() +✗-]*", row[column]) for row in self.rows)


def tables(rows: Sequence[measure.Row], scalings: Sequence[scale.Scaling], sections: Sequence[str]) -> list[Table]:
    """Return the summary of the criteria, and every table of the chosen sections."""
    builders: dict[str, Callable[[], list[Table]]] = {
        "nodes": lambda: [nodes(rows), correctness(rows)],
        "latency": lambda: [latencies(rows)],
        "time": lambda: [times(rows)],
        "memory": lambda: [memory(rows)],
        "scale": lambda: [growth(scalings)],
    }
    chosen = [table for section in sections for table in builders[section]()]
    return [summary(rows, scalings, sections), *chosen]


def geomean(values: Iterable[float]) -> float:
    """Return the geometric mean; NaN for no values."""
    logs = [math.log(value) for value in values]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def summary(rows: Sequence[measure.Row], scalings: Sequence[scale.Scaling], sections: Sequence[str]) -> Table:
    lines = []
    if "nodes" in sections:
        lines += [correctness_line(rows), fewest_line(rows)]
        real = [row for row in rows if row.suite == "real"]
        lines += [geomean_line(real)] if real else []
    if "latency" in sections:
        lines += [latency_line(rows)]
    if "time" in sections:
        lines += [time_line(rows, name) for name in PEER_NAMES]
    if "memory" in sections:
        lines += [memory_line(rows)]
    if "scale" in sections:
        lines += [growth_line(scaling) for scaling in scalings]
    return Table("Summary", f"{len(rows)} models.", ["Criterion", "Goal", "Measured", "Met"], lines)


def line(criterion: str, goal: str, measured: str, met: bool) -> list[str]:
    return [criterion, goal, measured, "yes" if met else "NO"]


def correctness_line(rows: Sequence[measure.Row]) -> list[str]:
    right = sum(not exceptions(row) for row in rows)
    goal = "correct, valid, same inputs and outputs, a second run changes nothing"
    return line("1 correct", goal, f"{right} of {len(rows)} models", right == len(rows))


def fewest_line(rows: Sequence[measure.Row]) -> list[str]:
    within = sum(leads(row) for row in rows)
    return line("2 nodes", "≤ the best peer on every model", f"{within} of {len(rows)} models", within == len(rows))


def geomean_line(real: Sequence[measure.Row]) -> list[str]:
    reached = geomean(nodes_of(row, SUBJECT) / row.before.nodes for row in real)
    others = ", ".join(
        f"{name} {geomean(nodes_of(row, name) / row.before.nodes for row in real):.3f}" for name in PEER_NAMES
    )
    best = geomean(row.fewest / row.before.nodes for row in real)
    text = f"{reached:.3f} ({others}; best of all per model {best:.3f})"
    return line("2 nodes", f"geometric mean on `real` ≤ {GEOMEAN_NODES}", text, reached <= GEOMEAN_NODES)


def nodes_of(row: measure.Row, name: str) -> int:
    """Return the nodes of a correct and standard result, else of the input: a failing tool gains nothing."""
    outcome = row.tools.get(name)
    return outcome.verdict.nodes if outcome and outcome.countable else row.before.nodes


def leads(row: measure.Row) -> bool:
    """Return True if no peer's correct and standard result has fewer nodes, unless slower to run."""
    if not row.subject.countable:
        return False
    nodes = row.subject.verdict.nodes
    return all(count >= nodes or slower(row, name) for name, count in row.counted().items())


def slower(row: measure.Row, name: str) -> bool:
    """Return True if ONNX Runtime needs longer for the peer's result than for ours, beyond the noise."""
    comparison = row.latency.comparisons.get(name) if row.latency else None
    return comparison is not None and comparison.high < 1 / paired.LIMIT


def nodes(rows: Sequence[measure.Row]) -> Table:
    table = Table(
        "Remaining nodes",
        "Nodes of bodies and functions and Constant nodes are counted. ✗: not counted as a result, see below.",
        ["Model", "Input", SUBJECT, *PEER_NAMES, "Best peer", "Ratio"],
        [],
    )
    for row in rows:
        ratio = nodes_of(row, SUBJECT) / row.before.nodes
        counts = [nodes_cell(row, name) for name in (SUBJECT, *PEER_NAMES)]
        table.rows.append([row.name, f"{row.before.nodes}", *counts, f"{row.fewest}", f"{ratio:.3f}"])
        table.notes += node_notes(row)
    return table


def nodes_cell(row: measure.Row, name: str) -> str:
    outcome = row.tools.get(name)
    if outcome is None:
        return "not installed"
    if outcome.verdict is None:
        return "failed ✗"
    return f"{outcome.verdict.nodes}{'' if outcome.countable else ' ✗'}"


def node_notes(row: measure.Row) -> list[str]:
    """Return notes on every result that is not counted, and on every peer with fewer nodes."""
    notes = [
        f"{row.name}: {name}{'' if outcome.verdict is None else f' ({outcome.verdict.nodes} nodes)'}: {outcome.reason}"
        for name, outcome in row.tools.items()
        if name in (SUBJECT, *PEER_NAMES) and not outcome.countable
    ]
    ours = nodes_of(row, SUBJECT)
    for name, count in row.counted().items():
        if count < ours:
            measured = row.latency.comparisons.get(name) if row.latency else None
            pace = f"; its result takes {1 / measured.ratio:.3f} of our time" if measured else ""
            notes.append(f"{row.name}: {name} leaves {count} nodes, {SUBJECT} {ours}{pace}")
    return notes


def exceptions(row: measure.Row) -> list[str]:
    """Return the reasons why our result is not correct, valid, standard, of equal interface, and final."""
    verdict = row.subject.verdict
    if verdict is None:
        return [row.subject.reason]
    again = [f"second run: {row.again}"] if row.again else []
    foreign = [verdict.reason] if verdict.foreign else []
    return verdict.faults + foreign + verdict.inherited + verdict.signature + again


def correctness(rows: Sequence[measure.Row]) -> Table:
    table = Table(
        "Correctness",
        "Outputs of the optimized model in ONNX Runtime without its optimizations, relative to the largest element.",
        ["Model", "Worst error", "Exceptions"],
        [],
    )
    for row in rows:
        verdict = row.subject.verdict
        error = "—" if verdict is None or verdict.worst_error is None else f"{verdict.worst_error:.1e}"
        table.rows.append([row.name, error, "; ".join(exceptions(row)) or "none"])
    return table


def latencies(rows: Sequence[measure.Row]) -> Table:
    table = Table(
        "Latency in ONNX Runtime",
        f"All optimizations of ONNX Runtime, {paired.THREADS} threads. Median ratio of paired runs, with the 95 % "
        "confidence interval; below 1, Sardonyx's result is faster.",
        ["Model", "Sardonyx, ms", "Over the input", "Fastest peer", "Over the fastest peer"],
        [],
    )
    for row in rows:
        if row.latency is None or row.latency.failure:
            reason = row.latency.failure if row.latency else "no result"
            table.rows.append([row.name, "—", "—", "—", "—"])
            table.notes.append(f"{row.name}: {reason}")
            continue
        comparisons, best = row.latency.comparisons, row.latency.fastest
        beside = interval(comparisons[best]) if best else "—"
        own = comparisons["input"]
        table.rows.append([row.name, f"{own.seconds * 1e3:.3f}", interval(own), best or "none", beside])
    return table


def interval(comparison: paired.Comparison) -> str:
    return f"{comparison.ratio:.3f} ({comparison.low:.3f}–{comparison.high:.3f})"


def latency_line(rows: Sequence[measure.Row]) -> list[str]:
    goal = f"≤ {paired.LIMIT} × the input and the best peer on every model"
    held = [row for row in rows if row.latency and not row.latency.failure and paces(row)]
    worst = max((ratio for row in held for ratio in paces(row)), default=math.nan)
    within = sum(max(paces(row)) <= paired.LIMIT for row in held)
    inputs = geomean(row.latency.comparisons["input"].ratio for row in held)
    text = f"{within} of {len(rows)} models; worst {worst:.3f}; geometric mean over the input {inputs:.3f}"
    return line("3 latency", goal, text, within == len(rows))


def paces(row: measure.Row) -> list[float]:
    """Return our latency over the input's and over the fastest peer's."""
    comparisons = row.latency.comparisons
    return [comparisons[name].ratio for name in ("input", row.latency.fastest) if name in comparisons]


def times(rows: Sequence[measure.Row]) -> Table:
    names = [SUBJECT, *PEER_NAMES]
    table = Table(
        "Time",
        "Seconds from file to file without import and verification, median of alternating runs after a warm-up.",
        ["Model", *names],
        [[row.name, *(cell(row, name, "seconds", 1, 3) for name in names)] for row in rows],
    )
    means = [geomean(row.tools[n].seconds for row in rows if n in row.tools and row.tools[n].seconds) for n in names]
    table.notes += effort_failures(rows)
    table.rows.append(["geometric mean", *(f"{mean:.4f}" for mean in means)])
    return table


def effort_failures(rows: Sequence[measure.Row]) -> list[str]:
    """Return the tools with a first result that failed during timing."""
    return [
        f"{row.name}: {name}: {outcome.failure}"
        for row in rows
        for name, outcome in row.tools.items()
        if outcome.failure and (outcome.verdict or name == peers.VERIFYING.name)
    ]


def cell(row: measure.Row, name: str, quantity: str, unit: float, digits: int) -> str:
    outcome = row.tools.get(name)
    value = getattr(outcome, quantity) if outcome else None
    return "—" if value is None else f"{value / unit:.{digits}f}"


def time_line(rows: Sequence[measure.Row], peer: str) -> list[str]:
    """Return the criterion of time over the models on which both tools have a result."""
    both = [(row.subject.seconds, row.tools[peer].seconds) for row in rows if peer in row.tools]
    ratios = [ours / theirs for ours, theirs in both if ours and theirs]
    ratio = geomean(ratios)
    text = f"{ratio:.3f} × its time ({len(ratios)} models)" if ratios else "not installed"
    return line("4 time", f"below {peer} on the geometric mean", text, not ratios or ratio < 1)


def allowed_bytes(row: measure.Row) -> float:
    return MEMORY_FACTOR * row.bytes + MEMORY_BYTES


def memory(rows: Sequence[measure.Row]) -> Table:
    names = [SUBJECT, *PEER_NAMES]
    verified = peers.VERIFYING.name
    table = Table(
        "Peak memory",
        "MiB above the memory after the import, in the first run of a process. The last two columns are with "
        "verification: the process itself, and the larger of the process and its largest child.",
        ["Model", "File", "Limit", *names, verified, "child"],
        [
            [
                row.name,
                f"{row.bytes / 2**20:.1f}",
                f"{allowed_bytes(row) / 2**20:.0f}",
                *(cell(row, name, "peak_bytes", 2**20, 0) for name in (*names, verified)),
                cell(row, verified, "children_peak_bytes", 2**20, 0),
            ]
            for row in rows
        ],
    )
    table.notes += effort_failures(rows)
    return table


def memory_line(rows: Sequence[measure.Row]) -> list[str]:
    measured = [row for row in rows if row.subject.peak_bytes is not None]
    within = sum(row.subject.peak_bytes <= allowed_bytes(row) for row in measured)
    worst = max((row.subject.peak_bytes / allowed_bytes(row) for row in measured), default=math.nan)
    text = f"{within} of {len(rows)} models; worst {worst:.2f} of the limit"
    return line("4 memory", f"≤ {MEMORY_FACTOR} × file + {MEMORY_BYTES >> 20} MiB", text, within == len(rows))


def growth(scalings: Sequence[scale.Scaling]) -> Table:
    table = Table(
        "Time by size",
        "Generated models, each size in a process of its own after a warm-up on the smallest.",
        ["Model", "Nodes", "Remaining nodes", "Seconds", "µs per node", "Peak, MiB"],
        [],
    )
    for scaling in scalings:
        measured = zip(scaling.nodes, scaling.nodes_left, scaling.seconds, scaling.peak_bytes, strict=True)
        for count, left, seconds, peak in measured:
            rate = f"{seconds / count * 1e6:.1f}"
            table.rows.append([scaling.model, f"{count}", f"{left}", f"{seconds:.2f}", rate, f"{peak / 2**20:.0f}"])
        if scaling.failure:
            table.notes.append(f"{scaling.model}: {scaling.failure}")
    return table


def growth_line(scaling: scale.Scaling) -> list[str]:
    goal = f"{scaling.model}: time linear in nodes (exponent ≤ {scale.STEEPEST})"
    largest = f"{scaling.seconds[-1]:.1f} s for {scaling.nodes[-1]} nodes"
    text = scaling.failure or f"exponent {scaling.exponent:.2f}, {largest}"
    return line("4 scale", goal, text, scaling.exponent <= scale.STEEPEST)
