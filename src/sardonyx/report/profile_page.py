"""A self-contained HTML page about one profile: the distribution of the time, as plots and tables."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from html import escape

from sardonyx import __version__
from sardonyx.model import write_text
from sardonyx.report.flame import Frame, merge_single_children
from sardonyx.report.html_blocks import COLOURS, details, page, section, svg, table, ticks
from sardonyx.report.kernels import NodeNames, label, main_node
from sardonyx.report.memory import memory_section
from sardonyx.report.quantities import count, size
from sardonyx.report.scopes import Scopes
from sardonyx.report.trace import module_spans
from sardonyx.runtime.compiled.memory_usage import Memory
from sardonyx.runtime.profiling.profile import Event, Profile

_MOST_BARS = 16
_LABEL, _BARS, _ROW = 230, 470, 22
_WIDTH, _LEFT, _FRAME = 860, 70, 19
_OTHER = "#999"


def write_page(
    path: str | os.PathLike[str],
    name: str,
    profile: Profile,
    names: NodeNames,
    scopes: Scopes,
    root: Frame,
    memory: Memory,
) -> None:
    """Write the page.

    Args:
        path: The file.
        name: Name of the model.
        profile: The profile.
        names: Names of the nodes.
        scopes: Module scopes of the nodes.
        root: The frames of the profile.
        memory: Memory that the session holds.

    Raises:
        ModelFileError: The file cannot be written.
    """
    colours = _colours(profile)
    timeline = _legend(colours) + _timeline(profile, names, scopes, colours)
    sections = [
        _verdict(profile),
        section("By kind of kernel", _bars(_sums_by(profile, lambda timed: timed[0]), profile, colours)),
        section("By operator", _bars(_sums_by(profile, lambda timed: _operator(timed[1], names)), profile, {})),
        section("By module", _icicle(merge_single_children(root))),
        section("Timeline of one run", timeline),
        section("Roofline", _roofline(profile, names, colours)),
        section("Memory", memory_section(memory, names)),
        section("Kernels", _kernels(profile, names)),
        section("Interpreted values", _interpreted(profile, names)),
    ]
    threads = "1 thread" if profile.threads == 1 else f"{profile.threads} threads"
    subtitle = f"Sardonyx {__version__}, {profile.target}, {threads}; medians of {profile.runs} runs."
    write_text(path, page(f"{name}: profile", subtitle, sections))


def _verdict(profile: Profile) -> str:
    compiled = sum(kernel.seconds for kernel in profile.kernels)
    rows = [("a run", profile.seconds), ("in kernels", compiled)]
    rows += [("in the interpreter", sum(seconds for _, seconds in profile.interpreted))]
    rows += [(f"part {i}: {part.provider}, {part.label}", part.seconds) for i, part in enumerate(profile.parts)]
    rows += [("elsewhere: input checks, memory allocation, call overhead", profile.elsewhere)]
    shown = ((label, _micros(seconds), f"{seconds / profile.seconds:.1%}") for label, seconds in rows)
    return table(("", "µs", "share"), shown, numbers=(1, 2))


def _micros(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f}"


# Bars.

Timed = tuple[str, str, float]
"""Title, main tensor and seconds of a kernel or interpreted value."""


def _timed(profile: Profile) -> Iterator[Timed]:
    yield from ((kernel.note.title, kernel.note.main, kernel.seconds) for kernel in profile.kernels)
    yield from (("interpreter", note.tensor, seconds) for note, seconds in profile.interpreted)
    yield from ((part.provider, part.label, part.seconds) for part in profile.parts if not part.known)


def _sums_by(profile: Profile, key: Callable[[Timed], str]) -> dict[str, tuple[float, int]]:
    """Return total seconds and number of entries by key, the longest first."""
    sums: dict[str, tuple[float, int]] = {}
    for timed in _timed(profile):
        seconds, number = sums.get(key(timed), (0.0, 0))
        sums[key(timed)] = seconds + timed[2], number + 1
    return dict(sorted(sums.items(), key=lambda item: -item[1][0]))


def _operator(tensor: str, names: NodeNames) -> str:
    node = label(tensor, names)
    return node if node.startswith("'") else node.split(" ")[0]


def _bars(sums: Mapping[str, tuple[float, int]], profile: Profile, colours: Mapping[str, str]) -> str:
    if not sums:
        return "<p>Nothing was measured.</p>"
    rows = [(name, *entry) for name, entry in sums.items()]
    rest = rows[_MOST_BARS:]
    rows = rows[:_MOST_BARS]
    if rest:
        rows.append((f"{len(rest)} more", sum(row[1] for row in rest), sum(row[2] for row in rest)))
    most = max(max(row[1] for row in rows), 1e-12)
    parts = []
    for i, (name, seconds, number) in enumerate(rows):
        y, width = i * _ROW, seconds / most * _BARS
        short = name if len(name) <= 32 else name[:31] + "…"
        caption = f"{_micros(seconds)} µs, {seconds / profile.seconds:.1%}, {number}×"
        parts.append(
            f'<text x="{_LABEL - 8}" y="{y + 15}" text-anchor="end"><title>{escape(name)}</title>{escape(short)}</text>'
            f'<rect x="{_LABEL}" y="{y + 3}" width="{max(width, 0.5):.1f}" height="16"'
            f' fill="{colours.get(name, COLOURS[1])}"/>'
            f'<text class="small" x="{_LABEL + width + 6:.1f}" y="{y + 15}">{caption}</text>'
        )
    return svg(_LABEL + _BARS + 170, len(rows) * _ROW + 4, parts, "Time by kind")


def _colours(profile: Profile) -> dict[str, str]:
    """Return a colour for each of the slowest kinds; all other kinds are grey."""
    return dict(zip(_sums_by(profile, lambda timed: timed[0]), COLOURS, strict=False))


def _legend(colours: Mapping[str, str]) -> str:
    keys = "".join(
        f'<span class="key" style="background:{colour}"></span>{escape(name)}' for name, colour in colours.items()
    )
    return f'<p>{keys}<span class="key" style="background:{_OTHER}"></span>other</p>'


# Modules.


def _icicle(root: Frame) -> str:
    """Return the frames as rows of boxes, each as wide as its time."""
    parts: list[str] = []
    depth = _frames(root, 0, 0.0, _WIDTH / max(root.total, 1e-12), root.total, parts)
    picture = svg(_WIDTH, (depth + 1) * _FRAME, parts, "Time by module")
    return f'{picture}<p class="quiet">Width is time; time that no box below covers is spent in the module itself.</p>'


def _frames(frame: Frame, depth: int, x: float, scale: float, whole: float, parts: list[str]) -> int:
    """Draw a frame and its children, and return the deepest level."""
    width = frame.total * scale
    if width < 0.4:
        return depth
    tooltip = f"{frame.name}: {_micros(frame.total)} µs, {frame.total / max(whole, 1e-12):.1%}, {frame.count} kernels"
    fits = int((width - 8) / 7)
    shown = frame.name if len(frame.name) <= fits else frame.name[: fits - 1] + "…" if fits > 2 else ""
    text = f'<text x="{x + 4:.1f}" y="{depth * _FRAME + 14}" style="fill:#fff">{escape(shown)}</text>' if shown else ""
    colour = "#777" if not depth else COLOURS[depth % len(COLOURS)]
    parts.append(
        f'<g><title>{escape(tooltip)}</title><rect x="{x:.2f}" y="{depth * _FRAME}" width="{width:.2f}"'
        f' height="{_FRAME - 1}" fill="{colour}" stroke="#fff" stroke-width=".5"/>{text}</g>'
    )
    deepest = depth
    for child in frame.by_time():
        deepest = max(deepest, _frames(child, depth + 1, x, scale, whole, parts))
        x += child.total * scale
    return deepest


# Time.


def _timeline(profile: Profile, names: NodeNames, scopes: Scopes, colours: Mapping[str, str]) -> str:
    """Return the tracks of one run: modules, kernels, and the share of each thread."""
    end = max((event.begin + event.seconds for event in profile.events), default=0.0)
    if not end:
        return "<p>Nothing was recorded.</p>"
    scale = (_WIDTH - _LEFT - 10) / end
    threads = sorted({event.thread for event in profile.events})
    deep = max(event.depth for event in profile.events) + 1
    tracks = [("run", [e for e in profile.events if not e.thread and e.depth == d]) for d in range(deep)]
    tracks += [(f"thread {t}", [e for e in profile.events if e.thread == t]) for t in threads if t]
    parts = []
    for tick in ticks(0, end * 1e3):
        x = _LEFT + tick * 1e-3 * scale
        high = (len(tracks) + 1) * 26
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{high}"/>')
        parts.append(f'<text class="small" x="{x:.1f}" y="{high + 14}" text-anchor="middle">{tick:g} ms</text>')
    for row, (name, events) in enumerate(tracks):
        y = row * 26
        shown = name if row == 0 or name != tracks[row - 1][0] else "inside"
        parts.append(f'<text class="small" x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{shown}</text>')
        parts += [_span(event, y, scale, names, colours) for event in events]
    y = len(tracks) * 26
    parts.append(f'<text class="small" x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">modules</text>')
    modules = list(module_spans(profile, scopes))
    # One depth fits on the page: the outermost with several modules distinguishes most.
    depths = [depth for depth, *_ in modules]
    shown_depth = next((depth for depth in dict.fromkeys(depths) if depths.count(depth) > 3), max(depths, default=0))
    outermost = [(name, begin, seconds) for depth, name, begin, seconds in modules if depth == shown_depth]
    for number, (name, begin, seconds) in enumerate(outermost):
        parts.append(
            f"<g><title>{escape(name)}: {_micros(seconds)} µs</title>"
            f'<rect x="{_LEFT + begin * scale:.2f}" y="{y + 3}" width="{max(seconds * scale, 0.3):.2f}" height="20"'
            f' fill="{("#bbb", "#ddd")[number % 2]}"/></g>'
        )
    return svg(_WIDTH, (len(tracks) + 1) * 26 + 20, parts, "One run over time, by track")


def _span(event: Event, y: float, scale: float, names: NodeNames, colours: Mapping[str, str]) -> str:
    title = "interpreter" if event.kind == "interpreter" else event.title
    node = f", {label(event.tensors[0], names)}" if event.tensors else ""
    tooltip = f"{event.title}{node}: {_micros(event.seconds)} µs"
    return (
        f'<g><title>{escape(tooltip)}</title><rect x="{_LEFT + event.begin * scale:.2f}" y="{y + 3}"'
        f' width="{max(event.seconds * scale, 0.3):.2f}" height="20" fill="{colours.get(title, _OTHER)}"/></g>'
    )


# The machine.


def _roofline(profile: Profile, names: NodeNames, colours: Mapping[str, str]) -> str:
    """Return kernels below the machine's roofline: operations per second over operations per byte."""
    points = [
        (kernel.note.operations / kernel.note.bytes, kernel.rate, kernel)
        for kernel in profile.kernels if kernel.note.operations and kernel.note.bytes
    ]  # fmt: skip
    if not points:
        return "<p>No kernel has a known number of both operations and bytes.</p>"
    peak = profile.peak
    low = math.floor(math.log10(min([*(x for x, _, _ in points), 0.1])))
    high = math.ceil(math.log10(max([*(x for x, _, _ in points), 10 * peak.operations / peak.bytes])))
    top = math.ceil(math.log10(max([*(y for _, y, _ in points), peak.operations])))
    bottom = math.floor(math.log10(min(y for _, y, _ in points)))
    wide, tall = _WIDTH - _LEFT - 20, 330

    def x(value: float) -> float:
        return _LEFT + (math.log10(value) - low) / (high - low) * wide

    def y(value: float) -> float:
        return 10 + (top - math.log10(value)) / max(top - bottom, 1) * tall

    parts = []
    for power in range(low, high + 1):
        at = x(10.0**power)
        parts.append(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="10" y2="{10 + tall}"/>')
        parts.append(f'<text class="small" x="{at:.1f}" y="{tall + 26}" text-anchor="middle">{10.0**power:g}</text>')
    for power in range(bottom, top + 1):
        at = y(10.0**power)
        parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_LEFT + wide}" y1="{at:.1f}" y2="{at:.1f}"/>')
        caption = f"{10.0 ** (power - 9):g}"
        parts.append(f'<text class="small" x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{caption}</text>')
    ridge = peak.operations / peak.bytes
    least = max(10.0**low, 10.0**bottom / peak.bytes)
    right, flat = _LEFT + wide, y(peak.operations)
    line = f"{x(least):.1f},{y(least * peak.bytes):.1f} {x(ridge):.1f},{y(peak.operations):.1f}"
    parts.append(
        f'<polyline points="{line} {right},{flat:.1f}" fill="none" stroke="#222" stroke-width="2"/>'
        f'<text x="{right}" y="{flat - 6:.1f}" text-anchor="end">'
        f"{peak.operations / 1e9:.1f} GFLOP/s, {peak.bytes / 1e9:.1f} GB/s, measured</text>"
    )
    longest = max(kernel.seconds for _, _, kernel in points)
    for intensity, rate, kernel in sorted(points, key=lambda point: -point[2].seconds):
        radius = 2.5 + 11 * math.sqrt(kernel.seconds / longest)
        caption = (
            f"{kernel.note.title}, {main_node(kernel.note, names)}: {_micros(kernel.seconds)} µs,"
            f" {rate / 1e9:.2f} GFLOP/s, {intensity:.2f} operations per byte, {kernel.share:.0%} of peak,"
            f" {kernel.roofline:.0%} of roofline"
        )
        parts.append(
            f'<circle cx="{x(intensity):.1f}" cy="{y(rate):.1f}" r="{radius:.1f}" fill-opacity=".6"'
            f' fill="{colours.get(kernel.note.title, _OTHER)}"><title>{escape(caption)}</title></circle>'
        )
    parts.append(f'<text class="small" x="{_LEFT + wide}" y="{tall + 42}" text-anchor="end">operations per byte</text>')
    parts.append(f'<text class="small" x="4" y="{tall + 42}">GFLOP/s</text>')
    picture = svg(_WIDTH, tall + 50, parts, "Kernels below the roofline of the machine")
    return f'{_legend(colours)}{picture}<p class="quiet">Each dot is a kernel; the area grows with its time.</p>'


