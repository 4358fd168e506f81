"""Memory of a session: offsets and lifetimes of values in an arena, as text and as a picture."""

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
from sardonyx.report.html_blocks import COLOURS, page, section, svg, ticks
from sardonyx.report.kernels import NodeNames, label
from sardonyx.report.quantities import size
from sardonyx.runtime.compiled.memory_usage import Arena, Buffer, Memory

MOST_ARENAS = 4
"""Number of arenas that are drawn: the largest."""

_COLUMNS, _LINES = 72, 8
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_WIDTH, _HEIGHT, _LEFT, _TOP = 860, 300, 80, 24


def largest_arenas(memory: Memory) -> list[Arena]:
    """Return the largest arenas, in their order."""
    largest = sorted((arena for arena in memory.plans if arena.buffers and arena.bytes), key=lambda arena: -arena.bytes)
    shown = {id(arena) for arena in largest[:MOST_ARENAS]}
    return [arena for arena in memory.plans if id(arena) in shown]


def memory_tables(memory: Memory, names: NodeNames, most: int | None = None) -> list[RenderableType]:
    """Return the tables of ``sardonyx profile --memory``: totals, and each arena over time and at peak.

    Args:
        memory: The report.
        names: Names of the nodes.
        most: Maximum number of rows of a table; None for all.
    """
    sums = Table.grid(padding=(0, 2))
    for name, text in _sums(memory):
        sums.add_row(Text(name, style="bold"), Text(text))
    parts: list[RenderableType] = [sums]
    for arena in largest_arenas(memory):
        parts += [Text(""), _chart(arena), _at_peak(arena, names, most)]
    hidden = len([plan for plan in memory.plans if plan.buffers and plan.bytes]) - len(largest_arenas(memory))
    if hidden > 0:
        parts.append(Text(f"{hidden} smaller arenas are not shown; --json holds all.", style="dim"))
    return parts


def _sums(memory: Memory) -> Iterator[tuple[str, str]]:
    yield "weights", f"{size(memory.weights)}, packed for the kernels"
    shared = f", {size(memory.shared)} of which shared with other sessions" if memory.shared else ""
    yield "arenas", f"{size(memory.arena)} in {memory.arenas}{shared}"
    yield "peak of a call", f"{size(memory.peak)}, including results and values between native calls"
    if memory.unknown:
        yield "unknown", f"the memory of {', '.join(memory.unknown)}, which runs parts of the model"


def _title(arena: Arena) -> str:
    where = f" of {arena.where}" if arena.where else ""
    return f"Arena{where}: {size(arena.bytes)} for {len(arena.kernels)} kernels, {len(arena.buffers)} values"


def _chart(arena: Arena) -> Text:
    """Return the live bytes at each kernel; the maximum of several kernels if there are many."""
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
    live = [buffer for buffer in arena.buffers if not buffer.inside and buffer.first <= busiest <= buffer.last]
    table = Table(title=f"Alive at kernel {busiest}", title_justify="left", header_style="bold")
    for column in ("bytes", "offset", "kernels"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("values at the same offset, before or after", overflow="fold")
    rows = sorted(live, key=lambda buffer: -buffer.bytes)
    for buffer in rows[:most]:
        table.add_row(
            size(buffer.bytes), f"{buffer.offset:,}", f"{buffer.first}–{buffer.last}",
            Text(_display_name(buffer, names)), Text(_first_names(buffer.shares_with)),
        )  # fmt: skip
    if most is not None and len(rows) > most:
        table.caption = f"{len(rows) - most} more; --json holds all."
    return table


def _display_name(buffer: Buffer, names: NodeNames) -> str:
    return label(buffer.name, names) if buffer.name in names else buffer.name


def _first_names(names: Sequence[str], most: int = 4) -> str:
    left = len(names) - most
    return ", ".join(names[:most]) + (f" and {left} more" if left > 0 else "")


# Pictures.


def memory_svg(arena: Arena, names: NodeNames, *, alone: bool = False) -> str:
    """Return a picture of an arena: a box for each value, from first to last kernel and over its offsets."""
    kernels = len(arena.kernels)
    wide, high = _WIDTH - _LEFT - 10, _HEIGHT

    def x(kernel: float) -> float:
        return _LEFT + min(kernel, kernels) / kernels * wide

    def y(offset: float) -> float:
        return _TOP + high - offset / max(arena.bytes, 1) * high

    parts = []
    for tick in _byte_ticks(arena.bytes):
        parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_LEFT + wide}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text class="small" x="{_LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{size(tick)}</text>')
    own = [buffer for buffer in arena.buffers if not buffer.inside]
    for number, buffer in enumerate(own):
        parts.append(_box(buffer, number, x, y, names))
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


