"""Tables of who runs which node."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from sardonyx.runtime.placement import Placement


def placement_tables(placement: Sequence[Placement]) -> list[RenderableType]:
    """A table of the calls in the order in which they run, and one of the nodes with the reasons."""
    placed = sorted((each for each in placement if each.provider), key=lambda each: each.part)
    parts = Table(title="Calls", title_justify="left", header_style="bold")
    parts.add_column("", justify="right")
    parts.add_column("provider")
    parts.add_column("nodes", justify="right")
    for (part, provider), nodes in groupby(placed, key=lambda each: (each.part, each.provider)):
        parts.add_row(str(part), provider, str(len(list(nodes))))
    table = Table(title="Nodes", title_justify="left", header_style="bold")
    for column in ("node", "provider", "call", "why"):
        table.add_column(column, overflow="fold")
    for each in placement:
        call = str(each.part) if each.provider else ""
        table.add_row(Text(each.node), each.provider or "all", call, Text(each.reason))
    return [parts, table]