# Tables.


def _kernels(profile: Profile, names: NodeNames) -> str:
    if not profile.kernels:
        return "<p>No kernels: the model is not compiled.</p>"
    order = sorted(enumerate(profile.kernels), key=lambda pair: -pair[1].seconds)
    rows = (
        (
            str(number), kernel.note.title, ", ".join(dict.fromkeys(label(t, names) for t in kernel.note.tensors)),
            kernel.note.result, _micros(kernel.seconds), f"{kernel.seconds / profile.seconds:.1%}",
            count(kernel.note.operations), "—" if kernel.note.bytes is None else size(kernel.note.bytes),
            f"{kernel.share:.0%}", f"{kernel.roofline:.0%}",
        )
        for number, kernel in order
    )  # fmt: skip
    head = ("", "kernel", "nodes", "result", "µs", "share", "operations", "bytes", "of peak", "of roofline")
    return details(f"{len(profile.kernels)} kernels, by time", table(head, rows, numbers=(0, 4, 5, 6, 7, 8, 9)))


def _interpreted(profile: Profile, names: NodeNames) -> str:
    if not profile.interpreted:
        return "<p>The interpreter computes nothing.</p>"
    rows = (
        (note.primitive, label(note.tensor, names) if note.tensor else "", note.reason, _micros(seconds))
        for note, seconds in sorted(profile.interpreted, key=lambda pair: -pair[1])
    )
    return table(("primitive", "node", "why there is no kernel", "µs"), rows, numbers=(3,))
