"""A self-contained HTML page about one profile: where the time goes, as plots and tables."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from html import escape

from sardonyx import __version__
from sardonyx.model import write_text
from sardonyx.report.flame import Frame, joined
from sardonyx.report.kernels import NodeNames, label, main_node
from sardonyx.report.memory import memory_section
from sardonyx.report.page import COLOURS, folded, page, section, svg, table, ticks
from sardonyx.report.scopes import Scopes
from sardonyx.report.tables import count, size
from sardonyx.report.trace import module_spans
from sardonyx.runtime.compiled.memory_usage import Memory
from sardonyx.runtime.profiling.profile import Event, Profile

_MOST_BARS = 16
_LABEL, _BARS, _ROW = 230, 470, 22
_WIDTH, _LEFT, _FRAME = 860, 70, 19
_OTHER = "#999"


def write_page(
    path: str | os.PathLike[str], name: str, found: Profile, names: NodeNames, scopes: Scopes, root: Frame, held: Memory
) -> None:
    """Write the page.

    Args:
        path: Where to.
        name: The model's name.
        found: The profile.
        names: Of the nodes.
        scopes: Where nodes belong.
        root: The frames of the profile.
        held: What the session holds of memory.

    Raises:
        ModelFileError: It cannot be written.
    """
    colours = _colours(found)
    timed = [_legend(colours), _timeline(found, names, scopes, colours)]
    sections = [
        _verdict(found),
        section("By kind of kernel", _bars(_by(found, lambda each: each[0]), found, colours)),
        section("By operator", _bars(_by(found, lambda each: _operator(each[1], names)), found, {})),
        section("By module", _icicle(joined(root))),
        section("One run, as it went on", "".join(timed)),
        section("Against the machine", _roofline(found, names, colours)),
        section("Memory", memory_section(held, names)),
        section("Kernels", _kernels(found, names)),
        section("Left to the interpreter", _interpreted(found, names)),
    ]
    threads = "1 thread" if found.threads == 1 else f"{found.threads} threads"
    told = f"Sardonyx {__version__}, {found.target}, {threads}; medians of {found.runs} runs."
    write_text(path, page(f"{name}: profile", told, sections))


def _verdict(found: Profile) -> str:
    inside = sum(each.seconds for each in found.kernels)
    rows = [("a run", found.seconds), ("in kernels", inside)]
    rows += [("in the interpreter", sum(seconds for _, seconds in found.interpreted))]
    rows += [(f"part {number}: {each.provider}, {each.label}", each.seconds) for number, each in enumerate(found.parts)]
    rows += [("elsewhere: checking, finding memory, calling", found.elsewhere)]
    shown = ((told, _micros(seconds), f"{seconds / found.seconds:.1%}") for told, seconds in rows)
    return table(("", "µs", "share"), shown, numbers=(1, 2))


def _micros(seconds: float) -> str:
    return f"{seconds * 1e6:,.1f}"


# Bars.

Timed = tuple[str, str, float]
"""A kernel or interpreted value: its title, its main tensor, its seconds."""


def _timed(found: Profile) -> Iterator[Timed]:
    yield from ((each.note.title, each.note.main, each.seconds) for each in found.kernels)
    yield from (("interpreter", note.tensor, seconds) for note, seconds in found.interpreted)
    yield from ((each.provider, each.label, each.seconds) for each in found.parts if not each.known)


def _by(found: Profile, key: Callable[[Timed], str]) -> dict[str, tuple[float, int]]:
    """Seconds and how many, the most first."""
    sums: dict[str, tuple[float, int]] = {}
    for each in _timed(found):
        seconds, number = sums.get(key(each), (0.0, 0))
        sums[key(each)] = seconds + each[2], number + 1
    return dict(sorted(sums.items(), key=lambda item: -item[1][0]))


def _operator(tensor: str, names: NodeNames) -> str:
    told = label(tensor, names)
    return told if told.startswith("'") else told.split(" ")[0]


def _bars(sums: Mapping[str, tuple[float, int]], found: Profile, colours: Mapping[str, str]) -> str:
    if not sums:
        return "<p>There is nothing.</p>"
    rows = [(name, *each) for name, each in sums.items()]
    rest = rows[_MOST_BARS:]
    rows = rows[:_MOST_BARS]
    if rest:
        rows.append((f"{len(rest)} more", sum(each[1] for each in rest), sum(each[2] for each in rest)))
    most = max(max(each[1] for each in rows), 1e-12)
    parts = []
    for row, (name, seconds, number) in enumerate(rows):
        y, width = row * _ROW, seconds / most * _BARS
        short = name if len(name) <= 32 else name[:31] + "…"
        told = f"{_micros(seconds)} µs, {seconds / found.seconds:.1%}, {number}×"
        parts.append(
            f'<text x="{_LABEL - 8}" y="{y + 15}" text-anchor="end"><title>{escape(name)}</title>{escape(short)}</text>'
            f'<rect x="{_LABEL}" y="{y + 3}" width="{max(width, 0.5):.1f}" height="16"'
            f' fill="{colours.get(name, COLOURS[1])}"/>'
            f'<text class="small" x="{_LABEL + width + 6:.1f}" y="{y + 15}">{told}</text>'
        )
    return svg(_LABEL + _BARS + 170, len(rows) * _ROW + 4, parts, "Time by kind")


def _colours(found: Profile) -> dict[str, str]:
    """A colour for each of the kinds that take most; the others are grey."""
    return dict(zip(_by(found, lambda each: each[0]), COLOURS, strict=False))


def _legend(colours: Mapping[str, str]) -> str:
    keys = "".join(
        f'<span class="key" style="background:{colour}"></span>{escape(name)}' for name, colour in colours.items()
    )
    return f'<p>{keys}<span class="key" style="background:{_OTHER}"></span>other</p>'


# Modules.


def _icicle(root: Frame) -> str:
    """The frames, one below the other, each as wide as its time."""
    parts: list[str] = []
    depth = _frames(root, 0, 0.0, _WIDTH / max(root.total, 1e-12), root.total, parts)
    picture = svg(_WIDTH, (depth + 1) * _FRAME, parts, "Time by module")
    return f'{picture}<p class="quiet">As wide as its time; what is not covered below is the module\'s own.</p>'


def _frames(frame: Frame, depth: int, x: float, scale: float, whole: float, parts: list[str]) -> int:
    """Draw a frame and what is in it; returns the deepest level."""
    width = frame.total * scale
    if width < 0.4:
        return depth
    told = f"{frame.name}: {_micros(frame.total)} µs, {frame.total / max(whole, 1e-12):.1%}, {frame.count} kernels"
    fits = int((width - 8) / 7)
    shown = frame.name if len(frame.name) <= fits else frame.name[: fits - 1] + "…" if fits > 2 else ""
    written = (
        f'<text x="{x + 4:.1f}" y="{depth * _FRAME + 14}" style="fill:#fff">{escape(shown)}</text>' if shown else ""
    )
    colour = "#777" if not depth else COLOURS[depth % len(COLOURS)]
    parts.append(
        f'<g><title>{escape(told)}</title><rect x="{x:.2f}" y="{depth * _FRAME}" width="{width:.2f}"'
        f' height="{_FRAME - 1}" fill="{colour}" stroke="#fff" stroke-width=".5"/>{written}</g>'
    )
    deepest = depth
    for each in frame.by_time():
        deepest = max(deepest, _frames(each, depth + 1, x, scale, whole, parts))
        x += each.total * scale
    return deepest


# Time.


def _timeline(found: Profile, names: NodeNames, scopes: Scopes, colours: Mapping[str, str]) -> str:
    """Tracks of one run: modules, kernels, and the share of each thread."""
    end = max((event.begin + event.seconds for event in found.events), default=0.0)
    if not end:
        return "<p>Nothing was recorded.</p>"
    scale = (_WIDTH - _LEFT - 10) / end
    threads = sorted({event.thread for event in found.events})
    deep = max(event.depth for event in found.events) + 1
    tracks = [("run", [e for e in found.events if not e.thread and e.depth == d]) for d in range(deep)]
    tracks += [(f"thread {t}", [e for e in found.events if e.thread == t]) for t in threads if t]
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
    modules = list(module_spans(found, scopes))
    # The outermost ones of which there are several tell most.
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
    told = f"{event.title}{node}: {_micros(event.seconds)} µs"
    return (
        f'<g><title>{escape(told)}</title><rect x="{_LEFT + event.begin * scale:.2f}" y="{y + 3}"'
        f' width="{max(event.seconds * scale, 0.3):.2f}" height="20" fill="{colours.get(title, _OTHER)}"/></g>'
    )


# The machine.


def _roofline(found: Profile, names: NodeNames, colours: Mapping[str, str]) -> str:
    """Operations a second over operations a byte, below what the machine can do; logarithmic."""
    points = [
        (each.note.operations / each.note.bytes, each.rate, each)
        for each in found.kernels if each.note.operations and each.note.bytes
    ]  # fmt: skip
    if not points:
        return "<p>No kernel has both operations and bytes that are known.</p>"
    peak = found.peak
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
        told = f"{10.0 ** (power - 9):g}"
        parts.append(f'<text class="small" x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{told}</text>')
    ridge = peak.operations / peak.bytes
    least = max(10.0**low, 10.0**bottom / peak.bytes)
    right, flat = _LEFT + wide, y(peak.operations)
    line = f"{x(least):.1f},{y(least * peak.bytes):.1f} {x(ridge):.1f},{y(peak.operations):.1f}"
    parts.append(
        f'<polyline points="{line} {right},{flat:.1f}" fill="none" stroke="#222" stroke-width="2"/>'
        f'<text x="{right}" y="{flat - 6:.1f}" text-anchor="end">'
        f"{peak.operations / 1e9:.1f} GFLOP/s, {peak.bytes / 1e9:.1f} GB/s, measured</text>"
    )
    longest = max(each.seconds for _, _, each in points)
    for intensity, rate, each in sorted(points, key=lambda point: -point[2].seconds):
        radius = 2.5 + 11 * math.sqrt(each.seconds / longest)
        told = (
            f"{each.note.title}, {main_node(each.note, names)}: {_micros(each.seconds)} µs, {rate / 1e9:.2f} GFLOP/s,"
            f" {intensity:.2f} operations a byte, {each.share:.0%} of peak, {each.roofline:.0%} of roofline"
        )
        parts.append(
            f'<circle cx="{x(intensity):.1f}" cy="{y(rate):.1f}" r="{radius:.1f}" fill-opacity=".6"'
            f' fill="{colours.get(each.note.title, _OTHER)}"><title>{escape(told)}</title></circle>'
        )
    parts.append(f'<text class="small" x="{_LEFT + wide}" y="{tall + 42}" text-anchor="end">operations a byte</text>')
    parts.append(f'<text class="small" x="4" y="{tall + 42}">GFLOP/s</text>')
    picture = svg(_WIDTH, tall + 50, parts, "Kernels below the roofline of the machine")
    return f'{_legend(colours)}{picture}<p class="quiet">A dot is a kernel, as large as its time.</p>'


# Tables.


def _kernels(found: Profile, names: NodeNames) -> str:
    if not found.kernels:
        return "<p>There are none: the model is not compiled.</p>"
    order = sorted(enumerate(found.kernels), key=lambda pair: -pair[1].seconds)
    rows = (
        (
            str(number), each.note.title, ", ".join(dict.fromkeys(label(t, names) for t in each.note.tensors)),
            each.note.result, _micros(each.seconds), f"{each.seconds / found.seconds:.1%}", count(each.note.operations),
            "—" if each.note.bytes is None else size(each.note.bytes), f"{each.share:.0%}", f"{each.roofline:.0%}",
        )
        for number, each in order
    )  # fmt: skip
    head = ("", "kernel", "nodes", "result", "µs", "share", "operations", "bytes", "of peak", "of roofline")
    return folded(f"{len(found.kernels)} kernels, by time", table(head, rows, numbers=(0, 4, 5, 6, 7, 8, 9)))


def _interpreted(found: Profile, names: NodeNames) -> str:
    if not found.interpreted:
        return "<p>Nothing.</p>"
    rows = (
        (note.primitive, label(note.tensor, names) if note.tensor else "", note.reason, _micros(seconds))
        for note, seconds in sorted(found.interpreted, key=lambda pair: -pair[1])
    )
    return table(("primitive", "node", "why it has no kernel", "µs"), rows, numbers=(3,))
