"""Output of the tables: on the terminal, in a section of a Markdown page, as JSON, and as a plot."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import rich.console
import rich.table

import measure
import peers
import scale
import tables

PIPED_WIDTH = 180


def surroundings() -> dict[str, str]:
    """Return the versions of the tools, the machine, and the date."""
    return {**{tool.distribution: tool.version for tool in (peers.SUBJECT, *peers.PEERS)}, **machine_and_date()}


def machine_and_date() -> dict[str, str]:
    """Return the machine and the date."""
    machine = f"{processor()}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    return {"machine": machine, "date": datetime.date.today().isoformat()}


def processor() -> str:
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    names = [text.partition(":")[2].strip() for text in lines if text.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def show(results: Sequence[tables.Table]) -> None:
    console = rich.console.Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    for table in results:
        shown = rich.table.Table(title=table.title, caption=table.lead, title_justify="left")
        for index, column in enumerate(table.columns):
            shown.add_column(column, justify="right" if table.numeric(index) else "left", overflow="fold")
        for row in table.rows:
            shown.add_row(*(rich.markup.escape(text) for text in row))
        console.print(shown)
        for note in table.notes:
            console.print(f"  {note}", markup=False, highlight=False)


def markdown(results: Sequence[tables.Table], facts: dict[str, str]) -> str:
    lines = ["; ".join(f"{name} {value}" for name, value in facts.items() if name not in ("machine", "date")) + "."]
    lines += [f"Measured on {facts['date']} on {facts['machine']}.", ""]
    for table in results:
        lines += [f"### {table.title}", "", table.lead, ""]
        lines += [
            f"| {' | '.join(table.columns)} |",
            f"|{'|'.join('--:' if table.numeric(index) else '---' for index in range(len(table.columns)))}|",
        ]
        lines += [f"| {' | '.join(text.replace('|', '∣') for text in row)} |" for row in table.rows]
        lines += ["", *(f"- {note}" for note in table.notes), *([""] if table.notes else [])]
    return "\n".join(lines)


def rewrite_section(page: Path, text: str, name: str = "optimizer") -> None:
    """Replace the text between the marks of a section; a page without marks gets the section at its end."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    before = page.read_text() if page.exists() else "# Benchmarks\n"
    if begin not in before:
        before = f"{before.rstrip()}\n\n{begin}\n{end}\n"
    head, rest = before.split(begin, 1)
    tail = rest.split(end, 1)[1]
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(f"{head}{begin}\n{text.rstrip()}\n{end}{tail}")


def deliver(
    results: Sequence[tables.Table], facts: dict[str, str], section: str, draw: Callable[[Path], None],
    chosen: argparse.Namespace,
) -> None:  # fmt: skip
    """Show tables; write the plot and the section of a page that the command line asks for.

    Args:
        results: The tables.
        facts: Versions and machine, for the page.
        section: Name of the section.
        draw: Writes the plot to a file.
        chosen: The options ``plot`` and ``markdown``, each a path or None.
    """
    show(results)
    if chosen.plot:
        draw(chosen.plot)
    if chosen.markdown:
        rewrite_section(chosen.markdown, markdown(results, facts), section)


def write_json(
    path: Path, rows: Sequence[measure.Row], scalings: Sequence[scale.Scaling], facts: dict[str, str]
) -> None:
    content = {
        "surroundings": facts,
        "models": [{**asdict(row), "fewest": row.fewest} for row in rows],
        "scale": [asdict(scaling) for scaling in scalings],
    }
    path.write_text(json.dumps(content, indent=1))


def plot(path: Path, rows: Sequence[measure.Row], scalings: Sequence[scale.Scaling], sections: Sequence[str]) -> None:
    """Draw one panel for each measured section."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = {"nodes": node_panel, "latency": latency_panel, "time": time_panel, "memory": memory_panel}
    chosen = [section for section in sections if section in panels and rows] + ["scale"] * bool(scalings)
    figure, axes = plt.subplots(len(chosen), 1, figsize=(14, 4.5 * len(chosen)), squeeze=False, layout="constrained")
    for axis, section in zip(axes[:, 0], chosen, strict=True):
        if section == "scale":
            scale_panel(axis, scalings)
        else:
            panels[section](axis, rows)
            axis.set_xticks(range(len(rows)), [row.name for row in rows], rotation=90, fontsize=7)
        axis.legend(fontsize=7, ncols=4)
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def node_panel(axis, rows: Sequence[measure.Row]) -> None:
    for name in tables.PEER_NAMES:
        shares = [tables.nodes_of(row, name) / row.before.nodes for row in rows]
        axis.plot(range(len(rows)), shares, ".", alpha=0.6, label=name)
    ours = [tables.nodes_of(row, tables.SUBJECT) / row.before.nodes for row in rows]
    axis.plot(range(len(rows)), ours, "kD", markersize=4, label=tables.SUBJECT)
    axis.set_title("Remaining nodes, as a share of the input's")


def latency_panel(axis, rows: Sequence[measure.Row]) -> None:
    for position, row in enumerate(rows):
        comparisons = row.latency.comparisons if row.latency else {}
        for name, shift, colour in (
            ("input", -0.15, "tab:blue"),
            (row.latency and row.latency.fastest, 0.15, "tab:red"),
        ):
            if name in comparisons:
                one = comparisons[name]
                axis.errorbar(
                    position + shift, one.ratio, [[one.ratio - one.low], [one.high - one.ratio]], fmt=".", c=colour
                )
    axis.plot([], [], ".", c="tab:blue", label="over the input")
    axis.plot([], [], ".", c="tab:red", label="over the fastest peer")
    axis.axhline(1.02, color="grey", linewidth=0.8, label="1.02")
    axis.set_title("Latency in ONNX Runtime, ratio of paired runs")


def time_panel(axis, rows: Sequence[measure.Row]) -> None:
    for name in (*tables.PEER_NAMES, tables.SUBJECT):
        seconds = [row.tools[name].seconds if name in row.tools else None for row in rows]
        style = {"marker": "D", "color": "black"} if name == tables.SUBJECT else {"marker": ".", "alpha": 0.6}
        axis.plot(range(len(rows)), [value or float("nan") for value in seconds], linestyle="", label=name, **style)
    axis.set_yscale("log")
    axis.set_title("Seconds from file to file")


def memory_panel(axis, rows: Sequence[measure.Row]) -> None:
    for name in (*tables.PEER_NAMES, tables.SUBJECT):
        peaks = [row.tools[name].peak_bytes if name in row.tools else None for row in rows]
        style = {"marker": "D", "color": "black"} if name == tables.SUBJECT else {"marker": ".", "alpha": 0.6}
        values = [float("nan") if value is None else value / 2**20 for value in peaks]
        axis.plot(range(len(rows)), values, linestyle="", label=name, **style)
    axis.step(range(len(rows)), [tables.allowed_bytes(row) / 2**20 for row in rows], where="mid", label="limit")
    axis.set_yscale("log")
    axis.set_title("Peak memory above the imported tool, MiB")


def scale_panel(axis, scalings: Sequence[scale.Scaling]) -> None:
    for scaling in scalings:
        axis.loglog(scaling.nodes, scaling.seconds, "o-", label=f"{scaling.model}: exponent {scaling.exponent:.2f}")
    axis.set_title("Seconds by number of nodes")
