"""A self-contained HTML page about one search: the verdict, the Pareto front as table and pictures, all plans."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from html import escape

from sardonyx import __version__
from sardonyx.compress.search.compression import CompressionReport
from sardonyx.compress.search.figures import Figures
from sardonyx.compress.search.trial import Trial
from sardonyx.model import write_text
from sardonyx.report.html_blocks import COLOURS, details, page, section, svg, table, ticks
from sardonyx.report.quantities import size

Share = Callable[[Figures], float]

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 720, 300, 70, 40


def write_page(path: str | os.PathLike[str], name: str, report: CompressionReport, metric: str | None = None) -> None:
    """Write the page.

    Args:
        path: The file.
        name: The name of the model, for the title.
        report: The report of the search.
        metric: The name of the metric; None if there is none.

    Raises:
        ModelFileError: The file cannot be written.
    """
    write_text(path, page_of(name, report, metric))


def page_of(name: str, report: CompressionReport, metric: str | None = None) -> str:
    """Return the page as text; see :func:`write_page`."""
    sections = [
        _verdict(report),
        section("What changed", _numbers(report, metric)),
        section("Pareto front", _legend() + _pictures(report, metric)),
        section("Plans on the front", _trials(report, metric, only_front=True)),
        details(f"All {len(report.trials)} plans", _trials(report, metric, only_front=False)),
        section("Accuracy of the outputs", _outputs(report)),
        section("Layers at which the error grows", _hurting(report)),
        section("Layers", _layers(report)),
    ]
    kind = "measured" if report.result.is_measured else "by the cost model"
    subtitle = f"Sardonyx {__version__}, target {report.target}, times {kind}, search ended by {report.stopped}."
    return page(f"{name}, compressed", subtitle, sections)


def _verdict(report: CompressionReport) -> str:
    kind = "proved" if report.verdict == "kept" else "open"
    notes = "".join(f"<br>{escape(note)}" for note in report.notes)
    line = f"Budget {report.verdict}: {report.reason}."
    return f'<p class="{kind}"><strong>{escape(line)}</strong>{notes}</p>'


def _numbers(report: CompressionReport, metric: str | None) -> str:
    before, after, limits = report.original, report.result, report.budget.limits

    def row(label: str, show: Callable[[float], str], key: str, old: float | None, new: float | None) -> list[str]:
        cells = ["" if value is None else show(value) for value in (old, new, limits.get(key))]
        change = "" if old is None or new is None or not old else f"{(new - old) / old * 100:+.1f} %"
        return [label, *cells[:2], change, cells[2]]

    def rows() -> Iterator[Sequence[str]]:
        yield row("file", lambda value: size(int(value)), "size", before.size, after.size)
        yield row("time of a run", lambda value: f"{value * 1e3:.3f} ms", "latency", before.seconds, after.seconds)
        yield row("memory", lambda value: size(int(value)), "memory", before.memory, after.memory)
        yield row("energy of a run", lambda value: f"{value * 1e3:.3g} mJ", "energy", before.joules, after.joules)
        change = report.evidence.metric
        if change is not None:
            limit = "" if change.drop is None else f"loss of {change.drop:g}"
            loss = f"loss {change.loss:.3g}"
            if change.interval is not None:
                loss += f" ({change.interval[0]:.3g} to {change.interval[1]:.3g})"
            yield metric or "metric", f"{change.before:.4g}", f"{change.after:.4g}", loss, limit

    numbers = table(("", "before", "after", "change", "budget"), rows(), numbers=(1, 2, 3, 4))
    return f'{numbers}<p class="quiet">{escape(report.plan)}. Energy {_energy(after)}.</p>'


def _energy(figures: Figures) -> str:
    return "by the counters of the machine" if figures.is_energy_measured else "by the table of operations and bytes"


def _legend() -> str:
    words = (("on the front", 1), ("beaten", 7), ("the result", 0))
    keys = "".join(f'<span class="key" style="background:{COLOURS[i]}"></span>{word}' for word, i in words)
    return f"<p>{keys}</p>"


def _pictures(report: CompressionReport, metric: str | None) -> str:
    trials = [trial for trial in report.trials if _accuracy(report, trial, metric) is not None]
    if not trials:
        return "<p>No plan has a measured accuracy.</p>"
    label = metric or "SQNR of the worst output, dB"
    first = report.original
    shares: dict[str, Share] = {
        f"{label} by share of size": lambda figures: figures.size / first.size,
        f"{label} by share of time": lambda figures: figures.time_share(first),
    }
    return "".join(_scatter(report, trials, metric, share, title) for title, share in shares.items())


def _accuracy(report: CompressionReport, trial: Trial, metric: str | None) -> float | None:
    if metric is None:
        value = trial.sqnr
    else:
        value = None if trial.metric is None else report.shown(trial.metric)
    return None if value is None or not math.isfinite(value) else value


def _scatter(report: CompressionReport, trials: Sequence[Trial], metric: str | None, share: Share, title: str) -> str:
    """Return an SVG picture of the plans: a figure's share of the original's to the right, the accuracy upwards."""
    points = [
        (trial, share(trial.figures), accuracy)
        for trial in trials
        if trial.figures is not None and (accuracy := _accuracy(report, trial, metric)) is not None
    ]
    right = max(x for _, x, _ in points) * 1.05
    low, high = min(y for _, _, y in points), max(y for _, _, y in points)
    margin = max((high - low) * 0.08, abs(high) * 0.005, 1e-6)
    low, high = low - margin, high + margin

    def x_of(x: float) -> float:
        return _LEFT + x / right * (_WIDTH - _LEFT - 10)

    def y_of(y: float) -> float:
        return (_HEIGHT - _BOTTOM) * (high - y) / (high - low) + 10

    parts: list[str] = []
    for tick in ticks(0, right):
        x = x_of(tick)
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="10" y2="{_HEIGHT - _BOTTOM + 10}"/>')
        parts.append(f'<text class="small" x="{x:.1f}" y="{_HEIGHT - 10}" text-anchor="middle">{tick:g}</text>')
    for tick in ticks(low, high):
        y = y_of(tick)
        parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="small" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for trial, x, y in points:
        is_result = trial.label == report.plan
        colour = COLOURS[0 if is_result else 1 if trial.label in report.front else 7]
        radius = 6 if is_result else 4
        parts.append(
            f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="{radius}" fill="{colour}" fill-opacity=".8">'
            f"<title>{escape(trial.label)}</title></circle>"
        )
    return f'<p class="quiet">{escape(title)}</p>' + svg(_WIDTH, _HEIGHT, parts, title)


def _trials(report: CompressionReport, metric: str | None, only_front: bool) -> str:
    first = report.original

    def rows() -> Iterator[Sequence[str]]:
        for trial in report.trials:
            if only_front and trial.label not in report.front:
                continue
            mark = " (the result)" if trial.label == report.plan else ""
            if trial.figures is None:
                yield trial.label, "", "", "", "", trial.failure
                continue
            sqnr = "" if trial.sqnr is None else f"{trial.sqnr:.1f}"
            value = "" if trial.metric is None else f"{report.shown(trial.metric):.4g}"
            share = f"{trial.figures.time_share(first):.3f}"
            yield trial.label + mark, size(trial.figures.size), share, sqnr, value, ""

    head = ("plan", "file", "share of time", "worst SQNR, dB", metric or "metric", "failure")
    return table(head, rows(), numbers=(1, 2, 3, 4))


def _hurting(report: CompressionReport) -> str:
    rows = ((layer.node, layer.op_type, f"{layer.error:.3g}", f"{layer.growth:.3g}") for layer in report.hurting)
    head = ("node", "operator", "mean error over the largest magnitude", "growth")
    return table(head, rows, numbers=(2, 3)) if report.hurting else "<p>None.</p>"


def _layers(report: CompressionReport) -> str:
    rows = ((layer.node, layer.op_type, layer.move or "float32", layer.reason) for layer in report.layers)
    body = table(("node", "operator", "precision", "why not"), rows)
    return details(f"{len(report.layers)} layers with weights", body)


def _outputs(report: CompressionReport) -> str:
    if not report.evidence.outputs:
        return f"<p>{escape(report.evidence.judged)}</p>"
    rows = ((error.name, f"{error.sqnr:.1f} dB") for error in report.evidence.outputs)
    return table(("output", "SQNR"), rows, numbers=(1,)) + f'<p class="quiet">{escape(report.evidence.judged)}.</p>'
