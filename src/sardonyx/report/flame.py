"""Flame tables: the time of a run by the nested modules of the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from sardonyx.report.scopes import Scope, Scopes
from sardonyx.runtime.profiling.profile import Profile

_BAR = 16
"""Characters of a bar that stands for the whole time."""


@dataclass
class Frame:
    """A module, or a node in a module.

    Attributes:
        name: Name within the enclosing frame.
        own: Seconds spent in none of the inner frames.
        kernels: Number of kernels, interpreted values and parts of the frame itself.
        inside: The inner frames, by name.
    """

    name: str
    own: float = 0.0
    kernels: int = 0
    inside: dict[str, Frame] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """Seconds of the frame and all inner frames."""
        return self.own + sum(inner.total for inner in self.inside.values())

    @property
    def count(self) -> int:
        """Number of kernels of the frame and all inner frames."""
        return self.kernels + sum(inner.count for inner in self.inside.values())

    def by_time(self) -> list[Frame]:
        """Return the inner frames, the slowest first."""
        return sorted(self.inside.values(), key=lambda inner: -inner.total)

    def as_dict(self) -> dict[str, Any]:
        """Return the frame as plain data."""
        inside = [inner.as_dict() for inner in self.by_time()]
        return {"name": self.name, "total": self.total, "self": self.own, "kernels": self.count, "inside": inside}


def flame(profile: Profile, scopes: Scopes, operators: dict[str, str], name: str) -> Frame:
    """Return the frames of a run.

    A kernel counts for the node with most of its operations.

    Args:
        profile: The profile.
        scopes: Module scopes of the nodes.
        operators: Operator and name of the node that computes a tensor, by the tensor's name.
        name: Name of the outermost frame.
    """
    root = Frame(name, profile.elsewhere)
    for kernel in profile.kernels:
        _add(root, scopes.of(kernel.note.main), _leaf(kernel.note.main, operators, kernel.note.title), kernel.seconds)
    for note, seconds in profile.interpreted:
        _add(root, scopes.of(note.tensor), _leaf(note.tensor, operators, note.primitive), seconds)
    for part in profile.parts:
        if not part.known:
            _add(root, (), f"{part.provider}: {part.label}", part.seconds)
    return root


def _leaf(tensor: str, operators: dict[str, str], title: str) -> str:
    return operators.get(tensor) or title


def _add(root: Frame, scope: Scope, leaf: str, seconds: float) -> None:
    frame = root
    for name in (*scope, leaf):
        frame = frame.inside.setdefault(name, Frame(name))
    frame.own += seconds
    frame.kernels += 1


def merge_single_children(frame: Frame) -> Frame:
    """Return the frames; a module without time of its own is merged with its only inner module."""
    inside = [merge_single_children(inner) for inner in frame.inside.values()]
    if len(inside) == 1 and not frame.own and inside[0].inside:
        return Frame(f"{frame.name}/{inside[0].name}", inside[0].own, inside[0].kernels, inside[0].inside)
    return Frame(frame.name, frame.own, frame.kernels, {inner.name: inner for inner in inside})


def flame_table(root: Frame, most: int | None = None) -> Table:
    """Return the frames as a table, nested, the slowest first.

    Args:
        root: The outermost frame.
        most: Maximum number of rows, the slowest; None for all.
    """
    table = Table(title="By module", title_justify="left", header_style="bold", expand=True)
    for column in ("total µs", "share", "self µs", "kernels"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", width=_BAR)
    table.add_column("module, node", overflow="ellipsis", no_wrap=True, min_width=24, ratio=1)
    rows = list(_rows(merge_single_children(root), 0))
    # An inner frame takes at most as long as its parent, so every shown frame's parent is shown too.
    shown = sorted(range(len(rows)), key=lambda i: (-rows[i][1].total, i))[:most]
    whole = max(root.total, 1e-12)
    for index in sorted(shown):
        depth, frame = rows[index]
        share = frame.total / whole
        bar = Text("█" * round(share * _BAR), style="red" if depth else "dim")
        table.add_row(
            f"{frame.total * 1e6:,.1f}", f"{share:.1%}", f"{frame.own * 1e6:,.1f}" if frame.own else "",
            str(frame.count), bar, Text("  " * depth + frame.name, style="" if frame.inside else "dim"),
        )  # fmt: skip
    if len(shown) < len(rows):
        table.caption = f"{len(rows) - len(shown)} faster frames are hidden; --json and --html show all."
    return table


def _rows(frame: Frame, depth: int) -> Iterator[tuple[int, Frame]]:
    yield depth, frame
    for inner in frame.by_time():
        yield from _rows(inner, depth + 1)
