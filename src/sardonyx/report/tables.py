"""Tables for the terminal: what an optimization did, in the terms of those who deploy models."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from sardonyx.report.latency import Latency
from sardonyx.report.summary import Summary
from sardonyx.rewrite.pipeline import describe
from sardonyx.rewrite.record import Report

MOST_OPERATORS = 24


def count(number: int | str | None) -> str:
    """A number for reading: with thousands, or k, M, G; an expression as it is."""
    if number is None:
        return "—"
    if isinstance(number, str):
        return number if len(number) <= 40 else "depends on sizes"
    for bound, suffix in ((10**9, "G"), (10**6, "M")):
        if number >= 10 * bound:
            return f"{number / bound:,.1f} {suffix}"
    return f"{number:,}"


def size(number: int) -> str:
    """Bytes for reading."""
    for bound, suffix in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if number >= bound:
            return f"{number / bound:,.2f} {suffix}"
    return f"{number} B"


def _change(before: float, after: float) -> Text:
    if before == after:
        return Text("", style="dim")
    share = (after - before) / before * 100 if before else 100.0
    return Text(f"{share:+.1f} %", style="green" if after < before else "yellow")


def before_and_after(
    report: Report, before: Summary, after: Summary, file_bytes: tuple[int, int], latency: Latency | str
) -> Table:
    """The table that ``sardonyx optimize`` prints: operators, weights, bytes, MACs and latency, before and after."""
    table = Table(title="What changed", title_justify="left", header_style="bold")
    table.add_column("")
    for column in ("before", "after", "change"):
        table.add_column(column, justify="right")
    names = sorted({*before.operators, *after.operators}, key=lambda n: (-before.operators.get(n, 0), n))
    for name in names[:MOST_OPERATORS]:
        old, new = before.operators.get(name, 0), after.operators.get(name, 0)
        table.add_row(name, str(old), str(new), _change(old, new))
    if len(names) > MOST_OPERATORS:
        rest = names[MOST_OPERATORS:]
        old, new = (sum(s.operators.get(n, 0) for n in rest) for s in (before, after))
        table.add_row(f"{len(rest)} more types", str(old), str(new), _change(old, new))
    table.add_section()
    table.add_row("nodes", str(before.nodes), str(after.nodes), _change(before.nodes, after.nodes), style="bold")
    table.add_row("parameters", count(before.parameters), count(after.parameters), _change(before.parameters, after.parameters))
    table.add_row("file", size(file_bytes[0]), size(file_bytes[1]), _change(*file_bytes))
    macs = (before.macs, after.macs)
    change = _change(macs[0], macs[1]) if isinstance(macs[0], int) and isinstance(macs[1], int) else Text("")
    table.add_row("MACs", count(macs[0]), count(macs[1]), change)
    if isinstance(latency, Latency):
        old_ms, new_ms = (f"{seconds * 1e3:.3f} ms" for seconds in (latency.seconds[0], latency.seconds[-1]))
        table.add_row("latency", old_ms, new_ms, _change(1.0, round(latency.ratio, 4)))
        table.caption = f"Latency: {latency.engine}, median of {latency.runs} paired runs" + _at(latency.sizes)
    else:
        table.caption = f"Latency not measured: {latency}"
    return table


def _at(sizes: object) -> str:
    return f", sizes {sizes}" if sizes else ""


def passes_table(report: Report) -> Table:
    """Which pass did what."""
    table = Table(title="Passes that fired", title_justify="left", header_style="bold")
    for name, justify in (("pass", "left"), ("times", "right"), ("nodes saved", "right"), ("exactness", "left"), ("what it does", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    gains = report.gains()
    exactness = {patch.rule.split("/")[0]: patch.exactness for patch in report.applied}
    for name, times in report.by_pass().items():
        table.add_row(name, str(times), str(gains.get(name, 0)), exactness[name], describe(name))
    return table


def explanation(report: Report, most: int = 60) -> Table:
    """Near matches that did not fire, and why."""
    table = Table(title="Near matches that did not fire", title_justify="left", header_style="bold")
    for name in ("rule", "at", "why not"):
        table.add_column(name, overflow="fold")
    for rule, site, reason in report.refused[:most]:
        table.add_row(rule, site, reason)
    if len(report.refused) > most:
        table.caption = f"{len(report.refused) - most} more; --json holds all."
    return table


def verdict_line(report: Report) -> Text:
    """One line: what was proved."""
    verdict = report.verdict
    if verdict.status.startswith("proved"):
        how = "equal bits" if verdict.exact else f"worst error {verdict.worst:.1e} of the largest output"
        sizes = [dict(s) for s in verdict.sizes if s]
        at = f" at sizes {'; '.join(map(str, sizes))}" if sizes else ""
        text = Text(f"✓ {verdict.status}: {verdict.samples} samples{at}, {how}.", style="green")
    else:
        text = Text(f"✗ not proved: {verdict.reason}", style="yellow")
    for note in verdict.notes:
        text.append(f"\n  {note}.", style="dim")
    for dropped in report.dropped:
        text.append(f"\n  Taken back: {dropped.rule} at '{dropped.site}': {dropped.reason}.", style="yellow")
    return text


def opset_hints(report: Report) -> Sequence[RenderableType]:
    """What a newer operator set would allow."""
    return [
        Text(f"{matches} more fusions with --opset {opset}", style="dim")
        for opset, matches in sorted(report.refused_for_opset().items(), key=lambda item: int(item[0]))
    ]


def print_all(console: Console, *parts: RenderableType) -> None:
    """Print the parts of a report one below the other."""
    console.print(Group(*parts))
