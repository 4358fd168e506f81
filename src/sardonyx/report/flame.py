"""Flame tables: the time of a run by the modules of the model, one inside the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from sardonyx.report.scopes import Scope, Scopes
from sardonyx.runtime.profiling.profile import Profile

_BAR = 16
"""Characters of a bar of all of the time."""


@dataclass
class Frame:
    """A module, or a node in it.

    Attributes:
        name: What it is called in the frame around.
        own: Seconds that are in none of the frames in it.
        kernels: Kernels, interpreted values and parts that count for it.
        inside: The frames in it, by name.
    """

    name: str
    own: float = 0.0
    kernels: int = 0
    inside: dict[str, Frame] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """Seconds of it, with all that is in it."""
        return self.own + sum(each.total for each in self.inside.values())

    @property
    def count(self) -> int:
        """Kernels of it, with those of all that is in it."""
        return self.kernels + sum(each.count for each in self.inside.values())

    def by_time(self) -> list[Frame]:
        """The frames in it, the one that takes most first."""
        return sorted(self.inside.values(), key=lambda each: -each.total)

    def as_dict(self) -> dict[str, Any]:
        """The frame as plain data."""
        inside = [each.as_dict() for each in self.by_time()]
        return {"name": self.name, "total": self.total, "self": self.own, "kernels": self.count, "inside": inside}


def flame(found: Profile, scopes: Scopes, operators: dict[str, str], name: str) -> Frame:
    """The frames of a run.

    A kernel counts for the node that most of its operations are for.

    Args:
        found: The profile.
        scopes: Where nodes belong.
        operators: The operator that gives a tensor, by the tensor's name.
        name: What the outermost frame is called.
    """
    root = Frame(name, found.elsewhere)
    for kernel in found.kernels:
        _add(root, scopes.of(kernel.note.main), _leaf(kernel.note.main, operators, kernel.note.title), kernel.seconds)
    for note, seconds in found.interpreted:
        _add(root, scopes.of(note.tensor), _leaf(note.tensor, operators, note.primitive), seconds)
    for part in found.parts:
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


def joined(frame: Frame) -> Frame:
    """The same with modules that hold no more than one other joined with that."""
    inside = [joined(each) for each in frame.inside.values()]
    if len(inside) == 1 and not frame.own and inside[0].inside:
        return Frame(f"{frame.name}/{inside[0].name}", inside[0].own, inside[0].kernels, inside[0].inside)
    return Frame(frame.name, frame.own, frame.kernels, {each.name: each for each in inside})


def flame_table(root: Frame, most: int | None = None) -> Table:
    """The frames as a table, one inside the other, the one that takes most first.

    Args:
        root: The outermost frame.
        most: Rows that are shown at most: those that take most; None for all.
    """
    table = Table(title="By module", title_justify="left", header_style="bold", expand=True)
    for column in ("total µs", "share", "self µs", "kernels"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", width=_BAR)
    table.add_column("module, node", overflow="ellipsis", no_wrap=True, min_width=24, ratio=1)
    rows = list(_rows(joined(root), 0))
    # What is inside of something takes no more than that: whatever is shown, what is around it is too.
    kept = sorted(range(len(rows)), key=lambda i: (-rows[i][1].total, i))[:most]
    whole = max(root.total, 1e-12)
    for index in sorted(kept):
        depth, frame = rows[index]
        share = frame.total / whole
        bar = Text("█" * round(share * _BAR), style="red" if depth else "dim")
        table.add_row(
            f"{frame.total * 1e6:,.1f}", f"{share:.1%}", f"{frame.own * 1e6:,.1f}" if frame.own else "",
            str(frame.count), bar, Text("  " * depth + frame.name, style="" if frame.inside else "dim"),
        )  # fmt: skip
    if len(kept) < len(rows):
        table.caption = f"{len(rows) - len(kept)} more, which take less; --json and --html hold all."
    return table


def _rows(frame: Frame, depth: int) -> Iterator[tuple[int, Frame]]:
    yield depth, frame
    for each in frame.by_time():
        yield from _rows(each, depth + 1)
