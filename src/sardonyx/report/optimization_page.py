"""A self-contained HTML page about one optimization: loads no script, font or picture."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from html import escape

from sardonyx import __version__
from sardonyx.model import write_text
from sardonyx.report.html_blocks import details, section, svg, table, ticks
from sardonyx.report.html_blocks import page as page_of
from sardonyx.report.latency import Latency
from sardonyx.report.optimization_tables import fired_passes, latency_note, latency_row, verdict_line
from sardonyx.report.quantities import count, size
from sardonyx.report.summary import Summary
from sardonyx.rewrite.record import Report

BEFORE, AFTER = "#9a5b3f", "#2f6f8f"
"""Colours of the two models; distinct in lightness too, for readers with red-green colour blindness."""

_ROW, _LABEL, _BARS = 34, 190, 520


def write(
    path: str | os.PathLike[str], name: str, report: Report, before: Summary, after: Summary, latency: Latency | str
) -> None:
    """Write the page.

    Args:
        path: The file.
        name: Name of the model, for the title.
        report: The optimizer's report.
        before: The original model.
        after: The result.
        latency: Measured latency, or the reason why none was measured.

    Raises:
        ModelFileError: The file cannot be written.
    """
    write_text(path, page(name, report, before, after, latency))


def page(name: str, report: Report, before: Summary, after: Summary, latency: Latency | str) -> str:
    """Return the page as text; see ``write``."""
    sections = [
        _verdict(report),
        section("What changed", _numbers(before, after, latency)),
        section("Operators", _legend() + operator_bars(before.operators, after.operators)),
        section("Latency", _latency_part(latency)),
        section("Passes that fired", _passes(report)),
        section("Near matches that did not fire", _refusals(report)),
        section("Origin of the result's nodes", _names(report)),
    ]
    seconds = f"{report.seconds:.2f} s and {report.verify_seconds:.2f} s of verification"
    return page_of(f"{name}, optimized", f"Sardonyx {__version__}, target {report.target}, {seconds}.", sections)


def _verdict(report: Report) -> str:
    kind = "proved" if report.verdict.status.startswith("proved") else "open"
    lines = escape(verdict_line(report).plain).replace("\n", "<br>")
    return f'<p class="{kind}"><strong>{lines}</strong></p>'


def _numbers(before: Summary, after: Summary, latency: Latency | str) -> str:
    def rows() -> Iterator[Sequence[str]]:
        yield "nodes", str(before.nodes), str(after.nodes), _change(before.nodes, after.nodes)
        old, new = before.parameters, after.parameters
        yield "parameters", count(old), count(new), _change(old, new)
        old, new = before.weight_bytes, after.weight_bytes
        yield "weights", size(old), size(new), _change(old, new)
        if before.file_bytes is not None and after.file_bytes is not None:
            old, new = before.file_bytes, after.file_bytes
            yield "file", size(old), size(new), _change(old, new)
        macs = (before.macs, after.macs)
        change = _change(macs[0], macs[1]) if isinstance(macs[0], int) and isinstance(macs[1], int) else ""
        yield "MACs", count(macs[0]), count(macs[1]), change
        if isinstance(latency, Latency):
            yield "latency", *latency_row(latency)

    numbers = table(("", "before", "after", "change"), rows(), numbers=(1, 2, 3))
    if isinstance(latency, str):
        return numbers
    return f'{numbers}<p class="quiet">Latency: {escape(latency_note(latency))}.</p>'


def _change(before: float, after: float) -> str:
    return "" if before == after or not before else f"{(after - before) / before * 100:+.1f} %"


def milliseconds(seconds: float) -> str:
    """Return seconds as milliseconds with three decimals."""
    return f"{seconds * 1e3:.3f} ms"


def _legend() -> str:
    return (
        f'<p><span class="key" style="background:{BEFORE};margin-left:0"></span>before'
        f'<span class="key" style="background:{AFTER}"></span>after</p>'
    )


def operator_bars(before: dict[str, int], after: dict[str, int]) -> str:
    """Return an SVG picture of two horizontal bars for each operator type; the most frequent is on top."""
    names = sorted({*before, *after}, key=lambda n: (-before.get(n, 0), -after.get(n, 0), n))
    if not names:
        return "<p>No nodes.</p>"
    most = max(*before.values(), *after.values(), 1)
    parts = []
    for row, name in enumerate(names):
        top = row * _ROW
        parts.append(f'<text x="{_LABEL - 8}" y="{top + 20}" text-anchor="end">{escape(name)}</text>')
        for side, (counts, colour) in enumerate(((before, BEFORE), (after, AFTER))):
            number = counts.get(name, 0)
            width, y = number / most * _BARS, top + 3 + side * 14
            parts.append(f'<rect x="{_LABEL}" y="{y}" width="{width:.1f}" height="12" fill="{colour}"/>')
            parts.append(f'<text class="small" x="{_LABEL + width + 5:.1f}" y="{y + 11}">{number}</text>')
    return svg(_LABEL + _BARS + 60, len(names) * _ROW + 4, parts, "Nodes of each operator type, before and after")


def _latency_part(latency: Latency | str) -> str:
    if isinstance(latency, str):
        return f"<p>Not measured: {escape(latency)}</p>"
    sizes = ", ".join(f"{name}={number}" for name, number in latency.sizes.items())
    caption = f"{latency.engine}, {latency.runs} paired runs" + (f", at {sizes}" if sizes else "")
    legend = "each dot is a run, a line the median of its row; drift between paired runs is not removed here"
    return f'{latency_plot(latency)}<p class="quiet">{escape(caption)}; {legend}.</p>'


def latency_plot(latency: Latency) -> str:
    """Return an SVG picture of every run of the two models as a dot over a common axis of milliseconds."""
    low = min(min(times) for times in latency.times)
    high = max(_quantile(times, 0.98) for times in latency.times)
    span = max(high - low, low * 0.05, 1e-9)
    low, high = max(low - span * 0.1, 0.0), high + span * 0.1

    def x(seconds: float) -> float:
        return _LABEL + (min(seconds, high) - low) / (high - low) * _BARS

    parts: list[str] = []
    for tick in ticks(low * 1e3, high * 1e3):
        parts.append(f'<line class="axis" x1="{x(tick / 1e3):.1f}" x2="{x(tick / 1e3):.1f}" y1="4" y2="134"/>')
        parts.append(f'<text class="small" x="{x(tick / 1e3):.1f}" y="150" text-anchor="middle">{tick:g} ms</text>')
    rows = (("before", latency.times[0], BEFORE), ("after", latency.times[-1], AFTER))
    for row, (label, times, colour) in enumerate(rows):
        middle = 36 + row * 64
        parts.append(f'<text x="{_LABEL - 8}" y="{middle + 4}" text-anchor="end">{label}</text>')
        for number, seconds in enumerate(times):
            # The vertical position is a fixed pattern, not random: equal runs give an equal page.
            y = middle + (number * 7 % 33) - 16
            parts.append(f'<circle cx="{x(seconds):.1f}" cy="{y}" r="2" fill="{colour}" fill-opacity=".45"/>')
        median = x(_quantile(times, 0.5))
        parts.append(
            f'<line x1="{median:.1f}" x2="{median:.1f}" y1="{middle - 24}" y2="{middle + 24}" stroke="{colour}"'
            ' stroke-width="3"/>'
        )
    return svg(_LABEL + _BARS + 60, 156, parts, "Latency of every run, before and after")


def _quantile(times: Sequence[float], share: float) -> float:
    ordered = sorted(times)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _passes(report: Report) -> str:
    head = ("pass", "times", "nodes saved", "exactness", "what it does")
    return table(head, fired_passes(report), numbers=(1, 2)) if report.applied else "<p>None: nothing to rewrite.</p>"


def _refusals(report: Report) -> str:
    if not report.refused:
        return "<p>None.</p>"
    return details(f"{len(report.refused)} near matches", table(("rule", "at", "why not"), iter(report.refused)))


def _names(report: Report) -> str:
    if not report.names:
        return "<p>Every node of the result is a node of the original.</p>"
    rows = ((old, ", ".join(new)) for old, new in sorted(report.names.items()))
    return details(f"{len(report.names)} nodes", table(("node of the original", "nodes of the result"), rows))
