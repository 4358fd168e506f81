"""Tables for the terminal: the effect of an optimization, for readers who deploy models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from sardonyx.report.latency import Latency, paired_seconds
from sardonyx.report.quantities import assigned_sizes, count, size, sizes_note
from sardonyx.report.summary import Summary
from sardonyx.rewrite.pipeline import descriptions
from sardonyx.rewrite.record import Report

MOST_OPERATORS = 24
"""Number of operator types with a row of their own."""

NO_CHANGE = "no change measured"
"""The change of a latency whose confidence interval contains both faster and slower."""

MOST_SIZES = 3
"""Number of size assignments that the verdict spells out."""


def _change(before: float, after: float) -> Text:
    if before == after:
        return Text("", style="dim")
    share = (after - before) / before * 100 if before else 100.0
    return Text(f"{share:+.1f} %", style="green" if after < before else "yellow")


def before_and_after(before: Summary, after: Summary, latency: Latency | str, title: str = "What changed") -> Table:
    """Return the table of ``sardonyx optimize``: operators, weights, bytes, MACs, latency of both models."""
    table = Table(title=title, title_justify="left", header_style="bold")
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
    table.add_row(
        "parameters", count(before.parameters), count(after.parameters), _change(before.parameters, after.parameters)
    )
    table.add_row(
        "weights", size(before.weight_bytes), size(after.weight_bytes), _change(before.weight_bytes, after.weight_bytes)
    )
    if before.file_bytes is not None and after.file_bytes is not None:
        change = _change(before.file_bytes, after.file_bytes)
        table.add_row("file", size(before.file_bytes), size(after.file_bytes), change)
    numbers = isinstance(before.macs, int) and isinstance(after.macs, int)
    change = _change(int(before.macs), int(after.macs)) if numbers else Text("")
    table.add_row("MACs", count(before.macs), count(after.macs), change)
    if isinstance(latency, Latency):
        old_ms, new_ms, change_text = latency_row(latency)
        faster = "green" if latency.ratio < 1 else "yellow"
        table.add_row("latency", old_ms, new_ms, Text(change_text, style=faster if latency.is_significant else "dim"))
        table.caption = f"Latency: {latency_note(latency)}{sizes_note(latency.sizes)}"
    else:
        table.caption = f"Latency not measured: {latency}"
    return table


def latency_row(latency: Latency) -> tuple[str, str, str]:
    """Return latency before, after, and the change; no number for a change within the noise."""
    before, after = (f"{seconds * 1e3:.3f} ms" for seconds in paired_seconds(latency))
    if not latency.is_significant:
        return before, "—", NO_CHANGE
    return before, after, f"{(latency.ratio - 1) * 100:+.1f} %"


def latency_note(latency: Latency) -> str:
    """Return the engine of a latency, the meaning of its numbers, and the interval of the change."""
    text = f"{latency.engine}, {latency.runs} paired runs"
    if latency.interval is None:
        return f"{text}, too few for a result"
    low, high = (f"{100 * (end - 1):+.1f} %" for end in latency.interval)
    if not latency.is_significant:
        return f"{text}; the change is between {low} and {high} with 95 % confidence"
    return f"{text}; after is before × the median ratio of the pairs, {low} to {high} with 95 % confidence"


def passes_table(report: Report) -> Table:
    """Return a table of the passes that rewrote the model."""
    table = Table(title="Passes that fired", title_justify="left", header_style="bold")
    table.add_column("pass", overflow="fold")
    table.add_column("times", justify="right")
    table.add_column("nodes saved", justify="right")
    table.add_column("exactness")
    table.add_column("what it does", overflow="fold")
    for row in fired_passes(report):
        table.add_row(*row)
    return table


def fired_passes(report: Report) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield name, rewrites, nodes saved, exactness and effects of each pass that fired."""
    gains, known = report.gains(), descriptions()
    for name, times in report.by_pass().items():
        # A rule from a user's file is not a registered pass.
        effects = dict.fromkeys(known.get(label, "A rule of your own.") for label in report.rules_of(name))
        yield name, str(times), str(gains.get(name, 0)), report.promise_of(name), " ".join(effects)


def explanation(report: Report, most: int = 60) -> Table | Text:
    """Return the near matches that did not fire, with the reasons."""
    if not report.refused:
        return Text("Near matches that did not fire: none.")
    table = Table(title="Near matches that did not fire", title_justify="left", header_style="bold")
    for name in ("rule", "at", "why not"):
        table.add_column(name, overflow="fold")
    for rule, site, reason in report.refused[:most]:
        table.add_row(rule, site, reason)
    if len(report.refused) > most:
        table.caption = f"{len(report.refused) - most} more; --json holds all."
    return table


def verdict_line(report: Report) -> Text:
    """Return the verdict of the proof, with notes on the lines below."""
    verdict = report.verdict
    if verdict.status.startswith("proved"):
        how = "equal bits" if verdict.exact else f"worst error {verdict.worst:.1e} of the largest output"
        sizes = [dict(s) for s in verdict.sizes if s]
        more = f"; and {len(sizes) - MOST_SIZES} more" if len(sizes) > MOST_SIZES else ""
        at = f" at sizes {'; '.join(assigned_sizes(s) for s in sizes[:MOST_SIZES])}{more}" if sizes else ""
        number = f"{verdict.samples} sample{'' if verdict.samples == 1 else 's'}"
        text = Text(f"✓ {verdict.status} on {number}{at}: {how}.", style="green")
    else:
        text = Text(f"✗ not proved: {verdict.reason}", style="yellow")
    for note in verdict.notes:
        text.append(f"\n  {note}.", style="dim")
    for dropped in report.dropped:
        text.append(f"\n  Reverted: {dropped.rule} at '{dropped.site}': {dropped.reason}.", style="yellow")
    if report.gate:
        text.append(f"\n  Target {report.target}: {report.gate}.", style="dim")
    return text


def ir_version_line(before: Summary, after: Summary) -> Sequence[RenderableType]:
    """Return a line with the reason if the result has a lower IR version than the model, else nothing."""
    if after.ir_version >= before.ir_version:
        return []
    versions = f"IR version {before.ir_version} → {after.ir_version}"
    return [Text(f"{versions}: the lowest with all features of the result, which more engines read", style="dim")]


def opset_hints(report: Report) -> Sequence[RenderableType]:
    """Return a line for each newer operator set that would allow more fusions."""
    return [
        Text(f"{matches} more {'fusion' if matches == 1 else 'fusions'} with --opset {opset}", style="dim")
        for opset, matches in sorted(report.refused_for_opset().items(), key=lambda item: int(item[0]))
    ]
