"""Tables of the assignment of nodes to providers, and of calls to answerers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from sardonyx.runtime.live.answerers import AnswererNote
from sardonyx.runtime.placement import Placement


def placement_tables(placement: Sequence[Placement]) -> list[RenderableType]:
    """Return a table of the calls in execution order, and one of the nodes with the reasons."""
    placed = sorted((node for node in placement if node.provider), key=lambda node: node.part)
    parts = Table(title="Calls", title_justify="left", header_style="bold")
    parts.add_column("", justify="right")
    parts.add_column("provider")
    parts.add_column("nodes", justify="right")
    for (part, provider), nodes in groupby(placed, key=lambda node: (node.part, node.provider)):
        parts.add_row(str(part), provider, str(len(list(nodes))))
    table = Table(title="Nodes", title_justify="left", header_style="bold")
    for column in ("node", "provider", "call", "why"):
        table.add_column(column, overflow="fold")
    for node in placement:
        call = str(node.part) if node.provider else ""
        table.add_row(Text(node.node), node.provider or "all", call, Text(node.reason))
    return [parts, table]


def answerer_table(answerers: Sequence[AnswererNote]) -> RenderableType:
    """Return a table of the answerers of a session, in the order in which a call tries them."""
    table = Table(title="Answerers", title_justify="left", header_style="bold")
    for column in ("", "answerer", "computes"):
        table.add_column(column, overflow="fold")
    for answerer in answerers:
        table.add_row("→" if answerer.answers else "", answerer.name, Text(answerer.reason))
    return table