Scale = Callable[[float], float]
"""Map a kernel number or an offset to a coordinate of the picture."""


def _box(buffer: Buffer, number: int, x: Scale, y: Scale, names: NodeNames) -> str:
    left, right = x(buffer.first), x(buffer.last + 1)
    top, bottom = y(buffer.offset + buffer.bytes), y(buffer.offset)
    colour = COLOURS[number % len(COLOURS)]
    name = _display_name(buffer, names)
    shared = f"; same offset: {_first_names(buffer.shares_with, 8)}" if buffer.shares_with else ""
    tooltip = f"{name}: {size(buffer.bytes)} at {buffer.offset:,}, kernels {buffer.first}-{buffer.last}{shared}"
    text = ""
    if bottom - top > 15 and right - left > 6.5 * len(buffer.name) + 8:
        text = (
            f'<text x="{left + 4:.1f}" y="{(top + bottom) / 2 + 4:.1f}" style="fill:#fff">{escape(buffer.name)}</text>'
        )
    return (
        f'<g><title>{escape(tooltip)}</title><rect x="{left:.2f}" y="{top:.2f}" width="{max(right - left, 0.5):.2f}"'
        f' height="{max(bottom - top, 0.3):.2f}" fill="{colour}" stroke="#fff" stroke-width=".5"/>{text}</g>'
    )


def _byte_ticks(most: int) -> list[int]:
    step = 1 << max(math.ceil(math.log2(max(most, 1) / 5)), 0)
    return list(range(0, most + 1, step))


def memory_section(memory: Memory, names: NodeNames) -> str:
    """Return the part of a page about memory."""
    lines = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in _sums(memory))
    pictures = [f"<h3>{escape(_title(arena))}</h3>{memory_svg(arena, names)}" for arena in largest_arenas(memory)]
    hint = '<p class="quiet">Each box is a value: its offsets, from the kernel that writes it to its last reader.</p>'
    return f"<table>{lines}</table>{''.join(pictures)}{hint if pictures else ''}"


def write_plot(path: str | os.PathLike[str], memory: Memory, names: NodeNames, name: str) -> None:
    """Write the picture of the largest arena (``.svg``), or a page with the pictures of all (``.html``).

    Raises:
        OptionError: The file has another suffix, or the session has no arena.
        ModelFileError: The file cannot be written.
    """
    suffix = Path(path).suffix.lower()
    arenas = largest_arenas(memory)
    if suffix not in (".svg", ".html"):
        raise OptionError(f"unknown plot format '{suffix}'", where=os.fspath(path), remedy="Use .svg or .html.")
    if not arenas:
        raise OptionError("the session has no arena to draw: no value is stored in one", where="--plot")
    if suffix == ".html":
        text = page(f"{name}: memory", _title(max(arenas, key=lambda arena: arena.bytes)), [
            section("Memory", memory_section(memory, names))
        ])  # fmt: skip
    else:
        text = memory_svg(max(arenas, key=lambda arena: arena.bytes), names, alone=True)
    write_text(path, text)
