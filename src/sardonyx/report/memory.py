"""Memory of a session for people: which value lies where in an arena and when, as text and as a picture."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from sardonyx.errors import OptionError
from sardonyx.model import write_text
from sardonyx.report.kernels import NodeNames, label
from sardonyx.report.page import COLOURS, page, section, svg, ticks
from sardonyx.report.tables import size
from sardonyx.runtime.compiled.memory_usage import Arena, Buffer, Memory

MOST_ARENAS = 4
"""Arenas that are drawn: the largest."""

_COLUMNS, _LINES = 72, 8
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_WIDTH, _HEIGHT, _LEFT, _TOP = 860, 300, 80, 24


def drawn(found: Memory) -> list[Arena]:
    """The arenas that are worth a picture: the largest, in their order."""
    largest = sorted((each for each in found.plans if each.buffers and each.bytes), key=lambda each: -each.bytes)
    kept = {id(each) for each in largest[:MOST_ARENAS]}
    return [each for each in found.plans if id(each) in kept]


def memory_tables(found: Memory, names: NodeNames, most: int | None = None) -> list[RenderableType]:
    """What ``sardonyx profile --memory`` prints: the sums, and for each arena when it is how full, and with what.

    Args:
        found: The report.
        names: Of the nodes.
        most: Rows of a table at most; None for all.
    """
    sums = Table.grid(padding=(0, 2))
    for name, told in _sums(found):
        sums.add_row(Text(name, style="bold"), Text(told))
    parts: list[RenderableType] = [sums]
    for arena in drawn(found):
        parts += [Text(""), _chart(arena), _at_peak(arena, names, most)]
    hidden = len([each for each in found.plans if each.buffers and each.bytes]) - len(drawn(found))
    if hidden > 0:
        parts.append(Text(f"{hidden} smaller arenas are not shown; --json holds all.", style="dim"))
    return parts


def _sums(found: Memory) -> Iterator[tuple[str, str]]:
    yield "weights", f"{size(found.weights)}, as kernels read them"
    shared = f", {size(found.shared)} of which other sessions use at other times" if found.shared else ""
    yield "arenas", f"{size(found.arena)} in {found.arenas}{shared}"
    yield "peak of a call", f"{size(found.peak)}, results and what lies between native calls among it"
    if found.unknown:
        yield "not known", f"the memory of {', '.join(found.unknown)}, which runs parts of the model"


def _title(arena: Arena) -> str:
    where = f" of {arena.where}" if arena.where else ""
    return f"Arena{where}: {size(arena.bytes)} for {len(arena.kernels)} kernels, {len(arena.buffers)} values"


def _chart(arena: Arena) -> Text:
    """Bytes that are alive, kernel by kernel; where there are many, the most of several."""
    alive, busiest = arena.alive, arena.busiest
    count = min(len(alive), _COLUMNS)
    bounds = [len(alive) * i // count for i in range(count + 1)]
    tops = [max(alive[a:b]) for a, b in itertools.pairwise(bounds)]
    marked = next(i for i in range(count) if bounds[i] <= busiest < bounds[i + 1])
    wide = max(min(_COLUMNS // count, 6), 1)
    highest = max(*tops, 1)
    text = Text(f"{_title(arena)}\n", style="bold")
    for line in range(_LINES, 0, -1):
        text.append(f"{size(highest) if line == _LINES else '':>12} │", style="dim")
        for i, top in enumerate(tops):
            level = min(max(round(top / highest * _LINES * 8) - (line - 1) * 8, 0), 8)
            text.append(_EIGHTHS[level] * wide, style="red" if i == marked else "blue")
        text.append("\n")
    text.append(f"{'':>12} └{'─' * (count * wide)}\n", style="dim")
    text.append(f"{'':>14}{' ' * (marked * wide)}▲ kernel {busiest}, {arena.kernels[busiest]}\n", style="red")
    return text


def _at_peak(arena: Arena, names: NodeNames, most: int | None) -> Table:
    busiest = arena.busiest
    there = [each for each in arena.buffers if not each.inside and each.first <= busiest <= each.last]
    table = Table(title=f"Alive at kernel {busiest}", title_justify="left", header_style="bold")
    for column in ("bytes", "offset", "kernels"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("others in the same place, before or after", overflow="fold")
    rows = sorted(there, key=lambda each: -each.bytes)
    for each in rows[:most]:
        table.add_row(
            size(each.bytes), f"{each.offset:,}", f"{each.first}–{each.last}", Text(_called(each, names)),
            Text(_some(each.shares_with)),
        )  # fmt: skip
    if most is not None and len(rows) > most:
        table.caption = f"{len(rows) - most} more; --json holds all."
    return table


def _called(buffer: Buffer, names: NodeNames) -> str:
    return label(buffer.name, names) if buffer.name in names else buffer.name


def _some(names: Sequence[str], most: int = 4) -> str:
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {left} more" if left > 0 else "")


# Pictures.


def memory_svg(arena: Arena, names: NodeNames, *, alone: bool = False) -> str:
    """An arena over the kernels of a run: a box for each value, where it lies and as long as it is needed."""
    kernels = len(arena.kernels)
    wide, high = _WIDTH - _LEFT - 10, _HEIGHT

    def x(kernel: float) -> float:
        return _LEFT + min(kernel, kernels) / kernels * wide

    def y(place: float) -> float:
        return _TOP + high - place / max(arena.bytes, 1) * high

    parts = []
    for tick in _byte_ticks(arena.bytes):
        parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_LEFT + wide}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text class="small" x="{_LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{size(tick)}</text>')
    own = [each for each in arena.buffers if not each.inside]
    for number, each in enumerate(own):
        parts.append(_box(each, number, x, y, names))
    busiest = arena.busiest
    middle = (x(busiest) + x(busiest + 1)) / 2
    anchor = "end" if middle > _LEFT + wide * 0.7 else "start"
    parts.append(
        f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="{_TOP - 4}" y2="{_TOP + high}" stroke="#222"'
        ' stroke-dasharray="4 3"/>'
        f'<text x="{middle + (-6 if anchor == "end" else 6):.1f}" y="{_TOP - 8}" text-anchor="{anchor}">peak:'
        f" {size(arena.alive[busiest])} at kernel {busiest}, {escape(arena.kernels[busiest])}</text>"
    )
    for at in ticks(0, kernels):
        if at == int(at) and at < kernels:
            parts.append(
                f'<text class="small" x="{(x(at) + x(at + 1)) / 2:.1f}" y="{_TOP + high + 16}"'
                f' text-anchor="middle">{at:g}</text>'
            )
    below = _TOP + high + 34
    parts.append(f'<text class="small" x="{_LEFT + wide / 2}" y="{below}" text-anchor="middle">kernel</text>')
    return svg(_WIDTH, _TOP + high + 44, parts, _title(arena), alone=alone)


Place = Callable[[float], float]
"""Where something is in a picture."""


def _box(buffer: Buffer, number: int, x: Place, y: Place, names: NodeNames) -> str:
    left, right = x(buffer.first), x(buffer.last + 1)
    top, bottom = y(buffer.offset + buffer.bytes), y(buffer.offset)
    colour = COLOURS[number % len(COLOURS)]
    name = _called(buffer, names)
    shared = f"; the same place: {_some(buffer.shares_with, 8)}" if buffer.shares_with else ""
    told = f"{name}: {size(buffer.bytes)} at {buffer.offset:,}, kernels {buffer.first}-{buffer.last}{shared}"
    written = ""
    if bottom - top > 15 and right - left > 6.5 * len(buffer.name) + 8:
        written = (
            f'<text x="{left + 4:.1f}" y="{(top + bottom) / 2 + 4:.1f}" style="fill:#fff">{escape(buffer.name)}</text>'
        )
    return (
        f'<g><title>{escape(told)}</title><rect x="{left:.2f}" y="{top:.2f}" width="{max(right - left, 0.5):.2f}"'
        f' height="{max(bottom - top, 0.3):.2f}" fill="{colour}" stroke="#fff" stroke-width=".5"/>{written}</g>'
    )


def _byte_ticks(most: int) -> list[int]:
    step = 1 << max(math.ceil(math.log2(max(most, 1) / 5)), 0)
    return list(range(0, most + 1, step))


def memory_section(found: Memory, names: NodeNames) -> str:
    """The part of a page about memory."""
    lines = "".join(f"<tr><th>{escape(name)}</th><td>{escape(told)}</td></tr>" for name, told in _sums(found))
    pictures = [f"<h3>{escape(_title(arena))}</h3>{memory_svg(arena, names)}" for arena in drawn(found)]
    told = "A box is a value: where it lies, and from the kernel that writes it to the last that reads it."
    hint = f'<p class="quiet">{told}</p>'
    return f"<table>{lines}</table>{''.join(pictures)}{hint if pictures else ''}"


def write_plot(path: str | os.PathLike[str], found: Memory, names: NodeNames, name: str) -> None:
    """Write the picture of the largest arena (``.svg``), or a page with those of all (``.html``).

    Raises:
        OptionError: The file's name ends in something else, or there is no arena.
        ModelFileError: It cannot be written.
    """
    suffix = Path(path).suffix.lower()
    arenas = drawn(found)
    if suffix not in (".svg", ".html"):
        raise OptionError(f"'{suffix}' is no form of the plot.", where=os.fspath(path), remedy="Write .svg or .html.")
    if not arenas:
        raise OptionError("no arena is there to be drawn: the model's values lie outside of any.", where="--plot")
    if suffix == ".html":
        text = page(f"{name}: memory", _title(max(arenas, key=lambda each: each.bytes)), [
            section("Memory", memory_section(found, names))
        ])  # fmt: skip
    else:
        text = memory_svg(max(arenas, key=lambda each: each.bytes), names, alone=True)
    write_text(path, text)
